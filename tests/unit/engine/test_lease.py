"""A lease holds what was handed out together, and is forgotten when it holds nothing any more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.lane import Piece
from penstock.engine.lease import ENDED_LEASES_MAX, Lease, Leases


def handed_out(
    leases: Leases, number: int, *offsets: int, until: int | None = 100, to: str | None = None
) -> Lease:
    lease = Lease(number, [(offset, offset, offset + 1, 100) for offset in offsets], to, until)
    leases.add(lease)
    return lease


def kept(leases: Leases) -> int:
    """How many deadlines take memory."""
    return len(leases._deadlines)


# --- memory ---


def test_deadlines_of_settled_leases_are_kept_until_they_come_up() -> None:
    leases = Leases()
    for offset in range(20_000):
        handed_out(leases, offset + 1, offset, until=10**9 + offset)
        leases.remove(offset)
        assert kept(leases) <= ENDED_LEASES_MAX + 1
    assert (len(leases), leases.next_us) == (0, None)


def test_deadlines_of_leases_settled_together_are_kept_until_they_come_up() -> None:
    leases = Leases()
    for number in range(5_000):
        first = 4 * number
        handed_out(leases, 2 * number + 1, first, first + 1, until=10**9)
        handed_out(leases, 2 * number + 2, first + 2, first + 3, until=10**9)
        leases.remove_all([first, first + 2])  # of two leases
        leases.remove_all([first + 1, first + 3])
        assert kept(leases) <= ENDED_LEASES_MAX + 4
    assert len(leases) == 0


def test_extending_again_and_again_keeps_every_deadline() -> None:
    leases = Leases()
    handed_out(leases, 1, 7)
    for now in range(20_000):
        leases.extend(7, 1000 + now)
        assert kept(leases) <= ENDED_LEASES_MAX + 2
    assert leases.next_us == 1000 + 19_999


def test_sweeping_forgets_a_deadline_that_has_to_be_kept() -> None:
    leases = Leases()
    handed_out(leases, 1, 1_000_000, until=50)
    for offset in range(3 * ENDED_LEASES_MAX):
        handed_out(leases, offset + 2, offset, until=60)
        leases.remove(offset)
    assert leases.next_us == 50
    assert leases.pop_overdue(50) == [1_000_000]


# --- deadlines ---


def test_a_message_is_overdue_before_its_deadline_or_not_at_it() -> None:
    leases = Leases()
    handed_out(leases, 1, 5, 3, until=100)
    handed_out(leases, 2, 4, until=101)
    assert leases.pop_overdue(99) == []
    assert leases.pop_overdue(100) == [3, 5]
    assert len(leases) == 3  # the caller takes them back
    assert leases.next_us == 101


def test_what_was_settled_in_time_is_overdue() -> None:
    leases = Leases()
    handed_out(leases, 1, 1, 2, 3)
    leases.remove(2)
    assert leases.pop_overdue(100) == [1, 3]


def test_an_extended_message_is_overdue_with_the_rest_of_its_lease() -> None:
    leases = Leases()
    handed_out(leases, 9, 1, 2)
    leases.extend(1, 200)
    assert leases.number_of(1) == 9
    assert leases.pop_overdue(150) == [2]
    assert leases.pop_overdue(200) == [1]


def test_a_message_that_is_leased_again_ends_with_its_old_lease() -> None:
    leases = Leases()
    handed_out(leases, 1, 1, 2, until=100)
    leases.remove(1)
    handed_out(leases, 2, 1, until=300)
    assert leases.pop_overdue(100) == [2]


def test_a_lease_without_a_deadline_ends() -> None:
    leases = Leases()
    handed_out(leases, 1, 1, until=None)
    assert leases.next_us is None
    assert leases.pop_overdue(1 << 62) == []
    leases.extend(1, 7)  # a deadline that was asked for counts
    assert leases.next_us == 7


def test_two_leases_of_one_number_and_deadline_cannot_be_compared() -> None:
    leases = Leases()
    handed_out(leases, 1, *range(20))
    for offset in range(20):
        leases.extend(offset, 500)
    assert leases.pop_overdue(500) == list(range(20))


# --- places and holders ---


def test_a_message_forgets_where_it_goes_back_to() -> None:
    pieces: list[Piece] = [(40, 7, 9, 3), (2, 1, 2, 3)]
    leases = Leases()
    lease = Lease(1, pieces, None, None)
    leases.add(lease)
    assert leases.remove(8).place_of(8) == (41, 8, 9, 3)
    leases.extend(7, 10)
    assert leases.remove(7).place_of(7) == (40, 7, 8, 3)
    assert lease.place_of(1) == (2, 1, 2, 3)
    assert lease.held == 1


def test_a_consumer_is_said_to_have_what_another_has() -> None:
    leases = Leases()
    handed_out(leases, 1, 5, 2, to="a")
    handed_out(leases, 2, 3, to="b")
    handed_out(leases, 3, 4)
    leases.extend(5, 900)
    assert leases.held_for("a") == [2, 5]
    assert leases.offsets() == [2, 3, 4, 5]
    assert [lease and lease.number for lease in leases.of([3, 9, 4])] == [2, None, 3]
    assert 9 not in leases
    assert leases.get(9) is None


STEPS = st.lists(
    st.tuples(st.sampled_from(["lease", "remove", "extend", "pass"]), st.integers(0, 9), st.integers(1, 9)),
    max_size=80,
)


@given(STEPS)
def test_leases_differ_from_a_dict_of_deadlines(steps: list[tuple[str, int, int]]) -> None:
    leases, plain, now = Leases(), dict[int, int](), 0
    for number, (what, offset, time) in enumerate(steps, 1):
        if what == "lease":
            free = [one for one in range(offset, offset + 3) if one not in plain]
            if free:
                handed_out(leases, number, *free, until=now + time)
                plain.update(dict.fromkeys(free, now + time))
        elif what == "remove" and offset in plain:
            leases.remove(offset)
            del plain[offset]
        elif what == "extend" and offset in plain:
            leases.extend(offset, now + time)
            plain[offset] = now + time
        elif what == "pass":
            now += time
            overdue = leases.pop_overdue(now)
            assert overdue == sorted(one for one, end in plain.items() if end <= now)
            if overdue:
                leases.remove_all(overdue)
            plain = {one: end for one, end in plain.items() if end > now}
        assert leases.next_us == min(plain.values(), default=None)
        assert leases.offsets() == sorted(plain)
