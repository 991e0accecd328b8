"""Streams that source a relocated one: they continue at its new address.

A source of another address is a new one for the server, which copies from the start. So the old
source is removed first, and the new one begins after the last message that the old one copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.planning.replication.impact import attach_sources, reads_origin
from jsplan.planning.replication.renamed_domains import find_renamed_sources
from jsplan.planning.replication.same_sequences import find_switched_sources
from jsplan.planning.revision import Revision
from jsplan.planning.transfer.decisions import ORIGIN_RELOCATED, TARGET_RELOCATED
from jsplan.planning.transfer.sources import find_old_source
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key

if TYPE_CHECKING:
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
    from jsplan.planning.transfer.progress import Transfer


def plan_relocated_sources(
    inputs: PlanInputs, decisions: Decisions
) -> dict[Address, ResourceDecision]:
    """Complete the decisions about streams that will read a target instead of its origin.

    So do those that read a domain under its new name, or another copy of the same stream.
    """
    revision = Revision(decisions)
    updated = [
        address
        for address, decision in decisions.items()
        if decision.actions == ["update"] and address.is_stream
    ]
    for address in updated:
        for find in (find_renamed_sources, find_switched_sources):
            _resume_sources(inputs, revision, address, find(inputs, revision[address]))
    for relocation in inputs.relocations.values():
        sides = (decisions.get(side) for side in (relocation.target, relocation.origin))
        reasons = {side.reason for side in sides if side is not None}
        if not reasons & {TARGET_RELOCATED, ORIGIN_RELOCATED} and not relocation.is_origin_lost:
            continue
        for address in updated:
            moved = _moved_sources(inputs, relocation, revision[address])
            _resume_sources(inputs, revision, address, moved)
    return revision.overrides


def _resume_sources(
    inputs: PlanInputs, revision: Revision, address: Address, moved: Iterable[tuple[str, Config]]
) -> None:
    for key, old in list(moved):
        decision = revision[address]
        if key in decision.relocated_sources:
            continue
        detached = inputs.interrupted.detached_sources.get(address, set())
        revision.change(
            address,
            sources_to_detach=decision.sources_to_detach | ({origin_key(old)} - detached),
            relocated_sources=decision.relocated_sources | {key: old},
        )
        attach_sources(revision, address, {key})


def _moved_sources(
    inputs: PlanInputs, relocation: Transfer, decision: ResourceDecision
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
