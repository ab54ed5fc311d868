"""Takes in what others have left in the spool: batches of messages, each once, and how far readers are.

Theory of operation
-------------------
What a spool holds is described in `journal.spool`. Here the owner empties it: when the broker is opened, whenever the bell rings, and every second besides, for those who cannot ring it. A thread of its own does it, so nobody waits;
a part of a batch is one command like any other, under the broker's lock.

A batch is looked at as a whole before any of it is published: every checksum of its files, and whether its topics take it (sizes, depth, dedup ids). Once its first part is published it is accepted, and the rest goes in
whatever happens meanwhile, other publishers who fill the queue and policies that are altered included; only a disk that is full stops it, until there is room. Each part is one unit: its messages, in as many logs as they are for, and a row that says which part of which batch it was. So after a crash
the next owner knows what is left, and a batch that comes once more is known however late it comes. Parts are numbered as the manifest's files and their frames are; the manifest stays where it is until the last of them is durable.
Durable here means synced, whatever durability the broker has for its own publishers: a manifest is removed for good, and Spark's checkpoint counts on what became of it.

What is refused stays in the spool with the reason beside it, and holds up the later batches of its producer, and nobody else.

Messages that repeat a dedup id count for the depth of a queue when it is asked whether there is room, though they will take none.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from penstock import limits
from penstock.broker import compose
from penstock.broker.contents import DECLARATION_BYTES_MAX, SECTION_OVERHEAD_BYTES
from penstock.broker.handing import handle_of
from penstock.broker.ledger import batches_of
from penstock.broker.ticket import Record, Ticket
from penstock.clock import SECOND_US
from penstock.engine import overflow, producers
from penstock.engine.change import Change
from penstock.engine.engine import check_sizes
from penstock.engine.events import Positioned
from penstock.engine.log import Log
from penstock.errors import (
    BrokerClosed,
    CorruptJournal,
    DiskFull,
    ForkedProcess,
    InvalidArgument,
    JournalFailed,
    MessageTooLarge,
    PenstockError,
)
from penstock.journal.files import Files
from penstock.journal.journal import Journal
from penstock.journal.kinds import MESSAGES, POSITIONS
from penstock.journal.spool import Manifest, Part, Pending, Report, Share, Spool
from penstock.model.batch import Batch
from penstock.model.commands import Commit, Handle
from penstock.names import check_name
from penstock.policy import Policy

if TYPE_CHECKING:
    import socket

    from penstock.broker.monitor import Monitor

#: Beside what a staged section takes: its messages get ids, offsets and ends, of eight bytes each.
ROW_BYTES: Final = 32

_LOG: Final = logging.getLogger("penstock.spool")

#: The broker has ended: what is in the spool is another owner's.
_OVER: Final = (BrokerClosed, JournalFailed, ForkedProcess)


class Intake:
    """The owner's side of the spool. `commit` stores a reader's position."""

    def __init__(
        self, monitor: Monitor, journal: Journal, commit: Callable[[Handle, Commit], Ticket[Any]]
    ) -> None:
        self._monitor = monitor
        self._commit = commit
        self._journal = journal
        self._files = journal.directory.files
        self.spool = Spool(self._files, journal.directory.path)
        self._one = threading.Lock()  # one pass at a time
        self._stopped = threading.Event()
        self._bell: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._swept_s: float | None = None
        self._said: set[str] = set()  # manifests of which it was said that something is wrong

    def begin(self) -> None:
        """Take in what was left while nobody owned the directory, and from now on what comes."""
        self._bell = self._files.listen(self.spool.directory)
        self.catch_up()
        self._thread = threading.Thread(
            target=_keep_up,
            args=(weakref.ref(self), self._files, self._bell, self._stopped),
            name="penstock-intake",
            daemon=True,
        )
        self._thread.start()

    def catch_up(self) -> None:
        """Take in everything that is in the spool now. What goes wrong is said in the log, and beside what it went wrong with."""
        with self._one:
            try:
                if self._files.exists(self.spool.path):
                    self._take_reports()
                    self._take_batches()
                    self._sweep()
            except _OVER:
                pass
            except (OSError, PenstockError) as error:
                _LOG.warning("%s could not be read, and will be tried again: %s", self.spool.path, error)
            except Exception:  # what is in the spool is anybody's
                _LOG.exception("%s could not be taken in, and will be tried again", self.spool.path)

    def stop(self) -> None:
        """Return when nothing of it is under way any more. A batch that is half taken in is left to the next owner."""
        self._stopped.set()
        if self._thread is not None:
            self._files.ring(self.spool.directory)
            self._thread.join()
        if self._bell is not None:
            self._bell.close()

    def orphan(self) -> None:
        """In a forked child: the bell is the parent's."""
        if self._bell is not None:
            self._bell.close()

    def _sweep(self) -> None:
        now_s = time.monotonic()
        if self._swept_s is None or now_s - self._swept_s > limits.SPOOL_SWEEP_S:
            self._swept_s = now_s
            removed = self.spool.sweep()
            if removed:
                _LOG.info("%d files that nobody handed in were removed from %s", removed, self.spool.path)

    # --- how far readers are ---

    def _take_reports(self) -> None:
        taken: list[str] = []
        for name, report in self.spool.reports():
            taken.append(name)
            if report is None:
                continue
            try:
                self._take_report(report)
            except _OVER:
                raise
            except PenstockError as error:
                _LOG.warning("the position of %r in %r was dropped: %s", report.reader, report.log, error)
        if taken:
            self._journal.sync()
            self.spool.remove_reports(taken)

    def _take_report(self, report: Report) -> None:
        if not report.log:
            self._note_sequence(report)
            return
        with self._monitor.lock, self._monitor.whole:
            log = self._monitor.engine.find(report.namespace, report.log)
            if log is not None and report.number not in (None, log.number):
                return  # that one is gone; this is another of the same name
            offset = 0 if log is None else min(max(report.offset, 0), log.next_offset)
        if log is not None:
            self._commit(handle_of(log), Commit(report.reader, offset, report.holds)).wait()

    def _note_sequence(self, report: Report) -> None:
        with self._monitor.lock, self._monitor.whole:
            now_us, change = self._monitor.begin()
            self._monitor.require_room(POSITIONS, SECTION_OVERHEAD_BYTES + 4 * len(report.reader))
            self._monitor.engine.sequences[report.reader] = report.offset
            change.events.append(Positioned(0, report.reader, report.offset, now_us))
            record = self._monitor.record(change)
        record.wait()

    # --- batches ---

    def _take_batches(self) -> None:
        waiting = self.spool.pending()
        self._said.intersection_update(pending.name for pending in waiting)
        if waiting:
            self.spool.settle()
        held_up: set[str] = set()
        for pending in waiting:
            manifest = pending.manifest
            if pending.refused or (manifest is not None and manifest.producer in held_up):
                pass
            elif manifest is None:
                damaged = CorruptJournal(
                    f"{self.spool.path / pending.name} cannot be read, and nobody can tell what was taken in of it: move it away"
                )
                self._refuse(pending, damaged, begun=True)
            elif self._taken(pending, manifest):
                continue
            if manifest is not None:
                held_up.add(manifest.producer)
        self._forget_producers(waiting)

    def _taken(self, pending: Pending, manifest: Manifest) -> bool:
        try:
            self._take(manifest)
        except _OVER:
            raise
        except PenstockError as error:
            self._refuse(pending, error, begun=bool(self._done(manifest)))
            return False
        except OSError as error:  # of the spool; the journal's own are `JournalFailed`
            if pending.name not in self._said:
                self._said.add(pending.name)
                _LOG.warning(
                    "%s could not be taken in, and will be tried again: %s",
                    self.spool.path / pending.name,
                    error,
                )
            return False
        return True

    def _refuse(self, pending: Pending, error: PenstockError, *, begun: bool) -> None:
        _LOG.error("%s was not taken in: %s", self.spool.path / pending.name, error)
        self.spool.refuse(pending.name, error, begun=begun)

    def _done(self, manifest: Manifest) -> int | None:
        with self._monitor.lock, self._monitor.whole:
            return producers.parts_done(self._monitor.engine, manifest.producer, manifest.batch)

    def has_taken(self, producer: str, batch: int) -> bool:
        """Whether a batch is published, all of it, or a later one of its producer was begun."""
        with self._monitor.lock, self._monitor.whole:
            return producers.parts_done(self._monitor.engine, producer, batch) is None

    def forget(self, producer: str) -> None:
        """Nobody will hand in a batch of this producer any more."""
        self._forget(producer)

    def _take(self, manifest: Manifest) -> None:
        done = self._done(manifest)
        if done == 0:
            self.spool.examine(manifest)
        if done is not None:
            self._publish(manifest, done)
        self._journal.sync()  # a power cut leaves the manifest, or what it was
        self.spool.remove(manifest)
        if manifest.only:
            self._forget(manifest.producer)

    def _publish(self, manifest: Manifest, done: int) -> None:
        record: Record | None = None
        for part in self.spool.parts(manifest, done):
            batches = _batches_of(part)
            # The one before is written while this one is read: what is published is recorded in order.
            following = self._publish_part(manifest, part, batches)
            if record is not None:
                record.wait()
            record = following
        if record is not None:
            record.wait()

    def _publish_part(self, manifest: Manifest, part: Part, batches: list[tuple[str, Batch, int]]) -> Record:
        monitor, engine = self._monitor, self._monitor.engine
        with monitor.lock, monitor.whole:
            now_us, _ = monitor.begin()
            if not part.number:
                self._require_all_fit(manifest, now_us)
            size = SECTION_OVERHEAD_BYTES + 4 * len(manifest.producer)
            for topic, batch, staged_bytes in batches:
                log = engine.find(manifest.namespace, topic)
                policy = monitor.defaults if log is None else log.policy
                if not part.number:  # the others belong to what was accepted with this one
                    check_sizes(policy, batch)
                    if log is not None:
                        _require_dedup_ids(log, batch.dedup_id is None or None in batch.dedup_id)
                compose.date(batch, policy, now_us, monitor.set_back_us)
                size += staged_bytes + ROW_BYTES * len(batch.payloads) + SECTION_OVERHEAD_BYTES
                size += DECLARATION_BYTES_MAX if log is None else 0
            monitor.require_room(MESSAGES, size)
            try:
                change = self._published(manifest, part, batches, now_us)
            except PenstockError as error:  # it was looked at before: something is done, and something is not
                monitor.fail(error)
                raise
            return monitor.record(change)

    def _published(
        self, manifest: Manifest, part: Part, batches: list[tuple[str, Batch, int]], now_us: int
    ) -> Change:
        """With the lock held: what follows refuses nothing any more."""
        engine, change = self._monitor.engine, Change(whole=True)
        for topic, batch, _ in batches:
            log = engine.find(manifest.namespace, topic)
            if log is None:
                log = engine.declare(manifest.namespace, topic, self._monitor.defaults, now_us, change)
                self._monitor.skip_what_was_given_up(log)
            batch.ids = self._monitor.ids.take(len(batch.payloads))
            engine.publish(log, batch, now_us, change, planned=True)
        producers.record(
            engine, manifest.producer, manifest.batch, part.number, final=part.number == manifest.parts - 1,
            now_us=now_us, change=change,
        )  # fmt: skip
        return change

    def _require_all_fit(self, manifest: Manifest, now_us: int) -> None:
        """With the lock held: raise why a batch cannot be taken in as a whole."""
        check_name(manifest.namespace, kind="namespace")
        for share in manifest.shares().values():
            name = check_name(share.topic, kind="queue name", reserved_ok=True)
            log = self._monitor.engine.find(manifest.namespace, name)
            if log is None:
                check_name(name, kind="queue name")
            _require_fits(log, share, now_us, self._monitor.defaults)

    # --- producers of one batch ---

    def _forget(self, producer: str) -> None:
        with self._monitor.lock, self._monitor.whole, suppress(DiskFull):  # it is tried again
            now_us, change = self._monitor.begin()
            self._monitor.require_room(MESSAGES, SECTION_OVERHEAD_BYTES + 4 * len(producer))
            producers.forget(self._monitor.engine, producer, now_us, change)
            if change:
                self._monitor.record(change, sync=False)

    def _forget_producers(self, waiting: list[Pending]) -> None:
        """Those of which a manifest was removed by an owner who died before he forgot them, or had no room for that."""
        if any(pending.manifest is None for pending in waiting):
            return
        here = {pending.manifest.producer for pending in waiting if pending.manifest is not None}
        with self._monitor.lock, self._monitor.whole:
            known = [name for name in self._monitor.engine.producers if name.startswith(ONLY)]
        left = [name for name in known if name not in here]
        if left:
            self._journal.sync()
            self.spool.settle()  # a manifest that a power cut brought back would be published again
        for name in left:
            self._forget(name)


