"""The pages say what is true: their code runs and prints what they show, their tables, dumps, names and links are right."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import penstock
from penstock import aio, limits
from penstock.broker import scheduling, trace
from penstock.cli import app as cli
from penstock.cli import pipeline as pipeline_cli
from penstock.cli.place import PlacedCommand
from penstock.clock import SECOND_US
from penstock.engine import letter
from penstock.engine.events import Outcome
from penstock.journal.kinds import KINDS
from penstock.limits import (
    FILTER_CHARS_MAX,
    FILTER_DEPTH_MAX,
    FILTER_LIKE_STEPS_MAX,
    FILTER_NUMBER_CHARS_MAX,
    FILTER_VALUES_MAX,
    LIKE_CHARS_MAX,
)
from penstock.model.stats import BrokerStats, GroupStats, QueueStats, Step
from penstock.names import DEAD_LETTER_SUFFIX

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FILTERS = DOCS / "reference" / "filters.md"
WORKER = DOCS / "how-to" / "run-a-worker.md"
DURABILITY = DOCS / "how-to" / "choose-a-durability.md"
DAMAGE = DOCS / "how-to" / "recover-a-damaged-journal.md"
AUDIT = DOCS / "how-to" / "audit-and-report.md"  # it starts Spark: tests/pipeline does what it shows
CLI = DOCS / "reference" / "cli.md"
CLUSTER = DOCS / "how-to" / "run-on-a-cluster.md"
SERVER = DOCS / "how-to" / "run-a-server.md"  # tests/server/test_life.py does what it shows

#: Pages whose code needs Spark: `tests/pipeline/test_pages.py` runs them.
ON_SPARK = [
    DOCS / "tutorial" / "first-pipeline.md",
    DOCS / "reference" / "pipeline.md",
    DOCS / "how-to" / "archive-and-replay.md",
]
QUEUES = DOCS / "reference" / "queues.md"
TOPICS = DOCS / "reference" / "topics.md"
GROUPS = DOCS / "reference" / "groups.md"
READERS = DOCS / "reference" / "readers.md"
TRANSACTIONS = DOCS / "reference" / "transactions.md"
SCHEDULES = DOCS / "reference" / "schedules.md"
TIMELINES = DOCS / "reference" / "timelines.md"

#: Pages whose code is run in order, in one directory. Those that are left out are about other files, or have only shell in them.
RUN = [
    ROOT / "README.md",
    *sorted(set((DOCS / "tutorial").glob("*.md")) - set(ON_SPARK)),
    *sorted(set((DOCS / "how-to").glob("*.md")) - {DURABILITY, DAMAGE, CLUSTER, SERVER, AUDIT, *ON_SPARK}),
    *sorted(set((DOCS / "reference").glob("*.md")) - {CLI, *ON_SPARK}),
]

#: Which page has the table of which class.
TABLES = {
    "Broker": QUEUES,
    "Queue": QUEUES,
    "Consumer": QUEUES,
    "Delivery": QUEUES,
    "Topic": TOPICS,
    "Group": GROUPS,
    "Reader": READERS,
    "Transaction": TRANSACTIONS,
}

#: What is set when an object is made is no member of its class.
ATTRIBUTES = {"name", "missed", "ids"}
ENGINE = DOCS / "internals" / "engine.md"
FORMAT = DOCS / "internals" / "journal-format.md"
WORKINGS = DOCS / "internals" / "journal.md"
GOLDEN = ROOT / "tests" / "unit" / "journal" / "golden" / "v1"

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page, as (language, text)."""
    return BLOCK.findall(page.read_text("utf-8"))


# --- code ---


def printed(code: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "<page>", "exec"), names)
    return out.getvalue()


