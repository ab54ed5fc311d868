"""The names in a journal's directory, and who owns it.

Files are named by number, never by a user's text::

    00000000000000000007.segment    frames; the number never comes again
    00000000000000000007.summary    what that segment holds, once it is sealed
    00000000000000001042.snapshot   the state at that sequence number
    00000000000000000003.free       a used segment that waits to be recycled
    *.tmp                           a draft, worthless after a crash
    mark, lock                      see `mark`; the lock holds who owns the directory, for people to read
    quarantine/                     copies of what recovery cut or skipped, and of what repair removed

A file that looks like one of ours and is none stops the start: a newer version may have left it, or a hand may
have. Any other file is left alone.
"""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from penstock import argument, limits
from penstock.errors import CorruptJournal, DirectoryLocked, InvalidArgument
from penstock.journal.checksum import crc32
from penstock.journal.files import Files, as_far_as_there_is_room, read_whole, write_whole

SEGMENT: Final = "segment"
SUMMARY: Final = "summary"
SNAPSHOT: Final = "snapshot"
FREE: Final = "free"
TMP: Final = ".tmp"

#: How the text in `lock` ends if whoever wrote it will let go in a moment.
MOMENTARY: Final = ", for the moment"

_MOMENT_TRIES: Final = round(limits.LOCK_MOMENT_S / limits.LOCK_PAUSE_S)

_OURS: Final = re.compile(r"(\d{20})\.(segment|summary|snapshot|free)")
_NAMED: Final = ("mark", "lock", "quarantine")
_LOOKS_LIKE_OURS: Final = re.compile(r"\d{20}\..*|.*\.(segment|summary|snapshot|free)")


def checked_path(path: object) -> Path:
    """Where a journal is, absolute; `InvalidArgument` if that is no path."""
    try:
        found = Path(path).absolute()  # type: ignore[arg-type]
        is_one = "\0" not in str(found)
        found.exists()
    except TypeError:
        is_one = False
    except OSError as error:
        is_one = error.errno != errno.ENAMETOOLONG  # whoever opens it says what else is wrong
    if is_one:
        return found
    raise InvalidArgument(
        f"a journal's directory is given as a text or a Path, without NUL and of names that the file system has, not as {argument.quoted(path)}"
    )


class Contents(NamedTuple):
    """The numbers of the files of each kind, ascending, and the drafts that a crash left."""

    segments: list[int]
    summaries: list[int]
    snapshots: list[int]
    free: list[int]
    drafts: list[str]


class Directory:
    """A journal's directory: paths by number."""

    def __init__(self, files: Files, path: Path) -> None:
        self.files = files
        self.path = path

    def file(self, number: int, kind: str) -> Path:
        return self.path / f"{number:020d}.{kind}"

    def segment(self, number: int) -> Path:
        return self.file(number, SEGMENT)

    @property
    def mark(self) -> Path:
        return self.path / "mark"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def quarantine(self) -> Path:
        return self.path / "quarantine"

    def contents(self) -> Contents:
        """What is there; a file that only looks like one of ours is `CorruptJournal`."""
        contents, foreign = self.survey()
        if foreign:
            raise CorruptJournal(
                f"{self.path / foreign[0]} looks like a file of a journal and is not one that this version of Penstock "
                "knows: move it away if it does not belong there, or use the version that wrote it"
            )
        return contents

    def survey(self) -> tuple[Contents, list[str]]:
        """What is there, and the names that only look like ours."""
        found: dict[str, list[int]] = {SEGMENT: [], SUMMARY: [], SNAPSHOT: [], FREE: []}
        drafts: list[str] = []
        foreign: list[str] = []
        for name, is_file in self.files.entries(self.path):
            if is_file == (name == "quarantine") and (_LOOKS_LIKE_OURS.fullmatch(name) or name in _NAMED):
                foreign.append(name)
            elif match := _OURS.fullmatch(name):
                found[match[2]].append(int(match[1]))
            elif name.endswith(TMP) and (name == "mark.tmp" or _OURS.fullmatch(name.removesuffix(TMP))):
                drafts.append(name)
            elif _LOOKS_LIKE_OURS.fullmatch(name):
                foreign.append(name)
        return Contents(found[SEGMENT], found[SUMMARY], found[SNAPSHOT], found[FREE], drafts), foreign

    def require_journal(self) -> None:
        """Say so if this is no journal. With a mark or a snapshot it was one, even if every segment of it is gone."""
        if self.path.is_dir():
            contents, _ = self.survey()
            if contents.segments or contents.snapshots or self.mark.exists():
                return
        raise CorruptJournal(f"{self.path} is not a journal: there are no segments in it")

    # --- the quarantine: nothing in it is ever overwritten, because it is evidence ---

    def keep(self, name: str, data: bytes) -> str:
        """Have a copy of damaged bytes in the quarantine; its name there. The same bytes make no second file, others of the name do."""
        path = self.quarantine / name
        if path.exists() and read_whole(self.files, path) != data:
            path = path.with_name(f"{path.stem}-{crc32(data):08x}{path.suffix}")
        if not path.exists():
            self.files.make_directory(self.quarantine)
            write_whole(self.files, path, data)
        return path.name

    def set_range_aside(self, segment: int, position: int, end: int) -> str | None:
        """Keep a copy of a range of a segment; its name in the quarantine, or None if nothing is left of that range."""
        with self.files.opened(self.segment(segment)) as fd:
            data = self.files.read(fd, end - position, position)
        return self.keep(f"segment-{segment:020d}-{position}-{end}.bytes", data) if data else None

    def move_aside(self, path: Path) -> str:
        """Move a whole file into the quarantine; its name there."""
        self.files.make_directory(self.quarantine)
        name = path.name
        if (self.quarantine / name).exists():
            name = f"{name}-{self.files.random():016x}"
        self.files.rename(path, self.quarantine / name)
        self.files.sync_directory(self.quarantine)
        self.files.sync_directory(self.path)
        return name


