"""The position of a consumer, and what is delivered again or never at another one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec import Struct

from jsplan.resources.server_features import EXACT_START_LEVEL
from jsplan.subjects import passes_filters

#: The first cause of such a measurement. The second is its kind.
RESET_CAUSE: Final = "reset"
ResetKind = Literal["again", "skipped"]


def position_of(config: Mapping[str, Any], state: Mapping[str, Any], level: int) -> int | None:
    """Return the first sequence that the consumer has not finished, or None if that is unknown.

    `level` is the API level of its server. The position is behind the ack floor, or behind the last
    delivery of a consumer without acknowledgements. Up to 2.12 the floor is 0 until something is
    acknowledged, wherever the consumer began. The start of a deliver_policy new, last or
    by_start_time that has delivered something is not stored. Neither is that of by_start_sequence
    on 2.10, where a start behind the end of the stream became that end. See also
    `has_pending_below_floor`.
    """
    delivered, floor = (state.get(name) or {} for name in ("delivered", "ack_floor"))
    if not delivered.get("consumer_seq") and config.get("deliver_policy", "all") == "all":
        # `delivered` is how far it has searched.
        return int(floor.get("stream_seq") or 0) + 1
    if config.get("ack_policy", "none") == "none" or not delivered.get("consumer_seq"):
        return int(delivered.get("stream_seq") or 0) + 1
    if has_pending_below_floor(config, state):
        return None
    if floor.get("stream_seq"):
        return int(floor["stream_seq"]) + 1
    policy = config.get("deliver_policy", "all")
    if policy in ("all", "last_per_subject"):
        # That of the latter is unknown too. No message is before the first.
        return 1
    if policy == "by_start_sequence" and level >= EXACT_START_LEVEL:
        return int(config["opt_start_seq"])
    return None


def has_pending_below_floor(config: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Check whether messages may be pending below the ack floor.

    More are pending than were delivered behind it. After a purge by filter of pending messages the
    server takes those before them for finished (measured on 2.10 to 2.15).
    """
    delivered, floor = (state.get(name) or {} for name in ("delivered", "ack_floor"))
    behind = int(delivered.get("consumer_seq") or 0) - int(floor.get("consumer_seq") or 0)
    tracked = config.get("ack_policy", "none") != "none" and bool(floor.get("stream_seq"))
    return tracked and int(state.get("num_ack_pending") or 0) > behind


# --- messages that are given again ----------------------------------------------------------------


def max_redelivered(
    config: Mapping[str, Any],
    consumer: Mapping[str, Any],
    stream: Mapping[str, Any],
    position: int | None,
) -> int:
    """Return the most finished messages that a successor of a consumer is given again.

    `consumer` and `stream` are the counts in their INFO. The successor resumes at `position`, or
    (None: unknown) as many messages back as there were deliveries.
    """
    delivered, floor = (consumer.get(name) or {} for name in ("delivered", "ack_floor"))
    end, made = int(delivered.get("stream_seq") or 0), int(delivered.get("consumer_seq") or 0)
    out, start = int(consumer.get("num_ack_pending") or 0), (position or 1) - 1
    if config.get("ack_policy", "none") == "none" or not made or end - start <= out:
        return 0
    deliveries = made - (0 if position is None else int(floor.get("consumer_seq") or 0))
    first, last, messages = (
        int(stream.get(name) or 0) for name in ("first_seq", "last_seq", "messages")
    )
    between = max(0, min(end, last) - max(start + 1, first) + 1)
    has_all = messages == last - first + 1 and between == end - start
    missing, stored = 0 if has_all else end - start, min(between, messages)
    most = min(stored - max(0, out - missing), max(0, deliveries - out))
    if missing and position is not None and not (messages and first <= start):
        most = max(most, stored - out)
    return max(0, most)


class ResetCount(Struct, frozen=True):
    """A consumer that is set to the sequence `target`.

    `position` is the first message that it has not finished (None: unknown), `delivered` the last
    one that it passed, `ack_pending` its messages that are not acknowledged, all of them between
    the two. `filters` are those that it has then (none: everything). `kind`: `again` are the
    messages from `target` to `delivered`, `skipped` those before `target` that it has not finished.
    """

    kind: ResetKind
    target: int
    position: int | None
    delivered: int
    ack_pending: int
    filters: tuple[str, ...]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges (first, last sequence) to count: `again`; or passed, undelivered and kept.

        Those of `skipped` are what it has passed and will skip, what it has not, and what it has
        passed and will not skip.
        """
        if self.kind == "again":
            return [(self.target, self.delivered)]
        passed = min(self.target - 1, self.delivered)
        return [
            (self.position or 1, passed),
            (max(self.position or 1, self.delivered + 1), self.target - 1),
            (self.target, self.delivered),
        ]

    def bounds(self, least: Sequence[int], most: Sequence[int]) -> tuple[int, int]:
        """Return the bounds of the answer from those of the counts of `ranges`.

        A message that was delivered and not acknowledged may be before or after `target`.
        """
        if self.kind == "again":
            return least[0], most[0]
        low = max(0, self.ack_pending - most[2])
        return min(low, least[0]) + least[1], min(self.ack_pending, most[0]) + most[1]


@dataclass(slots=True)
class RangeTally:
    """The messages of each range that pass the filters."""

    count: ResetCount
    found: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.found = [0] * len(self.count.ranges)

    def visit(self, seq: int, subject: str) -> None:
        """Count one message."""
        if passes_filters(subject, self.count.filters):
            for number, (first, last) in enumerate(self.count.ranges):
                self.found[number] += first <= seq <= last
