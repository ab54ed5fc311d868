"""`audit`: is every message that was published pending, settled, dead-lettered, expired, or recorded as cleaned, in every group? And nothing twice, and in order?

Theory of operation
-------------------
Two sides are compared: the tables (`messages`, `settlements`, `deliveries`), and what the broker's own state says (`replica.Facts`). Neither is believed before the other agrees.

Offsets come in runs, so nothing is joined row by row. Rows become sets of runs where they are read (`gathering`): of each log the offsets that are stored, of each group
those that ended, by outcome; the driver puts the sets together and compares them with NumPy. A run takes 16 bytes of the driver's memory, however many messages it has; at
the worst, when nothing is next to anything, that is 16 bytes for a message. Only where order by key is promised, and where dead letters are, rows meet rows.

What is settled twice is a breach only if the group was not sent elsewhere in between. So settlements are sorted by *era*, the time between two such turns of a group; at a commit that has a turn nobody can say what came
first, so those commits are eras by themselves, in which nothing is compared. Where the cleaner has dropped what happened, turns may be missing: an era ends there too.

Kinds of breaches, see `KINDS`. What cannot be proven is never said: every kind is a contradiction between things that are on record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from penstock.engine import letter
from penstock.errors import InvalidArgument, QueueNotFound
from penstock.limits import OFFSET_MAX
from penstock.names import dead_letter_name, is_dead_letter_name
from penstock.pipeline import gathering, noting
from penstock.pipeline.gathering import Found, GatheringSource, Key, Turns
from penstock.pipeline.options import EVERYWHERE
from penstock.pipeline.replica import Facts, LogFacts, Replica
from penstock.pipeline.runs import EMPTY, Runs, between, joined, of_flat, runs_of

#: What can be wrong, and what it means.
KINDS: Final = {
    "lost": "an offset that was given to a message is neither stored nor recorded as cleaned",
    "damaged": "the journal knows that these messages were lost to damage",
    "missing-commits": "commits, or whole segments, are gone though nobody dropped them",
    "cleaned-unsettled": "a message was cleaned away that a group had not settled",
    "not-recorded": "the broker takes a message as settled in a group, and no settlement says so: nobody will get it",
    "not-settled": "a settlement is recorded, and the broker does not know of it: the message will be delivered again",
    "dead-letter-lost": "a message was settled as dead, and there is no dead letter of it",
    "offset-twice": "two messages have the same offset",
    "id-twice": "two messages have the same id",
    "settled-twice": "a message was settled for good twice in a group that was not sent elsewhere in between",
    "dead-letter-twice": "one failure has two dead letters",
    "no-message": "a settlement of an offset that was never given to a message",
    "unknown-log": "settlements of a log that does not exist",
    "order": "a message was handed out before an earlier one of its key had ended",
}

#: Outcomes after which a message goes on.
PASSING: Final = frozenset({"retry", "returned", "unseen"})

#: Of each breach so many offsets are named; all are counted.
NAMED_MAX: Final = 20

#: In the place of a commit: a message that has not ended yet.
NEVER: Final = OFFSET_MAX

Progress = Callable[[str, int, int], None]


class Breach(msgspec.Struct, frozen=True):
    """Something that must not be: what, where, which offsets (first and last of each run, the first ones), and the ids of the messages that are stored of them."""

    kind: str
    namespace: str
    log: str
    group: str | None
    count: int
    offsets: list[tuple[int, int]]
    ids: list[int] = []
    detail: str = ""

    @property
    def place(self) -> tuple[str, str, str, str | None]:
        return self.kind, self.namespace, self.log, self.group

    def __str__(self) -> str:
        group = "" if self.group is None else f", group {self.group}"
        parts = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in self.offsets)
        named = (
            f" (offsets {parts}{', …' if sum(b - a + 1 for a, b in self.offsets) < self.count else ''})"
            if parts
            else ""
        )
        where = f"{self.namespace}/{self.log}{group}: " if self.log else ""
        return f"{self.kind}: {where}{self.count}{named}: {self.detail or KINDS[self.kind]}"


class GroupCount(msgspec.Struct, frozen=True):
    """One group of one log. A group of None stands for a log as such, or for what was removed for everybody.

    Each message that was `published` is `stored`, or was `cleaned` on purpose, or is `lost`.

    `settled` is what the broker's state says; `outcomes` counts the settlements that are on record, which may be fewer: they are dropped with their segments.
    """

    namespace: str
    log: str
    group: str | None
    published: int
    stored: int
    cleaned: int
    lost: int
    pending: int
    settled: int
    outcomes: dict[str, int]


class Audit(msgspec.Struct, frozen=True):
    """What an audit found. `sequence` is the commit as of which everything is said; `notes` say what could not be looked at."""

    sequence: int | None
    messages: int
    settlements: int
    groups: list[GroupCount]
    breaches: list[Breach]
    notes: list[str]

    @property
    def ok(self) -> bool:
        return not self.breaches


class Tables(Protocol):
    """Where rows come from: gathered, or some columns of a table, of all logs or of some (namespace, name)."""

    def messages(self) -> dict[Key, Found]: ...

    def settlements(self, turns: Turns) -> dict[Key, Found]: ...

    def read(
        self, table: str, columns: str, logs: Iterable[tuple[str, str]] | None = None
    ) -> DataFrame | None:
        """None if there is no such table or column."""


# --- the public functions ---


def audit(
    messages: DataFrame,
    settlements: DataFrame,
    deliveries: DataFrame | None = None,
    *,
    facts: Facts | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audit tables, of a directory or of an archive, against what a broker's state says (`Replica(path).facts()`), if that is known.

    Without `facts` only the tables can be held against themselves: what is there twice, and settlements of offsets beyond the last message.

    >>> # from penstock.pipeline.audit import audit
    >>> # found = audit(spark.read.parquet("lake/messages"), spark.read.parquet("lake/settlements"))
    >>> # for breach in found.breaches: print(breach)
    """
    tables = _Frames({"messages": messages, "settlements": settlements, "deliveries": deliveries})
    return _Audit(tables, facts, progress).conclude(lambda found: found)


