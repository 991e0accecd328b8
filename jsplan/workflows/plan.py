"""plan: load, refresh, compare, measure, assess, order. Writes nothing; takes no lock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import LoadOptions
from jsplan.context import Session, open_session
from jsplan.disk import write_private
from jsplan.documents.base import dumps, read_json
from jsplan.documents.plan import Plan
from jsplan.errors import JsplanError
from jsplan.event_loop import runs_to_end
from jsplan.lint.plan import lint_plan
from jsplan.options import Observer, PlanOptions
from jsplan.plan_inputs import build_inputs, require_matching
from jsplan.planning.build import build_plan
from jsplan.planning.forgotten_entries import select_forgotten
from jsplan.planning.model import split_contents
from jsplan.replication import find_replication_warnings
from jsplan.server_reader import ServerReader
from jsplan.workflows.state import find_state_to_take

if TYPE_CHECKING:
    from jsplan.diagnostics import Diagnostic
    from jsplan.planning.model import PlanInputs, ResourceDecision
    from jsplan.planning.restore.selection import Backup


@runs_to_end
async def plan(load: LoadOptions, options: PlanOptions, observer: Observer) -> Plan:
    """Compute the plan. Raises ConfigError, StateError, ConnectError and ApiError.

    Findings about single resources are in the plan's `diagnostics`; `errored` is True if one of
    them is an error.
    """
    async with open_session(load, observer) as session:
        return await compute_plan(session, options)


async def compute_plan(
    session: Session,
    options: PlanOptions,
    only: frozenset[Address] | None = None,
    backup: Backup | None = None,
) -> Plan:
    """Refresh and plan over open connections, for `plan`, `apply`, `revert` and `restore`.

    With `only`, plan these addresses and not what they depend on. What the workspace declares of
    `backup` is created with its saved content.
    """
    inputs = replace(build_inputs(session.context, options), backup=backup or {})
    if only is None:
        inputs = replace(inputs, forgotten=select_forgotten(inputs))
    else:
        inputs = replace(inputs, selected=inputs.selected & only)
    require_matching(inputs)
    reader = ServerReader(session)
    inputs = await reader.refresh(inputs, require_online=options.offline == "fail")
    inputs, decisions = await reader.decide(inputs)
    planned, _ = split_contents(decisions)
    built = build_plan(inputs, decisions, await _find_more(session, inputs, planned))
    if options.rehearse:
        # Loaded only here: most plans need neither the executor nor servers.
        from jsplan.rehearsal.run import rehearse  # noqa: PLC0415

        built.options["rehearse"] = True
        if options.server_version:
            built.options["server_version"] = options.server_version
        await rehearse(
            built,
            session.context.workspace,
            inputs.live,
            session.pool,
            session.observer,
            options.parallelism,
            options.server_version,
        )
    return built


async def _find_more(
    session: Session, inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> list[Diagnostic]:
    """Find what is no error of one resource; of a restore, its obstacles."""
    if inputs.backup:
        from jsplan.planning.restore.obstacles import check_restore  # noqa: PLC0415 - restores only

        return list(check_restore(inputs, decisions))
    return [
        *lint_plan(inputs, decisions),
        *await find_replication_warnings(session, inputs, decisions),
        *await find_state_to_take(session.context),
    ]


def save_plan(plan: Plan, path: Path) -> None:
    """Write the plan, which has no secrets. Raises JsplanError when it cannot be written."""
    try:
        write_private(path, dumps(plan.to_json()))
    except OSError as error:
        raise JsplanError(
            f"cannot write the plan {path}: {error.strerror}", hint="Give another path to -o."
        ) from None


def load_plan(path: Path) -> Plan:
    """Read a saved plan. Raises DocumentError for anything else."""
    return Plan.from_json(read_json(path, "plan"), str(path))
