"""The public API is what it was: a change here is a change for every user."""

from __future__ import annotations

import re
import subprocess
import sys

import penstock
from penstock import errors

PUBLIC = """
Backoff BatchTooLarge Broker BrokerClosed Consumer CorruptJournal Delivery DirectoryLocked DiskFull Forbidden ForkedProcess
Group InvalidArgument InvalidName JournalFailed LeaseLost MaintenanceFailed Message MessageExpired MessageTooLarge MissingExtra
PenstockError Policy PolicyConflict Queue QueueFull QueueNotFound QuotaExceeded Reader Reject Retry ServerUnavailable ShardUnavailable Topic
TopicNotFound Transaction Unauthorized Unsupported Worker WrongKind __version__ aio connect open
""".split()

PUBLIC_AIO = "Broker Consumer Delivery Group Queue Reader Topic Transaction Worker connect open".split()


def test_a_public_name_appeared_or_vanished() -> None:
    assert penstock.__all__ == PUBLIC
    assert penstock.aio.__all__ == PUBLIC_AIO


def test_completion_shows_the_public_names_only() -> None:
    assert dir(penstock) == sorted(PUBLIC)
    assert dir(penstock.aio) == sorted(PUBLIC_AIO)


def test_all_is_not_sorted_or_names_what_is_not_there() -> None:
    assert penstock.__all__ == sorted(penstock.__all__)
    assert [name for name in penstock.__all__ if not hasattr(penstock, name)] == []


def test_an_error_is_not_exported() -> None:
    defined = {
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, Exception)
    }
    assert defined - set(penstock.__all__) == set()


def test_the_version_is_not_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|(a|b|rc)\d+)?", penstock.__version__)


def test_importing_penstock_drags_in_an_optional_package() -> None:
    heavy = "numpy pyarrow typer rich asyncio httpx2 httpcore2 anyio ssl"
    script = f"import sys, penstock; print(*(set('{heavy}'.split()) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