def _keep_up(
    owner: weakref.ref[Intake], files: Files, bell: socket.socket | None, stopped: threading.Event
) -> None:
    """Wait for the bell, again and again. A broker that nobody holds any more need not be closed: it is not held here either."""
    while not stopped.is_set():
        if bell is None:
            stopped.wait(limits.SPOOL_POLL_S)
        else:
            files.heard(bell, limits.SPOOL_POLL_S)
        intake = owner()
        if intake is None or intake._monitor.failure is not None:
            if bell is not None:
                bell.close()
            return
        if not stopped.is_set():
            intake.catch_up()
        del intake


#: What the names of producers of only one batch begin with.
ONLY: Final = "job:"


def _batches_of(part: Part) -> list[tuple[str, Batch, int]]:
    """The messages of a part by topic, and how many bytes they took."""
    try:
        return [
            (topic, batch, section.bytes) for topic, section in part.sections for batch in batches_of(section)
        ]
    except (struct.error, ValueError, IndexError, TypeError, KeyError) as error:
        raise CorruptJournal(f"part {part.number} of the batch cannot be read: {error}") from error


def _require_dedup_ids(log: Log, nameless: bool) -> None:
    if nameless and log.policy.delivery == "exactly-once":
        raise InvalidArgument(
            f"{log.name!r} promises exactly-once: give each message a dedup_id by which a repetition is known"
        )


def _require_fits(log: Log | None, share: Share, now_us: int, defaults: Policy) -> None:
    """Raise why a log, or one that is made now, does not take its share of a batch."""
    policy = defaults if log is None else log.policy
    if share.largest > policy.max_message_bytes:
        raise MessageTooLarge(
            f"a payload for {share.topic!r} has {share.largest} bytes and the limit is {policy.max_message_bytes}; "
            "publish a reference to it instead, or raise max_message_bytes"
        )
    if log is None:
        overflow.require_room_anew(share.topic, share.rows, policy)
    else:
        _require_dedup_ids(log, share.nameless)
        overflow.require_room(log, share.rows, share.bytes, log.depth, log.bytes)
    end_us = None if policy.ttl is None else now_us + round(policy.ttl * SECOND_US)
    if end_us is not None and share.latest is not None and share.latest >= end_us:
        raise compose.never_due()
