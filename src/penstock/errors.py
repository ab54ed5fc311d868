"""Everything that can go wrong, as one tree.

    PenstockError
     |
     |  the request is wrong: change it
     +-- InvalidArgument      bad input of any kind not named below; also a ValueError
     +-- InvalidName          a queue, topic, group or namespace name that is not allowed
     +-- MessageTooLarge      one message above its queue's limit
     +-- BatchTooLarge        a batch or transaction above what one frame can hold
     +-- MessageExpired       its time was over before it was published
     +-- QueueNotFound        no queue of that name
     +-- TopicNotFound        no topic of that name
     +-- WrongKind            a queue where a topic was asked for, or the other way round
     +-- PolicyConflict       the queue exists with another policy
     +-- LeaseLost            the receipt is too old: somebody else has the message now
     +-- Unauthorized         no valid token
     +-- Forbidden            a valid token without that permission
     +-- MissingExtra         an optional package is not installed
     +-- Unsupported          this home cannot do that; another one can
     |
     |  not now: the same request may succeed later
     +-- QueueFull            max_depth or max_bytes is reached
     +-- QuotaExceeded        the namespace has used its share
     +-- DiskFull             no room for new messages; acks still work
     +-- ShardUnavailable     the shard that owns this log does not answer
     +-- BrokerClosed         closed, or shutting down
     +-- ServerUnavailable    no answer from the server, or none of it
     +-- DirectoryLocked      another process owns the journal
     +-- MaintenanceFailed    a snapshot, a summary or a cleaning step was not done
     |
     |  stop and look
     +-- JournalFailed        writing or syncing failed; the outcome may be unknown
     +-- CorruptJournal       stored bytes are not what was written
     +-- ForkedProcess        a forked child used what belongs to its parent

What always holds:

- Every class says four things as data, so that a front maps an error without an `if`: `code` (what a program compares,
  and what travels over the network), `retryable` (the same request, unchanged, may succeed later), `http_status`, and
  `amqp_reply` (the AMQP 0-9-1 reply code).
- A code is the class name in snake case and never changes once released.
- The message says what happened and what to do. An error that was raised changed nothing, except `JournalFailed` and
  `ServerUnavailable`, whose `indeterminate` says whether that is known.
- Errors survive pickling, so that they cross process boundaries whole.

To add one: write the class here in its group of the drawing, give it the four attributes, and add it to `__all__` of
`penstock`. The tests check the rest.
"""

from __future__ import annotations

import copy
from typing import ClassVar


class PenstockError(Exception):
    """Any failure that Penstock reports; catch it to catch them all.

    >>> raise QueueNotFound("no queue named 'orders'; create it with create_queue('orders')")
    Traceback (most recent call last):
    ...
    penstock.errors.QueueNotFound: no queue named 'orders'; create it with create_queue('orders')
    """

    code: ClassVar[str] = "penstock_error"
    retryable: bool = False  # of the class; one error may know better (`QuotaExceeded`)
    http_status: ClassVar[int] = 500
    amqp_reply: ClassVar[int] = 541

    def __init__(self, message: str) -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The sentence given when it was raised."""
        return str(self.args[0])


# --- the request is wrong: change it ---


class InvalidArgument(PenstockError, ValueError):
    """An argument is not allowed: correct the one that the message names."""

    code = "invalid_argument"
    retryable = False
    http_status = 400
    amqp_reply = 406


class InvalidName(PenstockError):
    """A name is not allowed: use the characters and the length that the message names."""

    code = "invalid_name"
    retryable = False
    http_status = 400
    amqp_reply = 406


class MessageTooLarge(PenstockError):
    """The message is above its limit: store the payload elsewhere and publish a reference, or raise the limit."""

    code = "message_too_large"
    retryable = False
    http_status = 413
    amqp_reply = 311


class BatchTooLarge(PenstockError):
    """The batch or transaction is above what one frame can hold: split it."""

    code = "batch_too_large"
    retryable = False
    http_status = 413
    amqp_reply = 311


class MessageExpired(PenstockError):
    """The message's time was over before it could be used: give it a later expires_at or a longer ttl."""

    code = "message_expired"
    retryable = False
    http_status = 410
    amqp_reply = 406


class QueueNotFound(PenstockError):
    """There is no such queue: create it, or check the name and the namespace."""

    code = "queue_not_found"
    retryable = False
    http_status = 404
    amqp_reply = 404


class TopicNotFound(PenstockError):
    """There is no such topic: create it, or check the name and the namespace."""

    code = "topic_not_found"
    retryable = False
    http_status = 404
    amqp_reply = 404


class WrongKind(PenstockError):
    """The name belongs to a log of the other kind: queues and topics share one set of names, so pick another."""

    code = "wrong_kind"
    retryable = False
    http_status = 409
    amqp_reply = 406


class PolicyConflict(PenstockError):
    """The queue exists with another policy: leave out the arguments that differ, or call alter."""

    code = "policy_conflict"
    retryable = False
    http_status = 409
    amqp_reply = 406


class LeaseLost(PenstockError):
    """The lease ended before it was settled: drop the result, or ask for a longer visibility_timeout or extend."""

    code = "lease_lost"
    retryable = False
    http_status = 409
    amqp_reply = 406


