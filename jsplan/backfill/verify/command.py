"""Run backfill verify: compare both sides of an entry, message by message.

Takes no lock and stores nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from jsplan.backfill.options import BackfillOptions, VerifyOptions
from jsplan.backfill.pinned_ranges import complete_state
from jsplan.backfill.pinning import export_endpoints, load_stored_state, pin_ranges, resolve_entry
from jsplan.backfill.retry import gather_limited
from jsplan.backfill.spark_job_workspace import declare_connections
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.transforms import is_joint_copy, reads_archive
from jsplan.backfill.verify.sides import Comparison, build_comparison
from jsplan.config.model import Backfill, LoadOptions
from jsplan.context import Context, Session, open_context, open_pool
from jsplan.documents.backfill import COUNTED_KINDS, Difference, OriginCheck, Verification
from jsplan.errors import ApiError, ConnectError
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.planning.backfill.model import BackfillState, OriginState


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
        declare_connections(load, options.master)
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
    record = await _load_state(context, pool, entry)
    if is_joint_copy(entry) and not reads_archive(entry):
        record = await _drop_unreachable(session, record)
    comparison = await build_comparison(context, pool, entry, record)
    await runner.start()
    session.observer.phase(f"Comparing both sides of {entry.name}")
    started = time.monotonic()
    results = await _compare(runner, comparison, listed, f"jsplan backfill verify {entry.name}")
    seconds = time.monotonic() - started
    return build_verification(entry.name, record.origins, results, seconds, listed)


async def _load_state(context: Context, pool: Pool, entry: Backfill) -> BackfillState:
    """Return the range in state, or the one that a run would pin now."""
    record = load_stored_state(context, entry) or await pin_ranges(context, pool, entry)
    if record.planned:
        await complete_state(context, pool, entry, record, whole=not is_joint_copy(entry))
    return record


async def _drop_unreachable(session: Session, record: BackfillState) -> BackfillState:
    """Leave out the origins that cannot be reached, with a warning; keep all if none can."""

    async def is_reachable(key: str) -> bool:
        try:
            domain = session.context.workspace.domains[key]
            await session.pool.api(domain).request("INFO")
        except (ApiError, ConnectError):
            return False
        return True

    keys = list(dict.fromkeys(state.origin_address.domain for state in record.origins))
    reachable = dict(zip(keys, await gather_limited(keys, is_reachable), strict=True))
    if not any(reachable.values()):
        return record
    for state in record.origins:
        if not reachable[state.origin_address.domain]:
            session.observer.warn(f"{state.origin} cannot be reached. It is not compared")
    return replace(
        record,
        origins=[state for state in record.origins if reachable[state.origin_address.domain]],
    )


async def _compare(
    runner: SparkRunner, comparison: Comparison, listed: int, title: str
) -> list[dict[str, Any]]:
    """Compare both sides with Spark. Raises RefusedError for failing SQL or a failing function."""
    session = await runner.session()
    from jsplan.backfill.spark.verify_join import compare_sides  # noqa: PLC0415 - imports PySpark
    from jsplan.backfill.spark.verify_transformed import compare_transformed  # noqa: PLC0415

    origins, readers, floors = comparison.origins, comparison.readers, comparison.find_floors
    if (plan := comparison.plan) is not None:
        return await runner.call_in_thread(
            lambda: compare_transformed(session, plan, origins, readers, floors, listed, title)
        )
    transformed = comparison.has_transformed_origin
    return await runner.call_in_thread(
        lambda: compare_sides(session, readers, floors, listed, title, transformed=transformed)
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
