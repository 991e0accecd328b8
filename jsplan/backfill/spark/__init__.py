"""JetStream for Spark, in batch and streaming: format `jetstream`.

    from jsplan.backfill.spark import register
    register(spark)
    reader = spark.read.format("jetstream").option("url", "nats://127.0.0.1:4222")
    orders = reader.option("stream", "ORDERS").load()

This is the only package that imports pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.backfill.spark.datasource import JetStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format `jetstream`, and enable the pushdown of filters."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(JetStream)


__all__ = ["JetStream", "register"]
