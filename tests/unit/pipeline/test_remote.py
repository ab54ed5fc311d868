"""The source and the sink through a server: who may what, what is believed of those who ask, and that nothing is lost or doubled when one of them goes away.

That tables are the same is tried in `test_source` and `test_stream`, which run through a server too.
"""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as t

import penstock
from penstock import limits, wire
from penstock.clock import SystemClock
from penstock.errors import (
    CorruptJournal,
    Forbidden,
    InvalidArgument,
    JournalFailed,
    PenstockError,
    QueueFull,
    ServerUnavailable,
    Unauthorized,
)
from penstock.journal.files import Files
from penstock.journal.spool import Spool
from penstock.pipeline import exchange, options, remote, sink
from penstock.pipeline.parts import sent
from penstock.pipeline.progress import Reporter
from penstock.pipeline.source import BatchReader, PenstockDataSource, TableStream
from penstock.pipeline.staging import Staging
from penstock.server import desk
from penstock.server.accounts import Accounts
from penstock.server.bounds import Bounds
from penstock.server.http import spark as front
from penstock.server.keys import Keys
from tests.server.running import Running
from tests.unit.pipeline.serving import Serving
from tests.unit.server import specimen

SCHEMA = t.StructType([t.StructField("payload", t.BinaryType()), t.StructField("key", t.StringType())])


def token(**claims: Any) -> str:
    now_s = SystemClock().now_us() // 1_000_000
    return specimen.token({"sub": "spark", "exp": now_s + 3600, **claims})


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """A server with accounts, over a directory with two tenants."""
    accounts = Accounts(Keys.from_secret(specimen.SECRET), clock=SystemClock())
    found = Serving(tmp_path / "data", accounts=accounts)
    with penstock.open(found.path) as broker:
        for tenant in ("a", "b"):
            broker.namespace(tenant).queue("orders").publish_many(
                [b"%s-%d" % (tenant.encode(), n) for n in range(10)]
            )
    yield found
    found.release()


def given(serving: Serving, **more: Any) -> dict[str, str]:
    """The options of tenant a."""
    return {"url": serving.url, "token": token(namespaces=["a"]), "namespace": "a", **more}


def rows(serving: Serving, **more: Any) -> list[bytes]:
    chosen = options.parse(given(serving, **more))
    reader = BatchReader(chosen)
    return [
        payload
        for part in reader.partitions()
        for batch in pickle.loads(pickle.dumps(reader)).read(part)
        for payload in batch.column("payload").to_pylist()
    ]


def stored(serving: Serving, name: str = "out", namespace: str = "a") -> list[bytes]:
    with serving.open(serving.path) as broker:
        return [
            one.payload for one in broker.namespace(namespace).queue(name).reader("test").read_many(10_000)
        ]


def batch(*payloads: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(list(payloads))], names=["payload"])


def ask(serving: Serving, method: str, path: str, body: Any = None, **claims: Any) -> tuple[int, Any]:
    """What the server says to a request of anybody's making."""
    connection = http.client.HTTPConnection(str(urlsplit(serving.url).netloc), timeout=60)
    packed = body if isinstance(body, bytes | None) else msgspec.msgpack.encode(body)
    headers = {
        "Authorization": f"Bearer {token(**{'namespaces': ['a'], **claims})}",
        "Content-Type": wire.MSGPACK,
        "Accept": wire.JSON,
    }
    with closing(connection):
        connection.request(method, f"/v1/namespaces/{path}", packed, headers)
        with connection.getresponse() as answer:
            told = answer.read()
    return answer.status, json.loads(told) if told[:1] == b"{" else told


# --- who may what ---


def test_a_tenant_reads_his_own(serving: Serving) -> None:
    assert rows(serving) == [b"a-%d" % n for n in range(10)]


