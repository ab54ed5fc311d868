"""Files that tasks write: every row is in one of them, in its order, with those of its log and day; and only files that are named count. Spark's processes are played here in one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.clock import ManualClock, to_us
from penstock.errors import InvalidArgument
from penstock.pipeline import filing, options
from penstock.pipeline.filing import FilingSource, FilingStream
from penstock.pipeline.source import PenstockDataSource

MIDNIGHT = datetime(2026, 11, 16, tzinfo=UTC)
DAYS = (MIDNIGHT - timedelta(days=1), MIDNIGHT)


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "staging" / "messages"


def streams(data: Path, into: Path, **given: str) -> FilingStream:
    named = {"path": str(data), "startingoffsets": "earliest", "namespace": "*", **given}
    source = FilingSource({**named, "into": str(into), "codec": "none"})
    assert source.schema().startswith("file string")
    return source.streamReader(None)  # type: ignore[arg-type]  # Spark gives its own schema back


def filed(stream: FilingStream) -> list[dict[str, Any]]:
    """What the tasks of a batch say that they have written."""
    pieces = stream.partitions(stream.initialOffset(), stream.latestOffset(stream.initialOffset(), None))  # type: ignore[arg-type]
    found: list[dict[str, Any]] = []
    for piece in pieces:
        for batch in stream.read(piece):
            for row in batch.to_pylist():
                written = pq.read_metadata(f"{stream._into}/{row['file']}")  # it is whole when it is named
                assert written.num_rows == row["rows"]
                assert written.row_group(0).column(0).compression == "UNCOMPRESSED"
                found.append(row)
    return found


def fill(data: Path) -> None:
    """Two namespaces, several logs in one commit after another, over midnight."""
    clock = ManualClock(to_us(MIDNIGHT - timedelta(seconds=2), "start"))
    with penstock.open(data, clock=clock) as broker:
        other = broker.namespace("other")
        for number in range(4):
            broker.queue("orders").publish_many([b"o%d-%d" % (number, one) for one in range(3)])
            broker.queue("invoices").publish(b"i%d" % number, key="k", headers={"a": "1"})
            other.queue("orders").publish(b"x%d" % number)
            clock.advance(1)


def test_rows_are_in_the_wrong_file_or_out_of_order(data: Path, into: Path) -> None:
    fill(data)
    found = filed(streams(data, into, includeheaders="true"))
    days = [(day - datetime(1970, 1, 1, tzinfo=UTC)).days for day in DAYS]
    rows = {(row["namespace"], row["log"], row["day"]): row for row in found}
    assert len(rows) == len(found) == 6
    for at, day in enumerate(days):
        orders = pq.read_table(into / rows["default", "orders", day]["file"])
        assert orders.column("payload").to_pylist() == [
            b"o%d-%d" % (number, one) for number in (2 * at, 2 * at + 1) for one in range(3)
        ]
        assert orders.column("offset").to_pylist() == list(range(6 * at, 6 * at + 6))
        assert rows["default", "orders", day]["rows"] == 6
        invoices: Any = pq.read_table(into / rows["default", "invoices", day]["file"])
        assert [dict(headers) for headers in invoices.column("headers").to_pylist()] == [{"a": "1"}] * 2
        others = pq.read_table(into / rows["other", "orders", day]["file"])
        assert others.column("payload").to_pylist() == [b"x%d" % (2 * at), b"x%d" % (2 * at + 1)]
    assert {path.name for path in into.iterdir()} == {row["file"] for row in found}


def test_a_file_has_other_columns_than_the_source(data: Path, into: Path) -> None:
    """All but those that its folder stands for, of the same types, with the same values."""
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([b"a", b"b"])
        delivery = broker.queue("orders").receive()
        assert delivery is not None
        delivery.ack()
    for table in ("messages", "settlements", "deliveries"):
        [row] = filed(streams(data, into / table, table=table))
        read = pq.read_table(into / table / row["file"])
        reader: Any = PenstockDataSource({"path": str(data), "table": table}).reader(None)  # type: ignore[arg-type]
        [batch] = [batch for piece in reader.partitions() for batch in reader.read(piece)]
        known = options.parse({"path": str(data), "table": table}).table
        assert read.schema.remove_metadata().equals(batch.drop_columns(["namespace", known.log]).schema)
        assert read.to_pylist() == batch.drop_columns(["namespace", known.log]).to_pylist()


def test_much_is_kept_in_memory_until_the_end(
    data: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has become much for one file is written, and the rest of it behind that, into the same file."""
    monkeypatch.setattr(filing, "GROUP_BYTES", 10_000)
    with penstock.open(data) as broker:
        orders = broker.queue("orders")
        for number in range(50):
            orders.publish_many([b"%d" % number] * 1000)
    [row] = filed(streams(data, into))
    file = pq.ParquetFile(into / row["file"])
    assert file.num_row_groups > 3
    assert file.read().column("offset").to_pylist() == list(range(50_000)) == list(range(row["rows"]))


def test_many_logs_are_kept_in_memory_until_the_end(
    data: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file has become much, but all of them together have."""
    monkeypatch.setattr(filing, "GATHERED_BYTES", 20_000)
    with penstock.open(data) as broker:
        for number in range(60):
            broker.queue(f"q{number % 20}").publish_many([b"x" * 10] * 1000)
    waiting: list[int] = []
    add = filing.Drawers.add

    def noting(drawers: filing.Drawers, batch: Any) -> None:
        add(drawers, batch)
        waiting.append(sum(drawer.bytes for drawer in drawers._drawers.values()))

    monkeypatch.setattr(filing.Drawers, "add", noting)
    found = filed(streams(data, into))
    assert max(waiting) < 20_000
    assert sorted(row["rows"] for row in found) == [3000] * 20
    for row in found:
        assert pq.read_table(into / row["file"]).column("offset").to_pylist() == list(range(3000))


def test_a_task_that_was_broken_off_is_counted(
    data: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves no file open, and names none; the next one names its own."""
    fill(data)
    stream = streams(data, into)
    writers: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(filing, "GROUP_BYTES", 1)
        real = pq.ParquetWriter

        def failing(*given: Any, **named: Any) -> Any:
            if len(writers) == 2:
                raise OSError("no room")
            writers.append(real(*given, **named))
            return writers[-1]

        patch.setattr(pq, "ParquetWriter", failing)
        with pytest.raises(OSError, match="no room"):
            filed(stream)
    assert [writer.is_open for writer in writers] == [False, False]
    left = {path.name for path in into.iterdir()}
    found = filed(stream)
    assert len(found) == 6
    assert not left & {row["file"] for row in found}
    assert sum(row["rows"] for row in found) == 20


@pytest.mark.parametrize(
    ("given", "known"), [("snappy", "snappy"), ("ZSTD", "zstd"), ("uncompressed", "none"), ("lz4_raw", "lz4")]
)
def test_a_codec_goes_by_another_name(given: str, known: str) -> None:
    assert filing._codec(given) == known


def test_a_codec_that_there_is_not_fails_in_a_task() -> None:
    with pytest.raises(InvalidArgument, match="codec is 'lzo', .* set snappy, zstd"):
        filing._codec("lzo")


def test_nothing_is_filed_as_a_file(data: Path, into: Path) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders")
    assert filed(streams(data, into)) == []
    assert not into.exists()
