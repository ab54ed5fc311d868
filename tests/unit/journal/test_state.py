"""What the journal remembers survives being stored, and is the same however it was learnt."""

from __future__ import annotations

import msgspec

from penstock.journal.frame import body
from penstock.journal.kinds import CLEANED, METADATA
from penstock.journal.rows import Rows, messages
from penstock.journal.state import DAMAGED, MENDED, State, Stored


def learnt(*batch: Rows) -> State:
    for rows in batch:
        rows.prepare(alone=True)
    content = body(batch)
    state = State()
    state.apply(content.spans, content.sections)
    return state


def example() -> State:
    return learnt(
        messages(1, [b"a", b"b"], ids=range(2), timestamp=0, offset=range(5, 7)),
        Rows(METADATA, 1, 1, {"action": 1, "name": "orders", "time": 0}),
        Rows(CLEANED, 1, 2, {"segment": 3, "first": [0, 4], "last": [2, 4], "outcome": [1, 2], "time": 0}),
        Rows(
            CLEANED,
            2,
            1,
            {"segment": 9, "position": 64, "first": 7, "last": 8, "outcome": DAMAGED, "time": 0},
        ),
        Rows(CLEANED, 0, 1, {"segment": 4, "time": 0}),
    )


def test_frames_teach_offsets_names_and_what_is_gone() -> None:
    state = example()
    assert state.next_offsets == {1: 7, 2: 9}
    assert state.names == {1: "orders"}
    assert [*state.dropped] == [range(3, 5)]
    assert state.accounted == {(9, 64): 0}
    assert state.lost_to(9, 64) == [(2, 7, 8)]
    assert [*state.explained(1, 0, 10)] == [range(0, 3), range(4, 5)]
    assert len(state.cleaned[2][DAMAGED]) == 2


def test_what_was_stored_comes_back_equal() -> None:
    stored = example().store()
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=Stored)
    assert State(decoded).store() == stored


def test_damage_of_a_dropped_segment_is_forgotten() -> None:
    state = learnt(
        Rows(CLEANED, 1, 1, {"segment": 9, "position": 64, "time": 0}),
        Rows(CLEANED, 1, 1, {"segment": 9, "time": 0}),
    )
    assert state.accounted == {}
    assert state.lost_to(9, 64) == []


def test_damage_of_a_mended_segment_is_forgotten_and_the_segment_is_not_dropped() -> None:
    lost = {"position": 64, "first": 0, "last": 1, "outcome": DAMAGED, "time": 0}
    damage = [Rows(CLEANED, 1, 1, {"segment": n, **lost}) for n in (8, 9)]
    state = learnt(*damage, Rows(CLEANED, 0, 1, {"segment": 9, "position": MENDED, "time": 0}))
    assert state.accounted == {(8, 64): 0}
    assert (state.lost_to(8, 64), state.lost_to(9, 64)) == ([(1, 0, 1)], [])
    assert not [*state.dropped]
    assert state.mended == {9}


def test_offsets_never_go_back() -> None:
    state = learnt(
        messages(1, [b"a"], ids=1, timestamp=0, offset=9),
        messages(1, [b"a"], ids=1, timestamp=0, offset=3),
    )
    assert state.next_offsets == {1: 10}
