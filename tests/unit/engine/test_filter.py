from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Message
from penstock.engine.filter import Filter, Truth, compile_filter, stored_filter
from penstock.engine.filter_tree import (
    FIELDS,
    KEYWORDS,
    And,
    Between,
    Comparison,
    Condition,
    Constant,
    Field,
    Header,
    In,
    IsNull,
    Like,
    Not,
    Operand,
    Or,
    meeting,
    write,
)
from penstock.errors import InvalidArgument
from penstock.limits import (
    FILTER_CHARS_MAX,
    FILTER_DEPTH_MAX,
    FILTER_LIKE_STEPS_MAX,
    FILTER_NUMBER_CHARS_MAX,
    FILTER_VALUES_MAX,
    HEADERS_BYTES_MAX,
    LIKE_CHARS_MAX,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)

MESSAGE = Message(
    b"12345",
    headers={
        "region": "eu",
        "x-error": "connect: read timeout\nafter 30 s",
        "attempts": "10",
        "price": "19.90",
        "urgent": "True",
        "due": "2026-01-31T13:00:00+01:00",
        "key": "a header called key",
        "new orders": "7",
        "Größe": "XL",
        'a"b': "quoted",
        "like": "a keyword",
        "empty": "",
        "a.b:c_d-e": "long name",
    },
    key="customer-7",
    priority=2,
    id=2**62,
    offset=41,
    timestamp=NOON,
)


def truth(text: str, message: Any = MESSAGE) -> Truth:
    """True, false or unknown: what `matches` cannot tell apart, NOT can."""
    matches = compile_filter(text).matches(message)
    opposite = compile_filter(f"NOT ({text})").matches(message)
    assert not (matches and opposite)
    return True if matches else False if opposite else None


# --- what is true of a message ---

TRUE = """
region = 'eu'
region <> 'us'
region != 'us'
region < 'f'
region <= 'eu'
region >= 'eu'
region > 'EU'
'eu' = region
'f' > region
'd' < region
'eu' = 'eu'
region = region
key = 'customer-7'
"key" = 'a header called key'
"region" = 'eu'
"new orders" = 7
"Größe" = 'XL'
"a""b" = 'quoted'
"like" = 'a keyword'
a.b:c_d-e = 'long name'
empty = ''
empty IS NOT NULL
priority = 2
priority < 3
3 > priority
priority = 2.0
priority > -1
priority<+3
priority > 1.5
priority > .5
priority < 3.
priority < 1e3
id = 4611686018427387904
offset BETWEEN 41 AND 41
offset BETWEEN priority AND id
offset NOT BETWEEN 0 AND 40
5 BETWEEN priority AND offset
payload_bytes = 5
payload_bytes < attempts
attempts = 10
attempts > 9
attempts = 1e1
attempts < '9'
attempts > priority
price = 19.9
price BETWEEN 19 AND 20
urgent = TRUE
urgent <> FALSE
TRUE = urgent
urgent IN (FALSE, TRUE)
timestamp = '2026-01-31T12:00:00Z'
timestamp = '2026-01-31T13:00:00+01:00'
timestamp >= '2026-01-31T12:00:00.000000Z'
timestamp < '2026-01-31 12:00:00.000001Z'
timestamp BETWEEN '2026-01-31T00:00Z' AND '2026-02-01T00:00Z'
timestamp IN ('2026-01-31T11:00:00-01:00')
timestamp = due
due >= timestamp
region IN ('us', 'eu')
region NOT IN ('us', 'ap')
attempts IN (1, 10)
attempts IN ('ten', 10)
attempts IN ('ten', '10')
priority IN (2.0)
region IN ('eu', NULL)
region LIKE 'eu'
region LIKE 'e%'
region LIKE '_u'
region LIKE '%'
region NOT LIKE 'E%'
key LIKE 'customer-_'
x-error LIKE '%timeout%'
x-error LIKE 'connect:%30 s'
x-error LIKE '%out_after%'
'50%' LIKE '50!%' ESCAPE '!'
'it''s' LIKE '%''%'
missing IS NULL
key IS NOT NULL
NULL IS NULL
TRUE
NOT FALSE
(((TRUE)))
TRUE = TRUE
region = 'eu' AND priority < 3
region = 'us' OR priority < 3
missing = 'x' OR region = 'eu'
not region = 'us' And(priority Is not null)
NOT(region='us')AND(priority<3)
"""


