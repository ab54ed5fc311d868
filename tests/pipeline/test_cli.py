"""What `penstock pipeline …` prints, how it exits, and that neither Spark's noise nor its process is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import penstock
import penstock.cli.spark
from penstock.cli import output
from penstock.cli.app import app
from penstock.cli.pipeline import changed
from penstock.errors import InvalidArgument
from tests.pipeline import injuries
from tests.unit.broker.patience import until

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]
LIGHT = [
    "--master",
    "local[1]",
    "--conf",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
]

PLAIN = "def transform(messages):\n    return messages\n"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """Commands run in this process, in the session of all tests, which they leave as it is."""
    monkeypatch.setattr(penstock.cli.spark, "_end", lambda _spark: None)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["pipeline", *map(str, arguments)])


def publish(data: Path, count: int = 3) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([str(number).encode() for number in range(count)])


def begun(*arguments: object, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "pipeline", *map(str, arguments), *LIGHT], env={**os.environ, "TMPDIR": str(place)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def java_of(process: subprocess.Popen[str]) -> int:
    """The process of Spark's that a command has started."""
    (found,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(found)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "plain.py").write_text(PLAIN)
    return tmp_path / "plain.py"


ENDLESS = """
import threading
from pyspark.sql.functions import udf

@udf("string", useArrow=False)
def wait(payload):
    threading.Event().wait()

def transform(messages):
    return messages.select(wait("payload").alias("payload"))
"""


@pytest.mark.timeout(300)
def test_a_run_is_noisy_or_leaves_a_process_when_it_is_stopped_at_once(
    data: Path, file: Path, tmp_path: Path
) -> None:
    publish(data)
    file.write_text(ENDLESS)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = begun("run", file, data, "orders", "--parquet", tmp_path / "lake", "--json", place=temporary)
    assert process.stderr is not None
    assert process.stderr.readline() == f"penstock: running {file}; SIGTERM or Ctrl-C stops it\n"
    java = java_of(process)
    process.send_signal(signal.SIGTERM)  # the batch never ends
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, "")
    assert not json.loads(out)["finished"]
    assert not Path(f"/proc/{java}").exists()
    assert list(temporary.iterdir()) == []