def audit_directory(
    spark: SparkSession,
    path: str | Path,
    *,
    namespace: str = EVERYWHERE,
    topics: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audit a broker's directory, of all namespaces or of one, of all logs or of some. A broker may be at work in it meanwhile.

    What looks wrong is looked at once more, from the start, and believed only if it is still wrong then.
    """
    names = None if topics is None else frozenset(topics)
    first = _look(spark, path, namespace, names, progress)
    if first.ok:
        return first
    second = _look(spark, path, namespace, names, progress)
    known = {breach.place for breach in first.breaches}
    return msgspec.structs.replace(second, breaches=[one for one in second.breaches if one.place in known])


def _look(
    spark: SparkSession,
    path: str | Path,
    namespace: str,
    names: frozenset[str] | None,
    progress: Progress | None,
) -> Audit:
    def wanted(space: str, name: str) -> bool:
        return namespace in (EVERYWHERE, space) and (names is None or name in names)

    if progress is not None:
        progress("the broker's state", 0, 1)
    replica = Replica(path)
    facts = replica.facts(wanted)
    missing = (names or frozenset()) - {log.name for log in facts.logs}
    if missing:
        raise QueueNotFound(
            f"there is no queue or topic {', '.join(sorted(missing))} in {path} (namespace {namespace})"
        )
    if not facts.logs:
        return Audit(facts.sequence, 0, 0, [], _of_the_journal(facts), [])
    tables = _InPlace(spark, path, namespace, names, facts.sequence)
    return _Audit(tables, facts, progress).conclude(replica.again)


class _Frames:
    """Tables as data frames."""

    def __init__(self, frames: Mapping[str, DataFrame | None]) -> None:
        self._frames = frames

    def messages(self) -> dict[Key, Found]:
        return gathering.messages_of(self._required("messages", gathering.MESSAGE_COLUMNS))

    def settlements(self, turns: Turns) -> dict[Key, Found]:
        return gathering.settlements_of(self._required("settlements", gathering.SETTLEMENT_COLUMNS), turns)

    def _required(self, table: str, columns: str) -> DataFrame:
        found = self.read(table, columns)
        if found is None:
            raise InvalidArgument(f"an audit needs these columns of {table}: {columns}")
        return found

    def read(
        self, table: str, columns: str, logs: Iterable[tuple[str, str]] | None = None
    ) -> DataFrame | None:
        frame = self._frames[table]
        names = columns.split(",")
        if frame is None or not set(names) <= set(frame.columns):
            return None
        if logs is not None:
            frame = frame.where(_among(logs, "topic" if table == "messages" else "log"))
        return frame.select(*names)


class _InPlace:
    """Tables of a directory, as of one commit; only the columns that are wanted are read."""

    def __init__(
        self,
        spark: SparkSession,
        path: str | Path,
        namespace: str,
        names: frozenset[str] | None,
        sequence: int,
    ) -> None:
        self._spark = spark
        self._path = str(path)
        self._namespace = namespace
        self._names = names
        self._sequence = sequence

    def messages(self) -> dict[Key, Found]:
        return self._gathered("messages", gathering.MESSAGE_COLUMNS)

    def settlements(self, turns: Turns) -> dict[Key, Found]:
        return self._gathered(
            "settlements", gathering.SETTLEMENT_COLUMNS, turns=msgspec.json.encode(turns).decode()
        )

    def _gathered(self, table: str, columns: str, **more: str) -> dict[Key, Found]:
        self._spark.dataSource.register(GatheringSource)
        options = {**self._options(table, columns, self._names), **more}
        return gathering.put_together(
            self._spark.read.format(GatheringSource.name()).options(**options).load(self._path)
        )

    def _options(self, table: str, columns: str, names: Iterable[str] | None) -> dict[str, Any]:
        found = {
            "table": table, "columns": columns, "namespace": self._namespace, "failOnDataLoss": "false",
            "asOf": max(self._sequence, 1),
        }  # fmt: skip
        if names is not None:  # a pattern: a log that is deleted meanwhile is no mistake
            found["topicPattern"] = "|".join(map(re.escape, sorted(names)))
        return found

    def read(
        self, table: str, columns: str, logs: Iterable[tuple[str, str]] | None = None
    ) -> DataFrame | None:
        named = None if logs is None else sorted(logs)
        names = self._names if named is None else {name for _, name in named}
        frame = (
            self._spark.read.format("penstock")
            .options(**self._options(table, columns, names))
            .load(self._path)
        )
        if named is not None and self._namespace == EVERYWHERE:
            frame = frame.where(_among(named, "topic" if table == "messages" else "log"))
        return frame


def _among(logs: Iterable[tuple[str, str]], column: str) -> Column:
    """Whether a row is of one of some logs."""
    by_space: dict[str, list[str]] = {}
    for namespace, name in logs:
        by_space.setdefault(namespace, []).append(name)
    found = F.lit(False)
    for namespace, names in by_space.items():
        found = found | ((F.col("namespace") == namespace) & F.col(column).isin(names))
    return found


# --- comparing ---


class _Audit:
    """One look at some tables."""

    def __init__(self, tables: Tables, facts: Facts | None, progress: Progress | None) -> None:
        self._tables = tables
        self._facts = facts
        self._progress = progress or (lambda _what, _done, _of: None)
        self._breaches: list[Breach] = []
        self._notes: list[str] = []
        self._logs: dict[tuple[str, str], LogFacts] = {}
        self._turns = Turns() if facts is None else Turns(
            facts.breaks, [(log.namespace, log.name, group, turns) for log in facts.logs for group, turns in log.turns.items()]
        )  # fmt: skip
        self._points = self._turns.points()

    def conclude(self, again: Callable[[Facts], Facts]) -> Audit:
        """Read, then compare; `again` gives the facts as they hold after reading."""
        self._read()
        sequence = None if self._facts is None else self._facts.sequence
        if self._facts is not None:
            before = self._facts
            self._cleaned = {(log.namespace, log.name): of_flat(log.cleaned) for log in before.logs}
            self._facts = again(before)
            self._logs = {(log.namespace, log.name): log for log in self._facts.logs}
            self._breaches += _of_the_journal(self._facts)
            for log in self._facts.logs:
                self._compare_log(log)
        else:
            self._notes.append(
                "the state of the broker is not known: losses cannot be told from what was cleaned, nor settling twice from going back"
            )
        self._compare_tables()
        self._compare_settlements()
        self._look_at_letters()
        self._look_at_order()
        self._progress("done", 5, 5)
        return Audit(
            sequence,
            self._rows,
            self._settlement_rows,
            self._counts(),
            self._with_ids(self._breaches),
            self._notes,
        )

    def _read(self) -> None:
        self._progress("messages", 1, 5)
        gathered = self._tables.messages()
        damage = gathering.take_damage(gathered)
        self._ids = gathered.pop(gathering.IDS, Found())
        self._stored: dict[tuple[str, str], Found] = {}
        self._targeted: dict[tuple[str, str], dict[str, Runs]] = {}
        for (namespace, topic, target), found in gathered.items():
            name = (str(namespace), str(topic))
            if target is not None:
                self._targeted.setdefault(name, {})[target] = found.once
            known = self._stored.setdefault(name, Found())
            once, twice = joined([known.once, found.once])
            self._stored[name] = Found(
                known.rows + found.rows, once, joined([known.again, found.again, twice])[0]
            )
        self._rows = sum(found.rows for found in self._stored.values())
        self._progress("settlements", 2, 5)
        self._settled = self._tables.settlements(self._turns)
        damage |= gathering.take_damage(self._settled)
        self._breaches += [
            damage_breach(segment, bad.pairs(NAMED_MAX)) for segment, bad in sorted(damage.items())
        ]
        self._settlement_rows = sum(found.rows for found in self._settled.values())

    def _required(self, table: str, columns: str) -> DataFrame:
        found = self._tables.read(table, columns)
        if found is None:
            raise InvalidArgument(f"an audit needs these columns of {table}: {columns}")
        return found

    def _breach(
        self, kind: str, log: tuple[str, str], group: str | None, offsets: Runs, detail: str = ""
    ) -> None:
        if len(offsets.starts):
            pairs = offsets.pairs(NAMED_MAX)
            self._breaches.append(Breach(kind, *log, group, offsets.size, pairs, detail=detail))

    # --- messages and the state ---

    def _compare_log(self, log: LogFacts) -> None:
        name = (log.namespace, log.name)
        stored = self._stored.get(name, Found()).once
        given = given_in(log)
        damaged = of_flat(log.damaged).both(given)
        self._breach("damaged", name, None, damaged)
        self._breach("lost", name, None, lost_of(log, stored).minus(damaged))
        for group, flat in log.groups.items():
            settled = of_flat(flat)
            cleaned = self._cleaned[name].both(given).minus(settled)
            self._breach("cleaned-unsettled", name, group, cleaned.minus(damaged))
            self._compare_group(log, group, settled, stored)

    def _compare_group(self, log: LogFacts, group: str, settled: Runs, stored: Runs) -> None:
        """What the state says of a group, and what its settlements say."""
        name = (log.namespace, log.name)
        ended = self._ended(log, group)
        current = 2 * len(self._points.get((*name, group), self._turns.breaks))
        now = ended.get(current, EMPTY)
        self._breach("not-settled", name, group, now.minus(settled).both(between(0, log.next_offset)))
        others = [runs for target, runs in self._targeted.get(name, {}).items() if target != group]
        witnessed = stored.both(between(log.witnessed, log.next_offset))
        explained = joined([of_flat(log.placed.get(group, [])), *others, *ended.values()])[0]
        self._breach("not-recorded", name, group, settled.both(witnessed).minus(explained))

    def _ended(self, log: LogFacts, group: str) -> dict[int, Runs]:
        """What is on record of a group's messages that ended, by era."""
        found: dict[int, list[Runs]] = {}
        for (namespace, name, of, outcome, era), one in self._settled.items():
            if (namespace, name, of) == (log.namespace, log.name, group) and outcome not in PASSING:
                found.setdefault(int(era or 0), []).append(one.once)
        return {era: joined(sets)[0] for era, sets in found.items()}

    # --- what is there twice ---

    def _compare_tables(self) -> None:
        for name, found in sorted(self._stored.items()):
            self._breach("offset-twice", name, None, found.again)
        if len(self._ids.again.starts):
            self._ids_twice(self._ids.again)

    def _ids_twice(self, again: Runs) -> None:
        frame = self._required("messages", "namespace,topic,offset,id")
        wanted = again.numbers(NAMED_MAX)
        rows = frame.where(F.col("id").isin(wanted)).collect()
        places = ", ".join(f"{row.namespace}/{row.topic} {row.offset}" for row in rows[: 2 * NAMED_MAX])
        logs = {(row.namespace, row.topic) for row in rows}
        namespace, log = logs.pop() if len(logs) == 1 else ("", "")
        detail = f"{KINDS['id-twice']}: {places}"
        self._breaches.append(Breach("id-twice", namespace, log, None, again.size, [], wanted, detail))

    # --- settlements ---

    def _compare_settlements(self) -> None:
        eras: dict[tuple[Key, int], list[tuple[Runs, Runs]]] = {}
        beyond: dict[tuple[str, str, str | None], list[Runs]] = {}
        unknown: dict[tuple[str, str], int] = {}
        for (namespace, log, group, outcome, era), found in self._settled.items():
            name = (str(namespace), str(log))
            end = self._end(name)
            if end is None:
                unknown[name] = unknown.get(name, 0) + found.rows
                continue
            beyond.setdefault((*name, group), []).append(found.once.minus(between(0, end)))
            # Removed for everybody may have been said by several groups of which nothing else is recorded.
            if group is not None and outcome not in PASSING and int(era or 0) % 2 == 0:
                eras.setdefault(((*name, group), int(era or 0)), []).append((found.once, found.again))
        for (space, log_name, group), sets in beyond.items():
            self._breach("no-message", (space, log_name), group, joined(sets)[0])
        for name, rows in unknown.items():
            self._breaches.append(Breach("unknown-log", *name, None, rows, []))
        if self._facts is not None:  # otherwise nobody knows when a group was sent back
            self._settled_twice(eras)

    def _settled_twice(self, eras: Mapping[tuple[Key, int], list[tuple[Runs, Runs]]]) -> None:
        doubles: dict[Key, list[Runs]] = {}
        for (key, _), sets in eras.items():
            twice = joined([one for one, _ in sets])[1]
            doubles.setdefault(key, []).extend([twice, *(again for _, again in sets)])
        for (space, log, group), parts in doubles.items():
            self._breach("settled-twice", (str(space), str(log)), group, joined(parts)[0])

    def _end(self, name: tuple[str, str]) -> int | None:
        """The next offset of a log; None if there is none of that name. One that was deleted meanwhile has ended nowhere."""
        if self._facts is not None:
            log = self._logs.get(name)
            return None if log is None else log.next_offset
        stored = self._stored.get(name)
        return None if stored is None else int(stored.once.stops[-1])

    # --- dead letters ---

    def _look_at_letters(self) -> None:
        """Each death is one commit: a settlement, and a letter of the same moment that names the log and the group."""
        graves = self._graves()
        if not graves:
            return
        self._progress("dead letters", 3, 5)
        letters = self._tables.read("messages", "namespace,topic,offset,timestamp,headers", graves)
        if letters is None:
            self._notes.append("headers were not read: dead letters were not looked at")
            return
        told = letters.select(
            "namespace", "topic", "offset", "timestamp", F.col("headers")[letter.ORIGIN].alias("origin"),
            F.col("headers")[letter.ORIGIN_GROUP].alias("group"), F.col("headers")[letter.ORIGIN_ID].alias("origin_id"),
        ).where("origin is not null and group is not null")  # fmt: skip
        dead = self._required("settlements", "namespace,log,group,offset,outcome,time,sequence").where(
            "outcome = 'dead'"
        )
        told, dead = told.persist(), dead.persist()  # few, and looked at several times
        try:
            if self._facts is not None:
                self._letters_lost(told, dead, letters)
            self._same_origin(told, dead)
        finally:
            told.unpersist()
            dead.unpersist()

    def _graves(self) -> list[tuple[str, str]]:
        """The queues that hold dead letters."""
        found = {name for name in self._stored if is_dead_letter_name(name[1])}
        for log in self._logs.values():
            found |= {
                (log.namespace, grave) for grave in log.graves if (log.namespace, grave) in self._stored
            }
        for namespace, log_name, _, outcome, _ in self._settled:
            if outcome == "dead" and not is_dead_letter_name(str(log_name)):
                found.add((str(namespace), dead_letter_name(str(log_name))))
        return sorted(found)

    def _letters_lost(self, told: DataFrame, dead: DataFrame, letters: DataFrame) -> None:
        """Deaths of which there are more than letters. Letters that were dealt with may be cleaned: then there is room for them where offsets are missing."""
        deaths = dead.groupBy("namespace", "log", "group", "time").agg(
            F.count("*").alias("deaths"),
            F.min("sequence").alias("sequence"),
            F.sort_array(F.collect_list("offset")).alias("offsets"),
        )
        found = told.groupBy(
            "namespace", F.col("origin").alias("log"), "group", F.col("timestamp").alias("time")
        ).agg(F.count("*").alias("letters"))
        short = (
            deaths.join(found, ["namespace", "log", "group", "time"], "left")
            .where("letters is null or letters < deaths")
            .orderBy("time")
            .select("*", F.unix_micros("time").alias("time_us"))
            .toArrow()
            .to_pylist()
        )
        rooms: dict[tuple[str, str], _Room] = {}
        for row in short:
            log = self._logs.get((row["namespace"], row["log"]))
            if log is None or row["sequence"] <= log.buried_since:
                continue
            missing = row["deaths"] - (row["letters"] or 0)
            for grave in log.graves:
                name = (log.namespace, grave)
                if name not in rooms:
                    rooms[name] = self._room(name, letters)
                missing = rooms[name].take(row["time_us"], missing)
            if missing:
                offsets = runs_of([np.array(row["offsets"], dtype=np.int64)])[0]
                detail = f"{missing} of the messages that died at {row['time'].isoformat()} have no dead letter in {' or '.join(log.graves)}"
                self._breaches.append(
                    Breach("dead-letter-lost", log.namespace, log.name, row["group"], missing, offsets.pairs(NAMED_MAX), detail=detail)
                )  # fmt: skip

    def _room(self, grave: tuple[str, str], letters: DataFrame) -> _Room:
        facts = self._logs.get(grave)
        if facts is None:
            return _Room(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), EMPTY, 0)
        table = (
            letters.where(_among([grave], "topic"))
            .select("offset", F.unix_micros("timestamp").alias("time"))
            .orderBy("offset")
            .toArrow()
        )
        gone = of_flat(facts.cleaned).plus(of_flat(facts.damaged), of_flat(facts.unused))
        return _Room(
            table.column("offset").to_numpy(), table.column("time").to_numpy(), gone, facts.next_offset
        )

    def _same_origin(self, told: DataFrame, dead: DataFrame) -> None:
        """Letters of the same origin. A message may fail again after it was redriven: then it has died again, at the moment of the letter."""
        many = told.groupBy("namespace", "topic", "origin", "group", "origin_id").agg(
            F.count("*").alias("letters"), F.sort_array(F.collect_list(F.struct("offset", "timestamp"))).alias("those")
        ).where("letters > 1")  # fmt: skip
        those = many.select("*", F.explode("those").alias("one")).select(
            "namespace", "topic", "origin", "group", "origin_id", "one.*"
        )
        counted = those.groupBy("namespace", "topic", "origin", "group", "origin_id", "timestamp").agg(
            F.count("*").alias("letters"), F.sort_array(F.collect_list("offset")).alias("offsets")
        )
        deaths = dead.groupBy(
            "namespace", F.col("log").alias("origin"), "group", F.col("time").alias("timestamp")
        ).agg(F.count("*").alias("deaths"))
        joint = counted.join(deaths, ["namespace", "origin", "group", "timestamp"], "left")
        doubles: dict[tuple[str, str], list[int]] = {}
        for row in joint.where("deaths is null or deaths < letters").toArrow().to_pylist():
            if self._is_witnessed(row):
                doubles.setdefault((row["namespace"], row["topic"]), []).extend(row["offsets"])
        for grave, offsets in doubles.items():
            self._breach("dead-letter-twice", grave, None, runs_of([np.array(offsets, dtype=np.int64)])[0])

    def _is_witnessed(self, row: Mapping[str, Any]) -> bool:
        """Whether the death of which a letter tells would be on record."""
        if self._facts is None:
            return bool(row["letters"] > 1)
        log, grave = (
            self._logs.get((row["namespace"], row["origin"])),
            self._logs.get((row["namespace"], row["topic"])),
        )
        if log is None or grave is None or row["group"] not in log.groups:
            return False
        return log.buried_since < self._facts.sequence and min(row["offsets"]) >= grave.witnessed

    # --- order ---

    def _look_at_order(self) -> None:
        """Of the messages of a key, none is handed out before those before it have ended. Delayed ones, and those of another priority, may be."""
        rows = [
            (log.namespace, log.name, group, begun)
            for log in self._logs.values()
            for group, begun in (log.ordered or {}).items()
            if begun < log.next_offset
        ]
        if not rows:
            return
        self._progress("order by key", 4, 5)
        names = {(namespace, name) for namespace, name, _, _ in rows}
        messages = self._tables.read(
            "messages", "namespace,topic,offset,key,priority,deliver_at,target_group", names
        )
        deliveries = self._tables.read("deliveries", "namespace,log,group,offset,sequence", names)
        settlements = self._tables.read("settlements", gathering.SETTLEMENT_COLUMNS, names)
        if messages is None or deliveries is None or settlements is None:
            self._notes.append("keys or deliveries were not given: order was not looked at")
            return
        groups = messages.sparkSession.createDataFrame(
            rows, "namespace string, log string, group string, begun bigint"
        )
        found: dict[tuple[str, str, str], list[int]] = {}
        for row in _out_of_order(messages, deliveries, settlements, groups).collect():
            found.setdefault((row.namespace, row.log, row.group), []).append(row.offset)
        for (space, name, group), offsets in found.items():
            self._breach("order", (space, name), group, runs_of([np.array(offsets, dtype=np.int64)])[0])

    # --- what is told ---

    def _counts(self) -> list[GroupCount]:
        outcomes: dict[tuple[str, str, str | None], dict[str, int]] = {}
        for (namespace, log, group, outcome, _), found in self._settled.items():
            counts = outcomes.setdefault((str(namespace), str(log), group), {})
            counts[str(outcome)] = counts.get(str(outcome), 0) + found.rows
        known: dict[tuple[str, str, str | None], GroupCount] = {}
        for name in sorted(set(self._stored) | set(self._logs)):
            groups: list[str | None] = [group for space, log, group in outcomes if (space, log) == name]
            groups += list(self._logs[name].groups) if name in self._logs else []
            for group in sorted(set(groups) or {None}, key=lambda one: (one is not None, one or "")):
                known[*name, group] = self._count(name, group, outcomes.get((*name, group), {}))
        return list(known.values())

    def _count(self, name: tuple[str, str], group: str | None, outcomes: dict[str, int]) -> GroupCount:
        stored = self._stored.get(name, Found()).once.size
        log = self._logs.get(name)
        if log is None:
            return GroupCount(
                *name,
                group,
                stored,
                stored,
                0,
                0,
                0,
                sum(n for how, n in outcomes.items() if how not in PASSING),
                outcomes,
            )
        given = given_in(log)
        lost = lost_of(log, self._stored.get(name, Found()).once)
        settled = pending = 0
        if group is not None and group in log.groups:
            ended = of_flat(log.groups[group])
            settled = ended.both(given).size
            pending = given.size - settled - (lost.size - ended.both(lost).size)
        cleaned = given.size - stored - lost.size
        return GroupCount(*name, group, given.size, stored, cleaned, lost.size, pending, settled, outcomes)

    def _with_ids(self, breaches: list[Breach]) -> list[Breach]:
        """Name the messages, as far as they are stored."""
        wanted = [one for one in breaches if one.offsets and one.log]
        if not wanted:
            return breaches
        frame = self._required("messages", "namespace,topic,offset,id")
        conditions = [
            (F.col("namespace") == one.namespace) & (F.col("topic") == one.log) & F.col("offset").between(first, min(last, first + NAMED_MAX))
            for one in wanted
            for first, last in one.offsets
        ]  # fmt: skip
        condition = conditions[0]
        for other in conditions[1:]:
            condition = condition | other
        ids: dict[tuple[str, str], dict[int, list[int]]] = {}
        for row in frame.where(condition).collect():
            ids.setdefault((row.namespace, row.topic), {}).setdefault(row.offset, []).append(row.id)
        found = []
        for one in breaches:
            known = ids.get((one.namespace, one.log), {})
            here = [
                one_id
                for a, b in one.offsets
                for offset in range(a, min(b, a + NAMED_MAX) + 1)
                for one_id in known.get(offset, [])
            ]
            found.append(msgspec.structs.replace(one, ids=sorted(here)[:NAMED_MAX]) if here else one)
        return found