@pytest.mark.parametrize("text", TRUE.strip().splitlines())
def test_what_is_true_of_a_message_does_not_match(text: str) -> None:
    assert truth(text) is True


FALSE = """
region = 'us'
region = 'EU'
region = 'eu '
priority >= 3
attempts = 9
attempts = '10.0'
offset NOT BETWEEN 41 AND 41
offset BETWEEN 42 AND 40
timestamp < '2026-01-31T12:00:00Z'
urgent = FALSE
region IN ('us')
region NOT IN ('us', 'eu')
region NOT IN ('eu', NULL)
region LIKE 'e'
region LIKE ''
missing IS NOT NULL
region IS NULL
FALSE
missing = 'x' AND region = 'us'
"""


@pytest.mark.parametrize("text", FALSE.strip().splitlines())
def test_what_is_false_of_a_message_is_true_or_unknown(text: str) -> None:
    assert truth(text) is False


NEITHER = """
missing = 'x'
missing <> 'x'
missing = missing
Region = 'eu'
missing < 3
missing LIKE '%'
missing NOT LIKE '%'
missing IN ('x')
missing NOT IN ('x')
missing BETWEEN 1 AND 2
region = NULL
NULL = NULL
NULL <> region
NULL
NULL LIKE 'a'
region IN ('us', NULL)
region NOT IN ('us', NULL)
region IN (NULL)
region = 3
region <> 3
region IN (1, 2)
attempts IN ('ten', TRUE)
key > 0
x-error BETWEEN 1 AND 2
empty = 0
region = TRUE
region <> TRUE
region = timestamp
attempts < timestamp
region = 'eu' AND missing = 1
region = 'us' OR missing = 1
offset BETWEEN missing AND 50
"""


@pytest.mark.parametrize("text", NEITHER.strip().splitlines())
def test_what_cannot_be_known_is_true_or_false(text: str) -> None:
    assert truth(text) is None


@pytest.mark.parametrize("name", ["key", "id", "offset", "timestamp"])
def test_a_field_that_is_not_set_is_not_null(name: str) -> None:
    fresh = Message(b"")
    assert truth(f"{name} IS NULL", fresh) is True
    assert truth(f"{name} = {name}", fresh) is None


def test_a_message_of_another_class_is_refused() -> None:
    own = SimpleNamespace(
        headers={"a": "1"}, key=None, priority=0, id=1, offset=2, timestamp=None, payload=b"123"
    )
    assert compile_filter("a = 1 AND payload_bytes = 3 AND timestamp IS NULL AND id < offset").matches(own)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1_000",
        "inf",
        "nan",
        "-",
        "+-1",
        "0x10",
        "1e999",
        "-1e999",
        "e1",
        ".",
        "1e",
        "١",
        "1" * 65,
    ],
)
def test_text_that_is_no_number_is_taken_for_one(text: str) -> None:
    assert truth("n <> 5", Message(b"", headers={"n": text})) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", "0"), ("-0", "0"), ("007", "7"), ("+5", "5"), ("1.50", "1.5"), (".5", "0.5"), ("5.", "5"),
     ("1e-05", "0.00001"), ("1E+2", "100"), ("9007199254740993", "9007199254740993")],
)  # fmt: skip
def test_a_number_is_not_read_from_text(text: str, number: str) -> None:
    assert truth(f"n = {number}", Message(b"", headers={"n": text})) is True


def test_large_whole_numbers_are_rounded() -> None:
    assert truth("n = 9007199254740992", Message(b"", headers={"n": "9007199254740993"})) is False
    assert truth("id = 4611686018427387905") is False


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00",
        "2026-01-31",
        "noon",
        "",
        "2026-02-31T00:00:00Z",
        "2026-01-31T12:00:00+25:00",
        "\x00",
        "1" * 9,
    ],
)
def test_text_that_is_no_moment_is_taken_for_one(text: str) -> None:
    assert truth("timestamp > due", Message(b"", timestamp=NOON, headers={"due": text})) is None


