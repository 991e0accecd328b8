"""The backfills of a plan, which apply runs after the changes of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.backfill.entry import resolve_entry
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.spark_extra import require_spark
from jsplan.diagnostics import quote_shell
from jsplan.errors import ExitCode, JsplanError, NotAvailableError, RefusedError, combine_exit_codes

if TYPE_CHECKING:
    from jsplan.context import Context, Session
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.options import PlanOptions


#: The results of entries by name, as in the result of an apply.
EntryResults = dict[str, dict[str, Any]]


def require_runnable(world: Context, plan: Plan, options: PlanOptions) -> None:
    """Check before any change that the backfills of the plan can run.

    Raises NotAvailableError, UsageError and RefusedError.
    """
    if not options.backfill:
        _require_snapshot_possible(world, plan)
    if not (plan.backfills and options.backfill):
        return
    try:
        require_spark()
        from jsplan.backfill.transforms import build_transform_spec  # noqa: PLC0415 - needs the extra

        for entry in plan.backfills:
            resolved = resolve_entry(world, BackfillOptions(name=entry["name"]))
            build_transform_spec(world.workspace.root, resolved)
    except NotAvailableError as error:
        hint = f"{error.hint} Or skip the backfills: --no-backfill"
        raise NotAvailableError(f"{error}; nothing was changed", hint=hint) from None


def _require_snapshot_possible(world: Context, plan: Plan) -> None:
    """Raise RefusedError if the plan would create the target of a snapshot entry empty."""
    for entry in plan.backfills:
        declared = world.workspace.backfills.get(entry["name"])
        if (
            declared is not None
            and declared.strategy == "snapshot"
            and any(step.address == str(declared.target) for step in plan.steps)
        ):
            raise RefusedError(
                f"--no-backfill would create {declared.target} empty, and `strategy: snapshot` of "
                f"backfill {declared.name} needs a target that does not exist. Nothing was changed",
                hint=f"Defer it: --exclude {quote_shell(declared.target)}",
            )


async def run_planned_backfills(
    session: Session,
    plan: Plan,
    result: ApplyResult,
    options: PlanOptions,
    done: EntryResults | None = None,
) -> ApplyResult:
    """Run the backfills of the plan after its changes.

    If one fails, the apply is partial, and the next plan lists that backfill again. `done` are
    entries that the changes of the plan have copied already.
    """
    world = session.context
    deferred = {
        entry["name"]: _find_deferral(plan, entry, result, options) for entry in plan.backfills
    }
    results, allowed = deferred | (done or {}), tuple(plan.allowed_hazards)
    if runnable := {
        name: BackfillOptions(name=name, allow_hazards=allowed)
        for name, entry_result in results.items()
        if entry_result is None
    }:
        results |= await _run_entries(session, runnable)
        result.state |= {"serial": world.state.serial}
    for name, entry_result in results.items():
        result.backfills.append({"name": name, **(entry_result or {})})
        if entry_result is not None and entry_result["status"] == "failed":
            codes = [ExitCode(result.exit_code), ExitCode.PARTIAL]
            result.exit_code = int(combine_exit_codes(codes))
    return result


def _find_deferral(
    plan: Plan, entry: dict[str, Any], result: ApplyResult, options: PlanOptions
) -> dict[str, Any] | None:
    """Return the result of a backfill that does not run now; None if it runs."""
    if not options.backfill:
        late = "its target was created empty, so a snapshot is not possible any more; "
        return _unfinished(
            "skipped",
            f"skipped by --no-backfill; {late if entry['strategy'] == 'snapshot' else ''}"
            f"run it with: jsplan backfill run {entry['name']}",
        )
    if result.exit_code != int(ExitCode.OK):
        text = "not all changes before it were applied; the next apply runs it"
        return _unfinished("deferred", text)
    domains = {side["domain"] for side in (*entry["from"], entry["to"]) if "domain" in side}
    offline = [key for key in domains if not plan.domains.get(key, {}).get("reachable", True)]
    text = f"domain {', '.join(sorted(offline))} is offline; the next apply runs it"
    return _unfinished("deferred", text) if offline else None


async def _run_entries(
    session: Session, runnable: dict[str, BackfillOptions]
) -> dict[str, dict[str, Any]]:
    """Run the entries and return their results. A failed entry does not stop the others."""
    from jsplan.backfill.run import BackfillRun, copy_session  # noqa: PLC0415 - only for backfills

    results: dict[str, dict[str, Any]] = {}
    try:
        async with copy_session(session, runnable.values()) as engine:
            for name, options in runnable.items():
                try:
                    done = await BackfillRun(session, options, engine).execute()
                except JsplanError as error:
                    results[name] = _unfinished("failed", error.full_text)
                else:
                    results[name] = {
                        "status": "done",
                        "copied": done.copied,
                        "gap_messages": done.gap_messages,
                        "error": None,
                    }
    except JsplanError as error:  # the state could not be written
        return dict.fromkeys(runnable, _unfinished("failed", error.full_text))
    return results


def _unfinished(status: str, text: str) -> dict[str, Any]:
    return {"status": status, "error": text}
