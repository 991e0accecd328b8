"""The target of an apply that made it from a snapshot and ended before it recorded that."""

from __future__ import annotations

from jsplan.backfill.copy_origin import CopyOrigin
from jsplan.backfill.endpoints import Endpoints
from jsplan.backfill.origin_reader import StreamReader
from jsplan.backfill.run_context import RunContext
from jsplan.backfill.seq_ranges import count_sequences, intersect
from jsplan.backfill.snapshot_copy import SNAPSHOT_PATH, require_same_messages
from jsplan.backfill.tasks.staging_streams import await_stream_info
from jsplan.documents.backfill import OriginResult
from jsplan.errors import JsplanError
from jsplan.planning.backfill.model import MAX_LISTED_RANGES, OriginState


async def is_made_from_snapshot(
    context: RunContext, origin: CopyOrigin, result: OriginResult
) -> bool:
    """Verify the target of an origin whose strategy is `snapshot`, and fill in its result.

    Returns False, with a warning, if Spark has to copy something.
    """
    state, endpoints = origin.state, origin.endpoints
    if state.strategy != "snapshot" or state.status == "done":
        return False
    if not state.target_created:
        info = await await_stream_info(endpoints.target, state.target_address.stream)
        state.target_created = info["created"]
    try:
        await require_same_messages(state, endpoints)
    except JsplanError as error:
        context.observer.warn(f"{error}. Spark copies the pending messages")
        return False
    result.gaps, result.gap_messages = await find_snapshot_gaps(state, endpoints)
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
