"""The backfills of a plan, after its changes: apply carries them out, or says how. What a copy is, is left to `runs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.backfill.installed import require
from jsplan.errors import ExitCode, JsplanError, NotAvailableError, combine

if TYPE_CHECKING:
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.backfill import BackfillResult
    from jsplan.documents.plan import Plan
    from jsplan.jetstream import Pool
    from jsplan.workflows.options import Observer, PlanOptions
    from jsplan.workflows.world import World


def require_means(plan: Plan, options: PlanOptions) -> None:
    """Raise NotAvailableError where the plan has backfills to run and Spark is not installed: before anything is changed."""
    if plan.backfills and options.backfill:
        try:
            require()
        except NotAvailableError as error:
            hint = f"{error.hint} Or leave the backfills for later: --no-backfill"
            raise NotAvailableError(f"{error}; nothing was changed", hint=hint) from None


async def follow_up(world: World, pool: Pool, plan: Plan, result: ApplyResult, options: PlanOptions, observer: Observer) -> ApplyResult:
    """Copy what the plan lists, once its changes are done. One that fails makes the apply one in part; the next plan lists it again."""
    for entry in plan.backfills:
        why = _left(plan, entry, result, options)
        found = {"name": entry["name"], "status": "left", "error": why} if why else await _copied(world, pool, plan, entry, observer)
        result.backfills.append(found)
        if found["status"] == "failed":
            result.exit_code = int(combine([ExitCode(result.exit_code), ExitCode.PARTIAL]))
    if plan.backfills:
        result.state |= {"serial": world.state.serial}
    return result


def _left(plan: Plan, entry: dict[str, Any], result: ApplyResult, options: PlanOptions) -> str | None:
    """Why a backfill is not run now; None: it is."""
    how = f"run it with: jsplan backfill run {entry['name']}"
    if not options.backfill:
        return f"left out by --no-backfill; {how}"
    if result.exit_code != int(ExitCode.OK):
        return "the changes before it were not all made; the next apply runs it"
    ends = [end for end in (*entry["from"], entry["to"]) if "domain" in end]
    away = sorted({end["domain"] for end in ends if not plan.domains.get(end["domain"], {}).get("reachable", True)})
    return f"domain {', '.join(away)} is away; the next apply runs it" if away else None


async def _copied(world: World, pool: Pool, plan: Plan, entry: dict[str, Any], observer: Observer) -> dict[str, Any]:
    from jsplan.workflows.backfill.runs import run_within  # noqa: PLC0415 - only a plan with backfills needs Spark

    try:
        done: list[BackfillResult] = await run_within(world, pool, [entry["name"]], tuple(plan.allowed_hazards), observer)
    except JsplanError as error:
        return {"name": entry["name"], "status": "failed", "error": error.in_full}
    return {"name": entry["name"], "status": "done", "copied": done[0].copied, "gap_messages": done[0].gap_messages, "error": None}
