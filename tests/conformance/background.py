"""Calls in threads of their own, whose results are waited for and never slept for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
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


def all_of(calls: list[Future[T]]) -> list[T]:
    return [call.result(PATIENCE_S) for call in calls]
