"""Consumers that continue others at their position: which, and what the plan shows of them.

Apply reads the position again just before it deletes the old consumer. What a plan shows is as of
the plan, also the messages that consumers are given again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jsplan.address import Address, matches, move_address
from jsplan.facts.consumer_position import has_pending_below_floor, max_redelivered, position_of
from jsplan.facts.live import get_retention
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.model import Findings, Hazards
from jsplan.planning.pauses import PAUSE, is_expired, is_held
from jsplan.planning.transfer.consumer_position import (
    START_FIELDS,
    UNKNOWN_FIELDS,
    choose_position_method,
    may_need_start,
    with_start_sequence,
)
from jsplan.resources import CONSUMER
from jsplan.resources.consumer import filters_of
from jsplan.resources.fields import Config
from jsplan.resources.server_features import PURGE_LEVEL
from jsplan.state.document import Entry
from jsplan.subjects import is_covered
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.config.model import Relocate, Workspace
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
    from jsplan.planning.restore.selection import RestoreTarget
    from jsplan.planning.transfer.progress import Transfer


#: By policy, the only messages that it would deliver. The new consumer gets all after its position.
LAST_POLICIES = {"last": "the last message", "last_per_subject": "the last message of each subject"}


def is_update_purging(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check whether updating a consumer in place would delete messages of an interest stream.

    A server from 2.14 on deletes everything up to the ack floor of a consumer whose filter is
    updated while that floor is behind the end of the stream, even if other consumers want it. And
    what a consumer has passed with its old filter counts as not wanted by its new one. A consumer
    that never got a message loses nothing by starting again (measured).
    """
    live, stream = decision.live, inputs.stream_of(decision.address)
    if live is None or stream is None or decision.after is None:
        return False
    before, new = filters_of(live.compact), filters_of(decision.after)
    if get_retention(stream.compact) != "interest" or sorted(before) == sorted(new):
        return False
    floor, delivered = (live.state.get(name) or {} for name in ("ack_floor", "delivered"))
    gains = bool(before) and (not new or any(not is_covered(subject, before) for subject in new))
    acks_each = live.compact.get("ack_policy", "none") == "explicit"
    starts_over = gains and acks_each and not delivered.get("consumer_seq")
    behind_end = int(floor.get("stream_seq") or 0) > int(stream.state.get("last_seq") or 0)
    return starts_over or (behind_end and inputs.level(live.address) >= PURGE_LEVEL)


def preserve_position(inputs: PlanInputs, decision: ResourceDecision) -> ResourceDecision:
    """Return the decision with the position and the undeclared pause of a recreated consumer."""
    live, after, address = decision.live, decision.after, decision.address
    assert after is not None
    recorded = inputs.interrupted.replacements.get(address) or {}
    before = decision.before
    pause = (before if before and not is_held(before) else recorded.get("config", {})).get(PAUSE)
    if PAUSE not in inputs.body(address) and not is_expired(pause, inputs.now):
        after = after | {PAUSE: pause}
    position = _known_position(live, recorded, inputs.level(address)) or _next_delivery(live)
    if decision.reset is not None:
        position = decision.reset.seq
    if position is None or not has_unknown_start(inputs, address, after):
        return replace(decision, after=after)
    first, retention = _first_seq(inputs.stream_of(address)), _planned_retention(inputs, address)
    after = _with_position(position, after, inputs.level(address), retention, first)
    return replace(decision, unknown=[*UNKNOWN_FIELDS], after=after)


def has_unknown_start(inputs: PlanInputs, address: Address, after: Config) -> bool:
    """Check whether a recreated consumer may get a start that is known when it is created."""
    retention = _planned_retention(inputs, address)
    return may_need_start(after, inputs.level(address), retention=retention)


def start_in_new_stream(
    live: LiveObject, config: Config, stream: ResourceDecision, level: int
) -> Config | None:
    """Return the configuration of a consumer in the new stream, if its start must be another."""
    if stream.live is None or not stream.preserves or not stream.recreates_consumers:
        return None
    position = position_of(live.compact, live.state, level) or _next_delivery(live) or 1
    retention = get_retention(stream.after or {})
    found = _with_position(position, config, level, retention, _first_seq(stream.live))
    return None if found is config else found


