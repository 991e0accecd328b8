"""plan: load, refresh, compare, measure, assess, order. Writes nothing, takes no lock."""

from __future__ import annotations

from pathlib import Path

from jsplan.config.model import LoadOptions
from jsplan.context import (
    Context,
    build_inputs,
    build_request,
    measure,
    open_context,
    open_pool,
    read_affected,
    refresh,
    require_matching,
)
from jsplan.disk import write_private
from jsplan.documents.base import dumps, read_json
from jsplan.documents.plan import Plan
from jsplan.errors import JsplanError
from jsplan.event_loop import run_until_complete
from jsplan.jetstream import Pool
from jsplan.options import Observer, PlanOptions
from jsplan.planning.build import build_plan, decide_all
from jsplan.planning.forgotten_entries import select_forgotten
from jsplan.planning.replication.checks import continue_sequence_for_unmanaged
from jsplan.workflows.plan_lint import lint_plan
from jsplan.workflows.replication_warnings import find_replication_warnings


def plan(load: LoadOptions, options: PlanOptions, observer: Observer) -> Plan:
    """The plan for a workspace as it is now. Raises ConfigError, StateError, ConnectError and ApiError.

    Findings that concern single resources are in the plan's `diagnostics`; `errored` says whether one is an error.
    """
    return run_until_complete(_plan(load, options, observer))


async def _plan(load: LoadOptions, options: PlanOptions, observer: Observer) -> Plan:
    async with open_context(load) as world, open_pool(world, read_only=True, guarded=True) as pool:
        return await compute_plan(world, pool, options, observer)


async def compute_plan(
    world: Context, pool: Pool, options: PlanOptions, observer: Observer
) -> Plan:
    """Refresh and plan with connections at hand: what `plan` and `apply` share."""
    inputs = build_inputs(world, build_request(options))
    inputs.forgotten = select_forgotten(inputs)
    require_matching(
        inputs, () if options.imports else options.targets, "--target"
    )  # what is to be imported was looked up before
    require_matching(inputs, options.excludes, "--exclude")
    require_matching(inputs, options.replace, "--replace")
    await refresh(world, inputs, pool, options, observer)
    verdicts = decide_all(inputs)
    await read_affected(world, inputs, verdicts, pool)
    continue_sequence_for_unmanaged(inputs, verdicts)
    await measure(world, inputs, verdicts, pool, observer)
    built = build_plan(
        inputs,
        verdicts,
        [
            *lint_plan(inputs, verdicts),
            *await find_replication_warnings(world, pool, inputs, verdicts),
        ],
    )
    if options.rehearse:
        from jsplan.workflows.rehearse import rehearse  # noqa: PLC0415 - a plan without it need not load executor and servers

        built.options["rehearse"] = True
        await rehearse(built, world.workspace, inputs.live, pool, observer, options.parallelism)
    return built


def save_plan(plan: Plan, path: Path) -> None:
    """Write the plan document. It contains no secret. Raises JsplanError when it cannot be written."""
    try:
        write_private(path, dumps(plan.to_json()))
    except OSError as error:
        raise JsplanError(
            f"cannot write the plan {path}: {error.strerror}", hint="Give another path to -o."
        ) from None


def load_plan(path: Path) -> Plan:
    """Read a saved plan; raises DocumentError for anything else."""
    return Plan.from_json(read_json(path, "plan"), str(path))
