"""Streams that begin to refuse what their mirror or sources bring, or take it again.

There these flows stop, and resume. Before nats-server 2.14 a stream that allows no rollups refuses
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.flows.graph import StreamNode, list_origins
from jsplan.flows.refusals import count_without_place, is_full, limit_of, may_have_larger
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.replication.impact import origin_of
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import ROLLUP_MIRROR_LEVEL
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import Hazards, PlanInputs, ResourceDecision
    from jsplan.resources.fields import Config


def keeps_messages(decision: ResourceDecision) -> bool:
    """Check whether a stream is updated, or replaced with its messages."""
    return decision.live is not None and (decision.actions == ["update"] or decision.preserves)


def list_refused(inputs: PlanInputs, decision: ResourceDecision) -> list[Config]:
    """Return the mirrors and sources whose messages a stream may refuse after its change."""
    if decision.live is None or not keeps_messages(decision):
        return []
    level = inputs.level(decision.address)
    return list_rejected(inputs, decision.live, decision.planned, level)


def list_rejected(
    inputs: PlanInputs, stream: LiveObject, after: Config, level: int
) -> list[Config]:
    """Return the mirror and sources that stay, and that it may refuse with this configuration."""
    before, state = stream.compact, stream.state
    known = {origin_key(flow) for _, flow in list_origins(before)}
    flows = [flow for _, flow in list_origins(after) if origin_key(flow) in known]
    if _is_full(after, state) and not _is_full(before, state):
        return flows
    rollups = level < ROLLUP_MIRROR_LEVEL and _takes_rollups(before, after)
    size = _smaller_limit(after, before)
    return [f for f in flows if _may_have(inputs, stream.address, f, size, rollups=rollups)]


def list_resumed(inputs: PlanInputs, decision: ResourceDecision) -> list[Config]:
    """Return the mirrors and sources whose messages a stream may have refused, and takes then."""
    if decision.live is None or not keeps_messages(decision):
        return []
    known = {origin_key(flow) for _, flow in list_origins(decision.planned)}
    level = inputs.level(decision.address)
    found = list_accepted(inputs, decision.live, decision.planned, level)
    return [flow for flow in found if origin_key(flow) in known]


def list_accepted(
    inputs: PlanInputs, stream: LiveObject, after: Config, level: int
) -> list[Config]:
    """Return the mirror and sources that it may refuse, and not with this configuration."""
    before = stream.compact
    flows = [flow for _, flow in list_origins(before)]
    if _gets_place(before, after, stream.state) or (
        before.get("allow_msg_counter") and not after.get("allow_msg_counter")
    ):
        return flows
    rollups = level < ROLLUP_MIRROR_LEVEL and _takes_rollups(after, before)
    size = _smaller_limit(before, after)
    return [f for f in flows if _may_have(inputs, stream.address, f, size, rollups=rollups)]


def _smaller_limit(refusing: Config, taking: Config) -> int:
    """Return the `max_msg_size` of one, if the other takes larger messages; else 0."""
    size, other = (limit_of(config, "max_msg_size") for config in (refusing, taking))
    return 0 if 0 < other <= size else size


def _takes_rollups(taking: Config, refusing: Config) -> bool:
    return bool(taking.get("allow_rollup_hdrs")) and not refusing.get("allow_rollup_hdrs")


def _may_have(
    inputs: PlanInputs, downstream: Address, flow: Config, size: int, *, rollups: bool
) -> bool:
    """Check whether a flow may bring a message of more than `size` bytes (0: none), or a rollup."""
    return bool(size and _may_be_larger(inputs, downstream, flow, size)) or (
        rollups and _may_roll_up(inputs, downstream, flow)
    )


def _gets_place(before: Config, after: Config, state: Mapping[str, Any]) -> bool:
    """Check whether a stream that may be full has place after a change of its limits."""
    if all(before.get(name) == after.get(name) for name in (*_PLACE_FIELDS, "max_age")):
        return False
    expires = before.get("max_age") != after.get("max_age")
    was_full = count_without_place(before, state, 1, None) != 0
    return was_full and (expires or not is_full(after, state, 0))


#: The fields that decide whether a stream has place.
_PLACE_FIELDS: Final = (
    "discard",
    "max_msgs",
    "max_bytes",
    "max_msgs_per_subject",
    "discard_new_per_subject",
)


def _is_full(config: Config, state: Mapping[str, Any]) -> bool:
    """Check whether a stream with this configuration refuses one more message."""
    messages, size = (int(state.get(name) or 0) for name in ("messages", "bytes"))
    return messages > 0 and count_without_place(config, state, 1, size // messages) != 0


def _read_origin(inputs: PlanInputs, downstream: Address, flow: Config) -> LiveObject | None:
    address = origin_of(inputs, downstream, flow)
    return inputs.live.get(address) if address is not None else None


def _may_be_larger(inputs: PlanInputs, downstream: Address, flow: Config, size: int) -> bool:
    """Check whether the origin may have a message that is larger than this."""
    origin = _read_origin(inputs, downstream, flow)
    if origin is None:
        return True
    return may_have_larger(StreamNode(origin.address, origin.compact, origin.state), size)


def _may_roll_up(inputs: PlanInputs, downstream: Address, flow: Config) -> bool:
    """Check whether the origin allows rollups, or may have them of another one."""
    origin = _read_origin(inputs, downstream, flow)
    if origin is None:
        return True
    return bool(origin.compact.get("allow_rollup_hdrs") or list_origins(origin.compact))


def assess_closed(inputs: PlanInputs, decision: ResourceDecision) -> Hazards:
    """Yield the hazard of a stream that begins to refuse what flows into it."""
    keys = [origin_key(flow) for flow in list_refused(inputs, decision)]
    if not keys:
        return
    answers = inputs.measured.uncopied.get(decision.address, ())
    counts = [answer.at_most for answer in answers if answer.request.name in keys]
    most = None if None in counts else sum(count or 0 for count in counts)
    waiting = "an unknown number of messages" if most is None else count_text(most, "message")
    text = (
        f"it may refuse what {', '.join(keys)} brings (discard: new, max_msg_size or rollups): "
        f"the flow stops at the first one, also for what comes later. {waiting} of it are not "
        "copied yet"
    )
    yield counted("BREAKS_REPLICATION", text, most, causes=keys)