def damage_breach(segment: int, ranges: Sequence[tuple[int, int]]) -> Breach:
    """Bytes of a segment, from and to, that cannot be read."""
    parts = ", ".join(f"{first} to {last}" for first, last in ranges[:NAMED_MAX])
    detail = f"bytes {parts} of segment {segment} are damaged: what they held is not known (`penstock journal verify` says more)"
    return Breach("missing-commits", "", "", None, len(ranges), [], detail=detail)


def missing_breach(*parts: tuple[int, int]) -> Breach:
    """Commits, from and to, that are gone though nobody dropped them."""
    said = ", ".join(f"{first}-{last}" for first, last in parts[:NAMED_MAX])
    count = sum(last - first + 1 for first, last in parts)
    detail = f"commits {said} of the journal are gone, or damaged"
    return Breach("missing-commits", "", "", None, count, [], detail=detail)


def unread_breach(first: int, last: int) -> Breach:
    """Commits that cannot be read because the mark is gone."""
    detail = (
        f"the mark is gone, so commits {first} to {last}, of which snapshots and segments tell, cannot be read: "
        "open the directory once (penstock.open, or start its broker), then look again"
    )
    return Breach("missing-commits", "", "", None, last - first + 1, [], detail=detail)


def skipped(facts: Facts, stored: Mapping[tuple[str, str], Runs], damage: Iterable[str]) -> list[Breach]:
    """What a job could not read: messages that are lost, commits that are gone, and `damage` (see `noting`)."""
    found = [one for one in _of_the_journal(facts) if one.kind == "missing-commits"]
    for segment, ranges in noting.ranges_of(damage).items():
        found.append(damage_breach(segment, [(one.start, one.stop - 1) for one in ranges]))
    for log in facts.logs:
        lost = lost_of(log, stored.get((log.namespace, log.name), EMPTY))
        if len(lost.starts):
            pairs = lost.pairs(NAMED_MAX)
            found.append(Breach("lost", log.namespace, log.name, None, lost.size, pairs))
    return found


