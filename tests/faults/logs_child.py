"""The process that is killed, or whose power is cut, while its hands do everything there is to do with logs; and the one that makes such processes.

Run as `python -m tests.faults.logs_child`, it loads everything once and forks for each line of orders that it reads: see `Orders`. A child opens the broker, takes the census
of each hand's namespace, and then works until it is killed, or for so many steps.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.broker import monitor, upkeep
from penstock.broker.grouping import Grouping
from penstock.broker.ledger import rows_of
from penstock.broker.ticket import Answer, Ticket
from penstock.broker.transaction import Transactions
from penstock.engine import cursors
from penstock.engine.change import Change
from penstock.engine.engine import Engine
from penstock.engine.events import Action, Declared, Event, Outcome, Positioned, Scheduled, Settled
from penstock.errors import PenstockError
from penstock.journal.cleaner import DeadRange
from penstock.journal.files import Files
from penstock.journal.journal import Journal
from penstock.model.commands import Handle, OpenGroup, Unit
from tests.faults.faulty_files import UnsyncedFiles
from tests.faults.logs_hand import Hand, census, opened
from tests.faults.writer import FILES, MortalFiles


class Orders(msgspec.Struct):
    """What a child is to do. `files` is a name in `writer.FILES`, or "mortal": then it dies before or after such a call."""

    path: str
    seed: str
    first: int = 1
    hands: int = 2
    steps: int = 1 << 60
    files: str = "unsynced"
    die_before: int = 0
    die_after: int = 0
    sabotage: str = ""


class Mortal(MortalFiles, UnsyncedFiles):
    """It dies at a sync, which is then left to the kernel: a kill takes nothing from that."""


def tell(*report: object) -> None:
    os.write(1, json.dumps(report).encode() + b"\n")


# --- what may be broken on purpose ---


def _leaving_out(unwanted: Callable[[Event], bool]) -> Callable[[], None]:
    """Events that leave no row."""

    def break_it() -> None:
        monitor.rows_of = lambda events: rows_of([one for one in events if not unwanted(one)])  # type: ignore[attr-defined]
        whole = Journal.append

        def append(self: Journal, rows: Any, **how: Any) -> Any:
            return whole(self, rows, **how) if rows else self.barrier()

        Journal.append = append  # type: ignore[method-assign]

    return break_it


def _said(*actions: Action) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, Declared) and event.action in actions


def _cancelled(event: Event) -> bool:
    return isinstance(event, Settled) and event.outcome == Outcome.CANCELLED


def _transactions_in_two() -> None:
    whole = Transactions.commit

    def commit(self: Transactions, unit: Unit) -> Ticket[list[Any]]:
        return Answer([whole(self, Unit(unit.namespace, (step,))).wait()[0] for step in unit.steps])

    Transactions.commit = commit  # type: ignore[method-assign]


def _ephemeral_ones_recorded() -> None:
    whole = Grouping.open_group

    def open_group(self: Grouping, log: Handle, command: OpenGroup) -> Ticket[str | None]:
        ticket = whole(self, log, command)
        if not command.durable:
            body, change = msgspec.msgpack.encode(cursors.Cursor([])), Change()
            change.events.append(
                Declared(log.number, Action.SUBSCRIBE, command.group, body, self.monitor.now())
            )
            with self.monitor.lock:
                self.monitor.record(change)
        return ticket

    Grouping.open_group = open_group  # type: ignore[method-assign]


def _greedy_cleaner() -> None:
    def dead_ranges(self: upkeep.Upkeep, number: int, first: int, last: int) -> list[DeadRange]:
        log = self._monitor.engine.logs.get(number)
        if log is None or not log.groups:
            return [DeadRange(first, last, upkeep.SETTLED_BY_ALL)]
        return [
            DeadRange(run.start, run.stop - 1, upkeep.SETTLED_BY_ALL)
            for run in log.settled_by_all(first, last + 1)
        ]

    upkeep.Upkeep.dead_ranges = dead_ranges  # type: ignore[method-assign]


def _old_snapshots() -> None:
    """A snapshot that says to cover what came after it was taken."""
    kept: list[bytes] = []
    encode = Engine.encode

    def late(self: Engine) -> bytes:
        kept.append(encode(self))
        return kept[-2] if len(kept) > 1 else kept[-1]

    Engine.encode = late  # type: ignore[method-assign]


SABOTAGE: Final[dict[str, Callable[[], None]]] = {
    "": lambda: None,
    "a seek leaves no row": _leaving_out(_said(Action.SEEK)),
    "a subscription leaves no row": _leaving_out(_said(Action.SUBSCRIBE)),
    "the end of a subscription leaves no row": _leaving_out(_said(Action.UNSUBSCRIBE)),
    "a commit leaves no row": _leaving_out(lambda event: isinstance(event, Positioned)),
    "a schedule leaves no row": _leaving_out(lambda event: isinstance(event, Scheduled)),
    "cancelling leaves no row": _leaving_out(_cancelled),
    "an ephemeral subscription leaves a row": _ephemeral_ones_recorded,
    "a transaction is several commits": _transactions_in_two,
    "the cleaner takes what is retained": _greedy_cleaner,
    "a snapshot is older than it says": _old_snapshots,
}


# --- the work ---


def _files(orders: Orders) -> Files:
    if orders.files == "mortal":
        return Mortal(orders.die_before, orders.die_after)
    return FILES[orders.files]()


def _work(hand: Hand, steps: int) -> None:
    try:
        hand.begin()
        for _ in range(steps):
            hand.step()
    except PenstockError as error:  # so it is when the power goes: somebody will kill it
        tell("failed", repr(error))
        threading.Event().wait()
    except BaseException as error:
        tell("error", repr(error))
        raise


def live(orders: Orders) -> None:
    SABOTAGE[orders.sabotage]()
    if orders.files != "mortal":  # there the calls are counted, and must be the same each time
        upkeep.CHANGES_AT_ONCE = 150  # type: ignore[misc]
    files = _files(orders)
    broker = opened(orders.path, files)
    hands = [
        Hand(broker, f"hand{hand}", tell, seed=orders.seed, first=orders.first)
        for hand in range(orders.hands)
    ]
    for hand in hands:
        tell("census", hand.name, census(hand.broker))
    tell("begins")
    threads = [threading.Thread(target=_work, args=(hand, orders.steps)) for hand in hands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    broker.close()
    tell("finished", files.calls if isinstance(files, MortalFiles) else 0)


def main() -> None:
    for line in sys.stdin.buffer:
        orders = msgspec.json.decode(line, type=Orders)
        pid = os.fork()
        if pid == 0:
            try:
                live(orders)
            except BaseException as error:
                tell("error", repr(error))
            finally:
                os._exit(1)
        tell("pid", pid)
        os.waitpid(pid, 0)
        tell("ended")


if __name__ == "__main__":
    main()
