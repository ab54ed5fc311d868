"""Errors become problems by their own data."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from penstock import errors
from penstock.errors import (
    JournalFailed,
    PenstockError,
    QueueFull,
    QueueNotFound,
    QuotaExceeded,
    Unauthorized,
)
from penstock.server.http.endpoint import answer_to, request_id
from penstock.server.http.problem import Refusal, failed, refused
from penstock.wire import Problem

CLASSES = [
    found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, PenstockError)
]


def problem(answer: tuple[int, Any, bytes]) -> tuple[Problem, dict[str, str]]:
    status, headers, body = answer
    found = msgspec.json.decode(body, type=Problem)
    assert found.status == status
    return found, {name.decode(): value.decode() for name, value in headers}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_says_itself_what_it_is(kind: type[PenstockError]) -> None:
    found, headers = problem(failed(kind("it is so"), "r-1"))
    assert (found.status, found.code, found.retryable) == (kind.http_status, kind.code, kind.retryable)
    assert found.detail == "it is so"
    assert found.instance == "r-1"
    assert found.type.endswith(kind.code)
    assert headers["content-type"] == "application/problem+json"


def test_a_title_is_words() -> None:
    assert problem(failed(QueueNotFound("x"), "r"))[0].title == "Queue not found"


def test_whoever_may_come_back_is_told_when() -> None:
    found, headers = problem(failed(QueueFull("x"), "r"))
    assert headers["retry-after"] == "1"
    assert found.retry_after == 1.0
    found, headers = problem(failed(QuotaExceeded("x", retry_after_s=12.3), "r"))
    assert headers["retry-after"] == "13"
    assert found.retry_after == 12.3


def test_what_never_fits_is_not_to_be_tried_again() -> None:
    found, headers = problem(failed(QuotaExceeded("x", never=True), "r"))
    assert not found.retryable
    assert "retry-after" not in headers


def test_without_a_token_it_is_said_how_to_send_one() -> None:
    assert problem(failed(Unauthorized("x"), "r"))[1]["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("indeterminate", [True, False])
def test_what_is_not_known_of_a_failure_is_said(indeterminate: bool) -> None:
    found, _ = problem(failed(JournalFailed("x", indeterminate=indeterminate), "r"))
    assert found.indeterminate is indeterminate


def test_a_mistake_of_ours_is_not_told_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    found, _ = problem(answer_to(ZeroDivisionError("secret"), "r-7"))
    assert found.status == 500
    assert "secret" not in found.detail
    assert "r-7" in found.detail
    assert "ZeroDivisionError: secret" in caplog.text
    assert caplog.records[0].__dict__["request_id"] == "r-7"


@pytest.mark.parametrize("how", ["encode", "decode"])
def test_text_that_is_not_unicode_is_the_mistake_of_the_client(how: str) -> None:
    with pytest.raises(UnicodeError) as caught:
        _ = "\ud800".encode() if how == "encode" else b"\xff".decode()
    found, _ = problem(answer_to(caught.value, "r"))
    assert (found.status, found.code) == (400, "invalid_argument")
    assert "send it as UTF-8" in found.detail


def test_a_refusal_may_close_the_connection() -> None:
    found, headers = problem(refused(Refusal(413, "batch_too_large", "too much", close=True), "r"))
    assert headers["connection"] == "close"
    assert not found.retryable


@pytest.mark.parametrize("given", [b"abc-123", b"0af7651916cd43dd8448eb211c80319c", b"a" * 128])
def test_a_request_keeps_its_own_id(given: bytes) -> None:
    assert request_id(given) == given.decode()


@pytest.mark.parametrize("given", [None, b"", b"a b", b"a\r\nset-cookie: x", b"a" * 129, "ä".encode(), b"{}"])
def test_an_id_that_cannot_stand_in_a_header_is_replaced(given: bytes | None) -> None:
    found = request_id(given)
    assert found.encode() != given
    assert found.isascii()
    assert request_id(None) != found
