"""Who works with the front, and what it needs of them: accounts, quotas, an observer, connections.

They are written elsewhere (`server.accounts`, `server.quotas`, `observe`); here is what the front asks of them, and those that stand in where there are none:
everybody may do everything, nothing is counted, nobody looks on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol

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


#: Where in a request's scope its connection stands, if the listener has put it there.
CONNECTION: Final = "penstock.connection"


class Connection(Protocol):
    """The line to a client."""

    def is_closing(self) -> bool:
        """Whether it is being closed, or has been: whatever is sent, nobody hears it."""
        ...

    def at_its_end(self, tell: Callable[[], object] | None) -> None:
        """Have that called when it is closed; with None, nothing any more. There is one who waits on a connection at a time."""
        ...

    def has_room_for(self, answer_bytes: int) -> bool:
        """Whether an answer of that size may be made: those that clients do not read have a common bound."""
        ...

    def answer(self, scope: object, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Answer a request whole, and at once; False if it has to go by ASGI's messages."""
        ...

    def let_go(self) -> None:
        """There will be no answer: nobody is there to hear it."""
        ...


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


class NoConnection:
    """Nothing is known of the client but what ASGI tells."""

    def is_closing(self) -> bool:
        return False

    def at_its_end(self, tell: Callable[[], object] | None) -> None:
        del tell

    def has_room_for(self, answer_bytes: int) -> bool:
        del answer_bytes
        return True

    def let_go(self) -> None:
        pass

    def answer(self, scope: object, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        del scope, status, headers, body
        return False


class NoObserver:
    """Nobody looks on."""

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        pass

    def render(self, namespaces: Collection[str] | None) -> bytes:
        del namespaces
        return b""
