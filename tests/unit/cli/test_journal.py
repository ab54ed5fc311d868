"""What `penstock journal` prints, where, and how it exits: for people, for programs, in pipes, and when something is wrong."""

from __future__ import annotations

import base64
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
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

import penstock
from penstock.cli.app import app
from penstock.cli.output import answering
from penstock.journal.journal import Journal
from penstock.journal.rows import messages
from penstock.journal.spool import Report
from tests.unit.broker.staging import batch, spool_of
from tests.unit.journal.specimen import Specimen, flip, make

pytestmark = pytest.mark.lengthy

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    return make(tmp_path_factory.mktemp("sound") / "journal", 40, segment_bytes=4096, snapshots=True)


@pytest.fixture
def damaged(sound: Specimen, tmp_path: Path) -> Path:
    """One flipped byte of the second segment."""
    path = sound.copy(tmp_path / "journal")
    flip(path / f"{2:020d}.segment", 8 * 700)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def process(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60, **settings
    )


def answer(result: Result) -> Any:
    """What a command with `--json` printed: JSON, and nothing else."""
    return json.loads(result.stdout)


# --- what others have left ---


@pytest.mark.parametrize("command", ["info", "verify", "repair", "dump"])
def test_a_spool_is_taken_for_damage(tmp_path: Path, command: str) -> None:
    path = make(tmp_path / "journal", 5).path
    spool = spool_of(path)
    spool.hand_in(batch(spool, 0, [{"a": [b"1"]}]))
    spool.report(Report("r", 1))
    before = sorted((file.name, file.read_bytes()) for file in spool.path.iterdir())
    assert run("journal", command, path).exit_code == 0
    assert sorted((file.name, file.read_bytes()) for file in spool.path.iterdir()) == before


# --- info ---


def test_info_names_the_logs_and_their_offsets(sound: Specimen) -> None:
    result = run("journal", "info", sound.path)
    assert result.exit_code == 0
    assert "orders" in result.stdout
    assert "nobody" in result.stdout
    found = answer(run("journal", "info", sound.path, "--json"))
    assert [log["name"] for log in found["logs"]] == ["orders", None, None]
    assert found["segments"][-1]["state"] == "active"
    assert {s["state"] for s in found["segments"][:-1]} == {"sealed"}
    assert found["logs"][0]["next"] == sum(
        len(s["logs"]) and s["logs"][0]["messages"] for s in found["segments"]
    )
    assert len(found["snapshots"]) == 2


def test_info_says_who_holds_the_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.commit([messages(1, [b"a"], ids=[1], timestamp=1)])
        held = json.loads(process("journal", "info", tmp_path / "j", "--json").stdout)
    assert str(os.getpid()) in held["holder"]
    assert held["messages"] == 1


# --- verify ---


