"""What a server takes of the rows that a client sends, and what it refuses."""

from __future__ import annotations

import datetime
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock import limits, wire
from penstock.errors import PenstockError
from penstock.journal.checksum import crc32
from penstock.journal.columns import ENTRY, Buffers
from penstock.journal.kinds import CHECKED, CRC, HEADER, LEASES, MESSAGES
from penstock.journal.rows import Rows
from penstock.pipeline.parts import received, sent
from penstock.pipeline.staging import Staging

MAP = pa.map_(pa.string(), pa.string())
MOMENT = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def rich(count: int) -> pa.RecordBatch:
    """Return rows with all the columns that there are, and nulls in most."""
    each: dict[str, list[Any]] = {
        "payload": [b"%d" % n * (n % 7) for n in range(count)],
        "topic": [f"t{n % 3}" for n in range(count)],
        "key": [None if n % 2 else f"ключ-{n}" for n in range(count)],
        "dedup_id": [f"d{n}" if n % 5 else None for n in range(count)],
        "priority": [n % 256 for n in range(count)],
        "ttl": [n + 0.5 if n % 4 else None for n in range(count)],
    }
    columns: dict[str, Any] = {name: pa.array(values) for name, values in each.items()}
    headers = [None if n % 3 == 0 else [("é", "ü"), ("b", "")][: n % 3] for n in range(count)]
    columns["headers"] = pa.array(headers, MAP)
    due = [MOMENT if n % 6 else None for n in range(count)]
    columns["deliver_at"] = pa.array(due, pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def parts_of(*batches: pa.RecordBatch) -> list[bytes]:
    """Return the bodies that a task sends."""
    staging = Staging("out", "the data")
    return [msgspec.msgpack.encode(sent(part, staging.shares)) for part in staging.parts(batches)]


def encoded(rows: Rows) -> bytes:
    rows.prepare(alone=True)
    return b"".join(rows.encoded(None)[0])


@pytest.mark.parametrize("count", [1, 2, 3, 100, limits.SPOOL_PART_ROWS + 1])
def test_rows_arrive_as_their_task_would_have_staged_them(count: int) -> None:
    staging, local = Staging(None, "the data"), Staging(None, "the data")
    parts = list(staging.parts([rich(count)]))
    came = [received(msgspec.msgpack.encode(sent(part, staging.shares))) for part in parts]
    for (rows, shares), part in zip(came, local.parts([rich(count)]), strict=True):
        assert [share.topic for share in shares] == [local.shares[one.log].topic for one in part]
        for index, one in enumerate(part):
            one.log = index
        assert [encoded(one) for one in rows] == [encoded(one) for one in part]
    if len(came) == 1:
        assert came[0][1] == local.shares


def section(kind: Any = MESSAGES, count: int = 2, **columns: Any) -> bytes:
    """Return a section of two rows, some of whose columns are given as their buffers."""
    ends = np.array([0, 1, 2], "<i4").tobytes()
    given: dict[str, Any] = {"offset": range(count), "id": range(count), "timestamp": 0, "priority": 100}
    given |= {"payload": Buffers(0, 0, [ends, b"ab"]), **columns}
    rows = Rows(kind, 0, count, {name: value for name, value in given.items() if value is not None})
    return b"".join(rows.encoded(None)[0])


def with_header(data: bytes, **changes: int) -> bytes:
    """Return a section with another header, whose checksum is right."""
    names = ("kind", "bits", "columns", "rows", "log", "bytes", "first", "last", "oldest", "newest")
    fields = dict(zip(names, HEADER.unpack_from(data), strict=False)) | changes
    checked = CHECKED.pack(*(fields[name] for name in names))
    return checked + CRC.pack(crc32(checked)) + data[HEADER.size :]


def ends(*places: int) -> bytes:
    return np.array(places, "<i4").tobytes()


def numbers(*values: int) -> Buffers:
    return Buffers(0, 0, [np.array(values, "<i8").tobytes()])


ROWS_MAX, BYTES_MAX = limits.SPOOL_PART_ROWS, limits.SPOOL_PART_BYTES
TEXT = Buffers(0, 0, [ends(0, 1, 2), b"ab"])


def entry(data: bytes, old: tuple[int, ...], new: tuple[int, ...]) -> bytes:
    """Return a section with another entry in its table of columns."""
    assert data.count(ENTRY.pack(*old)) == 1
    return data.replace(ENTRY.pack(*old), ENTRY.pack(*new))


WRONG: list[tuple[bytes, str]] = [
    (b"", "header is cut short"),
    (section()[:-1], "does not match its checksum"),
    (section() + bytes(8), "another length than it says"),
    (with_header(section(), kind=LEASES.number), "has no messages"),
    (with_header(section(), kind=99), "has no messages"),
    (with_header(section(), bits=3), "has no messages"),
    (with_header(section(), rows=0), f"has 1 to {ROWS_MAX} rows"),
    (with_header(section(), rows=ROWS_MAX + 1), f"has 1 to {ROWS_MAX} rows"),
    (with_header(section(), rows=2**32 - 1), "claims 4294967295 rows"),
    (with_header(section(), rows=3), "offsets have another length"),
    (with_header(section(), columns=65_535), "more columns than there are"),
    (with_header(section(), columns=10), "reaches past its section|cut short|more buffers|is not known"),
    (section(payload=None), "priority or payload is missing"),
    (section(priority=None), "priority or payload is missing"),
    (section(properties=Buffers(0, 0, [ends(0, 1, 2), b"ab"])), "is not known"),
    (section(target_group="g"), "is not known"),
    (section(key=Buffers(3, 0, [])), "is not known, or occurs twice"),
    (entry(section(key=TEXT, dedup_id=TEXT), (9, 4, 0, 2, 0), (8, 4, 0, 2, 0)), "is not known, or occurs twice"),
    (entry(section(), (12, 5, 0, 2, 0), (12, 5, 0, 2, 1)), "'payload' has nulls"),
    (entry(section(), (12, 5, 0, 2, 0), (12, 4, 0, 2, 0)), "'payload' has another type"),
    (section(payload=Buffers(0, 0, [ends(0, 1, 3), b"ab"])), "do not end where"),
    (section(payload=Buffers(0, 0, [ends(0, 2, 1), b"ab"])), "do not grow"),
    (section(payload=Buffers(0, 0, [ends(1, 1, 2), b"ab"])), "do not grow"),
    (section(payload=Buffers(0, 0, [ends(0, -1, 2), b"ab"])), "do not grow"),
    (section(payload=Buffers(0, 0, [ends(0, 2), b"ab"])), "another length than their values"),
    (section(payload=Buffers(0, 0, [b"ab"])), "'payload' has other buffers"),
    (section(payload=Buffers(1, 0, [ends(0, 2), b"ab"])), "'payload' has other buffers"),
    (section(payload=Buffers(2, 0, [bytes(16)])), "'payload' has other buffers"),
    (section(priority=256), "'priority' has a number outside 0 to 255"),
    (section(priority=Buffers(0, 0, [bytes(2)])), "'priority' has another length"),
    (section(priority=Buffers(2, 0, [bytes(16)])), "'priority' has other buffers"),
    (section(deliver_at=numbers(0, -1)), "'deliver_at' has a number outside"),
    (section(deliver_at=Buffers(0, 1, [b"\x03", bytes(16)])), "another number of nulls"),
    (section(deliver_at=Buffers(0, 1, [b"", bytes(16)])), "a bitmap of nulls"),
    (section(deliver_at=Buffers(0, 2**32 - 1, [b"\x00", bytes(16)])), "another number of nulls"),
    (section(expires_at=numbers(1, 0)), "'expires_at' has a number outside"),
    (section(expires_at=2**62), "'expires_at' has a number outside"),
    (section(key=Buffers(0, 0, [ends(0, 1, 2), b"\xc3\xa9"])), "within a character"),
    (section(key=Buffers(0, 0, [ends(0, 1, 2), b"a\xff"])), "cannot be read"),
    (section(key=Buffers(0, 0, [ends(0, 0, 1), b"a"])), "'key' has a value outside 1 to 512"),
    (section(key=Buffers(0, 0, [ends(0, 1, 514), b"a" * 514])), "'key' has a value outside 1 to 512"),
    (section(headers=Buffers(0, 0, [ends(0, 1, 1), ends(0, 0), b"", ends(0, 1), b"a"])), "an empty name"),
    (section(headers=Buffers(0, 0, [ends(0, 1, 9), ends(0, 1), b"a", ends(0, 0), b""])), "another length"),
    (section(headers=Buffers(0, 0, [ends(0, 0, 2**31 - 1), b"", b"", b"", b""])), "another length"),
    (section(headers=Buffers(0, 0, [ends(0, 129, 129), ends(*range(130)), b"n" * 129, ends(*[0] * 130), b""])), "too many headers"),
    (section(headers=Buffers(0, 0, [ends(0, 1, 1), ends(0, 1), b"a", ends(0, 65536), b"x" * 65536])), "too many bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "said"), WRONG, ids=range(len(WRONG)))
def test_a_section_that_no_sink_makes_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(PenstockError, match=said) as refused:
        received(msgspec.msgpack.encode([wire.SentRows("out", data)]))
    assert refused.value.http_status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x90",
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff" + b"\x92\xa1a\xc4\x00" * 1000,
        b"\x91\x92\xa1a\xc6\xff\xff\xff\xff",
        msgspec.msgpack.encode([("no name", section())]),
        msgspec.msgpack.encode([("a", section()), ("a", section())]),
        msgspec.msgpack.encode([("a", section(), 1)]),
        msgspec.msgpack.encode([(f"t{n}", b"") for n in range(limits.SPOOL_TOPICS_MAX + 1)]),
    ],
    ids=range(9),
)
def test_a_body_that_no_sink_makes_is_refused(body: bytes) -> None:
    with pytest.raises(PenstockError) as refused:
        received(body)
    assert refused.value.http_status == 400


def test_a_part_is_no_larger_than_a_task_makes_it() -> None:
    whole = parts_of(rich(ROWS_MAX))
    assert len(whole) == 1
    both = [*msgspec.msgpack.decode(whole[0]), ("another", section())]
    with pytest.raises(PenstockError, match=f"at most {ROWS_MAX} rows"):
        received(msgspec.msgpack.encode(both))
    large = Buffers(0, 0, [ends(0, BYTES_MAX, BYTES_MAX), bytes(BYTES_MAX)])
    with pytest.raises(PenstockError, match=f"at most {BYTES_MAX} bytes"):
        received(msgspec.msgpack.encode([("out", section(payload=large))]))
    alone = Buffers(0, 0, [ends(0, BYTES_MAX), bytes(BYTES_MAX)])
    rows, _ = received(msgspec.msgpack.encode([("out", section(count=1, payload=alone))]))
    assert rows[0].count == 1


def test_declared_sizes_take_no_memory() -> None:
    """Each of these declares gigabytes in a few bytes."""
    crafted = [
        with_header(section(), rows=2**32 - 1),
        with_header(section(), rows=ROWS_MAX),
        with_header(section(), columns=65_535),
        with_header(section(), bytes=2**32 - 1),
        section(headers=Buffers(0, 0, [ends(0, 0, 2**31 - 1), b"", b"", b"", b""])),
        section(payload=Buffers(0, 0, [ends(0, 0, 2**31 - 1), b""])),
        section(key=Buffers(0, 2**32 - 1, [b"", ends(0, 0, 2**31 - 1), b""])),
    ]
    bodies = [msgspec.msgpack.encode([wire.SentRows("out", data)]) for data in crafted]
    bodies += [b"\xdd\xff\xff\xff\xff", b"\x91\x92\xa1a\xc6\xff\xff\xff\xff"]
    tracemalloc.start()
    try:
        for body in bodies:
            with pytest.raises(PenstockError):
                received(body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
