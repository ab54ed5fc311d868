"""What the fault tests share with pytest: the way to their own modules, and a loud word about what could not be tried."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:  # `pytest` alone, unlike `python -m pytest`, leaves the root out
    sys.path.insert(0, str(ROOT))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if "tests/faults/" in report.nodeid and isinstance(report.longrepr, tuple)
    ]
    if not skipped:
        return
    terminalreporter.section("FAULTS THAT WERE NOT TRIED", sep="!", yellow=True, bold=True)
    for report in skipped:
        terminalreporter.line(f"WARNING: {report.nodeid}: {report.longrepr[2]}", yellow=True)
