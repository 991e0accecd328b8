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
    results = deferred | (done or {})
    if runnable := [name for name, entry_result in results.items() if entry_result is None]:
        allowed = tuple(plan.allowed_hazards)
        entry_options = {
            name: BackfillOptions(name=name, allow_hazards=allowed) for name in runnable
        }
        results |= await _run_entries(session, entry_options)
        result.state |= {"serial": world.state.serial}
    for name, entry_result in results.items():
        result.backfills.append({"name": name, **(entry_result or {})})
        if entry_result is not None and entry_result["status"] == "failed":
            result.exit_code = int(
                combine_exit_codes([ExitCode(result.exit_code), ExitCode.PARTIAL])
            )
    return result


def _find_deferral(
    plan: Plan, entry: dict[str, Any], result: ApplyResult, options: PlanOptions
) -> dict[str, Any] | None:
    """Return the result of a backfill that does not run now; None if it runs."""
    if not options.backfill:
        late = (
            "its target was created empty, so a snapshot is not possible any more; "
            if entry["strategy"] == "snapshot"
            else ""
        )
        return {
            "status": "skipped",
            "error": f"skipped by --no-backfill; {late}"
            f"run it with: jsplan backfill run {entry['name']}",
        }
    if result.exit_code != int(ExitCode.OK):
        return {
            "status": "deferred",
            "error": "not all changes before it were applied; the next apply runs it",
        }
    sides = [side for side in (*entry["from"], entry["to"]) if "domain" in side]
    offline = sorted(
        {
            side["domain"]
            for side in sides
            if not plan.domains.get(side["domain"], {}).get("reachable", True)
        }
    )
    return (
        {
            "status": "deferred",
            "error": f"domain {', '.join(offline)} is offline; the next apply runs it",
        }
        if offline
        else None
    )


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
                    results[name] = _failed_result(error)
                else:
                    results[name] = {
                        "status": "done",
                        "copied": done.copied,
                        "gap_messages": done.gap_messages,
                        "error": None,
                    }
    except JsplanError as error:  # the state could not be written
        return dict.fromkeys(runnable, _failed_result(error))
    return results


def _failed_result(error: JsplanError) -> dict[str, Any]:
    return {"status": "failed", "error": error.full_text}
