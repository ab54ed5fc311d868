"""The whole broker, in memory and on disk, against the naive model of `tests.unit.engine.model`: fewer steps than for the engine alone, and all the way through.

Beside what a user calls, the machine closes and opens the broker on disk, with the snapshot that closing makes, and without one as a kill does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.broker import opening
from penstock.broker.sync import Broker, Delivery, Queue
from penstock.clock import SECOND_US
from penstock.errors import PenstockError
from penstock.message import Message
from penstock.policy import Policy
from tests.conformance.unheard import UnheardClock
from tests.faults import campaign
from tests.faults.faulty_files import UnsyncedFiles
from tests.unit.engine.model import Model, Receipt, Row
from tests.unit.engine.test_state_machine import policies, sketches

pytestmark = pytest.mark.lengthy

NAMES: Final = ("a", "b")


class BrokerMachine(RuleBasedStateMachine):
    """The same calls for both."""

    on_disk: ClassVar[bool] = False

    @initialize(first=policies("b"), second=policies("c"))
    def declare(self, first: Policy, second: Policy) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="penstock-machine-")) if self.on_disk else None
        self.clock = UnheardClock()
        self.model = Model()
        self.broker = self.opened()
        self.deliveries: list[tuple[str, Delivery]] = []
        self.published = 0
        for name, policy in zip(NAMES, (first, second), strict=True):
            self.broker.create_queue(
                name, **{field: getattr(policy, field) for field in policy.__struct_fields__}
            )
            self.model.declare(name, policy)

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()
            if self.path is not None:
                shutil.rmtree(self.path)

    def opened(self) -> Broker:
        if self.path is None:
            return Broker(opening.in_memory(self.clock))
        return Broker(opening.on_disk(self.path, self.clock, files=UnsyncedFiles(), segment_bytes=4096))

    @property
    def now(self) -> int:
        return self.clock.now_us()

    def queue(self, name: str) -> Queue:
        return self.broker.get_queue(name)

    def both(self, real: Callable[[], Any], naive: Callable[[], Any]) -> None:
        try:
            expected = naive()
        except PenstockError as error:
            with pytest.raises(type(error)):
                real()
            return
        assert real() == expected

    def some_queue(self, data: st.DataObject) -> str:
        return str(data.draw(st.sampled_from(sorted(self.model.queues)), label="queue"))

    # --- the calls ---

    @rule(name=st.sampled_from(NAMES), made=st.lists(sketches, min_size=1, max_size=4))
    def publish(self, name: str, made: list[dict[str, Any]]) -> None:
        rows, messages = [], []
        for sketch in made:
            self.published += 1
            payload = (b"%d" % self.published).ljust(sketch["size"], b".")
            delay, ttl = sketch["delay"], sketch["ttl"]
            ttl = (
                ttl if ttl is None or delay is None else ttl + delay
            )  # what expires before it is due is refused
            rows.append(
                Row(
                    payload, 0, sketch["priority"], None if delay is None else self.now + delay, None if ttl is None else self.now + ttl,
                    sketch["key"], sketch["dedup_id"],
                )
            )  # fmt: skip
            messages.append(
                Message(
                    payload,
                    priority=sketch["priority"],
                    delay=None if delay is None else delay / SECOND_US,
                    ttl=None if ttl is None else ttl / SECOND_US,
                    key=sketch["key"],
                    dedup_id=sketch["dedup_id"],
                )
            )
        try:
            ids = self.queue(name).publish_many(messages)
        except PenstockError as error:
            with pytest.raises(type(error)):
                self.model.publish(name, rows, self.now)
            return
        for row, given in zip(rows, ids, strict=True):
            row.id = given
        assert self.model.publish(name, rows, self.now) == ids

    @rule(data=st.data(), wanted=st.integers(1, 5))
    def receive(self, data: st.DataObject, wanted: int) -> None:
        name = self.some_queue(data)
        found = self.queue(name).receive_many(wanted)
        token = found[0]._number if found else 0
        items = self.model.lease(name, wanted, token, None, self.now, keep=True)
        assert [(one.offset, one.payload, one.attempt) for one in found] == [
            (item.offset, item.payload, item.failures + 1) for item in items
        ]
        self.deliveries += [(name, one) for one in found if token]

    @precondition(lambda self: self.deliveries)
    @rule(
        data=st.data(),
        how=st.sampled_from(["ack", "ack", "nack", "reject", "requeue"]),
        delay=st.sampled_from([None, 0, 2]),
    )
    def settle(self, data: st.DataObject, how: str, delay: int | None) -> None:
        name = data.draw(st.sampled_from(sorted({name for name, _ in self.deliveries})), label="queue")
        mine = [one for found, one in self.deliveries if found == name][-8:]
        chosen = data.draw(st.lists(st.sampled_from(range(len(mine))), min_size=1, max_size=3), label="which")
        found = [mine[place] for place in chosen]
        if how != "ack":
            found = found[:1]
        receipts: list[Receipt] = [(name, one.offset, one._number) for one in found]
        queue = self.queue(name)
        if how == "ack":
            self.both(lambda: queue.ack_many(found), lambda: self.model.acked(name, receipts, self.now))
        elif how == "nack":
            wait = None if delay is None else delay * SECOND_US
            self.both(
                lambda: found[0].nack(delay=delay, error="oh"),
                lambda: self.model.nack(name, receipts, wait, "oh", self.now),
            )
        elif how == "reject":
            self.both(found[0].reject, lambda: self.model.reject(name, receipts, None, self.now))
        else:
            self.both(found[0].requeue, lambda: self.model.requeue(name, receipts, self.now))

    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        name = self.some_queue(data)
        self.both(lambda: self.queue(name).purge(), lambda: self.model.purge(name, self.now))

    @rule(data=st.data(), limit=st.integers(1, 5))
    def redrive(self, data: st.DataObject, limit: int) -> None:
        letters = [name for name, queue in self.model.queues.items() if self.model.holds_letters(queue)]
        if not letters:
            return
        name = data.draw(st.sampled_from(sorted(letters)), label="dead letters")
        ready = self.model.queues[name].order
        if any("x-origin" not in item.headers for item in ready):
            return  # nobody knows where those should go
        self.both(
            # Not what it has of its own, if it holds the dead letters of others too.
            lambda: Queue(self.broker, self.queue(name)._log, of_dead_letters=True).redrive(limit=limit),
            lambda: self.redriven(name, limit),
        )

    def redriven(self, name: str, limit: int) -> int:
        """What the model moves, step by step: the last one finds nothing more, or no room."""
        moved = 0
        while moved < limit and (step := self.model.redrive(name, limit - moved, None, self.now)):
            moved += step
        return moved

    @rule(seconds=st.sampled_from([1, 2, 3, 5, 100]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.broker._port.wake()  # type: ignore[attr-defined]
        self.model.advance(self.now)

    @precondition(lambda self: self.on_disk)
    @rule(killed=st.booleans())
    def reopen(self, killed: bool) -> None:
        if killed:  # nothing is said to the broker: its journal is taken away
            self.broker._port.monitor.journal.close()  # type: ignore[attr-defined]
        else:
            self.broker.close()
        self.deliveries = []
        self.broker = self.opened()
        self.model.crash(self.now)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model"):
            return
        for name, queue in self.model.queues.items():
            found = self.queue(name)
            stats, expected = found.stats(), self.model.counts(name)
            assert {field: getattr(stats, field) for field in expected} == expected, name
            shown = found.peek(1000)
            assert [(message.offset, message.payload) for message in shown] == [
                (item.offset, item.payload) for item in queue.order
            ]
            for message, item in zip(shown, queue.order, strict=True):
                letter = {key: text for key, text in message.headers.items() if "failure" not in key}
                assert (
                    letter == {key: text for key, text in item.headers.items() if "failure" not in key}
                    or item.id is None
                )


class DiskMachine(BrokerMachine):
    on_disk = True


MACHINES: Final = {"memory": BrokerMachine, "disk": DiskMachine}


def _run(home: str, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        MACHINES[home],
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )


@pytest.mark.parametrize("home", MACHINES)
def test_broker_and_model_agree_after_every_step(home: str) -> None:
    _run(home, examples=60, steps=30)


@pytest.mark.campaign
@pytest.mark.parametrize("home", MACHINES)
def test_broker_and_model_agree_for_long(home: str) -> None:
    _run(home, examples=10 * campaign.rounds(), steps=60)
