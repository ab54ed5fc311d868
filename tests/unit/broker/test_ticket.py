"""An answer reaches whoever waits for it, and what nobody will see goes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.ticket import DONE, Answer, Leasing, Recorded, Waiting
from penstock.errors import JournalFailed
from tests.unit.broker.patience import PATIENCE_S, interrupted_at_the_gate, start


class Failed:
    """A record that could not be made."""

    done = True

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def wait(self) -> int:
        raise self.error

    def promise(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        future: asyncio.Future[int] = loop.create_future()
        future.set_exception(self.error)
        return future


class Given:
    """What was given up or taken back."""

    def __init__(self) -> None:
        self.up: list[Waiting] = []
        self.back: list[tuple[Any, Any]] = []

    def give_up(self, waiting: Waiting) -> None:
        self.up.append(waiting)

    def take_back(self, log: Any, value: Any) -> None:
        self.back.append((log, value))


@pytest.fixture
def given() -> Given:
    return Given()


# --- answers ---


def test_an_answer_is_waited_for() -> None:
    assert Answer(7).wait() == asyncio.run(Answer(7).get()) == 7
    assert Recorded(7, DONE).wait() == asyncio.run(Recorded(7, DONE).get()) == 7


def test_an_answer_is_given_though_its_record_failed() -> None:
    ticket = Recorded(7, Failed(JournalFailed("no")))
    with pytest.raises(JournalFailed):
        ticket.wait()
    with pytest.raises(JournalFailed):
        asyncio.run(ticket.get())


def test_what_was_granted_is_taken_back_from_who_has_it(given: Given) -> None:
    ticket = Leasing(7, DONE, given.take_back, "log")
    assert ticket.wait() == asyncio.run(ticket.get()) == 7
    assert given.back == []


@pytest.mark.parametrize("error", [JournalFailed("no"), KeyboardInterrupt()])
def test_what_nobody_will_see_is_kept(given: Given, error: BaseException) -> None:
    ticket = Leasing(7, Failed(error), given.take_back, "log")
    with pytest.raises(type(error)):
        ticket.wait()
    assert given.back == [("log", 7)]


def test_what_a_cancelled_task_was_granted_is_kept(given: Given) -> None:
    class Never:
        done = False

        def wait(self) -> int:
            raise AssertionError

        def promise(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
            return loop.create_future()

    async def run() -> None:
        task = asyncio.create_task(Leasing(7, Never(), given.take_back, "log").get())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert given.back == [("log", 7)]


# --- waiting ---


def test_what_was_granted_before_anybody_waited_is_waited_for(given: Given) -> None:
    waiting = a_receive(given)
    waiting.grant(Answer(7))
    assert waiting.wait() == asyncio.run(waiting.get()) == 7
    assert given.up == []


def test_a_thread_sleeps_on_when_it_was_granted_something(given: Given) -> None:
    for _ in range(200):
        waiting = a_receive(given)
        call = start(waiting.wait)
        waiting.grant(Answer(7))
        assert call.result(PATIENCE_S) == 7
    assert given.up == []


def a_receive(given: Given) -> Waiting:
    return Waiting((None, "default"), 1, None, deadline_us=None, give_up=given.give_up)


def test_a_task_sleeps_on_when_it_was_granted_something(given: Given) -> None:
    async def run(waiting: Waiting) -> Any:
        task = asyncio.create_task(waiting.get())
        await asyncio.sleep(0)
        granter = start(waiting.grant, Answer(7))
        found = await task
        granter.result(PATIENCE_S)
        return found

    for _ in range(50):
        assert asyncio.run(run(a_receive(given))) == 7
    assert given.up == []


def test_a_refusal_is_not_raised_or_not_given_up(given: Given) -> None:
    waiting = a_receive(given)
    waiting.grant(Recorded(7, Failed(JournalFailed("no"))))
    with pytest.raises(JournalFailed):
        waiting.wait()
    assert given.up == [waiting]


def test_one_who_is_interrupted_stays_in_line(given: Given) -> None:
    waiting = a_receive(given)
    with pytest.raises(KeyboardInterrupt), interrupted_at_the_gate():
        waiting.wait()
    assert given.up == [waiting]


def test_a_task_that_is_cancelled_stays_in_line_or_breaks_who_grants_later(given: Given) -> None:
    waiting = a_receive(given)

    async def run() -> None:
        task = asyncio.create_task(waiting.get())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waiting.grant(Answer(7))
        await asyncio.sleep(0)

    asyncio.run(run())
    assert given.up == [waiting]
    waiting.grant(Answer(8))  # its loop is closed


def test_who_waits_hears_of_it_later_than_whoever_comes_next() -> None:
    """A consumer's answer goes out before the publisher's: it is the one that somebody waits for."""

    async def play() -> None:
        waiting = Waiting((None, "default"), 1, None, deadline_us=None, give_up=None)
        waits = asyncio.ensure_future(waiting.get())
        await asyncio.sleep(0)
        waiting.grant(Answer("a message"))
        await asyncio.sleep(0)  # one turn
        assert waits.done()
        assert waits.result() == "a message"

    asyncio.run(play())


def test_who_waits_does_not_hear_of_what_another_thread_grants() -> None:
    async def play() -> str:
        waiting = Waiting((None, "default"), 1, None, deadline_us=None, give_up=None)
        waits = asyncio.ensure_future(waiting.get())
        await asyncio.sleep(0)
        await asyncio.to_thread(waiting.grant, Answer("a message"))
        return await asyncio.wait_for(waits, PATIENCE_S)

    assert asyncio.run(play()) == "a message"