class Ownership:
    """The lock of a directory, held by one process at a time.

    It is the directory itself that is locked, and the file `lock` in it, which says by whom. Whoever removes that file, or puts another in its
    place, removes no lock.

    A `momentary` owner says so there, and that he is gone when he is. Others wait for him a little; he waits for nobody.
    """

    def __init__(self, directory: Directory, *, momentary: bool = False) -> None:
        files = directory.files
        self._files = files
        self._momentary = momentary
        self._held: list[int] = []
        try:
            self._hold(directory, files.open(directory.path))
            file = files.open(directory.lock, write=True, create=True)
            self._hold(directory, file)
            text = (files.whoami() + MOMENTARY * momentary).encode()
            with as_far_as_there_is_room():  # it is for people to read
                files.write(file, text, 0)
                files.truncate(file, len(text))
        except BaseException:
            self.release()
            raise

    def _hold(self, directory: Directory, fd: int) -> None:
        self._held.append(fd)
        tries = 0
        while not self._files.lock(fd):
            tries += 1
            holder = _holder_named_in(directory)  # another one may have it by now
            brief = holder.endswith(MOMENTARY) and not self._momentary
            if tries >= (_MOMENT_TRIES if brief else limits.LOCK_TRIES):
                raise DirectoryLocked(
                    f"{directory.path} is held by {holder}. One process may own a journal: let it finish, or run "
                    "`penstock serve` on the directory and connect to that",
                    holder=holder,
                )
            self._files.pause(limits.LOCK_PAUSE_S)

    def leave(self) -> None:
        """Let go of a directory that is in order."""
        if self._momentary and len(self._held) == 2:
            with suppress(OSError):  # it is only for people, and for those who do not hear the lock
                self._files.truncate(self._held[1], 0)
        self.release()

    def release(self) -> None:
        """Also what a forked child does with its copies: the parent's lock stays."""
        while self._held:
            self._files.close(self._held.pop())


def holder(directory: Directory) -> str | None:
    """Who holds the directory, or None if nobody does. It changes nothing, and those who ask at the same time are not taken for holders."""
    files = directory.files
    with files.opened(directory.path) as fd:
        return None if files.lock(fd, shared=True) else _holder_named_in(directory)


def seems_held_elsewhere(directory: Directory) -> bool:
    """Whether another machine was the last to own the directory, and wrote to it just now. Its lock may not be heard here.

    An owner who writes nothing is not noticed so: this makes a mistake less likely and does not replace the lock.
    """
    host = _host_in(_holder_named_in(directory))
    if not host or host == _host_in(directory.files.whoami()):
        return False
    try:
        return directory.files.age_s(directory.mark) < limits.ELSEWHERE_S
    except FileNotFoundError:
        return False


def _host_in(name: str) -> str:
    return name.removesuffix(MOMENTARY).partition(" on ")[2]


def _holder_named_in(directory: Directory) -> str:
    """For people to read, if the file that says it is still there."""
    try:
        name = read_whole(directory.files, directory.lock).decode(errors="replace").strip()
    except FileNotFoundError:
        name = ""
    return name or "another process"