@pytest.mark.parametrize("far", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_moment_at_the_end_of_time_overflows(far: str) -> None:
    assert truth(f"timestamp <> '{far}'") is True
    assert truth(f"timestamp IN ('{far}')") is False


# --- logic ---

SAY: dict[Truth, str] = {True: "priority = 2", False: "priority = 3", None: "missing = 1"}

ALL = {
    (True, True): True, (True, False): False, (True, None): None,
    (False, True): False, (False, False): False, (False, None): False,
    (None, True): None, (None, False): False, (None, None): None,
}  # fmt: skip
ANY = {
    (True, True): True, (True, False): True, (True, None): True,
    (False, True): True, (False, False): False, (False, None): None,
    (None, True): True, (None, False): None, (None, None): None,
}  # fmt: skip


@pytest.mark.parametrize(("left", "right"), list(product(SAY, SAY)))
def test_two_conditions_are_joined_otherwise_than_in_sql(left: Truth, right: Truth) -> None:
    assert truth(f"{SAY[left]} AND {SAY[right]}") is ALL[left, right]
    assert truth(f"{SAY[left]} OR {SAY[right]}") is ANY[left, right]


@pytest.mark.parametrize(("found", "opposite"), [(True, False), (False, True), (None, None)])
def test_not_is_otherwise_than_in_sql(found: Truth, opposite: Truth) -> None:
    assert truth(f"NOT {SAY[found]}") is opposite
    assert truth(f"NOT NOT {SAY[found]}") is found


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a = 1 OR b = 1 AND c = 1", "a = 1 OR (b = 1 AND c = 1)"),
        ("a = 1 AND b = 1 OR c = 1", "(a = 1 AND b = 1) OR c = 1"),
        ("NOT a = 1 AND b = 1", "(NOT (a = 1)) AND b = 1"),
        ("NOT a = 1 OR b = 1", "(NOT (a = 1)) OR b = 1"),
        ("a BETWEEN 1 AND 2 AND b = 1", "(a BETWEEN 1 AND 2) AND b = 1"),
        ("NOT a BETWEEN 1 AND 2 OR b = 1", "(a NOT BETWEEN 1 AND 2) OR b = 1"),
        ("NOT a IS NULL", "a IS NOT NULL"),
        ("NOT a IN (1)", "a NOT IN (1)"),
        ("a = 1 AND NOT b LIKE 'x'", "a = 1 AND (b NOT LIKE 'x')"),
    ],
)
def test_an_operator_binds_too_much_or_too_little(text: str, meant: str) -> None:
    assert compile_filter(text) == compile_filter(meant)


def test_parentheses_do_not_matter() -> None:
    assert compile_filter("(a = 1 OR b = 1) AND c = 1") != compile_filter("a = 1 OR b = 1 AND c = 1")


# --- a filter as a value ---


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("a=1", "a = 1"),
        ("  a\n=\t1  ", "a = 1"),
        ('"a" != 01.50', "a <> 1.5"),
        (
            '"key" is null and "KEY" is null and key is null',
            '"key" IS NULL AND "KEY" IS NULL AND key IS NULL',
        ),
        ("\"not\"=''", "\"not\" = ''"),
        ("((a=1)) or ((b=1) and (c=1))", "a = 1 OR b = 1 AND c = 1"),
        ("(a=1 or b=1) or c=1", "(a = 1 OR b = 1) OR c = 1"),
        ("not (a in (1,'x',null,true))", "a NOT IN (1, 'x', NULL, TRUE)"),
        ("not ((a like 'x!%' escape '!'))", "a NOT LIKE 'x!%' ESCAPE '!'"),
        ("a like 'x' escape ''''", "a LIKE 'x' ESCAPE ''''"),
        ("not (a=1 and b=1)", "NOT (a = 1 AND b = 1)"),
        ('"7 days" = -1e30', '"7 days" = -1e+30'),
    ],
)
def test_the_normalised_text_is_another(text: str, normalised: str) -> None:
    found = compile_filter(text)
    assert str(found) == normalised
    assert found.text == text
    assert repr(found) == f"Filter({normalised!r})"
    assert compile_filter(normalised) == found


