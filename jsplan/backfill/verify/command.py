"""Run backfill verify: compare both sides of an entry, message by message.

Takes no lock and stores nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from jsplan.backfill.endpoints import export_endpoints
from jsplan.backfill.entry import is_joint_copy, reads_archive, resolve_entry
from jsplan.backfill.options import VerifyOptions
from jsplan.backfill.ranges import find_offline_domains, load_ranges
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.verify.sides import build_comparison
from jsplan.config.model import Backfill, LoadOptions
from jsplan.context import Session, open_context, open_pool
from jsplan.diagnostics import quote_shell
from jsplan.documents.backfill import COUNTED_KINDS, Difference, OriginCheck, Verification
from jsplan.errors import JsplanError
from jsplan.options import Observer
from jsplan.planning.backfill.model import BackfillState, OriginState
from jsplan.units import count_text

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
