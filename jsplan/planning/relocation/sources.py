"""The source of an origin that a source of its target replaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jsplan.planning.replication.impact import reads_origin
from jsplan.resources.fields import Config

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs
    from jsplan.planning.relocation.progress import Relocation


def find_old_source(
    inputs: PlanInputs, relocation: Relocation, downstream: LiveObject, source: Mapping[str, Any]
) -> Config | None:
    """Return the source of the origin that takes the same messages as `source`, or None."""
    return next(
        (
            old
            for old in downstream.compact.get("sources") or ()
            if reads_origin(inputs, downstream.address, old, relocation.origin)
            and takes_the_same(old, source)
        ),
        None,
    )


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
