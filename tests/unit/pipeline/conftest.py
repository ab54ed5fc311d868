"""Every table is read from its directory, and through a server: by the same tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.unit.pipeline.serving import SERVED, Serving


@pytest.fixture
def data(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "data"
    if getattr(request, "param", "directory") == "directory":
        yield path
        return
    SERVED[path] = serving = Serving(path)
    monkeypatch.setattr(penstock, "open", serving.open)
    yield path
    serving.release()
    del SERVED[path]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All tests of reading, but those of what only a directory has."""
    if (
        "data" in metafunc.fixturenames
        and metafunc.definition.path.stem in ("test_source", "test_stream")
        and metafunc.definition.get_closest_marker("directory_only") is None
    ):
        metafunc.parametrize("data", ["directory", "url"], indirect=True)
