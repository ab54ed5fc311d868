"""What is read for a table, and by which task: the same for a directory that is here and for one behind a server.

Theory of operation
-------------------
Planning looks at a `Catalog`, decides which offsets of which logs are wanted, and makes a `Piece` (see `plan`) for each task, which reads it by itself, from the directory, with no broker (`assembly`).

Nothing beyond the mark is planned: what is not synced may be cut by a power cut, and other messages would take the offsets that a checkpoint is past already.

A stream's offset says for each log its number, an epoch and the next offset. The number tells a log that was deleted and made again from the one that was meant. The epoch is
the journal's own at that time: a message before that offset which was written in a later one is not the message that was read, so the log was cut.
It also says how many messages behind that offset the cleaner had dropped by then: if it is more when the next batch is planned, messages went before they were read.
Settlements and deliveries belong to no single log; a stream of them is at a commit, by its sequence number.

Whoever reads goes through an `Origin`, and does not know where the data is. A planner is the origin of a directory; `remote` has the one that asks a server, where a planner then does this very work
on the server's directory. So nothing here needs Spark, and nothing is kept between two questions but what is in `Noted`, which whoever asks may bring along.
"""

from __future__ import annotations

import logging
import platform
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from penstock import argument
from penstock.engine.retention import ARCHIVE
from penstock.errors import CorruptJournal, InvalidArgument, MaintenanceFailed, QueueNotFound
from penstock.journal.kinds import MESSAGES
from penstock.journal.reading import JournalReader
from penstock.limits import OFFSET_MAX
from penstock.model.commands import DEFAULT_NAMESPACE
from penstock.model.damage import Damage
from penstock.pipeline.assembly import Assembly, Wanted
from penstock.pipeline.catalog import Catalog, LogEntry
from penstock.pipeline.options import EARLIEST, EVERYWHERE, LATEST, Options, Place
from penstock.pipeline.plan import PIECE_BYTES, PIECE_BYTES_SHARED, Bounds, Piece, pieces
from penstock.ranges import RangeSet
from penstock.wire import Narrowing, Noted

VERSION: Final = 1

#: Where a stream is: plain values, which Spark keeps in its checkpoint as JSON.
Offset = dict[str, Any]

_LOG: Final = logging.getLogger("penstock.pipeline")


class Origin(Protocol):
    """Where a table is read from."""

    def check(self) -> None:
        """Raise what is wrong with the options, as far as only the data knows it."""

    def pieces(self, narrowing: Narrowing) -> list[Any]:
        """What is to be read, for one task each; there is at least one."""

    def initial(self) -> Offset:
        """Where a stream begins that has no checkpoint."""

    def end(self, *, look: bool) -> Offset:
        """Up to where everything is synced: now, or as of the last look."""

    def latest(self, start: Offset, rows: int | None, final: Offset | None) -> Offset:
        """Where a batch ends that begins at `start`: at the end, or at the `final` one, or earlier if it would have more rows than that."""

    def between(self, start: Offset, end: Offset) -> list[Any]:
        """What is to be read for a batch of a stream, for one task each."""

    def read(self, piece: Any) -> Iterator[Any]:
        """The record batches of a piece: what a task does."""


