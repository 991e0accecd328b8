"""The transformation of orders-clean.

The text of this file is part of the job: executors need no copy of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _trimmed(data: bytes) -> bytes:
    return data.rstrip()


def run(frame: DataFrame) -> DataFrame:
    """Payloads without the blanks at their end, under subjects that begin with `clean.`."""
    return frame.withColumn("data", f.udf(_trimmed, "binary")("data")).withColumn(
        "subject", f.concat(f.lit("clean."), "subject")
    )
