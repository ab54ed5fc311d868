"""Every file call of a broker fails, with EIO or a full disk, once or from then on: while publishing, receiving, settling, closing and opening.

A *scene* is a directory, prepared once, and an act. The act is done with files whose Nth call goes wrong; a witness keeps what the broker has said to be done.
Afterwards the broker either works, or has failed and refuses everything in so many words. Then the directory is opened with sound files: what was
acknowledged holds, a batch is there or not, and nothing is there twice. `make test` tries a sample of N for every scene, `make faults` all of them.
"""

from __future__ import annotations

import copy
import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import pytest

from penstock.broker import opening
from penstock.broker.handing import handle_of
from penstock.broker.sync import Broker, Delivery, Queue
from penstock.errors import DiskFull, JournalFailed, MaintenanceFailed, PenstockError
from penstock.journal.files import Files
from tests.faults import campaign
from tests.faults.faulty_files import EIO, ENOSPC, FaultyFiles, UnsyncedFiles

Answer = TypeVar("Answer")


class FullFiles(UnsyncedFiles):
    """A disk on which nothing new finds room; what has room keeps it."""

    full = False

    def perform(self, operation: Callable[..., Answer], *arguments: object) -> Answer:
        makes = operation is os.open and int(arguments[1]) & os.O_CREAT  # type: ignore[call-overload]
        if self.full and (makes or operation in (os.posix_fallocate, os.mkdir)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().perform(operation, *arguments)


def opened(path: Path, files: Files) -> Broker:
    return Broker(opening.on_disk(path, files=files, segment_bytes=16 << 10))


def work(broker: Broker) -> Queue:
    return broker.queue("work", max_attempts=2, backoff=None)


@dataclass
class Witness:
    """What was begun, and what the broker has said to be done. Payloads tell messages apart."""

    begun: set[bytes] = field(default_factory=set)
    published: set[bytes] = field(default_factory=set)
    acking: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)
    dead: set[bytes] = field(default_factory=set)
    batches: list[set[bytes]] = field(default_factory=list)
    numbers: int = 0

    def publish(self, queue: Queue, count: int = 1, size: int = 0) -> None:
        batch = [b"%d " % number + b"." * size for number in range(self.numbers, self.numbers + count)]
        self.numbers += count
        self.begun |= set(batch)
        self.batches.append(set(batch))
        try:
            queue.publish_many(batch)
        except DiskFull:  # nothing was changed
            self.begun -= set(batch)
            raise
        self.published |= set(batch)

    def ack(self, queue: Queue, found: list[Delivery]) -> None:
        these = {one.payload for one in found}
        self.acking |= these
        queue.ack_many(found)
        self.acked |= these

    def reject(self, one: Delivery) -> None:
        one.reject(error="no good")
        self.dead.add(one.payload)

    # --- afterwards ---

    def check(self, path: Path) -> None:
        with opened(path, UnsyncedFiles()) as broker:
            queue = work(broker)
            found = [message.payload for message in queue.peek(1000)]
            letters = [message.payload for message in queue.dead_letters().peek(1000)]
            counts = (queue.stats().depth, queue.dead_letters().stats().depth)
        assert counts == (len(found), len(letters))
        there = [*found, *letters]
        assert len(there) == len(set(there)), "something is there twice"
        assert set(there) <= self.begun, "something is there that nobody published"
        assert not set(there) & self.acked, "something that was acked is there"
        assert self.published - self.acking <= set(there), "something that was published is gone"
        assert self.dead <= set(letters) | self.acking, "a dead letter is gone"
        for batch in self.batches:
            left = batch - self.acking
            assert left <= set(there) or not left & set(there), "half a batch is there"


# --- scenes ---


class Scene(NamedTuple):
    """Whether the directory was closed or its owner killed, and what then goes wrong. Without an act, it is opening that does."""

    closed: bool
    act: Callable[[Broker, Witness], None] | None


def _publish(broker: Broker, witness: Witness) -> None:
    for count in (1, 3, 1):
        witness.publish(work(broker), count)


def _publish_much(broker: Broker, witness: Witness) -> None:
    """Segments are sealed and begun on the way."""
    for _ in range(6):
        witness.publish(work(broker), 2, 4000)


def _receive(broker: Broker, witness: Witness) -> None:
    queue = work(broker)
    while queue.receive_many(2):
        pass


def _ack(broker: Broker, witness: Witness) -> None:
    queue = work(broker)
    while found := queue.receive_many(2):
        witness.ack(queue, found)


