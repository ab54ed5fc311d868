"""What `penstock create`, `alter` and `delete` make of their options, and how they exit."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock.cli.policies import FIELDS
from penstock.policy import Policy
from tests.unit.cli.places import KINDS, Home, home_of, run

pytestmark = pytest.mark.lengthy

#: An option for each field of a policy, and what it says.
EVERY = {
    "visibility_timeout": ("2m", 120.0), "max_attempts": ("none", None), "dead_letter": ("failures", "failures"), "ttl": ("1h30m", 5400.0),
    "backoff": ("initial=2,maximum=10", {"initial": 2.0, "factor": 2.0, "maximum": 10.0, "jitter": 0.1}),
    "on_expire": ("dead-letter", "dead-letter"), "max_depth": ("1000", 1000), "max_bytes": ("1GiB", 1 << 30),
    "overflow": ("drop-head", "drop-head"), "max_message_bytes": ("64KiB", 65536), "ordering": ("key", "key"),
    "delivery": ("exactly-once", "exactly-once"), "dedup_window": ("60", 60.0), "retain": ("until-archived", "until-archived"),
    "retain_seconds": ("7d", 604_800.0), "retain_bytes": ("1MB", 1_000_000), "strategy": ("least-busy", "least-busy"),
    "durable": (None, True), "expires": ("90", 90.0), "single_active": (None, False),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    with home_of(request.param, tmp_path / "q") as found:
        yield found


def options() -> list[str]:
    given = []
    for name, (text, value) in EVERY.items():
        flag = name.replace("_", "-")
        given += [f"--{flag}" if value else f"--no-{flag}"] if text is None else [f"--{flag}", text]
    return given


def test_every_field_of_a_policy_has_an_option(home: Home) -> None:
    assert list(FIELDS) == list(Policy.__struct_fields__)
    assert set(EVERY) == set(FIELDS)
    made = run("create", home.where, "orders", *options(), "--json")
    assert (made.exit_code, made.stderr) == (0, "")
    wanted = {name: value for name, (_, value) in EVERY.items()}
    assert json.loads(made.stdout) == {"queue": "orders", "namespace": "default", "policy": wanted}
    with home.opened() as broker:
        assert msgspec.to_builtins(broker.get_queue("orders")._log.policy) == wanted
    again = run("create", home.where, "orders")
    assert (again.exit_code, again.stdout, again.stderr.count("\n")) == (2, "", 1)
    assert "exists already" in again.stderr


def test_alter_changes_what_is_given_and_says_what_was(home: Home) -> None:
    assert run("create", home.where, "events", "--topic", "--ttl", "60").stdout == "Made the topic events.\n"
    changed = run("alter", home.where, "events", "--topic", "--ttl", "none", "--max-depth", "9", "--durable")
    assert (changed.exit_code, changed.stdout) == (0, "ttl: 60 → none\nmax-depth: none → 9\n")
    assert "so already" in run("alter", home.where, "events", "--topic", "--max-depth", "9").stdout
    with home.opened() as broker:
        found = broker.get_topic("events")._log.policy
        assert (found.ttl, found.max_depth, found.max_attempts) == (None, 9, 3)


def test_delete_deletes_only_with_yes(home: Home) -> None:
    run("publish", home.where, "orders", "x", "--namespace", "shop")
    asked = run("delete", home.where, "orders", "--namespace", "shop")
    assert (asked.exit_code, "with 1 messages. Nothing was changed" in asked.stdout) == (1, True)
    assert f"penstock delete --yes {home.where} --namespace shop orders\n" in asked.stdout
    assert run("delete", home.where, "orders", "--namespace", "shop", "--topic", "--yes").exit_code == 2
    assert len(json.loads(run("queues", home.where, "--namespace", "shop", "--json").stdout)) == 1
    deleted = run("delete", home.where, "orders", "--namespace", "shop", "--yes")
    assert (deleted.exit_code, deleted.stdout) == (0, "Deleted the queue orders with 1 messages.\n")
    assert run("queues", home.where, "--namespace", "shop", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "orders", "--ttl", "soon"], "--ttl is 'soon'; give a length of time"),
        (["create", "orders", "--max-bytes", "many"], "--max-bytes is 'many'; give a number of bytes"),
        (["create", "orders", "--backoff", "5"], "--backoff is '5'; give initial=SECONDS"),
        (["create", "orders", "--ordering", "lifo"], "give one of 'fifo', 'key'"),
        (["create", "orders", "--delivery", "exactly-once", "--no-durable"], "durable is off"),
        (["create", "orders.dlq"], "reserved for dead letters"),
        (["alter", "orders"], "there is nothing to change"),
        (["alter", "orders", "--ttl", "5"], "does not exist"),
        (["delete", "orders", "--yes"], "does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_one_line_and_changes_nothing(home: Home, arguments: list[str], said: str) -> None:
    command, *rest = arguments
    result = run(command, home.where, *rest)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert said in result.stderr
    assert run("queues", home.where, "--json").stdout == "[]\n"


def test_create_makes_a_directory_and_the_others_do_not(tmp_path: Path) -> None:
    for command in (["alter", "orders", "--ttl", "5"], ["delete", "orders", "--yes"]):
        assert run(command[0], tmp_path / "q", *command[1:]).exit_code == 2
    assert list(tmp_path.iterdir()) == []
    assert run("create", tmp_path / "q", "orders").exit_code == 0
    with penstock.open(tmp_path / "q") as broker:
        assert broker.list_queues() == ["orders"]


def test_help_names_units_and_defaults() -> None:
    shown = run("create", "--help", COLUMNS="200").stdout
    assert inspect.cleandoc("--max-attempts") in shown
    for name in FIELDS:
        assert f"--{name.replace('_', '-')}" in shown
    assert "SECONDS" in shown
    assert "(30)" in shown
