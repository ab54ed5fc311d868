"""`penstock top`: the numbers it shows, how it fits a terminal, and that it outlives its server."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import penstock
from penstock.cli.rates import ORDERS, Frame, Row, Share, Snapshot, Watch, in_order, rows
from penstock.cli.top import COLUMNS, Screen
from penstock.model.stats import GroupStats, QueueStats
from tests.server.process import penstock as penstock_process
from tests.unit.cli.places import KINDS, home_of, run

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]

#: The same, as a program of the terminal that it has as its stdin: that sends it what Ctrl-C means.
AT_A_TERMINAL = f"import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); {COMMAND[-1]}"


def stats(name: str = "orders", **counts: Any) -> QueueStats:
    plain = dict.fromkeys(
        ("depth", "ready", "delayed", "leased", "retrying", "dead", "next_offset", "published"), 0
    )
    others: dict[str, Any] = {
        "bytes": None,
        "consumers": 0,
        "waiting": 0,
        "kind": "queue",
        "groups": {},
        "readers": {},
        "schedules": [],
    }
    return QueueStats(name=name, **{**plain, **others, **counts})  # fmt: skip


def group(lag: int, *consumers: str) -> GroupStats:
    return GroupStats(lag, True, lag, 0, 0, list(consumers), None, True)


def row(name: str, **known: Any) -> Row:
    zeros = dict.fromkeys(("depth", "ready", "delayed", "leased", "retrying", "dead", "lag", "consumers"), 0)
    rates = dict.fromkeys(("published_per_s", "delivered_per_s", "acked_per_s"), 0.0)
    return Row(name=name, **{"kind": "queue", **rates, **zeros, "groups": {}, "readers": {}, **known})


def drawn(frame: Frame, width: int, height: int, *, live: bool = True) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height, record=True, highlight=False)
    console.print(Screen(frame, "activity", 2.0 if live else None))
    return console.export_text().splitlines()


def frame(*logs: Row, error: str | None = None) -> Frame:
    return Frame("http://127.0.0.1:8080", "default", "2026-11-16T12:00:00+00:00", 2.0, list(logs), error)


# --- numbers ---


def test_a_rate_is_not_what_was_counted_between_two_looks() -> None:
    before = Snapshot(10.0, {"orders": stats(published=100, delivered=50, acked=10)})
    now = Snapshot(12.0, {"orders": stats(published=200, delivered=60, acked=10)})
    (found,) = rows(before, now)
    assert (found.published_per_s, found.delivered_per_s, found.acked_per_s) == (50.0, 5.0, 0.0)


def test_a_rate_is_made_up_from_one_look() -> None:
    now = Snapshot(12.0, {"new": stats("new", published=200)})
    assert rows(None, now)[0].published_per_s is None
    assert rows(Snapshot(10.0, {}), now)[0].published_per_s is None
    assert rows(Snapshot(12.0, {"new": stats("new")}), now)[0].published_per_s is None  # no time between


def test_a_counter_that_began_anew_gives_a_negative_rate() -> None:
    before = Snapshot(10.0, {"orders": stats(published=100, delivered=50)})
    (found,) = rows(before, Snapshot(12.0, {"orders": stats(published=100, delivered=4)}))
    assert (found.published_per_s, found.delivered_per_s) == (0.0, 2.0)


def test_the_lag_is_not_that_of_the_group_furthest_behind() -> None:
    groups = {"billing": group(7, "a", "b"), "mail": group(3)}
    (found,) = rows(None, Snapshot(1.0, {"events": stats("events", kind="topic", groups=groups)}))
    assert found.lag == 7
    assert found.groups == {"billing": Share(7, 7, 0, 0, 2), "mail": Share(3, 3, 0, 0, 0)}


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_another_one(order: str) -> None:
    field = f"{order}_per_s" if order in ("published", "delivered", "acked") else order
    field = "acked_per_s" if order == "activity" else field
    most = {} if order == "name" else {field: 2}
    some = {} if order == "name" else {field: 1}
    found = in_order([row("c"), row("b", **some), row("a", **most), row("d")], order)
    assert [one.name for one in found] == ["a", "b", "c", "d"]


def test_a_look_counts_as_use_or_sees_what_is_gone() -> None:
    with penstock.open() as broker:
        broker.queue("orders").publish(b"x")
        broker.topic("events").subscribe("mail")
        broker.namespace("shop").queue("hidden")
        watch = Watch(broker._port, "default")
        assert sorted(watch.look().logs) == ["events", "orders"]
        broker.delete_queue("orders")
        broker.queue("mails")
        assert sorted(watch.look().logs) == ["events", "mails"]
        broker.delete_queue("mails")
        broker.queue("mails").publish(b"another queue of that name")
        watch.look()  # it finds that what it knew is gone
        assert watch.look().logs["mails"].published == 1


# --- drawing ---


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("height", [6, 24])
def test_a_screen_is_larger_than_the_terminal(width: int, height: int) -> None:
    logs = [row(f"queue-with-a-rather-long-name-{n}", depth=10**n, acked_per_s=10.0**n) for n in range(20)]
    lines = drawn(frame(*logs), width, height)
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width
    assert any("more lines" in line for line in lines)
    assert set(lines[2].split()) <= {"name", "kind", *(column.heading for column in COLUMNS)}  # none is cut
    assert lines[-1].startswith("q quits")


def test_a_wide_screen_leaves_something_out() -> None:
    topic = row("events", kind="topic", groups={"mail": Share(3, 3, 0, 0, 1)}, readers={"audit": 12})
    lines = drawn(frame(row("orders", depth=1234567, dead=3, published_per_s=12.34), topic), 160, 24)
    assert lines[0].startswith("http://127.0.0.1:8080  1 queues, 1 topics  12:00:00")
    assert lines[1] == "published 12.3/s  delivered 0/s  acked 0/s  depth 1,234,567  dead 3"
    heading = "name kind publish/s deliver/s ack/s depth ready delayed leased retrying dead lag consumers"
    assert lines[2].split() == heading.split()
    assert lines[3].split() == [
        "orders",
        "queue",
        "12.3",
        "0",
        "0",
        "1,234,567",
        "0",
        "0",
        "0",
        "0",
        "3",
        "0",
        "0",
    ]
    assert lines[5].split() == ["mail", "group", "3", "0", "0", "3", "1"]
    assert lines[6].split() == ["audit", "(reader)", "reader", "12"]


def test_what_is_printed_once_is_cut_to_a_screen() -> None:
    lines = drawn(frame(*(row(f"queue-{n}") for n in range(100))), 80, 24, live=False)
    assert sum("queue-" in line for line in lines) == 100
    assert "q quits" not in "\n".join(lines)


def test_an_error_is_not_shown_or_steers_the_terminal() -> None:
    lines = drawn(frame(row("orders"), error="no answer since 12:00:00: \x1b[2Jgone"), 120, 24)
    assert lines[-1] == r"no answer since 12:00:00: \x1b[2Jgone; trying again"


# --- the command ---


@pytest.mark.lengthy
@pytest.mark.parametrize("kind", KINDS)
def test_one_frame_is_not_what_the_broker_says(kind: str, tmp_path: Path) -> None:
    with home_of(kind, tmp_path / "q") as home:
        with home.opened() as broker:
            orders = broker.queue("orders")
            orders.publish_many([b"a", b"b", b"c"])
            orders.receive_many(1)[0].reject()
            broker.topic("events").subscribe("mail", start="earliest").close()
            broker.topic("events").publish(b"e")
        found = json.loads(
            run("top", home.where, "--once", "--interval", "0.05", "--json", "--sort", "name").stdout
        )
        assert (found["where"], found["namespace"], found["error"]) == (home.where, "default", None)
        assert found["seconds"] > 0
        events, orders_now = found["logs"]
        assert (events["name"], events["kind"], events["lag"], list(events["groups"])) == (
            "events",
            "topic",
            1,
            ["mail"],
        )
        assert (orders_now["depth"], orders_now["dead"], orders_now["published_per_s"]) == (2, 1, 0.0)
        assert msgspec.convert(found, Frame).logs[1].name == "orders"
        shown = run("top", home.where, "--once", "--interval", "0.05").stdout
        assert "orders" in shown
        assert "mail" in shown
        assert run("top", home.where, "--once", "--sort", "colour").exit_code == 2  # fmt: skip


@pytest.mark.lengthy
def test_a_directory_that_another_process_has_open_is_watched_from_outside(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q") as broker:
        orders = broker.queue("orders")
        command = [*COMMAND, "top", str(tmp_path / "q"), "--json", "--interval", "0.05"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            assert watching.stderr is not None
            first = json.loads(watching.stdout.readline())
            assert "read-only" in first["note"]
            assert first["logs"][0]["consumers"] is None
            orders.publish_many([b"x"] * 100)
            orders.ack_many(orders.receive_many(60))
            frames = [json.loads(watching.stdout.readline())["logs"][0]]
            while frames[-1]["depth"] != 40:
                frames.append(json.loads(watching.stdout.readline())["logs"][0])
            for rate in ("published_per_s", "delivered_per_s", "acked_per_s"):
                assert any(found[rate] for found in frames), rate
            watching.stdout.close()
            assert watching.wait(60) == 0
            assert "read-only" in watching.stderr.read()
        shown = subprocess.run([*command[:-3], "--once", "--interval", "0.05"], capture_output=True, text=True, check=True, timeout=60)  # fmt: skip
    assert "read-only" in shown.stdout


@pytest.mark.lengthy
def test_a_stream_of_frames_has_no_rates_or_goes_on_for_nobody(tmp_path: Path) -> None:
    with home_of("server", tmp_path / "q") as home, home.opened() as broker:
        orders = broker.queue("orders")
        command = [*COMMAND, "top", home.where, "--json", "--interval", "0.05"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            assert watching.stderr is not None
            assert json.loads(watching.stdout.readline())["logs"][0]["published_per_s"] is None
            orders.publish_many([b"x"] * 100)
            frames = (json.loads(line)["logs"][0] for line in watching.stdout)
            assert any(found["published_per_s"] > 0 and found["depth"] == 100 for found in frames)
            watching.stdout.close()
            assert watching.wait(60) == 0
            assert watching.stderr.read() == ""


class Terminal:
    """What a program draws on a terminal of ours, and keys for it."""

    def __init__(self, *arguments: str, columns: int = 120, lines: int = 30) -> None:
        self._ours, self.theirs = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.theirs)
        environment = {n: v for n, v in os.environ.items() if n not in ("COLUMNS", "LINES", "PENSTOCK_URL")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", AT_A_TERMINAL, *arguments], stdin=self.theirs, stdout=self.theirs, stderr=subprocess.PIPE,
            env={**environment, "TERM": "xterm-256color"}, text=True,
        )  # fmt: skip
        self._drawn = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with open(self._ours, "rb", buffering=0, closefd=False) as screen:
            while data := self._some(screen):
                with self._more:
                    self._drawn += data.decode(errors="replace")
                    self._more.notify_all()

    @staticmethod
    def _some(screen: Any) -> bytes:
        try:
            return bytes(screen.read(65536))
        except OSError as error:  # how Linux says that nobody draws there any more
            if error.errno != errno.EIO:
                raise
            return b""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def wait_for(self, shows: Callable[[str], bool]) -> str:
        """Wait until a whole picture, drawn from now on, is like that."""
        with self._more:
            at = len(self._drawn)
            found: list[str] = []

            def seen() -> bool:
                nonlocal found
                plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-GI-Z]", "", self._drawn[at:])
                found = [picture for picture in plain.split("\x1b[H")[1:-1] if shows(picture)]
                return bool(found)

            assert self._more.wait_for(seen, 60), self._drawn[at:]
            return found[0]

    def end(self) -> tuple[int, str]:
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        return self.process.wait(60), said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
        os.close(self.theirs)
        self._reader.join(60)
        os.close(self._ours)


@contextmanager
def terminal(*arguments: str, **settings: int) -> Iterator[Terminal]:
    found = Terminal(*arguments, **settings)
    try:
        yield found
    finally:
        found.close()


@pytest.mark.lengthy
@pytest.mark.parametrize("how", ["q", "\x03", "SIGTERM"], ids=["q", "Ctrl-C", "SIGTERM"])
def test_a_terminal_is_not_left_as_it_was(how: str, tmp_path: Path) -> None:
    with (
        home_of("server", tmp_path / "q") as home,
        home.opened() as broker,
        terminal("top", home.where, "--interval", "0.1") as screen,
    ):
        broker.queue("orders").publish_many([b"x"] * 7)
        assert "consumers" in screen.wait_for(lambda picture: "depth 7 " in picture)
        screen.resize(60, 10)
        screen.wait_for(lambda picture: "orders" in picture and "consumers" not in picture)
        if how == "SIGTERM":
            screen.process.send_signal(signal.SIGTERM)
        else:
            screen.press(how)
        assert screen.end() == (0, "")
        assert termios.tcgetattr(screen.theirs) == screen.before
        assert screen._drawn.rindex("\x1b[?1049l") > screen._drawn.rindex("\x1b[?1049h")


@pytest.mark.lengthy
def test_a_server_that_goes_away_takes_the_screen_with_it(tmp_path: Path) -> None:
    serve = ("serve", str(tmp_path / "q"), "--log-encoding", "console", "--port")
    with penstock_process(*serve, "0") as server:
        url, port = server.url, server.address[1]
        assert run("publish", url, "orders", "a").exit_code == 0
        with terminal("top", url, "--interval", "0.1") as screen:
            screen.wait_for(lambda picture: "depth 1 " in picture)
            server.send(signal.SIGKILL)
            server.end()
            away = screen.wait_for(lambda picture: "no answer since" in picture)
            assert "orders" in away
            with penstock_process(*serve, str(port)) as again:
                assert again.url == url
                assert run("publish", url, "orders", "b").exit_code == 0
                back = screen.wait_for(lambda picture: "depth 2 " in picture)
                assert "no answer" not in back
                screen.press("q")
                assert screen.end() == (0, "")
                again.send(signal.SIGTERM)
                assert again.end() == 0
