"""plan: load, refresh, compare, measure, assess, order. Writes nothing, takes no lock."""

from __future__ import annotations

from pathlib import Path

from jsplan.config.model import LoadOptions
from jsplan.disk import write_private
from jsplan.documents.base import dumps, read_json
from jsplan.documents.plan import Plan
from jsplan.errors import JsplanError
from jsplan.jetstream import Pool
from jsplan.planning.build import build_plan, compare
from jsplan.planning.following import for_strangers
from jsplan.planning.given_up import select_given_up
from jsplan.workflows.advice import for_plan
from jsplan.workflows.options import Observer, PlanOptions
from jsplan.workflows.running import run
from jsplan.workflows.unwell import unwell
from jsplan.workflows.world import World, inputs_of, look_around, measure, open_pool, open_world, refresh, request_of, require_known


def plan(load: LoadOptions, options: PlanOptions, observer: Observer) -> Plan:
    """The plan for a workspace as it is now. Raises ConfigError, StateError, ConnectError and ApiError.

    Findings that concern single resources are in the plan's `diagnostics`; `errored` says whether one is an error.
    """
    return run(_plan(load, options, observer))


async def _plan(load: LoadOptions, options: PlanOptions, observer: Observer) -> Plan:
    async with open_world(load) as world, open_pool(world, read_only=True, sealed=True) as pool:
        return await plan_world(world, pool, options, observer)


async def plan_world(world: World, pool: Pool, options: PlanOptions, observer: Observer) -> Plan:
    """Refresh and plan with connections at hand: what `plan` and `apply` share."""
    inputs = inputs_of(world, request_of(options))
    inputs.given_up = select_given_up(inputs)
    require_known(inputs, () if options.imports else options.targets, "--target")  # what is to be imported was looked up before
    require_known(inputs, options.excludes, "--exclude")
    require_known(inputs, options.replace, "--replace")
    await refresh(world, inputs, pool, options, observer)
    verdicts = compare(inputs)
    await look_around(world, inputs, verdicts, pool)
    for_strangers(inputs, verdicts)
    await measure(world, inputs, verdicts, pool, observer)
    built = build_plan(inputs, verdicts, [*for_plan(inputs, verdicts), *await unwell(world, pool, inputs, verdicts)])
    if options.rehearse:
        from jsplan.workflows.rehearse import rehearse  # noqa: PLC0415 - a plan without it need not load executor and servers

        built.options["rehearse"] = True
        await rehearse(built, world.workspace, inputs.live, pool, observer, options.parallelism)
    return built


def save(plan: Plan, path: Path) -> None:
    """Write the plan document. It contains no secret. Raises JsplanError when it cannot be written."""
    try:
        write_private(path, dumps(plan.to_json()))
    except OSError as error:
        raise JsplanError(f"cannot write the plan {path}: {error.strerror}", hint="Give another path to -o.") from None


def load_plan(path: Path) -> Plan:
    """Read a saved plan; raises DocumentError for anything else."""
    return Plan.from_json(read_json(path, "plan"), str(path))
