"""Which messages damage cost: gaps are found wherever offsets jump, and each missing message is one damage's loss."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.journal.index import SegmentIndex
from penstock.journal.kinds import MESSAGES, SETTLEMENTS, Span
from penstock.journal.losses import NOWHERE, Division, Gap, Place, Promise, Sightings, chain, furthest, named
from penstock.model.damage import ROT, Damage

END = Place(2**63 - 1, 0)


def span(log: int, first: int, last: int) -> Span:
    return Span(MESSAGES.number, log, last - first + 1, first, last, 0, 0)


def seen(number: int, *frames: tuple[int, list[Span]]) -> Sightings:
    found = Sightings(number)
    for position, spans in frames:
        found.saw(position, position, spans)
    return found


def index(*frames: tuple[int, list[Span]]) -> SegmentIndex:
    found = SegmentIndex()
    for position, spans in frames:
        found.add_frame(position, position, 0, 1, spans)
    return found


def ranges(gaps: list[Gap]) -> list[tuple[int, int, int]]:
    return [(gap.log, gap.start, gap.stop) for gap in gaps]


def wound(segment: int, position: int, *, messages: int = 0, frames: int = 0) -> Damage:
    return Damage(segment, position, position + 100, ROT, frames, messages)


# --- gaps ---


def test_gaps_are_found_within_segments_between_them_and_behind_the_last() -> None:
    one = seen(1, (128, [span(1, 0, 4)]), (300, [span(1, 7, 8)]))
    two = seen(2, (128, [span(1, 10, 10)]))
    assert ranges(list(chain([one, two], {1: 13}))) == [(1, 5, 7), (1, 9, 10), (1, 11, 13)]


def test_a_log_that_nothing_is_left_of_is_a_gap_from_its_beginning() -> None:
    assert list(chain([], {4: 2})) == [Gap(4, 0, 2, NOWHERE, END)]


def test_within_one_segment_gaps_begin_where_the_segment_did() -> None:
    assert ranges(list(chain([seen(3, (128, [span(1, 40, 41)]))], {1: 42}, first_offsets={1: 38}))) == [
        (1, 38, 40)
    ]


def test_rows_that_are_not_messages_have_no_gaps() -> None:
    settled = Span(SETTLEMENTS.number, 1, 1, 9, 9, 0, 0)
    assert list(chain([seen(1, (128, [settled]))], {})) == []


def test_a_segment_that_nobody_looked_into_is_vouched_for_by_its_index() -> None:
    told = Sightings.told_by(1, index((128, [span(1, 0, 3)]), (90_000, [span(1, 4, 9)])))
    gaps = list(chain([told, seen(2, (128, [span(1, 12, 12)]))], {1: 13}))
    assert gaps == [Gap(1, 10, 12, Place(1, 90_000), Place(2, 128, 128))]


def test_what_is_whole_of_damage_tells_how_far_a_log_went() -> None:
    hurt = Damage(2, 128, 300, ROT, 1, 1, [(1, 30, 30)])
    assert furthest({1: 5, 2: 9}, [Promise(index((128, [span(2, 7, 11)])))], [hurt]) == {1: 31, 2: 12}


# --- dividing ---


def test_a_gap_goes_to_the_damage_that_is_in_it() -> None:
    gap = Gap(1, 5, 8, Place(1, 128), Place(1, 900))
    assert Division([gap], [wound(1, 300), wound(2, 300)]).shares == [[(1, 5, 7)], []]


def test_what_no_damage_can_have_held_is_left() -> None:
    gap = Gap(1, 5, 8, Place(1, 128), Place(1, 900))
    division = Division([gap], [wound(2, 300)])
    assert (division.shares, division.left) == ([[]], [gap])


def test_two_neighbouring_frames_get_what_each_of_them_held() -> None:
    gap = Gap(1, 5, 8, Place(1, 128), Place(1, 900))
    known, unknown = wound(1, 300, messages=2, frames=1), wound(1, 400)
    assert Division([gap], [known, unknown]).shares == [[(1, 5, 6)], [(1, 7, 7)]]
    later = wound(1, 500, messages=2, frames=1)
    assert Division([gap], [unknown, later]).shares == [[(1, 5, 5)], [(1, 6, 7)]]


def test_what_damage_is_known_to_have_held_is_nobody_elses() -> None:
    gap = Gap(1, 5, 8, Place(1, 128), Place(1, 900))
    told = Damage(1, 300, 400, ROT, 1, 2, [(1, 5, 6)])
    assert Division([gap], [told, wound(1, 400, messages=1, frames=1)]).shares == [[], [(1, 7, 7)]]


def test_offsets_that_a_segment_promised_go_to_its_own_damage_only() -> None:
    gap = Gap(1, 5, 12, Place(1, 128), Place(3, 900))
    promises = {1: Promise(index((128, [span(1, 0, 7)])))}
    wounds = [wound(1, 300), wound(2, 128, messages=4, frames=1)]
    assert Division([gap], wounds, promises).shares == [[(1, 5, 7)], [(1, 8, 11)]]


def test_a_promise_tells_how_many_frames_are_gone() -> None:
    promise = Promise(index((128, [span(1, 0, 1)]), (300, [span(1, 2, 3)]), (500, [span(1, 4, 5)])))
    there = seen(1, (128, [span(1, 0, 1)]))
    hurt = wound(1, 300)
    gaps = chain([there], {1: 6})
    found = named([hurt], gaps, {1: promise}, [there], [hurt])
    assert [(d.frames, d.messages, d.spans, d.complete) for d in found] == [(2, 4, [(1, 2, 5)], True)]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_every_missing_message_is_dealt_out_once(frames: list[tuple[int, bool, bool]]) -> None:
    """Frames with some messages each: those that are lost, with or without their header, add up to what is missing."""
    there, wounds, offset, missing = Sightings(1), [], 0, set[int]()
    for at, (count, lost, told) in enumerate(frames):
        spans = [span(1, offset, offset + count - 1)] if count else []
        if not lost:
            there.saw(at * 100, at, spans)
        else:
            missing |= set(range(offset, offset + count))
            wounds.append(wound(1, at * 100, messages=count if told else 0, frames=int(told)))
        offset += count
    division = Division(chain([there], {1: offset}), wounds)
    dealt = [o for share in division.shares for _, first, last in share for o in range(first, last + 1)]
    assert sorted(dealt) == sorted(missing)
    assert division.left == []
    for hurt, share in zip(wounds, division.shares, strict=True):
        held = sum(last - first + 1 for _, first, last in share)
        assert held == hurt.messages or not hurt.frames
