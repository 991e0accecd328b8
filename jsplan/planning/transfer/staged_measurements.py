"""Measurements of a replaced stream: stored sizes, and the stream that has the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.facts.measurement import MeasurementRequest

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
    have finished is not measured there.
    """
    found = inputs.interrupted.streams.get(address)
    if found is None or found.has_origin:
        return MeasurementRequest(address, address, request)
    limits = request.limits
    if not limits.causes or found.staging is None:
        return None
    limited = replace(request, limits=limits, interest="", consumers=(), finished=())
    return MeasurementRequest(address, found.staging, limited)
