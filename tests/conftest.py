"""What holds for all tests."""

from __future__ import annotations

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A shell has what it starts in the background ignore Ctrl-C, and with it all that this starts. Here it is heard, however the tests are started."""
    del config
    signal.signal(signal.SIGINT, signal.default_int_handler)
