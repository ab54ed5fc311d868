"""Where a command's queues are: a directory or a server, and how either is said. The same commands do the same at both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.place import Place
from penstock.clock import SystemClock
from penstock.server.accounts import Accounts
from penstock.server.keys import Keys, Signer
from tests.server.process import penstock as penstock_process
from tests.unit.cli.places import KINDS, Home, home_of, run

pytestmark = pytest.mark.lengthy

SECRET = "a secret of thirty-two bytes, or more"
COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]

#: Every command that takes a place, and what comes behind it.
COMMANDS: list[list[str]] = [
    ["publish", "orders", "x"], ["receive", "orders"], ["peek", "orders"], ["queues"], ["stats"], ["stats", "orders"],
    ["purge", "orders", "--yes"], ["redrive", "orders"], ["top", "--once", "--interval", "0.05"],
    ["bench", "-n", "20", "--batch", "5", "--rate", "0"], ["alter", "orders", "--ttl", "60"],
]  # fmt: skip


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    with home_of(request.param, tmp_path / "q") as found:
        yield found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Home]:
    with home_of("server", tmp_path / "q") as found:
        yield found


def token(*permissions: str, namespace: str = "default") -> str:
    claims = {"namespaces": [namespace], "permissions": list(permissions), "exp": 2**33}
    return Signer.from_secret(SECRET).sign(claims)


# --- the same at both ---


def test_a_message_is_lost_on_its_way_through_the_commands(home: Home) -> None:
    sent = run("publish", home.where, "orders", "grüße", "-H", "type=order", "--key", "k", "--priority", "7")
    assert (sent.exit_code, sent.stderr) == (0, "")
    (seen,) = [json.loads(line) for line in run("peek", home.where, "orders", "--json").stdout.splitlines()]
    (got,) = [json.loads(line) for line in run("receive", home.where, "orders", "--json").stdout.splitlines()]
    assert got.pop("attempt") == 1
    assert seen == got
    assert (got["id"], got["payload"]["text"], got["key"]) == (int(sent.stdout), "grüße", "k")
    assert (got["headers"], got["priority"]) == ({"type": "order"}, 7)
    assert run("receive", home.where, "orders").exit_code == 1


def test_lines_are_lost_or_joined_on_their_way(home: Home) -> None:
    lines = b"\n".join(b"%d" % n for n in range(5_000))
    published = run("publish", home.where, "orders", "--lines", given=lines)
    assert published.stdout == "Published 5,000 messages.\n"
    assert run("receive", home.where, "orders", "-n", "5000", "--raw").stdout_bytes == lines + b"\n"


def test_stats_of_a_place_are_others_than_the_brokers(home: Home) -> None:
    with home.opened() as broker:
        broker.queue("orders").publish_many([b"a", b"b"])
        broker.queue("orders").group("billing")
    assert json.loads(run("stats", home.where, "--json").stdout)["journal"]["segments"] == 1
    found = json.loads(run("stats", home.where, "orders", "--json").stdout)
    assert (found["depth"], found["published"], sorted(found["groups"])) == (2, 2, ["billing", "default"])
    shown = run("stats", home.where, "orders").stdout
    assert "billing: lag 2" in shown
    assert "GroupStats" not in shown
    assert home.where in run("stats", home.where).stdout


def test_purge_and_redrive_do_something_else_at_a_server(home: Home) -> None:
    with home.opened() as broker:
        orders = broker.queue("orders")
        orders.publish_many([b"a", b"b", b"c"])
        for delivery in orders.receive_many(3):
            delivery.reject(error=f"no {delivery.payload.decode()}")
    assert run("redrive", home.where, "orders", "--where", "x-error = 'no b'").stdout == "Moved 1 messages.\n"
    assert run("redrive", home.where, "orders.dlq").stdout == "Moved 2 messages.\n"
    asked = run("purge", home.where, "orders")
    assert (asked.exit_code, f"penstock purge --yes {home.where} orders\n" in asked.stdout) == (1, True)
    assert run("purge", home.where, "orders", "--yes").stdout == "Removed 3 messages.\n"


@pytest.mark.parametrize("function", ["handle", "handle_aio"])
def test_a_worker_stops_early_or_leaves_something(home: Home, function: str, tmp_path: Path) -> None:
    (tmp_path / "shop_at_a_place.py").write_text(
        "def handle(delivery):\n    print(delivery.payload.decode(), flush=True)\n"
        "async def handle_aio(delivery):\n    handle(delivery)\n"
    )
    run("publish", home.where, "orders", "a", "--namespace", "shop")
    command = [*COMMAND, "work", home.where, "orders", f"shop_at_a_place:{function}", "--namespace", "shop"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as working:
        assert working.stdout is not None
        assert working.stdout.readline() == "a\n"
        working.send_signal(signal.SIGTERM)
        out, _ = working.communicate(timeout=60)
    assert (working.returncode, out) == (0, "Processed 1, failed 0, lost 0.\n")
    assert run("receive", home.where, "orders", "--namespace", "shop").exit_code == 1


@pytest.mark.parametrize("function", ["handle", "handle_aio"])
def test_a_worker_makes_the_queue_that_it_waits_for(home: Home, function: str, tmp_path: Path) -> None:
    (tmp_path / "shop_that_waits.py").write_text(
        "def handle(delivery): pass\nasync def handle_aio(delivery): pass\n"
    )
    command = [*COMMAND, "work", home.where, "orders", f"shop_that_waits:{function}"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as working:
        assert working.stderr is not None
        assert "working on 'orders'" in working.stderr.readline()
        working.kill()
    assert [one["name"] for one in json.loads(run("queues", home.where, "--json").stdout)] == ["orders"]


def test_a_namespace_sees_another_one(home: Home) -> None:
    run("publish", home.where, "orders", "mine", "--namespace", "shop")
    assert run("peek", home.where, "orders").exit_code == 2
    assert "payload=mine" in run("peek", home.where, "orders", "--namespace", "shop").stdout
    assert json.loads(run("queues", home.where, "--json").stdout) == []
    (found,) = json.loads(run("queues", "--json", home.where, "--namespace", "shop").stdout)
    assert found["name"] == "orders"
    asked = run("purge", home.where, "orders", "--namespace", "shop").stdout
    assert f"penstock purge --yes {home.where} --namespace shop orders\n" in asked
    assert run("redrive", home.where, "orders", "--namespace", "shop").stdout == "Moved 0 messages.\n"
    assert run("queues", home.where, "--namespace", "no such").exit_code == 2


@pytest.mark.parametrize("command", [c for c in COMMANDS if c[0] not in ("publish", "bench")], ids=" ".join)
def test_a_look_at_a_server_makes_a_queue(command: list[str], served: Home) -> None:
    result = run(command[0], served.where, *command[1:])
    assert result.exit_code == (2 if "orders" in command else 0)
    with served.opened() as broker:
        assert broker.list_queues() == []


# --- saying where ---


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_does_not_take_a_server_in_each_of_its_ways(command: list[str], served: Home) -> None:
    with served.opened() as broker:
        broker.queue("orders").publish_many([b"a"] * 10)
    name, *rest = command
    ways: list[tuple[list[str], dict[str, Any]]] = [
        ([name, served.where, *rest], {}),
        ([name, "--url", served.where, *rest], {}),
        ([name, *rest, f"--url={served.where}"], {"PENSTOCK_URL": "http://nowhere.invalid"}),
        ([name, *rest], {"PENSTOCK_URL": served.where}),
    ]
    for arguments, variables in ways:
        result = run(*arguments, **variables)
        assert (result.exit_code, result.stderr) == (0, ""), arguments


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_directory_that_is_given_is_not_what_is_used(command: list[str], tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q") as broker:
        broker.queue("orders").publish_many([b"a"] * 10)
    result = run(command[0], tmp_path / "q", *command[1:], PENSTOCK_URL="http://nowhere.invalid")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_plain_word_is_a_queue_or_a_directory_by_chance(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with penstock.open("orders") as broker:
        broker.queue("inside").publish(b"in the directory")
    with served.opened() as broker:
        broker.queue("orders").publish(b"at the server")
    everywhere: dict[str, Any] = {"PENSTOCK_URL": served.where}
    assert "at the server" in run("peek", "orders", **everywhere).stdout
    assert "in the directory" in run("peek", "./orders", "inside", **everywhere).stdout
    assert "in the directory" in run("peek", "orders", "inside").stdout
    assert "inside" in run("queues", "orders", **everywhere).stdout  # nothing else could be meant there
    assert json.loads(run("stats", "orders", "--json", **everywhere).stdout)["published"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["queues", "--url", "http://127.0.0.1:9", "./data"], "Give one of --url and './data'"),
        (["peek", "--url", "http://127.0.0.1:9", "http://127.0.0.1:8", "orders"], "Give one of"),
        (["queues"], "Missing argument 'DIR|URL'"),
        (["publish", "localhost:8080", "orders", "x"], "did you mean http://localhost:8080?"),
        (["publish", "127.0.0.1:8080/", "orders", "x"], "did you mean http://127.0.0.1:8080/?"),
        (["queues", "amqp://localhost"], "amqp:// is not spoken here"),
        (["queues", "http://"], "is not an address"),
        (["queues", "http://localhost:99999"], "is not an address"),
        (["queues", "--url", "./data"], "does not exist"),
        (["journal", "info", "http://localhost"], "reads the files of a directory"),
        (["journal", "verify", "https://localhost:8080/"], "reads the files of a directory"),
        (["journal", "repair", "http://localhost"], "reads the files of a directory"),
        (["journal", "dump", "http://localhost"], "reads the files of a directory"),
        (["pipeline", "audit", "http://localhost"], "reads the files of a directory"),
        (["pipeline", "report", "http://localhost", "out"], "reads the files of a directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_place_that_is_none_is_not_explained_or_made(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_is_a_traceback(tmp_path: Path) -> None:
    for command in COMMANDS:
        result = run(command[0], "http://127.0.0.1:9", *command[1:])
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), command
        assert "no server answers at http://127.0.0.1:9" in result.stderr


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c[0] not in ("peek", "queues", "stats", "top")], ids=" ".join
)
def test_whoever_finds_a_directory_in_use_is_not_told_of_servers(command: list[str], tmp_path: Path) -> None:
    with penstock.open(tmp_path / "q") as broker:
        broker.queue("orders")
        done = subprocess.run(
            [*COMMAND, command[0], str(tmp_path / "q"), *command[1:]],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"process {os.getpid()}" in done.stderr
    assert "give its address in place of the directory" in done.stderr


def test_a_certificate_is_trusted_unasked_or_not_when_asked(tmp_path: Path) -> None:
    serve = ("serve", str(tmp_path / "q"), "--port", "0", "--tls-self-signed", "--log-encoding", "console")
    with penstock_process(*serve) as server:
        refused = run("queues", server.url)
        assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
        assert "is not trusted" in refused.stderr
        certificate = tmp_path / "q" / "tls" / "self-signed-cert.pem"
        assert run("queues", server.url, "--ca", certificate).exit_code == 0
        assert run("queues", server.url, PENSTOCK_CA=str(certificate)).exit_code == 0
        assert run("queues", server.url, "--no-verify").exit_code == 0
        assert run("queues", server.url, "--ca", tmp_path / "nowhere.pem").exit_code == 2


# --- tokens ---


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Home]:
    accounts = Accounts(Keys.from_secret(SECRET), clock=SystemClock())
    with home_of("server", tmp_path / "q", accounts=accounts) as found:
        with found.opened() as broker:
            broker.queue("orders")
        yield found


def test_a_token_is_not_taken_from_where_it_is_given(guarded: Home) -> None:
    good = token("publish", "consume")
    refused = run("publish", guarded.where, "orders", "x")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert run("publish", guarded.where, "orders", "x", "--token", good).exit_code == 0
    assert run("receive", guarded.where, "orders", PENSTOCK_TOKEN=good).exit_code == 0
    other = token("consume", namespace="shop")
    assert run("peek", guarded.where, "orders", "--token", other, PENSTOCK_TOKEN=good).exit_code == 2


def test_who_may_publish_must_be_able_to_look(guarded: Home) -> None:
    assert run("publish", guarded.where, "orders", "x", PENSTOCK_TOKEN=token("publish")).exit_code == 0
    assert run("peek", guarded.where, "orders", PENSTOCK_TOKEN=token("publish")).exit_code == 2


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_token_or_a_password_is_shown(command: list[str], guarded: Home) -> None:
    bad = token("consume", namespace="elsewhere") + "tampered"
    for arguments in (
        [command[0], guarded.where, *command[1:], "--token", bad],
        [command[0], guarded.where, *command[1:], "--token", "not a token: hush"],
        [command[0], "http://me:hush@127.0.0.1:9", *command[1:]],
        [command[0], "https://hush@127.0.0.1:9", *command[1:]],
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert bad not in result.stderr
        assert "hush" not in result.stderr
    assert bad not in repr(Place.of(guarded.where, token=bad))
    assert bad not in run(command[0], "--help", PENSTOCK_TOKEN=bad).stdout
