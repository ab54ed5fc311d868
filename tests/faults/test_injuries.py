"""Random injuries to a journal: whatever is gone is named, and nothing else is; the same at every later opening, and by `verify`.

A *specimen* is made from a seed: several logs, batches and single messages, segments that rotate, snapshots, cleaning, several owners. Then one or
two injuries are done to its files (bits flipped, stretches zeroed or overwritten, files cut or removed), and it is opened three times,
read to its end, and checked, each time.

What is gone is *knowable* if something whole still tells that it was there: a later message of the same log, a snapshot, the summary of a
segment that is still there. The rest, at the very end of a log, must at least never be given again.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.checkup.repair import repair
from penstock.checkup.verify import Checkup, verify
from penstock.errors import PenstockError
from penstock.journal import mark as marks
from penstock.journal import snapshot as snapshots
from penstock.journal import summary as summaries
from penstock.journal.cleaner import DeadRange, clean
from penstock.journal.directory import Directory
from penstock.journal.files import Files
from penstock.journal.frame import Frame
from penstock.journal.journal import Journal
from penstock.journal.kinds import CLEANED
from penstock.journal.rows import Rows, messages
from penstock.model.damage import ROT
from tests.faults import campaign
from tests.faults.faulty_files import EIO, FaultyFiles, UnsyncedFiles

Message = tuple[int, int]  # log, offset
Spans = Iterable[tuple[int, int, int]]

LOGS = (1, 2, 3)


def in_spans(spans: Spans) -> set[Message]:
    return {(log, offset) for log, first, last in spans for offset in range(first, last + 1)}


class Specimen:
    """A journal that was closed cleanly: every message that was ever published, and which of them are there, where."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self.chance = chance
        self.published: dict[Message, bytes] = {}
        self.there: set[Message] = set()
        self.frames: list[Frame] = []
        self._dead = dict.fromkeys(LOGS, 0)
        self.segment_bytes = chance.choice([4096, 4096, 8192, 1 << 20])
        for _ in range(chance.choice([1, 1, 2, 3])):
            with Journal(path, segment_bytes=self.segment_bytes, files=UnsyncedFiles()) as journal:
                self._live(journal)
        with Journal(path, segment_bytes=self.segment_bytes, files=UnsyncedFiles()) as journal:
            self.frames = list(journal.frames())
            self.there = readable(journal).keys() & self.published.keys()
            assert not journal.damage
        self.directory = Directory(Files(), path)

    def _live(self, journal: Journal) -> None:
        chance = self.chance
        for _ in range(chance.randrange(5, 60)):
            match chance.randrange(30):
                case 0:
                    journal.snapshot(b"")
                case 1:
                    journal.rotate()
                case 2:
                    for log in LOGS:
                        self._dead[log] = chance.randint(self._dead[log], journal.next_offset(log))
                    clean(journal, self._said_dead, rewriting=chance.random() < 0.5)
                case _:
                    self._publish(journal)

    def _publish(self, journal: Journal) -> None:
        logs = self.chance.sample(LOGS, self.chance.choice([1, 1, 1, 2]))
        rows: list[Rows] = []
        for log in logs:
            first, count = journal.next_offset(log), self.chance.choice([1, 1, 2, 5])
            payloads = [
                b"%d/%d " % (log, first + n) + self.chance.randbytes(self.chance.randrange(300))
                for n in range(count)
            ]
            self.published |= {(log, first + n): payload for n, payload in enumerate(payloads)}
            rows.append(messages(log, payloads, ids=range(first, first + count), timestamp=first))
        journal.commit(rows)

    def _said_dead(self, log: int, first: int, last: int) -> list[DeadRange]:
        """All below a border, but each seventh."""
        return [DeadRange(o, o, 1) for o in range(first, min(last, self._dead[log] - 1) + 1) if o % 7]

    def files(self, ending: str) -> list[Path]:
        return sorted(self.path.glob(f"*.{ending}"))

    # --- injuries ---

    def injure(self) -> str:
        """Damage a file; what was done."""
        chance = self.chance
        if not self.files("segment"):
            return "nothing"
        segment = chance.choice(
            self.files("segment")[-3:] if chance.random() < 0.5 else self.files("segment")
        )
        frames = [frame.header for frame in self.frames if frame.segment == int(segment.stem)]
        end = frames[-1].end if frames else 128
        data = bytearray(segment.read_bytes())
        at = chance.randrange(128, end + 1)
        if frames and chance.random() < 0.4:
            at = chance.choice(frames).position + chance.choice([0, 0, 1, 48, 64, 70])
        at = min(at, len(data) - 1)
        match chance.randrange(9):
            case 0 | 1:
                for _ in range(chance.choice([1, 1, 2, 5])):
                    at = min(chance.randrange(at, at + 400), len(data) - 1)
                    data[at] ^= 1 << chance.randrange(8)
                done = f"flipped bits up to {at}"
            case 2:
                stop = min(at + chance.randrange(1, 600), len(data))
                data[at:stop] = bytes(stop - at)
                done = f"zeroed {at}–{stop}"
            case 3:
                data[at:] = bytes(len(data) - at)
                done = f"zeroed from {at} on"
            case 4:
                stop = min(at + chance.randrange(1, 2000), len(data))
                data[at:stop] = chance.randbytes(stop - at)
                done = f"overwrote {at}–{stop}"
            case 5 | 6:
                if frames and chance.random() < 0.5:
                    at = chance.choice(frames).position
                del data[at:]
                done = f"cut at {at}"
            case 7 if chance.random() < 0.5:
                segment.unlink()
                return f"{segment.name}: removed"
            case _:
                return self._injure_small_file()
        segment.write_bytes(data)
        return f"{segment.name}: {done}"

    def _injure_small_file(self) -> str:
        chance = self.chance
        path = chance.choice([*self.files("snapshot"), *self.files("summary"), self.path / "mark"])
        if not path.exists():
            return f"{path.name}: was gone"
        data = bytearray(path.read_bytes())
        if not data or chance.random() < 0.3:
            path.unlink()
            return f"{path.name}: removed"
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        return f"{path.name}: flipped"

    # --- what can be known ---

    def told(self) -> dict[int, int]:
        """Up to where each log went, as far as a snapshot or a summary tells it."""
        top = dict.fromkeys(LOGS, -1)
        contents = self.directory.contents()
        for sequence in contents.snapshots:
            found = snapshots.read(self.directory, sequence)
            for log, stop in found.journal.next_offsets.items() if found is not None else ():
                top[log] = max(top[log], stop - 1)
        for number in contents.summaries:
            summary = summaries.read(self.directory, number)
            if summary is not None and number in contents.segments:
                for one in summary.logs:
                    top[one.log] = max(top[one.log], one.last)
        return top

    def knowable(self, told: dict[int, int], served: Iterable[Message]) -> set[Message]:
        """The messages that something whole tells of, apart from records and what is damaged."""
        top = dict(told)
        for log, offset in served:
            top[log] = max(top[log], offset)
        return {(log, offset) for log, offset in self.there if offset <= top[log]}

    def lost_records(self, path: Path) -> bool:
        """Whether commits are gone that said what was cleaned, so that it cannot be told from what is lost."""
        telling = {f.sequence for f in self.frames if any(s.kind is CLEANED for s in f.sections)}
        with Journal(path, segment_bytes=self.segment_bytes, files=UnsyncedFiles()) as journal:
            return not telling <= {frame.sequence for frame in journal.frames()}


