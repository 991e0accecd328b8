"""Replacing a consumer without losing its place: what the plan says of it. Carrying it out is left to `applying.positions`.

The place is read by the executor, just before the old consumer goes; what is said here is as of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.facts.interest import PURGE_LEVEL, filters_of
from jsplan.facts.live import get_retention
from jsplan.facts.measurement import Measurement, MeasurementRequest
from jsplan.facts.redelivery import build_redelivery
from jsplan.planning.pauses import PAUSE, is_expired
from jsplan.planning.preserve.consumer_position import (
    PAUSE_LEVEL,
    START_FIELDS,
    PositionMethod,
    choose_position_method,
    has_pending_below_floor,
    position_of,
    with_start_sequence,
)
from jsplan.resources.fields import Config
from jsplan.state.document import Entry
from jsplan.subjects import is_covered

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs

#: A position behind every message.
_MAX_SEQUENCE = 1 << 62
#: What the new consumer is given besides what the old one missed, where it can only be told where to begin.
LAST_POLICIES = {"last": "the last message", "last_per_subject": "the last message of each subject"}


def is_update_purging(inputs: PlanInputs, live: LiveObject, after: Config) -> bool:
    """Check whether an update in place would delete messages of an interest stream that a replacement keeps.

    A server from 2.14 on deletes everything up to the ack floor of a consumer whose filter is updated while that floor is behind the
    end of the stream, whatever other consumers want. And what a consumer has looked at with its old filter counts as not wanted by its
    new one; one that was never given anything loses nothing by starting again (measured).
    """
    stream = inputs.live.get(live.address.parent) if live.address.parent else None
    before, new = filters_of(live.compact), filters_of(after)
    if (
        stream is None
        or get_retention(stream.compact) != "interest"
        or sorted(before) == sorted(new)
    ):
        return False
    floor, given = (live.state.get(name) or {} for name in ("ack_floor", "delivered"))
    gains = bool(before) and (not new or any(not is_covered(subject, before) for subject in new))
    fresh = (
        gains
        and not given.get("consumer_seq")
        and live.compact.get("ack_policy", "none") == "explicit"
    )
    behind_end = int(floor.get("stream_seq") or 0) > int(stream.state.get("last_seq") or 0)
    return fresh or (behind_end and inputs.level(live.address) >= PURGE_LEVEL)


def _position_method(
    inputs: PlanInputs, address: Address, after: Config, position: int
) -> PositionMethod:
    stream = inputs.live.get(address.parent) if address.parent else None
    retention = _planned_retention(inputs, address.parent, stream)
    first = int(stream.state.get("first_seq") or 0) if stream else 0
    return choose_position_method(
        position, after, inputs.level(address), retention=retention, first_seq=first
    )


def _planned_retention(
    inputs: PlanInputs, address: Address | None, stream: LiveObject | None
) -> str:
    """The retention that the stream will have: one that becomes a work queue takes no start of a consumer."""
    live = str(stream.compact.get("retention", "limits")) if stream else "limits"
    if address is None or inputs.declared(address) is None:
        return live
    entry, body = inputs.entries.get(address), inputs.body(address)
    left_out = "limits" if entry is not None and "retention" in entry.declared else live
    return str(body.get("retention") or left_out)


def preserve_position(inputs: PlanInputs, verdict: ResourceDecision) -> None:
    """Complete `after` of a consumer that is made anew with the place it keeps. A pause that the files do not name stays as well."""
    live, after, address = verdict.live, verdict.after, verdict.address
    assert after is not None
    recorded = inputs.replacement_records.get(address) or {}
    paused = live.compact.get(PAUSE) if live is not None else None
    pause = recorded.get(PAUSE) if paused == recorded.get("hold_until") else paused
    if PAUSE not in inputs.body(address) and not is_expired(pause, inputs.request.now):
        after = after | {PAUSE: pause}
    position = _known_position(live, recorded) or _next_delivery(live)
    if position is not None and _position_method(inputs, address, after, _MAX_SEQUENCE) == "start":
        verdict.unknown = [
            "deliver_policy",
            "opt_start_seq",
        ]  # a start is only needed where a message is still before it
        after = (
            with_start_sequence(position, after)
            if _position_method(inputs, address, after, position) == "start"
            else after
        )
    verdict.after = after


def _known_position(live: LiveObject | None, recorded: Mapping[str, Any]) -> int | None:
    """Where it goes on, as far as that is known by now: what was recorded counts once the old consumer is gone."""
    if recorded.get("position") and (live is None or live.created != recorded.get("created")):
        return int(recorded["position"])
    return position_of(live.compact, live.state) if live is not None else None


def _next_delivery(live: LiveObject | None) -> int | None:
    """Behind what it was given: the latest where it can go on, until the executor looks where it began."""
    given = (live.state.get("delivered") or {}).get("stream_seq") if live is not None else None
    return int(given) + 1 if given else None


def params(inputs: PlanInputs, verdict: ResourceDecision) -> dict[str, Any]:
    """What the step needs besides the request: how the position is kept, the pause in the end.

    `state_address` is the address under which state has what is under way.
    """
    address, live, recorded = (
        verdict.address,
        verdict.live,
        inputs.replacement_records.get(verdict.address) or {},
    )
    return {
        "state_address": str(inputs.moved_from.get(address, address)),
        "position": _known_position(live, recorded),
        "api_level": inputs.level(address),
        PAUSE: (verdict.after or {}).get(PAUSE),
    }


def replacement_fields(
    address: Address, entry: Entry | None, named: Mapping[str, Any]
) -> frozenset[str]:
    """The fields that a replacement put in place of what the files say: no change as long as the files say the same."""
    if entry is None or address.kind != "consumer" or address.consumer not in entry.starts:
        return frozenset()
    same = all(
        (name in named) == (name in entry.declared) and named.get(name) == entry.declared.get(name)
        for name in START_FIELDS
    )
    return frozenset(START_FIELDS) if same else frozenset()


def redelivery_measurement(
    verdict: ResourceDecision, stream: LiveObject
) -> MeasurementRequest | None:
    """How many messages are delivered again although they were acknowledged, out of order, above the floor."""
    live = verdict.live
    if live is None or verdict.after is None or stream.compact.get("retention") == "workqueue":
        return None
    span = build_redelivery(
        live.address.consumer,
        live.compact,
        live.state,
        verdict.after,
        position_of(live.compact, live.state),
    )
    return (
        MeasurementRequest(verdict.address, stream.address, redelivery=span)
        if span is not None
        else None
    )


def describe_redelivery(found: Measurement) -> str:
    """What `DUPLICATES_MESSAGES` says of a consumer."""
    least, most = found.at_least, found.at_most
    count = (
        f"{most:,}"
        if least == most
        else f"between {least:,} and {most:,}"
        if least
        else f"up to {most:,}"
    )
    if most == 1:
        return f"{count} message that was acknowledged out of order is delivered again"
    return f"{count} messages that were acknowledged out of order are delivered again"


def check_consumer_replacement(
    inputs: PlanInputs, verdict: ResourceDecision
) -> Iterable[Diagnostic]:
    """What is worth knowing before a consumer is replaced with its place kept; stops nothing."""
    live = verdict.live
    if live is None or verdict.after is None:
        return
    said, position = inputs.body(verdict.address), position_of(live.compact, live.state)
    place = f"sequence {position:,}" if position else "the first message that was not acknowledged"
    if any(change.path in START_FIELDS for change in verdict.fields):
        yield _replacement_warning(
            inputs,
            verdict,
            f"keeps its position ({place}): its new start has no effect",
            "To start where the files say: lifecycle: {on_replace: recreate}.",
        )
    elif said.get("deliver_policy") in LAST_POLICIES:
        text = f"is given every message from {place} on, not only {LAST_POLICIES[said['deliver_policy']]}"
        yield _replacement_warning(
            inputs, verdict, text, "So nothing that it had before it is lost."
        )
    out = live.state.get("num_ack_pending") or 0
    if has_pending_below_floor(live.compact, live.state):
        behind = f"sequence {live.state['ack_floor']['stream_seq']:,}"
        text = f"has more messages out than it delivered behind its ack floor ({behind}): some may be out below it"
        detail = (
            "A purge by filter leaves them there. The new consumer resumes as many messages back as the old one made deliveries, so that "
            "none is lost. To repeat fewer, wait until its clients have acknowledged what they have, and plan again."
        )
        yield _replacement_warning(inputs, verdict, text, detail)
    if out:
        text = f"{out:,} message{'' if out == 1 else 's'} it has out may be delivered again, and count as delivered for the first time"
        detail = "Redelivery counts start over; what is acknowledged while it is made anew is delivered again."
        if inputs.level(verdict.address) < PAUSE_LEVEL:
            detail += " This server cannot pause it first."
        yield _replacement_warning(inputs, verdict, text, detail)


def _replacement_warning(
    inputs: PlanInputs, verdict: ResourceDecision, text: str, detail: str
) -> Diagnostic:
    declared = inputs.workspace.resources.get(verdict.address)
    return Diagnostic(
        "warning", "JS423", text, detail, str(verdict.address), declared.range if declared else None
    )
