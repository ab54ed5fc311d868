"""Columns come out as they went in, lie where Arrow wants them, and refuse what does not fit."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptJournal, InvalidArgument
from penstock.journal import columns
from penstock.journal.columns import ENTRY, PLACE, Column, Encoding, Type

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    Type.I16: st.integers(-(1 << 15), (1 << 15) - 1),
    Type.I32: st.integers(-(1 << 31), (1 << 31) - 1),
    Type.I64: st.integers(-(1 << 63), (1 << 63) - 1),
    Type.UTF8: TEXT,
    Type.BINARY: st.binary(max_size=20),
    Type.MAP: st.dictionaries(TEXT, TEXT, max_size=3),
}


def round_trip(kind: Type, values: Any, rows: int) -> Column:
    encoding, nulls, buffers = columns.encode(kind, values, rows)
    return Column(kind, encoding, nulls, rows, [memoryview(buffer) for buffer in buffers])


@given(st.sampled_from(list(Type)).flatmap(lambda t: st.tuples(st.just(t), st.lists(VALUES[t], min_size=1))))
def test_values_come_out_as_they_went_in(case: tuple[Type, list[Any]]) -> None:
    kind, values = case
    assert list(round_trip(kind, values, len(values)).values()) == values


@given(
    st.sampled_from(list(Type)).flatmap(
        lambda t: st.tuples(st.just(t), st.lists(st.none() | VALUES[t], min_size=1).filter(any))
    )
)
def test_nulls_come_out_where_they_went_in(case: tuple[Type, list[Any]]) -> None:
    kind, values = case
    if not columns.all_null(values):
        assert list(round_trip(kind, values, len(values)).values()) == values


def test_a_column_of_equal_values_is_stored_once() -> None:
    column = round_trip(Type.I64, [7] * 1000, 1000)
    assert column.encoding == Encoding.CONSTANT
    assert sum(map(len, column.buffers)) == 8
    assert list(column.values()) == [7] * 1000


def test_a_range_is_stored_as_start_and_step() -> None:
    column = round_trip(Type.I64, range(5, 500, 5), 99)
    assert column.encoding == Encoding.SEQUENCE
    assert column.values() == range(5, 500, 5)


def test_numbers_are_read_in_place() -> None:
    encoding, nulls, (buffer,) = columns.encode(Type.I64, [3, 1, 2], 3)
    column = Column(Type.I64, encoding, nulls, 3, [memoryview(buffer)])
    values = column.values()
    assert isinstance(values, memoryview)
    assert values.obj is buffer
    assert column.numbers(3).tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Type.I16, [1 << 15, 0]),
        (Type.I64, ["x", "y"]),
        (Type.I64, [1.5, 2]),
        (Type.UTF8, [b"x", b"y"]),
        (Type.UTF8, ["\ud800", "x"]),
        (Type.BINARY, ["x", "y"]),
        (Type.MAP, [{"a": 1}, {}]),
        (Type.MAP, [["a"], []]),
        (Type.I16, range(40_000, 40_002)),
        (Type.I64, range(2**63 - 1, 2**63 + 1)),
        (Type.UTF8, range(2)),
        (Type.BINARY, [array("i", [1, 2, 3]), b"x"]),
    ],
)
def test_a_value_that_does_not_fit_is_refused(kind: Type, values: list[Any]) -> None:
    with pytest.raises(InvalidArgument):
        columns.encode(kind, values, 2)


def test_a_column_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="3 values where its section has 2 rows"):
        columns.encode(Type.I64, [1, 2, 3], 2)
    with pytest.raises(InvalidArgument):
        columns.encode(Type.I64, range(3), 2)


def test_a_column_that_reaches_past_its_section_is_corrupt() -> None:
    table = ENTRY.pack(1, Type.I64, Encoding.PLAIN, 1, 0) + PLACE.pack(0, 100)
    with pytest.raises(CorruptJournal):
        columns.parse(memoryview(table), memoryview(bytes(64)), 1, 1)


def test_a_column_of_an_unknown_type_is_skipped() -> None:
    table = (
        ENTRY.pack(1, 99, Encoding.PLAIN, 0, 0)
        + ENTRY.pack(2, Type.I64, Encoding.CONSTANT, 1, 0)
        + PLACE.pack(0, 8)
    )
    found, _ = columns.parse(memoryview(table), memoryview((5).to_bytes(8, "little")), 2, 1)
    assert list(found) == [2]
    assert list(found[2].values()) == [5]


def test_a_table_that_is_cut_short_is_corrupt() -> None:
    table = ENTRY.pack(1, Type.I64, Encoding.PLAIN, 1, 0) + PLACE.pack(0, 8)
    for size in range(len(table)):
        with pytest.raises(CorruptJournal, match="cut short"):
            columns.parse(memoryview(table[:size]), memoryview(bytes(64)), 1, 1)
