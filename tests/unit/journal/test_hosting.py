"""A loop that leads: in which order it writes, has synced and tells, what it leaves to the worker, and how it ends."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.errors import BrokerClosed, ForkedProcess, JournalFailed
from penstock.journal.commit import NOBODY, GroupCommit, Ticket
from penstock.journal.hosting import HOSTED_BYTES_MAX, Host
from penstock.journal.journal import Journal
from penstock.journal.kernel import KernelSync
from penstock.journal.rows import Rows, messages
from tests.faults.faulty_files import KINDS, SHORT, FaultyFiles
from tests.unit.journal.watched import Watched, bells

Loop = asyncio.AbstractEventLoop


def is_ringing(bell: int) -> bool:
    return bool(select.select([bell], [], [], 0)[0])


class Disk:
    """What is written and synced, in order. A sync of the kernel ends when it is told to."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.sequence = 0
        self.is_full = False
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.errors: dict[str, OSError] = {}
        self.holds = ""  # what is held, until `go_on`
        self.go_on = threading.Event()
        self.held = threading.Event()  # somebody is

    def _do(self, what: str) -> None:
        self.events.append(what)
        if error := self.errors.pop(what, None):
            raise error

    def hold(self, what: str) -> None:
        if what == self.holds:
            self.held.set()
            assert self.go_on.wait(30)

    def write(self, batch: list[Ticket]) -> None:
        self.hold("write")
        self.sequence += 1
        self._do("write")
        for ticket in batch:
            ticket.sequence = self.sequence

    def sync(self) -> None:
        self._do(f"sync in {threading.current_thread().name}")

    def idle(self) -> None:
        if self.is_full:
            self.is_full = False
            self._do(f"rotate in {threading.current_thread().name}")

    def begin_sync(self) -> bool:
        self._do("begin")
        return True

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        if timeout_s:
            self.hold("help")
        return is_ringing(self.bell)

    def hush(self) -> None:
        os.eventfd_read(self.bell)

    def end_sync(self) -> None:
        assert os.eventfd_read(self.bell) == 1
        self._do("end")

    def ring(self) -> None:
        os.eventfd_write(self.bell, 1)

    def let_go(self) -> None:
        os.close(self.bell)


