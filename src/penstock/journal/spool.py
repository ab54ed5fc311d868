"""The spool: how somebody who does not own a directory hands messages in, each batch once.

Theory of operation
-------------------
Only its owner writes a journal. Others, such as the tasks of a Spark job on any machine that sees the directory, leave what they have in `spool/`, and the owner takes it in: at once when he is
there, otherwise when somebody opens the directory. Nothing here is ever changed in place; what a name stands for is whole and on the disk before the name is::

    spool/
      3f9a….staged               messages, written by one task: see below
      b2c4…-00000000000000000007.manifest   a batch of a producer: (producer, batch), and the staged files that make it
      b2c4…-00000000000000000007.refused    why the owner did not take that manifest in
      77d0….position             how far a reader is, see `Report`
      3f9a….staged.note          what is in a staged file, where a server has staged it for somebody who only knows its name
      *.tmp                      drafts, worthless after a crash

Names come from hashes and chance, never from a user's text.

*A staged file* is laid out as a segment is: a label, and frames of message sections (see `segment`, `frame`), checksummed as those are. Each frame is a *part*, of bounded length: the owner publishes it in one commit. A
section's log is the index of its topic in the file's list of topics, which is in the manifest. `id`, `offset` and `timestamp` say nothing: the owner gives them. `expires_at` is a length of time
in microseconds, counted from when the owner publishes it; `deliver_at` is a moment.

*A manifest* makes a batch of staged files. It comes by `link`, which fails if there is one: of all attempts to hand in the same batch, perhaps with its rows in another order, the first whose manifest is there
counts, and the others are dropped. It stays until every part is durable in the journal; so the owner, who records how many parts he has published in the same commits, always finds the very parts that he began with.

What a crash leaves:

- of a task: a draft, or a staged file that no manifest names. The owner removes both after a day (`sweep`). The task is run again, under a new name.
- of a driver, before the link: the same. After it: a manifest. When the driver comes back it hands the same batch in again; that is refused by the link, or, when the manifest was taken in and removed, known to the
  owner by his record.
- of the owner, between two parts: a manifest of which some parts are recorded. The next owner goes on with the next part. After the last part, before the manifest was removed: a batch that is on record, which is removed
  without being published.
- of the power, at any of these: a manifest is linked only when its files are durable, and begun only when its own name is (`settle`). It is removed, as is a report, only when the journal is synced, whatever the broker's
  durability. A record is forgotten only when the removal of the manifest is durable.

*A refusal* is the owner's answer to a manifest that he cannot take in (a queue is full, a message too large). If nothing of it is published, whoever handed it in withdraws it and may hand in the same batch again, with other contents.
If something is (`begun`), the manifest stays, and is tried again when its producer comes back. The owner by himself does neither: nobody else knows whether the producer has heard of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import BatchTooLarge, CorruptJournal, InvalidArgument, PenstockError, by_code
from penstock.journal import envelope
from penstock.journal import frame as frames
from penstock.journal.files import Files, read_whole, write_whole
from penstock.journal.frame import Frame
from penstock.journal.kinds import MESSAGES
from penstock.journal.rows import Rows
from penstock.journal.section import Section
from penstock.journal.segment import START, Label, Scan, decode_label, encode_label

SPOOL: Final = "spool"
STAGED: Final = ".staged"
MANIFEST: Final = ".manifest"
REFUSED: Final = ".refused"
POSITION: Final = ".position"
TAKEN: Final = ".taken"
NOTE: Final = ".note"
TMP: Final = ".tmp"

WHAT: Final = b"SPOL"
VERSION: Final = 1

_LOG: Final = logging.getLogger("penstock.spool")


class Share(msgspec.Struct, array_like=True):
    """What a staged file has for one topic: enough to know whether the topic takes it, before anything is published."""

    topic: str
    rows: int = 0
    bytes: int = 0  # of payloads
    largest: int = 0  # payload, in bytes
    nameless: bool = False  # some messages have no dedup_id
    latest: int | None = None  # deliver_at of messages without a time to live


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """A staged file."""

    name: str
    bytes: int
    parts: int
    shares: list[Share]

    @property
    def rows(self) -> int:
        return sum(share.rows for share in self.shares)


class Manifest(msgspec.Struct, frozen=True):
    """A batch of a producer. A producer of only this one batch is to be forgotten when it is taken in."""

    producer: str
    batch: int
    namespace: str
    files: list[Staged]
    only: bool = False

    @property
    def parts(self) -> int:
        return sum(file.parts for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def name(self) -> str:
        return f"{_hash(self.producer)}-{self.batch:020d}{MANIFEST}"

    def shares(self) -> dict[str, Share]:
        """What it has for each topic, in all."""
        found: dict[str, Share] = {}
        for share in (share for file in self.files for share in file.shares):
            whole = found.setdefault(share.topic, Share(share.topic))
            whole.rows += share.rows
            whole.bytes += share.bytes
            whole.largest = max(whole.largest, share.largest)
            whole.nameless = whole.nameless or share.nameless
            if share.latest is not None:
                whole.latest = max(share.latest, whole.latest or 0)
        return found


class Refusal(msgspec.Struct, frozen=True):
    """Why a manifest was not taken in, and whether some of it was."""

    code: str
    message: str
    begun: bool

    def error(self) -> PenstockError:
        return by_code(self.code)(self.message)


class Report(msgspec.Struct, frozen=True):
    """How far a reader is: the offset that it reads next, or, where the log is "", the last commit of the journal that it has read.

    `holds`: whether it wants to be waited for; None leaves that as it is. `number` is the log's own, which another log of the same name has not; None
    if that is not known.
    """

    reader: str
    offset: int
    namespace: str = "default"
    log: str = ""
    holds: bool | None = None
    number: int | None = None

    @property
    def name(self) -> str:
        return _hash(f"{self.namespace}\0{self.log}\0{self.reader}") + POSITION


class Pending(NamedTuple):
    """A manifest in the spool. One that cannot be read is None."""

    name: str
    manifest: Manifest | None
    refused: bool


class Part(NamedTuple):
    """A part of a batch: sections of messages, each with its topic."""

    number: int
    sections: list[tuple[str, Section]]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def check(manifest: Manifest) -> Manifest:
    """Give back a manifest that can be handed in, or raise what is wrong with it."""
    if not 0 < len(manifest.producer.encode()) <= limits.SPOOL_PRODUCER_BYTES_MAX:
        raise InvalidArgument(
            f"a producer's name has 1 to {limits.SPOOL_PRODUCER_BYTES_MAX} bytes, not {len(manifest.producer.encode())}: "
            "take a shorter one"
        )
    if not 0 <= manifest.batch <= limits.OFFSET_MAX:
        raise InvalidArgument(f"a batch's number is 0 to {limits.OFFSET_MAX}, not {manifest.batch}")
    if not manifest.files:
        raise InvalidArgument("a batch without messages need not be handed in")
    if len(manifest.files) > limits.SPOOL_FILES_MAX:
        raise BatchTooLarge(
            f"a batch of {len(manifest.files)} files is over the bound of {limits.SPOOL_FILES_MAX}: use fewer partitions"
        )
    topics = len({share.topic for file in manifest.files for share in file.shares})
    if topics > limits.SPOOL_TOPICS_MAX:
        raise BatchTooLarge(
            f"a batch for {topics} topics is over the bound of {limits.SPOOL_TOPICS_MAX}: is the right column named `topic`?"
        )
    return manifest


class Stager:
    """Writes one staged file: parts one after the other, and a name at the end."""

    def __init__(self, spool: Spool, name: str | None = None) -> None:
        self._spool = spool
        self._files = spool.files
        self._given = name is not None  # somebody may stage the same at the same time, having heard no answer
        self.name = name or f"{spool.files.random():016x}{spool.files.random():016x}{STAGED}"
        self._draft = spool.path / f"{self.name}.{spool.files.random():016x}{TMP}"
        self._label = Label(0, spool.files.random(), 1, 0, 0)
        self._fd: int | None = None
        self._end = 0
        self._parts = 0

    def add(self, sections: Sequence[Rows]) -> None:
        """Write a part: sections of messages, of which none shares another's payloads."""
        for rows in sections:
            rows.prepare(alone=True)
        content = frames.body(sections)
        if self._fd is None:
            self._fd = self._files.open(self._draft, write=True, create=True)
            self._files.write(self._fd, encode_label(self._label), 0)
            self._end = START
        self._parts += 1
        data = frames.encode(content, self._label.generation, self._parts, self._end, 0, 0)
        self._files.write(self._fd, data, self._end)
        self._end += frames.OVERHEAD + content.bytes

    def finish(self, shares: list[Share]) -> Staged | None:
        """Have it on the disk under its name; None if there is nothing in it."""
        if self._fd is None:
            return None
        self._files.sync(self._fd)
        self._close()
        self._files.rename(self._draft, self._spool.path / self.name)
        self._files.sync_directory(self._spool.path)
        return Staged(self.name, self._end, self._parts, shares)

    def discard(self) -> None:
        """It is not wanted after all."""
        if self._fd is not None:
            self._close()
        for path in (self._draft, *([] if self._given else [self._spool.path / self.name])):
            with contextlib.suppress(OSError):  # it is swept up later
                self._files.unlink(path)

    def _close(self) -> None:
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None


