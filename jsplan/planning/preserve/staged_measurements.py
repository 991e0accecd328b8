"""What the messages of a stream that is replaced count in the new one, and which stream has them meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.facts.stored_message import TargetStorage, stored_size
from jsplan.planning.preserve.methods import choose_preserve_method
from jsplan.planning.preserve.staging import END_MARKER, parking_subject, staging_address

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.facts.measurement import MeasurementRequest
    from jsplan.planning.model import PlanInputs
    from jsplan.resources.fields import Config


def resized_storage(
    live: LiveObject, after: Config, level: int, staging: str = ""
) -> TargetStorage | None:
    """How messages count once they are moved to a stream that is `after`; None where they count as they do now."""
    storage, via = after.get("storage", "file"), ""
    if choose_preserve_method(level) == "source":
        via = staging or staging_address(live.address, live.created).stream
    return (
        TargetStorage(storage, via)
        if via or storage != live.compact.get("storage", "file")
        else None
    )


def redirect_to_staging(
    inputs: PlanInputs, question: MeasurementRequest
) -> MeasurementRequest | None:
    """The question about the stream that has the messages: the stand-in once the old stream is gone. Nobody consumes that one."""
    found = inputs.interrupted.get(question.address)
    if found is None or found.has_old_stream:
        return question
    return staging_measurement(question, Address.parse(found.record["staging"]), found.record)


def staging_measurement(
    question: MeasurementRequest, staging: Address, record: Mapping[str, Any]
) -> MeasurementRequest | None:
    """The question about the stand-in, which has one message more where `record` says so: the new stream does not keep that."""
    limits = question.limits
    if record.get("end_marker"):
        storage = question.target_storage.storage if question.target_storage else "file"
        size = stored_size(
            storage, len(parking_subject(question.address.stream, record["id"])), 0, len(END_MARKER)
        )
        limits = replace(
            limits,
            max_msgs=limits.max_msgs and limits.max_msgs + 1,
            max_bytes=limits.max_bytes and limits.max_bytes + size,
        )
    finished = question.finished
    if record["method"] == "source":  # sequences are other ones there
        finished = tuple(replace(one, position=None) for one in finished)
    limited = replace(
        question, stream=staging, limits=limits, interest="", consumers=(), finished=finished
    )
    return limited if limits.causes or finished else None