def given_in(log: LogFacts) -> Runs:
    """The offsets of a log that were given to messages."""
    return between(0, log.next_offset).minus(of_flat(log.unused))


def lost_of(log: LogFacts, stored: Runs) -> Runs:
    """The messages of a log that are neither stored nor recorded as cleaned."""
    return given_in(log).minus(stored).minus(of_flat(log.cleaned))


def _of_the_journal(facts: Facts) -> list[Breach]:
    """What the journal's own files say."""
    found = []
    if facts.unread is not None:
        found.append(unread_breach(*facts.unread))
    if facts.missing_segments:
        numbers = ", ".join(map(str, facts.missing_segments[:NAMED_MAX]))
        detail = f"segments {numbers} of the journal are gone though nobody dropped them"
        found.append(Breach("missing-commits", "", "", None, len(facts.missing_segments), [], detail=detail))
    if facts.missing:
        found.append(missing_breach(*facts.missing))
    for one in facts.disagreements:
        for kind, flat in (("not-recorded", one.settled), ("not-settled", one.recorded)):
            offsets = of_flat(flat)
            if len(offsets.starts):
                detail = f"{KINDS[kind]} (the newer snapshot is not what the older one and the commits behind it give)"
                found.append(
                    Breach(
                        kind,
                        one.namespace,
                        one.log,
                        one.group,
                        offsets.size,
                        offsets.pairs(NAMED_MAX),
                        detail=detail,
                    )
                )
    return found


