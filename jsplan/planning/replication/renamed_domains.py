"""Sources of a domain that has another JetStream name now, and the same streams.

For the server such a source is a new one, which copies from the start. So the old one is removed
first, and the new one begins after the last message that it copied, as for a relocated stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jsplan.address import Address, matches, move_address
from jsplan.planning.transfer.sources import find_replaced_sources
from jsplan.resources.fields import Config
from jsplan.state.document import former_names

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs, ResourceDecision


def find_renamed_sources(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterator[tuple[str, Config]]:
    """Return the key of each source of a renamed domain, with the source before it."""

    def continues(old: Config, new: Config) -> bool:
        former = _former_prefixes(inputs, decision.address, new)
        return _api(old) in former and old["name"] == new["name"]

    return find_replaced_sources(decision, continues)


def _api(source: Config) -> str | None:
    api: str | None = (source.get("external") or {}).get("api")
    return api


def _former_prefixes(inputs: PlanInputs, downstream: Address, source: Config) -> set[str]:
    """Return the earlier API prefixes of the origin, if that is the managed stream it was."""
    domain = inputs.topology.routes.resolve_prefix(downstream.domain, _api(source))
    if domain is None:
        return set()
    origin = Address.of_stream(domain, source["name"])
    live, entry = inputs.live.get(origin), inputs.entries.get(origin)
    if live is None or entry is None or entry.created != live.created:
        return set()
    keys = {domain} | {
        move_address(block.new_address, block.old_address, origin).domain
        for block in inputs.workspace.moved
        if matches(block.new_address, origin)
    }
    names = [name for key in keys for name in former_names(inputs.state.domains.get(key, {}))]
    return {f"$JS.{name}.API" for name in names if name} - {str(_api(source))}
