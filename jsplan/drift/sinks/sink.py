"""What every sink is. What becomes of a failure is left to `delivery`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jsplan.documents.alert import AlertEvent
from jsplan.errors import JsplanError


class SinkError(JsplanError):
    """A sink did not take what it was given; it is tried again. The message holds no URL, header or password."""


class Sink(Protocol):
    """One place that is told."""

    @property
    def name(self) -> str:
        """What logs and metrics call it; without secrets."""

    @property
    def batch(self) -> int:
        """How many notices it takes at once."""

    async def send(self, notices: Sequence[AlertEvent]) -> None:
        """Hand them over; when this returns they are there. Raises SinkError; then any of them may be there all the same."""

    async def close(self) -> None:
        """Let go of what it holds; never raises."""
