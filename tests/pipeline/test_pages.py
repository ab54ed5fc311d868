"""The pages about the pipeline: their code runs and prints what they show, and their tables are the code's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipeline import options, schema, sink
from tests.unit.test_docs import ON_SPARK, ROOT, named, named_in, rows, section

REFERENCE = ON_SPARK[1]

#: Each page in a process and a directory of its own: where Spark is started is what the page means by its paths.
READ = """
import sys
from pathlib import Path
from tests.unit.test_docs import run_page
assert run_page(Path(sys.argv[1]), timeout_s=300)
"""


@pytest.mark.parametrize("page", ON_SPARK, ids=named)
def test_a_page_shows_code_that_fails_or_prints_something_else(page: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", READ, str(page)], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=590, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_has_other_options_or_columns_than_the_code() -> None:
    assert [
        named_in(cells[0]) for cells in rows(section(REFERENCE, "The source").partition("Different")[0])
    ] == [[name] for name in options._NAMES]
    for table in schema.TABLES.values():
        told = {named_in(name)[0]: kind for name, kind, *_ in rows(section(REFERENCE, table.name))}
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
