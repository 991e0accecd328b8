"""Starts of recreated consumers that the server cannot reset to their position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.facts.consumer_position import position_of
from jsplan.facts.live import LiveObject
from jsplan.planning.transfer.consumer_position import (
    choose_position_method,
    with_start_sequence,
)
from jsplan.resources import CONSUMER
from jsplan.resources.fields import Config

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs, ResourceDecision


def start_sequence(
    live: LiveObject, config: Config, stream: ResourceDecision, level: int
) -> int | None:
    """Return the start sequence of a consumer in the new stream; None for its own start."""
    if stream.live is None or not stream.preserves or not stream.recreates_consumers:
        return None
    position = (
        position_of(live.compact, live.state, level)
        or int((live.state.get("delivered") or {}).get("stream_seq") or 0) + 1
    )
    first = int(stream.live.state.get("first_seq") or 0)
    retention = (stream.after or {}).get("retention", "limits")
    return (
        position
        if choose_position_method(position, config, level, retention=retention, first_seq=first)
        == "start"
        else None
    )


def _decided_start(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Mapping[Address, ResourceDecision]
) -> int | None:
    stream = decisions.get(decision.restored_with) if decision.restored_with is not None else None
    if stream is None or decision.live is None or decision.replaces:
        return None
    return start_sequence(
        decision.live,
        decision.after or decision.live.compact,
        stream,
        inputs.level(decision.address),
    )


def has_unknown_start(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Mapping[Address, ResourceDecision]
) -> bool:
    """Check whether the start sequence is known only when the consumer is created."""
    return _decided_start(inputs, decision, decisions) is not None


def config_with_start(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Mapping[Address, ResourceDecision]
) -> Config | None:
    """Return its final full configuration if that differs from files and server; otherwise None."""
    start = _decided_start(inputs, decision, decisions)
    if start is None or decision.live is None:
        return None
    return CONSUMER.with_defaults(
        with_start_sequence(start, decision.after or decision.live.compact),
        inputs.level(decision.address),
    )