class _Room:
    """The offsets of a dead-letter queue at which letters were that are cleaned by now, and between which moments they were written."""

    def __init__(self, offsets: Any, times: Any, gone: Runs, next_offset: int) -> None:
        before = np.concatenate(([-1], offsets))
        behind = np.concatenate((offsets, [next_offset]))
        rooms = np.array(
            [
                gone.both(between(int(a) + 1, int(b))).size if b - a > 1 else 0
                for a, b in zip(before, behind, strict=True)
            ],
            dtype=np.int64,
        )
        limit = np.iinfo(np.int64)
        earliest = np.concatenate(([limit.min], np.maximum.accumulate(times) if len(times) else times))
        latest = np.concatenate(
            (np.minimum.accumulate(times[::-1])[::-1] if len(times) else times, [limit.max])
        )
        some = rooms > 0
        self._rooms, self._earliest, self._latest = rooms[some], earliest[some], latest[some]

    def take(self, time_us: int, wanted: int) -> int:
        """Find room for so many letters of a moment; for how many there is none. Moments rise from call to call."""
        fits = np.flatnonzero((self._earliest <= time_us) & (time_us <= self._latest) & (self._rooms > 0))
        for place in fits.tolist():
            taken = min(wanted, int(self._rooms[place]))
            self._rooms[place] -= taken
            wanted -= taken
            if not wanted:
                break
        return wanted