def test_equal_filters_differ() -> None:
    assert len({compile_filter("a=1"), compile_filter("(a = 1)"), compile_filter('"a"=1')}) == 1
    assert compile_filter("a = 1") != compile_filter("a = TRUE")
    assert compile_filter("a = 1") != "a = 1"


@pytest.mark.parametrize("again", [copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))])
def test_a_copied_filter_says_something_else(again: Any) -> None:
    found: Filter = again(compile_filter("region='eu'"))
    assert found.text == "region='eu'"
    assert found.matches(MESSAGE)


# --- errors ---


def refusal(text: str) -> str:
    """What is said against a filter; nothing if it is fine. Any other error goes through."""
    try:
        compile_filter(text)
    except InvalidArgument as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("text", "said", "at"),
    [
        ("", "expected a condition", 1),
        ("   ", "expected a condition", 4),
        ("region", "expected an operator such as = or LIKE after 'region'", 7),
        ("region = ", "expected a value after '='", 10),
        ("region = =", "expected a value after '='", 10),
        ("region == 'eu'", "expected a value after '='", 9),
        ("= 'eu'", "expected a condition", 1),
        ("region 'eu'", "expected an operator such as = or LIKE after 'region'", 8),
        ("region = 'eu' priority < 3", "expected AND, OR or the end after 'eu'", 15),
        ("region = 'eu' AND", "expected a condition after 'AND'", 18),
        ("region = 'eu' AND OR x = 1", "expected a condition after 'AND'", 19),
        ("(region = 'eu'", "expected AND, OR or ')' after 'eu'", 15),
        ("region = 'eu')", "expected AND, OR or the end after 'eu'", 14),
        ("()", "expected a condition after '('", 2),
        ("(priority) < 3", "expected an operator such as = or LIKE after 'priority'", 10),
        ("NOT", "expected a condition after 'NOT'", 4),
        ("a NOT = 1", "expected LIKE, IN or BETWEEN after 'NOT'", 7),
        ("a IS 1", "expected NULL or NOT NULL after 'IS'", 6),
        ("a IS NOT 1", "expected NULL after 'NOT'", 10),
        ("a LIKE b", "expected a pattern in single quotes after 'LIKE'", 8),
        ("a LIKE 'x' ESCAPE", "expected one character in single quotes after 'ESCAPE'", 18),
        ("a LIKE 'x' ESCAPE 'ab'", "'ab' is not one character,", 19),
        ("a LIKE 'x' ESCAPE ''", "'' is not one character,", 19),
        ("a LIKE 'x!y' ESCAPE '!'", "the escape character '!' is followed by 'y', not by %, _ or itself,", 8),
        ("priority LIKE '1%'", "LIKE compares text, and priority is a number,", 1),
        ("5 LIKE '5'", "LIKE compares text, and 5 is a number,", 1),
        ("a IN 1", "expected '(' after 'IN'", 6),
        ("a IN ()", "expected a literal after '('", 7),
        ("a IN (1 2)", "expected ',' or ')' after '1'", 9),
        ("a IN (1,)", "expected a literal after ','", 9),
        ("a IN (b)", "'b' is a name, and a list holds literals only,", 7),
        ("a BETWEEN 1", "expected AND after '1'", 12),
        ("a BETWEEN 1 OR 2", "expected AND after '1'", 13),
        ("a BETWEEN AND 2", "expected a value after 'BETWEEN'", 11),
        ("region = 'eu", "the quote ' is not closed", 10),
        ("region = 'it''s", "the quote ' is not closed", 10),
        ('"region = 1', 'the quote " is not closed', 1),
        ('"" = 1', "the name of a header is empty", 1),
        ("a & b", "unexpected '&'", 3),
        ("a = 1;", "unexpected ';'", 6),
        ("größe = 1", "unexpected 'ö'", 3),
        ("7days = 1", "neither a number nor a name", 1),
        ("a = 1.2.3", "neither a number nor a name", 5),
        ("a = 5 -3", "expected AND, OR or the end after '5'", 7),
        ("a = 1e999", "the number '1e999' is too large or too long", 5),
        ("Priority < 3", "'Priority' is neither the field priority nor in double quotes", 1),
        ("priority = 'high'", "priority (a number) cannot be compared with 'high' (text),", 12),
        ("'high' = priority", "'high' (text) cannot be compared with priority (a number),", 10),
        ("'3' = 3", "'3' (text) cannot be compared with 3 (a number),", 7),
        ("key = 'a' AND id IN (1, 'b')", "id (a number) cannot be compared with 'b' (text),", 25),
        ("priority = TRUE", "priority (a number) cannot be compared with TRUE (a boolean),", 12),
        ("timestamp > 5", "timestamp (a time) cannot be compared with 5 (a number),", 13),
        ("timestamp > priority", "timestamp (a time) cannot be compared with priority (a number),", 13),
        ("timestamp > 'noon'", "'noon' is not a time with a time zone", 13),
        ("timestamp > '2026-01-31'", "'2026-01-31' is not a time with a time zone", 13),
        ("a < TRUE", "TRUE and FALSE have no order", 5),
        ("a BETWEEN 1 AND TRUE", "TRUE and FALSE have no order", 17),
        ("a = '\ud800'", "a character that cannot be stored as UTF-8 (surrogates not allowed)", 6),
    ],
)
def test_an_error_is_not_explained_or_points_elsewhere(text: str, said: str, at: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        compile_filter(text)
    sentence, shown, caret = caught.value.message.split("\n")
    assert sentence.startswith(f"the filter is wrong: {said}")
    assert f" at character {at}" in sentence
    assert shown == "  " + text.replace("\ud800", " ").rstrip()
    assert caret == " " * (2 + at - 1) + "^"


def test_the_caret_is_misplaced_in_a_filter_of_many_lines() -> None:
    with pytest.raises(InvalidArgument) as caught:
        compile_filter("a = 1\n\tAND b 2")
    assert caught.value.message.split("\n")[1:] == ["  a = 1  AND b 2", "               ^"]


@pytest.mark.parametrize(
    "text", ["'a\nb' 'c'", "a = 'b\nc' d", "timestamp > '\n'", '"\t\n" b', "priority = '\r\n'"]
)
def test_a_line_end_within_quotes_breaks_the_error(text: str) -> None:
    assert len(refusal(text).splitlines()) == 3


@pytest.mark.parametrize(
    "text", ["timestamp > '{}'", "'{}' 5", "id IN ('{}')", '"{}" b', "a LIKE 'x' ESCAPE '{}'", "a {}"]
)
def test_a_long_token_makes_a_long_error(text: str) -> None:
    assert 0 < len(refusal(text.format("x" * 4000))) < 400


def test_the_caret_is_misplaced_in_a_long_filter() -> None:
    with pytest.raises(InvalidArgument) as caught:
        compile_filter(f"{'a = 1 AND ' * 100}b 2{' AND a = 1' * 100}")
    sentence, shown, caret = caught.value.message.split("\n")
    assert "at character 1003" in sentence
    assert len(shown) <= 110
    assert shown[caret.index("^") - 2 :].startswith("b 2 AND")
    assert shown.startswith("  …")
    assert shown.endswith("…")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("region LKE 'x'", "did you mean LIKE?"),
        ("region bewteen 1 AND 2", "did you mean BETWEEN?"),
        ("a = 1 ADN b = 2", "did you mean AND?"),
        ("a IS NUL", "did you mean NULL?"),
        ("a BETWEEN 1 ADN 2", "did you mean AND?"),
        ("like = 1", 'a header of that name is written "like"'),
        ("a = 1 AND in = 2", 'a header of that name is written "in"'),
        ("timestamp > 5", "write a time as '2026-01-31T12:00:00Z'"),
        ("timestamp > 'noon'", "write it as '2026-01-31T12:00:00Z'"),
        ("größe = 1", "goes in double quotes"),
        ("7days = 1", "goes in double quotes"),
    ],
)
def test_an_error_does_not_say_what_to_do(text: str, advice: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        compile_filter(text)
    assert advice in caught.value.message.split("\n")[0]


@pytest.mark.parametrize("text", ["region QUUX 'x'", "a = 1 b = 2"])
def test_a_word_unlike_any_keyword_is_taken_for_one(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        compile_filter(text)
    assert "did you mean" not in caught.value.message


@pytest.mark.parametrize("text", [None, 3, b"a = 1", ["a = 1"]])
def test_a_filter_that_is_no_text_is_taken(text: Any) -> None:
    with pytest.raises(InvalidArgument, match="give a str"):
        compile_filter(text)


@given(st.text(max_size=30) | st.text(alphabet="a1'\"()%=<>,.- ANDORTLIKE", max_size=60))
@settings(max_examples=300)
def test_some_text_ends_in_another_error(text: str) -> None:
    assert refusal(text).count("\n") in (0, 2)


# --- limits ---


def test_a_filter_of_the_largest_length_is_refused_or_a_longer_one_taken() -> None:
    start = "a = '"
    longest = start + "x" * (FILTER_CHARS_MAX - len(start) - 1) + "'"
    assert len(longest) == FILTER_CHARS_MAX
    assert compile_filter(longest).text == longest
    with pytest.raises(InvalidArgument, match=f"has {FILTER_CHARS_MAX + 1} characters"):
        compile_filter(longest + " ")


def test_a_filter_is_longer_when_written_out_than_it_may_be() -> None:
    with pytest.raises(InvalidArgument, match="when it is written out"):
        compile_filter(" OR ".join(["a=1e15"] * 400))


@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("NOT ", ""), ("NOT (", ")")])
def test_the_deepest_filter_is_refused_or_a_deeper_one_taken(opening: str, closing: str) -> None:
    levels = FILTER_DEPTH_MAX // (opening.count("NOT") + opening.count("("))
    deepest = opening * levels + "region = 'eu'" + closing * levels
    assert compile_filter(deepest).matches(MESSAGE)
    with pytest.raises(InvalidArgument, match=f"more than {FILTER_DEPTH_MAX} parentheses and NOTs"):
        compile_filter(opening + deepest + closing)


