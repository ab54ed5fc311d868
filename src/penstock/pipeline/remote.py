"""A table behind a server: what Spark's processes say to it over HTTP, for the source and for the sink.

Theory of operation
-------------------
`RemoteOrigin` is an `Origin` as a directory's planner is one, and `RemoteOutlet` an `Outlet` as a directory is: each asks the server, where the very same planner and the very same staging work on the server's
directory (`exchange` has what is said). Drivers and executors need no more installed than for a directory: this is Python's own HTTP client.

Every request may be repeated: planning changes nothing, a piece that is read is read whole before Spark sees any of it, what is staged is staged under a name that was chosen here, and a batch is published once however often it is handed in. So
when the server is away (it is restarted, say) a request is made again for `PATIENCE_S`, and nothing is lost or doubled. Only a table that is loaded, or written at once, does not wait: whoever misspelt the address wants to know it now.

The token goes into one header and nowhere else.
"""

from __future__ import annotations

import http.client
import logging
import random
import secrets
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import pyarrow as pa

from penstock import wire
from penstock.errors import PenstockError, QueueFull, Unauthorized, by_code
from penstock.journal.spool import Share, Staged
from penstock.pipeline import exchange
from penstock.pipeline.exchange import Cut
from penstock.pipeline.options import TOKEN, Options, Server
from penstock.pipeline.parts import sent
from penstock.pipeline.planning import Offset
from penstock.pipeline.staging import Staging
from penstock.wire import Narrowing, Noted, Portion

#: How long a server may be away while a query runs: as long as a restart takes, and a recovery.
PATIENCE_S: Final = 60.0

#: Between two attempts: at first, and at the most.
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0

CONNECT_S: Final = 10.0

#: No answer takes longer to begin, nor stops for so long.
ANSWER_S: Final = 120.0

#: Up to so many bytes a piece is kept in memory; more of it in a temporary file.
MEMORY_BYTES: Final = 64 << 20

#: A batch that the server has, and has not published yet, is asked for again: it answers within so many seconds.
WAIT_S: Final = 10.0

#: The server is there, and cannot answer now.
_NOT_NOW: Final = frozenset({408, 429, 502, 503, 504})

_LOG: Final = logging.getLogger("penstock.pipeline")

_Answer = TypeVar("_Answer")


class Away(Exception):
    """The server did not answer, or not now; `after_s` is when to ask again, if it said so."""

    def __init__(self, why: str, error: PenstockError | None = None, after_s: float | None = None) -> None:
        super().__init__(why)
        self.error = error
        self.after_s = after_s


class Connection:
    """A namespace of a server. It can be sent to other processes, which then connect by themselves."""

    def __init__(self, server: Server, namespace: str) -> None:
        self._server = server
        self._prefix = f"{urlsplit(server.url).path.rstrip('/')}/v1/namespaces/{quote(namespace, safe='')}"
        self._open: http.client.HTTPConnection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def __del__(self) -> None:
        self.close()

    def ask(
        self, method: str, path: str, body: Any, answer: type[_Answer], *, patience_s: float = PATIENCE_S
    ) -> _Answer:
        """What the server answers to a small request."""
        data = None if body is None else msgspec.msgpack.encode(body)
        headers = {"Content-Type": wire.MSGPACK, "Accept": wire.MSGPACK}
        told = self._patiently(lambda: self._said(method, path, data, headers), patience_s)
        return msgspec.msgpack.decode(told, type=answer) if told else answer()

    def fetch(self, path: str, body: Any) -> tuple[list[Any], list[str]]:
        """The rows that the server answers with, all of them, and what it says of them."""
        data = msgspec.msgpack.encode(body)
        headers = {"Content-Type": wire.MSGPACK, "Accept": wire.ARROW}

        def attempt() -> tuple[list[Any], list[str]]:
            with tempfile.SpooledTemporaryFile(MEMORY_BYTES) as file:
                self._said("POST", path, data, headers, file)
                file.seek(0)
                try:
                    return exchange.decoded(file)
                except Cut as error:
                    raise Away(f"its answer was cut: {error}") from None

        return self._patiently(attempt, PATIENCE_S)

    # --- one request ---

    def _patiently(self, attempt: Callable[[], _Answer], patience_s: float) -> _Answer:
        """What an attempt gives, if need be the next one."""
        deadline = time.monotonic() + patience_s
        pause_s = PAUSE_S
        while True:
            try:
                return attempt()
            except Away as error:
                wait_s = max(pause_s * random.uniform(0.5, 1.0), error.after_s or 0.0)
                if time.monotonic() + wait_s > deadline:
                    if error.error is not None:
                        raise error.error from None
                    raise self._unavailable(str(error)) from error
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _unavailable(self, why: str) -> PenstockError:
        return by_code("server_unavailable")(
            f"{self._server.url} does not answer ({why}): is the address right, and does `penstock serve` run there?"
        )

    def _said(
        self, method: str, path: str, body: Any, headers: dict[str, str], into: IO[bytes] | None = None
    ) -> bytes:
        """The answer to one request, which may go into a file."""
        if self._server.token is not None:
            headers = {**headers, "Authorization": f"Bearer {self._server.token}"}
        kept, self._open = self._open, None  # until it has done well
        connection = kept or self._unconnected()
        try:
            if kept is None:
                connection.connect()
                connection.sock.settimeout(ANSWER_S)
            connection.request(method, self._prefix + path, body, headers)
            response = connection.getresponse()
            if response.status >= 300 or into is None:
                told = response.read()
            else:
                told = b""
                while part := response.read(1 << 20):
                    into.write(part)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise self._unavailable(
                f"its certificate is not trusted: {error.verify_message}; set SSL_CERT_FILE to the one that signed it"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if kept is not None:  # it was closed meanwhile, as servers do with those that are quiet
                raise Away(_why(error), after_s=0.0) from None
            raise Away(_why(error)) from None
        if response.will_close:
            connection.close()
        else:
            self._open = connection
        if response.status >= 300:
            raise self._refused(response, told)
        return told

    def _unconnected(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._server.url)
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                str(parts.hostname), parts.port, timeout=CONNECT_S, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=CONNECT_S)

    def _refused(self, response: http.client.HTTPResponse, told: bytes) -> Exception:
        """What the server has against it."""
        try:
            problem = msgspec.json.decode(told, type=wire.Problem)
        except msgspec.DecodeError:
            problem = None
        if problem is None:
            why = f"it answered {response.status} {response.reason}, as no server of Penstock's does"
            return Away(why) if response.status in _NOT_NOW else self._unavailable(why)
        detail = f"{problem.detail} ({self._server.url})"
        if problem.code == Unauthorized.code:
            given = "the token was not accepted" if self._server.token is not None else "no token was given"
            detail += f": {given}; give option token, or set {TOKEN}"
        error = by_code(problem.code)(detail)
        if response.status in _NOT_NOW and problem.code != QueueFull.code:
            return Away(detail, error, problem.retry_after)
        return error


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# --- reading ---


