"""The desk for Spark: planning, reading and staging on the server's own directory, for sources and sinks that are elsewhere.

Theory of operation
-------------------
The same planner that a source has over a directory works here (see `pipeline.planning`); rows for
the sink come as parts of staged files (`pipeline.parts`), and `pipeline.exchange` says what else
travels. Everything here blocks, and is called in
worker threads. It needs pyarrow and numpy, and neither Spark nor Java.

Whoever asks has a permission for one namespace, and is believed nothing else:

- which logs a portion or an offset names is looked up among those of the namespace, by number. One of another namespace is no different from one that does not exist;
- staged files are kept under names that begin with the namespace's hash, so nobody can hand in another's. What is in them was looked at when they came, and is noted beside them; a batch only names them;
- producers are named after the namespace too: nobody can use up the batches of another's query.

A batch that is handed in again, because the answer did not arrive, is known: its manifest is still in the spool, or it is on record that it was published. For a write of one batch that record is kept
until whoever wrote it says that the answer has come.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock import limits, wire
from penstock.broker.handover import hand_over
from penstock.broker.intake import Intake
from penstock.errors import (
    CorruptJournal,
    DiskFull,
    InvalidArgument,
    JournalFailed,
    MaintenanceFailed,
    PenstockError,
)
from penstock.journal.files import Files
from penstock.journal.spool import STAGED, Manifest, Spool
from penstock.names import check_name
from penstock.pipeline import exchange, options, schema
from penstock.pipeline.assembly import Wanted
from penstock.pipeline.catalog import Catalog
from penstock.pipeline.options import Options
from penstock.pipeline.outlet import drop_unless_handed_in
from penstock.pipeline.parts import received
from penstock.pipeline.plan import Bounds, Piece, pieces
from penstock.pipeline.planning import Planner, planner
from penstock.pipeline.remote import WRITE

#: What whoever sends rows calls them, and what a producer may be called behind its kind and namespace.
_UPLOAD: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_STAGED: Final = re.compile(r"[0-9a-f]{32}\.staged", re.ASCII)
_KINDS: Final = ("query", "txn", WRITE.rstrip(":"))

#: Where the data is, as far as others are told.
CALLED: Final = "the server's directory"

#: Options that the server has its own of.
_OURS: Final = frozenset({"path", "url", "token", "namespace", "topic", "topicpattern"})


class Gone(CorruptJournal):
    """What a query counts on is not there (any more). That is between the two, and no failure of the server's: whoever asks may have made it up."""

    http_status = 409


class NotYet(MaintenanceFailed):
    """What a query has planned to read is not there yet; the same."""

    http_status = 409


class NotStaged(JournalFailed):
    """A batch names what is not staged; the same."""

    http_status = 409


