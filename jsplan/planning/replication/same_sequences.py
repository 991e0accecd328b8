"""Sources that are switched to another copy of the same stream, with the same sequences.

A mirror has the sequences of its origin. So a stream that copied one of the two can continue behind
the same sequence of the other, or of a second mirror. For the server it is a new source, which
copies from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.planning.transfer.sources import find_replaced_sources
from jsplan.resources.fields import Config
from jsplan.units import parse_instant

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs, ResourceDecision

#: Fields of a mirror that copies a part, or copies it elsewhere.
_PARTIAL = ("filter_subject", "subject_transforms", "opt_start_seq", "opt_start_time")


def find_switched_sources(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterator[tuple[str, Config]]:
    """Return the key of each source that a copy of its stream replaces, with the source before."""

    def continues(old: Config, new: Config) -> bool:
        before, after = (_origin(inputs, decision.address, source) for source in (old, new))
        if before is None or after is None:
            return False
        return _first_copied(inputs, before) == _first_copied(inputs, after)

    return find_replaced_sources(decision, continues)


def _first_copied(inputs: PlanInputs, stream: Address) -> Address:
    """Return the stream whose sequences a stream has, over any number of whole mirrors."""
    seen = set[Address]()
    while stream not in seen:
        seen.add(stream)
        live = inputs.live.get(stream)
        mirror = live.compact.get("mirror") if live is not None else None
        if live is None or not mirror or any(mirror.get(name) for name in _PARTIAL):
            break
        origin = _origin(inputs, stream, mirror)
        found = inputs.live.get(origin) if origin is not None else None
        if origin is None or found is None or not _has_its_sequences(live, found):
            break
        stream = origin
    return stream


def _has_its_sequences(mirror: LiveObject, origin: LiveObject) -> bool:
    """Check that the mirror was not made of an earlier stream of the origin's name."""
    ahead = int(mirror.state.get("last_seq") or 0) > int(origin.state.get("last_seq") or 0)
    return not ahead or parse_instant(mirror.created) > parse_instant(origin.created)


def _origin(inputs: PlanInputs, downstream: Address, source: Config) -> Address | None:
    api = (source.get("external") or {}).get("api")
    domain = inputs.topology.routes.resolve_prefix(downstream.domain, api)
    return Address.of_stream(domain, source["name"]) if domain is not None else None
