"""What one caller, or all of them together, may make a server hold: each bound with its reason."""

from __future__ import annotations

import msgspec

from penstock.limits import FRAME_BYTES_MAX


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a server's front. What is above one is refused, and told so."""

    #: A request is read into memory whole. A batch lies within one frame, and in JSON its payloads take a third more.
    body_bytes_max: int = FRAME_BYTES_MAX * 3 // 2

    #: Of payloads in one answer: what is above it comes with the next request. One message always fits.
    answer_bytes_max: int = FRAME_BYTES_MAX

    #: Proxies cut what is silent for a minute.
    wait_s_max: float = 50.0

    #: Each holds a connection, a task and a place in a line.
    long_polls_max: int = 10_000

    #: One caller must not take the places of all others.
    long_polls_per_caller_max: int = 2_000

    #: Rows of Spark's that one namespace has on the disk and has not published: nobody pays for them yet, and what is given up stays for a day.
    staged_bytes_max: int = 8 << 30

    #: When somebody may come back who was refused for want of a place.
    retry_after_s: float = 1.0

    #: A stream of events says that it is alive so often, so that nobody between takes it for dead.
    heartbeat_s: float = 15.0

    #: Messages that one event stream or page looks at together.
    page_messages: int = 1_000