class Scene:
    """A group whose host is the running loop."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.group = GroupCommit(threading.RLock(), self.disk.write, self.disk.sync, self.disk.idle)
        self.loop = asyncio.get_running_loop()
        self.group.host = self.host = Host(self.group, self.loop, self.disk)

    def queue(self, name: str, *, sync: bool = True, size: int = 1) -> Ticket:
        ticket = self.group.queue([], size, sync=sync)
        ticket.then = lambda: self.disk.events.append(name)
        return ticket

    def publish(self, name: str, *, sync: bool = True, size: int = 1) -> asyncio.Future[int]:
        return self.queue(name, sync=sync, size=size).promise(self.loop)

    async def stop(self) -> None:
        if self.host._closed:
            return
        self.group.fail(BrokerClosed("closed"))
        await asyncio.to_thread(self.group.stop)
        await turns()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # what another thread does tells no loop
        await asyncio.sleep(0)


def play(scene: Callable[[Scene], Awaitable[None]]) -> list[str]:
    """What a disk sees of a scene."""

    async def all_of_it() -> list[str]:
        stage = Scene()
        await scene(stage)
        await stage.stop()
        return stage.disk.events

    return uvloop.run(all_of_it())


def test_a_commit_is_written_by_the_loop_synced_by_the_kernel_and_then_told() -> None:
    async def scene(on: Scene) -> None:
        one, two = on.publish("one"), on.publish("two")
        await turns()
        assert on.disk.events == ["write", "begin"]
        assert not one.done()
        on.disk.ring()
        assert (await one, await two) == (1, 1)
        await turns()
        assert on.group.leader == NOBODY

    assert play(scene) == ["write", "begin", "end", "one", "two"]


def test_what_came_while_a_turn_lasted_is_in_its_commit() -> None:
    async def scene(on: Scene) -> None:
        reading, writing = os.pipe()
        late: list[asyncio.Future[int]] = []

        def heard() -> None:
            on.loop.remove_reader(reading)
            on.loop.call_soon(lambda: late.append(on.publish("late")))  # by a task, as a server does

        on.loop.add_reader(reading, heard)
        early = on.publish("early")
        os.write(writing, b"x")  # a request, which the loop sees after this turn
        await until(lambda: bool(late) and "begin" in on.disk.events)
        on.disk.ring()
        assert await early == 1
        assert late[0].done()
        os.close(reading)
        os.close(writing)

    assert play(scene) == ["write", "begin", "end", "early", "late"]


def test_what_comes_during_a_sync_is_one_frame_and_counts_with_the_next() -> None:
    async def scene(on: Scene) -> None:
        one = on.publish("one")
        await turns()
        two = on.publish("two")
        await turns()
        three = on.publish("three")
        await turns()
        assert on.disk.events == ["write", "begin"]
        on.disk.ring()
        assert await one == 1
        await turns()
        assert on.disk.events == ["write", "begin", "end", "one", "write", "begin"]
        assert not two.done()
        on.disk.ring()
        assert (await two, await three) == (2, 2)

    assert play(scene) == ["write", "begin", "end", "one", "write", "begin", "end", "two", "three"]


def test_what_only_wants_writing_does_not_wait_for_a_sync() -> None:
    async def scene(on: Scene) -> None:
        one = on.publish("one")
        await turns()
        two, lease = on.publish("two"), on.publish("lease", sync=False)
        assert await lease == 2
        assert not one.done()
        on.disk.ring()
        await one
        await turns()
        on.disk.ring()
        await two

    assert play(scene) == ["write", "begin", "write", "lease", "end", "one", "begin", "end", "two"]


def test_what_follows_a_commit_and_only_wants_writing_is_written_with_it() -> None:
    """As a lease does that was waited for: it is there when its receiver wakes."""

    async def scene(on: Scene) -> None:
        lease: list[Ticket] = []
        message = on.queue("message")
        message.then = lambda: lease.append(on.queue("lease", sync=False))
        done = message.promise(on.loop)
        await turns()
        on.disk.ring()
        await done
        assert lease[0].done

    assert play(scene) == ["write", "begin", "end", "write", "lease"]


def test_a_thread_that_waits_while_the_loop_leads_is_served_by_it() -> None:
    async def scene(on: Scene) -> None:
        one = on.publish("one")
        await turns()
        thread = asyncio.ensure_future(asyncio.to_thread(on.queue("thread").wait))
        await until(lambda: bool(on.group._pending))
        on.disk.ring()
        await one
        await turns()
        on.disk.ring()
        assert await thread == 2

    assert play(scene) == ["write", "begin", "end", "one", "write", "begin", "end", "thread"]


def test_a_barrier_is_left_to_the_worker_once_nothing_is_under_way() -> None:
    async def scene(on: Scene) -> None:
        one = on.publish("one")
        await turns()
        barrier = on.group.barrier(lambda: on.disk.events.append("at rest"))
        two = on.publish("two")
        done = barrier.promise(on.loop)
        await turns()
        assert on.disk.events == ["write", "begin"]
        on.disk.ring()
        await asyncio.gather(one, done, two)

    events = play(scene)
    worker = "sync in penstock-commit"
    assert events == ["write", "begin", "end", "one", "write", worker, "at rest", "write", worker, "two"]


def test_many_bytes_are_left_to_the_worker() -> None:
    async def scene(on: Scene) -> None:
        await on.publish("many", size=HOSTED_BYTES_MAX + 1)
        few = on.publish("few")
        await turns()
        on.disk.ring()
        await few

    assert play(scene) == ["write", "sync in penstock-commit", "many", "write", "begin", "end", "few"]


def test_the_next_segment_is_begun_by_the_worker() -> None:
    async def scene(on: Scene) -> None:
        one = on.publish("one")
        await turns()
        on.disk.is_full = True
        on.disk.ring()
        await one
        await until(lambda: not on.disk.is_full and on.group.leader == NOBODY)

    assert play(scene) == ["write", "begin", "end", "one", "rotate in penstock-commit"]


@pytest.mark.parametrize("step", ["write", "begin", "end"])
def test_a_step_that_fails_is_the_journals_failure(step: str) -> None:
    async def scene(on: Scene) -> None:
        on.disk.errors[step] = OSError(5, "the disk")
        one = on.publish("one")
        await turns()
        if step == "end":
            two = on.publish("two")
            await turns()
            on.disk.ring()
            with pytest.raises(JournalFailed, match="the disk"):
                await two
        with pytest.raises(JournalFailed, match="the disk"):
            await one
        with pytest.raises(JournalFailed):
            on.queue("three")
        assert on.group.leader == NOBODY

    assert "one" not in play(scene)


def test_a_write_that_fails_during_a_sync_fails_what_is_being_synced_too() -> None:
    async def scene(on: Scene) -> None:
        one = on.publish("one")
        await turns()
        on.disk.errors["write"] = OSError(5, "the disk")
        lease = on.publish("lease", sync=False)
        for future in (one, lease):
            with pytest.raises(JournalFailed):
                await future
        on.disk.ring()
        await turns()

    assert play(scene) == ["write", "begin", "write", "end"]


def test_who_closes_ends_what_is_under_way_although_the_loop_does_not_come_to_it() -> None:
    async def scene(on: Scene) -> None:
        one = on.publish("one")
        await turns()
        on.group.fail(BrokerClosed("closed"))
        on.disk.ring()
        thread = threading.Thread(target=on.group.stop)
        thread.start()
        thread.join(30)  # the loop stands still meanwhile
        assert not thread.is_alive()
        assert await one == 1

    assert play(scene) == ["write", "begin", "end", "one"]


def test_a_thread_that_helps_does_not_stand_in_the_loops_way() -> None:
    async def scene(on: Scene) -> None:
        one = on.publish("one")
        await turns()
        on.disk.holds = "help"
        thread = asyncio.ensure_future(asyncio.to_thread(on.queue("thread").wait))
        assert await asyncio.to_thread(
            on.disk.held.wait, 30
        )  # it has lost its patience, and waits for the kernel
        on.disk.ring()
        await one
        on.disk.go_on.set()
        await until(lambda: on.disk.events[-1] == "begin")
        on.disk.ring()
        assert await thread == 2

    assert play(scene) == ["write", "begin", "end", "one", "write", "begin", "end", "thread"]


def test_a_thread_that_has_committed_passes_the_lead_to_the_loop() -> None:
    async def scene(on: Scene) -> None:
        on.disk.holds = "write"
        thread = asyncio.ensure_future(asyncio.to_thread(on.queue("thread").wait))
        assert await asyncio.to_thread(on.disk.held.wait, 30)
        one = on.publish("one")
        await turns()
        on.disk.go_on.set()
        assert await thread == 1
        await until(lambda: on.disk.events[-1] == "begin")
        on.disk.ring()
        assert await one == 2

    events = play(scene)
    assert [event.split(" in ")[0] for event in events] == [
        "write",
        "sync",
        "thread",
        "write",
        "begin",
        "end",
        "one",
    ]


def test_a_bell_that_somebody_else_has_heard_ends_nothing() -> None:
    async def scene(on: Scene) -> None:
        one = on.publish("one")
        await turns()
        on.host._hear()  # it rang, and the helper who heard it first has begun the next sync
        assert on.disk.events == ["write", "begin"]
        on.disk.ring()
        await one

    assert play(scene) == ["write", "begin", "end", "one"]


def test_a_bell_that_rings_for_nobody_is_hushed() -> None:
    async def scene(on: Scene) -> None:
        on.disk.ring()
        await until(lambda: not is_ringing(on.disk.bell))

    assert play(scene) == []


def test_in_a_forked_child_what_is_being_synced_fails() -> None:
    async def scene(on: Scene) -> None:
        ticket = on.queue("one")
        future = ticket.promise(on.loop)
        await turns()
        on.group.orphan(threading.RLock(), ForkedProcess("of the parent"))
        with pytest.raises(ForkedProcess):
            ticket.wait()
        future.cancel()
        on.host.close()

    assert play(scene) == ["write", "begin"]


def test_another_loop_has_the_worker() -> None:
    async def scene(on: Scene) -> None:
        def other() -> int:
            async def published() -> int:
                return await on.queue("other").promise(asyncio.get_running_loop())

            return asyncio.run(published())

        assert await asyncio.to_thread(other) == 1

    assert play(scene) == ["write", "sync in penstock-commit", "other"]


# --- a real journal ---


class ManualKernel:
    """Syncs that end when they are told to."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.begun = 0
        self.refusal: OSError | None = None
        self.error: OSError | None = None

    def begin(self, fd: int) -> None:
        del fd
        self.begun += 1
        if self.refusal is not None:
            raise self.refusal

    def end(self) -> None:
        os.eventfd_read(self.bell)
        if self.error is not None:
            raise self.error

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        del timeout_s
        return is_ringing(self.bell)

    def hush(self) -> None:
        os.eventfd_read(self.bell)

    def ring(self) -> None:
        os.eventfd_write(self.bell, 1)

    def close(self) -> None:
        os.close(self.bell)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> ManualKernel:
    made = ManualKernel()
    monkeypatch.setattr(KernelSync, "open", lambda: made)
    return made


