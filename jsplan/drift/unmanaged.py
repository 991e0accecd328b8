"""What nobody manages, as elements of the drift document: how grave it is that it is there. Finding it is left to `facts`."""

from __future__ import annotations

from jsplan.documents.drift import Unmanaged
from jsplan.documents.plan import Severity
from jsplan.facts.live import Live, LiveObject

#: Retention under which a consumer decides what its stream keeps.
_CONSUMING_RETENTIONS = ("workqueue", "interest")


def build_unmanaged_element(found: LiveObject, live: Live) -> Unmanaged:
    """The element of `unmanaged` for one object; `live` has the streams that are managed."""
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
    """Whether it is a consumer that the server removes once nobody uses it: such come and go with the programs that read."""
    return found.address.kind == "consumer" and not found.raw.get("durable_name")


def _severity(found: LiveObject, live: Live) -> Severity:
    """`functional` for a consumer that decides what a managed stream keeps or gives to others, else nobody but its owner minds."""
    parent = found.address.parent
    stream = live.get(parent) if parent is not None else None
    return (
        "functional"
        if stream is not None and stream.raw.get("retention") in _CONSUMING_RETENTIONS
        else "cosmetic"
    )
