"""Replacements of consumers that keep the position: what the plan shows of them.

Apply reads the position again just before it deletes the old consumer. What a plan shows is as of
the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Hazard
from jsplan.facts.consumer_position import has_pending_below_floor, position_of
from jsplan.facts.live import get_retention
from jsplan.planning.pauses import PAUSE, is_expired, is_held
from jsplan.planning.transfer.consumer_position import (
    START_FIELDS,
    PositionMethod,
    choose_position_method,
    with_start_sequence,
)
from jsplan.planning.transfer.redelivery import assess_redelivery
from jsplan.resources.consumer import filters_of
from jsplan.resources.fields import Config
from jsplan.resources.server_features import PURGE_LEVEL
from jsplan.state.document import Entry
from jsplan.subjects import is_covered
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs, ResourceDecision

#: A position behind every message.
_MAX_SEQUENCE = 1 << 62
#: By policy, the only messages that it would deliver. The new consumer gets all after its position.
LAST_POLICIES = {"last": "the last message", "last_per_subject": "the last message of each subject"}


def is_update_purging(inputs: PlanInputs, live: LiveObject, after: Config) -> bool:
    """Check whether an update in place would delete messages of an interest stream.

    A server from 2.14 on deletes everything up to the ack floor of a consumer whose filter is
    updated while that floor is behind the end of the stream, even if other consumers want it. And
    what a consumer has passed with its old filter counts as not wanted by its new one. A consumer
    that never got a message loses nothing by starting again (measured).
    """
    stream = inputs.live.get(live.address.parent) if live.address.parent else None
    before, new = filters_of(live.compact), filters_of(after)
    if (
        stream is None
        or get_retention(stream.compact) != "interest"
        or sorted(before) == sorted(new)
    ):
        return False
    floor, delivered = (live.state.get(name) or {} for name in ("ack_floor", "delivered"))
    gains = bool(before) and (not new or any(not is_covered(subject, before) for subject in new))
    starts_over = (
        gains
        and not delivered.get("consumer_seq")
        and live.compact.get("ack_policy", "none") == "explicit"
    )
    behind_end = int(floor.get("stream_seq") or 0) > int(stream.state.get("last_seq") or 0)
    return starts_over or (behind_end and inputs.level(live.address) >= PURGE_LEVEL)


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
    """Return the planned retention; a work queue accepts no start of a consumer."""
    live = str(stream.compact.get("retention", "limits")) if stream else "limits"
    if address is None or inputs.declared(address) is None:
        return live
    entry, body = inputs.entries.get(address), inputs.body(address)
    default = "limits" if entry is not None and "retention" in entry.declared else live
    return str(body.get("retention") or default)


def preserve_position(inputs: PlanInputs, decision: ResourceDecision) -> ResourceDecision:
    """Return the decision with the position and the undeclared pause of a recreated consumer."""
    live, after, address = decision.live, decision.after, decision.address
    assert after is not None
    recorded = inputs.interrupted.replacements.get(address) or {}
    before = live.compact if live is not None else {}
    pause = (before if before and not is_held(before) else recorded.get("config", {})).get(PAUSE)
    if PAUSE not in inputs.body(address) and not is_expired(pause, inputs.now):
        after = after | {PAUSE: pause}
    position = _known_position(live, recorded, inputs.level(address)) or _next_delivery(live)
    if decision.reset is not None:
        position = decision.reset.seq
    if position is not None and _position_method(inputs, address, after, _MAX_SEQUENCE) == "start":
        # A start is only needed while a message is still before it.
        decision = replace(decision, unknown=["deliver_policy", "opt_start_seq"])
        after = (
            with_start_sequence(position, after)
            if _position_method(inputs, address, after, position) == "start"
            else after
        )
    return replace(decision, after=after)


def with_pause(config: Config, decision: ResourceDecision) -> Config:
    """Return the configuration of a recreated consumer with the pause that it has afterwards."""
    pause = (decision.after or {}).get(PAUSE)
    return {n: v for n, v in config.items() if n != PAUSE} | ({PAUSE: pause} if pause else {})


def _known_position(live: LiveObject | None, recorded: Mapping[str, Any], level: int) -> int | None:
    """Return the position as known now; the recorded one after the old consumer is deleted."""
    if recorded.get("position") and (live is None or live.created != recorded.get("created")):
        return int(recorded["position"])
    return position_of(live.compact, live.state, level) if live is not None else None


def _next_delivery(live: LiveObject | None) -> int | None:
    """Return the sequence after the last delivery: the latest possible position."""
    delivered = (live.state.get("delivered") or {}).get("stream_seq") if live is not None else None
    return int(delivered) + 1 if delivered else None


def params(inputs: PlanInputs, decision: ResourceDecision) -> dict[str, Any]:
    """Return the parameters of the step: how the position is kept.

    `state_address` is the address under which state has the interrupted replacement.
    """
    address, live, recorded = (
        decision.address,
        decision.live,
        inputs.interrupted.replacements.get(decision.address) or {},
    )
    found = {
        "state_address": recorded.get("address") or str(inputs.moved_from.get(address, address)),
        "position": _known_position(live, recorded, inputs.level(address)),
        "api_level": inputs.level(address),
    }
    return found | ({"reset": decision.reset.to_json()} if decision.reset is not None else {})


def replacement_fields(
    address: Address, entry: Entry | None, named: Mapping[str, Any]
) -> frozenset[str]:
    """Return the fields that a replacement set in place of the files; no change while they are."""
    if entry is None or address.kind != "consumer" or address.consumer not in entry.starts:
        return frozenset()
    same = all(
        (name in named) == (name in entry.declared) and named.get(name) == entry.declared.get(name)
        for name in START_FIELDS
    )
    return frozenset(START_FIELDS) if same else frozenset()


def assess_replaced(inputs: PlanInputs, decision: ResourceDecision) -> Iterable[Hazard]:
    """Yield the hazard of redelivery of a consumer that is replaced with its position.

    A warning has the messages that are pending.
    """
    live, parent = decision.live, decision.address.parent
    stream = inputs.live.get(parent) if parent is not None else None
    if (
        live is not None
        and stream is not None
        and decision.after is not None
        and decision.reset is None
        and decision.deleted_with is None
        and decision.preserves
    ):
        yield from assess_redelivery(inputs, stream, [live], with_pending=False)


def check_consumer_replacement(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterable[Diagnostic]:
    """Warn about the effects of a replacement that keeps the position of a consumer."""
    live = decision.live
    if live is None or decision.after is None:
        return
    body, level = inputs.body(decision.address), inputs.level(decision.address)
    if decision.reset is not None:
        yield from _warn_of_pending(inputs, decision, live)
        return
    position = position_of(live.compact, live.state, level)
    resume_at = (
        f"sequence {position:,}" if position else "the first message that was not acknowledged"
    )
    if any(change.path in START_FIELDS for change in decision.fields):
        yield _replacement_warning(
            inputs,
            decision,
            f"keeps its position ({resume_at}): its new start has no effect",
            "To start where the files say: lifecycle: {on_replace: recreate}.",
        )
    elif body.get("deliver_policy") in LAST_POLICIES:
        last = LAST_POLICIES[body["deliver_policy"]]
        text = f"gets every message from {resume_at} on, not only {last}"
        yield _replacement_warning(
            inputs, decision, text, "So no message that was pending for it is lost."
        )
    if has_pending_below_floor(live.compact, live.state):
        behind = f"sequence {live.state['ack_floor']['stream_seq']:,}"
        text = (
            "has more messages pending than it delivered behind its ack floor "
            f"({behind}): some may be pending below it"
        )
        detail = (
            "A purge by filter leaves them there. The new consumer resumes as many messages back "
            "as the old one made deliveries, so that none is lost. To repeat fewer, wait until its "
            "clients have acknowledged what they have, and plan again."
        )
        yield _replacement_warning(inputs, decision, text, detail)
    yield from _warn_of_pending(inputs, decision, live)


def _warn_of_pending(
    inputs: PlanInputs, decision: ResourceDecision, live: LiveObject
) -> Iterable[Diagnostic]:
    """Warn about messages that clients have and have not acknowledged."""
    out = live.state.get("num_ack_pending") or 0
    if out:
        text = (
            f"{count_text(out, 'pending message')} may be delivered again, "
            "and count as delivered for the first time"
        )
        in_place = decision.reset is not None and decision.reset.in_place
        detail = (
            "Redelivery counts start over. What is acknowledged while the consumer is "
            f"{'reset' if in_place else 'recreated'} is delivered again."
        )
        yield _replacement_warning(inputs, decision, text, detail)


def _replacement_warning(
    inputs: PlanInputs, decision: ResourceDecision, text: str, detail: str
) -> Diagnostic:
    declared = inputs.workspace.resources.get(decision.address)
    return Diagnostic(
        "warning",
        "JS423",
        text,
        detail,
        str(decision.address),
        declared.range if declared else None,
    )