def _nack(broker: Broker, witness: Witness) -> None:
    queue = work(broker)
    while one := queue.receive():
        last = one.attempt == 2
        one.nack(error="try again")
        if last:
            witness.dead.add(one.payload)


def _reject(broker: Broker, witness: Witness) -> None:
    queue = work(broker)
    while one := queue.receive():
        witness.reject(one)


def _redrive(broker: Broker, witness: Witness) -> None:
    witness.dead.clear()  # they may be anywhere now
    work(broker).redrive(limit=1)
    work(broker).redrive()


def _upkeep(broker: Broker, witness: Witness) -> None:
    queue = work(broker)
    witness.publish(queue, 2)
    witness.ack(queue, queue.receive_many(3))
    upkeep = broker._port.monitor.upkeep  # type: ignore[attr-defined]
    upkeep.run()
    upkeep.run()


def _close(broker: Broker, witness: Witness) -> None:
    witness.publish(work(broker))
    broker.close()


SCENES: Final = {
    "publishing": Scene(True, _publish),
    "publishing much": Scene(True, _publish_much),
    "receiving": Scene(True, _receive),
    "acking": Scene(True, _ack),
    "nacking": Scene(True, _nack),
    "rejecting": Scene(True, _reject),
    "redriving": Scene(True, _redrive),
    "keeping up": Scene(False, _upkeep),
    "closing": Scene(False, _close),
    "opening": Scene(True, None),
    "opening after a kill": Scene(False, None),
}


class Template(NamedTuple):
    path: Path
    witness: Witness


def _prepared(path: Path, *, closed: bool) -> Template:
    """Messages that are new, acked, failed once, dead and leased."""
    witness = Witness()
    alive = path / "alive"
    broker = opened(alive, UnsyncedFiles())
    queue = work(broker)
    for _ in range(3):
        witness.publish(queue, 4, 500)
    witness.ack(queue, queue.receive_many(3))
    for one in queue.receive_many(2):
        witness.reject(one)
    for one in queue.receive_many(2):
        one.nack()
    queue.receive_many(1)
    if closed:
        broker.close()
    shutil.copytree(alive, path / "data")
    broker.close()
    return Template(path / "data", witness)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Template]:
    return {closed: _prepared(tmp_path_factory.mktemp("scene"), closed=closed) for closed in (False, True)}


# --- one try ---


def _expect(error: PenstockError, *kinds: type[PenstockError]) -> None:
    assert isinstance(error, kinds), repr(error)


class Try:
    """One act with one fault."""

    def __init__(
        self, template: Template, path: Path, scene: Scene, kind: str, nth: int, *, forever: bool
    ) -> None:
        self.path = path
        self.scene = scene
        self.kind, self.nth, self.forever = kind, nth, forever
        self.witness = copy.deepcopy(template.witness)
        self.files = FaultyFiles()
        self.calls = 0
        shutil.copytree(template.path, path)

    def run(self) -> bool:
        """Whether the fault came to pass at all."""
        if self.scene.act is None:
            self._open()
        else:
            self._act(self.scene.act)
        self.witness.check(self.path)
        self.witness.check(self.path)  # after a clean end, too
        shutil.rmtree(self.path)
        return self.files.fired

    def _open(self) -> None:
        self.files.arm(self.kind, self.nth, forever=self.forever)
        try:
            broker = opened(self.path, self.files)
        except PenstockError as error:
            _expect(error, JournalFailed, DiskFull)
            self.calls = self.files.calls
            return
        self.calls = self.files.calls
        self._close(broker)

    def _act(self, act: Callable[[Broker, Witness], None]) -> None:
        broker = opened(self.path, self.files)
        self.files.arm(self.kind, self.nth, forever=self.forever)
        failed = False
        try:
            act(broker, self.witness)
        except PenstockError as error:
            _expect(error, JournalFailed, DiskFull, MaintenanceFailed)
            failed = isinstance(error, JournalFailed)
        self.calls = self.files.calls
        if act is not _close:
            if failed:
                self._refuses(broker)
            elif not self.forever:
                self.files.disarm()
                self._goes_on(broker)
        self._close(broker)

    def _refuses(self, broker: Broker) -> None:
        """A broker whose journal failed says so, whatever it is asked."""
        log = broker._port.monitor.engine.find("default", "work")  # type: ignore[attr-defined]
        queue = Queue(broker, handle_of(log))
        for call in (
            lambda: queue.publish(b"never"),
            lambda: queue.publish_many([b"never", b"never"]),
            queue.receive,
            lambda: queue.receive(timeout=10),
            queue.peek,
            queue.purge,
            queue.redrive,
            lambda: broker.queue("another"),
        ):
            with pytest.raises(JournalFailed):
                call()

    def _goes_on(self, broker: Broker) -> None:
        """A fault that passed, and did not make the journal fail: everything works."""
        queue = work(broker)
        self.witness.publish(queue, 2)
        found = queue.receive_many(1)
        assert found
        self.witness.ack(queue, found)

    def _close(self, broker: Broker) -> None:
        try:
            broker.close()
        except PenstockError as error:
            _expect(error, JournalFailed, MaintenanceFailed)