def test_verify_of_a_sound_journal_exits_0(sound: Specimen) -> None:
    result = process("journal", "verify", sound.path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Sound")


def test_verify_names_segment_bytes_and_messages_and_exits_1(damaged: Path) -> None:
    result = process("journal", "verify", damaged)
    assert result.returncode == 1
    assert re.search(r"rot +│ 2\.segment +│ \d+–\d+ +│ +\d+ │ log \d: \d+–\d+", result.stdout)
    found = answer(run("journal", "verify", damaged, "--json"))
    assert found["sound"] is False
    (damage,) = found["damage"]
    assert (damage["what"], damage["segment"]) == ("rot", 2)
    assert damage["position"] < 700 < damage["end"]
    assert sum(s["last"] - s["first"] + 1 for s in damage["spans"]) == damage["messages"] > 0


def test_verify_of_a_live_journal_exits_0(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", segment_bytes=4096) as journal:
        for n in range(100):
            journal.commit([messages(1, [b"a" * 100], ids=[1], timestamp=n)])
        result = process("journal", "verify", tmp_path / "j")
    assert result.returncode == 0
    assert "Held by process" in result.stdout


@pytest.mark.parametrize("command", ["info", "verify", "repair", "dump"])
def test_directory_that_is_no_journal_is_one_line_and_exits_2(command: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        result = process("journal", command, path)
        assert result.returncode == 2
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)
        assert "is not a journal" in result.stderr


def test_the_package_is_run_as_the_command_is(tmp_path: Path) -> None:
    arguments = ["journal", "info", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", process(*arguments).stderr)


def test_foreign_file_is_one_line_and_exits_2_when_reading(
    damaged: Path, sound: Specimen, tmp_path: Path
) -> None:
    (damaged / "7.segment").touch()
    result = run("journal", "info", damaged)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    said = run("journal", "verify", damaged).stdout
    assert "move away what is foreign (7.segment)" in said
    assert "penstock journal repair" in said
    whole = sound.copy(tmp_path / "whole")
    (whole / "7.segment").touch()
    said = run("journal", "verify", whole).stdout
    assert "move away what is foreign (7.segment)" in said
    assert "penstock journal repair" not in said, "it would refuse"


@pytest.mark.parametrize(
    "arguments", [["journal", "verify"], ["journal", "mend", "x"], ["journal", "dump", "x", "--limit", "-1"]]
)
def test_wrong_use_exits_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


# --- repair ---


def test_repair_without_yes_says_what_it_would_do_and_exits_1(damaged: Path) -> None:
    before = (damaged / f"{2:020d}.segment").read_bytes()
    result = process("journal", "repair", damaged)
    assert result.returncode == 1
    assert "To be done" in result.stdout
    assert "--yes" in result.stdout
    assert (damaged / f"{2:020d}.segment").read_bytes() == before


def test_repair_with_yes_mends_and_exits_0(damaged: Path) -> None:
    done = answer(run("journal", "repair", damaged, "--yes", "--json"))
    assert (done["done"], done["needed"], done["after"]["sound"]) == (True, False, True)
    assert [(damaged / "quarantine" / name).exists() for name in done["kept"]] == [True]
    assert process("journal", "verify", damaged).returncode == 0
    assert "Known losses" in run("journal", "verify", damaged).stdout
    assert "Nothing to repair" in run("journal", "repair", damaged).stdout


def test_repair_of_a_journal_in_use_says_who_has_it_and_exits_2(damaged: Path) -> None:
    with Journal(damaged):
        result = process("journal", "repair", damaged, "--yes")
    assert result.returncode == 2
    assert f"process {os.getpid()}" in result.stderr
    assert "Traceback" not in result.stderr


def test_repair_of_a_sound_journal_in_use_has_nothing_to_do_and_exits_0(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.commit([messages(1, [b"a"], ids=[1], timestamp=1)])
        result = process("journal", "repair", tmp_path / "j", "--yes")
    assert (result.returncode, result.stdout, result.stderr) == (0, "Nothing to repair.\n", "")


@pytest.mark.parametrize("name", ["journal", "two words", "-dashed"])
def test_what_to_do_names_the_path_as_it_was_given(damaged: Path, name: str) -> None:
    given = damaged.rename(damaged.with_name(name)).relative_to(damaged.parent)
    typed = {"journal": "journal", "two words": "'two words'", "-dashed": "./-dashed"}[name]
    verified = process("journal", "verify", f"./{given}", cwd=damaged.parent)
    assert f"What to do: penstock journal repair {typed}\n" in verified.stdout
    planned = process("journal", "repair", f"./{given}", cwd=damaged.parent)
    assert f"To do it: penstock journal repair --yes {typed}\n" in planned.stdout
    assert process("journal", "info", f"./{given}", cwd=damaged.parent).stdout.startswith(f"{name} ")


# --- dump ---


def test_dump_prints_rows_of_every_kind(sound: Specimen) -> None:
    lines = run("journal", "dump", sound.path).stdout.splitlines()
    assert lines[0].split() == ["sequence", "time", "kind", "log", "offset", "row"]
    assert {line.split()[3] for line in lines[1:]} == {"metadata", "messages", "settlements"}
    assert len(lines) - 1 == sum(len(commit[1]) for commit in sound.commits)


def test_dump_gives_only_what_is_asked_for(sound: Specimen) -> None:
    arguments = ["--json", "--kind", "messages", "--log", "2", "--from", "3", "--after", "5", "--limit", "4"]
    rows = [json.loads(line) for line in run("journal", "dump", sound.path, *arguments).stdout.splitlines()]
    assert [(row["kind"], row["log"], row["offset"]) for row in rows] == [
        ("messages", 2, o) for o in range(3, 7)
    ]
    assert all(row["sequence"] > 5 for row in rows)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Payloads that are text, no text, and text that would steer a terminal."""
    with Journal(tmp_path / "odd") as journal:
        journal.commit(
            [messages(1, ["grüße".encode(), b"\xff\x00", b"\x1b[2Jgone"], ids=range(3), timestamp=7)]
        )
    return tmp_path / "odd"


def test_dump_shows_text_as_text_and_other_bytes_in_hex(odd: Path) -> None:
    shown = run("journal", "dump", odd).stdout
    assert "payload=grüße" in shown
    assert "payload=0xff00" in shown
    assert "\x1b" not in shown


def test_dump_as_json_gives_base64_and_text(odd: Path) -> None:
    rows = [json.loads(line) for line in run("journal", "dump", odd, "--json").stdout.splitlines()]
    assert [base64.b64decode(row["payload"]["base64"]) for row in rows] == [
        "grüße".encode(),
        b"\xff\x00",
        b"\x1b[2Jgone",
    ]
    assert [row["payload"].get("text") for row in rows] == ["grüße", None, "\x1b[2Jgone"]


def test_dump_without_payload_says_how_long_it_is(odd: Path) -> None:
    rows = [
        json.loads(line) for line in run("journal", "dump", odd, "--json", "--no-payload").stdout.splitlines()
    ]
    assert [row["payload_bytes"] for row in rows] == [7, 2, 8]
    assert "gone" not in run("journal", "dump", odd, "--no-payload").stdout


def test_dump_skips_damage_says_so_and_exits_1(damaged: Path) -> None:
    result = process("journal", "dump", damaged, "--json")
    assert result.returncode == 1
    assert re.search("skipped rot in segment 2, bytes", result.stderr)
    assert all(json.loads(line) for line in result.stdout.splitlines())


@pytest.mark.parametrize("gone", [True, False])
def test_dump_without_a_good_mark_says_that_only_sealed_segments_are_shown_and_exits_1(
    sound: Specimen, tmp_path: Path, gone: bool
) -> None:
    path = sound.copy(tmp_path / "journal")
    if gone:
        (path / "mark").unlink()
    else:
        flip(path / "mark", 8 * 20)
    result = process("journal", "dump", path, "--json")
    assert result.returncode == 1
    assert (
        result.stderr
        == f"penstock: only sealed segments could be shown, because {path / 'mark'} is damaged or gone\n"
    )
    shown = {json.loads(line)["segment"] for line in result.stdout.splitlines()}
    assert shown == set(range(1, len(sound.segments)))


def test_unknown_kind_is_one_line_and_exits_2(sound: Specimen) -> None:
    result = run("journal", "dump", sound.path, "--kind", "letters")
    assert result.exit_code == 2
    assert "settlements" in result.stderr


# --- pipes, terminals, signals ---


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More rows than any pipe holds."""
    path = tmp_path_factory.mktemp("long") / "journal"
    with Journal(path, durability="os") as journal:
        for n in range(20):
            journal.commit([messages(1, [b"x" * 100] * 5000, ids=range(5000), timestamp=n)])
        journal.sync()
    return path


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_closed_pipe_ends_a_dump_quietly(long: Path, json_too: list[str]) -> None:
    command = [*COMMAND, "journal", "dump", str(long), *json_too]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as dumping:
        assert dumping.stdout is not None
        assert dumping.stderr is not None
        assert dumping.stdout.readline()
        dumping.stdout.close()
        assert (dumping.wait(60), dumping.stderr.read()) == (0, "")


def unread(*arguments: object, stderr_too: bool = False) -> tuple[int, str]:
    """A command whose stdout is a pipe that nobody reads: how it exits, and what it says on stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            stdout=writing, stderr=writing if stderr_too else subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writing)
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize("json_too", [[], ["--json"]])
@pytest.mark.parametrize("command", ["info", "verify", "repair", "dump"])
def test_closed_pipe_does_not_turn_sound_into_damaged(
    sound: Specimen, command: str, json_too: list[str]
) -> None:
    assert unread("journal", command, sound.path, *json_too) == (0, "")


def test_closed_pipe_does_not_turn_help_into_an_error() -> None:
    for arguments in (["--help"], ["--version"], ["journal", "verify", "--help"]):
        assert unread(*arguments) == (0, "")


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_closed_pipe_does_not_turn_damaged_into_sound(damaged: Path, json_too: list[str]) -> None:
    assert unread("journal", "verify", damaged, *json_too) == (1, "")
    assert unread("journal", "repair", damaged, *json_too) == (1, "")
    assert unread("journal", "repair", damaged, "--yes", *json_too) == (0, "")
    assert process("journal", "verify", damaged).returncode == 0


def test_closed_pipe_for_errors_does_not_turn_2_into_1(tmp_path: Path) -> None:
    assert unread("journal", "verify", tmp_path, stderr_too=True)[0] == 2
    assert unread("journal", "mend", tmp_path, stderr_too=True)[0] == 2


@pytest.mark.parametrize(
    ("closed", "command", "expected"),
    [(">&-", "info", 0), (">&-", "verify", 0), (">&-", "dump", 0), ("<&- >&- 2>&-", "verify", 0)],
)
def test_stdout_that_is_closed_from_the_start_is_no_traceback(
    sound: Specimen, closed: str, command: str, expected: int
) -> None:
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND, "journal", command, str(sound.path)]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (expected, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["verify"], ["dump"], ["--help"]])
def test_full_disk_under_stdout_is_one_line_that_names_it_and_exits_2(
    sound: Specimen, arguments: list[str]
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "journal", *arguments, *([] if "--help" in arguments else [str(sound.path)])],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "penstock: standard output: No space left on device\n")


def test_error_without_a_path_says_in_which_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit), answering(tmp_path):
        raise OSError(errno.EIO, "the disk")
    assert capsys.readouterr().err == f"penstock: in {tmp_path}: the disk\n"


def test_directory_in_a_files_place_is_named(sound: Specimen, tmp_path: Path) -> None:
    path = sound.copy(tmp_path / "journal")
    (path / "mark").unlink()
    (path / "mark").mkdir()
    for command in ("info", "dump"):
        result = process("journal", command, path)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert f"{path / 'mark'} looks like a file of a journal and is not one" in result.stderr
    result = process("journal", "verify", path, "--json")
    assert result.returncode == 1
    assert "mark" in [finding["file"] for finding in json.loads(result.stdout)["damage"]]


def test_error_with_a_path_names_it(sound: Specimen, tmp_path: Path) -> None:
    path = sound.copy(tmp_path / "journal")
    (path / "mark").unlink()
    (path / "mark").symlink_to("mark")
    result = process("journal", "info", path)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"penstock: {path / 'mark'}: ")


# A shell may have made us ignore SIGINT, and children inherit that.
HEEDING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


def test_interrupt_ends_a_dump_quietly_with_130(long: Path) -> None:
    command = [sys.executable, "-c", f"{HEEDING}; {COMMAND[-1]}", "journal", "dump", str(long)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as dumping:
        assert dumping.stdout is not None
        assert dumping.stderr is not None
        assert dumping.stdout.readline()  # it is at work, and will soon wait for the full pipe
        dumping.send_signal(signal.SIGINT)
        dumping.stdout.read()
        assert (dumping.wait(60), dumping.stderr.read()) == (130, "")


#: Ctrl-C at an exact moment: when the process imports or opens something whose name ends like this.
INTERRUPTED_AT = f"""
import os, sys
{HEEDING}
event, ending, *sys.argv[1:] = sys.argv[1:]
left = [1]
def hook(what, arguments):
    if what == event and left and str(arguments[0]).endswith(ending):
        left.clear()
        os.kill(os.getpid(), signal.SIGINT)
from penstock.cli import main
sys.addaudithook(hook)
main()
"""


@pytest.mark.parametrize("moment", [("import", "penstock.cli.app"), ("import", "rich.table"), ("open", ".segment")])  # fmt: skip
@pytest.mark.parametrize("command", [["info"], ["verify"], ["repair"], ["repair", "--yes"], ["dump"]])
def test_interrupt_while_starting_or_running_is_130_without_a_traceback(
    damaged: Path, moment: tuple[str, str], command: list[str]
) -> None:
    arguments = [*moment, "journal", *command, str(damaged)]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")


def on_a_terminal(columns: int, *arguments: object) -> str:
    """What a command shows on a terminal that is so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
        env=environment | {"TERM": "xterm"},
    ):
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # Linux's way to say that the other end is closed
            pass
    os.close(ours)
    return shown.decode()


@pytest.mark.parametrize("columns", [50, 100])
@pytest.mark.parametrize("command", ["info", "verify", "dump"])
def test_no_line_is_wider_than_the_terminal(sound: Specimen, columns: int, command: str) -> None:
    shown = on_a_terminal(columns, "journal", command, sound.path)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= columns


def test_progress_is_shown_on_a_terminal_only(sound: Specimen) -> None:
    assert "Verifying" in on_a_terminal(100, "journal", "verify", sound.path)
    assert "Verifying" not in process("journal", "verify", sound.path).stderr


# --- the command itself ---


def test_version_is_printed() -> None:
    assert run("--version").stdout == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize("command", ["info", "verify", "repair", "dump"])
def test_help_has_examples(command: str) -> None:
    assert f"penstock journal {command} ./queue" in run("journal", command, "--help").stdout


def test_without_typer_it_says_what_to_install(tmp_path: Path) -> None:
    """A Python that has msgspec and penstock and nothing else."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in (Path(msgspec.__file__).parent, Path(penstock.__file__).parent):
        (packages / folder.name).symlink_to(folder)
    info = Path(str(distribution("penstock").locate_file(""))).glob("penstock-*.dist-info")
    for folder in info:
        (packages / folder.name).symlink_to(folder)
    code = f"import sys; sys.path.insert(0, {str(packages)!r}); from penstock.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert 'pip install "penstock[cli]"' in result.stderr
    assert result.stderr.count("\n") == 1
