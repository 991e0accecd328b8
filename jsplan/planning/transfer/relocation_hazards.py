"""Hazards of a relocation: for publishers, for consumers, and for those that stay behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.documents.plan import Hazard
from jsplan.facts.live import LiveObject, get_retention
from jsplan.planning.bucket_aliases import nouns_of
from jsplan.planning.transfer.estimate import (
    compare_seconds,
    cutover_seconds,
    duration_text,
)
from jsplan.planning.transfer.progress import Transfer
from jsplan.planning.transfer.redelivery import assess_redelivery
from jsplan.planning.transfer.replacement import list_consumers
from jsplan.planning.transfer.successors import origin_consumer, target_consumer
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs, ResourceDecision


def assess_target(
    inputs: PlanInputs,
    decision: ResourceDecision,
    decisions: Mapping[Address, ResourceDecision],
) -> Iterable[Hazard]:
    """Yield the hazards for publishers and consumers, at the new address."""
    relocation = decision.relocation
    assert relocation is not None
    origin = inputs.live.get(relocation.origin)
    if origin is None:
        return
    if not relocation.is_quiesced:
        yield from _assess_publishers(inputs, relocation, origin)
    coming = [
        consumer
        for consumer in list_consumers(inputs, relocation.origin)
        if (found := _find_successor(inputs, relocation, consumer, decisions)) is not None
        and found.relocation is not None
        and found.after is not None
    ]
    yield from assess_redelivery(inputs, origin, coming)


def assess_origin(
    inputs: PlanInputs,
    decision: ResourceDecision,
    decisions: Mapping[Address, ResourceDecision],
) -> Iterable[Hazard]:
    """Yield the hazard for consumers of the origin that do not come along."""
    relocation = decision.relocation
    assert relocation is not None
    left = [
        consumer
        for consumer in list_consumers(inputs, relocation.origin)
        if _find_successor(inputs, relocation, consumer, decisions) is None
    ]
    if left:
        names = ", ".join(consumer.address.consumer for consumer in left)
        pending = sum(consumer.messages_at_risk for consumer in left)
        verb = "is" if pending == 1 else "are"
        unfinished = (
            f"; {count_text(pending, 'message')} {verb} not processed yet" if pending else ""
        )
        yield Hazard(
            "DELETES_CONSUMER",
            f"{names}: not declared under {relocation.target}, so deleted with the "
            f"origin{unfinished}",
            blocking=pending > 0,
            messages=pending,
            exact=True,
            causes=[consumer.address.consumer for consumer in left],
        )


def _find_successor(
    inputs: PlanInputs,
    relocation: Transfer,
    consumer: LiveObject,
    decisions: Mapping[Address, ResourceDecision],
) -> ResourceDecision | None:
    """Return the decision about the consumer of the target that continues one of the origin."""
    address = target_consumer(inputs.workspace, relocation, consumer.address)
    found = decisions.get(address) if address is not None else None
    return None if found is None or found.is_removed else found


def assess_lost_position(inputs: PlanInputs, decision: ResourceDecision) -> Hazard:
    """Return the hazard of a consumer whose position was lost with that of the origin."""
    stream = decision.address.parent
    assert decision.after is not None
    assert stream is not None
    old = origin_consumer(inputs.workspace, inputs.relocations[stream], decision.address)
    start = decision.after.get("deliver_policy", "all")
    return Hazard(
        "LOSES_CONSUMER_POSITION",
        f"{old} was deleted outside jsplan before its position was read; this consumer starts as "
        f"declared (deliver_policy {start})",
    )


def _assess_publishers(
    inputs: PlanInputs, relocation: Transfer, origin: LiveObject
) -> Iterable[Hazard]:
    subjects = origin.compact.get("subjects") or []
    if not subjects or origin.compact.get("sealed"):
        return
    nouns = nouns_of(relocation.origin)
    clients, writes = f"publishers to {', '.join(subjects)}", "publishers that retry"
    after = ""
    if nouns.object != "stream":
        clients, writes = f"clients that write to the {nouns.object}", "clients that retry"
        after = f"; readers and watchers must open the {nouns.object} in its new domain"
    strategy = "snapshot" if relocation.method == "snapshot" else "mirror"
    seconds = cutover_seconds(strategy, origin.state)
    if get_retention(origin.compact) == "workqueue":
        level = inputs.level(relocation.origin)
        seconds += compare_seconds(origin, level, quiesced=True)
    waits = duration_text(seconds)
    what = "all" if relocation.method == "snapshot" else "the last"
    domains = inputs.workspace.domains
    sides = (relocation.origin.domain, relocation.target.domain)
    if len({domains[side].connection for side in sides}) > 1:
        yield Hazard(
            "REMOVES_SUBJECTS",
            f"{clients} get no acknowledgement in {sides[0]} from the cut-over on. They "
            f"must write in {sides[1]}, which is another account or system. The {nouns.object} "
            f"takes {nouns.message}s there after about {waits}; {writes} there lose nothing",
            causes=list(subjects),
        )
        return
    yield Hazard(
        "REMOVES_SUBJECTS",
        f"{clients} get no acknowledgement while {what} "
        f"{nouns.message}s move from {relocation.origin} to {relocation.target}, for about "
        f"{waits}; {writes} lose nothing{after}",
        causes=list(subjects),
    )
