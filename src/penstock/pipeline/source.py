"""`spark.read.format("penstock")` and `spark.readStream.format("penstock")`: the data source, in batches and as a stream.

Theory of operation
-------------------
Planning looks at a `Catalog`, decides which offsets of which logs are wanted, and gives each task a `Piece` (see `plan`), which the task reads by itself, from the directory, with no
broker (`assembly`). Both happen in Python processes that Spark starts, so that everything here can be pickled, and nothing is kept between them.

Nothing beyond the mark is planned: what is not synced may be cut by a power cut, and other messages would take the offsets that a checkpoint is past already.

A stream's offset says for each log its number, an epoch and the next offset. The number tells a log that was deleted and made again from the one that was meant. The epoch is
the journal's own at that time: a message before that offset which was written in a later one is not the message that was read, so the log was cut.
Settlements and deliveries belong to no single log; a stream of them is at a commit, by its sequence number.

Everything that depends on where the data is goes through `Catalog`, `pieces` and `JournalReader`: a broker behind a URL will bring its own of these three.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.broker.ledger import DEFAULT_NAMESPACE
from penstock.clock import to_us
from penstock.errors import CorruptJournal, InvalidArgument, MaintenanceFailed, QueueNotFound
from penstock.journal.damage import Damage
from penstock.journal.kinds import MESSAGES
from penstock.journal.reading import JournalReader
from penstock.limits import OFFSET_MAX
from penstock.pipeline import options as parsing
from penstock.pipeline import schema as tables
from penstock.pipeline import sink
from penstock.pipeline.assembly import Assembly, Wanted
from penstock.pipeline.catalog import Catalog, LogEntry
from penstock.pipeline.options import EARLIEST, EVERYWHERE, LATEST, Options, Place
from penstock.pipeline.plan import Bounds, Piece, pieces

NAME: Final = "penstock"
VERSION: Final = 1

_LOG: Final = logging.getLogger("penstock.pipeline")


class PenstockDataSource(DataSource):
    """The format `penstock`. The parameters' names are Spark's: it passes them by keyword."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = parsing.parse(self._given)
        catalog = Catalog(options.path)
        logs = _chosen(catalog, options)
        for name, place in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
            _require_meant(place, logs, options, name)
            if isinstance(place, dict):
                for log in logs:
                    _resolved(catalog, log, _named(place, log, options, LATEST), name)
        return tables.spark(options.table, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        options = parsing.parse(self._given).for_batch()
        return FilteringReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        del schema
        options = parsing.parse(self._given).for_stream()
        return MessageStream(options) if options.table.kind is MESSAGES else EventStream(options)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return sink.writer(schema, self._given, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  # Spark's name
        return sink.stream_writer(schema, self._given, overwrite=overwrite)


# --- what both readers do ---


def _chosen(catalog: Catalog, options: Options) -> list[LogEntry]:
    """The logs that are meant; one that is named must be there."""
    found = catalog.chosen(options.wants)
    missing = set(options.topics or ()) - {log.name for log in found}
    if missing and not options.fail_on_data_loss:
        _LOG.warning("there is no queue or topic %s in %s", ", ".join(sorted(missing)), options.path)
    elif missing or not _is_known(catalog, options.namespace):
        names = sorted(
            log.name for log in catalog.chosen(lambda space, _: options.namespace in (EVERYWHERE, space))
        )
        raise QueueNotFound(
            f"there is no queue or topic {', '.join(sorted(missing)) or 'at all'} in {options.path} (namespace {options.namespace}); "
            f"there are: {', '.join(names) or 'none'}"
        )
    return found


def _is_known(catalog: Catalog, namespace: str) -> bool:
    """Whether a namespace is one, or may be empty yet."""
    return namespace in (EVERYWHERE, DEFAULT_NAMESPACE) or any(
        log.namespace == namespace for log in catalog.logs.values()
    )


def _named(place: Place, log: LogEntry, options: Options, default: int) -> int:
    """The offset that an option gives for a log."""
    if isinstance(place, int):
        return place
    return place.get(log.qualified if options.namespace == EVERYWHERE else log.name, default)


def _require_meant(place: Place | None, logs: list[LogEntry], options: Options, name: str) -> None:
    known = {log.qualified if options.namespace == EVERYWHERE else log.name for log in logs}
    strange = set(place) - known if isinstance(place, dict) else set()
    if strange:
        raise InvalidArgument(
            f"{name} has offsets for {', '.join(sorted(strange))}, which are not read; read are {', '.join(sorted(known)) or 'none'}"
        )


def _start(catalog: Catalog, log: LogEntry, options: Options, otherwise: int) -> int:
    """Where reading a log begins."""
    if options.starting_us is not None:
        return catalog.offset_at(log.number, options.starting_us)
    offset = otherwise if options.starting is None else _named(options.starting, log, options, EARLIEST)
    return _resolved(catalog, log, offset, "startingOffsets")


def _stop(catalog: Catalog, log: LogEntry, options: Options) -> int:
    """Where reading a log ends."""
    if options.ending_us is not None:
        return catalog.offset_at(log.number, options.ending_us)
    offset = LATEST if options.ending is None else _named(options.ending, log, options, LATEST)
    return _resolved(catalog, log, offset, "endingOffsets")


def _resolved(catalog: Catalog, log: LogEntry, offset: int, name: str) -> int:
    end = catalog.end(log.number)
    if offset == LATEST:
        return end
    if offset == EARLIEST:
        return catalog.earliest(log.number)
    if offset > end:
        raise InvalidArgument(f"{name}: {log.name} has no offset {offset} yet, its next one is {end}")
    return offset


def _lost(what: str, options: Options) -> None:
    """Messages that should be there are not."""
    if options.fail_on_data_loss:
        raise CorruptJournal(f"{what}; to read the rest all the same, set the option failOnDataLoss to false")
    _LOG.warning("%s; going on, as failOnDataLoss is false", what)


def _require_whole(catalog: Catalog, logs: dict[int, Wanted], options: Options) -> None:
    """Say so if the journal knows that something wanted was lost."""
    missing = catalog.missing_segments()
    if missing:
        _lost(f"segments {missing} of the journal in {options.path} are missing", options)
    for number, wanted in logs.items():
        lost = catalog.lost(number, wanted.start, wanted.stop)
        if lost:
            parts = ", ".join(f"{part.start} to {part.stop - 1}" for part in list(lost)[:5])
            _lost(f"{len(lost)} messages of {wanted.name} were lost to damage (offsets {parts})", options)


def _read(options: Options, piece: Piece, noted: list[Damage] | None = None) -> Iterator[Any]:
    """What a task does. Damage is said, or only `noted`."""
    reader = JournalReader(options.path)
    assembly = Assembly(options.table, options.columns, piece.logs, reader)
    if options.table.kind is not MESSAGES:  # messages of a time are chosen by their offsets
        assembly.times = (options.starting_us, options.ending_us)
    told = 0
    frames = (frame for stretch in piece.stretches for frame in reader.stretch(stretch))
    for batch in assembly.batches(frames):
        yield batch
        if noted is None:
            told = _tell(reader.damage, told, options)
    if noted is None:
        _tell(reader.damage, told, options)
    else:
        noted += reader.damage


def _tell(damage: list[Damage], told: int, options: Options) -> int:
    for one in damage[told:]:
        _lost(
            f"bytes {one.position} to {one.end} of segment {one.segment} in {options.path} are damaged",
            options,
        )
    return len(damage)


# --- batches ---

#: Columns by which a filter may choose logs, exactly.
_NAMING: Final = frozenset({"namespace", "topic", "log"})


class BatchReader(DataSourceReader):
    """One read of a table."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._names: dict[str, set[str]] = {}
        self._first, self._behind = 0, OFFSET_MAX
        self._oldest_us: int | None = None
        self._newest_us: int | None = None

    @property
    def is_of_messages(self) -> bool:
        """Of what was published, not of what happened to it."""
        return self._options.table.kind is MESSAGES

    def partitions(self) -> list[InputPartition]:
        options, catalog = self._options, Catalog(self._options.path)
        logs = _chosen(catalog, options)
        _require_meant(options.starting, logs, options, "startingOffsets")
        _require_meant(options.ending, logs, options, "endingOffsets")
        wanted = {log.number: self._wanted(catalog, log) for log in logs if self._passes(log)}
        wanted = {number: one for number, one in wanted.items() if one.start < one.stop}
        _require_whole(catalog, wanted, options)
        bounds = Bounds(catalog.mark, stop=None if options.as_of is None else options.as_of + 1)
        bounds.oldest_us, bounds.newest_us = self._oldest_us, self._newest_us
        found = pieces(
            catalog.segments(), options.table.kind, wanted, bounds, options.min_partitions
        ) if wanted else []  # fmt: skip
        return list(found or [Piece([], {})])

    def _passes(self, log: LogEntry) -> bool:
        named = {"namespace": log.namespace, self._options.table.log: log.name}
        return all(named[column] in values for column, values in self._names.items())

    def _wanted(self, catalog: Catalog, log: LogEntry) -> Wanted:
        start, stop = 0, OFFSET_MAX
        if self._options.table.kind is MESSAGES:
            start = _start(catalog, log, self._options, EARLIEST)
            stop = _stop(catalog, log, self._options)
        return Wanted(log.namespace, log.name, max(start, self._first), min(stop, self._behind))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)  # type: ignore[arg-type]

    def read_noting(self, partition: InputPartition, damage: list[Damage]) -> Iterator[Any]:
        """The same for somebody who wants to know what is damaged, and goes on."""
        return _read(self._options, partition, damage)  # type: ignore[arg-type]


class FilteringReader(BatchReader):
    """One read of a table by which Spark's filters are applied before anything is read.

    Only if that is asked for: Spark 4.3 keeps what a reader planned with the filters of one query, and uses it for every other query of the same DataFrame, without filters or with others.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take over what can be applied exactly; by times only segments are chosen, so these filters go back to Spark."""
        for one in filters:
            if not self._takes_over(one):
                yield one

    def _takes_over(self, one: Filter) -> bool:
        column = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else None  # type: ignore[attr-defined]
        if column in _NAMING and isinstance(one, EqualTo | In):
            values = {one.value} if isinstance(one, EqualTo) else set(one.value)
            self._names[column] = self._names.get(column, values) & values
            return True
        if column == "offset":
            return self._takes_offset(one)
        if column == "timestamp":
            self._heed_time(one)
        return False

    def _takes_offset(self, one: Filter) -> bool:
        value = getattr(one, "value", None)
        if type(value) is not int:
            return False
        if isinstance(one, EqualTo | GreaterThanOrEqual):
            self._first = max(self._first, value)
        elif isinstance(one, GreaterThan):
            self._first = max(self._first, value + 1)
        if isinstance(one, EqualTo | LessThanOrEqual):
            self._behind = min(self._behind, value + 1)
        elif isinstance(one, LessThan):
            self._behind = min(self._behind, value)
        return isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual)

    def _heed_time(self, one: Filter) -> None:
        """Leave out segments that are too old or too new."""
        value = getattr(one, "value", None)
        if not isinstance(value, datetime) or value.tzinfo is None:
            return
        moment = to_us(value, "timestamp")
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            self._oldest_us = moment if self._oldest_us is None else max(self._oldest_us, moment)
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            self._newest_us = moment if self._newest_us is None else min(self._newest_us, moment)


# --- streams ---


class _Stream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both streams have in common: limits, and the end that `availableNow` sets."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._catalog: Catalog | None = None
        self._final: dict[str, Any] | None = None

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(self._options.path)
        return self._catalog

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the reader too, and have no use for what is known here."""
        return {**self.__dict__, "_catalog": None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self.catalog.refresh()
        self._final = self._end()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return self._end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        self.catalog.refresh()
        end = self._end() if self._final is None else self._final
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._limited(start, end, rows)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)  # type: ignore[arg-type]

    def _offset(self, **place: Any) -> dict[str, Any]:
        """What is told of where a stream is: see `progress` for who reads the rest of it."""
        return {
            "penstock": VERSION,
            "path": self._options.path,
            "table": self._options.table.name,
            "reader": self._options.reader,
            **place,
        }

    @abstractmethod
    def _end(self) -> dict[str, Any]:
        """Up to where everything is synced, as of the last look."""

    @abstractmethod
    def _limited(self, start: dict[str, Any], end: dict[str, Any], rows: int | None) -> dict[str, Any]:
        """Where a batch ends that begins at `start`: at `end`, or earlier if it would have more rows than that."""

    def _require_reached(self, reached: bool, epoch: int) -> None:
        """A batch that was planned before is planned again, to the same end. Less of it would be skipped for good, so the end must be there.

        The mark is synced only at a clean end: after a power cut it is older than the truth until the directory is opened, and what is behind it may not be read yet.
        """
        if not reached and self.catalog.mark.epoch <= epoch:
            raise MaintenanceFailed(
                f"{self._options.path} does not know yet that everything is synced which this query has planned to read, as after a power cut: "
                "open it once (penstock.open, or start its broker), then start the query again"
            )
        if not reached:
            _lost(
                f"the journal in {self._options.path} was cut before what this query had planned to read",
                self._options,
            )


class MessageStream(_Stream):
    """Messages, by log and offset."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._checked_epoch: int | None = None
        self._told: set[tuple[str, int]] = set()  # logs that are gone, of which it was said

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        catalog, options = self.catalog, self._options
        logs = _chosen(catalog, options)
        _require_meant(options.starting, logs, options, "startingOffsets")
        return self._offset(
            logs={
                log.qualified: [log.number, catalog.mark.epoch, _start(catalog, log, options, LATEST)]
                for log in logs
            }
        )

    def _end(self) -> dict[str, Any]:
        catalog = self.catalog
        return self._offset(
            logs={
                log.qualified: [log.number, catalog.mark.epoch, catalog.end(log.number)]
                for log in catalog.chosen(self._options.wants)
            }
        )

    def _limited(self, start: dict[str, Any], end: dict[str, Any], rows: int | None) -> dict[str, Any]:
        """As much behind `start` as is allowed, from each log in proportion to what it has. No log goes back."""
        begins = {name: self._begin(name, start, place) for name, place in end["logs"].items()}
        self._require_there(start, end)
        waiting = {name: max(place[2] - begins[name], 0) for name, place in end["logs"].items()}
        total = sum(waiting.values())
        taken: dict[str, list[int]] = {}
        left = rows
        for name, (number, epoch, _) in end["logs"].items():
            share = waiting[name]
            if rows is not None and left is not None and total > rows:
                share = min(left, -(-share * rows // total))
                left -= share
            if share or name not in start["logs"] or start["logs"][name][0] != number:
                taken[name] = [number, epoch, begins[name] + share]
            else:
                taken[name] = start["logs"][name]
        for name, place in start["logs"].items():
            taken.setdefault(name, place)  # of a log that is gone: so that it is known if it comes again
        return self._offset(logs=taken)

    def _begin(self, name: str, start: dict[str, Any], place: list[int]) -> int:
        """Where a log is to be read from. One that came later, or again, is read from its beginning."""
        known = start["logs"].get(name)
        if known is None or known[0] != place[0]:
            return self.catalog.earliest(place[0])
        return int(known[2])

    def _require_there(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Say so if what was read before is not what is there now."""
        catalog = self.catalog
        for name, (number, epoch, offset) in start["logs"].items():
            now = end["logs"].get(name)
            if now is None or now[0] != number:
                if (name, number) not in self._told:
                    self._told.add((name, number))
                    again = "" if now is None else " and made again"
                    _lost(f"{name} was deleted{again} since the checkpoint", self._options)
            elif self._checked_epoch == catalog.mark.epoch:
                continue  # messages are replaced by others only in a new life of the journal
            elif offset > now[2] and catalog.mark.epoch > epoch:
                _lost(
                    f"{name} was cut: the checkpoint is at offset {offset}, and the log ends at {now[2]}",
                    self._options,
                )
                start["logs"][name] = [number, catalog.mark.epoch, now[2]]
            elif offset and (catalog.reader.epoch_of(number, offset - 1) or 0) > epoch:
                _lost(
                    f"{name} was cut below offset {offset}, and written again since the checkpoint",
                    self._options,
                )
        self._checked_epoch = catalog.mark.epoch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        catalog = self.catalog
        wanted = {}
        for name, place in end["logs"].items():
            namespace, _, log = name.partition("/")
            begin = self._begin(name, start, place)
            if begin < place[2]:
                wanted[place[0]] = Wanted(namespace, log, begin, place[2])
        if not wanted:
            return [Piece([], {})]
        if any(catalog.end(number) < one.stop for number, one in wanted.items()):
            catalog.refresh()  # the batch was planned by an earlier process, which had seen more
            for number, epoch, stop in end["logs"].values():
                if number in catalog.logs and number in wanted:
                    self._require_reached(catalog.end(number) >= stop, epoch)
        _require_whole(catalog, wanted, self._options)
        found = pieces(
            catalog.segments(), MESSAGES, wanted, Bounds(catalog.mark), self._options.min_partitions
        )
        return list(found or [Piece([], {})])


class EventStream(_Stream):
    """What happened to messages, by commit."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._told: tuple[int, int] | None = None  # commits that are gone, of which it was said

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        catalog, options = self.catalog, self._options
        _chosen(catalog, options)
        if options.starting_us is not None:
            return self._offset(sequence=catalog.sequence_at(options.starting_us), epoch=catalog.mark.epoch)
        sequence = 0 if options.starting == EARLIEST else catalog.mark.sequence
        return self._offset(sequence=sequence, epoch=catalog.mark.epoch)

    def _end(self) -> dict[str, Any]:
        return self._offset(sequence=self.catalog.mark.sequence, epoch=self.catalog.mark.epoch)

    def _limited(self, start: dict[str, Any], end: dict[str, Any], rows: int | None) -> dict[str, Any]:
        catalog, first = self.catalog, int(start["sequence"])
        if first > end["sequence"]:
            if catalog.mark.epoch <= start["epoch"]:
                return start  # the mark is older than the truth: see `journal.mark`
            _lost(
                f"the journal was cut: the checkpoint is at commit {first}, and it ends at {end['sequence']}",
                self._options,
            )
            return end
        self._require_there(first, end["sequence"])
        if rows is None:
            return end
        kind, seen = self._options.table.kind, 0
        for frame in catalog.reader.frames(first, (kind,)):
            if frame.sequence > end["sequence"]:
                break
            seen += sum(span.rows for span in frame.spans() if span.kind == kind.number)
            if seen >= rows:
                return {**end, "sequence": frame.sequence}
        return end

    def _require_there(self, first: int, last: int) -> None:
        """Say so if something that happened behind the checkpoint was cleaned before it was read. Who begins at the earliest takes what there is."""
        gone = self.catalog.without_events(first, last) if first else None
        if gone is not None and gone != self._told:
            self._told = gone
            _lost(
                f"what happened in commits {gone[0]} to {gone[1]} was cleaned before it was read (archive, or read more often)",
                self._options,
            )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        catalog, options = self.catalog, self._options
        if start["sequence"] < end["sequence"] and catalog.mark.sequence < end["sequence"]:
            catalog.refresh()
            self._require_reached(catalog.mark.sequence >= end["sequence"], end["epoch"])
        logs = {
            log.number: Wanted(log.namespace, log.name, 0, OFFSET_MAX)
            for log in catalog.chosen(options.wants)
        }
        bounds = Bounds(catalog.mark, start["sequence"] + 1, end["sequence"] + 1)
        if not logs or bounds.first >= bounds.stop:
            return [Piece([], {})]
        found = pieces(catalog.segments(), options.table.kind, logs, bounds, options.min_partitions)
        return list(found or [Piece([], {})])
