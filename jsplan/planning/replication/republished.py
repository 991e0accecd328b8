"""Streams that store what another one republishes, and get nothing of it after a plan."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from jsplan.documents.plan import Hazard
from jsplan.flows.graph import stores_republished
from jsplan.planning.decide import planned_config
from jsplan.planning.replication.impact import republishes_less

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.model import Decisions, Hazards, PlanInputs, ResourceDecision
    from jsplan.resources.fields import Config


def assess_republished(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Yield the hazard of a stream that is deleted or republishes less, as does its successor."""
    live = decision.live
    if live is None or not live.compact.get("republish"):
        return
    after = _plan_successor(inputs, decision, decisions)
    if not republishes_less(live.compact, after):
        return
    readers = [
        str(address)
        for address, config in sorted(_list_streams(inputs, decisions), key=itemgetter(0))
        if address != decision.address
        and share_connection(inputs, address.domain, decision.address.domain)
        and stores_republished(config, live.compact)
    ]
    if readers:
        dest, verb = live.compact["republish"]["dest"], "stores" if len(readers) == 1 else "store"
        text = f"{', '.join(readers)} {verb} what it republishes under {dest}, and will not get all"
        yield Hazard("BREAKS_REPLICATION", text, causes=readers)


def _list_streams(inputs: PlanInputs, decisions: Decisions) -> Iterator[tuple[Address, Config]]:
    """Yield the streams that stay, in domains that do not answer as they were last applied."""
    for address, live in inputs.live.objects.items():
        if address.is_stream and planned_config(inputs, decisions, address) is not None:
            yield address, live.compact
    for address, entry in inputs.entries.items():
        if address.is_stream and not inputs.live.is_reachable(address.domain):
            yield address, entry.config


def _plan_successor(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Config:
    """Return what the stream will be, or the target of its relocation in the same account."""
    address: Address = decision.address
    if decision.relocation is not None and decision.deletes:
        address = decision.relocation.target
        if not share_connection(inputs, address.domain, decision.address.domain):
            return {}
    return planned_config(inputs, decisions, address) or {}


def share_connection(inputs: PlanInputs, one: str, other: str) -> bool:
    """Check whether two domains are reached in one account, which shares its subjects."""
    domains = inputs.workspace.domains
    pair = [domains[domain].connection for domain in (one, other) if domain in domains]
    return one == other or (len(pair) == 2 and pair[0] == pair[1])
