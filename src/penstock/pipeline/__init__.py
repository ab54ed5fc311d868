"""Penstock on Spark: every message, and all that happened to it, is a table.

>>> # from penstock import pipeline
>>> # spark = pipeline.session()                       # or pipeline.register(spark) for a session that exists
>>> # spark.read.format("penstock").load("data").show()
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock.errors import MissingExtra

if TYPE_CHECKING:
    from typing import Any

for _needed in ("pyarrow", "numpy"):
    if find_spec(_needed) is None:
        raise MissingExtra(f'the pipeline needs {_needed}; install with: pip install "penstock[spark]"')

if find_spec("pyspark") is not None:
    from penstock.pipeline.session import register, session
else:  # a server makes tables for Spark that runs elsewhere

    def __getattr__(name: str) -> Any:
        if name in __all__:
            raise MissingExtra('the pipeline needs pyspark; install with: pip install "penstock[spark]"')
        raise AttributeError(name)


__all__ = ["register", "session"]