def row(given: int) -> list[Rows]:
    return [messages(1, [b"x%d" % given], ids=[given], timestamp=0)]


def payloads(path: Path) -> list[bytes]:
    with Journal(path) as journal:
        return [bytes(one) for batch in journal.read(log=1) for one in batch.values("payload")]


def test_a_sync_counts_for_what_was_written_before_it_began(tmp_path: Path, kernel: ManualKernel) -> None:
    async def scene() -> None:
        journal = Journal(tmp_path)
        assert journal.host(asyncio.get_running_loop())
        before = journal.durable_sequence
        one = journal.submit(row(1))
        await turns()
        two = journal.submit(row(2))
        await turns()
        assert kernel.begun == 1
        kernel.ring()
        assert await one == before + 1
        assert journal.durable_sequence == before + 1
        assert not two.done()
        kernel.ring()
        assert await two == before + 2
        assert journal.durable_sequence == before + 2
        assert (journal.meter.commits.total > 0, sum(journal.meter.commits.buckets)) == (True, 2)
        await asyncio.to_thread(journal.close)

    uvloop.run(scene())
    assert payloads(tmp_path) == [b"x1", b"x2"]


def test_a_sync_that_fails_while_it_is_closed_is_not_made_again(tmp_path: Path, kernel: ManualKernel) -> None:
    async def scene() -> None:
        files = Watched()
        journal = Journal(tmp_path, files=files)
        journal.host(asyncio.get_running_loop())
        future = journal.submit(row(1))
        await turns()
        kernel.error = OSError(5, "the disk")
        kernel.ring()
        files.calls.clear()
        # As `close` does, when somebody publishes between its sync and the end.
        assert not await asyncio.to_thread(journal._tail.stop, BrokerClosed("closed"))
        with pytest.raises(BrokerClosed):
            await future
        assert "fdatasync" not in files.calls
        journal._tail.close()
        journal._owner.release()

    uvloop.run(scene())


