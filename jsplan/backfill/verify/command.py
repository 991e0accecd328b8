"""Run backfill verify: compare both sides of an entry, message by message.

Takes no lock and stores nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from jsplan.backfill.options import BackfillOptions, VerifyOptions
from jsplan.backfill.pinned_ranges import complete_state
from jsplan.backfill.pinning import (
    Endpoints,
    load_stored_state,
    pin_ranges,
    require_same_streams,
    resolve_entry,
)
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.rows.message_rows import ComparedOrigin, read_origin_rows, read_target_rows
from jsplan.backfill.rows.native import read_restored_rows
from jsplan.backfill.spark_job_workspace import declare_connections
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks.hashes import parse_origin_header
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.transforms import is_joint_copy
from jsplan.config.model import Backfill, LoadOptions
from jsplan.context import Context, open_context, open_pool
from jsplan.documents.backfill import COUNTED_KINDS, Difference, OriginCheck, Verification
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.planning.backfill.model import BackfillState, OriginState
from jsplan.resources.nested import source_header

Config = dict[str, Any]
#: Limits by which a stream deletes messages.
_EXPIRY_LIMITS = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")


async def verify_backfill(
    load: LoadOptions, options: VerifyOptions, observer: Observer
) -> Verification:
    """Open the workspace, and verify an entry."""
    async with open_context(load) as context, open_pool(context, read_only=True) as pool:
        entry = resolve_entry(
            context, BackfillOptions(options.name, options.origin, options.target)
        )
        streams = [side for side in (*entry.origins, entry.target) if side.parquet is None]
        await pool.open({context.workspace.domains[side.domain].connection for side in streams})
        runner = SparkRunner(observer, options.master)
        declare_connections(load, options.master)
        try:
            check = (
                _import_parquet_check()
                if len(streams) <= len(entry.origins)
                else _import_transformed_check()
                if is_joint_copy(entry)
                else BackfillCheck
            )
            return await check(context, pool, entry, options.listed, runner, observer).execute()
        finally:
            await runner.close()


def _import_parquet_check() -> type[BackfillCheck]:
    """Import the check for an archive on one side."""
    from jsplan.backfill.verify.parquet_check import ParquetCheck  # noqa: PLC0415 - it imports this module

    return ParquetCheck


def _import_transformed_check() -> type[BackfillCheck]:
    """Import the check for transformed messages, or many origins."""
    from jsplan.backfill.verify.transformed_check import TransformedCheck  # noqa: PLC0415 - it imports this module

    return TransformedCheck


class BackfillCheck:
    """One comparison of both sides of an entry.

    It uses the range in state, or the range that a run would pin now.
    """

    def __init__(
        self,
        context: Context,
        pool: Pool,
        entry: Backfill,
        listed: int,
        runner: SparkRunner,
        observer: Observer,
    ) -> None:
        self.context = context
        self.pool = pool
        self.entry = entry
        self.listed = listed
        self.runner = runner
        self.observer = observer
        self.is_restored = False

    async def execute(self) -> Verification:
        """Compare both sides. Raises the errors of `verify_backfill`."""
        record = await self.load_state()
        # Spark workers inherit the environment, so this comes before Spark starts.
        endpoints = [
            Endpoints.of_origin(self.context, self.pool, origin_state)
            for origin_state in record.origins
        ]
        target = await require_stream_info(endpoints[0].target, self.entry.target.stream)
        compared, floors = [], {}
        for number, (origin_state, sides) in enumerate(zip(record.origins, endpoints, strict=True)):
            origin = await require_stream_info(sides.origin, origin_state.origin_address.stream)
            require_same_streams(origin_state, origin, target)
            compared.append(
                self._build_compared_origin(number, origin_state, sides, origin, target["config"])
            )
            # restored messages have their sequences: below the first one everything has expired
            restored = origin_state.strategy == "snapshot"
            first = int(target["state"]["first_seq"])
            floors[number] = (
                first
                if restored
                else await asyncio.to_thread(
                    find_expiry_floor, compared[-1], origin_state, sides, target
                )
            )
            self.is_restored |= restored
        results, seconds = await self._compare(endpoints, compared, target["state"], floors)
        return build_verification(self.entry.name, record.origins, results, seconds, self.listed)

    async def load_state(self) -> BackfillState:
        """Return the range in state, or the one that a run would pin now.

        Raises the errors of `pin_ranges`.
        """
        record = load_stored_state(self.context, self.entry) or await pin_ranges(
            self.context, self.pool, self.entry
        )
        if record.planned:
            await complete_state(
                self.context, self.pool, self.entry, record, whole=not is_joint_copy(self.entry)
            )
        return record

    def _build_compared_origin(
        self,
        number: int,
        origin_state: OriginState,
        endpoints: Endpoints,
        origin: Config,
        target: Config,
    ) -> ComparedOrigin:
        source_names = self.list_source_names(origin_state, target)
        return ComparedOrigin(
            number,
            endpoints.origin_domain_name,
            origin_state.origin_address.stream,
            origin_state.first,
            origin_state.last,
            tuple(origin_state.filters),
            parse_time(origin_state.created),
            int(origin["state"]["last_seq"]),
            source_names,
            bool(source_names),
            tuple((first, last) for first, last in origin_state.gaps),
            tuple(origin_state.skipped),
        )

    def list_source_names(self, origin_state: OriginState, target: Config) -> tuple[str, ...]:
        """List the names of the origin in the target's own sources."""
        origin, to = origin_state.origin_address, origin_state.target_address
        routes = self.context.topology.routes
        origin_domain = self.context.topology.canonicalize(origin).domain
        found = [
            source
            for source in target.get("sources") or []
            if source["name"] == origin.stream
            and routes.resolve_prefix(to.domain, (source.get("external") or {}).get("api"))
            == origin_domain
        ]
        route = routes.find_route(to.domain, origin.domain) if origin.domain != to.domain else None
        found.append(
            {"name": origin.stream}
            | ({"external": {"api": route.api}} if route is not None and route.api else {})
        )
        return tuple(sorted({source_header(source)[0] for source in found}))

    async def _compare(
        self,
        endpoints: list[Endpoints],
        origins: list[ComparedOrigin],
        state: Config,
        floors: dict[int, int],
    ) -> tuple[list[Config], float]:
        session = await self.runner.session()
        from jsplan.backfill.spark.verify_join import compare_sides  # noqa: PLC0415 - PySpark is imported only when needed

        self.observer.phase(f"Comparing both sides of {self.entry.name}")
        started, stream = time.monotonic(), self.entry.target.stream
        # the first sequence of a stream without messages is 0
        first, endpoint = max(1, int(state["first_seq"])), endpoints[0].target_endpoint
        sides = []
        if self.is_restored:
            sides, first = (
                [partial(read_restored_rows, endpoint, stream, origins[0])],
                max(first, origins[0].last + 1),
            )
        sides.append(
            partial(
                read_target_rows, endpoint, stream, first, int(state["last_seq"]), tuple(origins)
            )
        )
        sides += [
            partial(read_origin_rows, side.source_endpoint, origin)
            for side, origin in zip(endpoints, origins, strict=True)
        ]
        title = f"jsplan backfill verify {self.entry.name}"
        results = await self.runner.call_in_thread(
            lambda: compare_sides(session, sides, floors, self.listed, title)
        )
        return results, time.monotonic() - started


