"""Which Parquet files of a table count: changes to a folder of files that happen wholly or not at all, whatever is killed when.

Theory of operation
-------------------
A table is a folder of Parquet files that anybody may read. Spark writes new files in a staging folder that readers do not look into. They are brought in by a *change*, which
adds files and removes others; a batch of an archive adds some, and compacting adds one and removes those that it was made of. Changes of a table are numbered one after the other::

    0000000007.intent     change 7 is decided: its files are staged, whole and on the disk. What it adds does not count yet, what it removes still does
    0000000007.manifest   change 7 has happened: what it adds is in place and counts, what it removes does not, and may be there still

What a crash leaves:

- before the intent: staged files, which are worthless. Whatever was to be written is written again.
- with an intent: files of which some are in place and some are staged. The next `recover` moves the rest: a change that is decided is carried out.
- with a manifest: files that are to be removed. The next `recover` removes them.

So at rest, which is whenever no change is under way and none was interrupted, every row is in one file in the table's folder, and other readers of Parquet need to know nothing of this. `files`
is exact at any moment. The manifest of the last change is kept, and says what the changes have come to (`Total`): which batch was the last, and where in the journal it ended.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.errors import CorruptJournal
from penstock.pipeline.hadoop import DRAFT, Entry, Folder

INTENT: Final = ".intent"
MANIFEST: Final = ".manifest"

#: Looks at a table, each spoilt by a change that happened meanwhile, before a reader gives up.
LOOKS_MAX: Final = 100


class Total(msgspec.Struct, frozen=True):
    """What all changes up to one have come to."""

    batch: int = -1  # the last one that is in
    query: str = ""  # whose batches they are
    end: dict[str, Any] | None = None  # where the last batch ended
    rows: int = 0  # in all batches


class Change(msgspec.Struct, frozen=True):
    """Files that are added, each with the name that it has in the staging folder; files that are removed; and what it all comes to then."""

    number: int
    add: dict[str, str]
    remove: list[str]
    total: Total


class Changes:
    """The changes of one table."""

    def __init__(self, folder: Folder, home: str, table: str) -> None:
        self._folder = folder
        self._home = f"{home}/changes/{table}"
        self.staging = f"{home}/staging/{table}"
        self.table = table

    # --- looking ---

    def last(self) -> Change | None:
        """The last change that has happened."""
        found = [name for name in self._names() if name.endswith(MANIFEST)]
        return self._read(found[-1]) if found else None

    def total(self) -> Total:
        last = self.last()
        return Total() if last is None else last.total

    def files(self) -> list[Entry]:
        """The files that count, at one moment."""
        for _ in range(LOOKS_MAX):
            before = self._names()
            changes = [(name, self._look(name)) for name in before]
            found = list(self._folder.files(self.table))
            if before == self._names() and all(change is not None for _, change in changes):
                hidden: set[str] = set()
                for name, change in changes:
                    hidden.update(change.add if name.endswith(INTENT) else change.remove)  # type: ignore[union-attr]
                return [one for one in found if one.name not in hidden and one.name.endswith(".parquet")]
        raise CorruptJournal(f"{self._folder.path(self.table)} changes faster than it can be listed")

    def at_rest(self) -> bool:
        """Whether the table's folder holds what counts, and nothing else."""
        last = self.last()
        return not any(name.endswith(INTENT) for name in self._names()) and not (
            last is not None and any(self._folder.exists(name) for name in last.remove)
        )

    def _names(self) -> list[str]:
        return [name for name in self._folder.names(self._home) if name.endswith((INTENT, MANIFEST))]

    def _look(self, name: str) -> Change | None:
        data = self._folder.read(f"{self._home}/{name}")
        return None if data is None else _decoded(data, self._folder.path(f"{self._home}/{name}"))

    def _read(self, name: str) -> Change:
        found = self._look(name)
        if found is None:
            raise CorruptJournal(
                f"{self._folder.path(self._home)}/{name} vanished: is somebody else at work here?"
            )
        return found

    # --- changing ---

    def recover(self) -> bool:
        """Bring to its end what was interrupted, and remove what is worthless; whether there was anything to bring to an end."""
        names = self._folder.names(self._home)
        unfinished = [name for name in names if name.endswith(INTENT)]
        for name in unfinished:
            self._carry_out(self._read(name))
        last = self.last()
        if last is not None:
            self._finish(last)
        for name in names:
            if name.endswith(DRAFT):
                self._folder.remove(f"{self._home}/{name}")
        self._folder.remove(self.staging)
        return bool(unfinished)

    def make(self, add: dict[str, str], remove: list[str], total: Total) -> None:
        """Carry out a change: `add` has the final name of each staged file."""
        last = self.last()
        change = Change(
            0 if last is None else last.number + 1, {new: old for old, new in add.items()}, remove, total
        )
        self._folder.sync(add)
        self._folder.sync_folders(add)
        self._folder.make(self._home)
        self._folder.write(self._name(change, INTENT), msgspec.json.encode(change))
        self._carry_out(change)
        self._finish(change)
        self._folder.remove(self.staging)

    def _name(self, change: Change, suffix: str) -> str:
        return f"{self._home}/{change.number:010d}{suffix}"

    def _carry_out(self, change: Change) -> None:
        folder = self._folder
        for parent in {new.rpartition("/")[0] for new in change.add}:
            folder.make(parent)
        for new, staged in change.add.items():
            if folder.exists(staged):
                if folder.exists(new):  # a copy that was not finished, where moving is copying
                    folder.remove(new)
                folder.rename(staged, new)
            elif not folder.exists(new):
                raise CorruptJournal(
                    f"{folder.path(staged)} is gone, which was to become {folder.path(new)}: somebody removed it; archive into another folder"
                )
        folder.sync_folders(change.add)
        folder.rename(self._name(change, INTENT), self._name(change, MANIFEST))
        folder.sync_folders([self._name(change, MANIFEST)])

    def _finish(self, change: Change) -> None:
        """What a change removes is gone, and the change before it is forgotten."""
        for name in change.remove:
            self._folder.remove(name)
        self._folder.sync_folders(
            change.remove
        )  # nothing else says that they do not count, once the manifest is gone
        for name in self._names():
            if name.endswith(MANIFEST) and f"{self._home}/{name}" != self._name(change, MANIFEST):
                self._folder.remove(f"{self._home}/{name}")


def _decoded(data: bytes, path: str) -> Change:
    try:
        return msgspec.json.decode(data, type=Change)
    except msgspec.DecodeError as error:
        raise CorruptJournal(f"{path} is not what was written: {error}") from error
