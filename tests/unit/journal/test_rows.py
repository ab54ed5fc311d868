"""Sections: what is merged, what is shared, what is refused, and what an older reader may skip."""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock.errors import CorruptJournal, InvalidArgument
from penstock.journal import section as sections
from penstock.journal.frame import body
from penstock.journal.journal import Journal
from penstock.journal.kinds import (
    CHECKED,
    CLEANED,
    HEADER,
    LEASES,
    MESSAGES,
    METADATA,
    MUST_KNOW,
    SETTLEMENTS,
)
from penstock.journal.rows import Rows, merge, messages


def written(*batch: Rows) -> list[sections.Section]:
    for rows in batch:
        rows.prepare(alone=True)
    content = body(batch)
    return content.sections()


def message(log: int, offset: int, payload: bytes = b"x", **columns: Any) -> Rows:
    return messages(log, [payload], ids=offset + 100, timestamp=offset, offset=offset, **columns)


def test_every_column_of_a_message_comes_out_as_it_went_in() -> None:
    rows = messages(
        7, [b"a", b"", b"ccc"], ids=[3, 9, 11], timestamp=[5, 4, 6], offset=range(40, 43), priority=[1, 2, 1],
        deliver_at=[None, 9, None], expires_at=8, target_group=[None, "g", "g"], key=["k", None, "ü"], dedup_id=None,
        headers=[{"a": "1"}, None, {}], properties=[b"p", None, b""],
    )  # fmt: skip
    (section,) = written(rows)
    assert section.span == (1, 7, 3, 40, 42, 4, 6)
    assert [dict(record) for record in section.records()] == [
        {"offset": 40, "id": 3, "timestamp": 5, "priority": 1, "deliver_at": None, "expires_at": 8, "target_group": None,
         "key": "k", "dedup_id": None, "headers": {"a": "1"}, "properties": b"p", "payload": b"a"},
        {"offset": 41, "id": 9, "timestamp": 4, "priority": 2, "deliver_at": 9, "expires_at": 8, "target_group": "g",
         "key": None, "dedup_id": None, "headers": None, "properties": None, "payload": b""},
        {"offset": 42, "id": 11, "timestamp": 6, "priority": 1, "deliver_at": None, "expires_at": 8, "target_group": "g",
         "key": "ü", "dedup_id": None, "headers": {}, "properties": b"", "payload": b"ccc"},
    ]  # fmt: skip


def test_single_messages_of_a_log_become_one_section() -> None:
    batch = [message(1, n, b"p%d" % n, key="k" if n % 2 else None) for n in range(5)]
    for rows in batch:
        rows.prepare(alone=False)
    (merged,) = merge(batch)
    (section,) = written(merged)
    assert section.rows == 5
    assert list(section.values("payload")) == [b"p%d" % n for n in range(5)]
    assert list(section.values("key")) == [None, "k", None, "k", None]


def test_merging_never_moves_rows_past_others_of_their_log_or_past_metadata() -> None:
    lease = Rows(LEASES, 1, 1, {"group": "g", "offset": 0, "attempt": 1, "time": 0})
    declare = Rows(METADATA, 9, 1, {"action": 1, "name": "n", "time": 0})
    batch = [
        message(1, 0),
        message(2, 0),
        message(1, 1),
        lease,
        message(1, 2),
        message(2, 1),
        declare,
        message(2, 2),
    ]
    for rows in batch:
        rows.prepare(alone=False)
    merged = merge(batch)
    assert [(m.kind.name, m.log, m.count) for m in merged] == [
        ("messages", 1, 2), ("messages", 2, 2), ("leases", 1, 1), ("messages", 1, 1), ("metadata", 9, 1),
        ("messages", 2, 1),
    ]  # fmt: skip


def test_a_batch_is_not_merged() -> None:
    batch = [messages(1, [b"a", b"b"], ids=range(2), timestamp=0, offset=range(2)), message(1, 2)]
    for rows in batch:
        rows.prepare(alone=False)
    assert len(merge(batch)) == 2


def test_payloads_that_are_shared_are_stored_once() -> None:
    first = messages(1, [b"x" * 1000, b"y" * 1000], ids=range(2), timestamp=0, offset=range(2))
    others = [messages(log, first, ids=range(2), timestamp=0, offset=range(2)) for log in range(2, 12)]
    for rows in (first, *others):
        rows.prepare(alone=True)
    content = body([first, *others])
    assert content.bytes < 2 * 2000
    found = sections.sections(memoryview(b"".join(content.parts)), 11)
    assert all(list(section.values("payload")) == [b"x" * 1000, b"y" * 1000] for section in found)
    assert [section.shares() for section in found] == [None] + [0] * 10


