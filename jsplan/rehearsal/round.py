"""One turn of a rehearsal: the servers of some sites are started and filled, the steps that belong to them carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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


@dataclass(slots=True)
class RoundOutcome:
    """What a turn showed: `refused` steps, `behind` are steps that waited for a refused one, `left_out` could not be tried."""

    refused: int = 0
    behind: int = 0
    left_out: int = 0
    diagnostics: list[Diagnostic] = field(default_factory=list)


async def rehearse_round(
    plan: Plan, shape: RehearsalLayout, sites: list[Site], positions: SourceRanges, parallelism: int
) -> RoundOutcome:
    """Carry out what the plan does on these sites. Raises SandboxError and ApiError when the embedded servers fail."""
    places = shape.targets_on(sites)
    by_key = {key: place for place in places for key in place.jetstream.keys}
    part = replace(plan, steps=[step for step in plan.steps if step.domain in by_key])
    async with start_environment(sites, places) as stage:
        await stage.seed(places, shape.clusters)
        there = await stage.read_touched(list_writing_steps(part))
        prints = {address: live.fingerprint for address, live in there.items()}
        script = build_steps(
            part, _find_obstacles(part, shape, stage, by_key), prints, _created_times(by_key, there)
        )
        results = await stage.execute(replace(part, steps=script.steps), parallelism)
    outcome = RoundOutcome(
        left_out=len(script.skipped),
        diagnostics=_left_out_warnings(script, stage, places, positions),
    )
    at_fault: set[str] = set()
    for step, result in zip(script.steps, results, strict=True):
        refusals, expiring = (
            stage.apis[step.domain].refusals,
            _expiring_consumers(by_key[step.domain]),
        )
        told = build_finding(
            step,
            result,
            refusals,
            by_key[step.domain],
            expiring,
            positions.get(Address.parse(step.address)),
        )
        _count_outcome(outcome, at_fault, step, told, skipped=result.status == "skipped")
    return outcome


def _count_outcome(
    outcome: RoundOutcome,
    at_fault: set[str],
    step: Step,
    finding: Diagnostic | None,
    *,
    skipped: bool,
) -> None:
    """`at_fault` are refused steps and those behind them: what waits for one of them was not left out by the rehearsal."""
    refused, behind = (
        finding is not None and finding.severity == "error",
        skipped and not at_fault.isdisjoint(step.depends_on),
    )
    outcome.refused += refused
    outcome.behind += behind
    outcome.left_out += (finding is not None or skipped) and not refused and not behind
    outcome.diagnostics += [finding] if finding is not None else []
    if refused or behind:
        at_fault.add(step.id)


def _find_obstacles(
    part: Plan,
    shape: RehearsalLayout,
    stage: RehearsalEnvironment,
    places: Mapping[str, RehearsalTarget],
) -> dict[str, str]:
    """By step id, what keeps a step from being rehearsed."""
    found = {}
    for step in list_writing_steps(part):
        jetstream = places[step.domain].jetstream
        absent = jetstream.unreadable_objects | stage.seeds.missing
        touched = step.target_address._replace(domain=jetstream.key)
        lacking = next((absent[a] for a in (touched, touched.parent) if a in absent), None)
        if (why := placement_problem(step, shape.clusters[step.domain]) or lacking) is not None:
            found[step.id] = why
    return found


def _created_times(
    places: Mapping[str, RehearsalTarget], there: Mapping[Address, LiveObject]
) -> dict[str, str]:
    """When the real objects were created, and when those that stand in for them were."""
    real = {
        o.address: o.created
        for place in places.values()
        for o in (*place.jetstream.streams, *place.jetstream.consumers)
    }
    known = {
        address: address._replace(domain=places[address.domain].jetstream.key) for address in there
    }
    return {
        real[known[address]]: live.created
        for address, live in there.items()
        if known[address] in real
    }


def _left_out_warnings(
    script: RehearsedSteps,
    stage: RehearsalEnvironment,
    places: list[RehearsalTarget],
    positions: SourceRanges,
) -> list[Diagnostic]:
    """A warning for each thing that is not there or not tried, each once."""
    why = {
        address: reason
        for place in places
        for address, reason in place.jetstream.unreadable_objects.items()
    } | stage.seeds.missing
    why |= {Address.parse(address): reason for address, reason in script.reasons.items()}
    return [
        not_rehearsed_warning(str(address), reason, positions.get(address))
        for address, reason in sorted(why.items())
    ]


def _expiring_consumers(place: RehearsalTarget) -> dict[Address, LiveObject]:
    """Consumers that the server deletes when nobody uses them, under every key that leads to them."""
    found = [o for o in place.jetstream.consumers if o.raw.get("inactive_threshold")]
    return {o.address._replace(domain=key): o for o in found for key in place.jetstream.keys}


def select_steps(plan: Plan, keys: set[str]) -> list[Step]:
    """The steps that write to one of the domains."""
    return [step for step in list_writing_steps(plan) if step.domain in keys]
