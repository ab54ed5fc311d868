"""What became of a message: its timeline, from its publication through dead letters and redrives to its end.

Theory of operation
-------------------
Everything that happens to messages passes here as events, once, under the broker's lock, and is put at the end of a list: an event as it is, a publication
without what it says, and what takes the short way (`express`) as one small tuple. That costs per event, however many messages it
mentions. Nothing is indexed: publishing is done a million times for each time that somebody asks, so who asks pays, with one pass over
the list. A message is known by its log and offset once its publication has been passed; ranges are asked by arithmetic.

The list is cut into chunks, and the oldest chunk goes as a whole when there are too many rows or it is too old, so forgetting costs nothing per event
either. What always holds: the events of one unit are in one chunk; there are never more than `rows_max` rows, unless the newest unit alone has
more; what goes for its age is older than `age_us`, and what stays is not, to within one `PARTS`th of it. Age counts when something is noted: where nothing happens,
nothing is forgotten.

It is kept in memory because it is an answer to "where is my message?" asked while one looks, not a record: the journal has all of it, for as long as it
has the message, but finding it there means reading segments, and a cleaned message is no more in it. A crash forgets it, and so does closing.

Copies. A dead letter is a new message, and so is one that was redriven, each with a header that names the id of the first of them. That finds the copies of a
first message. The copies of a copy are found by the unit: what dies or goes back is settled in the same unit in which its copy is published, right after it.

What is not recorded leaves no trace here: a lease that ended by itself is seen by the next one, whose attempt is higher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.clock import SECOND_US, to_datetime
from penstock.engine.change import Declaration
from penstock.engine.events import (
    Action,
    Declared,
    Event,
    Leased,
    Noted,
    Outcome,
    Positioned,
    Produced,
    Published,
    Scheduled,
    Settled,
)
from penstock.engine.letter import ORIGIN_ID
from penstock.model.stats import Step

NameOf = Callable[[int], tuple[str, str] | None]
"""The namespace and name of a log, by its number; None if there is no such log any more."""

#: Messages that are mentioned. One by one they take about 150 bytes each, in batches next to nothing.
ROWS_MAX: Final = 200_000

#: Who asks for a message of yesterday asks the journal.
AGE_US: Final = 24 * 3600 * SECOND_US

#: So many chunks share the rows and the age: what goes at once, and how exact the age is.
PARTS: Final = 64

#: An error counts as one row more for so many characters: the bound in rows is to bound the memory too.
ERROR_ROW_CHARS: Final = 200

#: An id has 19 digits. What somebody else wrote into that header may be longer, and is compared so far.
ORIGIN_CHARS_MAX: Final = 20

#: How outcomes are told to users, where that is not the outcome's own name.
TOLD: Final = {Outcome.RETRY: "nacked", Outcome.DEAD: "dead-lettered"}

_OF_NO_MESSAGE: Final = frozenset({Positioned, Scheduled, Produced, Noted})

_MOVED: Final = (Outcome.DEAD, Outcome.REDRIVEN)
#: What a tuple of one message leaves out: consumer, attempt, outcome, error, due.
_REST: Final = (None, 1, None, None, None)

_MOVED_WORDS: Final = ("dead-lettered", "redriven")


class _Publication(NamedTuple):
    """What is kept of a publication; `origins` are the ids in its headers, by row."""

    log: int
    first: int
    ids: Sequence[int]
    stamps: int | list[int]
    origins: dict[int, str] | None


class _Unit(NamedTuple):
    """The events of a unit in which there are copies. All other events stand alone: nobody asks what happened beside them."""

    parts: list[Any]


class _Chunk:
    """Entries in the order in which they happened, and the names of their logs.

    An entry is a `Leased`, a `Settled`, a `_Publication`, a `_Unit`, or of one message a tuple, which is smaller and quicker to pass::

        (log, offset, id, time)                                                     published
        (log, offset, group, time)                                                  acked at the first attempt
        (log, offset, group, time, consumer)                                        leased for the first time
        (log, offset, group, time, consumer, attempt)                               leased
        (log, offset, group, time, consumer, attempt, outcome, error, due)          settled
    """

    __slots__ = ("began_us", "entries", "extra", "names")

    def __init__(self, began_us: int) -> None:
        self.began_us = began_us
        self.entries: list[Any] = []
        self.extra = 0  # rows beyond one for each entry
        self.names: dict[int, tuple[str, str]] = {}

    @property
    def rows(self) -> int:
        return len(self.entries) + self.extra


# --- taking in ---


class Tracer:
    """What happened lately, by message. The broker's lock guards it.

    >>> tracer = Tracer()
    >>> tracer.published(1, 0, 77, 1_767_225_600_000_000)
    >>> tracer.leased(1, "default", 0, "worker-1", 1_767_225_601_000_000)
    >>> [(step.what, step.queue, step.consumer) for step in tracer.timeline(77, lambda _: ("default", "orders"), "default")]
    [('published', 'orders', None), ('leased', 'orders', 'worker-1')]
    """

    def __init__(self, rows_max: int = ROWS_MAX, age_us: int = AGE_US) -> None:
        self._rows_max = rows_max
        self._age_us = age_us
        self._chunk_rows = max(1, rows_max // PARTS)
        self._chunk_us = max(1, age_us // PARTS)
        self._older: deque[_Chunk] = deque()
        self._older_rows = 0
        self._chunk = _Chunk(0)
        # Derived, for those who take the short way: the newest chunk's entries, and when it is over.
        self._entries = self._chunk.entries
        self._full_at = self._chunk_rows
        self._until_us = 0

    @property
    def rows(self) -> int:
        """How many messages are mentioned, each as often as it is."""
        return self._older_rows + self._chunk.rows

    def published(self, log: int, offset: int, id: int, time_us: int) -> None:
        """One plain message was published."""
        if time_us >= self._until_us or len(self._entries) >= self._full_at:
            self._turn(time_us)
        self._entries.append((log, offset, id, time_us))

    def leased(self, log: int, group: str, offset: int, consumer: str | None, time_us: int) -> None:
        """One message was handed out, for the first time."""
        if time_us >= self._until_us or len(self._entries) >= self._full_at:
            self._turn(time_us)
        self._entries.append((log, offset, group, time_us, consumer))

    def acked(self, log: int, group: str, offset: int, time_us: int) -> None:
        """One message was acknowledged, at its first attempt."""
        if time_us >= self._until_us or len(self._entries) >= self._full_at:
            self._turn(time_us)
        self._entries.append((log, offset, group, time_us))

    def note(self, events: Sequence[Event], now_us: int, name_of: NameOf) -> None:
        """Take in what was recorded as one unit."""
        kept: list[Any] = []
        rows = 0
        copies = False
        error: str | None = None
        for event in events:
            kind = type(event)
            if kind is Published:
                entry = _without_content(event)  # type: ignore[arg-type]
                copies = copies or (type(entry) is _Publication and entry[4] is not None)
                rows += len(event.batch.ids)  # type: ignore[union-attr]
                kept.append(entry)
            elif kind in _OF_NO_MESSAGE:
                continue
            elif kind is Declared:
                rows += event.action == Action.DELETE  # type: ignore[union-attr]  # its name is kept: see `_learn`
            else:
                rows += len(event.offsets)  # type: ignore[union-attr]
                # Among copies it may be what they were made for: see `_Search._follow`.
                kept.append(event if copies or len(event.offsets) != 1 else _alone(event))  # type: ignore[union-attr,arg-type]
                if kind is Settled and event.error is not error:  # type: ignore[union-attr]
                    error = event.error  # type: ignore[union-attr]  # many that failed share one
                    rows += len(error or "") // ERROR_ROW_CHARS
        if rows:
            self._add([_Unit(kept)] if copies else kept, rows, now_us)
            names = self._chunk.names
            for event in events:
                if event.log not in names:
                    self._learn(event, name_of)

    def _add(self, entries: list[Any], rows: int, now_us: int) -> None:
        if now_us >= self._until_us or len(self._entries) + rows > self._full_at:
            self._turn(now_us)
        self._entries += entries
        extra = rows - len(entries)
        self._chunk.extra += extra
        self._full_at -= extra
        if rows > self._chunk_rows:
            self._forget(now_us, self._chunk.rows)

    def _learn(self, event: Event, name_of: NameOf) -> None:
        """Remember what a log is called, for when it is gone. The last that is heard of one says it too: the short way tells nobody."""
        found = name_of(event.log)
        if found is None and isinstance(event, Declared):
            declared = msgspec.msgpack.decode(event.body, type=Declaration)
            found = declared.namespace, declared.name
        if found is not None:
            self._chunk.names[event.log] = found

    # --- forgetting ---

    def _turn(self, now_us: int) -> None:
        """Begin a chunk."""
        done = self._chunk
        if done.entries or done.names:
            self._older.append(done)
            self._older_rows += done.rows
        self._chunk = _Chunk(now_us)
        self._entries = self._chunk.entries
        self._full_at = self._chunk_rows
        self._until_us = now_us + self._chunk_us
        self._forget(now_us, self._chunk_rows)

    def _forget(self, now_us: int, rows: int) -> None:
        """Let go what is too old, and what stands in the way of so many rows."""
        older = self._older
        while older and (
            self._older_rows + rows > self._rows_max or older[0].began_us + self._age_us < now_us
        ):
            self._older_rows -= older.popleft().rows

    # --- asking ---

    def timeline(self, id: int, name_of: NameOf, namespace: str) -> list[Step]:
        """What is known of a message and of its later copies, in order; nothing if it is another namespace's, or too long ago."""
        chunks = [*self._older, self._chunk]
        found = _Search(id, _Names(chunks, name_of, namespace))
        for chunk in chunks:
            found.read(chunk.entries)
        return found.steps