def test_a_run_that_is_told_to_stop_exits_as_if_it_had_failed(
    here: None, data: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(data)
    said: list[str] = []

    def warn(text: str) -> None:
        said.append(text)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(output, "warn", warn)
    done = invoke("run", file, data, "orders", "--parquet", tmp_path / "lake", "--json")
    assert said == [f"penstock: running {file}; SIGTERM or Ctrl-C stops it"]
    assert done.exit_code == 0
    assert json.loads(done.stdout)["finished"]


@pytest.mark.timeout(300)
def test_ctrl_c_while_spark_starts_leaves_a_process_or_a_traceback(data: Path, tmp_path: Path) -> None:
    publish(data)
    process = begun("audit", data, place=tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: bool(children.read_text().split()))
    java = java_of(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")
    until(lambda: not Path(f"/proc/{java}").exists())  # it notices that nobody is there
    assert not list(tmp_path.glob("penstock-spark-*"))


def test_a_run_that_ends_says_something_else(here: None, data: Path, file: Path, tmp_path: Path) -> None:
    publish(data)
    done = invoke("run", file, data, "orders", "--parquet", tmp_path / "lake", "--once")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "3 messages in 1 batches.\n", "")
    again = invoke("run", file, data, "orders", "--parquet", tmp_path / "lake", "--once", "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["messages"] == 0


def test_a_run_goes_on_past_what_is_lost_unasked_or_not_when_asked(
    here: None, data: Path, file: Path, tmp_path: Path
) -> None:
    lake = ["--parquet", tmp_path / "lake", "--once"]
    publish(data)
    assert invoke("run", file, data, "orders", *lake).exit_code == 0
    with penstock.open(data) as broker:
        broker.delete_queue("orders")  # with it the place that the run has come to
    publish(data, 2)
    stopped = invoke("run", file, data, "orders", *lake)
    assert (stopped.exit_code, stopped.stdout) == (2, "")
    assert "failOnDataLoss" in stopped.stderr
    again = invoke("run", file, data, "orders", "--skip-lost", *lake)
    assert (again.exit_code, again.stderr) == (0, "")
    assert again.stdout == "2 messages in 1 batches.\n"


def test_a_mistake_is_not_told_in_a_line(here: None, data: Path, file: Path, tmp_path: Path) -> None:
    publish(data)
    lake = ["--parquet", tmp_path / "lake", "--once"]
    file.write_text("def transform(messages):\n    return messages.select('nothing')\n")
    done = invoke("run", file, data, "orders", *lake)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"penstock: {file}, line 2, in transform: [UNRESOLVED_COLUMN")
    assert done.stderr.endswith("\n    return messages.select('nothing')\n")
    for arguments, told in (
        (["run", file, data, "nothing", *lake], f"penstock: there is no queue or topic nothing in {data}"),
        (["run", file, tmp_path / "gone", "orders", *lake], "penstock: "),
        (["run", file, data, "orders"], "penstock: give one target"),
        (["audit", tmp_path / "gone"], "penstock: "),
        (["audit", data, "--topic", "nothing"], "penstock: "),
        (["archive", tmp_path / "gone", tmp_path / "lake"], "penstock: "),
    ):
        wrong = invoke(*arguments)
        assert (wrong.exit_code, wrong.stdout) == (2, ""), arguments
        assert wrong.stderr.startswith(told), arguments
        assert len(wrong.stderr.splitlines()) == 1, wrong.stderr
    assert not list(Path(tempfile.gettempdir()).glob(f"penstock-spark-{os.getpid()}-*"))


def test_a_setting_that_is_none_starts_spark(data: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        pytest.fail("it started Spark")

    monkeypatch.setattr("penstock.pipeline.session", never)
    for wrong in ("driver.memory=4g", "spark.driver.memory"):
        done = invoke("run", file, data, "orders", "--to", "clean", "--conf", wrong)
        assert (done.exit_code, done.stderr) == (
            2,
            f"penstock: --conf {wrong!r} is not KEY=VALUE, such as spark.driver.memory=4g\n",
        )


def test_an_archive_says_something_else(here: None, data: Path, tmp_path: Path) -> None:
    publish(data)
    done = invoke("archive", data, tmp_path / "lake")
    assert (done.stderr, done.exit_code) == ("", 0)
    assert done.stdout.startswith("Archived 3 messages; ")
    again = invoke("archive", data, tmp_path / "lake", "--json")
    assert again.exit_code == 0
    assert sum(json.loads(again.stdout)["rows"].values()) == 0


def test_a_replay_says_something_else(here: None, data: Path) -> None:
    publish(data)
    command = [
        "replay",
        "orders",
        "again",
        data,
        "--where",
        "offset > 0",
        "--set",
        "priority=7",
        "--set",
        "why=a test=1",
        "--json",
    ]
    first, second = (json.loads(invoke(*command).stdout) for _ in range(2))
    assert (first["written"], first["messages"], first["resumed"]) == (2, 2, False)
    assert (second["written"], second["resumed"]) == (0, True)
    with penstock.open(data) as broker:
        found = broker.get_queue("again").peek(10)
    assert sorted((message.payload, message.priority, message.headers["why"]) for message in found) == [
        (b"1", 7, "a test=1"), (b"2", 7, "a test=1")
    ]  # fmt: skip
    wrong = invoke("replay", "orders", "again", data, "--where", "ofset > 0")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "penstock: where: " in wrong.stderr


def test_what_is_set_is_taken_for_something_else() -> None:
    assert changed(["a=b=c", "priority=3", "headers.priority=x", "e="], ["gone"]) == (
        {"gone": None, "a": "b=c", "priority": "x", "e": ""}, 3
    )  # fmt: skip
    for wrong in ("a", "=b", "priority=high", "priority=-1"):
        with pytest.raises(InvalidArgument, match="--set"):
            changed([wrong], [])


def test_a_report_says_something_else(here: None, data: Path, tmp_path: Path) -> None:
    publish(data)
    done = invoke("report", data, tmp_path / "report")
    assert (done.stderr, done.exit_code) == ("", 0)
    page = tmp_path / "report" / "report.html"
    assert done.stdout == f"Published 3, delivered 0, acked 0, retries 0, dead 0. The page is {page}\n"
    assert page.stat().st_size


def test_what_was_skipped_is_told_and_is_exit_code_1(here: None, data: Path, tmp_path: Path) -> None:
    segment, position = injuries.make(data)
    injuries.flip_message(data, 2, 8)
    injuries.flip(data, segment, position + 100)
    page = tmp_path / "report" / "report.html"
    lost = "lost: default/orders: 1 (offsets 8): "
    for name, to in (("report", tmp_path / "report"), ("archive", tmp_path / "lake")):
        done = invoke(name, data, to)
        assert (done.exit_code, done.stderr) == (1, "")
        _, said, *lines = done.stdout.splitlines()
        assert said == "Skipped, because it could not be read:"
        assert sum(line.startswith(lost) for line in lines) == 1
        assert sum(f"of segment {segment} are damaged" in line for line in lines) == 1
        assert sum("of segment 2 are damaged" in line for line in lines) == 1
    assert f"<li>{lost}" in page.read_text()
    assert invoke("report", data, tmp_path / "report", "--skip-lost").exit_code == 0
    found = invoke("report", data, tmp_path / "report", "--json")
    assert found.exit_code == 1
    skipped = json.loads(found.stdout)["skipped"]
    assert [(one["kind"], one["offsets"]) for one in skipped if one["offsets"]] == [("lost", [[8, 8]])]
    again = invoke("archive", data, tmp_path / "lake", "--json")  # it was told by the run that met it
    assert (again.exit_code, json.loads(again.stdout)["skipped"]) == (0, [])
    assert invoke("archive", data, tmp_path / "other", "--skip-lost").exit_code == 0


def test_an_audit_exits_as_if_nothing_were_wrong(here: None, data: Path) -> None:
    publish(data)
    done = invoke("audit", data)
    assert (done.stderr, done.exit_code) == ("", 0)
    assert done.stdout.endswith("Sound: 3 messages, 0 settlements.\n")
    found = json.loads(invoke("audit", data, "--json").stdout)
    assert (found["messages"], found["breaches"]) == (3, [])


WITHOUT = """
import sys
sys.modules["pyspark"] = None
from penstock.cli import main
main()
"""


def test_without_pyspark_something_else_is_said(data: Path, file: Path) -> None:
    for command in (["audit", data], ["run", file, data, "orders", "--to", "clean"]):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, "pipeline", *map(str, command)], capture_output=True, text=True, check=False, timeout=60
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr
            == 'penstock: the pipeline needs pyspark; install with: pip install "penstock[spark]"\n'
        )
