"""Notifications as messages on a NATS subject, deduplicated by `Nats-Msg-Id`."""

from __future__ import annotations

from collections.abc import Sequence

from jsplan.documents.alert import AlertEvent
from jsplan.documents.base import dumps
from jsplan.drift.service.sinks.delivery import SinkError
from jsplan.errors import JsplanError
from jsplan.jetstream.publisher import Publisher
from jsplan.secrets import conceal


class SubjectSink:
    """Publishes over its own connection, the only one of the job that can publish."""

    batch = 100

    def __init__(self, subject: str, publisher: Publisher) -> None:
        self.name = conceal(f"subject {subject}")
        self._publisher = publisher

    async def send(self, notifications: Sequence[AlertEvent]) -> None:
        """Publish them, and wait until the server has them."""
        try:
            await self._publisher.publish(
                [(event.id, dumps(event.to_json(), pretty=False)) for event in notifications]
            )
        except JsplanError as error:
            raise SinkError(f"{self.name}: {error}") from None

    async def close(self) -> None:
        """Close the connection."""
        await self._publisher.close()