def test_filters_side_by_side_are_taken_for_nested_ones() -> None:
    assert compile_filter(" AND ".join(["NOT (region = 'us')"] * 100)).matches(MESSAGE)


def test_the_longest_list_is_refused_or_a_longer_one_taken() -> None:
    longest = ", ".join(map(str, range(FILTER_VALUES_MAX)))
    assert compile_filter(f"offset IN ({longest})").matches(MESSAGE)
    with pytest.raises(InvalidArgument, match=f"more than {FILTER_VALUES_MAX} values"):
        compile_filter(f"offset IN ({longest}, 999)")


def test_the_longest_number_is_refused_or_a_longer_one_taken() -> None:
    longest = "9" * FILTER_NUMBER_CHARS_MAX
    assert compile_filter(f"offset < {longest}").matches(MESSAGE)
    with pytest.raises(InvalidArgument, match="too large or too long"):
        compile_filter(f"offset < {longest}9")


def test_a_long_pattern_of_like_is_refused() -> None:
    longest = "x" * LIKE_CHARS_MAX
    assert not compile_filter(f"n LIKE '{longest}'").matches(MESSAGE)
    with pytest.raises(InvalidArgument, match=f"has {LIKE_CHARS_MAX + 1} characters; give at most"):
        compile_filter(f"n LIKE '{longest}x'")