class Planner:
    """The origin of a directory, for tables of any kind; of what each kind has of its own there is a class below.

    With `warnings` given, what would be said in the log is put there: whoever asked is elsewhere.
    """

    def __init__(self, options: Options, catalog: Catalog | None = None, noted: Noted | None = None) -> None:
        self._options = options
        self._catalog = catalog
        self.noted = noted or Noted()
        self.warnings: list[str] | None = None

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(self._options.path)
        return self._catalog

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get it too, and have no use for what is known here."""
        return {**self.__dict__, "_catalog": None}

    # --- which logs, and from where to where ---

    def check(self) -> None:
        """Raise what is wrong with the options, as far as only the data knows it."""
        options, logs = self._options, self.chosen()
        self._require_marked(logs)
        for name, place in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
            self._require_meant(place, logs, name)
            if isinstance(place, dict):
                for log in logs:
                    self._resolved(log, self._named(place, log, LATEST), name)

    def chosen(self) -> list[LogEntry]:
        """The logs that are meant; one that is named must be there."""
        catalog, options = self.catalog, self._options
        found = catalog.chosen(options.wants)
        missing = set(options.topics or ()) - {log.name for log in found}
        if missing and not options.fail_on_data_loss:
            self._warn(f"there is no queue or topic {', '.join(sorted(missing))} in {options.place}")
        elif missing or not _is_known(catalog, options.namespace):
            names = sorted(
                log.name for log in catalog.chosen(lambda space, _: options.namespace in (EVERYWHERE, space))
            )
            raise QueueNotFound(
                f"there is no queue or topic {', '.join(sorted(missing)) or 'at all'} in {options.place} (namespace {options.namespace}); "
                f"there are: {', '.join(names) or 'none'}"
            )
        return found

    def _named(self, place: Place, log: LogEntry, default: int) -> int:
        """The offset that an option gives for a log."""
        return place if isinstance(place, int) else place.get(self._name_of(log), default)

    def _name_of(self, log: LogEntry) -> str:
        return log.qualified if self._options.namespace == EVERYWHERE else log.name

    def _require_meant(self, place: Place | None, logs: list[LogEntry], name: str) -> None:
        known = {self._name_of(log) for log in logs}
        strange = set(place) - known if isinstance(place, dict) else set()
        if strange:
            raise InvalidArgument(
                f"{name} has offsets for {', '.join(sorted(strange))}, which are not read; read are {', '.join(sorted(known)) or 'none'}"
            )

    def _start(self, log: LogEntry, otherwise: int) -> int:
        """Where reading a log begins."""
        options = self._options
        if options.starting_us is not None:
            return self.catalog.offset_at(log.number, options.starting_us)
        offset = otherwise if options.starting is None else self._named(options.starting, log, EARLIEST)
        found = self._resolved(log, offset, "startingOffsets")
        if offset == found:
            gone = next(iter(self.catalog.cleaned(log.number, found)), range(0))
            if gone.start <= found < gone.stop:
                self.lost(
                    f"startingOffsets of {log.qualified} is {found}, and messages {found} to {gone.stop - 1} were cleaned"
                )
        return found

    def _stop(self, log: LogEntry) -> int:
        """Where reading a log ends."""
        options = self._options
        if options.ending_us is not None:
            return self.catalog.offset_at(log.number, options.ending_us)
        offset = LATEST if options.ending is None else self._named(options.ending, log, LATEST)
        return self._resolved(log, offset, "endingOffsets")

    def _resolved(self, log: LogEntry, offset: int, name: str) -> int:
        end = self.catalog.end(log.number)
        if offset == LATEST:
            return end
        if offset == EARLIEST:
            return self.catalog.earliest(log.number)
        if offset > end:
            raise InvalidArgument(f"{name}: {log.name} has no offset {offset} yet, its next one is {end}")
        return offset

    # --- what is gone ---

    def _warn(self, what: str) -> None:
        if self.warnings is None:
            _LOG.warning("%s", what)
        else:
            self.warnings.append(what)

    def lost(self, what: str) -> None:
        """Messages that should be there are not."""
        if self._options.fail_on_data_loss:
            raise CorruptJournal(
                f"{what}; to read the rest all the same, set the option failOnDataLoss to false"
            )
        self._warn(f"{what}; going on, as failOnDataLoss is false")

    def _require_marked(self, logs: list[LogEntry]) -> None:
        """Say so if the mark is gone, and what is known to be there may not be read without it."""
        catalog = self.catalog
        if catalog.unread is None:
            return
        last, ends = catalog.unread
        ranges = {log.qualified: range(catalog.end(log.number), ends.get(log.number, 0)) for log in logs}
        parts = [f"{name} {one.start} to {one.stop - 1}" for name, one in ranges.items() if one]
        offsets = f" (offsets {', '.join(parts)})" if parts else ""
        self.lost(
            f"the mark of the journal in {self._options.place} is gone, so commits {catalog.mark.sequence + 1} to {last}{offsets} "
            "cannot be read: open the directory once (penstock.open, or start its broker)"
        )

    def _require_whole(self, logs: dict[int, Wanted]) -> None:
        """Say so if the journal knows that something wanted was lost."""
        catalog = self.catalog
        missing = catalog.missing_segments()
        if missing:
            self.lost(f"segments {missing} of the journal in {self._options.place} are missing")
        for number, wanted in logs.items():
            lost = catalog.lost(number, wanted.start, wanted.stop)
            if lost:
                self.lost(
                    f"{len(lost)} messages of {wanted.name} were lost to damage (offsets {_parts(lost)})"
                )

    # --- a table, once ---

    def pieces(self, narrowing: Narrowing) -> list[Any]:
        """What is to be read, for one task each; there is at least one."""
        options, catalog = self._options, self.catalog
        catalog.refresh()
        logs = self.chosen()
        self._require_marked(logs)
        self._require_meant(options.starting, logs, "startingOffsets")
        self._require_meant(options.ending, logs, "endingOffsets")
        wanted = {
            log.number: self._wanted(log, narrowing) for log in logs if _passes(log, narrowing, options)
        }
        wanted = {number: one for number, one in wanted.items() if one.start < one.stop}
        self._require_whole(wanted)
        bounds = Bounds(catalog.mark, stop=None if options.as_of is None else options.as_of + 1)
        bounds.oldest_us, bounds.newest_us = narrowing.oldest_us, narrowing.newest_us
        return self._planned(wanted, bounds)

    def _wanted(self, log: LogEntry, narrowing: Narrowing) -> Wanted:
        start, stop = 0, OFFSET_MAX
        if self._options.table.kind is MESSAGES:
            start, stop = self._start(log, EARLIEST), self._stop(log)
        return Wanted(log.namespace, log.name, max(start, narrowing.first), min(stop, narrowing.behind))

    def _planned(self, wanted: dict[int, Wanted], bounds: Bounds) -> list[Any]:
        if not wanted or bounds.first >= bounds.stop:
            return [Piece([], {})]
        options = self._options
        # Over a network a task has its piece as a whole before it begins.
        most = PIECE_BYTES if options.called is None else PIECE_BYTES_SHARED
        found = pieces(
            self.catalog.segments(), options.table.kind, wanted, bounds, options.min_partitions, most
        )
        return list(found or [Piece([], {})])

    # --- reading ---

    def read(self, piece: Piece, noted: list[Damage] | None = None) -> Iterator[Any]:
        """What a task does. Damage is said, or only `noted`."""
        options = self._options
        if not Path(options.path).is_dir():
            raise InvalidArgument(
                f"{options.path} is not on {platform.node()}, where a task of this job runs: every worker must see the journal's directory "
                "at the same path; or have it served, and read it with `url`"
            )
        reader = JournalReader(options.path)
        assembly = Assembly(options.table, options.columns, piece.logs, reader)
        if options.table.kind is not MESSAGES:  # messages of a time are chosen by their offsets
            assembly.times = (options.starting_us, options.ending_us)
        told = 0
        frames = (frame for stretch in piece.stretches for frame in reader.stretch(stretch))
        for batch in assembly.batches(frames):
            yield batch
            if noted is None:
                told = self._tell(reader.damage, told)
        if noted is None:
            self._tell(reader.damage, told)
        else:
            noted += reader.damage

    def _tell(self, damage: list[Damage], told: int) -> int:
        for one in damage[told:]:
            self.lost(
                f"bytes {one.position} to {one.end} of segment {one.segment} in {self._options.place} are damaged"
            )
        return len(damage)

    # --- a stream ---

    def end(self, *, look: bool) -> Offset:
        """Up to where everything is synced: now, or as of the last look."""
        if look:
            self.catalog.refresh()
        return self._end()

    def latest(self, start: Offset, rows: int | None, final: Offset | None) -> Offset:
        """Where a batch ends that begins at `start`."""
        self.catalog.refresh()
        self._require_marked(self.catalog.chosen(self._options.wants))
        return self._limited(start, self._end() if final is None else final, rows)

    def _offset(self, **place: Any) -> Offset:
        """What is told of where a stream is: see `progress` for who reads the rest of it."""
        return {
            "penstock": VERSION,
            "path": self._options.place,
            "table": self._options.table.name,
            "reader": self._options.reader,
            **place,
        }

    def _require_reached(self, reached: bool, epoch: int) -> None:
        """A batch that was planned before is planned again, to the same end. Less of it would be skipped for good, so the end must be there.

        The mark is synced only at a clean end: after a power cut it is older than the truth until the directory is opened, and what is behind it may not be read yet.
        """
        if not reached and self.catalog.mark.epoch <= epoch:
            raise MaintenanceFailed(
                f"{self._options.place} does not know yet that everything is synced which this query has planned to read, as after a power cut: "
                "open it once (penstock.open, or start its broker), then start the query again"
            )
        if not reached:
            self.lost(
                f"the journal in {self._options.place} was cut before what this query had planned to read"
            )

    @abstractmethod
    def initial(self) -> Offset:
        """Where a stream begins that has no checkpoint."""

    @abstractmethod
    def between(self, start: Offset, end: Offset) -> list[Any]:
        """What is to be read for a batch of a stream, for one task each."""

    @abstractmethod
    def _end(self) -> Offset:
        """Up to where everything is synced, as of the last look."""

    @abstractmethod
    def _limited(self, start: Offset, end: Offset, rows: int | None) -> Offset:
        """Where a batch ends that begins at `start`: at `end`, or earlier if it would have more rows than that."""


def planner(options: Options, catalog: Catalog | None = None, noted: Noted | None = None) -> Planner:
    """The planner of a table."""
    kind = MessagePlanner if options.table.kind is MESSAGES else EventPlanner
    return kind(options, catalog, noted)


def _is_known(catalog: Catalog, namespace: str) -> bool:
    """Whether a namespace is one, or may be empty yet."""
    return namespace in (EVERYWHERE, DEFAULT_NAMESPACE) or any(
        log.namespace == namespace for log in catalog.logs.values()
    )


def _parts(ranges: RangeSet) -> str:
    """The first ranges of a set, for people."""
    return ", ".join(f"{part.start} to {part.stop - 1}" for part in list(ranges)[:5])


def _passes(log: LogEntry, narrowing: Narrowing, options: Options) -> bool:
    named = {"namespace": log.namespace, options.table.log: log.name}
    if unknown := narrowing.names.keys() - named.keys():
        raise InvalidArgument(
            f"logs are narrowed by {' and '.join(named)}, not by {argument.quoted(min(unknown))}"
        )
    return all(named[column] in values for column, values in narrowing.names.items())


class MessagePlanner(Planner):
    """Messages, by log and offset."""

    def initial(self) -> Offset:
        catalog, logs = self.catalog, self.chosen()
        self._require_meant(self._options.starting, logs, "startingOffsets")
        return self._place(
            {log.qualified: [log.number, catalog.mark.epoch, self._start(log, LATEST)] for log in logs}
        )

    def _place(self, logs: dict[str, list[int]]) -> Offset:
        """A stream's offset, with what was cleaned by now of what it has not read."""
        cleaned = {
            name: len(self.catalog.cleaned(number, offset)) for name, (number, _, offset) in logs.items()
        }
        known = {name: count for name, count in cleaned.items() if count}
        return self._offset(logs=logs, **({"cleaned": known} if known else {}))

    def _end(self) -> Offset:
        catalog = self.catalog
        return self._offset(
            logs={
                log.qualified: [log.number, catalog.mark.epoch, catalog.end(log.number)]
                for log in catalog.chosen(self._options.wants)
            }
        )

    def _limited(self, start: Offset, end: Offset, rows: int | None) -> Offset:
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
        return self._place(taken)

    def _begin(self, name: str, start: Offset, place: list[int]) -> int:
        """Where a log is to be read from. One that came later, or again, is read from its beginning."""
        known = start["logs"].get(name)
        if known is None or known[0] != place[0]:
            return self.catalog.earliest(place[0])
        return int(known[2])

    def _require_there(self, start: Offset, end: Offset) -> None:
        """Say so if what was read before is not what is there now."""
        catalog = self.catalog
        for name, (number, epoch, offset) in start["logs"].items():
            now = end["logs"].get(name)
            if now is None or now[0] != number:
                if (name, number) not in self.noted.gone:
                    self.noted.gone.add((name, number))
                    again = "" if now is None else " and made again"
                    self.lost(f"{name} was deleted{again} since the checkpoint")
            elif self.noted.epoch == catalog.mark.epoch or catalog.unread is not None:
                continue  # messages are replaced by others only in a new life of the journal
            elif offset > now[2] and catalog.mark.epoch > epoch:
                self.lost(
                    f"{name} was cut: the checkpoint is at offset {offset}, and the log ends at {now[2]}"
                )
                start["logs"][name] = [number, catalog.mark.epoch, now[2]]
            elif offset and (catalog.reader.epoch_of(number, offset - 1) or 0) > epoch:
                self.lost(f"{name} was cut below offset {offset}, and written again since the checkpoint")
        self.noted.epoch = catalog.mark.epoch

    def between(self, start: Offset, end: Offset) -> list[Any]:
        catalog = self.catalog
        wanted = {}
        for name, place in end["logs"].items():
            namespace, _, log = name.partition("/")
            begin = self._begin(name, start, place)
            if begin < place[2]:
                wanted[place[0]] = Wanted(namespace, log, begin, place[2])
            self._require_unread(name, start, place)
        if any(catalog.end(number) < one.stop for number, one in wanted.items()):
            catalog.refresh()  # the batch was planned by an earlier process, which had seen more
            for number, epoch, stop in end["logs"].values():
                if number in catalog.logs and number in wanted:
                    self._require_reached(catalog.end(number) >= stop, epoch)
        if wanted:
            self._require_whole(wanted)
        return self._planned(wanted, Bounds(catalog.mark))

    def _require_unread(self, name: str, start: Offset, end: list[int]) -> None:
        """Say so if messages were cleaned before the stream came to them. Of a new log, it reads all."""
        log = self.catalog.logs.get(end[0])
        if self._options.reader == ARCHIVE and (log is None or not log.until_archived):
            return  # such a log does not wait for the archive
        number, _, offset = start["logs"].get(name, [end[0], 0, 0])
        gone = self.catalog.cleaned(number, offset)
        count = len(gone) - start.get("cleaned", {}).get(name, 0)
        if count > 0 and number == end[0]:
            self.lost(
                f"{count} messages of {name} were cleaned before this query has read them (offsets {_parts(gone)})"
            )


