"""`examples/pipeline.py` runs as a user would run it, says nothing but what it has to say, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.py"


@pytest.mark.timeout(400)
def test_the_example_fails_complains_or_leaves_something_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=390, check=False
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for what in (
        "eve has ordered for ",
        "what became of the orders: {'acked': 784, 'dead': 16}",
        "the transform read 1,000 orders\nthe transform read 0 orders\nlarge orders: 467\n",
        "found 0 breaches",
    ):
        assert what in done.stdout
    assert list(tmp_path.iterdir()) == []
