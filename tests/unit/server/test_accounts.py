"""Who may do what: claims that are not understood, tokens out of their time, and callers who ask for more than they have."""

from __future__ import annotations

import contextlib
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.errors import Forbidden, Unauthorized
from penstock.limits import CLAIM_PATTERNS_MAX, SUBJECT_CHARS_MAX, TOKEN_LEEWAY_S, TOKENS_REMEMBERED_MAX
from penstock.server.accounts import ANYBODY, PERMISSIONS, Accounts, Caller, Names
from penstock.server.keys import Keys
from tests.unit.server.specimen import NOW_S, OTHER_SECRET, SECRET, claims, token

KEYS = Keys.from_secret(SECRET)


def accounts(**settings: Any) -> Accounts:
    return Accounts(KEYS, **{"clock": ManualClock(), **settings})


def caller(**said: Any) -> Caller:
    return accounts().caller_by_token(token(claims(**said)))


def refusal(of: Accounts, **said: Any) -> str:
    """What is said of a token with these claims; None leaves one out."""
    payload = {name: value for name, value in claims(**said).items() if value is not ...}
    with pytest.raises(Unauthorized) as refused:
        of.caller_by_token(token(payload))
    return refused.value.message


class CountingKeys(Keys):
    """Keys that count what they verify."""

    def __init__(self) -> None:
        self.verified = 0

    def payload(self, token: str) -> dict[str, Any]:
        self.verified += 1
        return KEYS.payload(token)


# --- the header ---


@pytest.mark.parametrize("written", ["Bearer {}", "bearer {}", "BEARER   {}", " Bearer {}\t"])
def test_a_header_is_not_understood(written: str) -> None:
    assert accounts().caller(written.format(token())).subject == "billing"


@pytest.mark.parametrize("shown", [None, "", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", token(), f"Bearer {token()} x", f"Token {token()}",
                                   "Bearer ü", "Bearer\u00a0" + token(), "Bearer " + "x" * 100_000, f"Bearer {token()}, Bearer {token()}"])  # fmt: skip
def test_a_header_without_a_token_is_taken(shown: str | None) -> None:
    with pytest.raises(Unauthorized):
        accounts().caller(shown)


@pytest.mark.parametrize("shown", [None, "", "Basic x", f"Bearer {token()}"])
def test_somebody_is_refused_where_there_are_no_keys(shown: str | None) -> None:
    nobody = Accounts(None, clock=ManualClock())
    assert nobody.caller(shown) is ANYBODY
    assert nobody.caller_by_token("x") is ANYBODY
    assert ANYBODY.is_admin_of_all
    assert all(ANYBODY.may("tenant-a", one) for one in ("publish", "consume", "admin"))


# --- time ---


def test_a_token_without_an_end_is_taken() -> None:
    assert "needs an 'exp'" in refusal(accounts(), exp=...)


def test_an_expired_token_is_taken() -> None:
    clock = ManualClock()
    known = accounts(clock=clock)
    assert "expired" in refusal(known, exp=NOW_S)
    assert "expired" in refusal(known, exp=NOW_S - 1)
    assert "expired" in refusal(known, exp=0)
    assert known.caller_by_token(token(claims(exp=NOW_S + 0.5))).subject


def test_a_remembered_token_outlives_its_end() -> None:
    clock = ManualClock()
    known = accounts(clock=clock)
    header = f"Bearer {token()}"
    for _ in range(3600):
        assert known.caller(header).subject == "billing"
        clock.advance(seconds=1)
    for _ in range(2):
        with pytest.raises(Unauthorized, match="expired"):
            known.caller(header)


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_a_token_is_taken_before_its_time(claim: str) -> None:
    clock = ManualClock()
    known = accounts(clock=clock)
    ahead = NOW_S + int(TOKEN_LEEWAY_S)
    assert known.caller_by_token(token(claims(**{claim: ahead}))).subject
    assert "not valid yet" in refusal(known, **{claim: ahead + 1})
    clock.advance(seconds=1)
    assert known.caller_by_token(token(claims(**{claim: ahead + 1}))).subject


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize(
    "value", [None, "", str(NOW_S + 60), True, [], [NOW_S + 60], {}, -1, (NOW_S + 60) * 1000, 10**400, 1e308]
)
def test_a_time_that_is_none_is_taken(claim: str, value: object) -> None:
    assert f"'{claim}'" in refusal(accounts(), **{claim: value})


def test_an_infinite_time_is_taken() -> None:
    with pytest.raises(Unauthorized, match="'exp' out of any time"):
        accounts().caller_by_token(token('{"exp": 1e999}'))


# --- parties ---