def find_expiry_floor(
    compared: ComparedOrigin, origin_state: OriginState, endpoints: Endpoints, target: Config
) -> int:
    """Return the origin sequence below which messages have expired at the target.

    The target deletes its oldest messages because of its limits. 0: none.
    """
    config, state = target["config"], target["state"]
    if config.get("max_msgs_per_subject", -1) > 0:
        # messages that such a limit deleted cannot be distinguished from other missing ones
        return origin_state.last + 1 if origin_state.status == "done" else 0
    first, last = int(state["first_seq"]), int(state["last_seq"])
    if (
        not any(config.get(limit, -1) > 0 for limit in _EXPIRY_LIMITS)
        or first <= origin_state.target_next
        or origin_state.status != "done"
    ):
        return 0
    request = ReadRequest(
        endpoints.target_endpoint.api_prefix,
        origin_state.target_address.stream,
        first,
        last,
        headers_only=True,
    )
    for rows in read(endpoints.target_endpoint.open, request) if first <= last else ():
        seqs = parse_origin_header(rows["headers"], compared.domain, compared.stream)[0].drop_null()
        if len(seqs):
            return int(seqs[0].as_py())
    return origin_state.last + 1


def build_verification(
    name: str,
    origin_states: Iterable[OriginState],
    results: list[Config],
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
        seconds=seconds,
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
            missing = result["kind"] == "missing"
            origin.listed.append(
                Difference(
                    result["kind"], origin.origin, result["seq"], 0 if missing else result["place"]
                )
            )
    for origin in verification.origins:
        origin.listed = sorted(
            origin.listed, key=lambda result: (result.origin_seq, result.target_seq)
        )[:listed]
    return verification
