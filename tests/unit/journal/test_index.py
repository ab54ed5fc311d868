"""The index stays sparse and finds everything, also when the clock went back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.journal.frame import Header
from penstock.journal.index import LogIndex, SegmentIndex
from penstock.journal.kinds import MESSAGES, Span


def head(sequence: int, position: int) -> Header:
    return Header(0, 1, 1, sequence, position, sequence * 10, 1, 0, 0, 0)


def test_ten_thousand_single_messages_cost_an_entry_per_stride() -> None:
    index = SegmentIndex()
    for n in range(10_000):
        index.add(head(n + 1, 64 + n * 300), [Span(MESSAGES.number, 1, 1, n, n, n, n)])
    assert len(index.logs[1].offsets) <= 10_000 * 300 // limits.INDEX_STRIDE_BYTES + 1
    assert len(index.sequences) == len(index.logs[1].offsets)
    assert index.messages == 10_000


@given(
    st.lists(
        st.tuples(st.integers(1, 40_000), st.integers(1, 5), st.integers(0, 50)), min_size=1, max_size=60
    )
)
def test_an_entry_is_never_behind_what_is_looked_for(sections: list[tuple[int, int, int]]) -> None:
    """Against a plain list of (position, first, last, time): the entry found lies at or before, within its stride."""
    log = LogIndex()
    plain = []
    position, offset = 64, 0
    for gap, rows, time in sections:
        log.add(Span(MESSAGES.number, 1, rows, offset, offset + rows - 1, time, time), position)
        plain.append((position, offset, offset + rows - 1, time))
        position += gap
        offset += rows
    for place, first, last, _ in plain:
        for wanted in (first, last):
            start = log.positions[log.entry_of_offset(wanted)]
            assert start <= place < start + limits.INDEX_STRIDE_BYTES
    for wanted in range(52):
        reached = next((p for p, _, _, time in plain if time >= wanted), None)
        entry = log.entry_of_time(wanted)
        if reached is None:
            assert entry == len(log.positions)
        else:
            assert log.positions[entry] <= reached < log.positions[entry] + limits.INDEX_STRIDE_BYTES


def test_a_sequence_before_the_first_has_no_position() -> None:
    index = SegmentIndex()
    index.add(head(5, 64), [])
    assert index.position_of(4) is None
    assert index.position_of(5) == 64
    assert index.position_of(99) == 64