def _without_content(event: Published) -> tuple[Any, ...]:
    log, first, batch = event
    if batch.headers is None:
        if len(batch.ids) == 1:
            return (log, first, batch.ids[0], _at(batch.timestamp_us, 0))
        return _Publication(log, first, batch.ids, batch.timestamp_us, None)
    origins = {
        row: headers[ORIGIN_ID][:ORIGIN_CHARS_MAX]
        for row, headers in enumerate(batch.headers)
        if headers and ORIGIN_ID in headers
    }
    return _Publication(log, first, batch.ids, batch.timestamp_us, origins or None)


def _alone(event: Leased | Settled) -> tuple[Any, ...]:
    """What happened to one message."""
    offset, attempt = event.offsets[0], _at(event.attempts, 0)
    if type(event) is Leased:
        return (event.log, offset, event.group, event.time_us, event.consumer, attempt)
    log, group, _, outcome, _, due, consumer, error, time_us = event  # type: ignore[misc]
    return (log, offset, group, time_us, consumer, attempt, outcome, error, _at(due, 0))


# --- looking up ---


class _Names:
    """What logs of one namespace are called: by those who know the present, or as it was."""

    def __init__(self, chunks: list[_Chunk], name_of: NameOf, namespace: str) -> None:
        self._chunks = chunks
        self._name_of = name_of
        self._namespace = namespace
        self._known: dict[int, str | None] = {}

    def __getitem__(self, log: int) -> str | None:
        if log not in self._known:
            found = self._name_of(log) or self._as_it_was(log)
            self._known[log] = found[1] if found is not None and found[0] == self._namespace else None
        return self._known[log]

    def _as_it_was(self, log: int) -> tuple[str, str] | None:
        return next((c.names[log] for c in reversed(self._chunks) if log in c.names), None)