@pytest.mark.parametrize("audience", [..., "other", "Penstock", "", [], ["other"], "penstock "])
def test_a_token_for_another_audience_is_taken(audience: object) -> None:
    assert "'aud' does not name 'penstock'" in refusal(accounts(audience="penstock"), aud=audience)


@pytest.mark.parametrize("audience", ["penstock", ["other", "penstock"]])
def test_a_token_for_this_audience_is_refused(audience: object) -> None:
    assert accounts(audience="penstock").caller_by_token(token(claims(aud=audience))).subject
    assert "configure its audience" in refusal(accounts(), aud=audience)


@pytest.mark.parametrize("audience", [None, 7, {}, {"penstock": 1}, [7], ["penstock", None]])
def test_an_audience_that_is_none_is_taken(audience: object) -> None:
    for known in (accounts(), accounts(audience="penstock")):
        assert "'aud' that is neither" in refusal(known, aud=audience)


@pytest.mark.parametrize("issuer", [..., None, "", "other", ["us"], {"us": 1}])
def test_a_token_from_another_issuer_is_taken(issuer: object) -> None:
    assert "'iss'" in refusal(accounts(issuer="us"), iss=issuer)
    assert accounts(issuer="us").caller_by_token(token(claims(iss="us"))).subject


# --- who ---


@pytest.mark.parametrize(
    "subject", ["", "x" * (SUBJECT_CHARS_MAX + 1), "a\nb", "\x1b[2J", "\u202e", "\ud800", 7, None, [], {}]
)
def test_a_subject_that_harms_a_log_is_taken(subject: object) -> None:
    assert "'sub'" in refusal(accounts(), sub=subject)


def test_callers_without_a_name_are_one() -> None:
    unnamed = {"exp": NOW_S + 60}
    one, other = (
        accounts().caller_by_token(token(said)).subject for said in (unnamed, {**unnamed, "jti": "2"})
    )
    assert one.startswith("token-")
    assert one != other
    assert caller(sub="Jürgen 7").subject == "Jürgen 7"


# --- claims ---


def test_a_token_that_says_nothing_may_do_more_than_the_default() -> None:
    plain = caller()
    assert plain.namespaces(["default", "tenant-a", "Default", "default2"]) == ["default"]
    assert (
        plain.may("default", "publish"),
        plain.may("default", "consume"),
        plain.may("default", "admin"),
    ) == (True, True, False)
    assert not plain.is_admin_of_all


@pytest.mark.parametrize("claim", ["namespaces", "permissions"])
@pytest.mark.parametrize("denied", [False, True])
@pytest.mark.parametrize("value", [None, "", "*", "publish", 7, True, {}, {"publish": 1}, [7], [None], [["publish"]], ["publish", 7],
                                   ["ü"], [""], [" "], ["a b"], ["!publish"], ["-a"], ["a\n"], ["a?"], ["[a]"], ["\ud800"], ["a/b"]])  # fmt: skip
def test_a_claim_of_another_shape_is_taken(claim: str, denied: bool, value: object) -> None:
    said = {"deny": {claim: value}} if denied else {claim: value}
    assert f"{'deny.' if denied else ''}{claim}'" in refusal(accounts(), **said)


@pytest.mark.parametrize(
    "denied", [None, [], "tenant-a", ["tenant-a"], {"namespace": ["tenant-a"]}, {"namespaces": [], "x": 1}]
)
def test_a_denial_that_is_not_understood_is_passed_over(denied: object) -> None:
    assert "'deny'" in refusal(accounts(), deny=denied)


def test_a_permission_that_does_not_exist_is_taken() -> None:
    for name in ("Publish", "write", "publish ", "publish*"):
        assert "publish, consume and admin" in refusal(accounts(), permissions=[name])


def test_more_patterns_than_can_be_tried_are_taken() -> None:
    most = [f"n{i}*" for i in range(CLAIM_PATTERNS_MAX)]
    assert caller(namespaces=most).may("n99", "publish")
    assert "use wildcards" in refusal(accounts(), namespaces=[*most, "x"])
    assert "no name of a namespace" in refusal(accounts(), namespaces=["x" * 256])


def test_claims_of_others_are_minded() -> None:
    assert caller(scope="openid", roles=[{"x": 1}], jti=7, admin=True, namespace="*").namespaces(
        ["a", "default"]
    ) == ["default"]


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first draw builds all of it
@given(st.dictionaries(
    st.sampled_from(["sub", "exp", "nbf", "iat", "aud", "iss", "namespaces", "permissions", "deny"]),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.sampled_from(["*", "publish", "namespaces"]),
                 lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["namespaces", "permissions", "x"]), inner, max_size=2)),
))  # fmt: skip
def test_odd_claims_break_something(said: dict[str, Any]) -> None:
    known = accounts(audience="penstock")
    with contextlib.suppress(Unauthorized):
        found = known.caller_by_token(token(said))
        assert found.permissions <= PERMISSIONS
        assert found.namespaces(["a"]) in ([], ["a"])


