"""Elements of the drift document for unmanaged objects, with their severity."""

from __future__ import annotations

from jsplan.documents.drift import Unmanaged
from jsplan.documents.plan_types import Severity
from jsplan.facts.live import Live, LiveObject

#: Retention policies with which a consumer decides which messages its stream keeps.
_CONSUMING_RETENTIONS = ("workqueue", "interest")


def build_unmanaged_element(found: LiveObject, live: Live) -> Unmanaged:
    """Build the element of `unmanaged` for one object; `live` has the managed streams."""
    address, state = found.address, found.state
    messages = state.get("messages", state.get("num_pending"))
    return Unmanaged(
        str(address),
        address.kind,
        messages,
        state.get("bytes"),
        found.created,
        severity=_severity(found, live),
        ephemeral=is_ephemeral(found),
    )


def is_ephemeral(found: LiveObject) -> bool:
    """Return True for a consumer that the server removes when it is not used any more."""
    return found.address.kind == "consumer" and not found.raw.get("durable_name")


def _severity(found: LiveObject, live: Live) -> Severity:
    """Return `functional` for a consumer that affects what a managed stream keeps."""
    parent = found.address.parent
    stream = live.get(parent) if parent is not None else None
    return (
        "functional"
        if stream is not None and stream.raw.get("retention") in _CONSUMING_RETENTIONS
        else "cosmetic"
    )
