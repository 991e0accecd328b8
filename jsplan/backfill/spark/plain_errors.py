"""Errors as a user of Spark sees them: one text, without frames of Python.

Spark sends an exception of a Python worker to the driver as its formatted traceback, unless
`SPARK_HIDE_TRACEBACK` is set in that process, which ends with the exception.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from jsplan.errors import JsplanError


class SourceError(JsplanError):
    """An error of the format `jetstream`, with what to do about it in its text."""


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise a JsplanError of the block, or of the decorated method, as a SourceError.

    Spark then shows no traceback. A method that yields needs the block: a decorator ends with the
    call, before the first row.
    """
    try:
        yield
    except JsplanError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "true"
        raise SourceError(error.full_text) from None
