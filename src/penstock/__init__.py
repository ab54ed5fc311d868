"""Penstock: a durable message queue in Python whose data pipeline runs on Spark.

The public names, nothing else. What is not in `__all__` may change without notice.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from penstock.broker.opening import open  # noqa: A004
from penstock.broker.sync import Broker, Consumer, Delivery, Group, Queue, Reader, Topic, Transaction
from penstock.errors import (
    BatchTooLarge,
    BrokerClosed,
    CorruptJournal,
    DirectoryLocked,
    DiskFull,
    Forbidden,
    ForkedProcess,
    InvalidArgument,
    InvalidName,
    JournalFailed,
    LeaseLost,
    MaintenanceFailed,
    MessageExpired,
    MessageTooLarge,
    MissingExtra,
    PenstockError,
    PolicyConflict,
    QueueFull,
    QueueNotFound,
    QuotaExceeded,
    ServerUnavailable,
    ShardUnavailable,
    TopicNotFound,
    Unauthorized,
    WrongKind,
)
from penstock.message import Message
from penstock.policy import Backoff, Policy

__all__ = [
    "Backoff",
    "BatchTooLarge",
    "Broker",
    "BrokerClosed",
    "Consumer",
    "CorruptJournal",
    "Delivery",
    "DirectoryLocked",
    "DiskFull",
    "Forbidden",
    "ForkedProcess",
    "Group",
    "InvalidArgument",
    "InvalidName",
    "JournalFailed",
    "LeaseLost",
    "MaintenanceFailed",
    "Message",
    "MessageExpired",
    "MessageTooLarge",
    "MissingExtra",
    "PenstockError",
    "Policy",
    "PolicyConflict",
    "Queue",
    "QueueFull",
    "QueueNotFound",
    "QuotaExceeded",
    "Reader",
    "Reject",
    "Retry",
    "ServerUnavailable",
    "ShardUnavailable",
    "Topic",
    "TopicNotFound",
    "Transaction",
    "Unauthorized",
    "Worker",
    "WrongKind",
    "__version__",
    "aio",
    "connect",
    "open",
]

__version__ = version("penstock")

if TYPE_CHECKING:
    from penstock import aio
    from penstock.broker.worker import Reject, Retry, Worker
    from penstock.client import connect

#: What needs asyncio, or a network, is imported when it is first used: who does not use it does not pay for it.
_LATER = {
    "Reject": "penstock.broker.worker",
    "Retry": "penstock.broker.worker",
    "Worker": "penstock.broker.worker",
    "connect": "penstock.client",
}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("penstock.aio")
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
