from __future__ import annotations

import re
from pathlib import Path

from penstock import limits

NUMBERS = {name: value for name, value in vars(limits).items() if name.isupper()}


def test_a_bound_is_not_a_positive_number_or_zero() -> None:
    assert {
        name for name, value in NUMBERS.items() if not isinstance(value, int | float) or value < 0
    } == set()


def test_a_bound_has_no_reason() -> None:
    lines = Path(limits.__file__).read_text(encoding="utf-8").splitlines()
    bare, reasoned = set(), False
    for line in lines:
        assigned = re.match(r"([A-Z][A-Z_0-9]*)\s*:", line)
        # Beside the bound, or above a group of bounds up to the next blank line.
        reasoned = bool(line.strip()) and (
            reasoned or (line.startswith("#") and not line.startswith("# ---"))
        )
        if assigned and not reasoned and "  # " not in line:
            bare.add(assigned[1])
    assert bare == set()


def test_an_id_does_not_fit_a_signed_64_bit_integer() -> None:
    assert limits.ID_TIME_BITS + limits.ID_NODE_BITS + limits.ID_SEQUENCE_BITS == 63


def test_a_duration_in_microseconds_is_not_exact_as_a_float() -> None:
    assert limits.DURATION_S_MAX * 1_000_000 < 2**53


def test_a_priority_does_not_fit_one_byte() -> None:
    assert 0 == limits.PRIORITY_MIN < limits.PRIORITY_DEFAULT < limits.PRIORITY_MAX == 255


def test_a_name_does_not_fit_an_amqp_short_string() -> None:
    assert limits.NAME_CHARS_MAX <= 255


def test_the_default_message_is_larger_than_the_largest() -> None:
    assert limits.MESSAGE_BYTES_DEFAULT == 1024 * 1024 <= limits.MESSAGE_BYTES_MAX


def test_the_largest_message_does_not_fit_a_frame() -> None:
    assert limits.MESSAGE_BYTES_MAX + limits.HEADERS_BYTES_MAX < limits.FRAME_BYTES_MAX
