"""A repeated `dedup_id` within the window drops the publish and gives the first one's id."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Message, PenstockError, QueueFull
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, take, unchanged
from tests.conformance.surface import Queue


def test_a_repeated_publish_is_kept_or_gets_another_id(queue: Queue) -> None:
    first = queue.publish(b"a", dedup_id="o-1")
    with unchanged(queue):
        assert queue.publish(b"again", dedup_id="o-1") == first
        assert queue.publish_many([Message(b"again", dedup_id="o-1")]) == [first]
    assert drain(queue) == [b"a"]


def test_messages_without_an_id_or_with_another_are_dropped(queue: Queue) -> None:
    queue.publish(b"a", dedup_id="o-1")
    queue.publish(b"b", dedup_id="o-2")
    queue.publish(b"c")
    queue.publish(b"c")
    assert drain(queue) == [b"a", b"b", b"c", b"c"]


def test_a_batch_repeats_itself(queue: Queue) -> None:
    first, second, plain, third = queue.publish_many(
        [Message(b"a", dedup_id="1"), Message(b"b", dedup_id="1"), b"c", Message(b"d", dedup_id="2")]
    )
    assert first == second
    assert len({first, plain, third}) == 3
    assert drain(queue) == [b"a", b"c", b"d"]


def test_a_batch_with_repetitions_loses_what_is_new(queue: Queue) -> None:
    first = queue.publish(b"a", dedup_id="1")
    ids = queue.publish_many([b"b", Message(b"again", dedup_id="1"), Message(b"c", dedup_id="2")])
    assert ids[1] == first
    assert drain(queue) == [b"a", b"b", b"c"]


def test_a_repetition_leaves_a_hole_in_the_offsets(queue: Queue) -> None:
    queue.publish(b"a", dedup_id="1")
    queue.publish_many([Message(b"a", dedup_id="1"), b"b"])
    queue.publish(b"a", dedup_id="1")
    queue.publish(b"c")
    assert [one.offset for one in queue.receive_many(5)] == [0, 1, 2]


def test_the_window_ends_early_or_never(home: Home) -> None:
    queue = home.broker.queue("orders", dedup_window=timedelta(minutes=1))
    first = queue.publish(b"a", dedup_id="1")
    home.advance(59)
    assert queue.publish(b"a", dedup_id="1") == first
    home.advance(2)
    assert queue.publish(b"a", dedup_id="1") > first
    assert queue.depth() == 2


def test_a_repetition_prolongs_the_window(home: Home) -> None:
    queue = home.broker.queue("orders", dedup_window=60)
    first = queue.publish(b"a", dedup_id="1")
    home.advance(40)
    queue.publish(b"a", dedup_id="1")
    home.advance(40)
    assert queue.publish(b"a", dedup_id="1") != first


@pytest.mark.parametrize("how", ["ack", "reject", "purge"])
def test_an_id_is_forgotten_when_its_message_is_settled(queue: Queue, how: str) -> None:
    first = queue.publish(b"a", dedup_id="1")
    if how == "purge":
        queue.purge()
    else:
        getattr(take(queue), how)()
    assert queue.publish(b"a", dedup_id="1") == first
    assert queue.depth() == 0


def test_two_queues_share_their_ids(home: Home, queue: Queue) -> None:
    other = home.broker.queue("other")
    queue.publish(b"a", dedup_id="1")
    other.publish(b"b", dedup_id="1")
    assert (drain(queue), drain(other)) == ([b"a"], [b"b"])


def test_a_refused_publish_is_remembered(home: Home) -> None:
    queue = home.broker.queue("orders", max_depth=1)
    queue.publish(b"a")
    with pytest.raises(QueueFull):
        queue.publish(b"b", dedup_id="1")
    with pytest.raises(PenstockError):
        queue.publish(b"b", dedup_id="1", priority=-1)
    take(queue).ack()
    queue.publish(b"b", dedup_id="1")
    assert drain(queue) == [b"b"]


def test_a_window_of_nothing_remembers(home: Home) -> None:
    queue = home.broker.queue("orders", dedup_window=0)
    queue.publish(b"a", dedup_id="1")
    queue.publish(b"b", dedup_id="1")
    assert drain(queue) == [b"a", b"b"]


def test_ids_that_look_alike_are_one(queue: Queue) -> None:
    alike = ["a", "A", "a ", "á", "a\u0301", "a\x00"]
    queue.publish_many([Message(one.encode(), dedup_id=one) for one in alike])
    assert counts(queue) == expected(ready=len(alike))


def test_a_redriven_message_is_dropped_as_a_repetition(queue: Queue) -> None:
    first = queue.publish(b"a", dedup_id="1")
    take(queue).reject()
    assert queue.redrive() == 1
    assert queue.publish(b"a", dedup_id="1") == first
    assert drain(queue) == [b"a"]
