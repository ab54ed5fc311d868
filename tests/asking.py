"""What tests often ask of a port, in fewer words: each waits for its answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.broker.compose import publish_of
from penstock.broker.port import Port
from penstock.broker.ticket import Ticket
from penstock.message import Message
from penstock.model.commands import DEFAULT_NAMESPACE, Command, Handle, Kind, Spec, Unit
from penstock.model.queries import Find, OfLog, OfNamespace
from penstock.model.stats import BrokerStats, QueueStats


def declare(
    port: Port, name: str = "orders", namespace: str = DEFAULT_NAMESPACE, kind: Kind = "queue", **policy: Any
) -> Handle:
    """Declare a queue or topic."""
    return port.declare(Spec(namespace, name, policy, kind=kind)).wait()


def find(port: Port, name: str = "orders", namespace: str = DEFAULT_NAMESPACE) -> Handle:
    """Return a queue or topic that exists."""
    log = port.describe(Find(namespace, name)).wait()
    assert log is not None, name
    return log


def begin(port: Port, log: Handle, command: Command) -> Ticket[list[Any]]:
    """Commit a unit of one command, and do not wait for it."""
    return port.commit(Unit(log.namespace, ((log, command),)))


def do(port: Port, log: Handle, command: Command) -> Any:
    """Commit a unit of one command; its answer."""
    (answer,) = begin(port, log, command).wait()
    return answer


def publish(port: Port, log: Handle, messages: Iterable[bytes | Message]) -> list[int]:
    """Publish messages; their ids."""
    return list(do(port, log, publish_of(messages)))


def stats(port: Port, log: Handle) -> QueueStats:
    return port.describe(OfLog(log)).wait()


def broker_stats(port: Port, namespace: str = DEFAULT_NAMESPACE) -> BrokerStats:
    return port.describe(OfNamespace(namespace)).wait()