class Spool:
    """The spool of a directory, for those who hand in and for the owner."""

    def __init__(self, files: Files, directory: Path) -> None:
        self.files = files
        self.directory = directory
        self.path = directory / SPOOL

    def make(self) -> None:
        """Have a spool, be there a journal yet or not."""
        self.files.make_directory(self.path)

    # --- for those who hand in ---

    def stage(self, name: str | None = None) -> Stager:
        return Stager(self, name)

    def note(self, staged: Staged) -> None:
        """Keep what is in a staged file beside it. On the disk when this returns."""
        write_whole(
            self.files,
            self.path / (staged.name + NOTE),
            envelope.wrap(WHAT, VERSION, msgspec.msgpack.encode(staged)),
        )

    def noted(self, name: str) -> Staged | None:
        """What is in a staged file, if that was noted and is still there."""
        try:
            body = envelope.unwrap(WHAT, VERSION, read_whole(self.files, self.path / (name + NOTE)))
        except FileNotFoundError:
            return None
        if body is None or not self.files.exists(self.path / name):
            return None
        return msgspec.msgpack.decode(body, type=Staged)

    def drop_notes(self, staged: Sequence[str]) -> None:
        """What is in these files is in a manifest, or of no interest any more."""
        self.drop([name + NOTE for name in staged])

    def drop(self, staged: Sequence[str]) -> None:
        """Remove staged files that no manifest names. What cannot be removed is swept up later."""
        for name in staged:
            with contextlib.suppress(OSError):
                self.files.unlink(self.path / name)

    def hand_in(self, manifest: Manifest) -> bool:
        """Have a batch taken in; False if there is a manifest of this batch, which then counts. On the disk when this returns."""
        data = _wrapped(check(manifest))
        path = self.path / manifest.name
        draft = self.path / f"{manifest.name}.{self.files.random():016x}{TMP}"
        if not self.files.exists(
            path
        ):  # a refusal without its manifest was left by somebody who withdrew that
            self._remove(_refusal_of(manifest.name))
        write_draft(self.files, draft, data)
        try:
            linked = self.files.link(draft, path)
        finally:
            with contextlib.suppress(OSError):
                self.files.unlink(draft)
        self.files.sync_directory(
            self.path
        )  # of another's manifest too: who made it may have died before he did this
        return linked

    def ring(self) -> bool:
        """Have the owner look; False if he does not hear it, because there is none, or he is on another machine."""
        return self.files.ring(self.directory)

    def holds(self, name: str) -> bool:
        """Whether a manifest is still to be taken in."""
        return self.files.exists(self.path / name)

    def find(self, name: str) -> Manifest | None:
        """A manifest, if it is there."""
        try:
            return _unwrapped(read_whole(self.files, self.path / name))
        except FileNotFoundError:
            return None

    def batches_of(self, producer: str) -> list[str]:
        """The names of the manifests of a producer that are to be taken in, in order."""
        prefix = f"{_hash(producer)}-"
        return [name for name in self._names() if name.startswith(prefix) and name.endswith(MANIFEST)]

    def refusal(self, name: str) -> Refusal | None:
        """Why a manifest was not taken in, if it was refused."""
        try:
            data = read_whole(self.files, self.path / _refusal_of(name))
        except FileNotFoundError:
            return None
        body = envelope.unwrap(WHAT, VERSION, data)
        if body is None:
            return Refusal(CorruptJournal.code, f"what was said of {name} cannot be read", begun=True)
        return msgspec.msgpack.decode(body, type=Refusal)

    def withdraw(self, manifest: Manifest) -> None:
        """Take back a manifest that was refused, with nothing of it published, and its files.

        The refusal goes last: until then the owner leaves the manifest alone.
        """
        self._remove(manifest.name)
        self._remove(_refusal_of(manifest.name))
        self.files.sync_directory(self.path)
        self.drop([file.name for file in manifest.files])

    def ask_again(self, name: str) -> None:
        """Have the owner try once more to take in a manifest that he refused."""
        self._remove(_refusal_of(name))

    def report(self, report: Report) -> None:
        """Say how far a reader is. What was said before and is not taken in yet is replaced."""
        data = envelope.wrap(WHAT, VERSION, msgspec.msgpack.encode(report))
        draft = self.path / f"{report.name}.{self.files.random():016x}{TMP}"
        write_draft(self.files, draft, data)
        self.files.rename(draft, self.path / report.name)
        self.files.sync_directory(self.path)
        self.ring()

    # --- for the owner ---

    def pending(self) -> list[Pending]:
        """The manifests that are here, in the order in which they came, those of one producer in the order of batches."""
        names = self._names()
        refused = {name for name in names if name.endswith(REFUSED)}
        came: list[tuple[int, str]] = []
        for name in (name for name in names if name.endswith(MANIFEST)):
            with contextlib.suppress(FileNotFoundError):  # withdrawn meanwhile
                came.append((self.files.identity(self.path / name)[1], name))
        waiting: dict[str, list[str]] = {}
        for name in sorted(name for _, name in came):
            waiting.setdefault(_producer_in(name), []).append(name)
        ordered = [waiting[_producer_in(name)].pop(0) for _, name in sorted(came)]
        found: list[Pending] = []
        for name in ordered:
            with contextlib.suppress(FileNotFoundError):
                found.append(Pending(name, self._read(name), _refusal_of(name) in refused))
        return found

    def _read(self, name: str) -> Manifest | None:
        """A manifest; None if it is damaged, or of a newer version."""
        data = read_whole(self.files, self.path / name)
        with contextlib.suppress(CorruptJournal, msgspec.DecodeError):
            return _unwrapped(data)
        return None

    def settle(self) -> None:
        """Have the names in the spool on the disk: before anything is begun that must be found again."""
        self.files.sync_directory(self.path)

    def examine(self, manifest: Manifest) -> None:
        """Look at everything that a manifest names; raise what is wrong with it."""
        for file in manifest.files:
            rows = [0] * len(file.shares)
            for frame in self._frames(file):
                for section in frame.sections:
                    if section.kind is not MESSAGES or section.log >= len(rows):
                        raise _spoilt(file, "it holds other things than messages")
                    rows[section.log] += section.rows
            if rows != [share.rows for share in file.shares]:
                raise _spoilt(file, "it holds other messages than its manifest says")

    def parts(self, manifest: Manifest, first: int) -> Iterator[Part]:
        """The parts of a batch from a number on."""
        number = 0
        for file in manifest.files:
            if number + file.parts <= first:
                number += file.parts
                continue
            for frame in self._frames(file):
                if number >= first:
                    yield Part(number, [(file.shares[s.log].topic, s) for s in frame.sections])
                number += 1

    def _frames(self, file: Staged) -> Iterator[Frame]:
        try:
            fd = self.files.open(self.path / file.name)
        except FileNotFoundError as error:
            raise CorruptJournal(
                f"the staged file {file.name} is gone: write the batch again"
                " (what nobody hands in for a day is removed)"
            ) from error
        try:
            size = self.files.size(fd)
            label = decode_label(self.files.read(fd, START, 0))
            if label is None or size != file.bytes:
                raise _spoilt(file, f"it has {size} bytes where {file.bytes} were written")
            found = 0
            for item in Scan(self.files, fd, label, limit=size):
                if not isinstance(item, Frame):
                    raise _spoilt(file, f"bytes {item.position} to {item.end} are not what was written")
                found += 1
                yield item
            if found != file.parts:
                raise _spoilt(file, f"{found} parts of {file.parts} can be read")
        finally:
            self.files.close(fd)

    def refuse(self, name: str, error: PenstockError, *, begun: bool) -> None:
        """Say why a manifest is not taken in. It is left alone until somebody has read that."""
        said = Refusal(error.code, str(error), begun)
        data = envelope.wrap(WHAT, VERSION, msgspec.msgpack.encode(said))
        write_whole(self.files, self.path / _refusal_of(name), data)

    def remove(self, manifest: Manifest) -> None:
        """A batch is taken in: durably gone when this returns."""
        self._remove(manifest.name)
        self._remove(_refusal_of(manifest.name))
        self.files.sync_directory(self.path)
        self.drop([file.name for file in manifest.files])

    def reports(self) -> Iterator[tuple[str, Report | None]]:
        """What readers have said since, each with its name here; None where it cannot be read. They are heard again until they are removed."""
        names = self._names()
        taken = [name for name in names if name.endswith(POSITION + TAKEN)]
        for name in (name for name in names if name.endswith(POSITION)):
            mine = name + TAKEN
            if mine in taken:  # an earlier owner died with it, and there is a newer one
                self._remove(mine)
                taken.remove(mine)
            with contextlib.suppress(FileNotFoundError):
                # Under another name, so that what comes meanwhile is not removed with it.
                self.files.rename(self.path / name, self.path / mine)
                taken.append(mine)
        for name in taken:
            body = envelope.unwrap(WHAT, VERSION, read_whole(self.files, self.path / name))
            yield name, None if body is None else msgspec.msgpack.decode(body, type=Report)

    def remove_reports(self, names: Sequence[str]) -> None:
        """What they say is durable elsewhere."""
        for name in names:
            self._remove(name)

    def sweep(self, older_s: float = limits.SPOOL_STALE_S) -> int:
        """Remove drafts and staged files that nobody has handed in for so long; how many. What a manifest names is never touched."""
        old: list[str] = []
        for name in (name for name in self._names() if name.endswith((TMP, STAGED, NOTE))):
            with contextlib.suppress(FileNotFoundError):
                if self.files.age_s(self.path / name) > older_s:
                    old.append(name)
        if not old:
            return 0
        named: set[str] = set()
        for pending in self.pending():
            if pending.manifest is None:  # nobody knows what it names
                return 0
            named.update(file.name for file in pending.manifest.files)
        left = [name for name in old if name not in named]
        self.drop(left)
        return len(left)

    def _names(self) -> list[str]:
        try:
            return self.files.names(self.path)
        except FileNotFoundError:
            return []

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files.unlink(self.path / name)


def write_draft(files: Files, draft: Path, data: bytes) -> None:
    """A file whose content is on the disk, under a name that does not count."""
    fd = files.open(draft, write=True, create=True)
    try:
        files.write(fd, data, 0)
        files.sync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(draft)
        raise
    finally:
        files.close(fd)


def _wrapped(manifest: Manifest) -> bytes:
    return envelope.wrap(WHAT, VERSION, msgspec.msgpack.encode(manifest))


def _unwrapped(data: bytes) -> Manifest | None:
    body = envelope.unwrap(WHAT, VERSION, data)
    return None if body is None else msgspec.msgpack.decode(body, type=Manifest)


def _refusal_of(name: str) -> str:
    return name.removesuffix(MANIFEST) + REFUSED


def _producer_in(name: str) -> str:
    return name.partition("-")[0]


def _spoilt(file: Staged, why: str) -> CorruptJournal:
    return CorruptJournal(f"the staged file {file.name} cannot be used: {why}; write the batch again")