# --- what a caller may ---


def test_a_denial_is_overruled() -> None:
    one = caller(
        namespaces=["*", "team-a"],
        permissions=["*"],
        deny={"namespaces": ["team-*"], "permissions": ["admin"]},
    )
    assert one.may("other", "publish")
    assert not one.may("other", "admin")
    assert not any(one.may("team-a", permission) for permission in ("publish", "consume", "admin"))
    assert one.namespaces(["team-a", "other"]) == ["other"]
    assert not one.is_admin_of_all
    assert caller(namespaces=["*"], deny={"permissions": ["*"]}).namespaces(["default"]) == []


@pytest.mark.parametrize(
    ("said", "is_admin"),
    [
        ({"namespaces": ["*"], "permissions": ["admin"]}, True),
        ({"namespaces": ["**"], "permissions": ["*"]}, True),
        ({"namespaces": ["a*", "*"], "permissions": ["*"]}, True),
        ({"namespaces": ["a*"], "permissions": ["*"]}, False),
        ({"namespaces": ["*a*"], "permissions": ["*"]}, False),
        ({"namespaces": ["*"]}, False),
        ({"permissions": ["admin"]}, False),
        ({"namespaces": ["*"], "permissions": ["*"], "deny": {"namespaces": ["x"]}}, False),
        ({"namespaces": ["*"], "permissions": ["*"], "deny": {"permissions": ["admin"]}}, False),
        ({"namespaces": ["*"], "permissions": ["*"], "deny": {}}, True),
    ],
)
def test_somebody_else_is_admin_of_all(said: dict[str, Any], is_admin: bool) -> None:
    assert caller(**said).is_admin_of_all is is_admin


def test_one_permission_implies_another() -> None:
    admin = caller(permissions=["admin"])
    assert (admin.may("default", "publish"), admin.may("default", "consume")) == (False, False)
    assert not caller(permissions=["publish"]).may("default", "consume")
    assert caller(permissions=[]).namespaces(["default"]) == []


def test_a_refusal_does_not_say_what_is_missing() -> None:
    one = caller(namespaces=["tenant-a"])
    one.require("tenant-a", "admin", "consume")
    one.require("tenant-a")
    with pytest.raises(Forbidden, match=r"'billing' does not permit admin, which"):
        one.require("tenant-a", "admin")
    for wanted in (("publish",), ("admin", "publish"), ()):
        with pytest.raises(Forbidden, match=r"'billing' is not for the namespace 'tenant-b'"):
            one.require("tenant-b", *wanted)


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_pattern_matches_otherwise_than_a_shells(pattern: str, name: str) -> None:
    assert (name in Names.of([pattern])) is fnmatchcase(name, pattern)


def test_the_ends_of_a_pattern_match_the_same_characters() -> None:
    assert "aba" not in Names.of(["ab*ba"])
    assert "abba" in Names.of(["ab*ba"])
    assert "ab" not in Names.of(["*ab*b*"])


def test_a_pattern_of_many_wildcards_takes_for_ever() -> None:
    assert "a" * 250 not in Names.of(["*a" * 120 + "*b"])


# --- what is remembered ---


def test_a_token_is_verified_each_time() -> None:
    keys = CountingKeys()
    known = Accounts(keys, clock=ManualClock())
    for written in ("Bearer {}", "Bearer {}", "bearer {}", "Bearer  {}"):
        known.caller(written.format(token()))
    known.caller_by_token(token())
    assert keys.verified == 1
    assert len(known._remembered) == 1


def test_a_refused_token_is_remembered() -> None:
    keys = CountingKeys()
    known = Accounts(keys, clock=ManualClock())
    for _ in range(3):
        with pytest.raises(Unauthorized):
            known.caller(f"Bearer {token(claims(exp=1))}")
    assert keys.verified == 3
    assert not known._remembered


def test_tokens_fill_the_memory() -> None:
    known = accounts()
    for number in range(TOKENS_REMEMBERED_MAX + 10):
        known.caller_by_token(token(claims(sub=str(number))))
    assert len(known._remembered) == TOKENS_REMEMBERED_MAX
    assert known.caller_by_token(token(claims(sub="0"))).subject == "0"


def test_a_token_of_a_replaced_key_is_taken() -> None:
    known = accounts()
    known.caller(f"Bearer {token()}")
    known.replace(Keys.from_secret(OTHER_SECRET))
    with pytest.raises(Unauthorized, match="signature"):
        known.caller(f"Bearer {token()}")
    assert known.caller(f"Bearer {token(secret=OTHER_SECRET)}").subject
