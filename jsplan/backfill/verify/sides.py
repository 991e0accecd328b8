"""Both sides of a comparison, as data: a stream or an archive, transformed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.backfill.copy_origin import CopyOrigin, load_origin, require_distinct
from jsplan.backfill.endpoints import Endpoints, require_same_stream, require_same_streams
from jsplan.backfill.entry import has_transforms, is_joint_copy
from jsplan.backfill.parquet.location import resolve_store
from jsplan.backfill.parquet.manifest import Archive
from jsplan.backfill.pending import PendingScan
from jsplan.backfill.protocol import read, stream_info
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.rows.message_rows import ComparedOrigin, read_origin_rows, read_target_rows
from jsplan.backfill.rows.parquet_rows import (
    read_archived_origin_rows,
    read_archived_presence,
    read_archived_target_rows,
)
from jsplan.backfill.rows.partitioned_rows import read_partitioned_rows, read_presence_rows
from jsplan.backfill.rows.restored_rows import read_restored_rows
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import parse_origin_header
from jsplan.backfill.tasks.origin_task import OriginTask
from jsplan.backfill.tasks.partitioning import Partition, PartitionPlan
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.transforms import TransformSpec, build_transform_spec
from jsplan.config.model import Backfill
from jsplan.context import Context
from jsplan.identity import KnownObject
from jsplan.jetstream import Pool
from jsplan.planning.backfill.model import BackfillState, OriginState, SeqRange
from jsplan.units import parse_instant

if TYPE_CHECKING:
    from jsplan.backfill.spark.verify_join import FloorFinder, SideReader

#: An archive may lack messages that the stream had: no sequence is impossible.
_NO_LAST_SEQ: Final = 1 << 62
#: Limits by which a stream deletes messages.
_EXPIRY_LIMITS: Final = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")
StreamInfo = dict[str, Any]


class Comparison(Struct):
    """Both sides of an entry, and how their messages are matched.

    `readers` read the rows of both sides. If `tasks` are given, they and `transforms` make the
    expected messages, and of the origins `readers` only read which messages they have.
    `find_floors` finds for each origin the sequence below which everything has expired at the
    target by now (0: none). It is None if nothing expires there. `has_transformed_origin`: an
    archive has changed messages, so a source of the target delivers other ones.
    """

    transforms: TransformSpec
    origins: list[ComparedOrigin] = field(default_factory=list)
    readers: list[SideReader] = field(default_factory=list)
    tasks: list[OriginTask] = field(default_factory=list)
    find_floors: FloorFinder | None = None
    has_transformed_origin: bool = False

    @property
    def plan(self) -> PartitionPlan | None:
        """The plan that makes the expected messages; None if those of the origins are expected."""
        if not self.tasks:
            return None
        transforms = self.transforms
        return PartitionPlan(
            (Partition(self.tasks[0].source, "", ""),),
            tuple(self.tasks),
            "none",
            (),
            transforms.where,
            transforms.transform,
            transforms.subject_transform,
        )


async def build_comparison(
    context: Context, pool: Pool, entry: Backfill, record: BackfillState
) -> Comparison:
    """Build both sides of an entry.

    Raises JsplanError if a stream was recreated, ApiError and ArchiveError.
    """
    if entry.target.parquet is not None:
        return await _build_export_comparison(context, pool, entry, record.origins)
    return await _build_stream_comparison(context, pool, entry, record.origins)


# --- a stream as the target -----------------------------------------------------------------------


async def _build_stream_comparison(
    context: Context, pool: Pool, entry: Backfill, states: Sequence[OriginState]
) -> Comparison:
    comparison = Comparison(build_transform_spec(context.workspace.root, entry))
    # Spark workers inherit the environment that this sets, so it comes before Spark starts.
    origins = [await load_origin(context, pool, state) for state in states]
    if not origins:
        return comparison
    if is_joint_copy(entry):
        require_distinct(entry.name, origins)
    endpoints = origins[0].endpoints
    target = await require_stream_info(endpoints.target, entry.target.stream)
    restored = False
    for number, origin in enumerate(origins):
        info = await origin.reader.fetch_info()
        require_same_streams(origin.state, info, target)
        scan = PendingScan(origin, context.topology)
        compared = _build_compared_origin(number, origin, info, scan.list_source_names(target))
        comparison.origins.append(compared)
        comparison.has_transformed_origin |= origin.reader.is_transformed
        restored |= origin.state.strategy == "snapshot"
    comparison.origins = [
        _end_at_successor(each, comparison.origins) for each in comparison.origins
    ]
    comparison.readers = _read_target(entry, endpoints, target, comparison, restored=restored)
    for origin, compared in zip(origins, comparison.origins, strict=True):
        _add_origin_side(comparison, entry, origin, compared)
    if restored or any(target["config"].get(limit, -1) > 0 for limit in _EXPIRY_LIMITS):
        comparison.find_floors = partial(_find_floors, comparison, origins)
    return comparison


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
    entry: Backfill,
    endpoints: Endpoints,
    target: StreamInfo,
    comparison: Comparison,
    *,
    restored: bool,
) -> list[SideReader]:
    endpoint, origins = endpoints.target_endpoint, tuple(comparison.origins)
    request = ReadRequest(
        endpoint.api_prefix,
        entry.target.stream,
        # the first sequence of a stream without messages is 0
        max(1, int(target["state"]["first_seq"])),
        int(target["state"]["last_seq"]),
        known=_known(target),
    )
    if is_joint_copy(entry):
        order = comparison.transforms.order
        return [partial(read_partitioned_rows, endpoint, request, origins, order)]
    if not restored:
        return [partial(read_target_rows, endpoint, request, origins)]
    rest = replace(request, first=max(request.first, origins[0].last + 1))
    return [
        partial(read_restored_rows, endpoint, entry.target.stream, origins[0]),
        partial(read_target_rows, endpoint, rest, origins),
    ]


def _known(info: StreamInfo) -> KnownObject:
    return KnownObject(info["created"], str(info.get("ts") or ""))


def _build_compared_origin(
    number: int, origin: CopyOrigin, info: StreamInfo, source_names: tuple[str, ...]
) -> ComparedOrigin:
    state = origin.state
    gaps = state.gaps if origin.reader.recorded_gaps is None else ()
    return ComparedOrigin(
        number,
        origin.endpoints.origin_domain_name,
        state.origin_address.stream,
        state.first,
        state.last,
        tuple(state.filters),
        parse_instant(state.created),
        int(info["state"].get("last_seq", _NO_LAST_SEQ)),
        source_names,
        bool(source_names),
        tuple((first, last) for first, last in gaps),
        tuple(state.skipped),
        known=_known(info),
    )


def _add_origin_side(
    comparison: Comparison, entry: Backfill, origin: CopyOrigin, compared: ComparedOrigin
) -> None:
    """Add the messages of an origin: as they are expected, or with the task that makes those."""
    files, endpoint = origin.reader.files, origin.endpoints.source_endpoint
    if not has_transforms(entry):
        comparison.readers.append(
            partial(read_archived_origin_rows, files, compared)
            if origin.state.archive
            else partial(read_origin_rows, endpoint, compared)
        )
        return
    is_empty = compared.first > compared.last
    task = origin.build_task(() if is_empty else [SeqRange(compared.first, compared.last)])
    comparison.tasks.append(replace(task, known=compared.known))
    comparison.readers.append(
        partial(read_archived_presence, files, compared)
        if origin.state.archive
        else partial(read_presence_rows, endpoint, compared)
    )


def _find_floors(comparison: Comparison, origins: Sequence[CopyOrigin]) -> dict[int, int]:
    """Find the floors of all origins now. Raises ApiError and ConnectError."""
    endpoint, stream = origins[0].endpoints.target_endpoint, origins[0].state.target_address.stream
    connection = endpoint.open()
    try:
        target = stream_info.fetch_stream_info(connection, endpoint.api_prefix, stream)
    finally:
        connection.close()
    floors = {}
    for compared, origin in zip(comparison.origins, origins, strict=True):
        # restored messages have their sequences: below the first one everything has expired
        floor = (
            target.first
            if origin.state.strategy == "snapshot"
            else _find_expiry_floor(compared, origin.state, endpoint, target)
        )
        if comparison.tasks and comparison.transforms.order != "stream" and floor:
            # without stream order, expired and missing messages cannot be distinguished
            floor = compared.last + 1
        floors[compared.number] = floor
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
        seqs = parse_origin_header(rows["headers"], compared.domain, compared.stream)[0].drop_null()
        if len(seqs):
            return int(seqs[0].as_py())
    return origin_state.last + 1


# --- an archive as the target ---------------------------------------------------------------------


async def _build_export_comparison(
    context: Context, pool: Pool, entry: Backfill, states: Sequence[OriginState]
) -> Comparison:
    comparison = Comparison(build_transform_spec(context.workspace.root, entry))
    store = resolve_store(context, entry.target.parquet or "")
    archive = await asyncio.to_thread(Archive.read, store)
    missing = await asyncio.to_thread(archive.find_missing_files)
    for number, state in enumerate(states):
        origin = await load_origin(context, pool, state, into_archive=True)
        info = await origin.reader.fetch_info()
        require_same_stream(state.origin, KnownObject(state.created, ""), info)
        compared = replace(_build_compared_origin(number, origin, info, ()), gaps=())
        found = archive.find(
            (origin.endpoints.origin_domain_name, state.origin_address.stream, state.created)
        )
        files = found.files if found is not None else []
        placed = tuple((store, file) for file in files if file.name not in missing)
        comparison.origins.append(compared)
        comparison.readers.append(partial(read_archived_target_rows, placed, compared))
        _add_origin_side(comparison, entry, origin, compared)
        # the archive may have messages that the entry did not select then
        if comparison.tasks and found is not None and found.origin.where != entry.where:
            comparison.readers.pop()
    return comparison
