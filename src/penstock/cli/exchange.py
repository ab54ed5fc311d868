"""`penstock publish`, `receive` and `peek`: messages in and out of queues."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import typer

from penstock.broker.sync import Consumer, Queue
from penstock.cli import output, shown
from penstock.cli.place import JsonLines, Name, Place, looked_at, opened, placed
from penstock.cli.streams import stdout_is_absent, stdout_is_unread
from penstock.errors import InvalidArgument, MessageTooLarge, PenstockError
from penstock.limits import MESSAGE_BYTES_MAX, PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN
from penstock.message import Message, check
from penstock.names import check_name

app = typer.Typer()

#: Of standard input, read at once: what has come by then is one batch.
CHUNK_BYTES: Final = 1 << 20

#: Messages that are taken, printed and settled together.
AT_ONCE: Final = 100

#: Lines of one commit: many enough for speed, and few enough for its bounds however short they are.
LINES_AT_ONCE: Final = 10_000

#: Exit code of a receive that found nothing, as grep has it.
NOTHING: Final = 1

Count = Annotated[
    int | None, typer.Option("-n", "--count", help="How many messages.", min=1, show_default=False)
]


# --- publish ---


@placed(app)
def publish(
    place: Place,
    queue: Name,
    payload: Annotated[str | None, typer.Argument(metavar="[PAYLOAD|-]", help="The message; - reads it from stdin.", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the message, or the lines, from a file.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Every line of stdin, or of the file, is a message.")] = False,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be given again.")] = None,
    key: Annotated[str | None, typer.Option(help="What keeps messages in order, with ordering by key.")] = None,
    priority: Annotated[int, typer.Option(help="Lower goes first.", min=PRIORITY_MIN, max=PRIORITY_MAX)] = PRIORITY_DEFAULT,
    delay: Annotated[float | None, typer.Option(metavar="SECONDS", help="Not before so long from now.")] = None,
    ttl: Annotated[float | None, typer.Option(metavar="SECONDS", help="Not after so long from now.")] = None,
    dedup_id: Annotated[str | None, typer.Option(metavar="ID", help="Publish nothing if this id was there lately.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")] = False,
) -> None:  # fmt: skip
    """Append messages to a queue; queue, and directory, are made if they do not exist.

    With no message given, every line of what comes through a pipe, or from a file behind <, is one. Prints the message's id, or how many lines there were. When it returns, they are on the disk, the server's if they went there. What comes through a pipe is
    published as it comes, in batches; if it fails on the way, stderr says how many were published before.

    [bold]Examples[/bold]

      penstock publish ./queue orders '{"order": 7}' --header type=order --priority 10

      penstock publish ./queue orders --file order.json --delay 60

      cat orders.jsonl | penstock publish ./queue orders             [dim]# every line is a message[/dim]

      cat order.json | penstock publish ./queue orders -             [dim]# all of it is one[/dim]

      penstock publish http://127.0.0.1:8080 orders '{"order": 7}'
    """
    with output.answering(place):
        check_name(queue, kind="queue name")
        lines = lines or (payload is None and file is None and _is_piped())
        if (payload is not None) + (file is not None) > 1 or (lines and payload not in (None, "-")):
            raise InvalidArgument("give one of PAYLOAD, - and --file; --lines goes with - and --file")
        if lines and dedup_id is not None:
            raise InvalidArgument(
                "one --dedup-id for many lines would publish the first of them only; with - all of stdin is one message"
            )
        like = Message(
            b"", headers=_headers(header or []), key=key, delay=delay, ttl=ttl, dedup_id=dedup_id,
            priority=priority,
        )  # fmt: skip
        check(like)
        if lines:
            _publish_lines(place, queue, file, like, as_json=as_json)
        else:
            _publish_one(place, queue, _payload(payload, file), like, as_json=as_json)


def _headers(given: list[str]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"the header {one!r} is not NAME=VALUE")
        found[name] = value
    return found


def _payload(given: str | None, file: Path | None) -> bytes:
    if file is not None:
        return file.read_bytes()
    if given is None:
        raise InvalidArgument("there is nothing to publish; give PAYLOAD or --file, or pipe lines into it")
    return _stdin().read() if given == "-" else os.fsencode(given)


def _is_piped() -> bool:
    """Whether stdin is a pipe or a file, and not a terminal, nothing, or what a supervisor left there."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # it is closed, or not of the system
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise InvalidArgument(
            "standard input is closed, so there is nothing to publish; give PAYLOAD or --file"
        )
    return sys.stdin.buffer


def _publish_one(place: Place, queue: str, payload: bytes, like: Message, *, as_json: bool) -> None:
    with opened(place, create=True) as (broker, _):
        (given,) = broker.queue(queue).publish_many([msgspec.structs.replace(like, payload=payload)])
    if as_json:
        output.print_json({"queue": queue, "id": given})
    else:
        sys.stdout.write(f"{given}\n")


