"""Finished messages that are delivered again when a new consumer resumes at a position.

Three values of a consumer are unreliable after a purge by filter (measured on 2.10 to 2.15). The
`consumer_seq` of its floor may have passed deliveries that are not finished; then nothing is stored
up to the floor. Pending messages may have been deleted: a purge of several messages does not remove
them. A message may be pending below the floor: that shows only where more are pending than were
delivered behind it. The server also does not report filters that were changed after deliveries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from jsplan.resources.consumer import filters_of
from jsplan.subjects import passes_filters


class Redelivery(Struct, frozen=True):
    """A consumer whose successor resumes behind `floor`, before its `delivered` sequence.

    `before` and `after` are its filters now and then (none: everything), `ack_pending` its messages
    that are not acknowledged, `deliveries` the number of deliveries behind the floor.
    `counted_back`: its position is not known, so the successor begins as many messages back as
    there were deliveries. `selective`: its deliver_policy skipped messages that its filters match.
    """

    consumer: str
    floor: int
    delivered: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    ack_pending: int
    deliveries: int
    counted_back: bool = False
    selective: bool = False


class StoredBetween(Struct):
    """Stored messages between floor and last delivery: all, and those that the filters match."""

    total: int = 0
    before: int = 0
    after: int = 0
    both: int = 0

    def count(self, subject: str, span: Redelivery) -> None:
        """Count one message."""
        before, after = passes_filters(subject, span.before), passes_filters(subject, span.after)
        self.total += 1
        self.before += before
        self.after += after
        self.both += before and after


def build_redelivery(
    consumer: str,
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    after: Mapping[str, Any],
    position: int | None,
) -> Redelivery | None:
    """Build the request for a consumer from its INFO; None if nothing can be finished there."""
    delivered, floor = (state.get(name) or {} for name in ("delivered", "ack_floor"))
    last, made = delivered.get("stream_seq") or 0, delivered.get("consumer_seq") or 0
    out = state.get("num_ack_pending") or 0
    start = (position or 1) - 1
    if config.get("ack_policy", "none") == "none" or not made or last - start <= out:
        return None
    deliveries = made - (0 if position is None else floor.get("consumer_seq") or 0)
    return Redelivery(
        consumer,
        start,
        last,
        filters_of(config),
        filters_of(after),
        out,
        deliveries,
        counted_back=position is None,
        selective=config.get("deliver_policy") == "last_per_subject",
    )


def redelivery_bounds(
    span: Redelivery, stored: StoredBetween, *, missing: int, anchored: bool
) -> tuple[int, int]:
    """Return the least and the most finished messages that are delivered again.

    `missing` is how many sequences in between may have no message. `anchored`: a message up to the
    floor is stored, so the floor counts every delivery before it.
    """
    stored_out = span.ack_pending - min(span.ack_pending, missing)
    most = min(stored.after, stored.total - stored_out, max(0, span.deliveries - span.ack_pending))
    if missing and not anchored and not span.counted_back:
        most = max(most, min(stored.after, stored.both, stored.before - span.ack_pending))
    known = span.deliveries >= stored.before and not (span.counted_back or span.selective)
    return max(0, min(stored.both - span.ack_pending if known else 0, most)), max(0, most)


def max_unread(span: Redelivery, stored: int, *, missing: int, anchored: bool) -> int:
    """Return the upper bound where only the number of `stored` messages in between is known."""
    return redelivery_bounds(
        span, StoredBetween(stored, stored, stored, stored), missing=missing, anchored=anchored
    )[1]


def max_by_state(span: Redelivery, state: Mapping[str, Any]) -> int:
    """Return the upper bound by the stream's `state` alone."""
    first, last, messages = (
        int(state.get(name) or 0) for name in ("first_seq", "last_seq", "messages")
    )
    stored = max(0, min(span.delivered, last) - max(span.floor + 1, first) + 1)
    whole = messages == last - first + 1 and stored == span.delivered - span.floor
    missing = 0 if whole else span.delivered - span.floor
    return max_unread(
        span,
        min(stored, messages),
        missing=missing,
        anchored=bool(messages) and first <= span.floor,
    )
