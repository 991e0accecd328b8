"""Order sources as the server accepts them; refuse what is a cycle to it in every order.

The server checks each stream that is created or updated, whatever changes (see `topology.cycles`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.config.problem import Problem
from jsplan.planning.decide import table_of
from jsplan.planning.merge import build_create, build_update
from jsplan.planning.model import ResourceDecision
from jsplan.topology.cycles import (
    FindConfig,
    find_circle,
    find_server_cycle,
    local_origin_names,
    order_for_server,
)

if TYPE_CHECKING:
    from jsplan.planning.drafts import Drafts
    from jsplan.planning.model import PlanInputs

#: Findings about real circles of mirrors and sources.
_CYCLE_CODES = ("JS406", "JS407")


class SourceCycles:
    """The streams as the plan leaves them (`streams`), which are collected when first used."""

    def __init__(self, inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]) -> None:
        self.inputs, self.decisions = inputs, decisions

    @cached_property
    def streams(self) -> dict[Address, dict[str, Any]]:
        """Return every stream by its real address, with ordered sources."""
        streams = {
            self.inputs.topology.canonicalize(a): a
            for a in (*self.inputs.live.objects, *self.decisions)
            if a.kind != "consumer"
        }
        given = ((real, self._planned_config(address)) for real, address in streams.items())
        found = {real: config for real, config in given if config is not None}
        for real in _in_origin_order(found):
            found[real] = order_for_server(found[real], _finder(found, real.domain))
        return found

    def stream_finder(self, stream: Address) -> FindConfig:
        """Return a function that finds the other streams of its JetStream by name."""
        return _finder(self.streams, self.inputs.topology.canonicalize(stream).domain)

    def _planned_config(self, address: Address) -> dict[str, Any] | None:
        """Return the configuration that a stream will have; None if it will not exist.

        Sources are in the order of the files, or of the server where they do not change.
        """
        decision, live = self.decisions.get(address), self.inputs.live.get(address)
        if decision is None or (decision.after is not None and not decision.writes):
            return live.raw if live is not None else None
        if decision.is_removed or decision.after is None:
            return None
        if not decision.after.get("mirror") and not decision.after.get("sources"):
            return {"name": address.stream}
        table = table_of(address)
        if live is None or decision.replaces:
            return build_create(
                table, self.inputs.creation_body(address), self.inputs.level(address)
            )
        return build_update(
            table, live.raw, self.inputs.body(address), live.compact, decision.after
        )

    def find_refusal(self, decision: ResourceDecision) -> Iterator[Problem]:
        """Find why the server refuses a stream that is created or updated, whatever the order."""
        if not local_origin_names(decision.after or {}):
            return
        config, find = (
            self.streams.get(self.inputs.topology.canonicalize(decision.address)),
            self.stream_finder(decision.address),
        )
        found = find_server_cycle(config, find) if config is not None else None
        if config is None or found is None or not self._is_certain(decision, config, find):
            return
        downstream, origin = found
        field = "mirror" if config.get("mirror") else "sources"
        text = (
            f"copies {origin} over {downstream} and over another path, "
            "which the server takes for a cycle (10052)"
        )
        yield Problem(
            "JS449",
            field,
            text,
            f"Let only one path lead to {origin}, or copy over another JetStream.",
        )

    def _is_certain(
        self, decision: ResourceDecision, config: dict[str, Any], find: FindConfig
    ) -> bool:
        """Check whether the refusal is certain.

        Of new streams that copy each other, the first one that is created is not refused.
        """
        circle = find_circle(config, find)
        if circle and any(d.code in _CYCLE_CODES for d in self.inputs.topology.diagnostics):
            return False
        return decision.live is not None or all(
            find_server_cycle(other, find) for name in circle if (other := find(name)) is not None
        )


def _finder(streams: Mapping[Address, dict[str, Any]], domain: str) -> FindConfig:
    return lambda name: streams.get(Address.of_stream(domain, name))


def _in_origin_order(streams: Mapping[Address, dict[str, Any]]) -> list[Address]:
    """Return the downstream streams, each after its origins; any order if there is a circle."""
    graph = {
        real: [Address.of_stream(real.domain, name) for name in names]
        for real, config in streams.items()
        if (names := local_origin_names(config))
    }
    try:
        return [real for real in TopologicalSorter(graph).static_order() if real in graph]
    except CycleError:
        return list(graph)


def find_unread_origins(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> set[Address]:
    """Return the origins that are not read yet, of written streams with several sources.

    Includes the origins of origins.
    """
    streams = (
        decision
        for address, decision in decisions.items()
        if address.parent is None and decision.writes
    )
    wide = [
        decision.address
        for decision in streams
        if len((decision.after or {}).get("sources") or ()) > 1
    ]
    if not wide:
        return set()
    cycles = SourceCycles(inputs, decisions)
    pending, found = {inputs.topology.canonicalize(address) for address in wide}, set[Address]()
    while pending:
        real = pending.pop()
        origins = {
            Address.of_stream(real.domain, name)
            for name in local_origin_names(cycles.streams.get(real) or {})
        } - found
        found |= origins
        pending |= origins
    return {
        address
        for address in found - cycles.streams.keys() - inputs.live.requested
        if inputs.live.is_reachable(address.domain)
    }


def order_sources(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision], drafts: Drafts
) -> None:
    """Let each call send its sources in an order that the server accepts."""
    cycles = SourceCycles(inputs, decisions)
    for (address, _), draft in drafts.items():
        payload = (draft.request or {}).get("payload") or {}
        if (
            address.parent is None
            and len(payload.get("sources") or ()) > 1
            and draft.request is not None
        ):
            draft.request = draft.request | {
                "payload": order_for_server(payload, cycles.stream_finder(address))
            }
