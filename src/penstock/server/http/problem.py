"""What went wrong, as RFC 9457 has it (`application/problem+json`): an error says itself what it is, by its own data.

Besides Penstock's own errors a server refuses what is no request at all (an address that does not exist, a body that never ends): those are `Refusal`s.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Final

import msgspec

from penstock.errors import JournalFailed, PenstockError
from penstock.wire import PROBLEM, Problem

#: Where the codes are explained. It is an address that need not be fetched.
TYPE: Final = "urn:penstock:error:"

CONTENT_TYPE: Final = PROBLEM.encode()

#: When to come back, where an error is about the moment and does not say more.
RETRY_AFTER_S: Final = 1.0

_encode = msgspec.json.Encoder().encode


class Refusal(Exception):
    """A request that does not come as far as the broker."""

    def __init__(
        self, status: int, code: str, detail: str, *, retry_after_s: float | None = None, close: bool = False,
        allow: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.close = close  # the connection is of no use any more: something of the body was not read
        self.allow = allow


Headers = list[tuple[bytes, bytes]]


def refused(error: Refusal, request_id: str) -> tuple[int, Headers, bytes]:
    """The answer to what is no request."""
    found = Problem(
        type=TYPE + error.code,
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        detail=error.detail,
        code=error.code,
        retryable=error.retry_after_s is not None,
        instance=request_id,
        retry_after=error.retry_after_s,
    )
    headers = _headers(found)
    if error.close:
        headers.append((b"connection", b"close"))
    if error.allow is not None:
        headers.append((b"allow", error.allow.encode()))
    return error.status, headers, _encode(found)


def failed(error: PenstockError, request_id: str) -> tuple[int, Headers, bytes]:
    """The answer to a request that the broker, or somebody before it, refused."""
    status = error.http_status
    # An error that knows when to come back says so itself, or that nobody knows.
    usual_s = RETRY_AFTER_S if error.retryable and status in {429, 503} else None
    retry_after_s: float | None = getattr(error, "retry_after_s", usual_s)
    found = Problem(
        type=TYPE + error.code,
        title=_title(type(error).__name__),
        status=status,
        detail=error.message,
        code=error.code,
        retryable=error.retryable,
        instance=request_id,
        retry_after=retry_after_s,
        indeterminate=error.indeterminate if isinstance(error, JournalFailed) else None,
    )
    headers = _headers(found)
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    return status, headers, _encode(found)


def unexpected(request_id: str) -> tuple[int, Headers, bytes]:
    """The answer to a request that found a mistake of ours: what it was stands in the server's log, not here."""
    found = Problem(
        type=TYPE + PenstockError.code,
        title="Internal Server Error",
        status=500,
        detail=f"the server made a mistake; its log says which, under the request {request_id}",
        code=PenstockError.code,
        retryable=False,
        instance=request_id,
    )
    return 500, _headers(found), _encode(found)


def _headers(found: Problem) -> Headers:
    headers = [(b"content-type", CONTENT_TYPE)]
    if found.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(found.retry_after))))
    return headers


def _title(name: str) -> str:
    """`QueueNotFound` as words."""
    return "".join(f" {char.lower()}" if char.isupper() and at else char for at, char in enumerate(name))