def test_likes_that_take_too_long_together_are_refused() -> None:
    halves = [f"n LIKE '%{'a_' * (FILTER_LIKE_STEPS_MAX // 4 - 1)}ab%'" for _ in range(2)]
    assert not compile_filter(" OR ".join(halves)).matches(MESSAGE)
    with pytest.raises(InvalidArgument, match="give fewer of them, or shorter pieces"):
        compile_filter(" OR ".join([*halves, "n LIKE '%a%'"]))


def test_a_stored_filter_above_a_bound_is_still_read() -> None:
    assert stored_filter(f"n LIKE '{'x' * (LIKE_CHARS_MAX + 1)}'").text.startswith("n LIKE")


def test_a_filter_counts_more_steps_for_longer_headers() -> None:
    like = compile_filter("n LIKE '%a_b%' OR m LIKE '%c%'")
    short, long = (like.steps(Message(b"", headers={"n": "x" * chars})) for chars in (10, 1010))
    assert long - short == 1000 * (3 + 4)


@pytest.mark.parametrize(
    "piece", ["(", "NOT ", "a = 1 AND ", "'", '"', "''", "1", "a", "%", " ", "a IN (1, ", "é"]
)
def test_a_huge_text_is_taken_or_never_refused(piece: str) -> None:
    with pytest.raises(InvalidArgument, match="characters; give at most"):
        compile_filter(piece * 100_000)
    # And as long as it may be: refused for another reason, or fine.
    assert len(refusal((piece * FILTER_CHARS_MAX)[:FILTER_CHARS_MAX])) < 400


