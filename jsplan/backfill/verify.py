"""Run backfill verify: compare both sides of an entry, message by message.

A side is a stream or an archive, transformed or not. Takes no lock and stores nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from jsplan.backfill.endpoints import Endpoints, export_endpoints, require_same_stream
from jsplan.backfill.entry import has_transforms, is_joint_copy, reads_archive, resolve_entry
from jsplan.backfill.options import VerifyOptions
from jsplan.backfill.origin_reader import CopyOrigin, load_origin, require_distinct
from jsplan.backfill.parquet.location import resolve_store
from jsplan.backfill.parquet.manifest import Archive
from jsplan.backfill.pending import PendingScan
from jsplan.backfill.protocol import stream_info
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.ranges import find_offline_domains, load_ranges
from jsplan.backfill.rows import (
    ComparedOrigin,
    Comparison,
    SideReader,
    read_kept_rows,
    read_origin_rows,
    read_target_rows,
)
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import parse_origins
from jsplan.backfill.tasks.origin_task import OriginTask
from jsplan.backfill.tasks.partitioning import Partition, PartitionPlan
from jsplan.backfill.tasks.staging_streams import require_stream_info
from jsplan.backfill.transforms import build_transform_spec
from jsplan.comparing.former_streams import Window
from jsplan.config.model import Backfill, LoadOptions
from jsplan.context import Context, Session, open_context, open_pool
from jsplan.diagnostics import quote_shell
from jsplan.documents.backfill import COUNTED_KINDS, Difference, OriginCheck, Verification
from jsplan.errors import JsplanError
from jsplan.identity import KnownObject
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.planning.backfill.model import BackfillState, OriginState, SeqRange
from jsplan.units import count_text

#: An archive may lack messages that the stream had: no sequence is impossible.
_NO_LAST_SEQ: Final = 1 << 62
#: Limits by which a stream deletes messages.
_EXPIRY_LIMITS: Final = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")
StreamInfo = dict[str, Any]
#: Messages that an error lists.
MAX_NAMED: Final = 5


async def verify_backfill(
    load: LoadOptions, options: VerifyOptions, observer: Observer
) -> Verification:
    """Open the workspace, and verify an entry."""
    async with open_context(load) as context, open_pool(context, read_only=True) as pool:
        entry = resolve_entry(context, options)
        streams = [side for side in (*entry.origins, entry.target) if side.parquet is None]
        await pool.open({context.workspace.domains[side.domain].connection for side in streams})
        export_endpoints(context, entry)
        runner = SparkRunner(observer, options.master)
        runner.warm_up()
        try:
            return await verify_entry(
                Session(context, pool, observer), entry, options.listed, runner
            )
        finally:
            await runner.close()


async def verify_entry(
    session: Session, entry: Backfill, listed: int, runner: SparkRunner
) -> Verification:
    """Compare both sides of an entry: the range in state, or the one that a run would pin now.

    `listed` is the number of differences to list for each origin. Raises the errors of
    `build_comparison` and of the comparison.
    """
    context, pool = session.context, session.pool
    record = await _load_reachable(session, entry)
    comparison = await build_comparison(context, pool, entry, record.origins)
    await runner.start()
    session.observer.phase(f"Comparing both sides of {entry.name}")
    started = time.monotonic()
    results = await runner.compare(comparison, listed, f"jsplan backfill verify {entry.name}")
    seconds = time.monotonic() - started
    return build_verification(entry.name, record.origins, results, seconds, listed)


async def _load_reachable(session: Session, entry: Backfill) -> BackfillState:
    """Return the ranges in state, or those that a run would pin now.

    Origins of a joint copy that cannot be reached are left out, with a warning.
    """
    context, pool, offline = session.context, session.pool, dict[str, str]()
    if is_joint_copy(entry) and not reads_archive(entry):
        offline = await find_offline_domains(context, pool, entry)
    record, _ = await load_ranges(context, pool, entry, offline)
    for side in entry.origins:
        if side.domain in offline:
            session.observer.warn(f"{side} cannot be reached. It is not compared")
    reached = [state for state in record.origins if state.origin_address.domain not in offline]
    return replace(record, origins=reached)


async def require_equal_contents(
    session: Session,
    entry: Backfill,
    states: Sequence[OriginState],
    runner: SparkRunner,
) -> None:
    """Compare what the target had before a copy with these origins.

    A message counts as there already by its header, which every publisher could write. Raises
    JsplanError for one with another content than at the origin.
    """
    session.observer.phase(f"Comparing what {entry.target} had already with its origin")
    comparison = await build_comparison(session.context, session.pool, entry, states)
    results = await runner.compare(comparison, MAX_NAMED, f"jsplan backfill run {entry.name}")
    differing = [result for result in results if result["kind"] == "different"]
    for number, state in enumerate(states):
        own = [result for result in differing if result["origin_number"] == number]
        count = sum(result["count"] for result in own if "count" in result)
        found = sorted(result["place"] for result in own if "place" in result)[:MAX_NAMED]
        if count:
            raise JsplanError(
                f"{state.target} has {count_text(count, 'message')} with the header of a copy from "
                f"{state.origin} and another content, at sequence "
                f"{', '.join(f'{seq:,}' for seq in found)}. The originals were not copied",
                hint="Another client wrote or changed them. Delete them: nats stream rmm "
                f"{quote_shell(state.target_address.stream)} {found[0]}, then run the backfill "
                f"again. See all of them: jsplan backfill verify {quote_shell(entry.name)}",
            )


def build_verification(
    name: str,
    origin_states: Iterable[OriginState],
    results: list[dict[str, Any]],
    seconds: float,
    listed: int,
) -> Verification:
    """Build the document of the results."""
    verification = Verification(
        name,
        [
            OriginCheck(origin.origin, origin.target, origin.first, origin.last)
            for origin in origin_states
        ],
        seconds=round(seconds, 3),
    )
    for result in results:
        if result["origin_number"] < 0:
            verification.others += result["count"]
            continue
        origin = verification.origins[result["origin_number"]]
        if "count" in result:
            assert result["kind"] in COUNTED_KINDS
            origin.counts[result["kind"]] += result["count"]
        else:
            place = None if result["kind"] == "missing" else result["place"]
            origin.listed.append(Difference(result["kind"], origin.origin, result["seq"], place))
    for origin in verification.origins:
        origin.listed = sorted(
            origin.listed, key=lambda result: (result.origin_seq, result.target_seq or 0)
        )[:listed]
    return verification


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
    if not origins:
        return Comparison()
    if is_joint_copy(entry):
        require_distinct(entry.name, origins)
    infos = [await origin.reader.fetch_info() for origin in origins]
    for origin, info in zip(origins, infos, strict=True):
        require_same_stream(origin.state.origin, KnownObject(origin.state.created, ""), info)
    compare = _compare_archive if into_archive else _compare_stream
    comparison = await compare(context, entry, origins, infos)
    if has_transforms(entry):
        tasks = tuple(
            _build_task(origin, info) for origin, info in zip(origins, infos, strict=True)
        )
        partition = Partition(tasks[0].source, "", "")
        comparison.plan = PartitionPlan((partition,), tasks, replace(transforms, order="none"))
    return comparison


# --- a stream as the target -----------------------------------------------------------------------


async def _compare_stream(
    context: Context, entry: Backfill, origins: Sequence[CopyOrigin], infos: Sequence[StreamInfo]
) -> Comparison:
    endpoints = origins[0].endpoints
    target = await require_stream_info(endpoints.target, entry.target.stream)
    comparison = Comparison()
    for number, (origin, info) in enumerate(zip(origins, infos, strict=True)):
        known = KnownObject(origin.state.target_created, "")  # empty: a plan may not know it yet
        require_same_stream(origin.state.target, known, target)
        names = PendingScan(origin, context.topology).list_source_names(target)
        comparison.origins.append(_build_compared_origin(number, origin, info, names))
        if origin.archive is not None:
            comparison.is_transformed |= origin.archive.origin.is_transformed
    comparison.origins = [
        _end_at_successor(each, comparison.origins) for each in comparison.origins
    ]
    restored = any(origin.state.strategy == "snapshot" for origin in origins)
    comparison.readers = _read_target(endpoints, target, comparison, entry.order, restored)
    comparison.readers += [
        _read_origin(entry, *each) for each in zip(origins, comparison.origins, infos, strict=True)
    ]
    if restored or any(target["config"].get(limit, -1) > 0 for limit in _EXPIRY_LIMITS):
        is_unordered = entry.order != "stream"
        comparison.find_floors = partial(_find_floors, comparison.origins, origins, is_unordered)
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
    number: int, origin: CopyOrigin, info: StreamInfo, source_names: dict[str, Window]
) -> ComparedOrigin:
    state = origin.state
    gaps = state.gaps if origin.archive is None else ()
    return ComparedOrigin(
        number,
        origin.endpoints.origin_domain_name,
        state.origin_address.stream,
        state.first,
        state.last,
        origin.created_at,
        int(info["state"].get("last_seq", _NO_LAST_SEQ)),
        origin.names,
        source_names,
        tuple((first, last) for first, last in gaps),
        tuple(state.skipped),
    )


def _build_task(origin: CopyOrigin, info: StreamInfo) -> OriginTask:
    span = origin.state.seq_range
    return replace(origin.build_task((span,) if span.size > 0 else ()), known=_known(info))


def _read_origin(
    entry: Backfill, origin: CopyOrigin, compared: ComparedOrigin, info: StreamInfo
) -> SideReader:
    """Return the reader of an origin: its messages, or which ones it has if a plan makes them."""
    task, is_presence = _build_task(origin, info), has_transforms(entry)
    return partial(read_origin_rows, task, compared, is_presence=is_presence)


def _find_floors(
    compared_origins: Sequence[ComparedOrigin],
    origins: Sequence[CopyOrigin],
    is_unordered: bool,
) -> dict[int, int]:
    """Find the floors of all origins now. Raises ApiError and ConnectError.

    If `is_unordered`, expired and missing messages cannot be distinguished.
    """
    endpoint, stream = origins[0].endpoints.target_endpoint, origins[0].state.target_address.stream
    with contextlib.closing(endpoint.open()) as connection:
        target = stream_info.fetch_stream_info(connection, endpoint.api_prefix, stream)
    floors = {}
    for compared, origin in zip(compared_origins, origins, strict=True):
        floor = _find_expiry_floor(compared, origin.state, endpoint, target)
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
    if origin_state.strategy == "snapshot":
        return target.first  # restored messages have their sequences
    if origin_state.status != "done":
        return 0
    if target.config.get("max_msgs_per_subject", -1) > 0:
        # messages that such a limit deleted cannot be distinguished from other missing ones
        return origin_state.last + 1
    is_limited = any(target.config.get(limit, -1) > 0 for limit in _EXPIRY_LIMITS)
    if not is_limited or target.first <= origin_state.target_next:
        return 0
    stream = origin_state.target_address.stream
    for rows in endpoint.read(stream, target.first, target.last, headers_only=True):
        names, seqs, _ = parse_origins(rows["headers"])
        seqs = seqs.filter(pc.is_in(names, pa.array(map(str.encode, compared.names), names.type)))
        if len(seqs):
            return int(seqs[0].as_py())
    return origin_state.last + 1


# --- an archive as the target ---------------------------------------------------------------------


async def _compare_archive(
    context: Context, entry: Backfill, origins: Sequence[CopyOrigin], infos: Sequence[StreamInfo]
) -> Comparison:
    comparison, store = Comparison(), resolve_store(context, entry.target.parquet or "")
    archive = await asyncio.to_thread(Archive.read, store)
    missing = await asyncio.to_thread(archive.find_missing_files)
    for number, (origin, info) in enumerate(zip(origins, infos, strict=True)):
        compared = replace(_build_compared_origin(number, origin, info, {}), gaps=())
        comparison.origins.append(compared)
        found = archive.find(*origin.former.archived)
        files = found.files if found is not None else []
        if placed := tuple((store, file) for file in files if file.name not in missing):
            task = replace(_build_task(origin, info), files=placed)
            comparison.readers.append(partial(read_kept_rows, task, compared))
        # the archive may have messages that the entry did not select then
        if not has_transforms(entry) or found is None or found.origin.where == entry.where:
            comparison.readers.append(_read_origin(entry, origin, compared, info))
    return comparison
