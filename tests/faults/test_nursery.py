"""The nursery itself: whatever a child does, the next one is heard alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.nursery import Nursery
from tests.faults.scripted_child import Orders


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.faults.scripted_child") as nursery:
        yield nursery


def test_a_child_is_heard_after_somebody_stopped_listening_to_the_last_before_knowing_who_it_was(
    nursery: Nursery,
) -> None:
    assert next(nursery.life(Orders("wrong"), reports=1, seconds=0)) == ["wrong"]
    assert list(nursery.life(Orders("right"), reports=1, seconds=0)) == [["right"]]


def test_a_child_that_ends_by_itself_just_before_it_is_killed(nursery: Nursery) -> None:
    life = nursery.life(Orders("broken", stillborn=True), reports=0, seconds=0)
    assert next(life) == ["broken"]
    with pytest.raises(AssertionError, match="it died by itself"):
        next(life)
    assert list(nursery.life(Orders("right"), reports=1, seconds=0)) == [["right"]]
