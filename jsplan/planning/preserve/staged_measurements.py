"""Measurements of a replaced stream: stored sizes, and the stream that has the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.facts.measurement import MeasurementRequest
from jsplan.facts.stored_message import stored_size
from jsplan.planning.preserve.staging import END_MARKER, parking_subject

if TYPE_CHECKING:
    from jsplan.documents.deletions import DeletionRequest, Storage
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs
    from jsplan.resources.fields import Config


def resized_storage(live: LiveObject, after: Config) -> Storage:
    """Return the storage that moved messages get; empty if their bytes count as they do now."""
    storage: Storage = after.get("storage", "file")
    return storage if storage != live.compact.get("storage", "file") else ""


def redirect_to_staging(
    inputs: PlanInputs, address: Address, request: DeletionRequest
) -> MeasurementRequest | None:
    """Return the request for the stream that has the messages.

    That is the staging stream once the old stream is deleted. It has no consumers, so what they
    have finished is not measured there. It has one message more if `record` says so, which the new
    stream does not keep.
    """
    found = inputs.interrupted.streams.get(address)
    if found is None or found.has_old_stream:
        return MeasurementRequest(address, address, request)
    limits, record = request.limits, found.record
    if not limits.causes:
        return None
    if record.get("end_marker"):
        subject = parking_subject(address.stream, record["id"])
        size = stored_size(request.target_storage or "file", len(subject), 0, len(END_MARKER))
        limits = replace(
            limits,
            max_msgs=limits.max_msgs and limits.max_msgs + 1,
            max_bytes=limits.max_bytes and limits.max_bytes + size,
        )
    limited = replace(request, limits=limits, interest="", consumers=(), finished=())
    return MeasurementRequest(address, Address.parse(record["staging"]), limited)
