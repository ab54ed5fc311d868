"""Clients that are too many, too slow, too large, or not there any more. Whatever they do, a good one is served."""

from __future__ import annotations

import json
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.process import PATIENCE_S, Running, answer, ask, connected, ended, request, standin

pytestmark = pytest.mark.timeout(180)

IDLE = 2000
FLAT_BYTES = 64 << 20


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    """One with small bounds."""
    with standin(
        max_header_size="4KiB", max_body_size="64KiB", max_connections=20, max_connections_per_address=10
    ) as server:
        yield server


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """One that has little time."""
    with standin(header_timeout="100ms", body_timeout="100ms", keep_alive="500ms") as server:
        yield server


@pytest.fixture(scope="module")
def usual() -> Iterator[Running]:
    """One with those that it has by itself, and room for one body of the largest size."""
    with standin(max_bodies_size="1KiB") as server:
        yield server


def memory_bytes(server: Running) -> int:
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("it is gone")


def refused(made: socket.socket) -> tuple[int, str]:
    """The problem that it was told, and that nothing comes behind it."""
    status, body = answer(made)
    assert ended(made)
    problem = json.loads(body)
    assert problem["status"] == status
    assert problem["detail"]
    return status, problem["code"]


def well(server: Running) -> bool:
    return ask(server, "/length", method="POST", body=b"12345") == (200, b"5")


# --- too many ---