class RemoteOrigin:
    """The origin of a table that a server has."""

    def __init__(self, options: Options) -> None:
        assert options.server is not None
        self._options = options
        self._server = Connection(options.server, options.namespace)
        self._noted = Noted()
        self._seen_end: Offset | None = None
        self._told: set[str] = set()
        self._reported: dict[str, tuple[int, int]] | None = None

    def check(self) -> None:
        """Raise what is wrong with the options, or why the server cannot be asked."""
        body = wire.SparkCheck(**self._asking(patience_s=0.0))
        self._hear(self._server.ask("POST", "/spark/check", body, wire.Checked, patience_s=0.0).warnings)

    def pieces(self, narrowing: Narrowing) -> list[Any]:
        """Portions, for one task each."""
        return self._planned(wire.SparkPlan(**self._asking(), narrowing=narrowing))

    def between(self, start: Offset, end: Offset) -> list[Any]:
        """Portions of a batch of a stream."""
        return self._planned(wire.SparkPlan(**self._asking(), start=_place(start), end=_place(end)))

    def _planned(self, body: wire.SparkPlan) -> list[Any]:
        found = self._server.ask("POST", "/spark/plan", body, wire.SparkPlanned)
        self._hear(found.warnings)
        return list(found.portions)

    def initial(self) -> Offset:
        """Where a stream begins that has no checkpoint."""
        return self._found(wire.SparkOffsets(**self._asking(), what="initial"))

    def end(self, *, look: bool) -> Offset:
        """Up to where everything is synced: now, or as of the last look."""
        if look or self._seen_end is None:
            self._found(wire.SparkOffsets(**self._asking(), what="end"))
        return dict(self._seen_end or {})

    def latest(self, start: Offset, rows: int | None, final: Offset | None) -> Offset:
        """Where a batch ends that begins at `start`. Spark asks when it is done with everything before that, which the reader's position then says."""
        self._report(start)
        begin, last = _place(start), None if final is None else _place(final)
        return self._found(
            wire.SparkOffsets(
                **self._asking(), what="latest", start=begin, rows=rows, final=last, noted=self._noted
            )
        )

    def _found(self, body: wire.SparkOffsets) -> Offset:
        found = self._server.ask("POST", "/spark/offsets", body, wire.SparkFound)
        self._hear(found.warnings)
        self._noted = found.noted
        self._seen_end = {**found.end, "path": self._options.place}
        return {**found.offset, "path": self._options.place}

    def read(self, piece: Portion) -> Iterator[Any]:
        """The rows of a portion: all of them are here before the first is given away, so that a server that goes away meanwhile can be asked again."""
        if not piece.logs:
            return
        # The portion says which logs; the options which columns.
        body = wire.SparkRead(options=_plain(self._options), portion=piece)
        batches, warnings = self._server.fetch("/spark/read", body)
        self._hear(warnings)
        yield from batches

    # --- what is said with every question ---

    def _asking(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        options = self._options
        topics = None if options.topics is None else list(options.topics)
        if options.pattern is not None:
            known = self._server.ask("GET", "/spark/logs", None, wire.Names, patience_s=patience_s).names
            topics = [name for name in known if options.wants(options.namespace, name)]
        return {"options": _plain(options), "topics": topics}

    def _hear(self, warnings: Iterable[str]) -> None:
        for one in warnings:
            if one not in self._told:
                self._told.add(one)
                _LOG.warning("%s", one)

    def _report(self, start: Offset) -> None:
        """Tell of a reader that has a name; of others only Spark's listener knows which query it is (see `progress`)."""
        if self._options.reader is None or "logs" not in start:
            return
        logs = {name.partition("/")[2]: (place[0], place[2]) for name, place in start["logs"].items()}
        if logs != self._reported:
            try:
                report(self._server, self._options.reader, logs)
                self._reported = logs
            except PenstockError as error:
                self._hear([f"the progress of {self._options.reader} could not be told: {error}"])


def report(
    server: Connection, reader: str, logs: dict[str, tuple[int, int]], patience_s: float = 0.0
) -> None:
    """Say how far a reader is."""
    body = wire.SparkProgress(reader=reader, logs=logs)
    server.ask("POST", "/spark/progress", body, wire.Checked, patience_s=patience_s)


def _plain(options: Options) -> dict[str, str]:
    return {name: value for name, value in options.given.items() if name not in ("topic", "topicPattern")}


def _place(offset: Offset) -> wire.StreamPlace:
    return msgspec.convert(offset, wire.StreamPlace)


# --- writing ---


class RemoteOutlet:
    """The outlet of a server: what tasks have is staged there, and published when the driver says so."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.place = server.url
        self._namespace = namespace
        self._server = Connection(server, namespace)

    def check(self, *, patient: bool) -> None:
        """Raise why nothing can be written there; at once, or when the server has been away for too long."""
        self._server.ask("GET", "/spool", None, wire.Checked, patience_s=PATIENCE_S if patient else 0.0)

    def producer_of_one(self) -> str:
        """A name for a write that is nobody's batch. The server remembers it until it was told that its answer has come."""
        return f"{WRITE}{self._namespace}/{secrets.token_hex(16)}"

    def stage(self, topic: str | None, batches: Iterator[pa.RecordBatch], where: str) -> list[Staged]:
        """Have the rows of a task at the server, on its disk."""
        staged: list[Staged] = []
        staging = Staging(topic, where)
        try:
            for part in staging.parts(batches):
                path = f"/spool/staged/{secrets.token_hex(16)}"
                found = self._server.ask("PUT", path, sent(part, staging.shares), wire.Staged)
                shares = [Share(one.topic, one.rows, one.bytes) for one in found.shares]
                staged.append(Staged(found.name, 0, 0, shares))
        except BaseException:
            self.abort(self.producer_of_one(), 0, staged)
            raise
        return staged

    def commit(self, producer: str, batch: int, files: Sequence[Staged], timeout_s: float) -> None:
        """Have a batch published: within that time, or, if the server has it on its disk by then, later."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            body = wire.SpoolBatch(
                producer=producer, batch=batch, files=[file.name for file in files], wait=min(left_s, WAIT_S)
            )
            patience_s = max(left_s, PATIENCE_S)  # it is not safe anywhere before the server has answered
            if self._server.ask("POST", "/spool/batches", body, wire.Taken, patience_s=patience_s).taken:
                break
            if time.monotonic() >= deadline:
                _LOG.warning(
                    "batch %d of %s is on the disk of %s and will be taken in, but was not within %s s",
                    batch, producer, self.place, timeout_s,
                )  # fmt: skip
                return
        if producer.startswith(WRITE):
            try:
                body_of_one = wire.SpoolForget(producer=producer)
                self._server.ask("POST", "/spool/forget", body_of_one, wire.Checked, patience_s=0.0)
            except PenstockError as error:  # one small record stays
                _LOG.info("%s could not be told that its answer has come: %s", self.place, error)

    def abort(self, producer: str, batch: int, files: Sequence[Staged]) -> None:
        """Remove what tasks have staged, unless it was handed in."""
        if not files:
            return
        body = wire.SpoolBatch(producer=producer, batch=batch, files=[file.name for file in files])
        try:
            self._server.ask("POST", "/spool/abort", body, wire.Checked, patience_s=0.0)
        except PenstockError as error:  # it is swept up after a day
            _LOG.warning("%s keeps for a day what was staged and is not wanted: %s", self.place, error)


#: What the names of producers begin with that write one batch through a server.
WRITE: Final = "write:"
