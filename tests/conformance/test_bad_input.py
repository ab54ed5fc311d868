"""Whatever is given as an argument: it is taken, or refused with an error of ours, and the broker goes on.

Checks belong before the broker's lock. What fails behind it leaves a change half done, and the broker refuses everything from then on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from penstock import Backoff, Message, PenstockError, Policy
from tests.conformance.home import Home
from tests.conformance.observations import counts, drain, expected, take
from tests.conformance.oddities import Fickle, Level, Mixed, Word, oddities
from tests.conformance.surface import Delivery, Queue

_numbers = itertools.count()


def fresh(**given: Any) -> dict[str, Any]:
    return {"name": f"beside-{next(_numbers)}", **given}


def leased(queue: Any) -> Delivery:
    queue.publish(b"x")
    return take(queue)


def closed(broker: Any, timeout: Any) -> None:
    """Unless it would really be."""
    if not issubclass(type(timeout), int | float | timedelta):
        broker.close(timeout)


POLICY = [*Policy.__struct_fields__, "no_such_field"]
PUBLISH = ["headers", "key", "priority", "delay", "deliver_at", "ttl", "dedup_id"]
MESSAGE = ["payload", *PUBLISH, "expires_at", "id", "offset", "timestamp"]

#: What is called, with each of its arguments in turn: the broker, a queue, and the argument by name come in.
CALLS: dict[str, tuple[list[str], Callable[[Any, Any, dict[str, Any]], object]]] = {
    "queue": (["name", *POLICY], lambda broker, _, given: broker.queue(**{"name": "beside", **given})),
    "create_queue": (["name", *POLICY], lambda broker, _, given: broker.create_queue(**fresh(**given))),
    "get_queue": (["name"], lambda broker, _, given: broker.get_queue(**given)),
    "delete_queue": (["name"], lambda broker, _, given: broker.delete_queue(**given)),
    "close": (["timeout"], lambda broker, _, given: closed(broker, **given)),
    "publish": (["payload", *PUBLISH], lambda _, queue, given: queue.publish(**{"payload": b"x", **given})),
    "header": (["value"], lambda _, queue, given: queue.publish(b"x", headers={"name": given["value"]})),
    "publish_many": (["messages"], lambda _, queue, given: queue.publish_many(**given)),
    "message": (MESSAGE, lambda _, queue, given: queue.publish_many([b"x", Message(**{"payload": b"x", **given})])),
    "no message": (["one"], lambda _, queue, given: queue.publish_many([given["one"]])),
    "receive": (["timeout"], lambda _, queue, given: queue.publish(b"x") and queue.receive(**given)),
    "receive_many": (["count"], lambda _, queue, given: queue.receive_many(**given)),
    "receive_many for": (["timeout"], lambda _, queue, given: queue.publish(b"x") and queue.receive_many(1, **given)),
    "subscribe": (["consumer", "prefetch", "auto_ack"], lambda _, queue, given: queue.subscribe(**given).close()),
    "ack_many": (["one"], lambda _, queue, given: queue.ack_many([leased(queue), given["one"]])),
    "peek": (["count"], lambda _, queue, given: queue.peek(**given)),
    "nack": (["delay", "error"], lambda _, queue, given: leased(queue).nack(**given)),
    "reject": (["error"], lambda _, queue, given: leased(queue).reject(**given)),
    "extend": (["seconds"], lambda _, queue, given: leased(queue).extend(**given)),
    "alter": (POLICY, lambda broker, _, given: broker.queue(**fresh()).alter(**given)),
    "backoff": (list(Backoff.__struct_fields__), lambda broker, _, given: broker.queue(**fresh(backoff=Backoff(**given)))),
    "redrive": (["where", "limit", "rate", "to"], lambda _, queue, given: queue.redrive(**{"limit": 1, **given})),
}  # fmt: skip


@pytest.fixture
def queue(home: Home) -> Queue:
    return home.broker.queue("orders", max_attempts=None, dedup_window=0)


@pytest.mark.parametrize(("call", "field"), [(call, field) for call in CALLS for field in CALLS[call][0]])
def test_an_odd_argument_is_an_error_of_others_or_breaks_the_broker(
    home: Home, queue: Queue, call: str, field: str
) -> None:
    for name, odd in oddities().items():
        try:
            CALLS[call][1](home.broker, queue, {field: odd})
        except PenstockError:
            pass
        except BaseException as error:
            pytest.fail(f"{call}, given {name} as {field}: {type(error).__name__}", pytrace=False)
        try:
            queue.depth()
        except PenstockError as error:
            pytest.fail(f"{call}, given {name} as {field}, broke the broker: {error}", pytrace=False)
    queue.peek(1000)
    goes_on(home)


def goes_on(home: Home) -> None:
    after = home.broker.create_queue("after")
    after.publish(b"one", headers={"a": "b"}, key="k", priority=7)
    after.publish(b"two", delay=5)
    assert drain(after) == [b"one"]
    home.advance(5)
    assert drain(after) == [b"two"]


def test_values_of_an_enum_break_the_broker_or_come_out_as_such(home: Home) -> None:
    queue = home.broker.queue(Word.KEY, ordering=Mixed.KEY, max_attempts=Level.FIVE)
    queue.publish(b"a", key=Word.KEY, priority=Level.FIVE, headers={Mixed.KEY: Word.KEY}, dedup_id=Mixed.KEY)
    assert (queue.name, queue.policy.ordering, queue.policy.max_attempts) == ("key", "key", 5)
    delivery = take(home.broker.get_queue("key"))
    found = [delivery.key, delivery.priority, *delivery.headers.items()]
    assert found == ["key", 5, ("key", "key")]
    assert [type(one) for one in (queue.name, queue.policy.max_attempts, found[0], found[1])] == [
        str,
        int,
        str,
        int,
    ]
    delivery.ack()


def test_headers_that_change_while_they_are_read_are_stored_unchecked(queue: Queue) -> None:
    queue.publish(b"a", headers=Fickle())
    assert take(queue).headers == {"name": "value"}


@pytest.mark.parametrize("call", ["publish_many", "ack_many"])
def test_an_error_of_the_callers_own_generator_is_hidden_or_changes_something(
    queue: Queue, call: str
) -> None:
    queue.publish_many([b"a", b"b"])
    first = take(queue)

    def given() -> Iterator[Any]:
        yield b"c" if call == "publish_many" else first
        raise LookupError

    with pytest.raises(LookupError):
        getattr(queue, call)(given())
    assert counts(queue) == expected(ready=1, leased=1)
