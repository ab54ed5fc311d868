"""Arrow sees in place what was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.journal import arrow
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.kinds import MESSAGES, SETTLEMENTS
from penstock.journal.rows import Rows, messages


def written(tmp_path: Path, rows: list[Rows]) -> Frame:
    with Journal(tmp_path) as journal:
        journal.commit(rows)
        return list(journal.frames())[-1]


def test_every_column_comes_out_as_it_went_in(tmp_path: Path) -> None:
    frame = written(
        tmp_path,
        [
            messages(
                1, [b"a", b"", b"ccc"], ids=[3, 9, 11], timestamp=[5, 4, 6], priority=[1, 2, 1], deliver_at=[None, 9, None],
                expires_at=8, key=["k", None, "ü"], headers=[{"a": "1"}, None, {"b": "2", "c": "ß"}], properties=[b"p", None, b""],
            ),
            messages(2, [b"x"] * 4, ids=range(4), timestamp=0, headers={"same": "for all"}, key="same"),
            Rows(SETTLEMENTS, 1, 2, {"group": "g", "offset": range(2), "outcome": [1, 2], "error": [None, "e"], "time": 0}),
        ],
    )  # fmt: skip
    for section in frame.sections:
        found = arrow.record_batch(section)
        found.validate(full=True)
        assert section.kind is not None
        assert found.schema == arrow.schema(section.kind)
        rows = [
            {k: dict(v) if k == "headers" and v is not None else v for k, v in row.items()}
            for row in found.to_pylist()
        ]
        assert rows == [dict(record) for record in section.records()]


def test_a_shared_payload_is_read_through_every_section(tmp_path: Path) -> None:
    first = messages(1, [b"a", b"b"], ids=range(2), timestamp=0)
    frame = written(tmp_path, [first, messages(2, first, ids=range(2), timestamp=0)])
    for section in frame.sections:
        assert arrow.record_batch(section, ("payload",)).column("payload").to_pylist() == [b"a", b"b"]


def test_plain_columns_are_not_copied(tmp_path: Path) -> None:
    payloads = [b"%d" % n * 10 for n in range(1000)]
    ids = [n * n for n in range(1000)]
    frame = written(tmp_path, [messages(1, payloads, ids=ids, timestamp=0)])
    body = np.frombuffer(frame.body, dtype=np.uint8)
    start, stop = body.ctypes.data, body.ctypes.data + len(body)
    (section,) = frame.sections
    found = arrow.record_batch(section)
    for name in ("id", "payload"):
        for buffer in found.column(name).buffers():
            assert buffer is None or start <= buffer.address < stop, name
    values = section.values("id")
    assert isinstance(values, memoryview)


def test_only_the_columns_that_are_asked_for_are_made(tmp_path: Path) -> None:
    (section,) = written(tmp_path, [messages(1, [b"a"], ids=1, timestamp=0)]).sections
    assert arrow.record_batch(section, ("key", "offset")).schema.names == ["key", "offset"]


def test_the_schema_names_every_column() -> None:
    assert arrow.schema(MESSAGES).field("headers").type == pa.map_(pa.string(), pa.string())
    assert arrow.schema(MESSAGES).names == list(MESSAGES.fields)