def _sweep(
    template: Template, path: Path, name: str, kind: str, *, forever: bool, sample: int | None
) -> None:
    scene = SCENES[name]
    dry = Try(template, path / "dry", scene, kind, 1 << 60, forever=False)
    assert not dry.run()
    calls = range(1, dry.calls + 1)
    for nth in calls if sample is None else campaign.some(calls, sample, (name, kind, forever)):
        one = Try(template, path / f"{nth}", scene, kind, nth, forever=forever)
        try:
            one.run()  # threads may make fewer calls than in the dry run
        except BaseException as error:
            how = "from then on" if forever else "once"
            error.add_note(f"while {name}: call {nth} of {len(calls)} got {kind}, {how}")
            raise


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", [EIO, ENOSPC])
@pytest.mark.parametrize("name", SCENES)
def test_a_failing_call_costs_nothing_acknowledged(
    templates: dict[bool, Template], tmp_path: Path, name: str, kind: str, forever: bool
) -> None:
    _sweep(templates[SCENES[name].closed], tmp_path, name, kind, forever=forever, sample=3)


@pytest.mark.campaign
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", [EIO, ENOSPC])
@pytest.mark.parametrize("name", SCENES)
def test_every_failing_call_costs_nothing_acknowledged(
    templates: dict[bool, Template], tmp_path: Path, name: str, kind: str, forever: bool
) -> None:
    _sweep(templates[SCENES[name].closed], tmp_path, name, kind, forever=forever, sample=None)


def test_a_full_disk_refuses_publishes_and_takes_acks(tmp_path: Path) -> None:
    """From some moment on nothing takes room any more: publishing is refused and changes nothing, acks go on out of the reserve."""
    files = FullFiles()
    witness = Witness()
    broker = opened(tmp_path, files)
    queue = work(broker)
    witness.publish(queue, 100)
    files.full = True
    with pytest.raises(DiskFull):  # noqa: PT012
        for _ in range(1000):
            witness.publish(queue, 4, 4000)
    before = (queue.stats(), queue.peek(1000))
    for _ in range(3):
        with pytest.raises(DiskFull):
            witness.publish(queue, 4, 4000)
        assert (queue.stats(), queue.peek(1000)) == before
    for _ in range(20):
        found = queue.receive_many(2)
        assert len(found) == 2
        witness.ack(queue, found)
    files.full = False
    witness.publish(queue, 4, 4000)
    broker.close()
    witness.check(tmp_path)


def test_a_journal_that_fails_wakes_those_who_wait(tmp_path: Path) -> None:
    files = FaultyFiles()
    broker = opened(tmp_path, files)
    queue = work(broker)
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            queue.receive(timeout=None)
        except PenstockError as error:
            heard.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while not queue.stats().waiting:
        thread.join(0.001)
    files.arm(EIO, 1, forever=False)
    with pytest.raises(JournalFailed):
        queue.publish(b"lost, perhaps")
    thread.join(5)
    assert not thread.is_alive(), "it waits for a broker that will never give it anything"
    assert isinstance(heard[0], JournalFailed)
    with suppress(PenstockError):
        broker.close()


def test_a_broker_that_failed_lets_go_of_its_directory(tmp_path: Path) -> None:
    files = FaultyFiles()
    broker = opened(tmp_path, files)
    queue = work(broker)
    queue.publish(b"kept")
    files.arm(EIO, 1, forever=True)
    with pytest.raises(JournalFailed):
        queue.publish(b"lost, perhaps")
    with suppress(JournalFailed):
        broker.close()
    with opened(tmp_path, UnsyncedFiles()) as again:
        assert [message.payload for message in work(again).peek(9)][:1] == [b"kept"]
