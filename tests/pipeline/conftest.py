"""One Spark session for all tests of the pipeline: starting one takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import pipeline
from tests.pipeline.plain_sink import PlainSink

ROOT = Path(__file__).parents[2]

QUICK: dict[str, Any] = {
    "spark.sql.shuffle.partitions": 2,
    "spark.default.parallelism": 2,
    "spark.sql.adaptive.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.log.level": "OFF",
}


def started(**settings: Any) -> SparkSession:
    """A session whose workers can import what tests define, and in which a task may fail three times."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    )
    found = pipeline.session("tests", "local[2, 3]", **{**QUICK, **settings})
    found.dataSource.register(PlainSink)
    return found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    found = started(**{"spark.sql.warehouse.dir": warehouse, "spark.local.dir": warehouse})
    yield found
    found.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"
