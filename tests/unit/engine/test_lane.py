"""A lane keeps the order of arrival, and gives what comes back its old place: compared with a plain list of places."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.events import runs
from penstock.engine.lane import Lane, Lanes, Piece, part, size

PRIORITIES = st.integers(0, 2)


def offsets(pieces: list[Piece]) -> list[int]:
    return [offset for _, start, stop, _ in pieces for offset in range(start, stop)]


def lane_of(*runs: tuple[int, int]) -> Lane:
    lane = Lane(100)
    for start, stop in runs:
        lane.append(start, stop)
    return lane


# --- pieces ---


def test_a_part_of_a_piece_has_another_place() -> None:
    assert part((40, 10, 20, 7), 13, 15) == (43, 13, 15, 7)
    assert size([(0, 3, 5, 1), (9, 9, 10, 1)]) == 3


def test_messages_that_follow_one_another_take_a_piece_each() -> None:
    lane = lane_of(*((offset, offset + 1) for offset in range(1000)))
    assert list(lane.pieces()) == [(0, 0, 1000, 100)]


def test_what_arrives_behind_a_piece_that_was_cut_does_not_join_it() -> None:
    lane = lane_of((0, 10))
    lane.take(4)
    lane.append(10, 12)
    assert list(lane.pieces()) == [(4, 4, 12, 100)]


def test_a_gap_in_the_offsets_is_joined_over() -> None:
    lane = lane_of((0, 2), (3, 5))
    assert list(lane.pieces()) == [(0, 0, 2, 100), (2, 3, 5, 100)]


def test_a_gap_in_the_places_is_joined_over() -> None:
    # Offset 2 arrives late: what follows it in offsets does not follow it in places.
    lane = lane_of((0, 2), (3, 4))
    lane.append(2, 3)
    lane.remove(3, 4)
    lane.append(4, 5)
    assert offsets(list(lane.pieces())) == [0, 1, 2, 4]
    lane = lane_of((0, 3))
    lane.remove(2, 3)
    lane.append(2, 3)
    assert list(lane.pieces()) == [(0, 0, 2, 100), (3, 2, 3, 100)]


# --- order ---


def test_a_late_message_overtakes_what_arrived_before_it() -> None:
    lane = lane_of((5, 8), (1, 2), (8, 9))
    assert offsets(lane.take(9)) == [5, 6, 7, 1, 8]


def test_what_comes_back_goes_behind_what_was_never_taken() -> None:
    lane = lane_of((0, 6))
    taken = lane.take(3)[0]
    for offset in (2, 0, 1):
        lane.put_back(part(taken, offset, offset + 1))
    assert offsets(lane.take(4)) == [0, 1, 2, 3]


def test_what_comes_back_goes_before_what_was_before_it() -> None:
    lane = lane_of((0, 6))
    first, second = lane.take(2)[0], lane.take(2)[0]
    lane.put_back(second)
    assert offsets(list(lane.pieces())) == [2, 3, 4, 5]
    lane.put_back(first)
    assert offsets(lane.take(6)) == [0, 1, 2, 3, 4, 5]


def test_a_returned_piece_is_taken_whole_where_part_was_wanted() -> None:
    lane = lane_of((0, 6))
    lane.put_back(lane.take(4)[0])
    assert offsets(lane.take(3)) == [0, 1, 2]
    assert list(lane.pieces()) == [(3, 3, 4, 100), (4, 4, 6, 100)]
    assert lane.count == 3


# --- removing ---


def test_removing_from_the_middle_takes_the_ends() -> None:
    lane = lane_of((0, 10))
    assert lane.remove(3, 5) == [(3, 3, 5, 100)]
    assert list(lane.pieces()) == [(0, 0, 3, 100), (5, 5, 10, 100)]
    assert lane.count == 8


def test_removing_leaves_what_came_back() -> None:
    lane = lane_of((0, 3), (7, 9))
    lane.put_back(part(lane.take(2)[0], 1, 2))
    assert offsets(sorted(lane.remove(0, 9))) == [1, 2, 7, 8]
    assert (lane.count, list(lane.pieces())) == (0, [])


def test_a_range_that_is_only_partly_here_is_removed_from_elsewhere() -> None:
    lane = lane_of((4, 6), (10, 12))
    assert offsets(lane.remove(5, 11)) == [5, 10]
    assert lane.remove(5, 11) == []
    assert offsets(lane.take(9)) == [4, 11]


def test_removing_many_takes_a_neighbour_or_changes_the_order() -> None:
    lane = lane_of((0, 10), (20, 25), (12, 13))  # the last one arrived late
    taken = lane.take(4)[0]
    lane.put_back(part(taken, 1, 3))
    gone = lane.remove_all([range(2, 3), range(5, 7), range(12, 13), range(24, 40)])
    assert sorted(offsets(gone)) == [2, 5, 6, 12, 24]
    assert offsets(list(lane.pieces())) == [1, 4, 7, 8, 9, 20, 21, 22, 23]
    assert lane.count == 9


def test_a_message_that_arrived_late_is_not_found_where_places_and_offsets_differ() -> None:
    lane = lane_of((8, 9), (3, 4), (9, 10), (1, 2))
    for offset in (3, 9, 1, 8):
        assert offsets(lane.remove(offset, offset + 1)) == [offset]
    assert (lane.count, lane.remove(3, 4)) == (0, [])


# --- against a list ---

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), PRIORITIES, st.integers(1, 5)),
        st.tuples(st.just("late"), PRIORITIES, st.just(1)),
        st.tuples(st.just("take"), st.integers(1, 7), st.just(0)),
        st.tuples(st.just("return"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 60), st.integers(1, 9)),
        st.tuples(st.just("remove all"), st.sets(st.integers(0, 60), max_size=30), st.just(0)),
        st.tuples(st.just("remove anywhere"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("store"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class Naive:
    """Messages by (priority, place), in a list that is sorted whenever it is looked at."""

    def __init__(self) -> None:
        self.ready: list[tuple[int, int, int]] = []
        self.arrivals: dict[int, int] = {}

    def append(self, priority: int, offset: int) -> None:
        place = self.arrivals.get(priority, 0)
        self.arrivals[priority] = place + 1
        self.ready.append((priority, place, offset))

    def take(self, wanted: int) -> list[tuple[int, int, int]]:
        self.ready.sort()
        taken, self.ready = self.ready[:wanted], self.ready[wanted:]
        return taken

    def remove(self, priority: int, start: int, stop: int) -> list[int]:
        return self.remove_all(priority, set(range(start, stop)))

    def remove_all(self, priority: int, offsets: set[int]) -> list[int]:
        gone = [one for one in self.ready if one[0] == priority and one[2] in offsets]
        self.ready = [one for one in self.ready if one not in gone]
        return sorted(one[2] for one in gone)


@given(STEPS)
def test_lanes_differ_from_a_list(steps: list[tuple[str, Any, Any]]) -> None:
    lanes, naive = Lanes(), Naive()
    following, skipped = 0, list[int]()
    out: list[tuple[Piece, int]] = []
    for what, first, second in steps:
        if what == "append":
            lanes.append(first, following, following + second)
            for offset in range(following, following + second):
                naive.append(first, offset)
            skipped.append(following + second)  # an offset that is not due yet
            following += second + 1
        elif what == "late" and skipped:
            offset = skipped.pop(0)
            lanes.append(first, offset, offset + 1)
            naive.append(first, offset)
        elif what == "take":
            pieces = lanes.take(first)
            assert offsets(pieces) == [offset for _, _, offset in naive.take(first)]
            out += [(piece, offset) for piece in pieces for offset in range(piece[1], piece[2])]
        elif what == "return" and out:
            piece, offset = out.pop(first % len(out))
            lanes.put_back(part(piece, offset, offset + 1))
            naive.ready.append((piece[3], piece[0] + offset - piece[1], offset))
        elif what == "remove":
            for priority in range(3):
                gone = lanes.remove(priority, first, first + second)
                assert sorted(offsets(gone)) == naive.remove(priority, first, first + second)
        elif what == "remove all" and first:
            for priority in range(3):
                gone = lanes.remove_all(priority, runs(sorted(first)))
                assert sorted(offsets(gone)) == naive.remove_all(priority, first)
        elif what == "remove anywhere":
            gone = lanes.remove_anywhere(first)
            here = [offset for priority in range(3) for offset in naive.remove_all(priority, {first})]
            assert offsets(gone) == here
        elif what == "store":
            lanes = Lanes.decode(lanes.encode())
        assert lanes.count == len(naive.ready)
        assert offsets(list(lanes.pieces())) == [offset for _, _, offset in sorted(naive.ready)]


# --- all lanes ---


def test_a_lower_number_waits_for_a_higher_one() -> None:
    lanes = Lanes()
    for priority, offset in ((200, 0), (0, 1), (100, 2), (0, 3)):
        lanes.append(priority, offset, offset + 1)
    assert offsets(lanes.take(3)) == [1, 3, 2]
    assert offsets(lanes.take(3)) == [0]
    assert lanes.take(1) == []


def test_what_comes_back_is_put_in_another_lane() -> None:
    lanes = Lanes()
    lanes.append(5, 0, 2)
    lanes.append(1, 2, 3)
    urgent, other = lanes.take(2)
    lanes.put_back(other)
    lanes.put_back(urgent)
    assert offsets(lanes.take(9)) == [2, 0, 1]


def test_a_priority_that_was_never_seen_cannot_be_removed_from() -> None:
    lanes = Lanes()
    lanes.append(5, 0, 2)
    assert lanes.remove(6, 0, 2) == []
    assert lanes.count == 2


def test_a_stored_lane_gives_places_twice() -> None:
    lanes = Lanes()
    lanes.append(5, 0, 4)
    taken = lanes.take(2)[0]
    lanes = Lanes.decode(lanes.encode())
    lanes.append(5, 4, 5)
    lanes.put_back(taken)
    assert lanes.encode() == [[5, 5, 0, 0, 2, 2, 2, 5]]
    assert offsets(lanes.take(9)) == [0, 1, 2, 3, 4]


def test_an_empty_lane_forgets_its_next_place_when_stored() -> None:
    lanes = Lanes()
    lanes.append(5, 0, 4)
    taken = lanes.take(4)[0]
    lanes = Lanes.decode(lanes.encode())
    lanes.append(5, 4, 5)
    lanes.put_back(taken)
    assert offsets(lanes.take(9)) == [0, 1, 2, 3, 4]
