"""The pending messages of a preview, counted by servers or compared by headers.

If the target has no message of an origin, the server of the origin counts the range; else the
headers of the target are read and compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.backfill.origin_reader import CopyOrigin, load_origin
from jsplan.backfill.pending import PendingScan, scan_pending
from jsplan.backfill.seq_ranges import count_sequences, intersect
from jsplan.backfill.tasks.origin_task import read_messages
from jsplan.documents.backfill import COMPARED, COUNTED, OriginPreview

if TYPE_CHECKING:
    from jsplan.backfill.pending_ranges import PendingRanges
    from jsplan.config.model import Backfill
    from jsplan.context import Context
    from jsplan.jetstream import Pool
    from jsplan.planning.backfill.model import OriginState


async def count_pending(
    world: Context,
    pool: Pool,
    entry: Backfill,
    states: Sequence[OriginState],
    *,
    has_target: bool,
) -> list[OriginPreview]:
    """Count the pending messages of ranges, with one scan of the target, if there is one.

    Raises ApiError, ConnectError and ArchiveError.
    """
    origins = [
        await load_origin(world, pool, state, into_archive=not has_target) for state in states
    ]
    wanted = [number for number, state in enumerate(states) if state.status != "done"]
    scanned: dict[int, PendingRanges] = {}
    if has_target and wanted:
        scans = [PendingScan(origins[number], world.topology) for number in wanted]
        found = await scan_pending(scans, is_reordered=entry.order != "stream")
        scanned = dict(zip(wanted, found, strict=True))
    return [await _preview(origin, scanned.get(n)) for n, origin in enumerate(origins)]


async def _preview(origin: CopyOrigin, pending: PendingRanges | None) -> OriginPreview:
    state, reader = origin.state, origin.reader
    preview = OriginPreview(state.origin, state.target, state.first, state.last)
    stored = (await reader.fetch_info())["state"]
    if origin.recorded_gaps is not None:
        _, preview.gap_messages = origin.recorded_gaps
    elif state.seq_range.size > 0:
        gone = intersect([state.seq_range], await reader.find_gone())
        preview.gap_messages = count_sequences(gone)
    if state.status == "done":
        return replace(preview, done=True, messages=0, bytes=0, measured=COUNTED)
    if state.archive and pending is not None:
        messages, preview.measured = pending.messages, COMPARED
        preview.in_target = int(stored["messages"]) - messages
    elif pending is None or not (len(pending.existing.seq) or pending.coverage):
        messages = await reader.count_messages() if state.seq_range.size > 0 else 0
        preview.measured = COUNTED
    else:
        messages = await asyncio.to_thread(_count_messages, origin, pending)
        preview.measured, existing = COMPARED, pending.existing.seq
        preview.in_target = int(((existing >= state.first) & (existing <= state.last)).sum())
        if not pending.is_exact:  # some of those are not of this origin
            preview.in_target = max(0, await reader.count_messages() - messages)
    preview.messages = messages
    preview.bytes = messages * int(stored["bytes"]) // max(1, int(stored["messages"]))
    return preview


def _count_messages(origin: CopyOrigin, pending: PendingRanges) -> int:
    """Count the pending messages of a stream. Raises the errors of `protocol.read`."""
    task = replace(
        origin.build_task(pending.spans), existing=pending.existing, coverage=pending.coverage
    )
    return sum(rows.num_rows for rows in read_messages(task, headers_only=True))
