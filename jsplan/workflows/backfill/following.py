"""The backfills of a plan, after its changes: apply carries them out, or says how. What a copy is, is left to `runs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.backfill.installed import require
from jsplan.backfill.windows import SYSTEM, Clock
from jsplan.diagnostics import shell_word
from jsplan.errors import ExitCode, JsplanError, NotAvailableError, RefusedError, combine
from jsplan.workflows.backfill.hours import closed_words, left_words
from jsplan.workflows.backfill.keeping import is_nothing
from jsplan.workflows.backfill.options import BackfillOptions

if TYPE_CHECKING:
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.jetstream import Pool
    from jsplan.workflows.options import Observer, PlanOptions
    from jsplan.workflows.world import World


#: What became of entries, by name, as in the result of an apply.
Done = dict[str, dict[str, Any]]


def require_means(world: World, plan: Plan, options: PlanOptions) -> None:
    """Raise NotAvailableError or UsageError where the plan has backfills to run and they cannot be: before anything is changed."""
    if not options.backfill:
        _require_not_too_late(world, plan)
    if not (plan.copies and options.backfill):
        return
    try:
        require()
        from jsplan.workflows.backfill.freeze import entry_of  # noqa: PLC0415 - only a plan with backfills needs any of it
        from jsplan.workflows.backfill.wide import shape_of  # noqa: PLC0415 - as above

        for entry in plan.copies:
            shape_of(world, entry_of(world, _asked(entry)))
    except NotAvailableError as error:
        hint = f"{error.hint} Or skip the backfills: --no-backfill"
        raise NotAvailableError(f"{error}; nothing was changed", hint=hint) from None


def _require_not_too_late(world: World, plan: Plan) -> None:
    """Raise RefusedError where an entry insists on a snapshot and the plan would make its target without one."""
    for entry in plan.backfills:
        asked = world.workspace.backfills.get(entry["name"])
        if asked is not None and asked.strategy == "snapshot" and any(step.address == str(asked.target) for step in plan.steps):
            raise RefusedError(
                f"--no-backfill would make {asked.target} empty, and `strategy: snapshot` of backfill {asked.name} needs that it does not "
                "exist; nothing was changed", hint=f"Leave it for later: --exclude {shell_word(asked.target)}",
            )  # fmt: skip


async def follow_up(
    world: World, pool: Pool, plan: Plan, result: ApplyResult, options: PlanOptions, observer: Observer, done: Done | None = None
) -> ApplyResult:
    """Copy what the plan lists, once its changes are done. One that fails makes the apply one in part; the next plan lists it again.

    `done` are entries that its changes have carried out already.
    """
    left = {entry["name"]: _left(plan, entry, result, options) or _closed(world, entry, options) for entry in plan.copies}
    found = left | (done or {})
    if wanted := {entry["name"]: entry for entry in plan.copies if found[entry["name"]] is None}:
        asked = {name: _asked(entry, tuple(plan.allowed_hazards), options.clock) for name, entry in wanted.items()}
        found |= await _copied(world, pool, asked, observer)
        result.state |= {"serial": world.state.serial}
    told = [(entry["name"], _told(entry, options)) for entry in plan.backfills if entry not in plan.copies and not is_nothing(entry)]
    for name, said in [*found.items(), *told]:
        result.backfills.append({"name": name, **(said or {})})
        if said is not None and said["status"] == "failed":
            result.exit_code = int(combine([ExitCode(result.exit_code), ExitCode.PARTIAL]))
    return result


def _left(plan: Plan, entry: dict[str, Any], result: ApplyResult, options: PlanOptions) -> dict[str, Any] | None:
    """Why a backfill is not run now; None: it is."""
    if not options.backfill and not entry.get("declared", True):
        return _declined(entry)
    if not options.backfill:
        late = "its target was made empty, so a snapshot is not possible any more; " if entry["strategy"] == "snapshot" else ""
        return {"status": "skipped", "error": f"skipped by --no-backfill; {late}run it with: jsplan backfill run {entry['name']}"}
    if result.exit_code != int(ExitCode.OK):
        return {"status": "deferred", "error": "the changes before it were not all made; the next apply runs it"}
    ends = [end for end in (*entry["from"], entry["to"]) if "domain" in end]
    away = sorted({end["domain"] for end in ends if not plan.domains.get(end["domain"], {}).get("reachable", True)})
    return {"status": "deferred", "error": f"domain {', '.join(away)} is offline; the next apply runs it"} if away else None


def _declined(entry: dict[str, Any]) -> dict[str, Any]:
    return {"status": "skipped", "error": f"skipped by --no-backfill, and not planned again; run it with: {entry['command']}"}


def _told(entry: dict[str, Any], options: PlanOptions) -> dict[str, Any]:
    """What is said of history that an apply does not copy."""
    if "waits" in entry and not options.backfill:
        return _declined(entry)
    if "waits" in entry:
        return {"status": "deferred", "error": f"{entry['waits']}; what the source leaves out is planned when it is back"}
    by_hand = f". To bring it as it is: {entry['command']}" if "command" in entry else ""
    return {"status": "deferred", "error": f"{entry['reason']}{by_hand}"}


def _asked(entry: dict[str, Any], allow: tuple[str, ...] = (), clock: Clock = SYSTEM) -> BackfillOptions:
    """How a run is asked for an element of the plan: by its name, or by two addresses."""
    if entry.get("declared", True):
        return BackfillOptions(name=entry["name"], allow_hazards=allow, clock=clock)
    origin, target = (str(Address.of_stream(end["domain"], end["stream"])) for end in (entry["from"][0], entry["to"]))
    return BackfillOptions(origin=origin, target=target, allow_hazards=allow, clock=clock, declined=False)


def _closed(world: World, entry: dict[str, Any], options: PlanOptions) -> dict[str, Any] | None:
    """That the window of an entry is closed: an apply does not wait for it."""
    declared = world.workspace.backfills.get(entry["name"])
    words = closed_words(declared, options.clock) if declared is not None else None
    return {"status": "deferred", "error": words} if words else None


async def _copied(world: World, pool: Pool, wanted: dict[str, BackfillOptions], observer: Observer) -> dict[str, dict[str, Any]]:
    """What became of each entry. One that fails holds up no other."""
    from jsplan.workflows.backfill.runs import Run, copying  # noqa: PLC0415 - only a plan with backfills needs Spark

    found: dict[str, dict[str, Any]] = {}
    try:
        async with copying(world, wanted.values(), observer) as engine:
            for name, options in wanted.items():
                try:
                    done = await Run(world, pool, options, observer, engine).all()
                except JsplanError as error:
                    found[name] = _failed(error)
                else:
                    found[name] = {"status": "done", "copied": done.copied, "gap_messages": done.gap_messages, "error": None}
                    if done.closed:
                        found[name] = {
                            "status": "deferred",
                            "copied": done.copied,
                            "error": left_words(world.workspace.backfills[name], done),
                        }
    except JsplanError as error:  # the state could not be written
        return dict.fromkeys(wanted, _failed(error))
    return found


def _failed(error: JsplanError) -> dict[str, Any]:
    return {"status": "failed", "error": error.in_full}
