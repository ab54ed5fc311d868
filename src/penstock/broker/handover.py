"""Hands a batch over to whoever owns a directory, and waits until it is taken in; if nobody owns it, this process does for the moment.

It may be called again with the same batch, by the same process or another one, after any crash: the batch is published once.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from penstock.broker import opening
from penstock.errors import DirectoryLocked
from penstock.journal.directory import Directory, holder, seems_held_elsewhere
from penstock.journal.files import Files
from penstock.journal.spool import Manifest, Refusal, Spool

#: Between two looks at whether a batch was taken in: at first, and at the most.
LOOK_S: Final = 0.002
LOOK_MAX_S: Final = 0.05

#: Between two looks at whether anybody owns the directory.
OWNER_S: Final = 0.5

_LOG: Final = logging.getLogger("penstock.spool")


def hand_over(
    path: Path, manifest: Manifest, timeout_s: float, files: Files | None = None, *, owned: bool = False
) -> bool:
    """Have a batch published; False if it was not within that time: it is in the spool, on the disk, and will be.

    What the owner says against it is raised. With `owned` the owner is known to be there, or to come back: nobody else opens the directory.
    """
    spool = Spool(files or Files(), path)
    earlier = [name for name in spool.batches_of(manifest.producer) if name < manifest.name]
    for name in earlier:  # they were reported as written: they go first
        spool.ask_again(name)
    _hand_in(spool, manifest)
    spool.ring()
    deadline = time.monotonic() + timeout_s
    if not all(
        _taken_in(spool, name, deadline, mine=name == manifest.name, owned=owned)
        for name in [*earlier, manifest.name]
    ):
        _LOG.warning(
            "batch %d of %s is on the disk and will be taken in, but was not within %s s",
            manifest.batch, manifest.producer, timeout_s,
        )  # fmt: skip
        return False
    return True


def _hand_in(spool: Spool, manifest: Manifest) -> None:
    """Have a manifest of this batch in the spool that the owner looks at: the first one, unless that was refused as a whole."""
    while not spool.hand_in(manifest):
        known = spool.find(manifest.name)
        refusal = spool.refusal(manifest.name)
        if refusal is not None and not refusal.begun and known is not None:
            spool.withdraw(known)
            continue
        if refusal is not None:
            spool.ask_again(manifest.name)
        if known is not None:
            counts = {file.name for file in known.files}
            spool.drop([file.name for file in manifest.files if file.name not in counts])
            return
        if spool.holds(manifest.name):  # it cannot be read: the owner says so
            return


def _taken_in(spool: Spool, name: str, deadline: float, *, mine: bool, owned: bool) -> bool:
    pause_s, next_look = LOOK_S, 0.0
    while spool.holds(name):
        refusal = spool.refusal(name)
        if refusal is not None:
            _give_up(spool, name, refusal, mine=mine)
        now = time.monotonic()
        if now >= next_look and not owned:
            owned = _take_in_here(spool)
            next_look = time.monotonic() + OWNER_S
            if owned and not spool.holds(name):
                break
        if time.monotonic() >= deadline:
            return False
        spool.files.pause(pause_s)
        pause_s = min(2 * pause_s, LOOK_MAX_S)
    return True


def _give_up(spool: Spool, name: str, refusal: Refusal, *, mine: bool) -> None:
    """Raise why a batch was refused. If it is `mine`, and nothing of it is published, it is taken back, and may come again."""
    manifest = spool.find(name)
    if mine and not refusal.begun and manifest is not None:
        spool.withdraw(manifest)
    raise refusal.error()


def _take_in_here(spool: Spool) -> bool:
    """If nobody owns the directory, own it for as long as it takes to empty the spool; whether that was so.

    What is not opened here is left in the spool, where nothing is lost; two owners would spoil the journal. So in doubt it is not.
    """
    directory = Directory(spool.files, spool.directory)
    if holder(directory) is not None or seems_held_elsewhere(directory):
        return False
    try:
        opening.on_disk(spool.directory, trace=False, files=spool.files, momentary=True).close()
    except DirectoryLocked:  # somebody was quicker
        return False
    return True
