"""Every system call fails, writes short or is interrupted, once or from then on, in every phase of a journal's life.

A *scene* is a directory, prepared once, and an act. The act is done with files whose Nth call goes wrong, for N = 1, 2, …
until it runs through. Then the directory is opened with sound files and compared with the oracle, goes on being written, and is
compared again. `make test` tries a sample of N for every scene and fault, `make faults` all of them.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from unittest.mock import patch

import pytest

from penstock import limits
from penstock.errors import DiskFull, JournalFailed, MaintenanceFailed, PenstockError
from penstock.journal.journal import Journal
from penstock.journal.tail import Durability
from tests.faults import campaign
from tests.faults.faulty_files import EINTR, KINDS, SHORT, FaultyFiles, UnsyncedFiles
from tests.faults.workload import Oracle, Workload, check, opened

#: The first number of the commits that follow what a scene prepared.
AHEAD: Final = 1000


class Template(NamedTuple):
    """A prepared directory and what is known of it."""

    path: Path
    oracle: Oracle


class Scene(NamedTuple):
    """What is prepared, and what then goes wrong. Without an act, it is opening that does."""

    prepare: Callable[[Path], Oracle]
    act: Callable[[Workload], None] | None
    durability: Durability = "commit"


# --- scenes ---


def _nothing(_path: Path) -> Oracle:
    return Oracle()


def _steps(count: int) -> Callable[[Path], Oracle]:
    def prepare(path: Path) -> Oracle:
        oracle = Oracle()
        journal, applied = opened(path, UnsyncedFiles())
        workload = Workload(journal, oracle, applied)
        for number in range(1, count + 1):
            workload.step(number)
        journal.close()
        return oracle

    return prepare


def _until_used_files(path: Path) -> Oracle:
    """Steps until a used file waits to be recycled."""
    oracle = Oracle()
    journal, applied = opened(path, UnsyncedFiles())
    workload = Workload(journal, oracle, applied)
    number = 0
    while not journal.stats().free_segments:
        number += 1
        workload.step(number)
    journal.close()
    return oracle


def _write(workload: Workload) -> None:
    for number in range(AHEAD, AHEAD + 3):
        workload.commit(number)


def _rotate(workload: Workload) -> None:
    before = workload.journal.segments()[-1].number
    number = AHEAD
    while workload.journal.segments()[-1].number == before:
        workload.commit(number)
        number += 1


def _write_behind(workload: Workload) -> None:
    """What the thread behind `os` has not synced by then, `sync` does: so there are always as many calls."""
    with patch.object(limits, "WRITE_BEHIND_BYTES", 1):
        for number in range(AHEAD, AHEAD + 4):
            workload.commit(number)
            workload.journal.sync()


def _snapshot(workload: Workload) -> None:
    workload.snapshot()


def _clean(workload: Workload) -> None:
    workload.clean()


def _close(workload: Workload) -> None:
    workload.commit(AHEAD)
    workload.journal.close()


def _killed(path: Path) -> Oracle:
    """What `kill -9` leaves: everything written, nothing closed."""
    return _copied_alive(path, lambda journal, workload: None)


def _power_cut(path: Path) -> Oracle:
    """What a power cut may leave: an old mark, a torn frame, a draft."""

    def ahead_of_the_mark(journal: Journal, workload: Workload) -> None:
        mark = journal.directory.mark.read_bytes()
        for number in range(AHEAD - 10, AHEAD - 5):
            workload.commit(number)
        journal.directory.mark.write_bytes(mark)
        info = journal.segments()[-1]
        with journal.directory.segment(info.number).open("r+b") as file:
            file.seek(info.end)
            file.write(b"the beginning of a frame, or what is left of one")
        (path.parent / "alive" / "00000000000000000099.segment.tmp").write_bytes(b"a draft")

    return _copied_alive(path, ahead_of_the_mark)


def _half_destroyed(path: Path) -> Oracle:
    """What costs time only: a damaged snapshot, no summaries, no mark."""

    def destroy(journal: Journal, workload: Workload) -> None:
        newest = journal.directory.file(journal.stats().snapshots[-1], "snapshot")
        newest.write_bytes(newest.read_bytes()[:-1] + b"!")
        for summary in journal.directory.path.glob("*.summary"):
            summary.unlink()

    return _copied_alive(path, destroy)


def _copied_alive(path: Path, then: Callable[[Journal, Workload], None]) -> Oracle:
    oracle = Oracle()
    alive = path.parent / "alive"
    journal, applied = opened(alive, UnsyncedFiles())
    try:
        workload = Workload(journal, oracle, applied)
        for number in range(1, 33):
            workload.step(number)
        then(journal, workload)
        shutil.copytree(alive, path)
    finally:
        journal.close()
    shutil.rmtree(alive)
    return oracle


SCENES: Final = {
    "opening a new one": Scene(_nothing, None),
    "writing": Scene(_steps(3), _write),
    "rotating and sealing": Scene(_steps(3), _rotate),
    "rotating into a used file": Scene(_until_used_files, _rotate),
    "writing behind": Scene(_steps(3), _write_behind, "os"),
    "snapshotting": Scene(_steps(17), _snapshot),
    "cleaning": Scene(_steps(37), _clean),
    "closing": Scene(_steps(3), _close),
    "recovering after a clean end": Scene(_steps(20), None),
    "recovering after kill -9": Scene(_killed, None),
    "recovering after a power cut": Scene(_power_cut, None),
    "recovering without summaries": Scene(_half_destroyed, None),
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Template]:
    made: dict[str, Template] = {}

    def template(name: str) -> Template:
        if name not in made:
            path = tmp_path_factory.mktemp("scene") / "journal"
            made[name] = Template(path, SCENES[name].prepare(path))
        return made[name]

    return template


# --- one try ---


class Try:
    """One act with one fault."""

    def __init__(
        self, template: Template, path: Path, scene: Scene, kind: str, nth: int, *, forever: bool
    ) -> None:
        self.path = path
        self.scene = scene
        self.oracle = copy.deepcopy(template.oracle)
        self.kind, self.nth, self.forever = kind, nth, forever
        self.files = FaultyFiles()
        self.calls = 0
        if template.path.exists():
            shutil.copytree(template.path, path)

    def run(self) -> bool:
        """Whether the fault came to pass at all."""
        before = _descriptors()
        if self.scene.act is None:
            self._open()
        else:
            self._act(self.scene.act)
        assert _descriptors() == before, "descriptors were left open"
        check(self.path, self.oracle, files=UnsyncedFiles())
        self._go_on()
        shutil.rmtree(self.path)
        return self.files.fired

    def _arm(self) -> None:
        self.files.arm(self.kind, self.nth, forever=self.forever)

    def _open(self) -> None:
        self._arm()
        try:
            journal, _ = opened(self.path, self.files)
        except PenstockError as error:
            self._expect(error, JournalFailed)
            return
        self.calls = self.files.calls
        self._close(journal)

    def _act(self, act: Callable[[Workload], None]) -> None:
        journal, applied = opened(self.path, self.files, self.scene.durability)
        workload = Workload(journal, self.oracle, applied)
        self._arm()
        try:
            act(workload)
        except PenstockError as error:
            self._expect(error, JournalFailed, DiskFull, MaintenanceFailed)
        self.calls = self.files.calls
        if not self.forever:
            self.files.disarm()
            self._afterwards(journal, workload)
        self._close(journal)

    def _expect(self, error: PenstockError, *kinds: type[PenstockError]) -> None:
        assert isinstance(error, kinds), error
        assert self.kind not in (EINTR, SHORT), f"an ordinary thing became an error: {error!r}"

    def _afterwards(self, journal: Journal, workload: Workload) -> None:
        """A fault that passed: either the journal has failed for good, or all goes on, reading included."""
        if journal.stats().failure is None:
            workload.commit(AHEAD + 500)
            workload.snapshot()
            workload.clean()
            for log in (1, 2, 3):
                for batch in journal.read(log):
                    list(batch.values("payload"))
            return
        with pytest.raises(PenstockError):
            workload.commit(AHEAD + 501)
        self.oracle.refused(AHEAD + 501)

    def _close(self, journal: Journal) -> None:
        try:
            journal.close()
        except PenstockError as error:
            self._expect(error, JournalFailed)

    def _go_on(self) -> None:
        journal, applied = opened(self.path, UnsyncedFiles())
        workload = Workload(journal, self.oracle, applied)
        for number in range(AHEAD + 600, AHEAD + 605):
            workload.step(number)
        journal.close()
        check(self.path, self.oracle, files=UnsyncedFiles())


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


_counted: dict[tuple[str, str], int] = {}


def _calls(template: Template, path: Path, name: str, kind: str) -> int:
    """How many calls of a scene a fault can strike."""
    if (name, kind) not in _counted:
        dry = Try(template, path, SCENES[name], kind, 1 << 60, forever=False)
        assert not dry.run()
        _counted[name, kind] = dry.calls
    return _counted[name, kind]


def _sweep(
    template: Template, path: Path, name: str, kind: str, *, forever: bool, sample: int | None
) -> None:
    scene = SCENES[name]
    calls = range(1, _calls(template, path / "dry", name, kind) + 1)
    tried = calls if sample is None else campaign.some(calls, sample, (name, kind, forever))
    for nth in tried:
        one = Try(template, path / f"{nth}", scene, kind, nth, forever=forever)
        try:
            assert one.run(), "the fault never came to pass"
        except BaseException as error:
            error.add_note(
                f"while {name}: call {nth} of {len(calls)} got {kind}, {'from then on' if forever else 'once'}"
            )
            raise


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCENES)
def test_a_failing_call_costs_nothing_acknowledged(
    templates: Callable[[str], Template], tmp_path: Path, name: str, kind: str, forever: bool
) -> None:
    _sweep(templates(name), tmp_path, name, kind, forever=forever, sample=2)


@pytest.mark.campaign
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCENES)
def test_every_failing_call_costs_nothing_acknowledged(
    templates: Callable[[str], Template], tmp_path: Path, name: str, kind: str, forever: bool
) -> None:
    _sweep(templates(name), tmp_path, name, kind, forever=forever, sample=None)
