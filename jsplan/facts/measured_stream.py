"""One stream while it is measured: as of one INFO, and what else the server reports of it."""

from __future__ import annotations

from typing import Any

from jsplan.address import SERVER_CONSUMER_PREFIXES
from jsplan.documents.deletions import DeletionRequest
from jsplan.facts.interest import ConsumerInterest, parse_interest
from jsplan.facts.measurement import Measurement, MeasurementRequest
from jsplan.facts.messages import MessageReader


class MeasuredStream:
    """A stream as of one INFO, with a `reader`; its consumers are listed at most once."""

    def __init__(
        self,
        reader: MessageReader,
        request: MeasurementRequest,
        info: dict[str, Any],
        level: int,
        limit: int,
        *,
        count_only: bool,
    ) -> None:
        self.api, self.reader, self.budget = reader.api, reader, reader.budget
        self.request, self.level, self.count_only = request, level, count_only
        self.config, self.state, self.limit = info["config"], info["state"], limit
        counts = request.counts
        deletions = counts if isinstance(counts, DeletionRequest) else DeletionRequest()
        self.deletes_later, self.target_storage = deletions.deletes_later, deletions.target_storage
        reader.target_storage = self.target_storage
        self.now = str(info.get("ts") or "")
        self.messages, self.bytes = int(self.state["messages"]), int(self.state["bytes"])
        self.counts: dict[str, int] = {}
        self.consumer_infos: list[dict[str, Any]] | None = None
        self.has_downstream = False

    def result(
        self,
        messages: tuple[int, int],
        size: tuple[int, int] | None,
        causes: list[str],
        until: str = "",
        newest: int = 0,
    ) -> Measurement:
        """Return a result for `messages`, at least and at most; bytes follow where unknown."""
        at_least, at_most = messages
        if size is None:
            size = (
                (0, 0)
                if not at_most
                else (self.bytes, self.bytes)
                if at_least == self.messages
                else (0, self.bytes)
            )
        return Measurement(
            at_least,
            at_most,
            *size,
            self.messages,
            tuple(causes),
            {"last_seq": self.state["last_seq"], "time": self.state.get("last_ts")},
            since=self.state["first_ts"],
            until=until,
            deletes_later=self.deletes_later,
            newest=newest,
        )

    # --- what the server reports at once ---------------------------------------------------------

    async def read_subject_counts(self) -> bool:
        """Read messages per subject, page by page; False for too many, or if they changed."""
        name = self.request.stream.stream
        if self.counts or int(self.state.get("num_subjects") or 0) > 10 * self.limit:
            return bool(self.counts)
        async for page in self.api.pages(
            f"STREAM.INFO.{name}", "subjects", {"subjects_filter": ">"}
        ):
            self.budget.spend(1)
            self.counts |= page["state"].get("subjects") or {}
        if sum(self.counts.values()) != self.messages:
            self.counts = {}
        return bool(self.counts)

    async def read_consumers(self) -> tuple[ConsumerInterest, ...]:
        """Read all consumers but those of servers for downstream streams: they change soon."""
        infos = await self._list_consumers()
        consumers = [parse_interest(info, self.level) for info in infos]
        internal = [c for c in consumers if c.name.startswith(SERVER_CONSUMER_PREFIXES)]
        self.has_downstream = self.has_downstream or bool(internal)
        return tuple(consumer for consumer in consumers if consumer not in internal)

    async def _list_consumers(self) -> list[dict[str, Any]]:
        """List all consumers once, so that limits and interest are measured on the same ones."""
        if self.consumer_infos is None:
            self.consumer_infos = await self.api.all_consumers(self.request.stream.stream)
        return self.consumer_infos
