"""What becomes of consumers that come back with a stream that keeps its messages, where the server cannot take them to their position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.planning.preserve.positions import position_of, starting_at, way_to
from jsplan.planning.preserve.ways import way_of
from jsplan.resources import CONSUMER
from jsplan.resources.fields import Config

if TYPE_CHECKING:
    from jsplan.planning.inputs import Inputs
    from jsplan.planning.verdict import Verdict


def start_of(live: LiveObject, config: Config, stream: Verdict, level: int) -> int | None:
    """The sequence from which a consumer is made to start in the new stream, in place of its deliver_policy; None where it is not.

    Before 2.12 messages get new sequences, which are known only then: this is the old one.
    """
    if stream.live is None or not stream.preserves or not stream.renews:
        return None
    position = position_of(live.compact, live.state) or int((live.state.get("delivered") or {}).get("stream_seq") or 0) + 1
    first = 1 if way_of(level) == "source" else int(stream.live.state.get("first_seq") or 0)
    retention = (stream.after or {}).get("retention", "limits")
    return position if way_to(position, config, level, retention=retention, first_seq=first) == "start" else None


def _start(inputs: Inputs, verdict: Verdict, verdicts: Mapping[Address, Verdict]) -> int | None:
    stream = verdicts.get(verdict.brought) if verdict.brought is not None else None
    if stream is None or verdict.live is None or verdict.replaces:
        return None
    return start_of(verdict.live, verdict.after or verdict.live.compact, stream, inputs.level(verdict.address))


def starts_anew(inputs: Inputs, verdict: Verdict, verdicts: Mapping[Address, Verdict]) -> bool:
    """Whether the sequence from which it starts is only known when it is made."""
    return _start(inputs, verdict, verdicts) is not None


def shown_after(inputs: Inputs, verdict: Verdict, verdicts: Mapping[Address, Verdict]) -> Config | None:
    """Its full configuration in the end, where that is not what the files or the server say; None where it is."""
    start = _start(inputs, verdict, verdicts)
    if start is None or verdict.live is None:
        return None
    return CONSUMER.full(starting_at(start, verdict.after or verdict.live.compact), inputs.level(verdict.address))
