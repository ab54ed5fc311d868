"""Directories in which something cannot be read."""

from __future__ import annotations

from pathlib import Path

import penstock
from penstock.journal import mark as marks
from penstock.journal.files import Files


def make(data: Path) -> tuple[int, int]:
    """Thirty messages, seven in a segment, and ten deliveries; segment and position of the deliveries."""
    with penstock.open(data, segment_bytes=8192) as broker:
        queue = broker.queue("orders", retain_seconds=86_400)
        for number in range(30):
            queue.publish(b"%01000d" % number)
        mark = marks.read(Files(), data / "mark")
        assert mark is not None
        queue.ack_many(queue.receive_many(10))
        for number in range(30, 40):
            queue.publish(b"%01000d" % number)
    return mark.segment, mark.end


def flip(data: Path, segment: int, position: int) -> None:
    path = data / f"{segment:020d}.segment"
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def flip_message(data: Path, segment: int, number: int) -> None:
    """Damage the commit of a message that a segment holds."""
    content = (data / f"{segment:020d}.segment").read_bytes()
    flip(data, segment, content.index(b"%01000d" % number))