def test_a_filter_of_many_conditions_is_too_deep_for_python() -> None:
    assert compile_filter(" OR ".join(["a = 1"] * 450)).matches(Message(b"", headers={"a": "1"}))


@pytest.mark.parametrize(
    "text", ["n > 5", "n IN (1, 2)", "timestamp > n", "n = TRUE", "n LIKE '%a%a%a%a%a%b'"]
)
def test_a_huge_header_is_an_error_or_never_read(text: str) -> None:
    for piece in ("1", "a", "2026-01-31T12:00:00Z", "%"):
        message = Message(b"", timestamp=NOON, headers={"n": (piece * HEADERS_BYTES_MAX)[:HEADERS_BYTES_MAX]})
        assert compile_filter(text).matches(message) is False


# --- any filter at all ---

NAMES = st.sampled_from(["a", "b", "c", "key", "KEY", "like", "x-error", 'q"q', "7", "é", "a b"])
TEXTS = st.sampled_from(
    ["", "a", "ab", "it's", "5", "-1.5", "1e1", "true", "FALSE", "2026-01-31T12:00:00Z", "%"]
)
TIMES = st.sampled_from(["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2025-12-31T00:00:00Z"])
NUMBERS = (
    st.integers(-3, 10) | st.sampled_from([2**62, -(10**30)]) | st.floats(-10, 10) | st.floats(1e300, 1e308)
)

texts = TEXTS.map(lambda value: Constant("text", value))
numbers = NUMBERS.map(lambda value: Constant("number", value))
booleans = st.booleans().map(lambda value: Constant("boolean", value))
nulls = st.just(Constant("null", None))
times = TIMES.map(lambda value: Constant("text", value))
constants = texts | numbers | booleans | nulls | times
operands: st.SearchStrategy[Operand] = (
    NAMES.map(Header) | NAMES.map(Header) | st.sampled_from(sorted(FIELDS)).map(Field) | constants
)


def comparable(left: Operand, *others: Operand, ordered: bool) -> bool:
    for other in others:
        kind = meeting(left, other)
        if kind is None or (kind == "boolean" and ordered):
            return False
        if kind == "time" and any(
            isinstance(each, Constant) and "T1" not in str(each.value) for each in (left, other)
        ):
            return False
    return True


def is_valid(node: Condition) -> bool:
    match node:
        case Comparison(left, sign, right):
            return comparable(left, right, ordered=sign not in ("=", "<>"))
        case Between(operand, low, high):
            return comparable(operand, low, high, ordered=True)
        case In(operand, values):
            return comparable(operand, *values, ordered=False)
        case _:
            return True


text_operands: st.SearchStrategy[Operand] = NAMES.map(Header) | st.just(Field("key")) | texts | nulls
patterns = st.text(alphabet="a5%_'", max_size=5)
predicates: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Comparison, operands, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), operands),
    st.builds(Between, operands, operands, operands),
    st.builds(In, operands, st.lists(constants, min_size=1, max_size=4).map(tuple)),
    st.builds(Like, text_operands, patterns, st.none() | st.just("!")),
    st.builds(IsNull, operands),
    booleans,
    nulls,
).filter(is_valid)


def joined(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, inner) | st.builds(And, several) | st.builds(Or, several)


conditions = st.recursive(predicates, joined, max_leaves=8)
messages = st.builds(
    Message,
    st.binary(max_size=12),
    headers=st.dictionaries(NAMES, TEXTS, max_size=6),
    key=st.none() | TEXTS,
    priority=st.integers(0, 10),
    id=st.none() | st.integers(0, 10),
    offset=st.none() | st.integers(0, 10),
    timestamp=st.none()
    | st.sampled_from([NOON, NOON.astimezone(timezone(timedelta(hours=5))), NOON - timedelta(days=90)]),
)


