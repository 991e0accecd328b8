"""The backfills of a plan, after its changes: apply carries them out, or says how. What a copy is, is left to `runs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.planned_ranges import has_nothing_to_copy
from jsplan.backfill.schedule import describe_closed_window, describe_interrupted_run
from jsplan.backfill.spark_extra import require_spark
from jsplan.backfill.windows import SYSTEM_CLOCK, Clock
from jsplan.diagnostics import quote_shell
from jsplan.errors import ExitCode, JsplanError, NotAvailableError, RefusedError, combine_exit_codes

if TYPE_CHECKING:
    from jsplan.context import Context
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.jetstream import Pool
    from jsplan.options import Observer, PlanOptions


#: What became of entries, by name, as in the result of an apply.
EntryResults = dict[str, dict[str, Any]]


def require_runnable(world: Context, plan: Plan, options: PlanOptions) -> None:
    """Raise NotAvailableError or UsageError where the plan has backfills to run and they cannot be: before anything is changed."""
    if not options.backfill:
        _require_snapshot_possible(world, plan)
    if not (plan.runnable_backfills and options.backfill):
        return
    try:
        require_spark()
        from jsplan.backfill.partitioned_run import load_transform_spec  # noqa: PLC0415 - as above
        from jsplan.backfill.pinning import resolve_entry  # noqa: PLC0415 - only a plan with backfills needs any of it

        for entry in plan.runnable_backfills:
            load_transform_spec(world, resolve_entry(world, _build_options(entry)))
    except NotAvailableError as error:
        hint = f"{error.hint} Or skip the backfills: --no-backfill"
        raise NotAvailableError(f"{error}; nothing was changed", hint=hint) from None


def _require_snapshot_possible(world: Context, plan: Plan) -> None:
    """Raise RefusedError where an entry insists on a snapshot and the plan would make its target without one."""
    for entry in plan.backfills:
        asked = world.workspace.backfills.get(entry["name"])
        if (
            asked is not None
            and asked.strategy == "snapshot"
            and any(step.address == str(asked.target) for step in plan.steps)
        ):
            raise RefusedError(
                f"--no-backfill would make {asked.target} empty, and `strategy: snapshot` of backfill {asked.name} needs that it does not "
                "exist; nothing was changed",
                hint=f"Leave it for later: --exclude {quote_shell(asked.target)}",
            )


async def run_planned_backfills(
    world: Context,
    pool: Pool,
    plan: Plan,
    result: ApplyResult,
    options: PlanOptions,
    observer: Observer,
    done: EntryResults | None = None,
) -> ApplyResult:
    """Copy what the plan lists, once its changes are done. One that fails makes the apply one in part; the next plan lists it again.

    `done` are entries that its changes have carried out already.
    """
    left = {
        entry["name"]: _find_deferral(plan, entry, result, options)
        or _closed_window_result(world, entry, options)
        for entry in plan.runnable_backfills
    }
    found = left | (done or {})
    if wanted := {
        entry["name"]: entry for entry in plan.runnable_backfills if found[entry["name"]] is None
    }:
        asked = {
            name: _build_options(entry, tuple(plan.allowed_hazards), options.clock)
            for name, entry in wanted.items()
        }
        found |= await _run_entries(world, pool, asked, observer)
        result.state |= {"serial": world.state.serial}
    told = [
        (entry["name"], _uncopied_result(entry, options))
        for entry in plan.backfills
        if entry not in plan.runnable_backfills and not has_nothing_to_copy(entry)
    ]
    for name, said in [*found.items(), *told]:
        result.backfills.append({"name": name, **(said or {})})
        if said is not None and said["status"] == "failed":
            result.exit_code = int(
                combine_exit_codes([ExitCode(result.exit_code), ExitCode.PARTIAL])
            )
    return result


def _find_deferral(
    plan: Plan, entry: dict[str, Any], result: ApplyResult, options: PlanOptions
) -> dict[str, Any] | None:
    """Why a backfill is not run now; None: it is."""
    if not options.backfill and not entry.get("declared", True):
        return _skipped_result(entry)
    if not options.backfill:
        late = (
            "its target was made empty, so a snapshot is not possible any more; "
            if entry["strategy"] == "snapshot"
            else ""
        )
        return {
            "status": "skipped",
            "error": f"skipped by --no-backfill; {late}run it with: jsplan backfill run {entry['name']}",
        }
    if result.exit_code != int(ExitCode.OK):
        return {
            "status": "deferred",
            "error": "the changes before it were not all made; the next apply runs it",
        }
    ends = [end for end in (*entry["from"], entry["to"]) if "domain" in end]
    away = sorted(
        {
            end["domain"]
            for end in ends
            if not plan.domains.get(end["domain"], {}).get("reachable", True)
        }
    )
    return (
        {
            "status": "deferred",
            "error": f"domain {', '.join(away)} is offline; the next apply runs it",
        }
        if away
        else None
    )


def _skipped_result(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "skipped",
        "error": f"skipped by --no-backfill, and not planned again; run it with: {entry['command']}",
    }


def _uncopied_result(entry: dict[str, Any], options: PlanOptions) -> dict[str, Any]:
    """What is said of history that an apply does not copy."""
    if "waits" in entry and not options.backfill:
        return _skipped_result(entry)
    if "waits" in entry:
        return {
            "status": "deferred",
            "error": f"{entry['waits']}; what the source leaves out is planned when it is back",
        }
    by_hand = f". To bring it as it is: {entry['command']}" if "command" in entry else ""
    return {"status": "deferred", "error": f"{entry['reason']}{by_hand}"}


def _build_options(
    entry: dict[str, Any], allow: tuple[str, ...] = (), clock: Clock = SYSTEM_CLOCK
) -> BackfillOptions:
    """How a run is asked for an element of the plan: by its name, or by two addresses."""
    if entry.get("declared", True):
        return BackfillOptions(name=entry["name"], allow_hazards=allow, clock=clock)
    origin, target = (
        str(Address.of_stream(end["domain"], end["stream"]))
        for end in (entry["from"][0], entry["to"])
    )
    return BackfillOptions(
        origin=origin, target=target, allow_hazards=allow, clock=clock, include_skipped=False
    )


def _closed_window_result(
    world: Context, entry: dict[str, Any], options: PlanOptions
) -> dict[str, Any] | None:
    """That the window of an entry is closed: an apply does not wait for it."""
    declared = world.workspace.backfills.get(entry["name"])
    words = describe_closed_window(declared, options.clock) if declared is not None else None
    return {"status": "deferred", "error": words} if words else None


async def _run_entries(
    world: Context, pool: Pool, wanted: dict[str, BackfillOptions], observer: Observer
) -> dict[str, dict[str, Any]]:
    """What became of each entry. One that fails holds up no other."""
    from jsplan.backfill.run import BackfillRun, copy_session  # noqa: PLC0415 - only a plan with backfills needs Spark

    found: dict[str, dict[str, Any]] = {}
    try:
        async with copy_session(world, wanted.values(), observer) as engine:
            for name, options in wanted.items():
                try:
                    done = await BackfillRun(world, pool, options, observer, engine).execute()
                except JsplanError as error:
                    found[name] = _failed_result(error)
                else:
                    found[name] = {
                        "status": "done",
                        "copied": done.copied,
                        "gap_messages": done.gap_messages,
                        "error": None,
                    }
                    if done.closed:
                        found[name] = {
                            "status": "deferred",
                            "copied": done.copied,
                            "error": describe_interrupted_run(
                                world.workspace.backfills[name], done
                            ),
                        }
    except JsplanError as error:  # the state could not be written
        return dict.fromkeys(wanted, _failed_result(error))
    return found


def _failed_result(error: JsplanError) -> dict[str, Any]:
    return {"status": "failed", "error": error.full_text}
