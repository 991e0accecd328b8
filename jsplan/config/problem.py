"""The result of the checks between fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Body = Mapping[str, Any]


class Problem(NamedTuple):
    """One contradiction; `field` is where it is shown."""

    code: str
    field: str
    summary: str
    detail: str


Problems = Iterator[Problem]
