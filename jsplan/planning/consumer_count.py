"""Count the consumers of each stream at every moment of a plan, other people's included. Pure.

A stream refuses a new consumer when it has as many as it may have (10026); that the limit was lowered below what is there it
takes (measured on 2.12 to 2.15; before that the limit never changes). So a replaced consumer needs a place too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jsplan.address import SERVER_CONSUMER_PREFIXES
from jsplan.planning.decide import REPLACEMENT_INTERRUPTED, ResourceDecision, planned_config
from jsplan.planning.split_updates import MAX_CONSUMERS, stream_of

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.model import PlanInputs
    from jsplan.resources.fields import Config


@dataclass(slots=True)
class ConsumerCount:
    """The consumers of one stream: how many stay as they are, which are replaced, which are new.

    `limit` is the `max_consumers` that holds while consumers are made, 0 for none; for what is new that is the one that the stream
    ends with.
    """

    stream: Address
    unchanged: int = 0
    limit: int = 0
    replaced: list[ResourceDecision] = field(default_factory=list)
    new: list[ResourceDecision] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many there are in the end, which is the most that there are at once."""
        return max(0, self.unchanged) + len(self.replaced) + len(self.new)

    @property
    def created(self) -> list[ResourceDecision]:
        """Those that the plan makes."""
        return [*self.replaced, *self.new]


def count_consumers(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> list[ConsumerCount]:
    """A count for each stream on which the plan makes consumers, in the order of their addresses."""
    found: dict[Address, list[ResourceDecision]] = {}
    for address, verdict in verdicts.items():
        if address.parent is not None:
            found.setdefault(stream_of(inputs, verdicts, address), []).append(verdict)
    counts = (
        _count_stream(inputs, verdicts, stream, consumers)
        for stream, consumers in sorted(found.items())
    )
    return [count for count in counts if count.created]


def _count_stream(
    inputs: PlanInputs,
    verdicts: Mapping[Address, ResourceDecision],
    stream: Address,
    consumers: Iterable[ResourceDecision],
) -> ConsumerCount:
    planned, live = verdicts.get(stream), inputs.live.get(stream)
    replaced, lost = (
        planned is not None and planned.replaces,
        planned is not None and planned.loses_content,
    )
    count = ConsumerCount(stream)
    if live is not None and not lost:
        count.unchanged = int(live.state.get("consumer_count") or 0) - _count_hidden(inputs, stream)
    for verdict in consumers:
        made = verdict.after is not None and (
            replaced or verdict.replaces or verdict.actions == ["create"]
        )
        if verdict.live is not None and not lost and (made or verdict.deletes):
            count.unchanged -= 1
        if made:
            again = not replaced and (verdict.replaces or verdict.reason == REPLACEMENT_INTERRUPTED)
            (count.replaced if again else count.new).append(verdict)
    limits = [_max_consumers(planned_config(inputs, verdicts, stream))]
    if live is not None and not replaced and not count.new:
        limits.append(_max_consumers(live.compact))
    count.limit = 0 if 0 in limits else max(limits)
    return count


def _max_consumers(config: Config | None) -> int:
    """The stream's limit, 0 for none."""
    most = (config or {}).get(MAX_CONSUMERS)
    return most if isinstance(most, int) and most > 0 else 0


def _count_hidden(inputs: PlanInputs, stream: Address) -> int:
    """Count the consumers by which the server reads the stream for its copies: they need no place (measured)."""
    names = (a.consumer for a in inputs.live.objects if a.kind == "consumer" and a.parent == stream)
    return sum(1 for name in names if name.startswith(SERVER_CONSUMER_PREFIXES))
