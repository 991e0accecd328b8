"""Measurement of what tighter limits delete, in one stream as of one INFO."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from jsplan.address import SERVER_CONSUMER_PREFIXES
from jsplan.documents.deletions import DeletionRequest, Limits
from jsplan.errors import ApiError
from jsplan.facts.interest import ConsumerInterest, parse_interest
from jsplan.facts.limit_trimming import BackwardTrim, ForwardTrim
from jsplan.facts.measurement import Measurement, MeasurementRequest
from jsplan.facts.messages import MessageReader, ReadLimitExceeded
from jsplan.resources.server_features import EXPIRY_LEVEL, TIME_LOOKUP_LEVEL
from jsplan.units import parse_instant


async def measure_limits(stream: MeasuredStream, request: DeletionRequest) -> list[Measurement]:
    """Measure the limits, and what an interest stream deletes as acknowledged with it.

    So does one that becomes interest in the same update.
    """
    limits = request.limits
    consumers = await _with_messages_out(stream) if _leaves_gaps(stream, limits) else []
    # The newest deleted message decides which consumers lose some, and reading finds it.
    count_only = stream.count_only and not consumers
    trimmed = await _measure_exceeded(stream, limits, count_only=count_only)
    lost = tuple((c.name, c.pending - 1) for c in consumers if trimmed.may_delete_above(c.floor))
    results = [replace(trimmed, acknowledged=lost)]
    if lost and (request.interest or stream.config["retention"] == "interest"):
        most = min(stream.messages, sum(pending for _, pending in lost))
        results.append(stream.result((0, most), None, ["ack_policy"]))
    return results


def _leaves_gaps(stream: MeasuredStream, limits: Limits) -> bool:
    """Return True if a message may stay that is older than a deleted one."""
    by_age = limits.max_age and stream.config.get("allow_msg_ttl")
    return not stream.target_storage and bool(limits.max_msgs_per_subject or by_age)


async def _with_messages_out(stream: MeasuredStream) -> list[ConsumerInterest]:
    """Return consumers with ack policy `all` that have more than one pending message."""
    return [
        consumer
        for consumer in await stream.read_consumers()
        if not consumer.acks_each and consumer.pending > 1
    ]


async def _measure_exceeded(
    stream: MeasuredStream, limits: Limits, *, count_only: bool
) -> Measurement:
    young, old = await _find_expired(stream, limits.max_age) if limits.max_age else (0, (0, 0))
    known = bool(limits.max_msgs_per_subject) and await stream.read_subject_counts()
    bounds = _limit_bounds(stream, limits, old, known)
    if bounds[0] == bounds[1] and (count_only or bounds[1] in (0, stream.messages)):
        return stream.result(bounds, None, limits.causes)
    if young is None or (limits.max_msgs_per_subject and not known):
        return stream.result(bounds, None, limits.causes)
    return await _read_from_nearer_end(stream, limits, young, bounds, old, count_only=count_only)


async def _find_expired(stream: MeasuredStream, age: int) -> tuple[int | None, tuple[int, int]]:
    """Find the first sequence that max_age keeps, and bounds on how many are before it."""
    if not stream.now:
        return None, (0, stream.messages)
    try:
        first = await stream.reader.find_first_since(
            parse_instant(stream.now) - age,
            by_time=stream.level >= TIME_LOOKUP_LEVEL,
        )
        young = first.seq if first else stream.state["last_seq"] + 1
        rest = await stream.reader.count_from(young)
    except (ReadLimitExceeded, ApiError):
        return None, (0, stream.messages)
    exempt = bool(stream.config.get("allow_msg_ttl"))
    if rest is None:
        span = young - stream.state["first_seq"]
        low, high = span - int(stream.state.get("num_deleted") or 0), min(span, stream.messages)
        return young, (0 if exempt else max(0, low), high)
    count = max(0, stream.messages - rest)
    return young, (0 if exempt else count, count)


def _limit_bounds(
    stream: MeasuredStream, limits: Limits, old: tuple[int, int], known: bool
) -> tuple[int, int]:
    """Return bounds without reading. Prefixes overlap: the longest counts; others add up."""
    least = most = 0
    if limits.max_msgs:
        least = most = max(0, stream.messages - limits.max_msgs)
    if limits.max_bytes and stream.target_storage:
        most = stream.messages
    elif limits.max_bytes and stream.bytes > limits.max_bytes:
        least, most = max(least, 1), stream.messages
    least, most = max(least, old[0]), max(most, old[1])
    if limits.max_msgs_per_subject:
        low, high = _per_subject_bounds(stream, limits.max_msgs_per_subject, known)
        least, most = max(least, low), most + high
    return least, min(most, stream.messages)


def _per_subject_bounds(stream: MeasuredStream, limit: int, known: bool) -> tuple[int, int]:
    if known:
        exact = sum(count - limit for count in stream.counts.values() if count > limit)
        return exact, exact
    subjects = int(stream.state.get("num_subjects") or 0)
    return max(0, stream.messages - subjects * limit), max(
        0, stream.messages - max(subjects, min(limit, stream.messages))
    )


async def _read_from_nearer_end(
    stream: MeasuredStream,
    limits: Limits,
    young: int,
    bounds: tuple[int, int],
    old: tuple[int, int],
    *,
    count_only: bool,
) -> Measurement:
    """Read from the end that is nearer to the border between deleted and kept messages."""
    by_size = 0
    if limits.max_bytes:
        by_size = stream.messages * max(0, stream.bytes - limits.max_bytes) // stream.bytes
    likely = max(bounds[0], old[1], by_size)
    blind = stream.reader.gaps is None and not stream.reader.batches
    if blind or min(likely, stream.messages - likely) > stream.limit:
        return stream.result(bounds, None, limits.causes)
    # The size in another storage is not known before all messages are read.
    moved = bool(limits.max_bytes and stream.target_storage)
    if likely * 2 <= stream.messages and not moved:
        measurement = await _read_from_oldest(stream, limits, young, bounds, count_only=count_only)
    else:
        measurement = await _read_from_newest(stream, limits, young, bounds)
    if limits.max_age and limits.max_msgs_per_subject and stream.level < EXPIRY_LEVEL:
        return replace(measurement, at_least=bounds[0], least_bytes=0)
    return measurement


async def _read_from_oldest(
    stream: MeasuredStream,
    limits: Limits,
    young: int,
    bounds: tuple[int, int],
    *,
    count_only: bool,
) -> Measurement:
    walk = ForwardTrim(limits, stream.messages, stream.bytes, young, stream.counts)
    try:
        async for message in stream.reader.read_forward(stream.state["first_seq"]):
            if not walk.visit(message) or (count_only and walk.is_prefix_known):
                break
    except (ReadLimitExceeded, ApiError):
        counted = (
            (walk.total, walk.total)
            if walk.is_prefix_known
            else (max(bounds[0], walk.deleted.messages), bounds[1])
        )
        return stream.result(counted, (walk.deleted.bytes, stream.bytes), limits.causes)
    if walk.total > walk.deleted.messages:
        return stream.result(
            (walk.total, walk.total), (walk.deleted.bytes, stream.bytes), limits.causes
        )
    sizes = (walk.deleted.bytes, walk.deleted.bytes)
    return stream.result(
        (walk.total, walk.total), sizes, limits.causes, walk.deleted.until, walk.deleted.newest
    )


async def _read_from_newest(
    stream: MeasuredStream, limits: Limits, young: int, bounds: tuple[int, int]
) -> Measurement:
    walk = BackwardTrim(limits, young, bool(stream.config.get("allow_msg_ttl")), stream.counts)
    try:
        async for message in stream.reader.read_backward():
            if not walk.visit(message):
                break
    except (ReadLimitExceeded, ApiError):
        return stream.result(
            (bounds[0], min(bounds[1], stream.messages - walk.kept.messages)),
            (0, stream.bytes - walk.kept.bytes),
            limits.causes,
        )
    deleted, size = stream.messages - walk.kept.messages, stream.bytes - walk.kept.bytes
    return stream.result((deleted, deleted), (size, size), limits.causes, walk.until, walk.newest)


class MeasuredStream:
    """A stream as of one INFO, with a `reader`; its consumers are listed at most once."""

    def __init__(
        self,
        reader: MessageReader,
        request: MeasurementRequest,
        info: dict[str, Any],
        level: int,
        limit: int,
        *,
        count_only: bool,
    ) -> None:
        self.api, self.reader, self.budget = reader.api, reader, reader.budget
        self.request, self.level, self.count_only = request, level, count_only
        self.config, self.state, self.limit = info["config"], info["state"], limit
        counts = request.counts
        deletions = counts if isinstance(counts, DeletionRequest) else DeletionRequest()
        self.deletes_later, self.target_storage = deletions.deletes_later, deletions.target_storage
        reader.target_storage = self.target_storage
        self.now = str(info.get("ts") or "")
        self.messages, self.bytes = int(self.state["messages"]), int(self.state["bytes"])
        self.counts: dict[str, int] = {}
        self.consumer_infos: list[dict[str, Any]] | None = None
        self.has_downstream = False

    def result(
        self,
        messages: tuple[int, int],
        size: tuple[int, int] | None,
        causes: list[str],
        until: str = "",
        newest: int = 0,
    ) -> Measurement:
        """Return a result for `messages`, at least and at most; bytes follow where unknown."""
        at_least, at_most = messages
        if size is None:
            size = (
                (0, 0)
                if not at_most
                else (self.bytes, self.bytes)
                if at_least == self.messages
                else (0, self.bytes)
            )
        return Measurement(
            at_least,
            at_most,
            *size,
            self.messages,
            tuple(causes),
            {"last_seq": self.state["last_seq"], "time": self.state.get("last_ts")},
            since=self.state["first_ts"],
            until=until,
            deletes_later=self.deletes_later,
            newest=newest,
        )

    # --- what the server reports at once ---------------------------------------------------------

    async def read_subject_counts(self) -> bool:
        """Read messages per subject, page by page; False where that is not possible.

        That is for too many, if they changed, and if a page cannot be read.
        """
        name = self.request.stream.stream
        if self.counts or int(self.state.get("num_subjects") or 0) > 10 * self.limit:
            return bool(self.counts)
        pages = self.api.pages(f"STREAM.INFO.{name}", "subjects", {"subjects_filter": ">"})
        try:
            async for page in pages:
                self.budget.spend(1)
                self.counts |= page["state"].get("subjects") or {}
        except (ReadLimitExceeded, ApiError):
            self.counts = {}
        if sum(self.counts.values()) != self.messages:
            self.counts = {}
        return bool(self.counts)

    async def read_consumers(self) -> tuple[ConsumerInterest, ...]:
        """Read all consumers but those of servers for downstream streams: they change soon."""
        infos = await self._list_consumers()
        consumers = [parse_interest(info, self.level) for info in infos]
        internal = [c for c in consumers if c.name.startswith(SERVER_CONSUMER_PREFIXES)]
        self.has_downstream = self.has_downstream or bool(internal)
        return tuple(consumer for consumer in consumers if consumer not in internal)

    async def _list_consumers(self) -> list[dict[str, Any]]:
        """List all consumers once, so that limits and interest are measured on the same ones."""
        if self.consumer_infos is None:
            self.consumer_infos = await self.api.all_consumers(self.request.stream.stream)
        return self.consumer_infos
