"""Notices as messages on a NATS subject, each with its id as `Nats-Msg-Id`, so that a stream there keeps it once."""

from __future__ import annotations

from collections.abc import Sequence

from jsplan.documents.alert import AlertEvent
from jsplan.documents.base import dumps
from jsplan.drift.sinks.sink import SinkError
from jsplan.errors import JsplanError
from jsplan.jetstream.publisher import Publisher
from jsplan.secrets import conceal


class SubjectSink:
    """Over a connection of its own, the only one of the job that can publish, and only there."""

    batch = 100

    def __init__(self, subject: str, speaker: Publisher) -> None:
        self.name = conceal(f"subject {subject}")
        self._publisher = speaker

    async def send(self, notices: Sequence[AlertEvent]) -> None:
        """Publish them, and wait until the server has them."""
        try:
            await self._publisher.publish(
                [(notice.id, dumps(notice.to_json(), pretty=False)) for notice in notices]
            )
        except JsplanError as error:
            raise SinkError(f"{self.name}: {error}") from None

    async def close(self) -> None:
        """Hang up."""
        await self._publisher.close()