class _Search:
    """One pass over what happened, in order. What a message was published as is passed before anything else of it."""

    def __init__(self, id: int, names: _Names) -> None:
        self.steps: list[Step] = []
        self._id = id
        self._text = str(id)
        self._names = names
        # Where it and its copies are, by log and offset: the id there, and what the headers of a copy say.
        self._places: dict[int, dict[int, tuple[int, str]]] = {}

    def read(self, entries: list[Any]) -> None:
        """What concerns nobody here, which is nearly all, is passed without a call."""
        wanted, places = self._id, self._places
        for entry in entries:
            kind = type(entry)
            if kind is tuple:
                if entry[2] == wanted:
                    self._begin(entry[0], entry[1], wanted, entry[3], None)
                elif entry[0] in places and entry[1] in places[entry[0]]:
                    self._short(entry)
            elif kind is _Publication:
                if wanted in entry[2]:
                    self._begin_row(entry, entry[2].index(wanted))
            elif kind is _Unit:
                if self._concerns(entry[0]):
                    self._unit(entry[0])
            elif entry[0] in places:
                for offset in places[entry[0]]:
                    if offset in entry[2]:
                        self._event(entry)
                        break

    def _concerns(self, parts: list[Any]) -> bool:
        wanted, text, places = self._id, self._text, self._places
        for part in parts:
            kind = type(part)
            if kind is tuple:
                if part[2] == wanted or (part[0] in places and part[1] in places[part[0]]):
                    return True
            elif kind is _Publication:
                if wanted in part[2] or (part[4] is not None and text in part[4].values()):
                    return True
            elif part[0] in places:
                for offset in places[part[0]]:
                    if offset in part[2]:
                        return True
        return False

    def _unit(self, parts: list[Any]) -> None:
        before = len(self.steps)
        for number, part in enumerate(parts):
            if type(part) is _Publication:
                for row in self._rows_of_mine(part):
                    self._begin_row(part, row)
            elif type(part) is Settled and part.log in self._places:
                for offset in self._event(part):
                    self._follow(parts, number, offset)
            else:
                self.read([part])
        # It all happened at once, and is recorded the other way round: a reader expects the copy after what it was copied for.
        self.steps[before:] = sorted(self.steps[before:], key=lambda step: step.what not in _MOVED_WORDS)

    def _rows_of_mine(self, publication: _Publication) -> list[int]:
        """The message itself, and what names it as the first."""
        rows = [row for row, origin in (publication.origins or {}).items() if origin == self._text]
        if self._id in publication.ids:
            rows.append(publication.ids.index(self._id))
        return rows

    def _follow(self, parts: list[Any], number: int, offset: int) -> None:
        """The message at an offset was moved by an event: go on with its copy, which was published just before.

        Copies are in the order of what they are copies of. Where one could not be made they are known by their headers, which is less: the same
        message may have died in several groups.
        """
        event: Settled = parts[number]
        _, origin = self._places[event.log][offset]
        copies = _copies_before(parts, number)
        if len(copies) == len(event.offsets):
            exact = copies[event.offsets.index(offset)]
            copies = [exact] if _origin(*exact) == origin else copies
        for publication, row in copies:
            if _origin(publication, row) == origin:
                self._begin_row(publication, row)

    # --- what is found ---

    def _begin_row(self, publication: _Publication, row: int) -> None:
        origin = (publication.origins or {}).get(row)
        stamp = _at(publication.stamps, row)
        self._begin(publication.log, publication.first + row, publication.ids[row], stamp, origin)

    def _begin(self, log: int, offset: int, id: int, time_us: int, origin: str | None) -> None:
        queue = self._names[log]
        if queue is None or offset in self._places.get(log, ()):
            return
        self._places.setdefault(log, {})[offset] = id, str(id) if origin is None else origin
        self.steps.append(Step("published", to_datetime(time_us), queue, None, None, None, None, None, id))

    def _short(self, entry: tuple[Any, ...]) -> None:
        log, offset, group, time_us, *rest = entry
        whole: list[Any] = rest + list(_REST[len(rest) :])
        consumer, attempt, outcome, error, due_us = whole
        what = "acked" if not rest else "leased" if outcome is None else told(outcome)
        self._add(
            log, offset, what, time_us, group=group, attempt=attempt, consumer=consumer, error=error, due_us=due_us
        )  # fmt: skip

    def _event(self, event: Leased | Settled) -> list[int]:
        """Which of the messages an event moved to another log."""
        moved: list[int] = []
        for offset in [found for found in self._places[event.log] if found in event.offsets]:
            row = event.offsets.index(offset)
            attempt = _at(event.attempts, row)
            if isinstance(event, Leased):
                self._add(
                    event.log, offset, "leased", event.time_us, group=event.group, attempt=attempt, consumer=event.consumer
                )  # fmt: skip
                continue
            self._add(
                event.log, offset, told(event.outcome), event.time_us, group=event.group, attempt=attempt,
                consumer=event.consumer, error=event.error, due_us=_at(event.due, row),
            )  # fmt: skip
            if event.outcome in _MOVED:
                moved.append(offset)
        return moved

    def _add(
        self, log: int, offset: int, what: str, time_us: int, *, group: str, attempt: int | None, consumer: str | None,
        error: str | None = None, due_us: int | None = None,
    ) -> None:  # fmt: skip
        due = None if due_us is None else to_datetime(due_us)
        known, _ = self._places[log][offset]
        queue = self._names[log] or ""  # it has a place, so it has a name
        self.steps.append(
            Step(what, to_datetime(time_us), queue, group, consumer, attempt, error, due, known)
        )


def told(outcome: int) -> str:
    """The word for an outcome.

    >>> told(Outcome.RETRY), told(Outcome.ACKED), told(99)
    ('nacked', 'acked', 'outcome-99')
    """
    try:
        found = Outcome(outcome)
    except ValueError:  # of a later version of Penstock
        return f"outcome-{outcome}"
    return TOLD.get(found) or found.name.lower().replace("_", "-")


def _copies_before(parts: list[Any], number: int) -> list[tuple[_Publication, int]]:
    """The copies that were published for an event, in order."""
    start = number
    while start and type(parts[start - 1]) is _Publication:
        start -= 1
    return [(part, row) for part in parts[start:number] for row in part.origins or ()]


def _origin(publication: _Publication, row: int) -> str | None:
    return (publication.origins or {}).get(row)


def _at(column: Any, row: int) -> Any:
    """The value of a row, of a column that is one value for all or one for each."""
    return column[row] if isinstance(column, list) else column
