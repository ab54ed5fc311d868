"""Penstock on Spark: every message, and all that happened to it, is a table.

>>> # from penstock import pipeline
>>> # spark = pipeline.session()                       # or pipeline.register(spark) for a session that exists
>>> # spark.read.format("penstock").load("data").show()
"""

from __future__ import annotations

from importlib.util import find_spec

from penstock.errors import MissingExtra

for _needed in ("pyspark", "pyarrow", "numpy"):
    if find_spec(_needed) is None:
        raise MissingExtra(f'the pipeline needs {_needed}; install with: pip install "penstock[spark]"')

from penstock.pipeline.session import register, session  # noqa: E402

__all__ = ["register", "session"]
