"""Batches in a spool, as tests want them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.journal.files import Files
from penstock.journal.kinds import MESSAGES
from penstock.journal.rows import Rows
from penstock.journal.spool import Manifest, Share, Spool, Staged
from penstock.limits import PRIORITY_DEFAULT
from tests.faults.faulty_files import UnsyncedFiles


def spool_of(path: Path, files: Files | None = None) -> Spool:
    spool = Spool(files or UnsyncedFiles(), path)
    spool.make()
    return spool


def section(log: int, payloads: list[bytes], **columns: Any) -> Rows:
    count = len(payloads)
    given = {
        "offset": range(count),
        "id": range(count),
        "timestamp": 0,
        "priority": PRIORITY_DEFAULT,
        **columns,
    }
    if count == 1:
        given = {
            name: value[0] if isinstance(value, range | list) else value for name, value in given.items()
        }
    return Rows(MESSAGES, log, count, given | {"payload": payloads if count > 1 else payloads[0]})


def share_of(topic: str, payloads: list[bytes], **columns: Any) -> Share:
    due = [moment for moment in columns.get("deliver_at") or [] if moment is not None]
    return Share(
        topic,
        len(payloads),
        sum(map(len, payloads)),
        max(map(len, payloads), default=0),
        None in columns.get("dedup_id", [None]),
        max(due, default=None),
    )


def stage(spool: Spool, parts: list[dict[str, list[bytes]]], **columns: Any) -> Staged:
    """A file of several parts, each with payloads for some topics."""
    topics = list(dict.fromkeys(topic for part in parts for topic in part))
    stager = spool.stage()
    for part in parts:
        stager.add([section(topics.index(topic), payloads, **columns) for topic, payloads in part.items()])
    whole = {topic: [one for part in parts for one in part.get(topic, [])] for topic in topics}
    staged = stager.finish([share_of(topic, payloads, **columns) for topic, payloads in whole.items()])
    assert staged is not None
    return staged


def batch(
    spool: Spool,
    number: int,
    parts: list[dict[str, list[bytes]]],
    *,
    producer: str = "query:q",
    only: bool = False,
    **columns: Any,
) -> Manifest:
    """A manifest that is not handed in yet."""
    return Manifest(producer, number, "default", [stage(spool, parts, **columns)], only)