def readable(journal: Journal) -> dict[Message, bytes]:
    return {
        (log, offset): bytes(payload)
        for log in LOGS
        for batch in journal.read(log)
        for offset, payload in zip(batch.offsets, batch.values("payload"), strict=True)
    }


def named_by(checkup: Checkup) -> set[Message]:
    return in_spans([*checkup.lost, *(span for finding in checkup.damage for span in finding.spans)])


def check(seed: int, path: Path) -> None:
    """Make a journal, injure it, and hold everything that is said of it against what is really gone."""
    chance = random.Random(seed)
    shutil.rmtree(path, ignore_errors=True)
    specimen = Specimen(path / "journal", chance)
    done = [specimen.injure() for _ in range(chance.choice([1, 1, 1, 2]))]
    if marks.read(Files(), specimen.path / "mark") is None and any("zeroed from" in one for one in done):
        return  # an end that was zeroed between two frames is told from one that was never written by the mark alone
    tops = specimen.told()
    first_look = verify(specimen.path)
    shutil.copytree(specimen.path, path / "copy")
    confused = specimen.lost_records(path / "copy")
    if chance.random() < 0.3:
        interrupt_opening(specimen, chance)
    given: set[Message] = set()
    named_before: set[Message] | None = None
    story = f"seed {seed}: {done}"
    for opening in range(3):
        told = f"{story}, opening {opening}"
        with Journal(specimen.path, segment_bytes=specimen.segment_bytes, files=UnsyncedFiles()) as journal:
            at_once = in_spans(span for damage in journal.damage for span in damage.spans)
            served = readable(journal)
            for message, payload in served.items():
                assert message in given or payload == specimen.published[message], f"{told}: {message}"
            list(journal.frames())
            missing = specimen.there - served.keys()
            named = in_spans(span for damage in journal.damage for span in damage.spans)
            knowable = missing & specimen.knowable(tops, named | (served.keys() - given))
            counted = journal.stats().damaged_messages
            assert not named & served.keys(), f"{told}: served, and named: {sorted(named & served.keys())}"
            if not confused:
                assert named <= missing, f"{told}: not missing: {sorted(named - missing)}"
                assert counted <= len(missing), f"{told}: {counted} counted, {len(missing)} missing"
            assert knowable <= named, f"{told}: not named: {sorted(knowable - named)}; {journal.damage}"
            assert counted >= len(named), f"{told}: {counted} counted, {len(named)} named"
            if named_before is not None:
                assert at_once >= named_before, f"{told}: forgotten: {sorted(named_before - at_once)}"
                assert named == named_before, f"{told}: named later: {sorted(named - named_before)}"
            named_before = named
            for log in LOGS:
                offset = journal.next_offset(log)
                assert (log, offset) not in specimen.published, f"{told}: {log, offset} given again"
                journal.commit([messages(log, [b"new"], ids=0, timestamp=0)])
                specimen.published[log, offset] = b"new"
                given.add((log, offset))
        if opening == 0:
            look = named_by(first_look)
            assert not look & served.keys(), f"{told}: verify names what is served"
            if not confused:
                assert look <= missing, f"{told}: verify names {sorted(look - missing)}"
            assert knowable <= look, f"{told}: verify misses {sorted(knowable - look)}; {first_look.damage}"
        look = named_by(verify(specimen.path))
        assert look >= named if confused else look == named, (
            f"{told}: verify afterwards: {sorted(look - named)} more, {sorted(named - look)} less"
        )
    check_repair(specimen, served, named, story)


