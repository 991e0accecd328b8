"""JetStream for Spark: `spark.read.format("jetstream")`, `readStream` and `df.write.format("jetstream")`.

    from jsplan.backfill.spark import register
    register(spark)
    orders = spark.read.format("jetstream").option("url", "nats://127.0.0.1:4222").option("stream", "ORDERS").load()

The only room that imports pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.backfill.spark.datasource import JetStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format `jetstream` known to a session, and let Spark hand filters on seq, time and subject down to it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(JetStream)


__all__ = ["JetStream", "register"]
