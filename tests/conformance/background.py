"""Calls in threads of their own, whose results are waited for and never slept for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: A test that waits for so long has failed. It is no measure of speed.
PATIENCE_S: Final = 60


def start(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Begin the call in a thread; returns once that thread runs.

    Whether the call itself waits already cannot be seen from outside, and no test may depend on it.
    """
    done: Future[T] = Future()
    running = threading.Event()

    def run() -> None:
        running.set()
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    # A daemon, so that a test that failed does not hold up the others.
    threading.Thread(target=run, daemon=True).start()
    assert running.wait(PATIENCE_S)
    return done


def until(condition: Callable[[], object]) -> None:
    """Return when it is so; look again as soon as another thread had its turn."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 10_000):
        if condition():
            return
        pause.wait(0.0001)
    raise AssertionError("it never came to that")


@contextmanager
def interrupted_once(moment: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C for the main thread, which this is: as soon as it is so, and once.

    A signal that comes after the interpreter has looked for one, and before the thread sleeps, wakes nobody: so it is sent until it was heard.
    """
    main = threading.get_ident()
    heard = threading.Event()
    left = threading.Event()

    def hear(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def interrupt() -> None:
        until(lambda: left.is_set() or moment())
        while not left.is_set() and not heard.is_set():
            signal.pthread_kill(main, signal.SIGINT)
            heard.wait(0.001)

    previous = signal.signal(signal.SIGINT, hear)
    interrupting = start(interrupt)
    try:
        yield
    finally:
        left.set()
        interrupting.result(PATIENCE_S)
        signal.signal(signal.SIGINT, previous)


def all_of(calls: list[Future[T]]) -> list[T]:
    return [call.result(PATIENCE_S) for call in calls]
