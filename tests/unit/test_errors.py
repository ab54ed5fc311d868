from __future__ import annotations

import pickle
import re

import pytest

from penstock import errors
from penstock.errors import DirectoryLocked, InvalidArgument, JournalFailed, LeaseLost, PenstockError, by_code

ALL = [
    found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, PenstockError)
]

# What the fronts answer. Code and statuses are part of the protocol: a change here breaks clients.
PINNED = {
    "penstock_error": (False, 500, 541),
    "invalid_argument": (False, 400, 406),
    "invalid_name": (False, 400, 406),
    "message_too_large": (False, 413, 311),
    "batch_too_large": (False, 413, 311),
    "message_expired": (False, 410, 406),
    "queue_not_found": (False, 404, 404),
    "topic_not_found": (False, 404, 404),
    "wrong_kind": (False, 409, 406),
    "policy_conflict": (False, 409, 406),
    "lease_lost": (False, 409, 406),
    "unauthorized": (False, 401, 403),
    "forbidden": (False, 403, 403),
    "missing_extra": (False, 501, 540),
    "unsupported": (False, 501, 540),
    "queue_full": (True, 503, 506),
    "quota_exceeded": (True, 429, 506),
    "disk_full": (True, 507, 506),
    "shard_unavailable": (True, 503, 506),
    "broker_closed": (True, 503, 320),
    "server_unavailable": (True, 503, 320),
    "directory_locked": (True, 423, 405),
    "maintenance_failed": (True, 500, 541),
    "journal_failed": (False, 500, 541),
    "corrupt_journal": (False, 500, 541),
    "forked_process": (False, 500, 541),
}


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_two_errors_share_a_code() -> None:
    codes = [one.code for one in ALL]
    assert len(codes) == len(set(codes))


def test_what_an_error_tells_the_fronts_has_changed() -> None:
    assert {one.code: (one.retryable, one.http_status, one.amqp_reply) for one in ALL} == PINNED


@pytest.mark.parametrize("error", ALL)
def test_an_error_inherits_what_it_should_say_itself(error: type[PenstockError]) -> None:
    assert {"code", "retryable", "http_status", "amqp_reply", "__doc__"} <= set(vars(error))
    assert error.code == snake_case(error.__name__)


@pytest.mark.parametrize("error", ALL)
def test_the_drawing_at_the_top_leaves_an_error_out(error: type[PenstockError]) -> None:
    assert errors.__doc__ is not None
    assert re.search(rf"\b{error.__name__}\b", errors.__doc__)


@pytest.mark.parametrize("error", ALL)
def test_a_pickled_error_comes_back_changed(error: type[PenstockError]) -> None:
    raised = error("what to do")
    copy = pickle.loads(pickle.dumps(raised))
    assert (type(copy), copy.message, str(copy), vars(copy)) == (
        error,
        "what to do",
        "what to do",
        vars(raised),
    )


@pytest.mark.parametrize("error", ALL)
def test_a_code_from_the_network_becomes_another_error(error: type[PenstockError]) -> None:
    assert by_code(error.code) is error


def test_a_code_of_a_newer_server_is_not_understood() -> None:
    assert by_code("no_such_code") is PenstockError


def test_an_invalid_argument_is_also_a_value_error() -> None:
    assert issubclass(InvalidArgument, ValueError)


def test_a_users_subclass_takes_over_a_code() -> None:
    class Mine(LeaseLost):
        """A user's own."""

    assert by_code("lease_lost") is not Mine


def test_the_holder_of_a_lock_is_lost_in_pickling() -> None:
    assert DirectoryLocked("in use").holder is None
    assert pickle.loads(pickle.dumps(DirectoryLocked("in use", holder="pid 7"))).holder == "pid 7"


def test_a_failed_commit_claims_to_know_its_outcome() -> None:
    assert JournalFailed("EIO").indeterminate
    assert "indeterminate" in JournalFailed("EIO").note
    refused = pickle.loads(pickle.dumps(JournalFailed("EIO before", indeterminate=False)))
    assert refused.note == "nothing of this request was written"
