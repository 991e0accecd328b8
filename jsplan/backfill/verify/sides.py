"""Both sides of a comparison, as data: a stream or an archive, transformed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import pyarrow.compute as pc
from msgspec.structs import replace

from jsplan.backfill.copy_origin import CopyOrigin, load_origin, require_distinct
from jsplan.backfill.endpoints import Endpoints, require_same_stream, require_same_streams
from jsplan.backfill.entry import has_transforms, is_joint_copy
from jsplan.backfill.parquet.location import resolve_store
from jsplan.backfill.parquet.manifest import Archive
from jsplan.backfill.pending import PendingScan
from jsplan.backfill.protocol import read, stream_info
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.rows.message_rows import ComparedOrigin
from jsplan.backfill.rows.readers import (
    Comparison,
    SideReader,
    read_kept_rows,
    read_origin_rows,
    read_target_rows,
)
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import parse_origins
from jsplan.backfill.tasks.origin_task import OriginTask
from jsplan.backfill.tasks.partitioning import Partition, PartitionPlan, TransformSpec
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.transforms import build_transform_spec
from jsplan.config.model import Backfill
from jsplan.context import Context
from jsplan.identity import KnownObject
from jsplan.jetstream import Pool
from jsplan.planning.backfill.model import OriginState, SeqRange
from jsplan.units import parse_instant

#: An archive may lack messages that the stream had: no sequence is impossible.
_NO_LAST_SEQ: Final = 1 << 62
#: Limits by which a stream deletes messages.
_EXPIRY_LIMITS: Final = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")
StreamInfo = dict[str, Any]


async def build_comparison(
    context: Context, pool: Pool, entry: Backfill, states: Sequence[OriginState]
) -> Comparison:
    """Build both sides of an entry.

    Raises JsplanError if a stream was recreated, ApiError and ArchiveError.
    """
    transforms = build_transform_spec(context.workspace.root, entry)
    into_archive = entry.target.parquet is not None
    # Spark workers inherit the environment that this sets, so it comes before Spark starts.
    origins = [
        await load_origin(context, pool, state, into_archive=into_archive) for state in states
    ]
    if into_archive:
        comparison, tasks = await _read_export(context, entry, origins)
    elif origins:
        comparison, tasks = await _read_copy(context, entry, origins, transforms)
    else:
        return Comparison()
    if tasks:
        partition = Partition(tasks[0].source, "", "")
        unordered = replace(transforms, order="none")
        comparison.plan = PartitionPlan((partition,), tuple(tasks), unordered)
    return comparison


# --- a stream as the target -----------------------------------------------------------------------


async def _read_copy(
    context: Context, entry: Backfill, origins: Sequence[CopyOrigin], transforms: TransformSpec
) -> tuple[Comparison, list[OriginTask]]:
    if is_joint_copy(entry):
        require_distinct(entry.name, origins)
    endpoints = origins[0].endpoints
    target = await require_stream_info(endpoints.target, entry.target.stream)
    comparison, tasks, infos = Comparison(), list[OriginTask](), list[StreamInfo]()
    for number, origin in enumerate(origins):
        info = await origin.reader.fetch_info()
        require_same_streams(origin.state, info, target)
        names = PendingScan(origin, context.topology).list_source_names(target)
        comparison.origins.append(_build_compared_origin(number, origin, info, names))
        if origin.archive is not None:
            comparison.is_transformed |= origin.archive.origin.is_transformed
        infos.append(info)
    comparison.origins = [
        _end_at_successor(each, comparison.origins) for each in comparison.origins
    ]
    restored = any(origin.state.strategy == "snapshot" for origin in origins)
    comparison.readers = _read_target(endpoints, target, comparison, transforms.order, restored)
    for origin, compared, info in zip(origins, comparison.origins, infos, strict=True):
        tasks += _add_origin_side(comparison, entry, origin, compared, info)
    if restored or any(target["config"].get(limit, -1) > 0 for limit in _EXPIRY_LIMITS):
        is_unordered = bool(tasks) and transforms.order != "stream"
        comparison.find_floors = partial(_find_floors, comparison.origins, origins, is_unordered)
    return comparison, tasks


def _end_at_successor(origin: ComparedOrigin, origins: Sequence[ComparedOrigin]) -> ComparedOrigin:
    """Return an origin that ends where the next stream of its name in an archive begins."""
    later = [
        other.created_at
        for other in origins
        if (other.domain, other.stream) == (origin.domain, origin.stream)
        and other.created_at > origin.created_at
    ]
    return replace(origin, replaced_at=min([origin.replaced_at, *later]))


def _read_target(
    endpoints: Endpoints,
    target: StreamInfo,
    comparison: Comparison,
    order: str,
    restored: bool,
) -> list[SideReader]:
    endpoint, origins = endpoints.target_endpoint, tuple(comparison.origins)
    stream = target["config"]["name"]
    # the first sequence of a stream without messages is 0
    first, last = max(1, int(target["state"]["first_seq"])), int(target["state"]["last_seq"])
    request = ReadRequest(endpoint.api_prefix, stream, first, last, known=_known(target))
    if not restored:
        return [partial(read_target_rows, endpoint, request, origins, order)]
    span = SeqRange(origins[0].first, origins[0].last)
    task = OriginTask(endpoint, "", stream, (span,) if span.size > 0 else (), ())
    rest = replace(request, first=max(first, span.last + 1))
    return [
        partial(read_kept_rows, task, origins[0]),
        partial(read_target_rows, endpoint, rest, origins, order),
    ]


def _known(info: StreamInfo) -> KnownObject:
    return KnownObject(info["created"], str(info.get("ts") or ""))


def _build_compared_origin(
    number: int, origin: CopyOrigin, info: StreamInfo, source_names: tuple[str, ...]
) -> ComparedOrigin:
    state = origin.state
    gaps = state.gaps if origin.archive is None else ()
    return ComparedOrigin(
        number,
        origin.endpoints.origin_domain_name,
        state.origin_address.stream,
        state.first,
        state.last,
        parse_instant(state.created),
        int(info["state"].get("last_seq", _NO_LAST_SEQ)),
        source_names,
        bool(source_names),
        tuple((first, last) for first, last in gaps),
        tuple(state.skipped),
    )


def _add_origin_side(
    comparison: Comparison,
    entry: Backfill,
    origin: CopyOrigin,
    compared: ComparedOrigin,
    info: StreamInfo,
) -> list[OriginTask]:
    """Add the reader of an origin. Return the task that makes the expected messages, if any."""
    span = origin.state.seq_range
    task = replace(origin.build_task((span,) if span.size > 0 else ()), known=_known(info))
    is_presence = has_transforms(entry)
    comparison.readers.append(partial(read_origin_rows, task, compared, is_presence=is_presence))
    return [task] if is_presence else []


def _find_floors(
    compared_origins: Sequence[ComparedOrigin],
    origins: Sequence[CopyOrigin],
    is_unordered: bool,
) -> dict[int, int]:
    """Find the floors of all origins now. Raises ApiError and ConnectError.

    If `is_unordered`, expired and missing messages cannot be distinguished.
    """
    endpoint, stream = origins[0].endpoints.target_endpoint, origins[0].state.target_address.stream
    connection = endpoint.open()
    try:
        target = stream_info.fetch_stream_info(connection, endpoint.api_prefix, stream)
    finally:
        connection.close()
    floors = {}
    for compared, origin in zip(compared_origins, origins, strict=True):
        # restored messages have their sequences: below the first one everything has expired
        floor = (
            target.first
            if origin.state.strategy == "snapshot"
            else _find_expiry_floor(compared, origin.state, endpoint, target)
        )
        floors[compared.number] = compared.last + 1 if is_unordered and floor else floor
    return floors


def _find_expiry_floor(
    compared: ComparedOrigin,
    origin_state: OriginState,
    endpoint: Endpoint,
    target: stream_info.StreamInfo,
) -> int:
    """Return the origin sequence below which messages have expired at the target.

    The target deletes its oldest messages because of its limits. 0: none.
    """
    if target.config.get("max_msgs_per_subject", -1) > 0:
        # messages that such a limit deleted cannot be distinguished from other missing ones
        return origin_state.last + 1 if origin_state.status == "done" else 0
    if (
        not any(target.config.get(limit, -1) > 0 for limit in _EXPIRY_LIMITS)
        or target.first <= origin_state.target_next
        or origin_state.status != "done"
    ):
        return 0
    request = ReadRequest(
        endpoint.api_prefix,
        origin_state.target_address.stream,
        target.first,
        target.last,
        headers_only=True,
    )
    for rows in read(endpoint.open, request) if target.first <= target.last else ():
        names, seqs, _ = parse_origins(rows["headers"])
        seqs = seqs.filter(pc.equal(names, compared.name))
        if len(seqs):
            return int(seqs[0].as_py())
    return origin_state.last + 1


# --- an archive as the target ---------------------------------------------------------------------


async def _read_export(
    context: Context, entry: Backfill, origins: Sequence[CopyOrigin]
) -> tuple[Comparison, list[OriginTask]]:
    comparison, tasks = Comparison(), list[OriginTask]()
    store = resolve_store(context, entry.target.parquet or "")
    archive = await asyncio.to_thread(Archive.read, store)
    missing = await asyncio.to_thread(archive.find_missing_files)
    for number, origin in enumerate(origins):
        state = origin.state
        info = await origin.reader.fetch_info()
        require_same_stream(state.origin, KnownObject(state.created, ""), info)
        compared = replace(_build_compared_origin(number, origin, info, ()), gaps=())
        found = archive.find(
            (origin.endpoints.origin_domain_name, state.origin_address.stream, state.created)
        )
        files = found.files if found is not None else []
        placed = tuple((store, file) for file in files if file.name not in missing)
        comparison.origins.append(compared)
        if placed:
            task = replace(origin.build_task((state.seq_range,)), files=placed)
            comparison.readers.append(partial(read_kept_rows, task, compared))
        transformed = _add_origin_side(comparison, entry, origin, compared, info)
        # the archive may have messages that the entry did not select then
        if transformed and found is not None and found.origin.where != entry.where:
            comparison.readers.pop()
        tasks += transformed
    return comparison, tasks
