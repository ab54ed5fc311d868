"""Where the rows of the sink go: an outlet takes what tasks have, and publishes it when the driver says so. Here is the one of a directory; `remote` has the one of a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pyarrow as pa

from penstock.broker.handover import hand_over
from penstock.broker.intake import ONLY
from penstock.errors import JournalFailed, PenstockError
from penstock.journal.files import Files
from penstock.journal.spool import Manifest, Spool, Staged
from penstock.pipeline.staging import Staging


class Outlet(Protocol):
    """Where rows go. A task and the driver each have one, in processes of their own."""

    def check(self, *, patient: bool) -> None:
        """Raise why nothing can be written there, as far as that is known before anything runs; `patient` waits for a server that is away."""

    def producer_of_one(self) -> str:
        """A name for a write that is nobody's batch."""

    def stage(self, topic: str | None, batches: Iterator[pa.RecordBatch], where: str) -> list[Staged]:
        """Have the rows of a task on the disk, in as many files as it takes."""

    def commit(self, producer: str, batch: int, files: Sequence[Staged], timeout_s: float) -> None:
        """Have a batch published, once, however often this is said."""

    def abort(self, producer: str, batch: int, files: Sequence[Staged]) -> None:
        """Remove what tasks have staged, unless it was handed in: a commit that failed may have done that, and the owner finishes what he began."""


class DirectoryOutlet:
    """The outlet of a directory: its spool, which the tasks and the driver all see."""

    def __init__(self, path: str, namespace: str) -> None:
        self._path = path
        self._namespace = namespace

    @property
    def _spool(self) -> Spool:
        return Spool(Files(), Path(self._path))

    def check(self, *, patient: bool) -> None:
        """The directory may not be there yet."""

    def producer_of_one(self) -> str:
        """A name that is forgotten when its batch is taken in."""
        return f"{ONLY}{uuid4().hex}"

    def stage(self, topic: str | None, batches: Iterator[pa.RecordBatch], where: str) -> list[Staged]:
        """Have the rows of a task in the spool."""
        spool = self._spool
        try:
            spool.make()
            staging, stager = Staging(topic, where), spool.stage()
            try:
                for part in staging.parts(batches):
                    stager.add(part)
                staged = stager.finish(staging.shares)
            except BaseException:
                stager.discard()
                raise
            return [] if staged is None else [staged]
        except OSError as error:
            raise JournalFailed(
                f"nothing could be staged in {spool.path}: {error}", indeterminate=False
            ) from error

    def commit(self, producer: str, batch: int, files: Sequence[Staged], timeout_s: float) -> None:
        """Hand a batch in, and wait for the owner."""
        spool = self._spool
        for file in files:
            if not spool.files.exists(spool.path / file.name):
                raise JournalFailed(
                    f"{spool.path / file.name} was staged by a task and is not seen by the driver: "
                    "the directory must be shared by all executors and the driver, under the same path",
                    indeterminate=False,
                )
        manifest = Manifest(producer, batch, self._namespace, list(files), producer.startswith(ONLY))
        hand_over(spool.directory, manifest, timeout_s)

    def abort(self, producer: str, batch: int, files: Sequence[Staged]) -> None:
        """Remove what tasks have staged, unless it was handed in."""
        drop_unless_handed_in(self._spool, producer, batch, self._namespace, [file.name for file in files])


def drop_unless_handed_in(
    spool: Spool, producer: str, batch: int, namespace: str, files: Sequence[str]
) -> None:
    """Remove staged files that no manifest of this batch names."""
    name = Manifest(producer, batch, namespace, []).name
    try:
        handed_in = spool.find(name)
    except PenstockError:  # it cannot be read: leave everything as it is
        return
    if handed_in is None and spool.holds(name):
        return
    kept = {file.name for file in handed_in.files} if handed_in is not None else set()
    spool.drop([file for file in files if file not in kept])
