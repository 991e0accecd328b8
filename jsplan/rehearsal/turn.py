"""One turn of a rehearsal: the servers of some sites are started and filled, the steps that belong to them carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.plan import Plan, Step
from jsplan.facts.live import LiveObject
from jsplan.rehearsal.findings import finding, not_rehearsed
from jsplan.rehearsal.script import Script, elsewhere, script_of, writing
from jsplan.rehearsal.shape import Place, Shape
from jsplan.rehearsal.stage import Stage, staged
from jsplan.sandbox.sites import Site

Positions = Mapping[Address, SourceRange]


@dataclass(slots=True)
class Outcome:
    """What a turn showed: `refused` steps, `behind` are steps that waited for a refused one, `left_out` could not be tried."""

    refused: int = 0
    behind: int = 0
    left_out: int = 0
    diagnostics: list[Diagnostic] = field(default_factory=list)


async def rehearse_turn(plan: Plan, shape: Shape, sites: list[Site], positions: Positions, parallelism: int) -> Outcome:
    """Carry out what the plan does on these sites. Raises SandboxError and ApiError when the embedded servers fail."""
    places = shape.at(sites)
    by_key = {key: place for place in places for key in place.jetstream.keys}
    part = replace(plan, steps=[step for step in plan.steps if step.domain in by_key])
    async with staged(sites, places) as stage:
        await stage.fill(places, shape.clusters)
        there = await stage.there(writing(part))
        prints = {address: live.fingerprint for address, live in there.items()}
        script = script_of(part, _obstacles(part, shape, stage, by_key), prints, _born(by_key, there))
        results = await stage.carry_out(replace(part, steps=script.steps), parallelism)
    outcome = Outcome(left_out=len(script.left_out), diagnostics=_left_out(script, stage, places, positions))
    at_fault: set[str] = set()
    for step, result in zip(script.steps, results, strict=True):
        refusals, expiring = stage.apis[step.domain].refusals, _expiring(by_key[step.domain])
        told = finding(step, result, refusals, by_key[step.domain], expiring, positions.get(Address.parse(step.address)))
        _count(outcome, at_fault, step, told, skipped=result.status == "skipped")
    return outcome


def _count(outcome: Outcome, at_fault: set[str], step: Step, told: Diagnostic | None, *, skipped: bool) -> None:
    """`at_fault` are refused steps and those behind them: what waits for one of them was not left out by the rehearsal."""
    refused, behind = told is not None and told.severity == "error", skipped and not at_fault.isdisjoint(step.depends_on)
    outcome.refused += refused
    outcome.behind += behind
    outcome.left_out += (told is not None or skipped) and not refused and not behind
    outcome.diagnostics += [told] if told is not None else []
    if refused or behind:
        at_fault.add(step.id)


def _obstacles(part: Plan, shape: Shape, stage: Stage, places: Mapping[str, Place]) -> dict[str, str]:
    """By step id, what keeps a step from being rehearsed."""
    found = {}
    for step in writing(part):
        jetstream = places[step.domain].jetstream
        absent = jetstream.unread | stage.seeds.missing
        touched = step.touches._replace(domain=jetstream.key)
        lacking = next((absent[a] for a in (touched, touched.parent) if a in absent), None)
        if (why := elsewhere(step, shape.clusters[step.domain]) or lacking) is not None:
            found[step.id] = why
    return found


def _born(places: Mapping[str, Place], there: Mapping[Address, LiveObject]) -> dict[str, str]:
    """When the real objects were created, and when those that stand in for them were."""
    real = {o.address: o.created for place in places.values() for o in (*place.jetstream.streams, *place.jetstream.consumers)}
    known = {address: address._replace(domain=places[address.domain].jetstream.key) for address in there}
    return {real[known[address]]: live.created for address, live in there.items() if known[address] in real}


def _left_out(script: Script, stage: Stage, places: list[Place], positions: Positions) -> list[Diagnostic]:
    """A warning for each thing that is not there or not tried, each once."""
    why = {address: reason for place in places for address, reason in place.jetstream.unread.items()} | stage.seeds.missing
    why |= {Address.parse(address): reason for address, reason in script.reasons.items()}
    return [not_rehearsed(str(address), reason, positions.get(address)) for address, reason in sorted(why.items())]


def _expiring(place: Place) -> dict[Address, LiveObject]:
    """Consumers that the server deletes when nobody uses them, under every key that leads to them."""
    found = [o for o in place.jetstream.consumers if o.raw.get("inactive_threshold")]
    return {o.address._replace(domain=key): o for o in found for key in place.jetstream.keys}


def steps_of(plan: Plan, keys: set[str]) -> list[Step]:
    """The steps that write to one of the domains."""
    return [step for step in writing(plan) if step.domain in keys]
