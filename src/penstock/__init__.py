"""Penstock: a durable message queue in Python whose data pipeline runs on Spark.

The public names, nothing else. What is not in `__all__` may change without notice.
"""

from importlib.metadata import version

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
    "BrokerClosed",
    "CorruptJournal",
    "DirectoryLocked",
    "DiskFull",
    "Forbidden",
    "ForkedProcess",
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
    "QueueFull",
    "QueueNotFound",
    "QuotaExceeded",
    "ShardUnavailable",
    "TopicNotFound",
    "Unauthorized",
    "WrongKind",
    "__version__",
]

__version__ = version("penstock")
