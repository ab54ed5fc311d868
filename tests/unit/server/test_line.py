"""One write for one answer."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.server.line import Line


class Transport:
    """Remembers what was done to it."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def write_eof(self) -> None:
        self.done.append("eof")

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def on_a_line(*steps: tuple[str] | tuple[str, bytes] | None) -> list[Any]:
    """What a transport sees of these steps; None is a turn of the loop."""

    async def play() -> list[Any]:
        transport = Transport()
        line: Any = Line(transport, asyncio.get_running_loop())  # type: ignore[arg-type]
        for step in steps:
            if step is None:
                await asyncio.sleep(0)
            else:
                getattr(line, step[0])(*step[1:])
        return transport.done

    return asyncio.run(play())


def test_a_head_goes_out_with_its_body() -> None:
    assert on_a_line(("write", HEAD), ("write", b"body"), None, None) == [HEAD + b"body"]


def test_a_head_whose_body_takes_its_time_goes_out_by_itself() -> None:
    assert on_a_line(("write", HEAD), None, None, ("write", b"body")) == [HEAD, b"body"]


def test_what_is_no_head_goes_out_at_once() -> None:
    assert on_a_line(("write", b"data: 1\n\n"), ("write", b"data: 2\n\n")) == [b"data: 1\n\n", b"data: 2\n\n"]


def test_two_answers_in_a_row_are_in_order() -> None:
    found = on_a_line(("write", HEAD), ("write", b""), ("write", HEAD), ("write", b"body"))
    assert b"".join(found) == HEAD + HEAD + b"body"


def test_a_head_goes_out_before_the_end() -> None:
    assert on_a_line(("write", HEAD), ("close",), None, None) == [HEAD, "close"]
    assert on_a_line(("write", HEAD), ("write_eof",), None, None) == [HEAD, "eof"]


def test_nothing_goes_out_after_an_abort() -> None:
    assert on_a_line(("write", HEAD), ("abort",), None, None) == ["abort"]


def test_the_rest_is_the_transports() -> None:
    async def asked() -> str:
        line: Any = Line(Transport(), asyncio.get_running_loop())  # type: ignore[arg-type]
        return line.get_extra_info("peername")  # type: ignore[no-any-return]

    assert asyncio.run(asked()) == "the peername"
