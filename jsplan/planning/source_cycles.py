"""Put sources in an order that the server takes, and refuse what it would call a cycle in every order. Pure.

The server looks at each stream that is made or updated, whatever changes (see `topology.cycles`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.config.problem import Problem
from jsplan.planning.decide import ResourceDecision, table_of
from jsplan.planning.merge import build_create, build_update
from jsplan.topology.cycles import (
    FindConfig,
    find_circle,
    find_server_cycle,
    local_origin_names,
    order_for_server,
)

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs
    from jsplan.planning.order import Drafts

#: Findings about real circles of copies.
_CYCLE_CODES = ("JS406", "JS407")


class SourceCycles:
    """The streams as the plan leaves them (`streams`), those that copy others with their sources in the order in which they are sent."""

    def __init__(self, inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]) -> None:
        self.inputs, self.decisions = inputs, verdicts
        streams = {
            self.real_address(a): a for a in (*inputs.live.objects, *verdicts) if a.parent is None
        }
        given = ((real, self._planned_config(address)) for real, address in streams.items())
        self.streams = {real: config for real, config in given if config is not None}
        for real in self._in_origin_order():
            self.streams[real] = order_for_server(self.streams[real], self.stream_finder(real))

    def real_address(self, address: Address) -> Address:
        """The address of what may be declared by another way to its domain."""
        return (
            self.inputs.topology.canonicalize(address)
            if address.domain in self.inputs.workspace.domains
            else address
        )

    def stream_finder(self, stream: Address) -> FindConfig:
        """How to find the other streams of its JetStream by their names."""
        domain = self.real_address(stream).domain
        return lambda name: self.streams.get(Address.of_stream(domain, name))

    def _in_origin_order(self) -> list[Address]:
        """The streams that copy others, in an order in which what they copy is settled; any order where some are in a circle."""
        graph = {
            real: [Address.of_stream(real.domain, name) for name in local_origin_names(config)]
            for real, config in self.streams.items()
        }
        try:
            return [real for real in TopologicalSorter(graph).static_order() if real in graph]
        except CycleError:
            return list(graph)

    def _planned_config(self, address: Address) -> dict[str, Any] | None:
        """A stream as it will be, with sources in the order of the files, or of the server where they stay; None where there is none."""
        verdict, live = self.decisions.get(address), self.inputs.live.get(address)
        if verdict is None or (verdict.after is not None and not verdict.writes):
            return live.raw if live is not None else None
        if verdict.is_removed or verdict.after is None:
            return None
        if not verdict.after.get("mirror") and not verdict.after.get("sources"):
            return {"name": address.stream}
        table = table_of(address)
        if live is None or verdict.replaces:
            return build_create(
                table, self.inputs.creation_body(address), self.inputs.level(address)
            )
        return build_update(table, live.raw, self.inputs.body(address), live.compact, verdict.after)

    def find_refusal(self, verdict: ResourceDecision) -> Iterator[Problem]:
        """Why the server would refuse a stream that is made or updated, in whatever order its sources are."""
        config, find = (
            self.streams.get(self.real_address(verdict.address)),
            self.stream_finder(verdict.address),
        )
        found = find_server_cycle(config, find) if config is not None else None
        if config is None or found is None or not self._is_certain(verdict, config, find):
            return
        copy, origin = found
        field = "mirror" if config.get("mirror") else "sources"
        text = f"copies {origin} over {copy} and another way, which the server takes for a cycle (10052)"
        yield Problem(
            "JS449",
            field,
            text,
            f"Let one way alone lead to {origin}, or copy over another JetStream.",
        )

    def _is_certain(
        self, verdict: ResourceDecision, config: dict[str, Any], find: FindConfig
    ) -> bool:
        """Not for new streams that copy each other, of which the one that is made first is not refused."""
        circle = find_circle(config, find)
        if circle and any(d.code in _CYCLE_CODES for d in self.inputs.topology.diagnostics):
            return False
        return verdict.live is not None or all(
            find_server_cycle(other, find) for name in circle if (other := find(name)) is not None
        )


def find_unread_origins(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> set[Address]:
    """Streams that nobody read yet, and that streams which are made or updated copy, also over others, with several sources."""
    streams = (
        verdict
        for address, verdict in verdicts.items()
        if address.parent is None and verdict.writes
    )
    wide = [
        verdict.address
        for verdict in streams
        if len((verdict.after or {}).get("sources") or ()) > 1
    ]
    if not wide:
        return set()
    cycles = SourceCycles(inputs, verdicts)
    todo, found = {cycles.real_address(address) for address in wide}, set[Address]()
    while todo:
        real = todo.pop()
        origins = {
            Address.of_stream(real.domain, name)
            for name in local_origin_names(cycles.streams.get(real) or {})
        } - found
        found |= origins
        todo |= origins
    return {
        address
        for address in found - cycles.streams.keys() - inputs.live.requested
        if inputs.live.is_reachable(address.domain)
    }


def order_sources(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], drafts: Drafts
) -> None:
    """Let each call send its sources in an order that the server takes."""
    cycles = SourceCycles(inputs, verdicts)
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
