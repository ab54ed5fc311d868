"""Every file call of a broker fails, with EIO or a full disk, once or from then on: while it does what there is to do with logs, cleans, closes and opens.

A *scene* is a directory in which a hand has done a bit of everything, and an act. The act is done with files whose Nth call goes wrong. Afterwards the broker either works, or has
failed and refuses everything; and what a sound owner finds is what was acknowledged, with the one step that failed or without it (see `logs_model`). What was
refused because the disk was full has changed nothing. `make test` tries a sample of N for every scene, `make faults` all of them.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from penstock.broker.sync import Broker
from penstock.errors import DiskFull, JournalFailed, MaintenanceFailed, PenstockError
from tests.faults import campaign
from tests.faults.faulty_files import EIO, ENOSPC, FaultyFiles, UnsyncedFiles
from tests.faults.logs_hand import Hand, opened
from tests.faults.logs_model import Oracle
from tests.faults.test_logs_kill import check_here

#: Steps that are done before anything goes wrong, and the first number that is free then.
STEPS: Final = 120
FIRST: Final = 100_000


class Scene(NamedTuple):
    """Whether the directory was closed or its owner killed, and what then goes wrong. Without an act, it is opening that does."""

    closed: bool
    act: Callable[[Hand], None] | None


def _subscribe(hand: Hand) -> None:
    hand.come("news.a", "x", filtered=True)
    hand.come("news.b", "y", earliest=False)
    hand.come("work", "z")
    hand.publish("news.a", 3)
    hand.consume("news.a", "x", 2, ["ack"])


def _unsubscribe(hand: Hand) -> None:
    hand.come("news.a", "x")
    hand.go("news.a", "x")
    hand.publish("news.a", 2)


def _glance(hand: Hand) -> None:
    for _ in range(3):
        hand.glance()


def _seek(hand: Hand) -> None:
    for share in (0, 1, 0.5):
        hand.seek("work", "a", share)
        hand.consume("work", "a", 3, ["ack", "reject"])
    hand.come("news.a", "x")
    hand.seek("news.a", "x", 1)
    hand.seek("news.a", "x", 0)


def _commit(hand: Hand) -> None:
    for name, reader in (("news.a", "r"), ("news.b", "keeper"), ("work", "keeper")):
        hand.commit(name, reader, 1)
        hand.publish(name, 1)
        hand.commit(name, reader, 2)


def _transact(hand: Hand) -> None:
    for _ in range(3):
        hand.transfer()
        hand.fulfil()
    hand.drop("out.b")
    hand.fulfil()


def _plan(hand: Hand) -> None:
    """What is to come later, is cancelled, and recurs."""
    for _ in range(3):
        hand.publish_later()
        hand.recur()
    hand.cancel()
    hand.recur()


def _keep_up(hand: Hand) -> None:
    """Two snapshots must cover what is cleaned; what has something live in it is rewritten."""
    hand.publish("news.a", 8)
    hand.keep_up()
    hand.publish("work", 2)
    hand.keep_up()
    hand.transfer()
    hand.keep_up()


def _everything(hand: Hand) -> None:
    for _ in range(12):
        hand.step()


def _close(hand: Hand) -> None:
    hand.seek("work", "a", 0)
    hand.root.close()


SCENES: Final = {
    "subscribing": Scene(True, _subscribe),
    "unsubscribing": Scene(True, _unsubscribe),
    "glancing": Scene(True, _glance),
    "seeking": Scene(True, _seek),
    "committing": Scene(True, _commit),
    "transacting": Scene(True, _transact),
    "planning": Scene(True, _plan),
    "keeping up": Scene(False, _keep_up),
    "doing everything": Scene(False, _everything),
    "closing": Scene(False, _close),
    "opening": Scene(True, None),
    "opening after a kill": Scene(False, None),
}


class Template(NamedTuple):
    path: Path
    oracle: Oracle


def _prepared(path: Path, *, closed: bool) -> Template:
    oracle = Oracle()
    alive = path / "alive"
    broker = opened(alive, UnsyncedFiles())
    hand = Hand(broker, "hand", oracle.hear, seed="scene")
    hand.begin()
    for _ in range(STEPS):
        hand.step()
    if closed:
        broker.close()
    shutil.copytree(alive, path / "data")
    broker.close()
    return Template(path / "data", oracle)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Template]:
    return {closed: _prepared(tmp_path_factory.mktemp("scene"), closed=closed) for closed in (False, True)}


def _expect(error: PenstockError, *kinds: type[PenstockError]) -> None:
    assert isinstance(error, kinds), repr(error)


class Try:
    """One act with one fault."""

    def __init__(
        self, template: Template, path: Path, scene: Scene, kind: str, nth: int, *, forever: bool
    ) -> None:
        self.path = path
        self.scene = scene
        self.kind, self.nth, self.forever = kind, nth, forever
        self.oracle = copy.deepcopy(template.oracle)
        self.files = FaultyFiles()
        self.calls = 0
        shutil.copytree(template.path, path)

    def run(self) -> bool:
        """Whether the fault came to pass at all."""
        if self.scene.act is None:
            self._open()
        else:
            self._act(self.scene.act)
        check_here(self.path, self.oracle)
        shutil.rmtree(self.path)
        return self.files.fired

    def _open(self) -> None:
        self.files.arm(self.kind, self.nth, forever=self.forever)
        try:
            broker = opened(self.path, self.files)
        except PenstockError as error:
            _expect(error, JournalFailed, DiskFull)
            self.calls = self.files.calls
            return
        self.calls = self.files.calls
        self._close(broker)

    def _act(self, act: Callable[[Hand], None]) -> None:
        broker = opened(self.path, self.files)
        hand = Hand(broker, "hand", self.oracle.hear, seed="act", first=FIRST)
        self.files.arm(self.kind, self.nth, forever=self.forever)
        try:
            act(hand)
        except PenstockError as error:
            _expect(error, JournalFailed, DiskFull, MaintenanceFailed)
        self.calls = self.files.calls
        if act is not _close:
            self._afterwards(hand)
        self._close(broker)

    def _afterwards(self, hand: Hand) -> None:
        """It may have failed when all was acknowledged, in beginning another segment."""
        if hand.root._port.monitor.journal.stats().failure is not None:  # type: ignore[attr-defined]
            self._refuses(hand)
        elif not self.forever:
            self.files.disarm()
            for _ in range(5):  # a fault that passed: everything works
                hand.step()

    def _refuses(self, hand: Hand) -> None:
        """A broker whose journal failed says so, whatever it is asked."""
        broker = hand.broker
        for call in (
            lambda: broker.topic("news.a"),
            lambda: broker.publish("news.*", b"never"),
            lambda: broker.queue("never"),
            broker.list_topics,
        ):
            with pytest.raises(JournalFailed):
                call()

    def _close(self, broker: Broker) -> None:
        try:
            broker.close()
        except PenstockError as error:
            _expect(error, JournalFailed, MaintenanceFailed)


def _calls(template: Template, path: Path, name: str, kind: str) -> int:
    """How many calls an act makes to which a fault applies."""
    dry = Try(template, path / "dry", SCENES[name], kind, 1 << 60, forever=False)
    assert not dry.run()
    return dry.calls


def _sweep(
    template: Template, path: Path, name: str, kind: str, *, forever: bool, calls: range, sample: int | None
) -> None:
    scene = SCENES[name]
    for nth in calls if sample is None else campaign.some(calls, sample, (name, kind, forever)):
        one = Try(template, path / f"{nth} {forever}", scene, kind, nth, forever=forever)
        try:
            one.run()
        except BaseException as error:
            how = "from then on" if forever else "once"
            error.add_note(f"while {name}: call {nth} of {len(calls)} got {kind}, {how}")
            raise


@pytest.mark.parametrize("name", SCENES)
def test_a_failing_call_costs_something_acknowledged_of_logs(
    templates: dict[bool, Template], tmp_path: Path, name: str
) -> None:
    template = templates[SCENES[name].closed]
    for kind in (EIO, ENOSPC):
        calls = range(1, _calls(template, tmp_path, name, kind) + 1)
        for forever in (False, True):
            _sweep(template, tmp_path / kind, name, kind, forever=forever, calls=calls, sample=1)


@pytest.mark.campaign
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", [EIO, ENOSPC])
@pytest.mark.parametrize("name", SCENES)
def test_every_failing_call_costs_something_acknowledged_of_logs(
    templates: dict[bool, Template], tmp_path: Path, name: str, kind: str, forever: bool
) -> None:
    template = templates[SCENES[name].closed]
    calls = range(1, _calls(template, tmp_path, name, kind) + 1)
    _sweep(template, tmp_path, name, kind, forever=forever, calls=calls, sample=None)


def test_the_scenes_leave_out_rewriting_or_dropping(templates: dict[bool, Template], tmp_path: Path) -> None:
    """What is cleaned while keeping up is not nothing."""
    shutil.copytree(templates[False].path, tmp_path / "data")
    with opened(tmp_path / "data", UnsyncedFiles()) as broker:
        hand = Hand(broker, "hand", lambda *_: None, seed="act", first=FIRST)
        journal = broker._port.monitor.journal  # type: ignore[attr-defined]
        before = {info.number for info in journal.segments()}
        sizes = {info.number: info.end for info in journal.segments()}
        _keep_up(hand)
        after = {info.number: info.end for info in journal.segments()}
    assert before - set(after), "no segment was dropped"
    assert any(after[number] < sizes[number] for number in before & set(after)), "no segment was rewritten"


# --- what the sweep has found, and a sample rarely meets ---


@pytest.mark.parametrize("wanted", [None, "k = 'v'"])
def test_what_could_not_be_read_once_is_never_delivered(tmp_path: Path, wanted: str | None) -> None:
    with opened(tmp_path / "data", UnsyncedFiles()) as broker:
        topic = broker.topic("t", visibility_timeout=None)
        topic.subscribe("s", filter=wanted).close()
        topic.publish(b"1", headers={"k": "v"})
    files = FaultyFiles()
    with opened(tmp_path / "data", files) as broker:
        subscription = broker.topic("t").subscription("s")
        files.arm(EIO, 1, forever=True)
        with pytest.raises(MaintenanceFailed):
            subscription.receive()
        files.disarm()
        assert [one.payload for one in subscription.receive_many(9)] == [b"1"]
    with opened(tmp_path / "data", UnsyncedFiles()) as broker:
        assert [one.payload for one in broker.topic("t").subscription("s").receive_many(9)] == [b"1"]
