"""The pages about the pipeline: their code runs and prints what they show. They use the session of all tests, which exists already."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline import options, schema, sink
from tests.unit.test_docs import ON_SPARK, named, named_in, rows, run_page, section

REFERENCE = ON_SPARK[1]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", ON_SPARK, ids=named)
def test_a_page_shows_code_that_fails_or_prints_something_else(
    page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(page, timeout_s=300), "no code at all"


def test_the_page_has_other_options_or_columns_than_the_code() -> None:
    assert [
        named_in(cells[0]) for cells in rows(section(REFERENCE, "The source").partition("Different")[0])
    ] == [[name] for name in options._NAMES]
    for table in schema.TABLES.values():
        told = {named_in(name)[0]: kind for name, kind, _ in rows(section(REFERENCE, table.name))}
        exist = {
            field.name: field.dataType.simpleString()
            for field in schema.spark(table, tuple(table.columns)).fields
        }
        assert told == exist
    columns, settings = section(REFERENCE, "The sink").split("| option |")
    assert {named_in(cells[0])[0]: cells[1] for cells in rows(columns)} == {
        name: said.replace("seconds or", "seconds, or") for name, (_, said) in sink.COLUMNS.items()
    }
    assert [name for cells in rows("| option |" + settings) for name in named_in(cells[0])] == list(
        sink.OPTIONS
    )