def _publish_lines(place: Place, queue: str, file: Path | None, like: Message, *, as_json: bool) -> None:
    published = 0
    with ExitStack() as stack:
        source: BinaryIO = _stdin() if file is None else stack.enter_context(file.open("rb"))
        total_bytes = 0 if file is None else file.stat().st_size
        broker, _ = stack.enter_context(opened(place, create=True))
        into = broker.queue(queue)
        advance = stack.enter_context(output.progress_over(total_bytes or None, "Publishing"))
        try:
            for batch, size in _batches(source):
                if batch:
                    into.publish_many([msgspec.structs.replace(like, payload=line) for line in batch])
                published += len(batch)
                advance(size)
        except PenstockError as error:
            if published:
                output.warn(f"penstock: {published} messages were published before this:")
            raise error from None
    if as_json:
        output.print_json({"queue": queue, "published": published})
    else:
        sys.stdout.write(f"Published {published:,} messages.\n")


def _batches(source: Any) -> Iterator[tuple[list[bytes], int]]:
    """Lines as they come, without their ends, and how many bytes were read for them."""
    rest = b""
    while chunk := source.read1(CHUNK_BYTES):
        *batch, rest = (rest + chunk).split(b"\n")
        if len(rest) > MESSAGE_BYTES_MAX:
            raise MessageTooLarge(f"a line has more than {MESSAGE_BYTES_MAX} bytes; publish it with --file")
        for at in range(0, len(batch), LINES_AT_ONCE):
            yield batch[at : at + LINES_AT_ONCE], 0
        yield [], len(chunk)
    if rest:
        yield [rest], 0


# --- receive ---


@placed(app)
def receive(
    place: Place,
    queue: Name,
    count: Count = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="Wait so long for messages that are not there yet.", min=0)] = 0,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was printed, or give it back at the end.")] = True,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more until interrupted, or until there were COUNT.")] = False,
    as_json: JsonLines = False,
    raw: Annotated[bool, typer.Option("--raw", help="Only payloads, as they are, each with a newline behind it.")] = False,
) -> None:  # fmt: skip
    """Take messages out of a queue: one, unless told otherwise.

    A message is acknowledged after it was written to stdout, whether anybody has read it there or not. With --no-ack it is there again afterwards, with its attempt counted: to
    only look, use [bold]penstock peek[/bold].

    Exits with 0, with 1 if there was no message, and with 2 if there is no such directory or queue, or somebody else has it open.

    [bold]Examples[/bold]

      penstock receive ./queue orders

      penstock receive ./queue orders -n 100 --wait 5 --json | jq -r .payload.text

      penstock receive ./queue orders --follow --raw | ./process-lines

      penstock receive http://127.0.0.1:8080 orders --follow
    """
    with output.answering(place):
        if as_json and raw:
            raise InvalidArgument("give one of --json and --raw")
        if stdout_is_absent():
            raise InvalidArgument("standard output is closed, and messages would be lost there; open it")
        show = shown.as_json() if as_json else shown.as_it_is() if raw else shown.as_text()
        wanted = count or (sys.maxsize if follow else 1)
        with opened(place) as (broker, _), broker.get_queue(queue).subscribe() as consumer:
            received = _take(consumer, wanted, None if follow else wait, show, ack=ack)
    raise typer.Exit(output.FINE if received or follow else NOTHING)


def _take(consumer: Consumer, wanted: int, wait_s: float | None, show: shown.Show, *, ack: bool) -> int:
    """Print messages, and acknowledge those that could be written; how many."""
    received = 0
    ends_s = None if wait_s is None else time.monotonic() + wait_s
    while received < wanted:
        left_s = None if ends_s is None else max(0.0, ends_s - time.monotonic())
        found = consumer.receive_many(min(AT_ONCE, wanted - received), left_s)
        for delivery in found:
            show(delivery)
        sys.stdout.flush()
        if not found or stdout_is_unread():
            break  # what could not be written is given back
        if ack:
            consumer.ack_many(found)
        received += len(found)
    return received


# --- peek ---


@placed(app)
def peek(place: Place, queue: Name, count: Count = None, as_json: JsonLines = False) -> None:
    """Show the next messages of a queue (10, unless told otherwise), and leave them there.

    Messages that are delayed or wait for their next attempt are not among them.

    [bold]Examples[/bold]

      penstock peek ./queue orders

      penstock peek ./queue orders.dlq -n 1000 --json | jq -r '.headers["x-error"]'
    """
    with output.answering(place):
        show = shown.as_json() if as_json else shown.as_text()
        with looked_at(place) as (broker, _):
            found = _look(broker.get_queue(queue), count or 10)
        for message in found:
            show(message)


def _look(queue: Queue, count: int) -> list[Message]:
    return queue.peek(min(count, max(1, queue.depth())))