class Desk:
    """Works for sources and sinks that are elsewhere, on the directory of a broker that this process has open."""

    def __init__(self, directory: Path, intake: Intake) -> None:
        self._directory = directory
        self._intake = intake
        self._spool = Spool(Files(), directory)
        self._catalogs: list[Catalog] = []  # that nobody uses now; there are as many as threads

    @contextlib.contextmanager
    def _catalog(self) -> Iterator[Catalog]:
        """What is in the directory now."""
        try:
            catalog = self._catalogs.pop()  # another thread may take the last one: not looked at first
        except IndexError:
            catalog = Catalog(self._directory)
        catalog.refresh()  # one that cannot be is not used again
        try:
            yield catalog
        finally:
            self._catalogs.append(catalog)

    # --- reading ---

    def names(self, namespace: str) -> wire.Names:
        """The queues and topics of a namespace, dead letters among them."""
        with self._catalog() as catalog:
            return wire.Names(names=[log.name for log in catalog.chosen(lambda space, _: space == namespace)])

    def check(self, namespace: str, asked: wire.SparkCheck) -> wire.Checked:
        """Raise what is wrong with the options."""
        with self._planner(namespace, asked) as found:
            found.check()
            return wire.Checked(warnings=found.warnings or [])

    def plan(self, namespace: str, asked: wire.SparkPlan) -> wire.SparkPlanned:
        """Portions of a table, or of a batch of a stream."""
        with self._planner(namespace, asked) as found:
            if asked.start is None or asked.end is None:
                planned = found.pieces(asked.narrowing or wire.Narrowing())
            else:
                _require_places(found, namespace, asked.start, asked.end)
                planned = found.between(asked.start.offset(), asked.end.offset())
            return wire.SparkPlanned(
                portions=[_portion(piece) for piece in planned], warnings=found.warnings or []
            )

    def offsets(self, namespace: str, asked: wire.SparkOffsets) -> wire.SparkFound:
        """Where a stream begins, where a batch of it ends, or up to where everything is synced."""
        with self._planner(namespace, asked, asked.noted) as found:
            end = found.end(look=False)
            offset = end
            if asked.what == "initial":
                offset = found.initial()
            elif asked.what == "latest":
                if asked.start is None:
                    raise InvalidArgument("start is missing: the latest offset is that of a batch behind it")
                final = asked.final or asked.start
                _require_places(found, namespace, asked.start, final)
                last = None if asked.final is None else asked.final.offset()
                offset = found.latest(asked.start.offset(), asked.rows, last)
                end = found.end(look=False)
            return wire.SparkFound(offset=offset, end=end, noted=found.noted, warnings=found.warnings or [])

    def read(self, namespace: str, asked: wire.SparkRead) -> Iterator[bytes]:
        """The rows of a portion, as an IPC stream in parts. What is wrong with the portion is raised at once."""
        with self._planner(namespace, asked) as found:
            chosen = self._options(namespace, asked)
            again = _found_again(found, namespace, chosen, asked.portion)
        warnings = found.warnings if found.warnings is not None else []
        batches = (batch for piece in again for batch in found.read(piece))
        return exchange.encoded(schema.arrow(chosen.table, chosen.columns), batches, warnings)

    @contextlib.contextmanager
    def _planner(
        self, namespace: str, asked: wire.Asking, noted: wire.Noted | None = None
    ) -> Iterator[Planner]:
        chosen = self._options(namespace, asked)
        with self._catalog() as catalog:
            found = planner(chosen, catalog, noted)
            found.warnings = []
            try:
                yield found
            except CorruptJournal as error:
                raise Gone(str(error)) from None
            except MaintenanceFailed as error:
                raise NotYet(str(error)) from error

    def _options(self, namespace: str, asked: wire.Asking) -> Options:
        for name in asked.options:
            if name.lower() in _OURS:
                raise InvalidArgument(f"the option {name} is not one for a server: it knows where it is")
        found = options.parse({**asked.options, "path": str(self._directory), "namespace": namespace})
        topics = asked.topics
        if topics is not None:
            for name in topics:
                check_name(name, kind="topic", reserved_ok=True)
        return msgspec.structs.replace(
            found, topics=None if topics is None else tuple(topics), called=CALLED, given={}
        )

    # --- writing ---

    def staged_bytes(self, namespace: str) -> int:
        """What a namespace has staged, handed in or not, and what is left there of those who gave up."""
        mine, found = _mine(namespace), 0
        with _disk(), contextlib.suppress(FileNotFoundError):  # nobody has staged anything yet
            for name in self._spool.files.names(self._spool.path):
                if name.startswith(mine):
                    with contextlib.suppress(FileNotFoundError):  # published just now
                        found += self._spool.files.identity(self._spool.path / name)[2]
        return found

    def stage(self, namespace: str, name: str, data: bytes) -> wire.Staged:
        """Check rows, and have them on the disk in the form in which they are published."""
        part, shares = received(data)
        with _disk():
            self._spool.make()
            stager = self._spool.stage(own_name(namespace, name))
            try:
                stager.add(part)
                staged = stager.finish(shares)
            except BaseException:
                stager.discard()
                raise
            if staged is None:
                raise InvalidArgument("the part has no rows: send those that have some")
            self._spool.note(staged)
        told = [wire.StagedShare(topic=one.topic, rows=one.rows, bytes=one.bytes) for one in shares]
        return wire.Staged(name=staged.name, shares=told)

    def manifest(self, namespace: str, asked: wire.SpoolBatch) -> tuple[Manifest | None, bool]:
        """What is to be handed in, and whether it is for the first time. None: it was, and is published."""
        require_own(namespace, asked.producer, asked.files)
        with _disk():
            named = Manifest(asked.producer, asked.batch, namespace, [])
            files = [self._spool.noted(name) for name in dict.fromkeys(asked.files)]
            known = self._spool.find(named.name)
            if known is None and self._intake.has_taken(asked.producer, asked.batch):
                self._drop(asked.files)
                return None, False
            if known is not None and None in files:
                return known, False
            there = [one for one in files if one is not None]
            if len(there) < len(files) or not there:
                raise NotStaged(
                    "something of this batch was never staged here, or was removed since, as after a day: write it again",
                    indeterminate=False,
                )
            return msgspec.structs.replace(named, files=there), known is None

    def commit(self, manifest: Manifest, names: Sequence[str], wait_s: float) -> wire.Taken:
        """Have a batch published, and wait for that."""
        with _disk():
            try:
                taken = hand_over(self._directory, manifest, wait_s, self._spool.files, owned=True)
            except PenstockError:
                if not self._spool.holds(manifest.name):
                    self._drop(names)
                raise
            self._spool.drop_notes(names)  # the manifest has it all
            return wire.Taken(taken=taken)

    def abort(self, namespace: str, asked: wire.SpoolBatch) -> wire.Checked:
        """Remove what was staged for a batch, unless it was handed in."""
        require_own(namespace, asked.producer, asked.files)
        with _disk():
            drop_unless_handed_in(self._spool, asked.producer, asked.batch, namespace, asked.files)
            self._spool.drop_notes(
                [name for name in asked.files if not self._spool.files.exists(self._spool.path / name)]
            )
        return wire.Checked()

    def forget(self, namespace: str, producer: str) -> wire.Checked:
        """A write of one batch has had its answer."""
        require_own(namespace, producer, ())
        if not producer.startswith(WRITE):
            raise InvalidArgument("only a write of one batch is forgotten: others come again")
        self._intake.forget(producer)
        return wire.Checked()

    def _drop(self, names: Sequence[str]) -> None:
        self._spool.drop(names)
        self._spool.drop_notes(names)


