"""What becomes of consumers that come back with a stream that keeps its messages, where the server cannot take them to their position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.planning.preserve.consumer_position import (
    choose_position_method,
    position_of,
    with_start_sequence,
)
from jsplan.planning.preserve.methods import choose_preserve_method
from jsplan.resources import CONSUMER
from jsplan.resources.fields import Config

if TYPE_CHECKING:
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs


def start_sequence(
    live: LiveObject, config: Config, stream: ResourceDecision, level: int
) -> int | None:
    """The sequence from which a consumer is made to start in the new stream, in place of its deliver_policy; None where it is not.

    Before 2.12 messages get new sequences, which are known only then: this is the old one.
    """
    if stream.live is None or not stream.preserves or not stream.recreates_consumers:
        return None
    position = (
        position_of(live.compact, live.state)
        or int((live.state.get("delivered") or {}).get("stream_seq") or 0) + 1
    )
    first = (
        1
        if choose_preserve_method(level) == "source"
        else int(stream.live.state.get("first_seq") or 0)
    )
    retention = (stream.after or {}).get("retention", "limits")
    return (
        position
        if choose_position_method(position, config, level, retention=retention, first_seq=first)
        == "start"
        else None
    )


def _decided_start(
    inputs: PlanInputs, verdict: ResourceDecision, verdicts: Mapping[Address, ResourceDecision]
) -> int | None:
    stream = verdicts.get(verdict.restored_with) if verdict.restored_with is not None else None
    if stream is None or verdict.live is None or verdict.replaces:
        return None
    return start_sequence(
        verdict.live, verdict.after or verdict.live.compact, stream, inputs.level(verdict.address)
    )


def has_unknown_start(
    inputs: PlanInputs, verdict: ResourceDecision, verdicts: Mapping[Address, ResourceDecision]
) -> bool:
    """Whether the sequence from which it starts is only known when it is made."""
    return _decided_start(inputs, verdict, verdicts) is not None


def config_with_start(
    inputs: PlanInputs, verdict: ResourceDecision, verdicts: Mapping[Address, ResourceDecision]
) -> Config | None:
    """Its full configuration in the end, where that is not what the files or the server say; None where it is."""
    start = _decided_start(inputs, verdict, verdicts)
    if start is None or verdict.live is None:
        return None
    return CONSUMER.with_defaults(
        with_start_sequence(start, verdict.after or verdict.live.compact),
        inputs.level(verdict.address),
    )
