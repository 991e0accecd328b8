"""The protocol of sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jsplan.documents.alert import AlertEvent
from jsplan.errors import JsplanError


class SinkError(JsplanError):
    """A sink did not accept a batch; it is retried. The message has no URL, header or password."""


class Sink(Protocol):
    """One destination of notifications."""

    @property
    def name(self) -> str:
        """The name for logs and metrics, without secrets."""

    @property
    def batch(self) -> int:
        """The number of notifications in one batch."""

    async def send(self, notifications: Sequence[AlertEvent]) -> None:
        """Deliver them, and return when they arrived. On SinkError some may have arrived."""

    async def close(self) -> None:
        """Release resources; never raises."""
