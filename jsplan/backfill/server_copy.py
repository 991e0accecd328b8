"""The strategy of the copy of one origin, which a resumed run keeps."""

from __future__ import annotations

from jsplan.backfill.copier import Copier
from jsplan.backfill.copy_origin import CopyOrigin
from jsplan.backfill.endpoints import Endpoints
from jsplan.backfill.origin_reader import StreamReader
from jsplan.backfill.run_context import RunContext
from jsplan.backfill.seq_ranges import count_sequences, intersect
from jsplan.backfill.snapshot_copy import SNAPSHOT_PATH, require_same_messages
from jsplan.backfill.tasks.staging_sources import await_stream_info
from jsplan.errors import JsplanError
from jsplan.planning.backfill.model import MAX_LISTED_RANGES, OriginState


class ServerCopy:
    """The copy of one stream that may be made from a snapshot; `copier` copies what is left."""

    def __init__(self, context: RunContext, origin: CopyOrigin, copier: Copier) -> None:
        self._context = context
        self._state, self._endpoints = origin.state, origin.endpoints
        self._copier = copier
        self.results = copier.results

    @property
    def found_existing(self) -> bool:
        """True if the target had messages of the origin that the servers did not copy."""
        return self._copier.found_existing

    async def run(self) -> None:
        """Copy the pending messages and verify them. Raises the errors of `Copier.run`."""
        is_restored = self._state.strategy == "snapshot" and self._state.status != "done"
        if not (is_restored and await self._is_made_from_snapshot()):
            await self._copier.run()

    async def _is_made_from_snapshot(self) -> bool:
        """Verify a restored target of an interrupted apply, which did not record it."""
        if not self._state.target_created:
            target = self._state.target_address.stream
            info = await await_stream_info(self._endpoints.target, target)
            self._state.target_created = info["created"]
        try:
            await require_same_messages(self._state, self._endpoints)
        except JsplanError as error:
            self._context.observer.warn(f"{error}. Spark copies the pending messages")
            return False
        result = self.results[0]
        result.gaps, result.gap_messages = await find_snapshot_gaps(self._state, self._endpoints)
        result.verified, result.attempts, result.path = True, 1, SNAPSHOT_PATH
        return True


async def find_snapshot_gaps(
    state: OriginState, endpoints: Endpoints
) -> tuple[list[list[int]], int]:
    """Find the gaps of the range at the origin: ranges and their count. Raises ApiError."""
    if state.seq_range.size <= 0:
        return [], 0
    gone = intersect([state.seq_range], await StreamReader(state, endpoints).find_gone())
    return [list(span) for span in gone[:MAX_LISTED_RANGES]], count_sequences(gone)
