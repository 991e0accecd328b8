"""Hazards with a number of messages: exact, or within bounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jsplan.documents.plan import Hazard

if TYPE_CHECKING:
    from jsplan.documents.plan_parts import HazardCode


def counted(
    code: HazardCode,
    text: str,
    most: int | None,
    least: int = 0,
    causes: Sequence[str] = (),
    as_of: Any = None,
    *,
    blocking: bool = True,
) -> Hazard:
    """Return a hazard of `least` to `most` messages; `most` is None where that is unknown."""
    exact = least == most
    return Hazard(
        code,
        text,
        blocking,
        messages=most,
        exact=exact,
        at_least=None if exact else least,
        at_most=None if exact else most,
        as_of=as_of,
        causes=list(causes),
    )


def merge_hazards(hazards: list[Hazard], codes: Iterable[str]) -> list[Hazard]:
    """Merge the hazards of one resource with the same of these codes; their numbers add up."""
    for code in codes:
        same = [hazard for hazard in hazards if hazard.code == code]
        for other in same[1:]:
            first = same[0]
            first.message += f"; {other.message}"
            first.at_least = _lower_bound(first) + _lower_bound(other)
            known = first.messages is not None and other.messages is not None
            first.messages = first.at_most = (
                (first.messages or 0) + (other.messages or 0) if known else None
            )
            first.bytes = (first.bytes or 0) + (other.bytes or 0) or None
            first.exact, first.causes = False, [*first.causes, *other.causes]
        hazards = [hazard for hazard in hazards if hazard not in same[1:]]
    return hazards


def _lower_bound(hazard: Hazard) -> int:
    return (hazard.messages if hazard.exact else hazard.at_least) or 0
