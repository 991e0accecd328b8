"""Pending ranges of many origins, found in one scan of the target."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jsplan.backfill.parquet.import_ import ParquetPendingScan
from jsplan.backfill.pending import PendingScan
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.tasks import staging_sources
from jsplan.backfill.tasks.copy import ExistingMessages
from jsplan.backfill.tasks.multi_origin_scan import OriginQuery
from jsplan.resources.nested import source_header

if TYPE_CHECKING:
    from jsplan.backfill.parquet.location import ParquetOrigin
    from jsplan.backfill.pinning import Endpoints
    from jsplan.backfill.seq_ranges import OriginState, SeqRange
    from jsplan.topology import Topology


@dataclass(slots=True)
class SharedPendingScan(PendingScan):
    """The scan of one of many origins.

    `is_reordered`: the target does not have its messages in the order of their sequences.
    """

    existing: ExistingMessages = field(default_factory=ExistingMessages)
    coverage: tuple[Any, ...] = ()
    is_reordered: bool = False

    async def build_query(self, info: dict[str, Any]) -> OriginQuery:
        """Build the query for the scan of the target."""
        sources = [
            source for source in info["config"].get("sources") or [] if self._is_origin(source)
        ]
        self.coverage = tuple(
            await asyncio.gather(*(self._build_coverage(source) for source in sources))
        )
        names = {source_header(source)[0] for source in [*sources, self._build_source()]}
        return OriginQuery(
            f"{self.endpoints.origin_domain_name}/{self.origin_state.origin_address.stream}",
            tuple(sorted(names)),
            parse_time(self.origin_state.created),
        )

    async def _find_existing(self) -> tuple[ExistingMessages, tuple[Any, ...]]:
        return self.existing, self.coverage

    async def _drop_expired(self, spans: list[SeqRange], known: ExistingMessages) -> list[SeqRange]:
        """Drop expired spans; with partitions by subject they look like pending ones."""
        info = await staging_sources.require_stream_info(
            self.endpoints.target, self.origin_state.target_address.stream
        )
        if self.is_reordered and int(info["state"]["first_seq"]) > self.origin_state.target_next:
            return []
        return await PendingScan._drop_expired(self, spans, known)  # noqa: SLF001 - slots: no super()


class SharedParquetPendingScan(SharedPendingScan, ParquetPendingScan):
    """The scan of one of many origins that is read from an archive."""

    def __init__(
        self,
        origin_state: OriginState,
        endpoints: Endpoints,
        topology: Topology,
        archive: ParquetOrigin,
        *,
        mixed: bool,
    ) -> None:
        ParquetPendingScan.__init__(self, origin_state, endpoints, topology, archive)
        self.existing, self.coverage, self.is_reordered = ExistingMessages(), (), mixed