def _out_of_order(
    messages: DataFrame, deliveries: DataFrame, settlements: DataFrame, groups: DataFrame
) -> DataFrame:
    """Which messages were handed out before an earlier one of their key had ended.

    Of a group, only messages that were published since it is where it is: what of them has not ended, is pending.
    """
    place = ["namespace", "log", "group", "offset"]
    keyed = (
        messages.where("key is not null and deliver_at is null and target_group is null")
        .withColumnRenamed("topic", "log")
        .join(F.broadcast(groups), ["namespace", "log"])
        .where("offset >= begun")
        .select(*place, "key", "priority")
    )
    out = deliveries.select(*place, F.col("sequence").alias("out"), F.lit(None).cast("bigint").alias("end"))
    acked = F.when(F.col("outcome") == "acked", F.col("sequence"))
    ended = settlements.where(~F.col("outcome").isin(*PASSING)).select(
        *place, acked.alias("out"), F.col("sequence").alias("end")
    )
    events = out.unionByName(ended).groupBy(*place).agg(F.min("out").alias("out"), F.max("end").alias("end"))
    earlier = (
        Window.partitionBy("namespace", "log", "group", "key", "priority")
        .orderBy("offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        keyed.join(events, place, "left")
        .withColumn("before", F.max(F.coalesce("end", F.lit(NEVER))).over(earlier))
        .where("out < before")
        .select(*place)
    )
