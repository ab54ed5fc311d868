"""Every file in `examples/` runs, as a user would run it, with no more installed than it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Needs Spark, and is run with it: `tests/pipeline/test_example.py`.
ON_SPARK = EXAMPLES / "pipeline.py"

#: Runs a script as `python SCRIPT` does, where the packages of the other extras cannot be imported.
LIGHTLY = """
import runpy, sys
for absent in ("pyarrow", "numpy", "matplotlib", "pyspark"):
    sys.modules[absent] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(script: Path, place: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(place), "COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", LIGHTLY, str(script)],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "script", sorted(set(EXAMPLES.glob("*.py")) - {ON_SPARK}), ids=lambda path: path.name
)
def test_an_example_fails_complains_or_leaves_something_behind(script: Path, tmp_path: Path) -> None:
    done = run(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_the_tour_leaves_out_something_it_is_to_show(tmp_path: Path) -> None:
    shown = run(EXAMPLES / "journal_tour.py", tmp_path).stdout
    for what in (
        "3 messages to each of two logs",
        "200 messages were durable after",
        "has offset 203",
        "it sees 204 messages",
        "restored 'whatever my state is, number 2'",
        "end: torn",
        "acknowledged messages lost: 0",
        "rot in 00000000000000000001.segment",
        "202 messages of 'orders' are served",
        "1 segment dropped",
    ):
        assert what in shown
