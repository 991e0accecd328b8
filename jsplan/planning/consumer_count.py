"""Count the consumers of each stream during a plan, unmanaged consumers included. Pure.

A stream rejects a new consumer when it is at its limit (10026). It accepts a limit below its
current count (measured on 2.12 to 2.15; before that the limit is immutable). So a replaced
consumer needs a place too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from jsplan.address import SERVER_CONSUMER_PREFIXES
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import REPLACEMENT_INTERRUPTED, planned_config
from jsplan.planning.model import Decisions, ResourceDecision
from jsplan.planning.split_updates import stream_of
from jsplan.resources.stream import max_consumers

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.planning.model import PlanInputs


class ConsumerCount(Struct):
    """The consumers of one stream: the number of unchanged ones, the replaced and the new ones.

    `limit` is the `max_consumers` in force while consumers are created, 0 for none. For new
    consumers it is the limit that the stream ends with.
    """

    stream: Address
    unchanged: int = 0
    limit: int = 0
    replaced: list[ResourceDecision] = field(default_factory=list)
    new: list[ResourceDecision] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of consumers after the plan, which is also the most at any time."""
        return max(0, self.unchanged) + len(self.replaced) + len(self.new)

    @property
    def created(self) -> list[ResourceDecision]:
        """The consumers that the plan creates."""
        return [*self.replaced, *self.new]


def count_consumers(inputs: PlanInputs, decisions: Decisions) -> list[ConsumerCount]:
    """Count each stream on which the plan creates consumers, in address order."""
    if not any(decision.creates for decision in decisions.values()):
        return []
    changed = sorted(consumers_by_stream(inputs, decisions).items())
    counts = (count_stream(inputs, decisions, stream, those) for stream, those in changed)
    return [count for count in counts if count.created]


def consumers_by_stream(
    inputs: PlanInputs, decisions: Decisions
) -> dict[Address, list[ResourceDecision]]:
    """Return the decisions about the consumers of each stream."""
    found: dict[Address, list[ResourceDecision]] = {}
    for address, decision in decisions.items():
        if address.parent is not None:
            found.setdefault(stream_of(inputs, decisions, address), []).append(decision)
    return found


def count_stream(
    inputs: PlanInputs, decisions: Decisions, stream: Address, consumers: Iterable[ResourceDecision]
) -> ConsumerCount:
    """Count one stream; `consumers` are the decisions about its consumers."""
    planned, live = decisions.get(stream), inputs.live.get(stream)
    replaced = planned is not None and planned.replaces
    lost = planned is not None and planned.loses_content
    count = ConsumerCount(stream)
    if live is not None and not lost:
        count.unchanged = count_existing(inputs, live)
    for decision in consumers:
        created = decision.after is not None and (
            replaced or decision.replaces or decision.actions == ["create"]
        )
        # A relocation that was interrupted may have created one that is planned as new.
        is_there = decision.live is not None or inputs.live.get(decision.address) is not None
        if is_there and not lost and (created or decision.deletes):
            count.unchanged -= 1
        if created:
            again = decision.replaces or decision.reason == REPLACEMENT_INTERRUPTED
            again = again and not replaced
            (count.replaced if again else count.new).append(decision)
    limits = [max_consumers(planned_config(inputs, decisions, stream))]
    if live is not None and not replaced and not count.new:
        limits.append(max_consumers(live.compact))
    count.limit = 0 if 0 in limits else max(limits)
    return count


def count_existing(inputs: PlanInputs, stream: LiveObject) -> int:
    """Count the consumers that a stream has now.

    Those of servers for mirrors and sources need no place, although it counts them (measured).
    """
    names = (consumer.address.consumer for consumer in inputs.all_consumers_of(stream.address))
    hidden = sum(name.startswith(SERVER_CONSUMER_PREFIXES) for name in names)
    return int(stream.state.get("consumer_count") or 0) - hidden
