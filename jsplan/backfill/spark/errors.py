"""Interpret errors of Spark: an error of jsplan, of the user's code, or a dead worker."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jsplan.backfill.spark.executors import error_to_result, raise_failure, raise_worker_death
from jsplan.backfill.spark.user_transforms import first_error_line
from jsplan.errors import JsplanError, RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jsplan.backfill.tasks.partitioning import TransformSpec

#: Pattern of a transported error in the message of Spark.
_ERROR_PATTERN = re.compile(r"jsplan-said:([A-Za-z0-9+/=]+):")
#: Bytes of a batch from Spark to Python, where the release supports the setting.
_BATCH_SETTINGS: Final = {"spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20)}


class CarriedError(Exception):
    """Error of jsplan that Spark transports from a reader to the driver."""

    def __init__(self, error: JsplanError) -> None:
        super().__init__(
            f"jsplan-said:{base64.b64encode(json.dumps(error_to_result(error)).encode()).decode()}:"
        )


class UserFunctionError(RefusedError):
    """Error of a user's function while it ran."""


def collect_frame(
    session: SparkSession, frame: DataFrame, transforms: TransformSpec, name: str
) -> list[Any]:
    """Collect the rows of a frame. Raises as `raise_spark_error`."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no stubs
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a slow import

    session.sparkContext.setJobDescription(name)
    before = {key: session.conf.get(key, None) for key in _BATCH_SETTINGS}
    try:
        for key, value in _BATCH_SETTINGS.items():
            session.conf.set(key, value)
        return frame.collect()
    except (PySparkException, Py4JError) as error:
        raise_spark_error(error, transforms)
    finally:
        with contextlib.suppress(PySparkException, Py4JError):  # the session may have stopped
            for key, old in before.items():
                session.conf.unset(key) if old is None else session.conf.set(key, old)


def raise_spark_error(error: Exception, transforms: TransformSpec) -> NoReturn:
    """Raise the error that an error of Spark means.

    It is an error of jsplan, of the user's function or SQL, or WorkerDiedError.
    """
    text = str(error)
    if (match := _ERROR_PATTERN.search(text)) is not None:
        raise_failure([json.loads(base64.b64decode(match[1]))])
    if (
        transforms.transform is not None
        and "Traceback (most recent call last)" in text
        and transforms.transform.path in text
    ):
        raise UserFunctionError(f"transform {transforms.transform}: {_last_line(text)}") from None
    if transforms.needs_rows and (condition := _sql_error_name(error)):
        if transforms.transform is not None:
            raise UserFunctionError(
                f"transform {transforms.transform}: {condition} {first_error_line(error)}"
            ) from None
        raise RefusedError(
            f"where: {condition} {first_error_line(error)}. Nothing of this attempt was copied"
        ) from None
    raise_worker_death(error)


def _sql_error_name(error: Exception) -> str:
    """Return Spark's name of an error in the user's SQL; empty for any other error."""
    names = (
        "ArithmeticException",
        "NumberFormatException",
        "DateTimeException",
        "ArrayIndexOutOfBoundsException",
        "SparkRuntimeException",
    )
    return type(error).__name__ if type(error).__name__ in names else ""


def _last_line(text: str) -> str:
    """Return the error at the end of a traceback."""
    lines = [
        line.strip()
        for line in text[text.index("Traceback (most recent call last)") :].splitlines()
    ]
    return next(
        (line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception|Interrupt)?: ", line)),
        "it failed",
    )[:300]
