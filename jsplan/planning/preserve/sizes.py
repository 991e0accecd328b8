"""What the messages of a stream that is replaced count in the new one, and which stream has them meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.facts.stored import Resized, stored_size
from jsplan.planning.preserve.standins import MARK, parked, stand_in_of
from jsplan.planning.preserve.ways import way_of

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.facts.question import Question
    from jsplan.planning.inputs import Inputs
    from jsplan.resources.fields import Config


def moves_to(live: LiveObject, after: Config, level: int, stand_in: str = "") -> Resized | None:
    """How messages count once they are moved to a stream that is `after`; None where they count as they do now."""
    storage, via = after.get("storage", "file"), ""
    if way_of(level) == "source":
        via = stand_in or stand_in_of(live.address, live.created).stream
    return Resized(storage, via) if via or storage != live.compact.get("storage", "file") else None


def where_it_is(inputs: Inputs, question: Question) -> Question | None:
    """The question about the stream that has the messages: the stand-in once the old stream is gone. Nobody consumes that one."""
    found = inputs.under_way.get(question.address)
    if found is None or found.old_is_there:
        return question
    return about_copy(question, Address.parse(found.record["staging"]), found.record)


def about_copy(question: Question, stand_in: Address, record: Mapping[str, Any]) -> Question | None:
    """The question about the stand-in, which has one message more where `record` says so: the new stream does not keep that."""
    limits = question.limits
    if record.get("end_marker"):
        storage = question.resized.storage if question.resized else "file"
        size = stored_size(storage, len(parked(question.address.stream, record["id"])), 0, len(MARK))
        limits = replace(limits, max_msgs=limits.max_msgs and limits.max_msgs + 1, max_bytes=limits.max_bytes and limits.max_bytes + size)
    finished = question.finished
    if record["method"] == "source":  # sequences are other ones there
        finished = tuple(replace(one, position=None) for one in finished)
    limited = replace(question, stream=stand_in, limits=limits, interest="", consumers=(), finished=finished)
    return limited if limits.causes or finished else None
