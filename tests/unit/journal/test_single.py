"""One row laid out by a plan is what the general way makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.journal import rows as general
from penstock.journal import single
from penstock.journal.kinds import LEASES, MESSAGES, METADATA, SETTLEMENTS, Kind
from penstock.journal.rows import Rows

MESSAGE = {"offset": 7, "id": 1 << 60, "timestamp": 12345, "priority": 100}

COMMON: list[tuple[Kind, dict[str, Any]]] = [
    *[
        (MESSAGES, {**MESSAGE, "payload": b"x" * length})
        for length in (0, 1, 7, 8, 9, 100, single.LARGE_BYTES - 1)
    ],
    (MESSAGES, {**MESSAGE, "key": "kunde-äöü", "dedup_id": "", "deliver_at": None, "payload": b"order"}),
    (LEASES, {"group": "default", "offset": 3, "attempt": 2, "consumer": None, "time": 9}),
    (
        SETTLEMENTS,
        {"group": "g" * 200, "offset": 0, "outcome": 1, "attempt": 1, "error": "späte Antwort", "time": -5},
    ),
]

UNCOMMON: list[tuple[Kind, dict[str, Any]]] = [
    (MESSAGES, {**MESSAGE, "payload": b"x" * single.LARGE_BYTES}),
    (MESSAGES, {**MESSAGE, "headers": {"type": "order"}, "payload": b""}),
    (MESSAGES, {**MESSAGE, "payload": b"x", "properties": b"y"}),
    (METADATA, {"action": 1, "name": "orders", "body": b"policy", "time": 4}),
]


@pytest.mark.parametrize(("kind", "columns"), COMMON)
def test_a_common_row_is_laid_out_byte_for_byte_as_in_general(kind: Kind, columns: dict[str, Any]) -> None:
    rows = Rows(kind, 1, 1, columns)
    parts, size = general._encode(rows, None)
    assert single.encode(kind, rows.columns) is not None
    for _ in range(2):  # learning the plan, and by the plan
        assert rows.encoded(None) == ([b"".join(parts)], size)


@pytest.mark.parametrize(("kind", "columns"), UNCOMMON)
def test_what_is_uncommon_is_left_to_the_general_way(kind: Kind, columns: dict[str, Any]) -> None:
    assert single.encode(kind, columns) is None


def test_plans_are_bounded() -> None:
    for length in range(2 * single.PLANS_MAX):
        single.encode(LEASES, {"group": "g" * length, "offset": 0, "time": 0})
    assert len(single._plans) <= single.PLANS_MAX