def check_again(seed: int, path: Path) -> None:
    """Injure a journal that was injured before, and has told of it: it tells of both, and gives no offset again."""
    chance = random.Random(seed)
    shutil.rmtree(path, ignore_errors=True)
    specimen = Specimen(path / "journal", chance)
    story = f"seed {seed}:"
    named: set[Message] = set()
    for turn in range(3):
        with Journal(specimen.path, segment_bytes=specimen.segment_bytes, files=UnsyncedFiles()) as journal:
            served = readable(journal)
            list(journal.frames())
            specimen.frames = list(journal.frames())
            for message, payload in served.items():
                assert payload == specimen.published[message], f"{story} {message}"
            before, named = named, in_spans(span for damage in journal.damage for span in damage.spans)
            assert not named & served.keys(), f"{story} served, and named: {sorted(named & served.keys())}"
            assert before <= named, f"{story} forgotten: {sorted(before - named)}"
            for log in LOGS:
                offset = journal.next_offset(log)
                assert (log, offset) not in specimen.published, f"{story} {log, offset} given again"
                journal.commit([messages(log, [b"new"], ids=0, timestamp=0)])
                specimen.published[log, offset] = b"new"
        if turn < 2:
            story += f" {specimen.injure()}"
            if marks.read(Files(), specimen.path / "mark") is None or not specimen.files("segment"):
                return  # see above
            if specimen.lost_records(specimen.path):
                return  # which damage was on record, and what was given up for it, went with the record


def interrupt_opening(specimen: Specimen, chance: random.Random) -> None:
    """Open it with files that fail from some call on: recovering may be interrupted anywhere, and is done again."""
    files = FaultyFiles()
    files.arm(EIO, chance.randrange(1, 200), forever=True)
    with suppress(PenstockError):
        Journal(specimen.path, segment_bytes=specimen.segment_bytes, files=files).close()


def check_repair(specimen: Specimen, served: dict[Message, bytes], named: set[Message], story: str) -> None:
    """Repairing costs nothing of what is served, and leaves a sound journal that still names what it lost."""
    done = repair(specimen.path, yes=True)
    assert not done.needed, f"{story}: {done.after}"
    with Journal(specimen.path, segment_bytes=specimen.segment_bytes, files=UnsyncedFiles()) as journal:
        left = readable(journal)
        assert served.items() <= left.items(), f"{story}: repair cost {sorted(served.keys() - left.keys())}"
        assert not [damage for damage in journal.damage if damage.what == ROT], f"{story}: {journal.damage}"
    again = verify(specimen.path)
    assert again.sound, f"{story}: {again.damage}"
    assert named <= in_spans(again.lost), f"{story}: forgotten: {sorted(named - in_spans(again.lost))}"


#: Each of them was told wrongly once.
HARD = (
    23,
    54,
    65,
    124,
    152,
    574,
    617,
    2803,
    2913,
    3386,
    4126,
    20310,
    21035,
    23215,
    23220,
    24629,
    32287,
    35844,
)


@pytest.mark.parametrize("seed", [*range(20), *HARD])
def test_an_injured_journal_names_all_that_it_lost(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.parametrize("seed", range(30))
def test_a_journal_that_is_injured_again_tells_of_both(seed: int, tmp_path: Path) -> None:
    check_again(seed, tmp_path)


@pytest.mark.campaign
def test_journals_with_many_injuries_name_all_that_they_lost(tmp_path: Path) -> None:
    for seed in range(1000, 1000 + 20 * campaign.rounds()):
        check(seed, tmp_path / "one")
        check_again(seed, tmp_path / "one")
