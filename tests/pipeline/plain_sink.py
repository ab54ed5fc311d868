"""The sink alone, under a name of its own."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from penstock.pipeline import sink


class PlainSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock-sink"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return sink.writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return sink.stream_writer(schema, self.options, overwrite)
