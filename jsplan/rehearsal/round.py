"""One round of a rehearsal: seeds the servers of some sites and executes their steps."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.plan import Plan, Step
from jsplan.facts.live import LiveObject
from jsplan.rehearsal.environment import RehearsalEnvironment, start_environment
from jsplan.rehearsal.findings import build_finding, not_rehearsed_warning
from jsplan.rehearsal.layout import RehearsalLayout, RehearsalTarget
from jsplan.rehearsal.steps import (
    RehearsedSteps,
    build_steps,
    list_writing_steps,
    placement_problem,
)
from jsplan.sandbox.sites import Site

SourceRanges = Mapping[Address, SourceRange]


class RoundOutcome(Struct):
    """Counts of steps: `refused`, `blocked` a refused one, `not_tried` because not rehearsable."""

    refused: int = 0
    blocked: int = 0
    not_tried: int = 0
    diagnostics: list[Diagnostic] = field(default_factory=list)


async def rehearse_round(
    plan: Plan,
    layout: RehearsalLayout,
    sites: list[Site],
    positions: SourceRanges,
    parallelism: int,
) -> RoundOutcome:
    """Execute the steps on these sites. Raises SandboxError and ApiError if servers fail."""
    targets = layout.targets_on(sites)
    by_key = {key: target for target in targets for key in target.jetstream.keys}
    part = replace(plan, steps=[step for step in plan.steps if step.domain in by_key])
    async with start_environment(sites, targets) as servers:
        await servers.seed(targets, layout.clusters)
        existing = await servers.read_touched(list_writing_steps(part))
        fingerprints = {address: live.fingerprint for address, live in existing.items()}
        script = build_steps(
            part,
            _find_obstacles(part, layout, servers, by_key),
            fingerprints,
            _created_times(by_key, existing),
        )
        results = await servers.execute(replace(part, steps=script.steps), parallelism)
    outcome = RoundOutcome(
        not_tried=len(script.skipped),
        diagnostics=_left_out_warnings(script, servers, targets, positions),
    )
    at_fault: set[str] = set()
    for step, result in zip(script.steps, results, strict=True):
        refusals, expiring = (
            servers.apis[step.domain].refusals,
            _expiring_consumers(by_key[step.domain]),
        )
        finding = build_finding(
            step,
            result,
            refusals,
            by_key[step.domain],
            expiring,
            positions.get(Address.parse(step.address)),
        )
        _count_outcome(outcome, at_fault, step, finding, skipped=result.status == "skipped")
    return outcome


def _count_outcome(
    outcome: RoundOutcome,
    at_fault: set[str],
    step: Step,
    finding: Diagnostic | None,
    *,
    skipped: bool,
) -> None:
    """Count one step. `at_fault` are refused steps and those behind them."""
    refused, behind = (
        finding is not None and finding.severity == "error",
        skipped and not at_fault.isdisjoint(step.depends_on),
    )
    outcome.refused += refused
    outcome.blocked += behind
    outcome.not_tried += (finding is not None or skipped) and not refused and not behind
    outcome.diagnostics += [finding] if finding is not None else []
    if refused or behind:
        at_fault.add(step.id)


def _find_obstacles(
    part: Plan,
    layout: RehearsalLayout,
    servers: RehearsalEnvironment,
    targets: Mapping[str, RehearsalTarget],
) -> dict[str, str]:
    """Return by step id the reason why a step cannot be rehearsed."""
    found = {}
    for step in list_writing_steps(part):
        jetstream = targets[step.domain].jetstream
        absent = jetstream.unreadable_objects | servers.seeds.missing
        touched = step.target_address._replace(domain=jetstream.key)
        lacking = next((absent[a] for a in (touched, touched.parent) if a in absent), None)
        if (why := placement_problem(step, layout.clusters[step.domain]) or lacking) is not None:
            found[step.id] = why
    return found


def _created_times(
    targets: Mapping[str, RehearsalTarget], existing: Mapping[Address, LiveObject]
) -> dict[str, str]:
    """Map the `created` of each real object to that of its rehearsed object."""
    real = {
        o.address: o.created
        for target in targets.values()
        for o in (*target.jetstream.streams, *target.jetstream.consumers)
    }
    known = {
        address: address._replace(domain=targets[address.domain].jetstream.key)
        for address in existing
    }
    return {
        real[known[address]]: live.created
        for address, live in existing.items()
        if known[address] in real
    }


def _left_out_warnings(
    script: RehearsedSteps,
    servers: RehearsalEnvironment,
    targets: list[RehearsalTarget],
    positions: SourceRanges,
) -> list[Diagnostic]:
    """Return one warning for each thing that does not exist or was not tried."""
    why = {
        address: reason
        for target in targets
        for address, reason in target.jetstream.unreadable_objects.items()
    } | servers.seeds.missing
    why |= {Address.parse(address): reason for address, reason in script.reasons.items()}
    return [
        not_rehearsed_warning(str(address), reason, positions.get(address))
        for address, reason in sorted(why.items())
    ]


def _expiring_consumers(target: RehearsalTarget) -> dict[Address, LiveObject]:
    """Return consumers that the server deletes when idle, under each key that leads to them."""
    found = [o for o in target.jetstream.consumers if o.raw.get("inactive_threshold")]
    return {o.address._replace(domain=key): o for o in found for key in target.jetstream.keys}


def select_steps(plan: Plan, keys: set[str]) -> list[Step]:
    """Return the steps that write to one of the domains."""
    return [step for step in list_writing_steps(plan) if step.domain in keys]