# --- what is believed ---


def _require_places(found: Planner, namespace: str, *places: wire.StreamPlace) -> None:
    """That offsets are of this table, and name logs of this namespace only."""
    by_log = isinstance(found.end(look=False).get("logs"), dict)
    for place in places:
        if (place.logs is None) == by_log or (place.sequence is None) != by_log:
            raise InvalidArgument("the offset is one of another table")
        numbers = [place.sequence or 0, place.epoch or 0, *place.cleaned.values()]
        for name, (number, epoch, offset) in (place.logs or {}).items():
            numbers += [number, epoch, offset]
            space, _, log = name.partition("/")
            known = found.catalog.logs.get(number)
            if space != namespace or (
                known is not None and (known.namespace, known.name) != (namespace, log)
            ):
                raise InvalidArgument(f"the offset names {name[:200]!r}, which is none of this namespace")
        if any(not 0 <= number <= limits.OFFSET_MAX for number in numbers):
            raise InvalidArgument("the offset has numbers in it that none has")


def _portion(piece: Piece) -> wire.Portion:
    if not piece.stretches:
        return wire.Portion(0, 0, {})
    logs = {number: (wanted.start, wanted.stop) for number, wanted in piece.logs.items()}
    return wire.Portion(piece.stretches[0].first, piece.stretches[-1].stop, logs)


def _found_again(found: Planner, namespace: str, chosen: Options, portion: wire.Portion) -> list[Piece]:
    """What a portion means, looked up anew: logs by their numbers, and places by sequence numbers."""
    catalog = found.catalog
    wanted: dict[int, Wanted] = {}
    numbers = [portion.first, portion.stop]
    for number, (start, stop) in portion.logs.items():
        numbers += [number, start, stop]
        log = catalog.logs.get(number)
        if log is None or log.namespace != namespace:
            found.lost(f"log {number} is none of this namespace, or was deleted since this was planned")
        else:
            wanted[number] = Wanted(log.namespace, log.name, start, stop)
    if any(not 0 <= number <= limits.OFFSET_MAX for number in numbers):
        raise InvalidArgument("the portion has numbers in it that none has")
    if portion.stop > catalog.mark.sequence + 1:
        raise InvalidArgument(
            f"commit {portion.stop - 1} is not synced: nobody can have planned to read it here"
        )
    bounds = Bounds(catalog.mark, portion.first, portion.stop)
    if not wanted or bounds.first >= bounds.stop:
        return []
    return pieces(catalog.segments(), chosen.table.kind, wanted, bounds, 1)


def own_name(namespace: str, name: str) -> str:
    """Under which name rows are staged that somebody calls so."""
    if not _UPLOAD.fullmatch(name):
        raise InvalidArgument(f"the name is {name[:80]!r}; give 32 digits of a random hexadecimal number")
    return f"{_mine(namespace)}{hashlib.sha256(name.encode()).hexdigest()[:16]}{STAGED}"


def require_own(namespace: str, producer: str, files: Sequence[str]) -> None:
    """That a producer and staged files are of this namespace."""
    check_name(namespace, kind="namespace")
    kind, _, rest = producer.partition(":")
    if kind not in _KINDS or not rest.startswith(f"{namespace}/"):
        raise InvalidArgument(
            f"the producer is {producer[:80]!r}; it is called {', '.join(_KINDS)}, then :{namespace}/ and what it likes"
        )
    if len(files) > limits.SPOOL_FILES_MAX:
        raise InvalidArgument(f"a batch has at most {limits.SPOOL_FILES_MAX} files: use fewer partitions")
    mine = _mine(namespace)
    for name in files:
        if not _STAGED.fullmatch(name) or not name.startswith(mine):
            raise InvalidArgument(f"{name[:80]!r} was not staged in this namespace")


def _mine(namespace: str) -> str:
    return hashlib.sha256(namespace.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    """What the disk says, as an error of ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                "there is no room for rows on their way: free some space, then write again"
            ) from None
        raise JournalFailed(f"the spool cannot be used: {error.strerror}", indeterminate=False) from error
