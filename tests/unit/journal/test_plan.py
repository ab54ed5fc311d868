"""Rows laid out by a plan are what the general way makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.journal import plan
from penstock.journal import rows as general
from penstock.journal.frame import body
from penstock.journal.kinds import LEASES, MESSAGES, METADATA, SETTLEMENTS, Kind
from penstock.journal.rows import Rows
from penstock.journal.section import sections

MESSAGE = {"offset": 7, "id": 1 << 60, "timestamp": 12345, "priority": 100}

COMMON: list[tuple[Kind, int, dict[str, Any]]] = [
    *[
        (MESSAGES, 1, {**MESSAGE, "payload": b"x" * length})
        for length in (0, 1, 7, 8, 9, 100, plan.LARGE_BYTES - 1)
    ],
    (MESSAGES, 1, {**MESSAGE, "key": "kunde-äöü", "dedup_id": "", "deliver_at": None, "payload": b"order"}),
    (LEASES, 1, {"group": "default", "offset": 3, "attempt": 2, "consumer": None, "time": 9}),
    (
        SETTLEMENTS,
        1,
        {"group": "g" * 200, "offset": 0, "outcome": 1, "attempt": 1, "error": "späte Antwort", "time": -5},
    ),
]
BATCH = {"offset": range(7, 10), "id": range(1 << 60, (1 << 60) + 6, 2), "timestamp": 12345, "priority": 100}
COMMON += [
    (MESSAGES, 3, {**BATCH, "payload": [b"a", b"", b"bcd"]}),
    (MESSAGES, 3, {**BATCH, "payload": [b"abc", b"def", b"ghi"]}),
    (MESSAGES, 3, {**BATCH, "payload": b"one for all"}),
    (MESSAGES, 3, {**BATCH, "key": "k", "payload": [b"x" * plan.LARGE_BYTES, b"", b"y"]}),
    (SETTLEMENTS, 3, {"group": "default", "offset": range(9, 6, -1), "outcome": 1, "attempt": 1, "time": 7}),
]

UNCOMMON: list[tuple[Kind, int, dict[str, Any]]] = [
    (MESSAGES, 1, {**MESSAGE, "headers": {"type": "order"}, "payload": b""}),
    (MESSAGES, 1, {**MESSAGE, "payload": b"x", "properties": b"y"}),
    (MESSAGES, 3, {**BATCH, "payload": [b"same", b"same", b"same"]}),
    (MESSAGES, 3, {**BATCH, "payload": [b"a", None, b"c"]}),
    (MESSAGES, 3, {**BATCH, "payload": [b"a", "b", b"c"]}),
    (MESSAGES, 3, {**BATCH, "priority": range(100, 40_001, 19_950), "payload": b""}),
    (MESSAGES, 3, {**BATCH, "priority": 40_000, "payload": b""}),
    (MESSAGES, 3, {**BATCH, "key": 7, "payload": b""}),
    (MESSAGES, 3, {**BATCH, "key": "\ud800", "payload": b""}),
    (MESSAGES, 3, {**BATCH, "headers": "a text", "payload": b""}),
    (MESSAGES, 3, {**BATCH, "key": b"bytes"}),
    (MESSAGES, 3, {**BATCH, "offset": range(2), "payload": b""}),
    (METADATA, 1, {"action": 1, "name": "orders", "body": b"policy", "time": 4}),
]


@pytest.mark.parametrize(("kind", "count", "columns"), COMMON)
def test_a_common_row_is_laid_out_byte_for_byte_as_in_general(
    kind: Kind, count: int, columns: dict[str, Any]
) -> None:
    rows = Rows(kind, 1, count, columns)
    parts, size = general._encode_any(rows, None)
    assert plan.lay_out(kind, rows.columns, rows.count) is not None
    for _ in range(2):  # learning the plan, and by the plan
        found, length = general._encode(rows, None)
        assert (b"".join(found), length) == (b"".join(parts), size)


@pytest.mark.parametrize(("kind", "count", "columns"), UNCOMMON)
def test_what_is_uncommon_is_left_to_the_general_way(kind: Kind, count: int, columns: dict[str, Any]) -> None:
    assert plan.lay_out(kind, columns, count) is None


def test_plans_are_bounded() -> None:
    for length in range(2 * plan.PLANS_MAX):
        plan.lay_out(LEASES, {"group": "g" * length, "offset": 0, "time": 0}, 1)
    assert len(plan._plans) <= plan.PLANS_MAX


@pytest.mark.parametrize("payload", [b"", b"x", b"12345678", b"y" * 1000])
def test_a_plain_message_is_read_otherwise_than_in_general(payload: bytes) -> None:
    rows = Rows(MESSAGES, 1, 1, {**MESSAGE, "payload": payload})
    (section,) = sections(memoryview(b"".join(body([rows]).parts)), 1)
    assert section.plain_message() == (7, 1 << 60, 12345, 100, payload)
    assert [section.values(name)[0] for name in (*MESSAGE, "payload")] == list(section.plain_message() or ())


@pytest.mark.parametrize(
    ("kind", "count", "columns"),
    [case for case in COMMON if case[2].keys() != {*MESSAGE, "payload"} or case[1] > 1],
)
def test_another_section_is_taken_for_a_plain_message(
    kind: Kind, count: int, columns: dict[str, Any]
) -> None:
    rows = Rows(kind, 1, count, columns)
    rows.prepare(alone=True)
    (section,) = sections(memoryview(b"".join(body([rows]).parts)), 1)
    assert section.plain_message() is None