class EventPlanner(Planner):
    """What happened to messages, by commit."""

    def initial(self) -> Offset:
        catalog, options = self.catalog, self._options
        self.chosen()
        if options.starting_us is not None:
            return self._offset(sequence=catalog.sequence_at(options.starting_us), epoch=catalog.mark.epoch)
        sequence = 0 if options.starting == EARLIEST else catalog.mark.sequence
        return self._offset(sequence=sequence, epoch=catalog.mark.epoch)

    def _end(self) -> Offset:
        return self._offset(sequence=self.catalog.mark.sequence, epoch=self.catalog.mark.epoch)

    def _limited(self, start: Offset, end: Offset, rows: int | None) -> Offset:
        catalog, first = self.catalog, int(start["sequence"])
        if first > end["sequence"]:
            if catalog.mark.epoch <= start["epoch"]:
                return start  # the mark is older than the truth: see `journal.mark`
            self.lost(
                f"the journal was cut: the checkpoint is at commit {first}, and it ends at {end['sequence']}"
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
        if gone is not None and gone != self.noted.cleaned:
            self.noted.cleaned = gone
            self.lost(
                f"what happened in commits {gone[0]} to {gone[1]} was cleaned before it was read (archive, or read more often)"
            )

    def between(self, start: Offset, end: Offset) -> list[Any]:
        catalog = self.catalog
        if start["sequence"] < end["sequence"] and catalog.mark.sequence < end["sequence"]:
            catalog.refresh()
            self._require_reached(catalog.mark.sequence >= end["sequence"], end["epoch"])
        if not start["sequence"]:
            self._require_whole({})
        logs = {
            log.number: Wanted(log.namespace, log.name, 0, OFFSET_MAX)
            for log in catalog.chosen(self._options.wants)
        }
        bounds = Bounds(catalog.mark, start["sequence"] + 1, end["sequence"] + 1)
        return self._planned(logs, bounds)
