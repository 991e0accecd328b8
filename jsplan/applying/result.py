"""Builds the result of an apply from its steps."""

from __future__ import annotations

from collections.abc import Mapping

from jsplan.address import Address
from jsplan.applying.backup_before_delete import BackupBeforeDelete
from jsplan.applying.executor import Execution
from jsplan.applying.transfer.record import read_transfers
from jsplan.documents.apply import ApplyResult, StepResult
from jsplan.documents.plan import Plan
from jsplan.documents.types import Deferred
from jsplan.errors import ExitCode, combine_exit_codes
from jsplan.facts.live import DomainFacts, LiveObject
from jsplan.facts.reader import read_object
from jsplan.planning.transfer.progress import Transfer, list_unfinished
from jsplan.state import State


async def summarize_execution(
    execution: Execution, lost: Mapping[str, str], backups: BackupBeforeDelete | None
) -> ApplyResult:
    """Build the result of all steps so far; `lost` are the domains that were lost before them."""
    result = build_result(
        execution.plan,
        execution.state,
        execution.collect_results(),
        {**lost, **execution.lost_domains},
        interrupted=execution.stop.is_set(),
    )
    if backups is not None and backups.saved:
        result.backup = {"folder": str(backups.path), "streams": sorted(backups.saved)}
    result.interrupted = list_unfinished(await _read_transfers(execution))
    return result


async def _read_transfers(execution: Execution) -> list[Transfer]:
    """Read the transfers that are not finished from the servers that answer."""
    online = execution.apis.keys() - execution.lost_domains.keys()

    async def read(address: Address) -> LiveObject | None:
        return await read_object(execution.apis[address.domain], address)

    records = execution.state.replacements.values()
    return await read_transfers(records, online.__contains__, read)


def build_result(
    plan: Plan,
    state: State,
    results: list[StepResult],
    lost: Mapping[str, str],
    *,
    interrupted: bool,
) -> ApplyResult:
    """Build the result; `lost` are the domains that were lost since planning, with reasons."""
    finished = {r.address for r in results} - {r.address for r in results if r.status != "done"}
    deferred = [
        *plan.deferred,
        *(d for d in _deferred_resources(plan, lost) if d.address not in finished),
    ]
    codes = [ExitCode.INTERRUPTED] if interrupted else []
    if any(r.status != "done" for r in results) or (plan.mode == "destroy" and deferred):
        codes.append(ExitCode.PARTIAL)
    return ApplyResult(
        plan_id=plan.id,
        steps=results,
        summary=_summarize(plan, results, len(deferred)),
        state={"lineage": state.lineage or None, "serial": state.serial},
        exit_code=int(combine_exit_codes(codes)),
        deferred=deferred,
    )


def _deferred_resources(plan: Plan, lost: Mapping[str, str]) -> list[Deferred]:
    """Return the resources of domains that were lost since planning, changed or not."""
    reasons = {
        key: DomainFacts(key, reachable=False, reason=reason).offline_text
        for key, reason in lost.items()
    }
    changes = plan.resource_changes
    return [Deferred(c.address, reasons[c.domain]) for c in changes if c.domain in lost]


def _summarize(plan: Plan, results: list[StepResult], deferred: int) -> dict[str, int]:
    """Count resources by action: those whose steps, or those of their stream, are all done."""
    touched = {step.address for step in plan.steps}
    finished = touched - {r.address for r in results if r.status != "done"}
    preserved = {
        c.address for c in plan.resource_changes if c.change.actions == ["create", "delete"]
    }
    done = []
    for change in plan.resource_changes:
        # A consumer comes back with its stream, whose steps include it.
        stream = str(Address.parse(change.address).parent or "")
        restored = change.address not in touched and stream in finished & preserved
        done += [change] if restored or change.address in finished else []
    actions = [tuple(c.change.actions) for c in done]
    return {
        "imported": sum(1 for c in done if c.change.importing),
        "added": actions.count(("create",)),
        "changed": actions.count(("update",)),
        "replaced": sum(1 for action in actions if len(action) == 2),
        "destroyed": actions.count(("delete",)),
        "forgotten": actions.count(("forget",)),
        "deferred": deferred,
        "failed": sum(1 for r in results if r.status in ("failed", "unknown")),
        "skipped": sum(1 for r in results if r.status == "skipped"),
    }