def test_a_sync_that_cannot_be_begun_lets_others_go_on(tmp_path: Path, kernel: ManualKernel) -> None:
    async def scene() -> None:
        journal = Journal(tmp_path)
        journal.host(asyncio.get_running_loop())
        kernel.refusal = OSError(5, "the disk")
        with pytest.raises(JournalFailed, match="the disk"):
            await journal.submit(row(1))
        assert not journal._tail._sync_lock.locked()
        await asyncio.to_thread(journal.close)

    uvloop.run(scene())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("closed", [True, False])
def test_it_is_closed_when_its_loop_is_gone(
    tmp_path: Path, new_loop: Callable[[], Loop], closed: bool
) -> None:
    raised: list[BaseException] = []
    before = bells()

    def run() -> None:
        loop = new_loop()
        try:
            journal = Journal(tmp_path)

            async def begin() -> None:
                journal.host(loop)
                journal.submit(row(1)).add_done_callback(lambda _: None)
                await asyncio.sleep(0)

            loop.run_until_complete(begin())
            if closed:
                loop.close()
            journal.close()
        except BaseException as error:
            raised.append(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert (raised, thread.is_alive()) == ([], False)
    assert payloads(tmp_path) == [b"x1"]
    assert bells() == before


@pytest.fixture
def real_kernel() -> None:
    found = KernelSync.open()
    if found is None:
        pytest.skip("this kernel does not sync by itself")
    found.close()


@pytest.mark.usefixtures("real_kernel")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_many_publishers_over_many_segments(tmp_path: Path, run: Callable[[Any], Any]) -> None:
    async def publish(journal: Journal, first: int) -> None:
        for given in range(first, first + 40):
            await journal.submit(
                [messages(1, [b"x%d" % given * 200], ids=[given], timestamp=0)], sync=bool(given % 3)
            )

    async def scene() -> None:
        journal = Journal(tmp_path, segment_bytes=64 << 10)
        journal.host(asyncio.get_running_loop())
        waiting = asyncio.to_thread(lambda: [journal.commit(row(9000 + n)) for n in range(50)])
        await asyncio.gather(*(publish(journal, 1 + 100 * n) for n in range(30)), waiting)
        assert len(journal.segments()) > 2
        await asyncio.to_thread(journal.close)

    run(scene())
    found = payloads(tmp_path)
    ids = {b"x%d" % (given + 100 * n) * 200 for n in range(30) for given in range(1, 41)}
    assert set(found) == ids | {b"x%d" % (9000 + n) for n in range(50)}
    assert len(found) == 30 * 40 + 50


@pytest.mark.usefixtures("real_kernel")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_it_is_closed_while_everybody_publishes(tmp_path: Path, run: Callable[[Any], Any]) -> None:
    acknowledged: list[bytes] = []

    async def publish(journal: Journal, first: int) -> None:
        for given in range(first, first + 10_000):
            await journal.submit(row(given))
            acknowledged.append(b"x%d" % given)

    async def scene() -> None:
        journal = Journal(tmp_path)
        journal.host(asyncio.get_running_loop())
        everybody = asyncio.gather(
            *(publish(journal, 1 + 10_000 * n) for n in range(20)), return_exceptions=True
        )
        await until(lambda: len(acknowledged) >= 200)
        await asyncio.to_thread(journal.close)
        assert {type(error) for error in await everybody} == {BrokerClosed}

    run(scene())
    assert set(acknowledged) <= set(payloads(tmp_path))


@pytest.mark.usefixtures("real_kernel")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_it_may_be_closed_in_the_loops_own_thread(tmp_path: Path, run: Callable[[Any], Any]) -> None:
    async def scene() -> None:
        journal = Journal(tmp_path)
        journal.host(asyncio.get_running_loop())
        future = journal.submit(row(1))
        await asyncio.sleep(0)
        journal.close()
        assert await future

    run(scene())
    assert payloads(tmp_path) == [b"x1"]


@pytest.mark.usefixtures("real_kernel")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != SHORT])
def test_whichever_call_fails_what_was_acknowledged_is_there(tmp_path: Path, kind: str) -> None:
    for nth in range(1, 120, 3):
        path = tmp_path / f"{kind}{nth}"
        files = FaultyFiles()
        acknowledged: list[bytes] = []

        async def publish(journal: Journal, first: int, acknowledged: list[bytes] = acknowledged) -> None:
            for given in range(first, first + 6):
                await journal.submit([messages(1, [b"x%d" % given * 300], ids=[given], timestamp=0)])
                acknowledged.append(b"x%d" % given * 300)

        async def scene(path: Path = path, files: FaultyFiles = files, nth: int = nth) -> None:
            journal = Journal(path, files=files, segment_bytes=16 << 10)
            journal.host(asyncio.get_running_loop())
            files.arm(kind, nth, forever=False)
            everybody = [publish(journal, 1 + 10 * n) for n in range(5)]
            await asyncio.gather(*everybody, return_exceptions=True)
            await asyncio.gather(asyncio.to_thread(journal.close), return_exceptions=True)

        uvloop.run(scene())
        assert set(acknowledged) <= set(payloads(path)), f"call {nth}"
        if not files.fired:
            break
