"""Plant one mutant after the other, and see that the tests notice: `make mutants`.

A mutant is a small fault that breaks something users rely on. `mutants.toml` lists them, with the tests that
are to fail for each. This script changes a copy of the source, runs those tests against the copy, and says
whether they failed (the mutant is killed) or passed (it survived). `killed.txt` lists those that were killed.

    python tests/mutants/run.py            all of them
    python tests/mutants/run.py 20         20 of them, from all parts of the list
    python tests/mutants/run.py dedup ack  those with one of these words in their names or files
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
MUTANTS: Final = Path(__file__).with_name("mutants.toml")
KILLED: Final = Path(__file__).with_name("killed.txt")

#: Two processes run tests at the same time.
AT_ONCE: Final = 2

#: A test that hangs fails after so long, and a run that hangs nevertheless is ended: both have noticed the mutant.
TEST_TIMEOUT_S: Final = 20
RUN_TIMEOUT_S: Final = 180

KILLED_WORD: Final = "killed"


class Mutant(NamedTuple):
    """An entry of the list: `old` stands once in `file`, which is under src/penstock."""

    name: str
    origin: str  # "hand", or "mutmut" if mutmut generated it
    file: str
    old: str
    new: str
    breaks: str
    tests: str


class Outcome(NamedTuple):
    """What became of a mutant, and the first test that failed."""

    said: str
    test: str = ""


def load() -> list[Mutant]:
    """Return all mutants of the list."""
    return [Mutant(**entry) for entry in tomllib.loads(MUTANTS.read_text())["mutant"]]


def chosen(mutants: list[Mutant], words: list[str]) -> list[Mutant]:
    """Return the mutants that the command line asks for."""
    if not words:
        return mutants
    if len(words) == 1 and words[0].isdigit():
        wanted = min(int(words[0]), len(mutants))
        return [mutants[number * len(mutants) // wanted] for number in range(wanted)]
    return [one for one in mutants if any(word in f"{one.name} {one.file}" for word in words)]


def run_tests(source: Path, arguments: Sequence[str]) -> tuple[int | None, str]:
    """Run pytest against a copy of the source; return its exit code, None if it hangs, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command += ["-o", f"timeout={TEST_TIMEOUT_S}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(source.with_name("hypothesis"))
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output = process.communicate(timeout=RUN_TIMEOUT_S)[0]
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def outcome_of(mutant: Mutant, source: Path) -> Outcome:
    """Plant a mutant in a copy of the source, run its tests, and take it out again."""
    original, path = ROOT / "src/penstock" / mutant.file, source / "penstock" / mutant.file
    text = original.read_text() if original.exists() else ""
    if text.count(mutant.old) != 1:
        return Outcome("no longer applies")
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        code, output = run_tests(source, ["-x", *shlex.split(mutant.tests)])
    finally:
        shutil.copy2(original, path)
    if code not in (None, 0, 1):
        return Outcome(f"could not be tried: pytest ended with {code}\n{output}")
    if code == 0:
        return Outcome("survived")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    return Outcome(KILLED_WORD, failed[1] if failed else "(a run that hangs)")


def note(mutants: list[Mutant], outcomes: dict[str, Outcome]) -> None:
    """Bring the list of those killed up to date; what was not tried now stays as it is."""
    lines = KILLED.read_text().splitlines()[1:] if KILLED.exists() else []
    known = {line.split()[0]: line for line in lines}
    for name, outcome in outcomes.items():
        known[name] = f"{name}  {outcome.test}" if outcome.said == KILLED_WORD else ""
    kept = [known[one.name] for one in mutants if known.get(one.name)]
    head = f"# {len(kept)} of {len(mutants)} mutants were killed, each by the test beside it. `make mutants` writes this."
    KILLED.write_text("\n".join([head, *kept]) + "\n")


def main(words: list[str]) -> int:
    """Try the mutants that the command line asks for; return 1 if one survives or cannot be tried."""
    mutants = load()
    wanted = chosen(mutants, words)
    outcomes: dict[str, Outcome] = {}
    copies: SimpleQueue[Path] = SimpleQueue()

    def attempt(mutant: Mutant) -> None:
        source, begun_s = copies.get(), time.monotonic()
        outcome = outcomes[mutant.name] = outcome_of(mutant, source)
        copies.put(source)
        took = f"{time.monotonic() - begun_s:.0f} s"
        print(
            f"{len(outcomes)}/{len(wanted)} {mutant.name}: {outcome.said} ({took}) {outcome.test}", flush=True
        )

    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as scratch:
        for number in range(AT_ONCE):
            copies.put(shutil.copytree(ROOT / "src", Path(scratch, str(number), "src")))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(attempt, wanted))
        noticed = sorted({one.test for one in outcomes.values() if one.test.startswith("tests/")})
        code, output = run_tests(copies.get(), noticed) if noticed else (0, "")
    if code:  # they would call anything a mutant
        print(f"{output}\nThese tests fail without a mutant: mend them first.")
        return 1
    note(mutants, outcomes)
    left = [one for one in wanted if outcomes[one.name].said != KILLED_WORD]
    print(f"{len(wanted) - len(left)} of {len(wanted)} mutants were killed")
    for one in left:
        print(f"{one.name} in {one.file}: {outcomes[one.name].said}. {one.breaks}")
    return 1 if left or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