class Unauthorized(PenstockError):
    """The caller is not known: send a valid token."""

    code = "unauthorized"
    retryable = False
    http_status = 401
    amqp_reply = 403


class Forbidden(PenstockError):
    """The caller may not do this: ask for a token with that namespace and permission."""

    code = "forbidden"
    retryable = False
    http_status = 403
    amqp_reply = 403


class MissingExtra(PenstockError):
    """An optional package is not installed: run the pip command in the message."""

    code = "missing_extra"
    retryable = False
    http_status = 501
    amqp_reply = 540


class Unsupported(PenstockError):
    """This home (memory, disk, shards, AMQP) cannot do that: use the one that the message names."""

    code = "unsupported"
    retryable = False
    http_status = 501
    amqp_reply = 540


# --- not now: the same request may succeed later ---


class QueueFull(PenstockError):
    """The queue is at max_depth or max_bytes: publish again once consumers have caught up."""

    code = "queue_full"
    retryable = True
    http_status = 503
    amqp_reply = 506


class QuotaExceeded(PenstockError):
    """The namespace has used its share: slow down and try again, after `retry_after_s` where that is known.

    What is larger than the whole share fits at no time: then `retryable` is False, and the message says how to split it.
    """

    code = "quota_exceeded"
    retryable = True
    http_status = 429
    amqp_reply = 506

    def __init__(self, message: str, *, retry_after_s: float | None = None, never: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        if never:
            self.retryable = False


class DiskFull(PenstockError):
    """There is no room for new messages and nothing was written: free space or consume; acks still work."""

    code = "disk_full"
    retryable = True
    http_status = 507
    amqp_reply = 506


class ShardUnavailable(PenstockError):
    """The shard that owns this log does not answer: try again later; other logs go on."""

    code = "shard_unavailable"
    retryable = True
    http_status = 503
    amqp_reply = 506


class BrokerClosed(PenstockError):
    """The broker is closed or shutting down: open it again, or try again once the server is back."""

    code = "broker_closed"
    retryable = True
    http_status = 503
    amqp_reply = 320


class ServerUnavailable(PenstockError):
    """No answer came from the server: see that it runs (`penstock serve`) and that the address is right, then try again.

    If the request had been sent, what became of it is not known (`indeterminate`). Publish again with the same `dedup_id`, and it does not matter.
    """

    code = "server_unavailable"
    retryable = True
    http_status = 503
    amqp_reply = 320

    def __init__(self, message: str, *, indeterminate: bool = False) -> None:
        super().__init__(message)
        self.indeterminate = indeterminate


class DirectoryLocked(PenstockError):
    """Another process owns this directory: stop it, or share it by running `penstock serve`."""

    code = "directory_locked"
    retryable = True
    http_status = 423
    amqp_reply = 405

    def __init__(self, message: str, *, holder: str | None = None) -> None:
        super().__init__(message)
        self.holder = holder


class MaintenanceFailed(PenstockError):
    """A snapshot, summary or cleaning step was not done: see the cause; the journal itself goes on."""

    code = "maintenance_failed"
    retryable = True
    http_status = 500
    amqp_reply = 541


# --- stop and look ---


class JournalFailed(PenstockError):
    """Writing or syncing failed and the journal takes nothing more: see the cause, then open it again.

    A commit that was waiting when it happened may or may not be on disk (`indeterminate`); a call refused afterwards
    certainly is not. Publish again after reopening with the same `dedup_id`, and neither case matters.
    """

    code = "journal_failed"
    retryable = False
    http_status = 500
    amqp_reply = 541

    def __init__(self, message: str, *, indeterminate: bool = True) -> None:
        super().__init__(message)
        self.indeterminate = indeterminate

    @property
    def note(self) -> str:
        """What is known about the commit that was waiting."""
        if self.indeterminate:
            return "the outcome of the waiting commit is indeterminate: it may or may not be on disk"
        return "nothing of this request was written"


class CorruptJournal(PenstockError):
    """Stored bytes are not what was written: run `penstock journal verify` on the directory."""

    code = "corrupt_journal"
    retryable = False
    http_status = 500
    amqp_reply = 541


class ForkedProcess(PenstockError):
    """A forked child used its parent's journal or broker: open or connect in the child itself."""

    code = "forked_process"
    retryable = False
    http_status = 500
    amqp_reply = 541


# Built from this module alone: a user's own subclass does not take over a code.
_BY_CODE: dict[str, type[PenstockError]] = {
    found.code: found
    for found in tuple(globals().values())
    if isinstance(found, type) and issubclass(found, PenstockError)
}


def by_code(code: str) -> type[PenstockError]:
    """The class for a code from the network; `PenstockError` for one that a newer server made up.

    >>> by_code("lease_lost")
    <class 'penstock.errors.LeaseLost'>
    >>> by_code("from_the_future")
    <class 'penstock.errors.PenstockError'>
    """
    return _BY_CODE.get(code, PenstockError)


def fresh_copy(error: PenstockError) -> PenstockError:
    """Return the same error to be raised once more: a shared one would collect every caller's traceback."""
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    return fresh
