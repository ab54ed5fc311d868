"""Who works with the front, and what it needs of them: accounts, quotas, an observer.

They are written elsewhere (`server.accounts`, `server.quotas`, `observe`); here is what the front asks of them, and those that stand in where there are none:
everybody may do everything, nothing is counted, nobody looks on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol

from penstock.server.accounts import ANYBODY, Permission


class Caller(Protocol):
    """Who sent a request, and what he may do."""

    @property
    def subject(self) -> str: ...

    @property
    def is_admin_of_all(self) -> bool: ...

    @property
    def party(self) -> str: ...

    @property
    def until_us(self) -> int | None: ...

    def may(self, namespace: str, permission: Permission) -> bool: ...

    def require(self, namespace: str, *any_of: Permission) -> None: ...

    def namespaces(self, known: Iterable[str]) -> list[str]: ...


class Accounts(Protocol):
    """Tells callers by what they show."""

    @property
    def is_open(self) -> bool: ...

    def caller(self, authorization: str | None) -> Caller: ...


class Taken(Protocol):
    """What was counted for a request."""

    def give_back(self) -> None: ...


class Quotas(Protocol):
    """Counts what namespaces use."""

    def limit(self, namespace: str) -> Any: ...

    def take(self, namespace: str, messages: int, payload_bytes: int) -> Taken | None: ...

    def require_room(
        self, namespace: str, *, queues: int | None = None, depth: int | None = None, adding: int
    ) -> None: ...


class Observer(Protocol):
    """Hears of every request, and shows what it has heard."""

    def request(self, route: str, method: str, status: int, seconds: float) -> None: ...

    def render(self, namespaces: Collection[str] | None) -> bytes: ...


class OpenAccounts:
    """Everybody may do everything."""

    is_open = True

    def caller(self, authorization: str | None) -> Caller:
        del authorization
        return ANYBODY


class NoQuotas:
    """Nothing is counted."""

    def limit(self, namespace: str) -> None:
        del namespace

    def take(self, namespace: str, messages: int, payload_bytes: int) -> None:
        pass

    def require_room(
        self, namespace: str, *, queues: int | None = None, depth: int | None = None, adding: int
    ) -> None:
        pass


class NoObserver:
    """Nobody looks on."""

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        pass

    def render(self, namespaces: Collection[str] | None) -> bytes:
        del namespaces
        return b""
