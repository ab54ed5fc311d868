"""How far streaming queries are, told to the brokers they read from, where each appears as a reader: its lag beside everyone else's.

Theory of operation
-------------------
Spark tells a listener of every micro-batch that is done, and where its sources are then. What a source of ours is at says from which directory and table it reads (see `source`), so the listener
can leave a report in the spool of that directory (see `journal.spool`), which the owner takes in, at once or when there is one. A source itself would hear of a batch only when the next one is built.

A server is told over HTTP, with the token of the environment (PENSTOCK_TOKEN): what options a query was given, a listener does not learn. A source that was given the option `reader` tells it by itself (see `remote`).

A query's reader is waited for: what it has not read is kept, whatever the log's retention says. So one that will never run again must be forgotten: `queue.reader(name).reset()`.
A report that cannot be left (a directory that only may be read) is said once in the log, and nothing else comes of it.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.engine.retention import ARCHIVE
from penstock.errors import InvalidArgument, PenstockError
from penstock.journal.files import Files
from penstock.journal.spool import Report, Spool
from penstock.names import check_name
from penstock.pipeline import remote
from penstock.pipeline.options import TOKEN, local_path, server_of
from penstock.pipeline.schema import MESSAGES_TABLE

#: What a reader is called whose query was given no other name.
PREFIX: Final = "spark."

_LOG: Final = logging.getLogger("penstock.pipeline")


class Place(msgspec.Struct):
    """Where a source is: what `source` says of its offsets. Those of other sources do not decode as this."""

    penstock: int
    path: str
    table: str
    reader: str | None
    logs: dict[str, tuple[int, int, int]] = {}
    sequence: int | None = None


def reports(place: Place, query: str) -> list[Report]:
    """What the owner is told."""
    reader = place.reader or reader_of(query)
    if place.table != MESSAGES_TABLE.name:
        return [] if place.sequence is None else [Report(reader, place.sequence)]
    found = []
    for name, (number, _, offset) in place.logs.items():
        namespace, _, log = name.partition("/")
        found.append(Report(reader, offset, namespace, log, holds=True, number=number))
    return found


def logs_read(checkpoint: str, place: str) -> frozenset[str]:
    """Return the logs, as namespace/name, that a query reads from a directory or server, as its checkpoint's newest offsets say.

    There are none in a checkpoint that is not a directory of this machine, or has no batch yet.
    """
    found: set[str] = set()
    try:
        offsets = [one for one in Path(local_path(checkpoint), "offsets").iterdir() if one.name.isdigit()]
        lines = max(offsets, key=lambda one: int(one.name)).read_bytes().splitlines() if offsets else []
    except (OSError, InvalidArgument):
        return frozenset()
    for line in lines:
        with suppress(msgspec.DecodeError):  # the line of another source
            source = msgspec.json.decode(line, type=Place)
            if os.path.realpath(source.path) == os.path.realpath(place):
                found.update(source.logs)
    return frozenset(found)


def reader_of(query: str) -> str:
    """The name of a query's reader."""
    return PREFIX + query


class Reporter(StreamingQueryListener):
    """Hears of the batches of a session's queries."""

    def __init__(self) -> None:
        self._told: dict[str, Report] = {}  # by directory and reader
        self._told_servers: dict[str, dict[str, tuple[int, int]]] = {}
        self._failed: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        progress = event.progress
        for source in progress.sources:
            try:
                place = msgspec.json.decode(source.endOffset or "", type=Place)
            except msgspec.DecodeError:
                continue  # not one of ours
            if place.reader == ARCHIVE:
                continue  # it tells the broker itself, when its files are on the disk
            # A report is a commit, too. Who reads what happened, and tells of each commit, would never come to an end.
            if source.numInputRows or place.table == MESSAGES_TABLE.name:
                self.report(place, _valid(progress.name) or str(progress.id))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        pass

    def report(self, place: Place, query: str) -> None:
        """Tell the owner of a directory, or a server, if it is anything new."""
        if place.path.startswith(("http://", "https://")):
            self._tell_server(place, query)
            return
        spool = Spool(Files(), Path(place.path).absolute())
        for report in reports(place, query):
            key = f"{place.path}\0{report.name}"
            if self._told.get(key) == report:
                continue
            try:
                spool.make()
                spool.report(report)
                self._told[key] = report
            except (OSError, PenstockError) as error:
                if key not in self._failed:
                    self._failed.add(key)
                    _LOG.warning(
                        "the progress of %s cannot be left in %s: %s", report.reader, spool.path, error
                    )

    def _tell_server(self, place: Place, query: str) -> None:
        if place.reader is not None or place.table != MESSAGES_TABLE.name:
            return  # it tells by itself; and commits are the whole server's, of which a namespace says nothing
        reader, key = reader_of(query), f"{place.path}\0{query}"
        spaces: dict[str, dict[str, tuple[int, int]]] = {}
        for name, (number, _, offset) in place.logs.items():
            namespace, _, log = name.partition("/")
            spaces.setdefault(namespace, {})[log] = (number, offset)
        for namespace, logs in spaces.items():
            if self._told_servers.get(key) == logs:
                continue
            try:
                server = server_of({"url": place.path})
                if server is not None:
                    remote.report(remote.Connection(server, namespace), reader, logs)
                self._told_servers[key] = logs
            except PenstockError as error:
                if key not in self._failed:
                    self._failed.add(key)
                    _LOG.warning(
                        "the progress of %s is not told to %s: %s; set %s where the driver runs, or give the query the option reader",
                        reader, place.path, error, TOKEN,
                    )  # fmt: skip


def _valid(name: Any) -> str | None:
    """The name of a query, if it can be that of a reader."""
    try:
        return check_name(name, kind="query name")
    except PenstockError:
        return None


def follow(spark: SparkSession) -> None:
    """Have the progress of a session's queries reported, from now on."""
    if not hasattr(spark, _FOLLOWED):
        listener = Reporter()
        spark.streams.addListener(listener)
        setattr(spark, _FOLLOWED, listener)


#: Where a session keeps its listener: one is enough, however often it is registered.
_FOLLOWED: Final = "_penstock_reporter"
