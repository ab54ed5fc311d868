"""The examples do what they say, run as a user would run them.

That each leaves nothing behind and complains of nothing is shown for all examples alike, in `tests/unit/test_examples.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SHOWN = {
    "basic.py": """\
waiting: 3
handled order 1
handled order 2
failed order 3, attempt 1: no such customer
failed order 3, attempt 2: no such customer
dead: order 3 (max-attempts)
redriven: 1
waiting: 1
""",
    "persistent.py": """\
published 3
finished order 1
began order 2, and stopped
finished order 2, attempt 2
finished order 3, attempt 1
left: 0, visibility timeout: 60 s
""",
    "delayed.py": """\
ready: 1, delayed: 3
now, attempt 1
after half a second, attempt 1
after a second, attempt 1
at a moment, attempt 1
at a moment, attempt 2
offers: None
""",
    "priority.py": """\
next: pump out the cellar
  0  pump out the cellar
  0  call the fire brigade
100  answer a letter
  0  put out the fire
100  answer another letter
200  sweep the floor
200  empty the bin
""",
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_something_else(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == SHOWN[name]
