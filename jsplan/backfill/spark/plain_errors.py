"""Errors as a user of Spark sees them: one text, without frames of Python.

Spark sends an exception of a Python worker to the driver as its formatted traceback, unless
`SPARK_HIDE_TRACEBACK` is set in that process, which ends with the exception.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import NoReturn, ParamSpec, TypeVar

from jsplan.errors import JsplanError

P = ParamSpec("P")
Result = TypeVar("Result")


class SourceError(JsplanError):
    """An error of the format `jetstream`, with what to do about it in its text."""


def plain_errors(call: Callable[P, Result]) -> Callable[P, Result]:
    """Let a method raise its JsplanErrors as SourceErrors, without a traceback in Spark."""

    @functools.wraps(call)
    def plain(*given: P.args, **named: P.kwargs) -> Result:
        try:
            return call(*given, **named)
        except JsplanError as error:
            _raise_plain(error)

    return plain


def plain_rows(call: Callable[P, Iterator[Result]]) -> Callable[P, Iterator[Result]]:
    """Do what `plain_errors` does, for a method that yields."""

    @functools.wraps(call)
    def plain(*given: P.args, **named: P.kwargs) -> Iterator[Result]:
        try:
            yield from call(*given, **named)
        except JsplanError as error:
            _raise_plain(error)

    return plain


def _raise_plain(error: JsplanError) -> NoReturn:
    os.environ["SPARK_HIDE_TRACEBACK"] = "true"
    raise SourceError(error.full_text) from None
