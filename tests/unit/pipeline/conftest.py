"""Every table is read from its directory, and through a server: by the same tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.pipeline.serving import place


@pytest.fixture
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with place(tmp_path / "data", getattr(request, "param", "directory")) as path:
        yield path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All tests of reading, but those of what only a directory has."""
    if (
        "data" in metafunc.fixturenames
        and metafunc.definition.path.stem in ("test_source", "test_stream")
        and metafunc.definition.get_closest_marker("directory_only") is None
    ):
        through = pytest.param("url", marks=pytest.mark.lengthy)
        metafunc.parametrize("data", ["directory", through], indirect=True)
