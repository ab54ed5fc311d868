"""One Spark session for all tests of the pipeline: starting one takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import pipeline
from tests.unit.pipeline.serving import place

ROOT = Path(__file__).parents[2]

QUICK: dict[str, Any] = {
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": 2,
    "spark.default.parallelism": 2,
    "spark.sql.adaptive.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


def started(**settings: Any) -> SparkSession:
    """A session on two cores that tries a task three times, and whose workers can import what tests define."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    )
    return pipeline.session("tests", "local[2, 3]", **{**QUICK, **settings})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark starts processes for nearly everything: on a busy machine that takes its time."""
    for item in items:
        if (
            item.path.is_relative_to(ROOT / "tests" / "pipeline")
            and item.get_closest_marker("timeout") is None
        ):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    room = str(tmp_path_factory.mktemp("spark"))
    session = started(**{"spark.sql.warehouse.dir": room, "spark.local.dir": room})
    yield session
    session.stop()


@pytest.fixture
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with place(tmp_path / "data", getattr(request, "param", "directory")) as path:
        yield path
