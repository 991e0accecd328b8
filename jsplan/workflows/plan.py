"""plan: load, refresh, compare, measure, assess, order. Writes nothing, takes no lock."""

from __future__ import annotations

from pathlib import Path

from jsplan.config.model import LoadOptions
from jsplan.documents.base import dumps, read_json
from jsplan.documents.plan import Plan
from jsplan.errors import JsplanError, NotAvailableError
from jsplan.jetstream import Pool
from jsplan.planning.build import build_plan, compare
from jsplan.workflows.options import Observer, PlanOptions
from jsplan.workflows.running import run
from jsplan.workflows.world import World, inputs_of, load_world, measure, open_pool, refresh, request_of, require_known


def plan(load: LoadOptions, options: PlanOptions, observer: Observer) -> Plan:
    """The plan for a workspace as it is now. Raises ConfigError, StateError, ConnectError and ApiError.

    Findings that concern single resources are in the plan's `diagnostics`; `errored` says whether one is an error.
    """
    return run(_plan(load, options, observer))


async def _plan(load: LoadOptions, options: PlanOptions, observer: Observer) -> Plan:
    world = load_world(load)
    async with open_pool(world, read_only=True) as pool:
        return await plan_world(world, pool, options, observer)


async def plan_world(world: World, pool: Pool, options: PlanOptions, observer: Observer) -> Plan:
    """Refresh and plan with connections at hand: what `plan` and `apply` share."""
    if options.rehearse:
        raise NotAvailableError("--rehearse is not in this release yet", hint="Plan without it.")
    inputs = inputs_of(world, request_of(options))
    require_known(inputs, options.targets, "--target")
    require_known(inputs, options.excludes, "--exclude")
    require_known(inputs, options.replace, "--replace")
    await refresh(world, inputs, pool, options, observer)
    verdicts = compare(inputs)
    await measure(world, inputs, verdicts, pool, observer)
    return build_plan(inputs, verdicts)


def save(plan: Plan, path: Path) -> None:
    """Write the plan document. It contains no secret. Raises JsplanError when it cannot be written."""
    try:
        path.write_bytes(dumps(plan.to_json()))
    except OSError as error:
        raise JsplanError(f"cannot write the plan {path}: {error.strerror}", hint="Give another path to -o.") from None


def load_plan(path: Path) -> Plan:
    """Read a saved plan; raises DocumentError for anything else."""
    return Plan.from_json(read_json(path, "plan"), str(path))
