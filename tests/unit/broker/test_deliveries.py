"""What was granted becomes deliveries, each with its own message and lease, and back to receipts."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.broker.deliveries import Leased, deliveries, receipts
from penstock.broker.port import Granted
from penstock.clock import ManualClock, to_datetime
from penstock.errors import InvalidArgument, LeaseLost
from penstock.model.batch import Batch, Run

NOW = ManualClock.START_US


class Named:
    """All that a delivery knows of its queue."""

    def __init__(self, name: str, broker: str = "this one") -> None:
        self.name = name
        self._port = broker


QUEUE = Named("q")
PLAIN = Batch([b"0", b"1", b"2"], range(10, 13), NOW, 100, first=0)
RICH = Batch(
    [b"5", b"6"],
    [15, 16],
    [NOW + 5, NOW + 6],
    [1, 2],
    key=["k", None],
    headers=[None, {"h": "1"}],
    first=5,
)


def made(granted: Granted | None) -> list[Leased]:
    return deliveries(Leased, QUEUE, granted)


def leased(group: str, offset: int, number: int, queue: Any = QUEUE) -> Leased:
    return Leased(queue, group, number, offset, 1, b"", 1, NOW, 100, None, None)


def test_nothing_becomes_a_delivery() -> None:
    assert made(None) == []


def test_messages_of_two_batches_are_mixed_up() -> None:
    found = made(Granted("g", 9, [1, 2, 5, 6], [1, 4, 2, 3], [Run(PLAIN, 1, 3), Run(RICH, 0, 2)]))
    assert [(d.offset, d.payload, d.id, d.attempt, d.priority, d.key) for d in found] == [
        (1, b"1", 11, 1, 100, None),
        (2, b"2", 12, 4, 100, None),
        (5, b"5", 15, 2, 1, "k"),
        (6, b"6", 16, 3, 2, None),
    ]
    assert [d.headers for d in found] == [{}, {}, {}, {"h": "1"}]
    assert [d.timestamp for d in found] == [to_datetime(NOW + n) for n in (0, 0, 5, 6)]
    assert [d.redelivered for d in found] == [False, True, True, True]
    assert {d.receipt for d in found} == {"g:1:9", "g:2:9", "g:5:9", "g:6:9"}


def test_one_message_within_a_batch_is_another() -> None:
    found = made(Granted("g", 9, range(1, 2), 1, [Run(PLAIN, 1, 2)]))
    assert [(d.offset, d.payload, d.id) for d in found] == [(1, b"1", 11)]


def test_messages_in_another_order_than_their_offsets_are_mixed_up() -> None:
    found = made(Granted("g", 9, [6, 0], 1, [Run(RICH, 1, 2), Run(PLAIN, 0, 1)]))
    assert [(d.offset, d.payload) for d in found] == [(6, b"6"), (0, b"0")]


def test_changing_the_headers_of_one_changes_what_is_stored() -> None:
    granted = Granted("g", 9, range(6, 7), 1, [Run(RICH, 1, 2)])
    made(granted)[0].headers["h"] = "2"
    assert made(granted)[0].headers == {"h": "1"}


def test_a_long_payload_fills_the_screen() -> None:
    delivery = Leased(QUEUE, "g", 1, 0, 1, b"x" * 10_000, 1, NOW, 100, None, None)
    assert len(repr(delivery)) < 200


# --- receipts ---


def test_deliveries_of_two_groups_are_settled_in_one() -> None:
    found = receipts([leased("a", 1, 7), leased("b", 1, 8), leased("a", 3, 9)], QUEUE)
    assert found == [("a", [1, 3], [7, 9]), ("b", [1], [8])]


def test_nothing_has_a_receipt() -> None:
    assert receipts([], QUEUE) == []
    assert receipts(iter([leased("a", 1, 7)]), QUEUE) == [("a", [1], [7])]


@pytest.mark.parametrize("given", [None, 7, [None], [b"x"], ["a:1:7"], [leased("a", 1, 7), 7]])
def test_something_else_is_taken_for_deliveries(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        receipts(given, QUEUE)


def test_a_delivery_of_another_queue_is_settled_here() -> None:
    with pytest.raises(InvalidArgument, match="other"):
        receipts([leased("a", 1, 7), leased("a", 2, 7, Named("other"))], QUEUE)
    with pytest.raises(LeaseLost, match="another broker"):
        receipts([leased("a", 2, 7, Named("q", "another"))], QUEUE)
    assert receipts([leased("a", 1, 7, Named("q"))], QUEUE)  # another handle of the same queue


def test_a_receipt_of_the_api_differs_from_its_delivery() -> None:
    with penstock.open(clock=ManualClock()) as broker:
        queue = broker.queue("q")
        queue.publish_many([b"a", b"b"])
        both = queue.receive_many(2)
        ((group, offsets, numbers),) = receipts(both, queue)
        assert [d.receipt for d in both] == [
            f"{group}:{offset}:{number:x}" for offset, number in zip(offsets, numbers, strict=True)
        ]
