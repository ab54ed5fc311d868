"""Groups as they come, go, and go elsewhere; and their consumers.

What a group begins with depends on what is available at that moment, which depends on time and on the other groups. So what is recorded is not the wish but the outcome: which messages the group has
behind it. Replaying needs no more than that, except where order is kept by key: then also the keys of messages that no other group remembers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.engine.change import Change
from penstock.engine.events import Action, Declared
from penstock.engine.group import Group, Member, Terms
from penstock.engine.log import Log
from penstock.errors import BatchTooLarge
from penstock.limits import FRAME_BYTES_MAX
from penstock.ranges import RangeSet

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

#: Names that are kept of consumers that were taken out, or thought dead.
RETIRED_MAX: Final = 100

#: Keys are asked for so many at a time.
KEYS_AT_ONCE: Final = 1000


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is recorded of a group: its terms, what it has behind it, and keys where they matter."""

    settled: list[int]
    terms: Terms = Terms()
    keys: dict[int, str] = {}


class Beginning(msgspec.Struct, frozen=True):
    """Where a group is to begin, ready to be recorded."""

    cursor: Cursor
    body: bytes


def beginning(engine: Engine, log: Log, group: str, offset: int, terms: Terms) -> Beginning:
    """Everything available from an offset on, for a group that comes, or goes there. Nothing is changed yet."""
    settled = log.beginning(offset, group)
    keys: dict[int, str] = {}
    if log.policy.ordering == "key":
        for gap in settled.gaps(0, log.arrived):
            for start in range(gap.start, gap.stop, KEYS_AT_ONCE):
                part = range(start, min(start + KEYS_AT_ONCE, gap.stop))
                found = engine.fetch(log, part)
                keys.update({o: one.key for o, one in zip(part, found, strict=True) if one and one.key})
    cursor = Cursor(settled.encode(), terms, keys)
    body = msgspec.msgpack.encode(cursor)
    if len(body) > FRAME_BYTES_MAX // 2:
        raise BatchTooLarge(
            f"what is from offset {offset} of {log.name!r} on is too much to begin with at once: begin at a later offset"
        )
    return Beginning(cursor, body)


def subscribe(
    engine: Engine,
    log: Log,
    name: str,
    begin: Beginning,
    now_us: int,
    change: Change,
    *,
    durable: bool = True,
) -> Group:
    """A new group. There must be none of that name."""
    group = join(log, name, begin.cursor, durable=durable)
    if durable:
        change.events.append(Declared(log.number, Action.SUBSCRIBE, name, begin.body, now_us))
    engine.stirred.add(log)
    return group


def join(log: Log, name: str, cursor: Cursor, *, durable: bool = True) -> Group:
    group = Group(name, cursor.terms, durable=durable)
    return log.join(group, RangeSet.decode(cursor.settled), cursor.keys)


def unsubscribe(engine: Engine, log: Log, group: Group, now_us: int, change: Change) -> None:
    """A group goes, and what only it needed goes with it."""
    part(engine, log, group, now_us)
    engine.parted.append(log)
    if group.durable:
        change.events.append(Declared(log.number, Action.UNSUBSCRIBE, group.name, b"", now_us))


def part(engine: Engine, log: Log, group: Group, now_us: int) -> None:
    needed = group.settled.gaps(0, log.arrived)
    log.part(group)
    engine.release(log, needed, now_us)


def seek(engine: Engine, log: Log, group: Group, begin: Beginning, now_us: int, change: Change) -> None:
    """A group goes elsewhere: what it has in hand is taken from it, and attempts begin anew."""
    place(engine, log, group, begin.cursor, now_us)
    if group.durable:
        change.events.append(Declared(log.number, Action.SEEK, group.name, begin.body, now_us))
    engine.stirred.add(log)


def place(engine: Engine, log: Log, group: Group, cursor: Cursor, now_us: int) -> None:
    log.plain = None
    needed = group.settled.gaps(0, log.arrived)
    log.place(group, RangeSet.decode(cursor.settled), cursor.keys)
    engine.release(log, needed, now_us)


# --- consumers ---


def attach(group: Group, consumer: str, now_us: int, silence_us: int | None) -> str:
    """A consumer comes; the name it goes by, which is another one if that is taken."""
    name, number = consumer, 1
    while name in group.members or name in group.retired:
        number += 1
        name = f"{consumer}~{number}"
    group.members[name] = Member(now_us, silence_us)
    return name


def heard(group: Group, consumer: str | None, now_us: int) -> None:
    """A consumer is alive."""
    member = group.members.get(consumer) if consumer is not None else None
    if member is not None:
        member.heard_us = now_us


def heard_from(group: Group, offsets: list[int], now_us: int) -> None:
    """Whoever has messages in hand does something with them: it is alive."""
    if group.members:
        for lease in set(group.leases.of(offsets)):
            if lease is not None:
                heard(group, lease.consumer, now_us)


def detach(
    engine: Engine,
    log: Log,
    group: Group,
    consumer: str,
    now_us: int,
    change: Change,
    *,
    retire: bool = False,
) -> None:
    """A consumer goes: what it has goes back to its place. A group that lives only as long as its consumers may end.

    One that does not go by itself (`retire`) keeps its name, so that what it does later is not taken for another one's.
    """
    if consumer in group.retired:
        del group.retired[consumer]
        return
    held = _taken_out(group, consumer, retire=retire)
    if held:
        numbers = [group.leases.number_of(offset) for offset in held]
        engine.give_back(log, group, held, numbers, now_us, change)
    _end_if_left(engine, log, group, now_us, change)


def bury_silent_members(engine: Engine, log: Log, group: Group, now_us: int, change: Change) -> None:
    """Consumers that were to be heard of, and were not for too long, are thought dead. What killed them may have been its last attempt."""
    silent = [name for name, member in group.members.items() if (member.dead_us or now_us + 1) <= now_us]
    for name in silent:
        held = _taken_out(group, name, retire=True)
        if held:
            engine.end_leases(log, group, held, now_us, change)
    if silent:
        _end_if_left(engine, log, group, now_us, change)


def _taken_out(group: Group, consumer: str, *, retire: bool) -> list[int]:
    """What a consumer has that is no longer a member."""
    if group.members.pop(consumer, None) is not None and retire:
        group.retired[consumer] = None
        if len(group.retired) > RETIRED_MAX:
            del group.retired[next(iter(group.retired))]
    return group.leases.held_for(consumer)


def _end_if_left(engine: Engine, log: Log, group: Group, now_us: int, change: Change) -> None:
    engine.stirred.add(log)
    if not group.durable and not group.members and group.name in log.groups:
        unsubscribe(engine, log, group, now_us, change)
