"""Penstock: a durable message queue in Python whose data pipeline runs on Spark.

The public names, nothing else. What is not in `__all__` may change without notice. Each is imported
when it is first used: a program pays for what it uses, and `import penstock.broker.port` loads no broker.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

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
    "Unsupported",
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
    from penstock.broker.opening import open  # noqa: A004
    from penstock.broker.sync import Broker, Consumer, Delivery, Group, Queue, Reader, Topic, Transaction
    from penstock.broker.worker import Reject, Retry, Worker
    from penstock.client import connect
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
        Unsupported,
        WrongKind,
    )
    from penstock.message import Message
    from penstock.policy import Backoff, Policy

#: Where the public names are, but for errors.
_MODULES = {
    "penstock.broker.opening": ("open",),
    "penstock.broker.sync": (
        "Broker",
        "Consumer",
        "Delivery",
        "Group",
        "Queue",
        "Reader",
        "Topic",
        "Transaction",
    ),
    "penstock.broker.worker": ("Reject", "Retry", "Worker"),
    "penstock.client": ("connect",),
    "penstock.message": ("Message",),
    "penstock.policy": ("Backoff", "Policy"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("penstock.aio")
    if name in __all__:
        found = getattr(import_module(_MODULE_OF.get(name, "penstock.errors")), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
