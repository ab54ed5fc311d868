"""The API for asyncio: `broker = await penstock.aio.open(…)`, or `connect(url)`, and every method of its objects is a coroutine."""

from penstock.broker.aio import (
    Broker,
    Consumer,
    Delivery,
    Group,
    Queue,
    Reader,
    Topic,
    Transaction,
)
from penstock.broker.aio_opening import open  # noqa: A004
from penstock.broker.worker import AioWorker as Worker
from penstock.client import aio_connect as connect

__all__ = [
    "Broker",
    "Consumer",
    "Delivery",
    "Group",
    "Queue",
    "Reader",
    "Topic",
    "Transaction",
    "Worker",
    "connect",
    "open",
]


def __dir__() -> list[str]:
    return __all__