@pytest.mark.parametrize(
    "bad",
    [
        {"offset": "1"},
        {"offset": 1 << 63},
        {"priority": 1 << 15},
        {"key": b"bytes"},
        {"key": "\ud800"},
        {"headers": {"a": 1}},
        {"headers": "text"},
        {"payload": "text"},
        {"payload": None},
        {"id": None},
        {"timestamp": None},
    ],
)
def test_a_single_row_with_a_value_that_does_not_fit_is_refused(bad: dict[str, Any]) -> None:
    columns = {"offset": 1, "id": 1, "timestamp": 1, "priority": 1, "payload": b"x", **bad}
    with pytest.raises(InvalidArgument):
        Rows(MESSAGES, 1, 1, columns).prepare(alone=False)


@pytest.mark.parametrize(
    ("log", "count", "columns"),
    [(-1, 1, {}), (1 << 63, 1, {}), (1, 0, {}), (1, limits.FRAME_ROWS_MAX + 1, {}), (1, 1, {"colour": 1})],
)
def test_a_section_that_cannot_be_is_refused(log: int, count: int, columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Rows(SETTLEMENTS, log, count, columns)


def test_the_bytes_said_in_advance_are_never_too_few() -> None:
    singles = [
        message(1, n, b"x" * n, key=None if n % 3 else "k" * n, headers={"h": "v" * n}) for n in range(50)
    ]
    for rows in singles:
        rows.prepare(alone=False)
    assert body(merge(singles)).bytes <= sum(rows.bytes for rows in singles)
    for rows in singles:
        assert body([rows]).bytes <= rows.bytes


def stranger(kind: int, bits: int) -> bytes:
    head = CHECKED.pack(kind, bits, 0, 1, 5, HEADER.size, 0, 0, 0, 0)
    return head + struct.pack("<I", zlib.crc32(head))


def test_a_kind_that_may_be_skipped_is_skipped() -> None:
    content = body([_prepared(message(1, 0))])
    found = sections.sections(memoryview(stranger(77, 0) + b"".join(content.parts)), 2)
    assert [section.kind for section in found] == [None, MESSAGES]
    assert list(found[0].records()) == [{}] or list(found[0].records()) == []


def test_a_kind_that_must_be_known_stops_the_reader() -> None:
    with pytest.raises(CorruptJournal, match="newer"):
        sections.sections(memoryview(stranger(77, MUST_KNOW)), 1)


def test_sections_that_do_not_fill_the_body_are_corrupt() -> None:
    content = body([_prepared(message(1, 0))])
    with pytest.raises(CorruptJournal):
        sections.sections(memoryview(b"".join(content.parts) + bytes(8)), 1)


def test_a_damaged_body_still_says_whose_messages_it_held() -> None:
    batch = [_prepared(message(1, 4)), _prepared(message(2, 9))]
    data = bytearray(b"".join(body(batch).parts))
    data[-1] ^= 1
    assert [(s.log, s.first) for s in sections.intact_spans(memoryview(bytes(data)))] == [(1, 4), (2, 9)]
    data[8] ^= 1  # the first header itself
    assert sections.intact_spans(memoryview(bytes(data))) == []


def _prepared(rows: Rows) -> Rows:
    rows.prepare(alone=True)
    return rows


def test_what_may_change_before_it_is_written_is_copied() -> None:
    payload, headers = bytearray(b"before"), {"a": "b"}
    rows = messages(1, [payload], ids=1, timestamp=0, offset=0, headers=headers)  # type: ignore[list-item]
    rows.prepare(alone=False)
    payload[:] = b"after!"
    headers["c"] = "d"
    (section,) = sections.sections(memoryview(b"".join(body([rows]).parts)), 1)
    assert list(section.values("payload")) == [b"before"]
    assert list(section.values("headers")) == [{"a": "b"}]


def test_a_list_that_changes_after_the_append_changes_nothing_even_where_payloads_are_shared() -> None:
    first = messages(1, [b"a", b"b"], ids=range(2), timestamp=0, offset=range(2))
    ids = [5, 6]
    second = messages(2, first, ids=ids, timestamp=0, offset=range(2))
    for rows in (first, second):
        rows.prepare(alone=True)
    ids.append(7)
    content = body([first, second])
    _, found = sections.sections(memoryview(b"".join(content.parts)), 2)
    assert list(found.values("id")) == [5, 6]
    assert list(found.values("payload")) == [b"a", b"b"]


@pytest.mark.parametrize("offsets", [[5, 5], [6, 5], range(5, 3, -1), [5, None], [2**62, 2**62 + 1]])
def test_offsets_that_do_not_rise_are_refused(offsets: Any) -> None:
    with pytest.raises(InvalidArgument):
        messages(1, [b"a", b"b"], ids=range(2), timestamp=0, offset=offsets).place(0)


def test_sharing_that_cannot_be_is_refused_and_a_share_of_a_share_is_of_the_first() -> None:
    first = messages(1, [b"a", b"b"], ids=range(2), timestamp=0)
    second = messages(2, first, ids=range(2), timestamp=0)
    assert messages(3, second, ids=range(2), timestamp=0).share is first
    with pytest.raises(InvalidArgument):
        Rows(SETTLEMENTS, 1, 2, {"time": 0}, first)
    with pytest.raises(InvalidArgument):
        Rows(MESSAGES, 1, 3, {"id": 1, "timestamp": 0}, first)


@pytest.mark.parametrize("bad", [{"first": 5, "last": 3}, {"first": -1, "last": 3}, {"first": 5}])
def test_a_cleaned_range_that_cannot_be_is_refused_before_it_stops_every_opening(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Rows(CLEANED, 1, 1, {**bad, "outcome": 1, "time": 0}).prepare(alone=False)


def test_equal_payloads_are_stored_once() -> None:
    rows = messages(1, [b"x" * 1000] * 500, ids=range(500), timestamp=0, offset=range(500))
    rows.prepare(alone=True)
    assert rows.bytes < 1500 + 8 * 500, "and the ids one by one: see `limits.ROW_BYTES_MIN`"


class Nearly:
    """What a number of another library may be."""

    def __index__(self) -> int:
        return 5


@pytest.mark.parametrize(
    "bad",
    [
        {"headers": "a text"}, {"key": [["k"], ["k"]]}, {"key": "\ud800"}, {"timestamp": [Nearly(), Nearly()]}, {"timestamp": [True, False]},
        {"timestamp": [1, None]}, {"offset": range(0)}, {"timestamp": range(-(2**63), 2**63, 2**63 + 5)},
    ],
)  # fmt: skip
def test_a_batch_with_a_value_that_does_not_fit_is_written(tmp_path: Path, bad: dict[str, Any]) -> None:
    with Journal(tmp_path, durability="os") as journal:
        with pytest.raises(InvalidArgument):
            journal.commit([messages(1, [b"a", b"b"], **{"ids": range(2), "timestamp": 0, **bad})])
        journal.commit([messages(1, [b"c"], ids=3, timestamp=0)])
        journal.rotate()
        assert [bytes(p) for batch in journal.read(1) for p in batch.values("payload")] == [b"c"]


@pytest.mark.parametrize("bad", [{"key": [["k"]]}, {"headers": [[{"a": "b"}]]}, {"key": [range(1)]}])
def test_one_callers_nested_value_fails_everybody(tmp_path: Path, bad: dict[str, Any]) -> None:
    with Journal(tmp_path, durability="os") as journal:
        with pytest.raises(InvalidArgument):
            journal.append([messages(1, [b"a"], ids=1, timestamp=0, **bad)])
        journal.commit([messages(1, [b"b"], ids=2, timestamp=0)])


def test_headers_that_are_changed_before_they_are_written_are_written_so(tmp_path: Path) -> None:
    headers = OrderedDict(a="b")
    with Journal(tmp_path, durability="os") as journal:
        ticket = journal.append([messages(1, [b"a"], ids=1, timestamp=0, headers=headers)])
        headers["x"] = 1  # type: ignore[assignment]
        ticket.wait()
        assert [found for batch in journal.read(1) for found in batch.values("headers")] == [{"a": "b"}]


def test_a_list_that_is_changed_after_appending_spoils_what_shares_payloads(tmp_path: Path) -> None:
    keys: list[str | None] = ["a", "b"]
    with Journal(tmp_path, durability="os") as journal:
        first = messages(1, [b"x", b"y"], ids=range(2), timestamp=0)
        journal.append([first, messages(2, first, ids=range(2, 4), timestamp=0, key=keys)])
        keys[:] = [None, None]
        journal.commit([messages(3, [b"innocent"], ids=9, timestamp=0)])
    with Journal(tmp_path) as journal:
        assert not journal.damage
        assert [key for batch in journal.read(2) for key in batch.values("key")] == ["a", "b"]
        assert [
            bytes(p) for log in (2, 3) for batch in journal.read(log) for p in batch.values("payload")
        ] == [b"x", b"y", b"innocent"]
