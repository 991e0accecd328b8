"""Hazards of a restore: messages that are copied or delivered a second time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.documents.plan import Hazard
from jsplan.facts.redelivery import build_redelivery, max_by_state
from jsplan.planning.replication.checks import find_downstream
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL

if TYPE_CHECKING:
    from jsplan.backup.manifest import SavedConsumer
    from jsplan.planning.model import PlanInputs, ResourceDecision
    from jsplan.planning.restore.target import RestoreTarget


def assess_restored(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Mapping[Address, ResourceDecision]
) -> Iterable[Hazard]:
    """Assess what is copied or delivered a second time because of a restored stream or consumer."""
    address = decision.address
    if address.parent is not None:
        target = inputs.backup[address.parent]
        return _assess_redelivery(target, target.consumers[address])
    return _assess_duplicates(inputs.backup[address], _find_sources(inputs, decisions, address))


def _assess_redelivery(target: RestoreTarget, consumer: SavedConsumer) -> Iterable[Hazard]:
    """Count what was acknowledged above the ack floor, where the archive has only the floor."""
    was, floor = consumer.before, int(consumer.before["ack_floor"]["stream_seq"])
    span = build_redelivery(consumer.name, consumer.config, was, consumer.config, floor + 1)
    above = max_by_state(span, target.saved.before) if span is not None else 0
    if target.saved.resets_to_ack_floor(consumer) and above:
        text = (
            f"up to {above:,} messages that it had acknowledged are delivered again: "
            "it may have been saved at its ack floor"
        )
        yield Hazard(
            "DUPLICATES_MESSAGES", text, messages=above, exact=False, at_least=0, at_most=above
        )


def _assess_duplicates(target: RestoreTarget, sources: list[Address]) -> Iterable[Hazard]:
    """Assess the sources that copy the restored stream again.

    Sources since 2.15 identify their origin by its `created`, which archives of 2.15 renew.
    """
    if not sources or target.saved.archive.format == "tar" or not target.saved.messages:
        return
    count, names = (
        target.saved.messages,
        ", ".join(map(str, sources[:3]))
        + (f" and {len(sources) - 3} more" if len(sources) > 3 else ""),
    )
    text = (
        f"{names} may copy up to {count:,} messages a second time: "
        "nats-server 2.15 treats a restored origin as a new one"
    )
    yield Hazard(
        "DUPLICATES_MESSAGES", text, messages=count, exact=False, at_least=0, at_most=count
    )


def _find_sources(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision], origin: Address
) -> list[Address]:
    """Return the streams that source a stream, by the files, the backup and the servers.

    Those on servers that are known to be older continue behind what they have.
    """
    edges = inputs.topology.edges_from(origin)
    found = {edge.downstream for edge in edges if edge.kind == "source"}
    found |= {a for a, kind, _ in find_downstream(inputs, decisions, origin) if kind == "source"}
    known = inputs.live.reachable
    return sorted(
        a for a in found if a.domain not in known or inputs.level(a) >= ORIGIN_IDENTITY_LEVEL
    )