def test_2000_idle_connections_keep_a_good_client_out(usual: Running) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < IDLE + 100:
        pytest.skip(f"{IDLE} connections need {IDLE + 100} files, and there may be {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, IDLE + 100), hard))
    try:
        assert well(usual)  # it has begun, and is as large as it is without anybody
        before = memory_bytes(usual)
        with ExitStack() as stack:
            idle = [stack.enter_context(connected(usual)) for _ in range(IDLE)]
            for made in idle[::2]:
                made.sendall(request("/health"))
            assert all(answer(made)[0] == 200 for made in idle[::2])
            assert well(usual)
            assert memory_bytes(usual) - before < FLAT_BYTES
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert well(usual)


def test_one_address_takes_all_connections(strict: Running) -> None:
    with ExitStack() as stack:
        mine = [stack.enter_context(connected(strict, "127.0.0.2")) for _ in range(10)]
        for made in mine:
            made.sendall(request("/health"))
            assert answer(made)[0] == 200
        one_more = stack.enter_context(connected(strict, "127.0.0.2"))
        assert refused(one_more) == (503, "too_many_connections")
        assert well(strict)
    served = False
    while not served:  # until the server has seen that the others are gone
        with connected(strict, "127.0.0.2") as made:
            made.sendall(request("/health"))
            served = answer(made)[0] == 200


def test_more_connections_than_it_takes_are_served(strict: Running) -> None:
    with ExitStack() as stack:
        for source in ("127.0.0.3", "127.0.0.4"):
            for _ in range(10):
                made = stack.enter_context(connected(strict, source))
                made.sendall(request("/health"))
                assert answer(made)[0] == 200
        with connected(strict, "127.0.0.5") as one_more:
            # It says so also to who has sent something already, and does not read on for ever.
            one_more.sendall(request("/length", method="POST", body=b"x" * 1000))
            assert refused(one_more) == (503, "too_many_connections")


# --- too slow ---


def test_a_connection_that_says_nothing_is_kept(hasty: Running) -> None:
    with connected(hasty, "127.0.0.6") as made:
        assert ended(made)


def test_a_connection_that_says_nothing_more_is_kept(hasty: Running) -> None:
    with connected(hasty, "127.0.0.6") as made:
        made.sendall(request("/health"))
        assert answer(made)[0] == 200
        assert ended(made)


def test_a_head_that_never_ends_is_waited_for(hasty: Running) -> None:
    with connected(hasty, "127.0.0.6") as made:
        made.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        assert refused(made) == (408, "request_timeout")


def test_a_head_that_comes_byte_by_byte_is_waited_for(hasty: Running) -> None:
    drip(hasty, b"GET /health HTTP/1.1\r\n")


def test_a_body_that_comes_byte_by_byte_is_waited_for(hasty: Running) -> None:
    drip(hasty, b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n")


def test_chunks_that_come_byte_by_byte_are_waited_for(hasty: Running) -> None:
    drip(hasty, b"POST /length HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1000\r\n")


def drip(server: Running, begin: bytes) -> None:
    """Go on sending a little, slowly, until the server has had enough."""
    with connected(server, "127.0.0.7") as made:
        made.sendall(begin)
        made.settimeout(0.05)
        while True:
            try:
                made.sendall(b"x")
                made.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                continue
            break
        made.settimeout(PATIENCE_S)
        assert refused(made) == (408, "request_timeout")


def test_a_body_whose_client_is_gone_is_waited_for(strict: Running) -> None:
    with connected(strict, "127.0.0.8") as made:
        made.sendall(request("/length", method="POST", body=b"x" * 1000)[:-1])
    assert well(strict)


def test_many_bodies_are_kept_in_memory_or_a_whole_one_is_counted_on(usual: Running) -> None:
    part = b"x" * 24_000_000  # there is room for two and a half
    with ExitStack() as stack:
        senders = [stack.enter_context(connected(usual)) for _ in range(3)]
        for made in senders:
            made.sendall(request("/length", method="POST", body=part)[:-1])
        readable, _, _ = select.select(senders, [], [], PATIENCE_S)
        (crossing,) = readable
        assert refused(crossing) == (503, "too_many_transfers")
        for made in senders:
            if made is not crossing:
                made.sendall(b"x")
                assert answer(made) == (200, b"24000000")
        for _ in range(2):  # on the connection of one that was answered, beside those of the others
            made = next(one for one in senders if one is not crossing)
            made.sendall(request("/length", method="POST", body=part))
            assert answer(made) == (200, b"24000000")
    assert well(usual)


def test_two_requests_in_pieces_are_one_slow_one(usual: Running) -> None:
    with connected(usual) as made:
        for _ in range(3):
            whole = request("/length", method="POST", body=b"x" * 100_000)
            for start in range(0, len(whole), 30_000):
                made.sendall(whole[start : start + 30_000])
            assert answer(made) == (200, b"100000")


# --- too large ---


@pytest.mark.parametrize(
    "begin",
    [b"GET /", b"GET /health HTTP/1.1\r\nx: ", b"GET /health HTTP/1.1\r\n"],
    ids=["path", "value", "lines"],
)
def test_a_head_without_end_is_kept_in_memory(strict: Running, begin: bytes) -> None:
    before = memory_bytes(strict)
    with connected(strict, "127.0.0.9") as made:
        flood(made, begin, b"x: 1\r\n" * 10_000 if begin.endswith(b"\n") else b"x" * 60_000)
        assert refused(made) == (431, "headers_too_large")
    assert memory_bytes(strict) - before < FLAT_BYTES
    assert well(strict)


def test_a_head_at_its_bound_is_refused_or_one_above_it_is_not(strict: Running) -> None:
    for size, status in ((4096, 200), (4097, 431)):
        plain = request("/health", headers="x: \r\n")
        with connected(strict, "127.0.0.9") as made:
            made.sendall(plain.replace(b"x: ", b"x: " + b"y" * (size - len(plain))))
            assert answer(made)[0] == status


def test_a_head_in_two_pieces_with_a_large_body_behind_it_is_refused(usual: Running) -> None:
    whole = request("/length", method="POST", body=b"x" * 60_000)
    end = whole.index(b"\r\n\r\n")
    for cut in range(end, end + 5):
        with connected(usual) as made:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.sendall(whole[:cut])
            assert ask(usual, "/health")[0] == 200  # so it was heard
            made.sendall(whole[cut:])
            assert answer(made) == (200, b"60000")


def test_trailers_without_end_are_kept_in_memory(strict: Running) -> None:
    before = memory_bytes(strict)
    with connected(strict, "127.0.0.9") as made:
        flood(
            made,
            b"POST /length HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
            b"x: 1\r\n" * 10_000,
        )
        assert refused(made) == (431, "headers_too_large")
    assert memory_bytes(strict) - before < FLAT_BYTES


def test_heads_behind_a_request_that_waits_are_kept_in_memory(strict: Running) -> None:
    before = memory_bytes(strict)
    with connected(strict, "127.0.0.9") as made:
        flood(made, request("/stubborn") + b"GET /health HTTP/1.1\r\nx: ", b"x" * 60_000)
        assert ended(made)
    assert memory_bytes(strict) - before < FLAT_BYTES


def flood(made: socket.socket, begin: bytes, more: bytes) -> None:
    """Send up to 256 MB, or until the server answers or takes no more. What it has answered can still be read."""
    try:
        made.sendall(begin)
        for _ in range(4000):
            readable, _, _ = select.select([made], [made], [], PATIENCE_S)
            if readable:
                return
            made.send(more)
    except (BrokenPipeError, ConnectionResetError):
        return


def test_what_is_not_http_is_an_obscure_error(usual: Running) -> None:
    with connected(usual) as made:
        made.sendall(b"\x16\x03\x01\x02\x00\x01\x00 hello\r\n\r\n")
        assert refused(made) == (400, "invalid_argument")


# --- not reading ---


def test_an_answer_that_nobody_reads_is_kept_in_memory(usual: Running) -> None:
    before = memory_bytes(usual)
    with ExitStack() as stack:
        for _ in range(20):
            made = stack.enter_context(connected(usual))
            made.sendall(request("/big"))
            made.recv(1)
        assert well(usual)
        assert memory_bytes(usual) - before < FLAT_BYTES
    assert well(usual)


def test_a_request_for_another_protocol_is_lost(usual: Running) -> None:
    # As Java's client sends it, by itself.
    upgrade = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    for method, path, body, expected in (
        ("GET", "/health", b"", b"OK\n"),
        ("POST", "/length", b"12345", b"5"),
    ):
        with connected(usual) as made:
            for _ in range(2):  # the connection is as good as before
                made.sendall(request(path, method=method, body=body, headers=upgrade))
                assert answer(made) == (200, expected)
