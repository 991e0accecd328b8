"""Measurements of a replaced stream: stored sizes, and the stream that has the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.facts.stored_message import TargetStorage, stored_size
from jsplan.planning.preserve.staging import END_MARKER, parking_subject

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.facts.measurement import MeasurementRequest
    from jsplan.planning.model import PlanInputs
    from jsplan.resources.fields import Config


def resized_storage(live: LiveObject, after: Config) -> TargetStorage | None:
    """Return how moved messages count in a stream `after`; None if they count as they do now."""
    storage = after.get("storage", "file")
    return TargetStorage(storage) if storage != live.compact.get("storage", "file") else None


def redirect_to_staging(
    inputs: PlanInputs, request: MeasurementRequest
) -> MeasurementRequest | None:
    """Return the request for the stream that has the messages.

    That is the staging stream once the old stream is deleted. It has no consumers.
    """
    found = inputs.interrupted.streams.get(request.address)
    if found is None or found.has_old_stream:
        return request
    return staging_measurement(request, Address.parse(found.record["staging"]), found.record)


def staging_measurement(
    request: MeasurementRequest, staging: Address, record: Mapping[str, Any]
) -> MeasurementRequest | None:
    """Return the request for the staging stream.

    It has one message more if `record` says so. The new stream does not keep that message.
    """
    limits = request.limits
    if record.get("end_marker"):
        storage = request.target_storage.storage if request.target_storage else "file"
        size = stored_size(
            storage, len(parking_subject(request.address.stream, record["id"])), 0, len(END_MARKER)
        )
        limits = replace(
            limits,
            max_msgs=limits.max_msgs and limits.max_msgs + 1,
            max_bytes=limits.max_bytes and limits.max_bytes + size,
        )
    limited = replace(request, stream=staging, limits=limits, interest="", consumers=())
    return limited if limits.causes or request.finished else None