def config_with_start(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Config | None:
    """Return the full configuration of a consumer that comes back with its stream.

    None if its start is its own.
    """
    stream = decisions.get(decision.restored_with) if decision.restored_with is not None else None
    live, level = decision.live, inputs.level(decision.address)
    if stream is None or live is None or decision.replaces:
        return None
    found = start_in_new_stream(live, decision.after or live.compact, stream, level)
    return CONSUMER.with_defaults(found, level) if found is not None else None


def _with_position(position: int, config: Config, level: int, retention: str, first: int) -> Config:
    """Return the configuration, with a start at `position` where it can get it in no other way."""
    method = choose_position_method(position, config, level, retention=retention, first_seq=first)
    return with_start_sequence(position, config) if method == "start" else config


def _first_seq(stream: LiveObject | None) -> int:
    return int(stream.state.get("first_seq") or 0) if stream is not None else 0


def _planned_retention(inputs: PlanInputs, consumer: Address) -> str:
    """Return the planned retention of its stream; a work queue accepts no start of a consumer."""
    address = consumer.parent
    assert address is not None
    stream = inputs.live.get(address)
    live = get_retention(stream.compact) if stream is not None else "limits"
    if inputs.declared(address) is None:
        return live
    entry, body = inputs.entries.get(address), inputs.body(address)
    default = "limits" if entry is not None and "retention" in entry.declared else live
    return str(body.get("retention") or default)


def with_pause(config: Config, decision: ResourceDecision) -> Config:
    """Return the configuration of a recreated consumer with the pause that it has afterwards."""
    pause = (decision.after or {}).get(PAUSE)
    return {n: v for n, v in config.items() if n != PAUSE} | ({PAUSE: pause} if pause else {})


def request_with_pause(
    request: Mapping[str, Any] | None, decision: ResourceDecision
) -> dict[str, Any]:
    """Return the request that creates a consumer, with the pause that it has afterwards."""
    assert request is not None
    payload = request["payload"]
    return {**request, "payload": payload | {"config": with_pause(payload["config"], decision)}}


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
    address, level = decision.address, inputs.level(decision.address)
    recorded = inputs.interrupted.replacements.get(address) or {}
    found = {
        "state_address": recorded.get("address") or inputs.state_name(address),
        "position": _known_position(decision.live, recorded, level),
        "api_level": level,
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


def assess_replaced(inputs: PlanInputs, decision: ResourceDecision) -> Hazards:
    """Yield the hazard of redelivery of a consumer that is replaced with its position.

    A warning has the messages that are pending.
    """
    live, stream = decision.live, inputs.stream_of(decision.address)
    if (
        live is not None
        and stream is not None
        and decision.after is not None
        and decision.reset is None
        and decision.deleted_with is None
        and decision.preserves
    ):
        yield from assess_redelivery(inputs, stream, [live], with_pending=False)


def check_consumer_replacement(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
    """Warn about the effects of a replacement, or reset, on the position of a consumer."""
    live = decision.live
    if live is None or decision.after is None:
        return
    found = list(_pending_effects(decision, live))
    if decision.reset is None:
        found = [*_position_effects(inputs, decision, live), *found]
    for text, detail in found:
        yield inputs.finding("warning", "JS423", text, detail, decision.address)


def _position_effects(
    inputs: PlanInputs, decision: ResourceDecision, live: LiveObject
) -> Iterable[tuple[str, str]]:
    """Yield where it resumes, where that is not what the files seem to say; text and detail."""
    policy = inputs.body(decision.address).get("deliver_policy")
    position = position_of(live.compact, live.state, inputs.level(decision.address))
    resume_at = (
        f"sequence {position:,}" if position else "the first message that was not acknowledged"
    )
    if any(change.path in START_FIELDS for change in decision.fields):
        yield (
            f"keeps its position ({resume_at}): its new start has no effect",
            "To start where the files say: lifecycle: {on_replace: recreate}.",
        )
    elif policy in LAST_POLICIES:
        yield (
            f"gets every message from {resume_at} on, not only {LAST_POLICIES[policy]}",
            "So no message that was pending for it is lost.",
        )
    if has_pending_below_floor(live.compact, live.state):
        text = (
            "has more messages pending than it delivered behind its ack floor "
            f"(sequence {live.state['ack_floor']['stream_seq']:,}): some may be pending below it"
        )
        detail = (
            "A purge by filter leaves them there. The new consumer resumes as many messages back "
            "as the old one made deliveries, so that none is lost. To repeat fewer, wait until its "
            "clients have acknowledged what they have, and plan again."
        )
        yield text, detail


def _pending_effects(decision: ResourceDecision, live: LiveObject) -> Iterable[tuple[str, str]]:
    """Yield what becomes of messages that clients have and have not acknowledged."""
    if out := live.state.get("num_ack_pending"):
        in_place = decision.reset is not None and decision.reset.in_place
        text = (
            f"{count_text(out, 'pending message')} may be delivered again, "
            "and count as delivered for the first time"
        )
        detail = (
            "Redelivery counts start over. What is acknowledged while the consumer is "
            f"{'reset' if in_place else 'recreated'} is delivered again."
        )
        yield text, detail


# --- the consumers that continue those of the origin ----------------------------------------------


def origin_consumer(
    workspace: Workspace, relocation: Transfer, consumer: Address
) -> Address | None:
    """Return the consumer of the origin whose position a consumer of the target gets.

    That is the one that a `relocate` entry names, else that of the same name. Where an entry gives
    that one to another consumer, it is None: both would process the same messages.
    """
    for entry in _consumer_entries(workspace):
        if matches(entry.new_address, consumer):
            old = move_address(entry.new_address, entry.old_address, consumer)
            if old.parent == relocation.origin:
                return old
    same = _same_name(relocation.origin, consumer)
    return None if _renamed(workspace, relocation, same) is not None else same


def target_consumer(
    workspace: Workspace, relocation: Transfer, consumer: Address
) -> Address | None:
    """Return the consumer of the target that gets the position of one of the origin, or None."""
    renamed = _renamed(workspace, relocation, consumer)
    same = _same_name(relocation.target, consumer)
    if renamed is not None or same not in workspace.resources:
        return renamed
    return same if origin_consumer(workspace, relocation, same) == consumer else None


def _consumer_entries(workspace: Workspace) -> Iterator[Relocate]:
    """Yield the entries that name consumers. Those of streams keep the names of consumers."""
    return (entry for entry in workspace.relocate if entry.names_consumers)


def _same_name(stream: Address, consumer: Address) -> Address:
    return Address(stream.domain, "consumer", f"{stream.stream}/{consumer.consumer}")


def _renamed(workspace: Workspace, relocation: Transfer, old: Address) -> Address | None:
    """Return the declared consumer of the target to which an entry gives one of the origin."""
    for entry in _consumer_entries(workspace):
        if matches(entry.old_address, old):
            new = move_address(entry.old_address, entry.new_address, old)
            if new.parent == relocation.target and new in workspace.resources:
                return new
    return None


def assess_redelivery(
    inputs: PlanInputs,
    stream: LiveObject,
    consumers: Iterable[LiveObject],
    *,
    with_pending: bool = True,
    with_finished: bool = True,
) -> Hazards:
    """Yield the hazard of redelivery for consumers of a stream that continue elsewhere.

    That are the messages that workers have now (`with_pending`), and those that are acknowledged
    above the floor (`with_finished`). A work queue has none of the latter any more.
    """
    finished = with_finished and get_retention(stream.compact) != "workqueue"
    pending, above, names = 0, 0, list[str]()
    for consumer in consumers:
        config, state = consumer.compact, consumer.state
        position = position_of(config, state, inputs.level(stream.address))
        out = int(state.get("num_ack_pending") or 0) if with_pending else 0
        most = max_redelivered(config, state, stream.state, position) if finished else 0
        pending, above = pending + out, above + most
        names += [consumer.address.consumer] if out or most else []
    if not names:
        return
    parts = [f"{pending:,} that workers have now"] if pending else []
    parts += [f"{above:,} acknowledged out of order"] if above else []
    text = (
        f"up to {count_text(pending + above, 'message')} of {', '.join(names)} may be delivered "
        f"again: {' and '.join(parts)}"
    )
    yield counted("DUPLICATES_MESSAGES", text, pending + above, causes=names, as_of=stream.as_of)


def assess_restored(target: RestoreTarget, address: Address) -> Hazards:
    """Yield the hazard of a restored consumer of which the archive has only the ack floor.

    That is what was acknowledged above the floor.
    """
    consumer = target.consumers[address]
    was, floor = consumer.before, int(consumer.before["ack_floor"]["stream_seq"])
    above = max_redelivered(consumer.config, was, target.saved.before, floor + 1)
    if target.saved.resets_to_ack_floor(consumer) and above:
        text = (
            f"up to {above:,} messages that it had acknowledged are delivered again: "
            "it may have been saved at its ack floor"
        )
        yield counted("DUPLICATES_MESSAGES", text, above)
