"""Streams that source a relocated one: they continue at its new address.

A source of another address is a new one for the server, which copies from the start. So the old
source is removed first, and the new one begins after the last message that the old one copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.planning.relocation.decisions import ORIGIN_RELOCATED, TARGET_RELOCATED
from jsplan.planning.relocation.sources import find_old_source
from jsplan.planning.replication.impact import attach_sources, reads_origin
from jsplan.planning.replication.renamed_domains import find_renamed_sources
from jsplan.planning.replication.same_sequences import find_switched_sources
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs, ResourceDecision
    from jsplan.planning.relocation.progress import Relocation


def plan_relocated_sources(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> None:
    """Complete the decisions about streams that will read a target instead of its origin.

    So do those that read a domain under its new name, or another copy of the same stream.
    """
    for decision in decisions.values():
        if decision.actions == ["update"] and decision.address.kind != "consumer":
            _resume_sources(inputs, decision, find_renamed_sources(inputs, decision))
            _resume_sources(inputs, decision, find_switched_sources(inputs, decision))
    for relocation in inputs.relocations.values():
        sides = (decisions.get(side) for side in (relocation.target, relocation.origin))
        reasons = {side.reason for side in sides if side is not None}
        if not reasons & {TARGET_RELOCATED, ORIGIN_RELOCATED} and not relocation.is_origin_lost:
            continue
        for decision in decisions.values():
            if decision.actions == ["update"] and decision.address.kind != "consumer":
                _resume_sources(inputs, decision, _moved_sources(inputs, relocation, decision))


def _resume_sources(
    inputs: PlanInputs, decision: ResourceDecision, moved: Iterable[tuple[str, Config]]
) -> None:
    for key, old in moved:
        if key in decision.relocated_sources:
            continue
        detached = inputs.interrupted.detached_sources.get(decision.address, set())
        decision.sources_to_detach |= {origin_key(old)} - detached
        decision.relocated_sources[key] = old
        attach_sources(decision, {key})


def _moved_sources(
    inputs: PlanInputs, relocation: Relocation, decision: ResourceDecision
) -> Iterator[tuple[str, Config]]:
    """Yield the key of each source of the target, with the source of the origin before it."""
    live = decision.live
    if live is None:
        return
    existing = {origin_key(source) for source in live.compact.get("sources") or ()}
    for source in (decision.after or {}).get("sources") or ():
        if origin_key(source) in existing or not reads_origin(
            inputs, decision.address, source, relocation.target
        ):
            continue
        old = find_old_source(inputs, relocation, live, source)
        if old is not None:
            yield origin_key(source), old
