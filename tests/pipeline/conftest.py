"""One Spark session for all tests of the pipeline: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import pipeline

QUICK: dict[str, Any] = {
    "spark.sql.shuffle.partitions": 2,
    "spark.default.parallelism": 2,
    "spark.sql.adaptive.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    found = pipeline.session(
        "tests",
        "local[2]",
        **QUICK,
        **{"spark.sql.warehouse.dir": str(warehouse), "spark.local.dir": str(warehouse)},
    )
    yield found
    found.stop()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"
