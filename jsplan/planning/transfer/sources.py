"""The source of an origin that a source of its target replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jsplan.planning.replication.impact import origin_domain, reads_origin
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs, ResourceDecision
    from jsplan.planning.transfer.progress import Transfer


def find_old_source(
    inputs: PlanInputs, relocation: Transfer, downstream: LiveObject, source: Mapping[str, Any]
) -> Config | None:
    """Return the source of the origin that takes the same messages as `source`, or None."""
    same = (one for one in downstream.compact.get("sources") or () if takes_the_same(one, source))
    reader, origin = downstream.address, relocation.origin
    return next((one for one in same if reads_origin(inputs, reader, one, origin)), None)


def find_moved_sources(
    inputs: PlanInputs, transfer: Transfer, after: Mapping[str, Any]
) -> dict[str, Config]:
    """Return by the key of each source of a target the source of its origin that it continues."""
    origin = inputs.live.get(transfer.origin)
    before = origin.compact.get("sources") or () if origin is not None else ()
    return {
        origin_key(source): old
        for source in after.get("sources") or ()
        for old in before
        if old["name"] == source["name"]
        and takes_the_same(old, source)
        and origin_domain(inputs, transfer.origin, old)
        == origin_domain(inputs, transfer.target, source)
    }


def find_replaced_sources(
    decision: ResourceDecision, continues: Callable[[Config, Config], bool]
) -> Iterator[tuple[str, Config]]:
    """Yield the key of each new source, with the one removed source that it `continues`.

    Both take the same messages. `continues` is called with the removed and the new source. One with
    a consumer begins where that is, so it continues no other.
    """
    live = decision.before.get("sources") or ()
    wanted = {origin_key(source): source for source in decision.planned.get("sources") or ()}
    removed = [source for source in live if origin_key(source) not in wanted]
    existing = {origin_key(source) for source in live}
    for key, source in wanted.items() if removed else ():
        if key in existing or source.get("consumer"):
            continue
        old = [s for s in removed if takes_the_same(s, source) and continues(s, source)]
        if len(old) == 1:
            removed.remove(old[0])
            yield key, old[0]


def takes_the_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Check whether two sources have the same filter and transforms."""
    return _takes(one) == _takes(other)


def _takes(source: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return the filter and the transforms of a source."""
    transforms = source.get("subject_transforms") or ()
    return (
        str(source.get("filter_subject") or ""),
        [(str(one.get("src") or ">"), str(one.get("dest") or "")) for one in transforms],
    )