@pytest.mark.lengthy
@given(conditions)
@settings(max_examples=300)
def test_a_tree_does_not_come_back_from_its_text(condition: Condition) -> None:
    found = compile_filter(write(condition))
    assert found.condition == condition
    assert str(found) == found.text == write(condition)


@pytest.mark.lengthy
@given(conditions, messages)
@settings(max_examples=500)
@example(In(Header("a"), (Constant("text", "x"), Constant("number", 5))), Message(b"", headers={"a": "y"}))
def test_a_filter_answers_otherwise_than_its_definition(condition: Condition, message: Message) -> None:
    expected = naive(condition, message)
    assert truth(write(condition), message) is expected


@given(st.text(min_size=1, max_size=10), st.text(max_size=10))
def test_some_name_or_text_cannot_be_written(name: str, value: str) -> None:
    tree = Comparison(Header(name), "=", Constant("text", value))
    found = compile_filter(write(tree))
    assert found.condition == tree
    assert found.matches(Message(b"", headers={name: value}))


@given(st.sampled_from(sorted(KEYWORDS)), st.data())
def test_a_keyword_in_some_case_is_taken_for_a_name(keyword: str, data: st.DataObject) -> None:
    mixed = "".join(data.draw(st.sampled_from([each.lower(), each.upper()])) for each in keyword)
    assert compile_filter(f'"{mixed}" IS NULL').condition == IsNull(Header(mixed))
    if keyword not in ("TRUE", "FALSE", "NULL", "NOT"):
        with pytest.raises(InvalidArgument, match="expected a condition"):
            compile_filter(f"{mixed} IS NULL")


# The definition of what a filter means, written for reading: no compiling, no sets, no shortcuts.


def naive(node: Condition, message: Message) -> Truth:
    match node:
        case Constant(_, value):
            return None if value is None else bool(value)
        case Not(inner):
            return naive_not(naive(inner, message))
        case And(inners):
            found = [naive(inner, message) for inner in inners]
            return False if False in found else None if None in found else True
        case Or(inners):
            return naive_or([naive(inner, message) for inner in inners])
        case IsNull(operand):
            return naive_value(operand, message) is None
        case Comparison(left, sign, right):
            return naive_comparison(left, sign, right, message)
        case Between(operand, low, high):
            return naive(
                And((Comparison(operand, ">=", low), Comparison(operand, "<=", high))),
                message,
            )
        case In(operand, values):
            return naive_or([naive_comparison(operand, "=", value, message) for value in values])
        case Like(operand, pattern, _):
            text = naive_value(operand, message)
            return None if text is None else naive_like(pattern, text)


def naive_not(found: Truth) -> Truth:
    return None if found is None else not found


def naive_or(found: list[Truth]) -> Truth:
    return True if True in found else None if None in found else False


def naive_like(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(naive_like(pattern[1:], text[start:]) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and naive_like(pattern[1:], text[1:])


def naive_value(operand: Operand, message: Message) -> Any:
    if isinstance(operand, Constant):
        return operand.value
    if isinstance(operand, Header):
        return message.headers.get(operand.name)
    return len(message.payload) if operand.name == "payload_bytes" else getattr(message, operand.name)


def naive_comparison(left: Operand, sign: str, right: Operand, message: Message) -> Truth:
    a, b = naive_value(left, message), naive_value(right, message)
    if a is None or b is None:
        return None
    if isinstance(a, str) != isinstance(b, str):
        a, b = naive_read(a, b), naive_read(b, a)
        if a is None or b is None:
            return None
    return bool(
        {"=": a == b, "<>": a != b}[sign]
        if sign in ("=", "<>")
        else {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[sign]
    )


def naive_read(value: Any, like: Any) -> Any:
    """A text as what it is compared with; None if it cannot be."""
    if not isinstance(value, str):
        return value
    if isinstance(like, bool):
        return {"true": True, "false": False}.get(value.lower())
    if isinstance(like, datetime):
        return datetime.fromisoformat(value) if "T" in value else None
    return float(value) if value in ("5", "-1.5", "1e1") else None