def test_a_wrong_token_is_not_noticed_when_a_table_is_loaded(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(**more: Any) -> None:
        kept = {name: value for name, value in given(serving, **more).items() if value}
        PenstockDataSource(kept).schema()

    wrong = specimen.token(secret=specimen.OTHER_SECRET)
    with pytest.raises(
        Unauthorized, match="the token was not accepted; give option token, or set PENSTOCK_TOKEN"
    ) as refused:
        load(token=wrong)
    assert wrong not in str(refused.value)
    with pytest.raises(Unauthorized, match="no token was given"):
        load(token="")
    for claims in ({"namespaces": ["b"]}, {"namespaces": ["a"], "permissions": ["publish"]}):
        with pytest.raises(Forbidden):
            load(token=token(**claims))
    monkeypatch.setenv("PENSTOCK_TOKEN", token(namespaces=["a"]))
    load(token="")
    reading = {**given(serving), "token": token(namespaces=["a"], permissions=["consume"]), "topic": "out"}
    with pytest.raises(Forbidden):
        sink.writer(SCHEMA, reading)
    with pytest.raises(Forbidden):
        sink.stream_writer(SCHEMA, reading)


def test_a_server_that_is_away_is_not_said_at_once(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "data")
    with serving.open(serving.path):
        url = serving.url
        serving.release()
    for source in (f"{url}", "http://penstock.invalid:1"):
        with pytest.raises(ServerUnavailable, match="does not answer .*is the address right") as refused:
            PenstockDataSource({"url": source, "token": "secret-token"}).schema()
        assert source in str(refused.value)
        assert "secret-token" not in str(refused.value)
        with pytest.raises(ServerUnavailable, match="does not answer"):
            sink.writer(SCHEMA, {"url": source, "topic": "a"})


def test_a_running_query_gives_up_a_server_that_is_away_for_a_moment(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes a writer for each batch of a query: that is no moment to ask whether the address is right."""
    refused: list[float] = []
    said = remote.Connection._said

    def away_at_first(self: Any, *arguments: Any) -> Any:
        if not refused:
            raise remote.Away("it was reset")
        return said(self, *arguments)

    monkeypatch.setattr(remote.Connection, "_said", away_at_first)
    monkeypatch.setattr("penstock.pipeline.remote.time.sleep", refused.append)
    options = {**given(serving), "topic": "out"}
    with pytest.raises(ServerUnavailable):
        sink.writer(SCHEMA, options)
    sink.stream_writer(SCHEMA, options)
    assert len(refused) == 1


def test_a_server_that_is_another_kind_of_server_is_believed(tmp_path: Path) -> None:
    code = "import http.server as h, sys; s = h.HTTPServer(('127.0.0.1', 0), h.BaseHTTPRequestHandler); print(s.server_port, flush=True); s.serve_forever()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        try:
            with pytest.raises(ServerUnavailable, match="it answered 501 .*as no server of Penstock's does"):
                PenstockDataSource({"url": f"http://127.0.0.1:{port}"}).schema()
        finally:
            child.kill()


def test_a_server_in_memory_is_asked_for_tables() -> None:
    with penstock.open() as broker, Running(broker._port) as server:
        with pytest.raises(
            InvalidArgument, match="keeps everything in memory, and Spark reads what is on a disk"
        ):
            PenstockDataSource({"url": server.url}).schema()
        with pytest.raises(InvalidArgument, match="keeps everything in memory"):
            sink.writer(SCHEMA, {"url": server.url, "topic": "a"})


def test_the_token_is_seen(serving: Serving) -> None:
    chosen = options.parse(given(serving, reader="lake"))
    assert chosen.server is not None
    secret = chosen.server.token
    assert secret is not None
    stream = TableStream(chosen.for_stream())
    start = stream.initialOffset()
    shown = [
        repr(chosen),
        str(chosen.server),
        chosen.server.__rich_repr__(),
        start,
        stream.partitions(start, start),
    ]
    assert secret not in " ".join(map(repr, shown))
    assert secret not in json.dumps(start)
    assert not any("token" in name.lower() for name in chosen.given)


# --- what is believed of those who ask ---


def number_of(serving: Serving, tenant: str) -> int:
    with serving.open(serving.path) as broker:
        return broker.namespace(tenant).queue("orders")._log.number


def test_a_forged_portion_reads_the_log_of_another(serving: Serving) -> None:
    chosen = options.parse(given(serving, topic="orders"))
    origin = remote.RemoteOrigin(chosen)
    (portion,) = origin.pieces(wire.Narrowing())
    mine, other = number_of(serving, "a"), number_of(serving, "b")
    assert list(portion.logs) == [mine]
    assert serving.url
    wide = (0, 2**40)
    for logs in ({other: wide}, {mine: wide, other: wide}):
        forged = msgspec.structs.replace(portion, first=0, logs=logs)
        with pytest.raises(CorruptJournal, match=f"log {other} is none of this namespace"):
            list(origin.read(forged))
    heedless = remote.RemoteOrigin(options.parse(given(serving, failOnDataLoss="false")))
    found = heedless.read(msgspec.structs.replace(portion, first=0, logs={mine: wide, other: wide}))
    assert [one for part in found for one in part.column("payload").to_pylist()] == [
        b"a-%d" % n for n in range(10)
    ]
    for field in (
        {"first": -1},
        {"stop": 2**50},
        {"stop": -5},
        {"logs": {mine: (-1, 5)}},
        {"logs": {-1: wide}},
    ):
        with pytest.raises(PenstockError):
            list(origin.read(msgspec.structs.replace(portion, **field)))


def test_a_forged_offset_names_the_log_of_another(serving: Serving) -> None:
    mine, other = number_of(serving, "a"), number_of(serving, "b")
    stream = TableStream(options.parse(given(serving, startingOffsets="earliest")).for_stream())
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert list(end["logs"]) == ["a/orders"]
    for logs in (
        {"b/orders": [other, 1, 10]},
        {"a/orders": [other, 1, 10]},
        {"a/others": [mine, 1, 10]},
        {"a/orders": [mine, 1, 2**64 - 1]},
        {"a/orders": [mine, -1, 1]},
    ):
        forged = {**end, "logs": logs}
        for plan in (
            lambda forged=forged: stream.partitions(start, forged),
            lambda forged=forged: stream.partitions(forged, end),
            lambda forged=forged: stream.latestOffset(forged, stream.getDefaultReadLimit()),
        ):
            with pytest.raises((PenstockError, msgspec.ValidationError)):
                plan()
    with pytest.raises(InvalidArgument, match="one of another table"):
        stream.partitions(start, {**end, "logs": None, "sequence": 5, "epoch": 1})


def test_options_of_the_servers_own_are_taken_from_others(serving: Serving) -> None:
    for name in ("path", "Path", "url", "token", "namespace", "topic", "topicPattern"):
        status, told = ask(serving, "POST", "a/spark/check", {"options": {name: "/etc"}})
        assert (status, told["code"]) == (400, "invalid_argument"), name
    status, told = ask(serving, "POST", "a/spark/check", {"topics": ["no name"]})
    assert (status, told["code"]) == (400, "invalid_name")


def test_an_expression_is_worked_out_by_the_server(serving: Serving) -> None:
    """It might take for ever."""
    with serving.open(serving.path) as broker:
        space = broker.namespace("a")
        space.queue("one").publish(b"1")
        query = given(serving, topicPattern="o.e|later.*", startingOffsets="earliest")
        stream = TableStream(options.parse(query).for_stream())
        start = stream.initialOffset()
        assert list(start["logs"]) == ["a/one"]
        space.queue("later-1").publish(b"2")
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert set(end["logs"]) == {"a/one", "a/later-1"}
        status, told = ask(serving, "POST", "a/spark/plan", {"options": {"topicPattern": "(a+)+$"}})
        assert (status, told["code"]) == (400, "invalid_argument")


def test_the_path_of_the_server_is_told(serving: Serving) -> None:
    with pytest.raises(PenstockError, match="no queue or topic nothing") as refused:
        PenstockDataSource(given(serving, topic="nothing")).schema()
    assert str(serving.path) not in str(refused.value)


def staged(serving: Serving, *payloads: bytes, name: str = "0" * 32, **claims: Any) -> tuple[int, Any]:
    return ask(serving, "PUT", f"a/spool/staged/{name}", part_of(*payloads), **claims)


def part_of(*payloads: bytes) -> list[wire.SentRows]:
    """Return rows as a task sends them."""
    staging = Staging("out", "the data")
    (part,) = staging.parts([batch(*payloads)])
    return sent(part, staging.shares)


def test_what_another_has_staged_is_handed_in(serving: Serving) -> None:
    status, told = staged(serving, b"1")
    assert status == 200
    body = {"producer": "query:b/q", "batch": 0, "files": [told["name"]]}
    status, refused = ask(serving, "POST", "b/spool/batches", body, namespaces=["b"])
    assert (status, refused["code"]) == (400, "invalid_argument")
    status, refused = ask(serving, "POST", "b/spool/abort", body, namespaces=["b"])
    assert status == 400
    assert (serving.path / "spool" / told["name"]).exists()
    for producer in ("query:b/q", "txn:b/out/app", "job:1", "query:q", "", "query:ab/q"):
        status, refused = ask(serving, "POST", "a/spool/batches", {**body, "producer": producer})
        assert (status, refused["code"]) == (400, "invalid_argument"), producer
    status, refused = ask(serving, "POST", "a/spool/forget", {"producer": "query:a/q"})
    assert status == 400


@pytest.mark.parametrize(
    "name", ["..%2Fmark", "x", "0" * 31, "0" * 33, "G" * 32, "%2e%2e", "0" * 32 + ".staged"]
)
def test_rows_are_staged_under_any_name(serving: Serving, name: str) -> None:
    assert serving.url
    before = sorted(os.listdir(serving.path))
    status, _ = staged(serving, b"1", name=name)
    assert status in (400, 404)
    assert sorted(set(os.listdir(serving.path)) - {"spool"}) == [one for one in before if one != "spool"]
    assert not list(serving.path.rglob("*.staged"))


def arrow() -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch(b"").schema) as writer:
        writer.write_batch(batch(b"1"))
    return out.getvalue()


@pytest.mark.parametrize("data", [b"", b"rows", arrow(), [], [("out", b"rows")], [("no name", b"")]])
def test_rows_that_no_sink_sends_are_refused(serving: Serving, data: Any) -> None:
    status, told = ask(serving, "PUT", f"a/spool/staged/{'0' * 32}", data)
    assert (status, told["code"]) in ((400, "invalid_argument"), (400, "invalid_name"))
    assert not (serving.path / "spool").exists()


def test_more_rows_than_a_server_takes_at_once(serving: Serving) -> None:
    assert serving.url
    running: Any = serving._server
    most = running.front.bounds.body_bytes_max
    connection = http.client.HTTPConnection(str(urlsplit(serving.url).netloc), timeout=60)
    connection.putrequest("PUT", f"/v1/namespaces/a/spool/staged/{'0' * 32}")
    connection.putheader("Authorization", f"Bearer {token(namespaces=['a'])}")
    connection.putheader("Content-Length", str(most + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "batch_too_large")
    connection.close()


def test_a_namespace_fills_the_disk_with_rows_that_nobody_publishes(serving: Serving) -> None:
    serving._settings["bounds"] = Bounds(staged_bytes_max=20_000)
    assert staged(serving, b"x" * 10_000)[0] == 200
    # It is refused by what it claims, before anything of it has come.
    connection = http.client.HTTPConnection(str(urlsplit(serving.url).netloc), timeout=60)
    connection.putrequest("PUT", f"/v1/namespaces/a/spool/staged/{'1' * 32}")
    connection.putheader("Authorization", f"Bearer {token(namespaces=['a'])}")
    connection.putheader("Content-Length", "10000")
    connection.endheaders()
    answer = connection.getresponse()
    told = json.loads(answer.read())
    assert (answer.status, told["code"], told["retryable"]) == (429, "quota_exceeded", True)
    connection.close()
    # Others have room of their own; and so has it again, once what it staged is gone.
    part = part_of(b"x" * 10_000)
    assert ask(serving, "PUT", f"b/spool/staged/{'0' * 32}", part, namespaces=["b"])[0] == 200
    name = desk.own_name("a", "0" * 32)
    body = {"producer": "query:a/q", "batch": 1, "files": [name]}
    assert ask(serving, "POST", "a/spool/abort", body)[0] == 200
    assert staged(serving, b"x" * 10_000)[0] == 200
    assert serving._server is not None
    assert not serving._server.front.tables._coming


def test_rows_of_one_task_above_the_bound_never_fit(serving: Serving) -> None:
    serving._settings["bounds"] = Bounds(staged_bytes_max=1024)
    assert staged(serving, b"x" * 10_000)[0] == 200
    assert staged(serving, b"x", name="1" * 32)[0] == 429


def test_rows_on_their_way_outlive_the_key_of_their_reader(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> Iterator[bytes]:
        yield b"for him"
        serving._settings["accounts"].replace(Keys.from_secret(specimen.SECRET[::-1]))
        yield b"for nobody"

    monkeypatch.setattr(desk.Desk, "read", read)
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(serving, "POST", "a/spark/read", {"portion": {"first": 0, "stop": 1, "logs": {}}})
    assert cut.value.partial == b"for him"
    assert serving._server is not None
    assert serving._server.front.tables._transfers == 0


def test_places_for_tables_are_without_bound(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "TRANSFERS_MAX", 0)
    status, told = staged(serving, b"1")
    assert (status, told["code"], told["retryable"]) == (503, "too_many_transfers", True)
    status, told = ask(serving, "POST", "a/spark/read", {"portion": {"first": 0, "stop": 1, "logs": {}}})
    assert (status, told["code"]) == (503, "too_many_transfers")
    monkeypatch.undo()
    assert staged(serving, b"1")[0] == 200
    assert len(rows(serving)) == 10
    assert serving._server is not None
    assert serving._server.front.tables._transfers == 0


# --- nothing is lost or doubled ---


def test_a_stream_that_was_cut_looks_whole() -> None:
    made = [batch(b"1"), batch(b"2", b"3")]
    whole = b"".join(exchange.encoded(made[0].schema, iter(made), ["said"]))
    found, warnings = exchange.decoded(io.BytesIO(whole))
    assert ([one.num_rows for one in found], warnings) == ([1, 2], ["said"])
    for size in range(len(whole) - 8):  # what is behind the last batch says nothing
        with pytest.raises(exchange.Cut):
            exchange.decoded(io.BytesIO(whole[:size]))


def test_an_error_in_the_middle_of_a_stream_is_not_told() -> None:
    def failing() -> Iterator[Any]:
        yield batch(b"1")
        raise CorruptJournal("segment 3 is damaged")

    whole = b"".join(exchange.encoded(batch(b"").schema, failing(), []))
    with pytest.raises(CorruptJournal, match="segment 3 is damaged"):
        exchange.decoded(io.BytesIO(whole))


def test_a_server_that_is_restarted_between_planning_and_reading(serving: Serving) -> None:
    reader = BatchReader(options.parse(given(serving)))
    (part,) = reader.partitions()
    with serving.open(
        serving.path
    ) as broker:  # another life of the journal, and another server at that address
        broker.namespace("a").queue("orders").publish(b"later")
        assert serving.url
        found = [one for some in reader.read(part) for one in some.column("payload").to_pylist()]
    assert found == [b"a-%d" % n for n in range(10)]


class Unheard:
    """Loses answers: what was asked is done, and nobody hears of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lost: Callable[[str, str], bool]) -> None:
        self.lost: list[str] = []
        said = remote.Connection._said

        def unheard(connection: Any, method: str, path: str, *more: Any) -> bytes:
            told = said(connection, method, path, *more)
            if path not in self.lost and lost(method, path):
                self.lost.append(path)
                raise remote.Away("the answer was lost")
            return told

        monkeypatch.setattr(remote.Connection, "_said", unheard)


def write(serving: Serving, *payloads: bytes, **more: str) -> None:
    """A batch write, as Spark's processes do it."""
    writer = sink.writer(SCHEMA, given(serving, topic="out", **more))
    message = pickle.loads(pickle.dumps(writer)).write(iter([batch(*payloads)]))
    writer.commit([pickle.loads(pickle.dumps(message)), None])


@pytest.mark.parametrize("more", [{}, {"txnappid": "app", "txnversion": "1"}])
def test_a_batch_is_published_twice_when_an_answer_is_lost(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    unheard = Unheard(monkeypatch, lambda _, path: path.startswith("/spool/"))
    write(serving, b"1", b"2", **more)
    assert len(unheard.lost) >= 2
    monkeypatch.undo()
    assert stored(serving) == [b"1", b"2"]
    assert os.listdir(serving.path / "spool") == []
    with serving.open(serving.path) as broker:
        producers = list(broker._port.monitor.engine.producers)  # type: ignore[attr-defined]
    assert producers == (["txn:a/out/app"] if more else []), (
        "a write of one batch is forgotten when it is done"
    )


@pytest.mark.parametrize("lost", ["staged", "batches"])
def test_a_server_that_is_restarted_in_the_middle_of_a_batch_loses_or_doubles_it(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """It has done what it was asked, and dies before it answers; another comes at its address."""

    def restarted(_: str, path: str) -> bool:
        if f"/spool/{lost}" not in path:
            return False
        serving.release()
        assert serving.url
        return True

    writer = sink.stream_writer(SCHEMA, given(serving, topic="out"))
    unheard = Unheard(monkeypatch, restarted)
    for number in range(3):
        files = writer._outlet.stage("out", iter([batch(b"%d" % number)]), "x")  # type: ignore[attr-defined]
        writer.commit([sink.Written(files, "q", number)], number)
        unheard.lost.clear()
    monkeypatch.undo()
    assert stored(serving) == [b"0", b"1", b"2"]
    assert os.listdir(serving.path / "spool") == []


def test_a_batch_that_comes_again_with_other_files_is_published_twice(serving: Serving) -> None:
    writer = sink.stream_writer(SCHEMA, given(serving, topic="out"))
    for _ in range(3):  # the driver was killed before it noted that the batch is done, and tasks run again
        files = writer._outlet.stage("out", iter([batch(b"1", b"2")]), "x")  # type: ignore[attr-defined]
        writer.commit([sink.Written(files, "q", 0)], 0)
    assert stored(serving) == [b"1", b"2"]
    assert os.listdir(serving.path / "spool") == []


def test_a_query_that_moves_from_the_directory_to_the_server_doubles_a_batch(serving: Serving) -> None:
    for where in ({"path": str(serving.path), "namespace": "a"}, given(serving)):
        serving.release()
        if "url" in where:
            assert serving.url
        writer = sink.stream_writer(SCHEMA, {**where, "topic": "out"})
        files = writer._outlet.stage("out", iter([batch(b"1")]), "x")  # type: ignore[attr-defined]
        writer.commit([sink.Written(files, "q", 0)], 0)
    assert stored(serving) == [b"1"]


def test_many_rows_come_out_of_order_or_in_part(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPOOL_PART_BYTES", 4000)
    payloads = [b"%d" % n + bytes(n % 300) for n in range(500)]
    writer = sink.writer(SCHEMA, given(serving, topic="out"))
    message = writer.write(iter([batch(*payloads[:200]), batch(), batch(*payloads[200:])]))
    assert isinstance(message, sink.Written)
    assert len(message.files) > 20
    writer.commit([message])
    assert stored(serving) == payloads
    assert serving.url
    with pytest.raises(InvalidArgument, match="row 450 of the data: a payload is not null"):
        writer.write(
            iter([pa.RecordBatch.from_arrays([pa.array([*payloads[:450], None])], names=["payload"])])
        )
    assert os.listdir(serving.path / "spool") == [], "what it had staged before is not wanted"


def test_what_a_queue_refuses_is_not_told(serving: Serving) -> None:
    with serving.open(serving.path) as broker:
        broker.namespace("a").queue("out", max_depth=2)
        with pytest.raises(QueueFull, match="over its limit"):
            write(serving, b"1", b"2", b"3")
        assert os.listdir(serving.path / "spool") == []
        write(serving, b"1")
    assert stored(serving) == [b"1"]


def test_a_batch_of_which_something_was_removed_is_published_in_part(serving: Serving) -> None:
    writer = sink.writer(SCHEMA, given(serving, topic="out"))
    message = writer.write(iter([batch(b"1")]))
    Spool(Files(), serving.path).sweep(older_s=-1.0)  # a day later
    assert os.listdir(serving.path / "spool") == []
    with pytest.raises(JournalFailed, match="was removed since"):
        writer.commit([message])
    assert stored(serving) == []


def test_a_quota_is_not_asked_before_a_batch_is_published(tmp_path: Path) -> None:
    from penstock.server.quotas import Quotas, parse

    serving = Serving(tmp_path / "data", quotas=Quotas(parse("a:3"), None, SystemClock()))
    try:
        options_ = {"url": serving.url, "namespace": "a", "topic": "out"}
        for payloads, fits in (((b"1", b"2"), True), ((b"3", b"4"), False)):
            writer = sink.stream_writer(SCHEMA, options_)
            files = writer._outlet.stage("out", iter([batch(*payloads)]), "x")  # type: ignore[attr-defined]
            body = {
                "producer": f"query:a/{payloads[0].decode()}",
                "batch": 0,
                "files": [file.name for file in files],
                "wait": 5.0,
            }
            status, told = ask(serving, "POST", "a/spool/batches", body)
            assert (status, told.get("code")) == ((200, None) if fits else (429, "quota_exceeded"))
            if fits:  # said again, it costs nothing
                assert ask(serving, "POST", "a/spool/batches", body) == (200, {"taken": True})
        assert stored(serving) == [b"1", b"2"]
    finally:
        serving.release()


# --- progress ---


def test_a_stream_with_a_readers_name_tells_how_far_it_is(serving: Serving) -> None:
    with serving.open(serving.path) as broker:
        orders = broker.namespace("a").queue("orders")
        chosen = given(serving, reader="lake", startingOffsets="earliest", maxOffsetsPerTrigger="4")
        stream = TableStream(options.parse(chosen).for_stream())
        at = stream.initialOffset()
        for behind in (10, 6, 2, 0):
            at = stream.latestOffset(at, stream.getDefaultReadLimit())
            assert orders.stats().readers == {"lake": behind}


def test_sparks_listener_tells_a_server(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving.open(serving.path) as broker:
        orders = broker.namespace("a").queue("orders")
        stream = TableStream(options.parse(given(serving, startingOffsets="earliest")).for_stream())
        end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        sources = [SimpleNamespace(endOffset=json.dumps(end), numInputRows=10)]
        event: Any = SimpleNamespace(progress=SimpleNamespace(sources=sources, name="billing", id="0f"))
        reporter = Reporter()
        with caplog.at_level(logging.WARNING, "penstock.pipeline"):
            reporter.onQueryProgress(event)
            reporter.onQueryProgress(event)
        assert len([one for one in caplog.records if one.name.startswith("penstock.")]) == 1
        assert "set PENSTOCK_TOKEN where the driver runs, or give the query the option reader" in caplog.text
        monkeypatch.setenv("PENSTOCK_TOKEN", token(namespaces=["a"]))
        reporter.onQueryProgress(event)
        assert orders.stats().readers == {"spark.billing": 0}


# --- what a server needs ---


WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
import penstock
from tests.server.running import Running
from penstock import wire
from penstock.pipeline import exchange, options
from penstock.pipeline.remote import RemoteOrigin
from pathlib import Path
path = Path(sys.argv[1])
with penstock.open(path) as broker:
    broker.queue("orders").publish_many([b"1", b"2"])
    with Running(broker._port, directory=path) as server:
        origin = RemoteOrigin(options.parse({"url": server.url}))
        origin.check()
        print(sum(batch.num_rows for one in origin.pieces(wire.Narrowing()) for batch in origin.read(one)))
try:
    from penstock.pipeline import session
except penstock.MissingExtra as error:
    print(error)
"""


@pytest.mark.lengthy
def test_a_server_needs_spark(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, str(tmp_path / "data")],
        check=False, capture_output=True, text=True, timeout=100, cwd=root, env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "2"
    assert "pip install" in done.stdout


def test_names_of_staged_files_of_two_namespaces_meet() -> None:
    assert desk.own_name("a", "0" * 32) != desk.own_name("b", "0" * 32)
    assert desk.own_name("a", "0" * 32) != desk.own_name("a", "0" * 31 + "1")
    desk.require_own("a", "query:a/q", [desk.own_name("a", "0" * 32)])
