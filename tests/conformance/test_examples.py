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
    "publish_subscribe.py": """\
subscriptions: 3
dashboard: order 1, order 2, order 3
europe: order 1, order 3
subscriptions: 2
audit is behind by 3
audit: order 1, order 2, order 3
redriven: 1
europe: order 4
audit: order 4
routed to: reports.eu, reports.us
""",
    "consumer_groups.py": """\
shipping: 12 to do, billing: 12 to do
shipping did 12 orders, 12 different ones
shipping: 0 to do, billing: 12 to do
clumsy has order 0, and goes
careful has order 0, attempt 2
careful has order 1, attempt 1
billing did 12 orders, 12 different ones
depth: 0
""",
    "replay.py": """\
waiting: 0
read: order 1, order 2, order 3; behind by 1
goes on at 3: order 4
from offset 1: order 2, order 3, order 4
from the start: order 1, order 2, order 3, order 4
refused: no message with the id 4711 is stored in 'orders'
works again on order 3, attempt 1
works again on order 4, attempt 1
follows: order 5
follows: order 6
committed: 6, missed: 0
""",
    "transactions.py": """\
orders: 2, dead: 0, invoices: 20 euros for valves
3 pipes, attempt 2
some pumps, attempt 1
  rejected, and a complaint made
orders: 0, dead: 1, invoices: 20 euros for valves, 30 euros for pipes
too late: nothing was published
orders: 1, dead: 1, invoices: 20 euros for valves, 30 euros for pipes
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
