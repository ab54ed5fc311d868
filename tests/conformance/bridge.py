"""The asyncio shell, driven as if it were the sync one.

A `Loop` is an event loop in a thread of its own. A `Bridged` object stands for one of `penstock.aio` (broker, queue,
consumer, delivery): a call on it is made on the loop, what can be awaited is awaited there, and the caller's thread
waits for the result, which is bridged in turn. So a test is written once, and many threads of a test are many tasks of
one loop.

Nothing here knows the API. What is alive (has one of the methods in `_LIVE`) is bridged; everything else, such as a
message or a policy, is a plain value and is handed through.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

_LIVE: Final = ("queue", "publish", "receive", "ack", "read")
_END: Final = object()


class Loop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="conformance-loop", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it on the loop, await what it gives if that can be awaited, and wait for the result."""

        async def invoke() -> Any:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(invoke(), self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Bridged:
    """An object of the asyncio shell with the sync shell's behaviour."""

    def __init__(self, target: Any, loop: Loop) -> None:
        self._target = target
        self._loop = loop

    def __repr__(self) -> str:
        return f"Bridged({self._target!r})"

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return bridge(value, self._loop)

        def call(*args: Any, **kwargs: Any) -> Any:
            plain = {key: unbridge(given) for key, given in kwargs.items()}
            return bridge(self._loop.call(value, *map(unbridge, args), **plain), self._loop)

        return call

    def __enter__(self) -> Any:
        return bridge(self._loop.call(self._target.__aenter__), self._loop)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        return self._loop.call(self._target.__aexit__, kind, error, trace)

    def __iter__(self) -> Bridged:
        return Bridged(self._loop.call(self._target.__aiter__), self._loop)

    def __next__(self) -> Any:
        found = self._loop.call(_next, self._target)
        if found is _END:
            raise StopIteration
        return bridge(found, self._loop)


async def _next(iterator: Any) -> Any:
    # StopIteration cannot cross a future, so the end is a value until it is in the caller's thread.
    try:
        return await anext(iterator)
    except StopAsyncIteration:
        return _END


def bridge(value: Any, loop: Loop) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(bridge(one, loop) for one in value)
    if any(hasattr(value, name) for name in _LIVE):
        return Bridged(value, loop)
    return value


def unbridge(value: Any) -> Any:
    if type(value) is Bridged:  # not `isinstance`: a test may give what does not say its class
        return value._target
    if type(value) in {list, tuple}:
        return type(value)(unbridge(one) for one in value)
    return value
