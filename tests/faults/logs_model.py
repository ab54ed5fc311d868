"""What must be there of logs, as far as a process has lived to tell: a model of one namespace, moved step by step, and an oracle that hears several hands.

A hand works alone in its namespace, so at most one of its steps is under way when it is killed, or when its disk fails. What the next owner finds must then be what
the model says, with that step or without it, and nothing between: that is how a transaction is seen to be all in or all out. Messages go by their numbers, from which their payloads
and headers can be told.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

#: What each account begins with. Money is moved between accounts by transactions: there is never more of it, or less.
DEPOSIT: Final = 100
ACCOUNTS: Final = ("money.0", "money.1", "money.2")

#: Of payloads, kept of a topic's messages though everybody has settled them.
RETAINED_BYTES: Final = {"news.a": 4000}

#: What a subscription with a filter wants.
FILTER: Final = "region = 'eu'"


def payload(number: int) -> bytes:
    return b"%d " % number + random.Random(number).randbytes(number * 37 % 600)


def region(number: int) -> str:
    return "us" if number % 3 else "eu"


@dataclass
class GroupModel:
    """A group or a durable subscription: what it has not settled of what it wants."""

    filtered: bool = False
    pending: Counter[int] = field(
        default_factory=Counter
    )  # one may be in the dead letters twice: two groups rejected it

    def offer(self, numbers: Sequence[int]) -> None:
        self.pending.update(number for number in numbers if not self.filtered or region(number) == "eu")


@dataclass
class ReaderModel:
    """What a reader has committed, and what is kept for it if it asked to be waited for."""

    offset: int
    kept: set[int] | None


@dataclass
class LogModel:
    kind: str
    numbers: list[int] = field(default_factory=list)  # what was published, in order
    groups: dict[str, GroupModel] = field(default_factory=dict)
    readers: dict[str, ReaderModel] = field(default_factory=dict)
    schedules: set[str] = field(default_factory=set)
    later: set[int] = field(default_factory=set)  # not due in any test's life
    cancelled: set[int] = field(default_factory=set)

    def append(self, numbers: Sequence[int]) -> None:
        if self.kind == "queue" and not self.groups:
            self.groups["default"] = GroupModel()
        self.numbers += numbers
        for group in self.groups.values():
            group.offer(numbers)
        for reader in self.readers.values():
            if reader.kept is not None:
                reader.kept.update(numbers)


@dataclass
class Model:
    """A namespace."""

    logs: dict[str, LogModel] = field(default_factory=dict)
    amounts: dict[int, int] = field(default_factory=dict)  # of messages in accounts

    def apply(self, what: str, *arguments: Any) -> None:
        getattr(self, f"_{what}")(*arguments)

    # --- steps ---

    def _make(self, name: str, kind: str) -> None:
        self.logs[name] = LogModel(kind)

    def _drop(self, name: str) -> None:
        del self.logs[name]

    def _put(self, names: list[str], numbers: list[int]) -> None:
        for name in names:
            self.logs.setdefault(name, LogModel("queue")).append(numbers)

    def _settle(self, name: str, group: str, how: str, numbers: list[int]) -> None:
        if how in ("ack", "reject"):
            self.logs[name].groups[group].pending -= Counter(numbers)
        if how == "reject":
            self._put([f"{name}.dlq"], numbers)

    def _open(self, name: str, group: str, filtered: bool, stored: list[int]) -> None:
        self.logs[name].groups[group] = GroupModel(filtered)
        self.logs[name].groups[group].offer(stored)

    def _close(self, name: str, group: str) -> None:
        del self.logs[name].groups[group]

    def _seek(self, name: str, group: str, stored: list[int]) -> None:
        self.logs[name].groups[group].pending.clear()
        self.logs[name].groups[group].offer(stored)

    def _commit(self, name: str, reader: str, offset: int, kept: list[int] | None) -> None:
        self.logs[name].readers[reader] = ReaderModel(offset, None if kept is None else set(kept))

    def _forget(self, name: str, reader: str) -> None:
        self.logs[name].readers.pop(reader, None)

    def _transact(
        self, settles: list[tuple[str, str, list[int]]], puts: list[tuple[str, int, int | None]]
    ) -> None:
        for name, group, numbers in settles:
            self._settle(name, group, "ack", numbers)
        for name, number, amount in puts:
            self._put([name], [number])
            if amount is not None:
                self.amounts[number] = amount

    def _later(self, name: str, number: int) -> None:
        self._put([name], [number])
        self.logs[name].later.add(number)

    def _cancel(self, name: str, number: int) -> None:
        log = self.logs[name]
        log.cancelled.add(number)
        for group in log.groups.values():
            group.pending.pop(number, None)

    def _schedule(self, name: str, schedule: str) -> None:
        self.logs[name].schedules.add(schedule)

    def _unschedule(self, name: str, schedule: str) -> None:
        self.logs[name].schedules.discard(schedule)

    def _nothing(self, *_: object) -> None:
        """Snapshots, cleaning, and subscriptions that leave nothing behind."""

    # --- what must hold ---

    def received(self, name: str, group: str, numbers: list[int]) -> None:
        """While the process lives."""
        wanted = self.logs[name].groups[group].pending
        unwanted = sorted((Counter(numbers) - wanted).elements())
        assert not unwanted, f"{unwanted} come to {group!r} of {name!r}, and should not"

    def complaints(self, found: dict[str, Any]) -> list[str]:
        """What is wrong with what was found: see `logs_hand.census`."""
        told = [f"the log {name!r} is gone" for name in self.logs if name not in found]
        told += [
            f"nobody made the log {name!r}" for name in found if name not in self.logs and name[-4:] != ".dlq"
        ]
        for name, one in found.items():
            log = self.logs.get(name) or LogModel("queue")
            told += _of_log(name, log, one)
            told += _of_contents(name, log, one)
        return [*told, *self._of_money(found)]

    def _of_money(self, found: dict[str, Any]) -> Iterator[str]:
        held = {
            name: [amount for one in found[name]["groups"].values() for amount in one["amounts"]]
            for name in ACCOUNTS
            if name in found
        }
        used = [amounts for amounts in held.values() if amounts]
        if any(len(amounts) > 1 for amounts in used) or sum(map(sum, used)) != DEPOSIT * len(used):
            yield f"a transaction is half done: accounts hold {held}"


def _of_log(name: str, log: LogModel, found: dict[str, Any]) -> Iterator[str]:
    if found["kind"] != log.kind:
        yield f"{name!r} is a {found['kind']}"
    yield from (f"{group!r} of {name!r} is gone" for group in log.groups if group not in found["groups"])
    for group, one in found["groups"].items():
        if not one["durable"]:
            yield f"the ephemeral {group!r} of {name!r} is still there"
        elif group in log.groups:
            yield from _of_group(f"{group!r} of {name!r}", log, log.groups[group], one)
        elif group != "default" or one["numbers"]:
            yield f"{group!r} of {name!r} is there, and nobody made it, or it had ended"
    committed = {reader: one.offset for reader, one in log.readers.items()}
    if committed != found["readers"]:
        yield f"readers of {name!r} have committed {committed}, and stand at {found['readers']}"
    if sorted(log.schedules) != found["schedules"]:
        yield f"{name!r} has the schedules {found['schedules']}, not {sorted(log.schedules)}"


def _of_group(what: str, log: LogModel, group: GroupModel, found: dict[str, Any]) -> Iterator[str]:
    here = Counter(found["numbers"])
    due = Counter({number: count for number, count in group.pending.items() if number not in log.later})
    if found["filter"] != (FILTER if group.filtered else None):
        yield f"the filter of {what} is {found['filter']}"
    if due - here:
        yield f"{sorted((due - here).elements())} do not come to {what}"
    if here - due:
        yield f"{sorted((here - due).elements())} come to {what}, and should not"
    lag = group.pending.total()
    if found["lag"] < lag or (not group.filtered and found["lag"] != lag):
        yield f"the lag of {what} is {found['lag']}, not {lag}"


def _of_contents(name: str, log: LogModel, found: dict[str, Any]) -> Iterator[str]:
    stored = found["stored"]
    if not found["whole"]:
        yield f"a payload in {name!r} is not what it was"
    published = iter(log.numbers)
    if not all(number in published for number in stored):  # which goes on from where the last one was found
        yield f"{name!r} holds what nobody published there, or not in order: {stored}"
    if log.cancelled & set(stored):
        yield f"{sorted(log.cancelled & set(stored))} were cancelled, and are in {name!r}"
    lost = _needed(name, log) - set(stored) - log.cancelled
    if lost:
        yield f"{sorted(lost)} should be kept in {name!r}, and are gone"
    if name == "fleeting" and stored:
        yield f"ephemeral subscriptions have left {stored} in {name!r}"


def _needed(name: str, log: LogModel) -> set[int]:
    """What some group has not settled, what a reader holds, and what is retained."""
    needed: set[int] = set()
    for group in log.groups.values():
        needed.update(group.pending)
    for reader in log.readers.values():
        needed |= reader.kept or set()
    left = RETAINED_BYTES.get(name, 0)
    for number in reversed(log.numbers):
        left -= len(payload(number))
        if left < 0:
            break
        needed.add(number)
    return needed


class Oracle:
    """Hears what hands do, each in its namespace, and says what must be found."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self.under_way: dict[str, Sequence[Any]] = {}
        self.steps: dict[str, int] = {}  # that were done, by their kind

    def hear(self, what: str, *told: Any) -> None:
        if what == "error":
            raise AssertionError(told)
        if what in ("do", "done", "refused", "received", "census"):
            hand, *rest = told
            getattr(self, f"_{what}")(hand, *rest)

    def model(self, hand: str) -> Model:
        return self.models.setdefault(hand, Model())

    def _do(self, hand: str, *step: Any) -> None:
        self.under_way[hand] = step

    def _done(self, hand: str) -> None:
        step = self.under_way.pop(hand)
        self.steps[step[0]] = self.steps.get(step[0], 0) + 1
        self.model(hand).apply(*step)

    def _refused(self, hand: str) -> None:
        del self.under_way[hand]

    def _received(self, hand: str, name: str, group: str, numbers: list[int]) -> None:
        self.model(hand).received(name, group, numbers)

    def _census(self, hand: str, found: dict[str, Any]) -> None:
        """After an end of any kind: it is as the model says, with what was under way or without."""
        step = self.under_way.pop(hand, None)
        without = self.model(hand)
        told = without.complaints(found)
        if not told:
            return
        if step is not None:
            within = copy.deepcopy(without)
            within.apply(*step)
            also = within.complaints(found)
            if not also:
                self.models[hand] = within
                return
            told = [*told, f"and if {step} was done:", *also]
        raise AssertionError(f"{hand}: " + "\n".join(told))
