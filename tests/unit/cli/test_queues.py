"""What `penstock publish|receive|peek|stats|purge|redrive|queues|work` do, print and leave behind, and how they exit."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock.cli.app import app
from penstock.cli.output import answering

pytestmark = pytest.mark.lengthy

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]

LOOKING: list[list[str]] = [
    ["receive", "orders"], ["peek", "orders"], ["stats"], ["stats", "orders"], ["purge", "orders", "--yes"],
    ["redrive", "orders"], ["queues"], ["work", "orders", "os:getpid"],
]  # fmt: skip


def run(*arguments: object, given: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], input=given)


def process(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60, **settings
    )


def without(closed: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command for which a shell closes some of its streams."""
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND, *map(str, arguments)]
    return subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)


def on(path: Path, command: list[str]) -> list[str]:
    return [command[0], str(path), *command[1:]]


def answers(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with three orders."""
    with penstock.open(tmp_path / "q") as broker:
        broker.queue("orders").publish_many([b"a", b"b", b"c"])
    return tmp_path / "q"


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    """A directory with three dead letters."""
    with penstock.open(tmp_path / "q") as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a", b"b", b"c"])
        for delivery in orders.receive_many(3):
            delivery.reject(error=f"no {delivery.payload.decode()}")
    return tmp_path / "q"


def payloads(path: Path, queue: str = "orders") -> list[bytes]:
    with penstock.open(path) as broker:
        return [message.payload for message in broker.get_queue(queue).peek(100)]


# --- looking creates nothing ---


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_a_look_makes_a_directory_or_a_journal(command: list[str], tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        result = run(*on(path, command))
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [c for c in LOOKING if len(c) > 1 and c[0] != "work"], ids=" ".join)
def test_a_look_makes_a_queue(command: list[str], tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q") as broker:
        broker.queue("others")
    result = run(*on(tmp_path / "q", command))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the queue 'orders' does not exist; create it" in result.stderr
    assert "(" not in result.stderr
    with penstock.open(tmp_path / "q") as broker:
        assert broker.list_queues() == ["others"]


def test_a_redrive_without_dead_letters_makes_some(place: Path) -> None:
    assert run("redrive", place, "orders").stdout == "Moved 0 messages.\n"
    with penstock.open(place) as broker, pytest.raises(penstock.QueueNotFound):
        broker.get_queue("orders.dlq")


def only_looks(command: list[str]) -> bool:
    return command[0] in ("peek", "stats", "queues")


@pytest.mark.parametrize(
    "command", [*(c for c in LOOKING if not only_looks(c)), ["publish", "orders", "x"]], ids=" ".join
)
def test_a_directory_in_use_is_a_traceback_or_does_not_say_who_has_it(
    command: list[str], place: Path
) -> None:
    with penstock.open(place):
        result = process(*on(place, command))
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"process {os.getpid()}" in result.stderr


@pytest.mark.parametrize("command", [c for c in LOOKING if only_looks(c)], ids=" ".join)
def test_a_look_at_a_directory_in_use_shows_what_its_journal_says(command: list[str], place: Path) -> None:
    alone = process(*on(place, [*command, "--json"]))
    with penstock.open(place) as broker:
        looked = process(*on(place, [*command, "--json"]))
        shown = process(*on(place, command))
        assert broker.get_queue("orders").depth() == 3
    for result in (looked, shown):
        assert (result.returncode, result.stderr.count("\n")) == (0, 1)
        assert f"process {os.getpid()}" in result.stderr
        assert "its journal says, read-only" in result.stderr
    if command != ["stats"]:
        assert looked.stdout == alone.stdout


@pytest.mark.parametrize("command", [["stats"], ["stats", "orders"], ["queues"]], ids=" ".join)
def test_stats_of_a_directory_leave_out_what_only_a_running_broker_knows(
    command: list[str], place: Path
) -> None:
    with penstock.open(place) as broker:
        broker.get_queue("orders").receive_many(1)[0].ack()
    text = run(*on(place, command)).stdout + run(*on(place, [*command, "--json"])).stdout
    assert not [name for name in ("delivered", "acked", "consumers", "waiting", "written") if name in text]
    if command == ["stats", "orders"]:
        assert json.loads(run(*on(place, [*command, "--json"])).stdout)["published"] == 3


# --- publish ---


def test_publish_loses_what_is_said_of_a_message(tmp_path: Path) -> None:
    path = tmp_path / "q"
    result = run(
        "publish", path, "orders", "grüße", "-H", "type=order", "--header", "a=b=c", "--key", "k",
        "--priority", "7", "--ttl", "60", "--dedup-id", "d",
    )  # fmt: skip
    assert result.exit_code == 0
    again = run("publish", path, "orders", "twice", "--dedup-id", "d", "--json")
    assert json.loads(again.stdout) == {"queue": "orders", "id": int(result.stdout)}
    with penstock.open(path) as broker:
        (message,) = broker.get_queue("orders").peek(10)
    assert (message.payload, message.key, message.priority) == ("grüße".encode(), "k", 7)
    assert message.headers == {"type": "order", "a": "b=c"}
    assert message.expires_at is not None


def test_publish_with_a_delay_can_be_received_at_once(tmp_path: Path) -> None:
    assert run("publish", tmp_path / "q", "orders", "later", "--delay", "3600").exit_code == 0
    (found,) = json.loads(run("queues", tmp_path / "q", "--json").stdout)
    assert (found["delayed"], found["ready"]) == (1, 0)


def test_publish_changes_bytes_of_stdin_or_of_a_file(tmp_path: Path) -> None:
    binary = bytes(range(256)) + b"\n"
    (tmp_path / "file").write_bytes(binary)
    assert run("publish", tmp_path / "q", "orders", "-", given=binary).exit_code == 0
    assert run("publish", tmp_path / "q", "orders", "--file", tmp_path / "file").exit_code == 0
    assert payloads(tmp_path / "q") == [binary, binary]


def test_publish_of_lines_loses_or_joins_some(tmp_path: Path) -> None:
    lines = [b"%d" % n * (n % 50) for n in range(50_000)]
    result = run("publish", tmp_path / "q", "orders", "--lines", "--priority", "3", given=b"\n".join(lines))
    assert (result.exit_code, result.stdout) == (0, "Published 50,000 messages.\n")
    with penstock.open(tmp_path / "q") as broker:
        found = broker.get_queue("orders").receive_many(100_000)
    assert [delivery.payload for delivery in found] == lines
    assert {delivery.priority for delivery in found} == {3}


def test_publish_of_lines_waits_for_the_end_of_the_pipe(tmp_path: Path) -> None:
    command = [*COMMAND, "publish", str(tmp_path / "q"), "orders", "--lines"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as publishing:
        assert publishing.stdin is not None
        publishing.stdin.write(b"first\n")
        publishing.stdin.flush()
        dump = ["journal", "dump", tmp_path / "q", "--kind", "messages", "--json"]
        while '"text":"first"' not in process(*dump).stdout:  # until it is there, or the test's time is over
            assert publishing.poll() is None
        out, _ = publishing.communicate(b"second")
    assert (publishing.returncode, out) == (0, b"Published 2 messages.\n")


def test_publish_reads_lines_from_a_pipe_or_a_file_without_a_flag(tmp_path: Path) -> None:
    piped = process("publish", tmp_path / "q", "orders", input="a\nb\n")
    assert (piped.returncode, piped.stdout) == (0, "Published 2 messages.\n")
    (tmp_path / "file").write_text("c\nd")
    shell = without(f"< {tmp_path / 'file'}", "publish", tmp_path / "q", "orders")
    assert (shell.returncode, shell.stdout) == (0, "Published 2 messages.\n")
    assert process("publish", tmp_path / "q", "orders", "given", input="x\ny\n").returncode == 0
    assert process("publish", tmp_path / "q", "orders", "-", input="one\nmessage").returncode == 0
    assert payloads(tmp_path / "q") == [b"a", b"b", b"c", b"d", b"given", b"one\nmessage"]
    nothing = without("< /dev/null", "publish", tmp_path / "q", "orders")
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1)
    assert "nothing to publish" in nothing.stderr


def test_publish_of_lines_that_fails_half_way_does_not_say_how_many(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x\n" * 600_000 + b"y" * 2_000_000)
    result = run("publish", tmp_path / "q", "orders", "--lines", "--file", tmp_path / "file")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "600000 messages were published before this" in result.stderr
    assert "max_message_bytes" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["orders"], ["orders", "x", "--file", "f"], ["orders", "x", "--lines"], ["bad name", "x"], ["orders.dlq", "x"],
        ["orders", "x", "--header", "novalue"], ["orders", "x", "--header", "=v"], ["orders", "x", "--priority", "256"],
        ["orders", "x", "--delay", "-1"], ["orders", "x", "--delay", "9", "--ttl", "3"], ["orders", "--file", "nowhere"],
        ["orders", "-", "--lines", "--dedup-id", "d"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_publish_used_wrongly_makes_a_directory(arguments: list[str], tmp_path: Path) -> None:
    assert run("publish", tmp_path / "q", *arguments).exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["-"], ["--lines"]])
def test_publish_from_a_closed_stdin_is_a_traceback_or_makes_a_directory(
    arguments: list[str], tmp_path: Path
) -> None:
    done = without("<&-", "publish", tmp_path / "q", "orders", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "standard input is closed" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_publish_needs_the_streams_that_it_does_not_use(closed: str, tmp_path: Path) -> None:
    done = without(closed, "publish", tmp_path / "q", "orders", "a")
    assert (done.returncode, done.stderr) == (0, "")
    assert payloads(tmp_path / "q") == [b"a"]


# --- receive and peek ---


def test_receive_leaves_what_it_printed(place: Path) -> None:
    result = run("receive", place, "orders", "-n", "2")
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["id", "published", "attempt", "priority", "message"]
    assert [line.split()[-1] for line in lines] == ["payload=a", "payload=b"]
    assert payloads(place) == [b"c"]


def test_receive_without_ack_takes_messages_away(place: Path) -> None:
    first = answers(run("receive", place, "orders", "-n", "5", "--no-ack", "--json"))
    assert [base64.b64decode(one["payload"]["base64"]) for one in first] == [b"a", b"b", b"c"]
    assert payloads(place) == [b"a", b"b", b"c"]
    (again,) = answers(run("receive", place, "orders", "--json"))
    assert (again["id"], again["attempt"]) == (first[0]["id"], 2)


def test_receive_of_nothing_exits_0(place: Path) -> None:
    assert run("receive", place, "orders", "-n", "9").exit_code == 0
    result = run("receive", place, "orders", "--wait", "0.01")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")


def test_raw_payloads_do_not_come_through_a_pipe_of_lines(place: Path) -> None:
    raw = run("receive", place, "orders", "-n", "3", "--raw")
    assert raw.stdout_bytes == b"a\nb\nc\n"
    run("publish", place, "orders", "--lines", given=raw.stdout_bytes)
    assert payloads(place) == [b"a", b"b", b"c"]


def test_receive_waits_in_vain_for_a_delayed_message(tmp_path: Path) -> None:
    run("publish", tmp_path / "q", "orders", "soon", "--delay", "0.05")
    result = run("receive", tmp_path / "q", "orders", "--wait", "60", "--raw")
    assert (result.exit_code, result.stdout) == (0, "soon\n")


def test_follow_ends_before_it_is_interrupted_or_with_a_traceback(place: Path) -> None:
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heeding}; {COMMAND[-1]}", "receive", str(place), "orders", "--follow", "--raw"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert [following.stdout.readline() for _ in range(3)] == ["a\n", "b\n", "c\n"]
        following.send_signal(signal.SIGINT)
        assert (following.wait(60), following.stderr.read()) == (130, "")


def test_an_error_that_follows_from_an_interrupt_hides_it(tmp_path: Path) -> None:
    failure = penstock.JournalFailed("the consumer could not be closed")
    failure.__context__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), answering(tmp_path):
        raise failure


def test_what_nobody_reads_is_acknowledged(place: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "receive", str(place), "orders", "-n", "3"], stdout=writing, check=False, timeout=60
    )
    os.close(writing)
    assert done.returncode == 1  # nothing was received by anybody
    assert payloads(place) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("how", [[], ["--json"], ["--raw", "-n", "3"], ["--no-ack"], ["--follow"]])
def test_what_is_received_without_a_stdout_is_acknowledged(place: Path, how: list[str]) -> None:
    done = without(">&-", "receive", place, "orders", *how)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in done.stderr
    (first, *_) = answers(run("receive", place, "orders", "-n", "3", "--json"))
    assert first["attempt"] == 1


@pytest.mark.parametrize("command", [["peek", "orders"], ["stats"], ["queues"]])
def test_a_look_without_a_stdout_is_an_error(place: Path, command: list[str]) -> None:
    done = without(">&-", *on(place, command))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_what_could_not_be_written_is_acknowledged(place: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "receive", str(place), "orders"], stdout=full, stderr=subprocess.PIPE, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (2, b"penstock: standard output: No space left on device\n")
    assert payloads(place) == [b"a", b"b", b"c"]


def test_receive_takes_both_json_and_raw(place: Path) -> None:
    assert run("receive", place, "orders", "--json", "--raw").exit_code == 2
    assert payloads(place) == [b"a", b"b", b"c"]


def test_peek_takes_something_or_lets_a_payload_steer_the_terminal(place: Path) -> None:
    run("publish", place, "orders", "\x1b[2Jgone", "--priority", "0", "--key", "k\x1b[2J")
    result = run("peek", place, "orders")
    assert "\x1b" not in result.stdout
    assert len(result.stdout.splitlines()) == 5
    found = answers(run("peek", place, "orders", "-n", "2", "--json"))
    assert [one["payload"]["text"] for one in found] == ["\x1b[2Jgone", "a"]
    assert len(payloads(place)) == 4


# --- queues, stats, purge ---


def test_queues_and_stats_disagree_with_the_broker(failed: Path) -> None:
    run("publish", failed, "orders", "x")
    run("publish", failed, "mails", "y")
    found = json.loads(run("queues", failed, "--json").stdout)
    assert [(one["name"], one["depth"], one["ready"], one["dead"]) for one in found] == [
        ("mails", 1, 1, 0),
        ("orders", 1, 1, 3),
    ]
    shown = run("queues", failed).stdout
    assert "orders" in shown
    assert "retrying" in shown
    assert json.loads(run("stats", failed, "orders", "--json").stdout) == found[1]
    assert json.loads(run("stats", failed, "--json").stdout)["journal"]["damaged_messages"] == 0
    assert "journal bytes" in run("stats", failed).stdout
    assert "next offset" in run("stats", failed, "orders").stdout


def test_purge_without_yes_removes_something(place: Path) -> None:
    result = run("purge", place, "orders")
    assert result.exit_code == 1
    assert result.stdout.startswith("3 messages would be removed.")
    assert len(payloads(place)) == 3
    assert run("purge", place, "orders", "--yes").stdout == "Removed 3 messages.\n"
    assert run("purge", place, "orders").exit_code == 0
    assert payloads(place) == []


# --- redrive ---


def test_redrive_moves_too_many_or_too_few(failed: Path) -> None:
    first = run("redrive", failed, "orders", "--where", "x-error = 'no b'", "--json")
    assert json.loads(first.stdout) == {"queue": "orders", "moved": 1}
    assert payloads(failed) == [b"b"]
    assert run("redrive", failed, "orders.dlq", "--limit", "1").stdout == "Moved 1 messages.\n"
    assert run("redrive", failed, "orders", "--rate", "1000").stdout == "Moved 1 messages.\n"
    assert sorted(payloads(failed)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("wrong", [["--where", "x-error LIKE"], ["--to", "nowhere"], ["--rate", "0"], ["--limit", "0"]])  # fmt: skip
def test_redrive_used_wrongly_moves_something(failed: Path, wrong: list[str]) -> None:
    result = run("redrive", failed, "orders", *wrong)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(payloads(failed, "orders.dlq")) == 3


# --- work ---

SHOP = """
import asyncio, functools, sys, threading
import penstock
import penstock.broker.worker

penstock.broker.worker.GRACE_S = 0.01

def handle(delivery):
    print("begun", delivery.payload.decode(), flush=True)
    if delivery.payload == b"bad":
        raise penstock.Reject("bad one")
    sys.stdin.readline()

async def handle_aio(delivery):
    await asyncio.to_thread(handle, delivery)

@functools.wraps(handle_aio)
def handle_traced(delivery):
    return handle_aio(delivery)

async def handle_deaf(delivery):
    print("begun", delivery.payload.decode(), flush=True)
    while True:
        try:
            await asyncio.sleep(1000)
        except:
            pass

async def handle_stuck(delivery):
    print("begun", delivery.payload.decode(), flush=True)
    await asyncio.to_thread(threading.Event().wait)

number = 7
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop_of_test.py").write_text(SHOP)
    (tmp_path / "broken_of_test.py").write_text("import no_such_module_at_all\n")
    return tmp_path


@pytest.mark.parametrize("function", ["handle", "handle_aio", "handle_traced"])
def test_sigterm_breaks_off_what_is_in_hand(place: Path, shop: Path, function: str) -> None:
    run("publish", place, "orders", "bad", "--priority", "0")
    command = [
        *COMMAND,
        "work",
        str(place),
        "orders",
        f"shop_of_test:{function}",
        "--prefetch",
        "4",
        "--json",
    ]
    with subprocess.Popen(
        command, cwd=shop, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as working:
        assert working.stdout is not None
        assert working.stderr is not None
        assert [working.stdout.readline() for _ in range(2)] == ["begun bad\n", "begun a\n"]
        assert "working on 'orders'" in working.stderr.readline()
        working.send_signal(signal.SIGTERM)
        assert "SIGTERM" in working.stderr.readline()
        out, err = working.communicate("go on\n", timeout=60)
    assert (working.returncode, err) == (0, "")
    expected = {"queue": "orders", "processed": 1, "failed": 1, "lost": 0, "finished": True}
    assert json.loads(out) == expected
    assert payloads(place) == [b"b", b"c"]
    assert payloads(place, "orders.dlq") == [b"bad"]


@pytest.mark.parametrize("function", ["handle", "handle_aio", "handle_deaf", "handle_stuck"])
def test_a_second_signal_waits_or_exits_0(place: Path, shop: Path, function: str) -> None:
    command = [*COMMAND, "work", str(place), "orders", f"shop_of_test:{function}", "-c", "2"]
    with subprocess.Popen(
        command, cwd=shop, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as working:
        assert working.stdout is not None
        assert working.stderr is not None
        assert {working.stdout.readline() for _ in range(2)} == {"begun a\n", "begun b\n"}
        working.stderr.readline()
        for said in ("SIGINT", "again"):
            working.send_signal(signal.SIGINT)
            assert said in working.stderr.readline()
        assert working.wait(60) == 130
        said = working.stderr.read()
        assert (
            ("2 handlers of 'orders' have not ended" in said) if function == "handle_deaf" else (said == "")
        )
    assert payloads(place) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("shop_of_test", "is not MODULE:FUNCTION"),
        ("shop_of_test:", "is not MODULE:FUNCTION"),
        ("shop_of_test:nothing", "there is no function 'nothing'"),
        ("shop_of_test:number", "there is no function 'number'"),
        ("no_such_shop.orders:handle", "there is no module 'no_such_shop.orders'"),
        ("broken_of_test:handle", "No module named 'no_such_module_at_all'"),
    ],
)
def test_a_function_that_is_not_there_is_a_traceback(
    place: Path, shop: Path, function: str, said: str
) -> None:
    result = process("work", place, "orders", function, cwd=shop)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert said in result.stderr


# --- the commands themselves ---


@pytest.mark.parametrize(
    "command", ["publish", "receive", "peek", "stats", "purge", "redrive", "queues", "work"]
)
def test_help_has_examples(command: str) -> None:
    assert f"penstock {command} ./queue" in run(command, "--help").stdout