def sessions(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def answer(command: str, timeout_s: float = 60) -> str:
    environment = {
        **os.environ,
        "COLUMNS": "110",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.replace(f"{Path.cwd()}/", "")


def loosely(text: str) -> str:
    """Without numbers, which differ from run to run, and without the widths of tables, which follow from them."""
    return re.sub(r"[\s─━]+", " ", re.sub(r"[\d.]+", "#", text)).strip()


@pytest.mark.parametrize("page", RUN, ids=named)
def test_a_page_shows_code_that_fails_or_prints_something_else(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(page), "no code at all"


def run_page(page: Path, timeout_s: float = 60) -> int:
    """Run the code of a page here, and compare what it prints; how many blocks it has."""
    names: dict[str, Any] = {"__name__": "page"}
    output: str | None = None
    ran = 0
    for language, text in blocks(page):
        if language == "python":
            output = printed(text, names)
            ran += 1
            continue
        if language == "text" and output is not None:
            assert output == text
        elif language == "console":
            for command, shown in sessions(text):
                if command.startswith("penstock "):
                    assert loosely(answer(command, timeout_s)) == loosely(shown), command
        output = None
    return ran


# --- what pages say of the code ---


@pytest.mark.parametrize("page", [*PAGES, ROOT / "deploy" / "penstock.service"], ids=named)
def test_a_page_installs_from_a_clone(page: Path) -> None:
    """There is no package of ours on an index; what is there under our name is not ours."""
    assert re.findall(r"pip install [^`\n&]*(?<![/.])\bpenstock\b", page.read_text("utf-8")) == []


def test_the_format_page_has_another_kind_or_column_than_the_code() -> None:
    told: dict[int, tuple[str, dict[str, tuple[int, str]]]] = {}
    for part in re.split(r"^### Kind ", FORMAT.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        head = re.match(r"(\d+): `(\w+)`", part)
        assert head, part[:40]
        columns = re.findall(r"^\| (\d+) \| `(\w+)` \| (\w+) \|", part, flags=re.MULTILINE)
        told[int(head[1])] = (head[2], {name: (int(number), kind) for number, name, kind in columns})
    assert told == {
        number: (kind.name, {name: (field.number, field.type.name) for name, field in kind.fields.items()})
        for number, kind in KINDS.items()
    }


def test_the_filters_page_has_another_limit_than_the_code() -> None:
    table = re.search(r"^## Limits\n(.*?)^## ", FILTERS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert table
    told = [int(number) for number in re.findall(r"\| (\d+)(?: characters)? \|$", table[1], re.MULTILINE)]
    assert told == [
        FILTER_CHARS_MAX, FILTER_DEPTH_MAX, FILTER_VALUES_MAX, FILTER_NUMBER_CHARS_MAX, LIKE_CHARS_MAX,
        FILTER_LIKE_STEPS_MAX,
    ]  # fmt: skip


def section(page: Path, heading: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads, as cells."""
    lines = [line.strip("| ").split(" | ") for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
    rules = [place for place, line in enumerate(lines) if set("".join(line)) <= set("-|")]
    return [line for place, line in enumerate(lines) if place not in rules and place + 1 not in rules]


def named_in(cell: str) -> list[str]:
    """What a cell is about: the names that its code begins with."""
    return re.findall(r"`([\w-]+)", cell)


def test_the_queues_page_has_another_policy_than_the_code() -> None:
    told = {
        named_in(field)[0]: eval(default.strip("`"), {"Backoff": penstock.Backoff})
        for field, default, _ in rows(section(QUEUES, "Policy"))
    }
    assert told == {field: getattr(penstock.Policy(), field) for field in penstock.Policy.__struct_fields__}


@pytest.mark.parametrize("module", [penstock, aio], ids=["sync", "aio"])
@pytest.mark.parametrize("kind", TABLES)
def test_a_page_has_other_methods_than_the_code(kind: str, module: Any) -> None:
    told = {name for cells in rows(section(TABLES[kind], kind)) for name in named_in(cells[0])}
    exist = {name for name in dir(getattr(module, kind)) if not name.startswith("_")}
    arguments = set(inspect.signature(penstock.Topic.subscribe).parameters) if kind == "Topic" else set()
    assert told - ATTRIBUTES - arguments == exist - ATTRIBUTES


@pytest.mark.parametrize("kind", TABLES)
def test_a_page_has_other_arguments_than_the_code(kind: str) -> None:
    found = 0
    for cells in rows(section(TABLES[kind], kind)):
        for name, told in re.findall(r"`(\w+)\(([^`]*)\)`", cells[0]):
            check_arguments(getattr(getattr(penstock, kind), name), told)
            found += 1
    assert found


@pytest.mark.parametrize("page", sorted(set(TABLES.values()) | {SCHEDULES}), ids=named)
def test_a_page_has_other_arguments_where_it_names_a_call_of_a_queue(page: Path) -> None:
    for name, told in re.findall(
        r"`(?:queue\.)?(group|delete_group|reader|schedule|unschedule|cancel)\(([^`]*)\)`",
        page.read_text("utf-8"),
    ):
        if "..." not in told and "…" not in told and '"' not in told.split(",")[0]:
            check_arguments(getattr(penstock.Queue, name), told)


def check_arguments(method: Any, told: str) -> None:
    """Compare the arguments that a page gives a method with those it has."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    told_names = re.findall(r"(\w+)(?:=|,|$)", re.sub(r"=[^,]*", "=", told))
    assert len(told_names) == len(parameters), method.__name__
    for parameter, name in zip(parameters, told_names, strict=True):
        if parameter.default is not inspect.Parameter.empty:
            assert parameter.name == name, method.__name__
    for default in re.findall(r"(\w+=[^,]+)", told):
        field, _, value = default.partition("=")
        of_that_name = next(one for one in parameters if one.name == field)
        assert of_that_name.default == eval(value), f"{method.__name__}: {field}"
    keywords = [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    assert re.findall(r"(\w+)=", told.partition("*, ")[2]) == keywords, method.__name__


def test_the_arguments_of_subscribe_are_not_all_explained() -> None:
    subscribe, *_ = (cells for cells in rows(section(TOPICS, "Topic")) if cells[0].startswith("`subscribe("))
    explained = {name for cells in rows(section(TOPICS, "Topic")) for name in named_in(cells[0])}
    assert set(inspect.signature(penstock.Topic.subscribe).parameters) - {"self"} <= explained
    assert subscribe


def test_a_page_has_other_fields_than_the_code() -> None:
    told = [name for cells in rows(section(GROUPS, "Stats")) for name in named_in(cells[0])]
    assert told == list(GroupStats.__struct_fields__)
    fields, words = rows(section(TIMELINES, "Step"))[:9], rows(section(TIMELINES, "Step"))[9:]
    assert [named_in(cells[0]) for cells in fields] == [[field] for field in Step.__struct_fields__]
    assert {word for cells in words for word in named_in(cells[0])} == {
        "published",
        "leased",
        *map(trace.told, Outcome),
    }


def numbers(page: Path, heading: str) -> list[int]:
    return [int(one) for cells in rows(section(page, heading)) for one in re.findall(r"\d+", cells[1])]


def test_a_page_has_another_bound_than_the_code() -> None:
    assert numbers(TRANSACTIONS, "Limits") == [limits.STEPS_MAX, limits.FRAME_BYTES_MAX]
    assert numbers(TIMELINES, "Limits") == [trace.ROWS_MAX, trace.AGE_US // (3600 * SECOND_US)]
    assert numbers(SCHEDULES, "Missed ones") == [scheduling.LATE_US // SECOND_US, scheduling.MADE_UP_MAX]
    assert f"headers `{scheduling.NAME}` (the name) and `{scheduling.DUE}`" in SCHEDULES.read_text("utf-8")


def test_the_queues_page_has_other_errors_than_the_code() -> None:
    text = section(QUEUES, "Errors")
    told = {named_in(error)[0]: retryable == "yes" for error, retryable, _ in rows(text)}
    for name in named_in(text[text.rindex("|") :]):  # the last sentence: those that nothing raises yet
        told[name] = getattr(penstock, name).retryable
    exist = {
        name: found.retryable
        for name, found in ((name, getattr(penstock, name)) for name in penstock.__all__)
        if isinstance(found, type) and issubclass(found, penstock.PenstockError)
    }
    del exist["PenstockError"]
    assert told == exist


def test_the_queues_page_has_other_stats_or_headers_than_the_code() -> None:
    told = [name for cells in rows(section(QUEUES, "Stats")) for name in named_in(cells[0])]
    assert told == [
        *QueueStats.__struct_fields__,
        *sorted(BrokerStats.__struct_fields__, key=told[len(QueueStats.__struct_fields__) :].index),
    ]
    headers = {name for cells in rows(section(QUEUES, "Dead letters")) for name in named_in(cells[0])}
    exist = {value for value in vars(letter).values() if isinstance(value, str) and value.startswith("x-")}
    assert headers - {"where", "limit", "rate", "to"} == exist


def test_the_queues_page_has_another_limit_than_the_code() -> None:
    told = [
        int(number) for cells in rows(section(QUEUES, "Limits")) for number in re.findall(r"\d+", cells[1])
    ]
    assert told == [
        limits.NAME_CHARS_MAX - len(DEAD_LETTER_SUFFIX),
        limits.MESSAGE_BYTES_DEFAULT,
        limits.MESSAGE_BYTES_MAX,
        limits.HEADERS_COUNT_MAX,
        limits.HEADERS_BYTES_MAX,
        limits.KEY_BYTES_MAX,
        limits.FRAME_BYTES_MAX,
        limits.MESSAGES_MAX,
        limits.DELIVERIES_MAX,
        limits.ERROR_CHARS_MAX,
        limits.DURATION_S_MAX // (36_525 * 864),
    ]
    assert limits.KEY_BYTES_MAX == limits.DEDUP_ID_BYTES_MAX


def test_an_option_of_a_pipeline_command_is_not_explained() -> None:
    group = typer.main.get_command(pipeline_cli.app)
    assert isinstance(group, typer.core.TyperGroup)
    for name, command in group.commands.items():
        explained = section(CLI, rf"`penstock pipeline {name} [^`]*`") + section(CLI, "The pipeline")
        for option in command.params:
            if option.param_type_name == "option" and option.name != "help":
                assert f"`{option.opts[0]}" in explained, f"{name}: {option.opts[0]}"


def test_an_option_of_a_command_on_queues_is_not_explained() -> None:
    everywhere = section(CLI, "Where the queues are")
    whole = typer.main.get_command(cli.app)
    assert isinstance(whole, typer.core.TyperGroup)
    placed = {name: found for name, found in whole.commands.items() if isinstance(found, PlacedCommand)}
    assert len(placed) == 13
    for name, command in placed.items():
        heading = rf"[^\n]*`penstock {name} DIR\|URL[^\n]*"
        said = re.search(rf"^#+ {heading}$", CLI.read_text("utf-8"), re.MULTILINE)
        explained = section(CLI, heading) + (said[0] if said else "")
        for option in command.params:
            if option.param_type_name == "option" and option.name != "help":
                told = any(re.search(rf"{opt}(?![\w-])", explained + everywhere) for opt in option.opts)
                assert told, f"{name}: {option.opts}"


def test_a_dump_in_the_format_page_is_not_the_golden_files() -> None:
    dumps = [text for language, text in blocks(FORMAT) if language == "hex"]
    assert dumps
    for dump in dumps:
        file, *lines = dump.splitlines()
        data = (GOLDEN / file).read_bytes()
        for line in lines:
            match = re.match(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)", line)
            assert match, line
            at, found = int(match[1], 16), bytes.fromhex(match[2])
            assert data[at : at + len(found)] == found, line


def test_a_page_names_a_test_that_does_not_exist() -> None:
    every = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    exist = set(re.findall(r"def (test_\w+)", every))
    for page in PAGES:
        text = page.read_text("utf-8")
        for name in re.findall(r"`(tests/[\w/.]+)`", text):
            assert (ROOT / name).exists(), f"{named(page)}: {name}"
        if page in (WORKINGS, ENGINE):
            tests = set(re.findall(r"`(test_\w+)`", text))
            assert tests
            assert tests <= exist, f"{named(page)}: {tests - exist}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_link_leads_nowhere(page: Path) -> None:
    for picture, target in re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text("utf-8"))):
        if picture or "://" in target:  # pictures are drawn by whole runs of the benchmarks
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), f"{named(page)}: {target}"
        if anchor:
            assert anchor in anchors(found), f"{named(page)}: {target}"


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get on GitHub."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text("utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
