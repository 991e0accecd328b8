"""Measurement of what a change makes the server delete, exact or in bounds.

Uses only INFO, LIST, MSG.GET and DIRECT.GET, never a consumer, and never reads more than its limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from jsplan.address import SERVER_CONSUMER_PREFIXES, Address
from jsplan.config.model import Domain
from jsplan.errors import ApiError, ConnectError
from jsplan.facts.interest import (
    ConsumerInterest,
    InterestSnapshot,
    UnwantedMessages,
    apply_consumer_changes,
    empties_stream,
    parse_reader,
)
from jsplan.facts.limit_trimming import BackwardTrim, DeletionTally, ExceededLimits, ForwardTrim
from jsplan.facts.measurement import (
    MEASURE_LIMIT,
    FinishedConsumer,
    Measurement,
    MeasurementRequest,
)
from jsplan.facts.messages import MessageReader, ReadBudget, ReadLimitExceeded
from jsplan.facts.redelivery import Redelivery, StoredBetween, max_unread, redelivery_bounds
from jsplan.facts.reset_reads import count_reset
from jsplan.facts.undelivered import FilterChange, UndeliveredWalk
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.server_features import (
    BATCH_LEVEL,
    EXPIRY_LEVEL,
    NO_CONSUMERS_LEVEL,
    PURGE_LEVEL,
    TIME_LOOKUP_LEVEL,
)
from jsplan.subjects import is_subset, passes_filters
from jsplan.units import parse_instant

#: Concurrent measurements.
MAX_PARALLEL = 8


async def measure_deletion(
    api: DomainApi,
    request: MeasurementRequest,
    level: int,
    limit: int = MEASURE_LIMIT,
    *,
    count_only: bool = False,
) -> Measurement | None:
    """Measure one request; None when nothing would be deleted, or the stream is deleted.

    `level` is the API level of the domain. `limit` bounds the reads; where more would be needed,
    and where the server stops answering, the result is bounds. `count_only`: bytes are not needed.
    Raises ApiError when INFO of the stream fails.
    """
    info = await api.stream_info(request.stream.stream)
    if info is None or not info["state"]["messages"]:
        return None
    run = _MeasurementRun(api, request, info, level, limit, count_only=count_only)
    measurement = await run.measure()
    return measurement if measurement.at_most else None


async def measure_all(
    pool: Pool,
    domains: Mapping[str, Domain],
    requests: Iterable[MeasurementRequest],
    levels: Mapping[str, int],
    limit: int,
    unread: dict[Address, dict[Address, str]],
) -> dict[Address, list[Measurement]]:
    """Measure each request, by the changed address; omit those that delete nothing.

    A few are measured at once. An origin that does not answer is added to `unread`, with the
    reason, under the address of its downstream stream. Raises ApiError when a stream that was just
    read does not answer any more.
    """
    requests = list(requests)
    await pool.open(domains[request.stream.domain].connection for request in requests)
    slots, measurements = asyncio.Semaphore(MAX_PARALLEL), dict[Address, list[Measurement]]()

    async def measure(request: MeasurementRequest) -> None:
        domain = request.stream.domain
        try:
            async with slots:
                measurement = await measure_deletion(
                    pool.api(domains[domain]), request, levels.get(domain, 0), limit
                )
        except (ApiError, ConnectError) as error:
            if request.drains is None:
                raise
            unread.setdefault(request.address, {})[request.stream] = str(error)
            return
        if measurement is not None:
            measurements.setdefault(request.address, []).append(measurement)

    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(measure(request))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {
        address: sorted(results, key=lambda a: a.causes)
        for address, results in measurements.items()
    }


class _MeasurementRun:
    """One measurement of one stream, as of one INFO."""

    def __init__(
        self,
        api: DomainApi,
        request: MeasurementRequest,
        info: dict[str, Any],
        level: int,
        limit: int,
        *,
        count_only: bool,
    ) -> None:
        self.api, self.request, self.level, self.count_only = api, request, level, count_only
        self.config, self.state = info["config"], info["state"]
        self.now = str(info.get("ts") or "")
        self.limit, self.budget = limit, ReadBudget(limit)
        self.messages, self.bytes = int(self.state["messages"]), int(self.state["bytes"])
        batches = bool(self.config.get("allow_direct")) and level >= BATCH_LEVEL
        self.reader = MessageReader(
            api,
            request.stream.stream,
            self.config["storage"],
            self.state["first_seq"],
            self.state["last_seq"],
            batches,
            self.budget,
            target_storage=request.target_storage,
        )
        self.counts: dict[str, int] = {}
        self.consumer_infos: list[dict[str, Any]] | None = None
        self.has_downstream = request.has_downstream

    async def measure(self) -> Measurement:
        """Measure everything in the request, as one result."""
        results: list[Measurement] = []
        request = self.request
        await self._read_gaps()
        if request.redelivery is not None:
            return await self._measure_redelivered(request.redelivery)
        if request.reset is not None:
            return self._build_measurement(*await count_reset(self.reader, request.reset))
        if request.filter_change is not None:
            return await self._measure_undelivered(request.filter_change)
        if request.drains is not None:
            results.append(await self._measure_drained(request.drains))
        if request.limits.causes:
            results += await self._with_acknowledged(request.limits)
        if request.finished:
            results.append(await self._measure_finished(request.finished))
        if request.interest:
            unwanted = await self._measure_unwanted(request)
            results.append(
                replace(unwanted, at_least=0, least_bytes=0)
                if request.changes_subjects or self.has_downstream
                else unwanted
            )
        return self._combine(results)

    def _combine(self, results: list[Measurement]) -> Measurement:
        """Combine results that may overlap: at least the larger, at most the sum."""
        results = [result for result in results if result.at_most] or results
        first, *rest = results
        for other in rest:
            first = replace(
                first,
                at_least=max(first.at_least, other.at_least),
                at_most=min(self.messages, first.at_most + other.at_most),
                least_bytes=max(first.least_bytes, other.least_bytes),
                most_bytes=min(self.bytes, first.most_bytes + other.most_bytes),
                causes=first.causes + other.causes,
                until="",
                acknowledged=first.acknowledged + other.acknowledged,
            )
        return first

    def _build_measurement(
        self,
        messages: tuple[int, int],
        size: tuple[int, int] | None,
        causes: list[str],
        until: str = "",
        newest: int = 0,
    ) -> Measurement:
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
            deletes_later=self.request.deletes_later,
            newest=newest,
        )

    # --- what the server reports at once ---------------------------------------------------------

    async def _read_gaps(self) -> None:
        """Read the deleted sequences, only where the list is short."""
        deleted = int(self.state.get("num_deleted") or 0)
        if deleted > self.limit:
            self.reader.gaps = None
            # Replicas may lag behind, which only the gaps would show.
            self.reader.batches = self.reader.batches and self.config["num_replicas"] == 1
        elif deleted:
            answer = await self.api.request(
                f"STREAM.INFO.{self.request.stream.stream}", {"deleted_details": True}
            )
            self.reader.gaps = sorted(answer["state"].get("deleted") or ())

    async def _read_subject_counts(self) -> bool:
        """Read messages per subject, page by page; False for too many, or if they changed."""
        name = self.request.stream.stream
        if self.counts or int(self.state.get("num_subjects") or 0) > 10 * self.limit:
            return bool(self.counts)
        async for page in self.api.pages(
            f"STREAM.INFO.{name}", "subjects", {"subjects_filter": ">"}
        ):
            self.budget.spend(1)
            self.counts |= page["state"].get("subjects") or {}
        if sum(self.counts.values()) != self.messages:
            self.counts = {}
        return bool(self.counts)

    # --- limits ----------------------------------------------------------------------------------

    async def _with_acknowledged(self, limits: ExceededLimits) -> list[Measurement]:
        """Measure the limits, and what an interest stream deletes as acknowledged with it."""
        consumers = await self._with_messages_out() if self._leaves_gaps(limits) else []
        # The newest deleted message decides which consumers lose some, and reading finds it.
        count_only = self.count_only and not consumers
        trimmed = await self._measure_limits(limits, count_only=count_only)
        lost = tuple(
            (c.name, c.pending - 1) for c in consumers if trimmed.may_delete_above(c.floor)
        )
        results = [replace(trimmed, acknowledged=lost)]
        if lost and self.config["retention"] == "interest":
            most = min(self.messages, sum(pending for _, pending in lost))
            results.append(self._build_measurement((0, most), None, ["ack_policy"]))
        return results

    def _leaves_gaps(self, limits: ExceededLimits) -> bool:
        """Return True if a message may stay that is older than a deleted one."""
        by_age = limits.max_age and self.config.get("allow_msg_ttl")
        return self.request.target_storage is None and bool(limits.max_msgs_per_subject or by_age)

    async def _with_messages_out(self) -> list[ConsumerInterest]:
        """Return consumers with ack policy `all` that have more than one pending message."""
        return [
            consumer
            for consumer in await self._read_consumers()
            if not consumer.acks_each and consumer.pending > 1
        ]

    async def _measure_limits(self, limits: ExceededLimits, *, count_only: bool) -> Measurement:
        young, old = await self._find_expired(limits.max_age) if limits.max_age else (0, (0, 0))
        known = await self._read_counts_for_limits(limits)
        bounds = self._limit_bounds(limits, old, known)
        if bounds[0] == bounds[1] and (count_only or bounds[1] in (0, self.messages)):
            return self._build_measurement(bounds, None, limits.causes)
        if young is None or (limits.max_msgs_per_subject and not known):
            return self._build_measurement(bounds, None, limits.causes)
        return await self._read_from_nearer_end(limits, young, bounds, old, count_only=count_only)

    async def _read_counts_for_limits(self, limits: ExceededLimits) -> bool:
        try:
            return await self._read_subject_counts() if limits.max_msgs_per_subject else False
        except (ReadLimitExceeded, ApiError):
            self.counts = {}
            return False

    async def _find_expired(self, age: int) -> tuple[int | None, tuple[int, int]]:
        """Find the first sequence that max_age keeps, and bounds on how many are before it."""
        if not self.now:
            return None, (0, self.messages)
        try:
            first = await self.reader.find_first_since(
                parse_instant(self.now) - age,
                by_time=self.level >= TIME_LOOKUP_LEVEL,
            )
            young = first.seq if first else self.state["last_seq"] + 1
            rest = await self.reader.count_from(young)
        except (ReadLimitExceeded, ApiError):
            return None, (0, self.messages)
        exempt = bool(self.config.get("allow_msg_ttl"))
        if rest is None:
            span = young - self.state["first_seq"]
            low, high = span - int(self.state.get("num_deleted") or 0), min(span, self.messages)
            return young, (0 if exempt else max(0, low), high)
        count = max(0, self.messages - rest)
        return young, (0 if exempt else count, count)

    def _limit_bounds(
        self, limits: ExceededLimits, old: tuple[int, int], known: bool
    ) -> tuple[int, int]:
        """Return bounds without reading. Prefixes overlap: the longest counts; others add up."""
        least = most = 0
        if limits.max_msgs:
            least = most = max(0, self.messages - limits.max_msgs)
        if limits.max_bytes and self.request.target_storage is not None:
            most = self.messages
        elif limits.max_bytes and self.bytes > limits.max_bytes:
            least, most = max(least, 1), self.messages
        least, most = max(least, old[0]), max(most, old[1])
        if limits.max_msgs_per_subject:
            low, high = self._per_subject_bounds(limits.max_msgs_per_subject, known)
            least, most = max(least, low), most + high
        return least, min(most, self.messages)

    def _per_subject_bounds(self, limit: int, known: bool) -> tuple[int, int]:
        if known:
            exact = sum(count - limit for count in self.counts.values() if count > limit)
            return exact, exact
        subjects = int(self.state.get("num_subjects") or 0)
        return max(0, self.messages - subjects * limit), max(
            0, self.messages - max(subjects, min(limit, self.messages))
        )

    async def _read_from_nearer_end(
        self,
        limits: ExceededLimits,
        young: int,
        bounds: tuple[int, int],
        old: tuple[int, int],
        *,
        count_only: bool,
    ) -> Measurement:
        """Read from the end that is nearer to the border between deleted and kept messages."""
        by_size = (
            self.messages * max(0, self.bytes - limits.max_bytes) // self.bytes
            if limits.max_bytes
            else 0
        )
        likely = max(bounds[0], old[1], by_size)
        blind = self.reader.gaps is None and not self.reader.batches
        if blind or min(likely, self.messages - likely) > self.limit:
            return self._build_measurement(bounds, None, limits.causes)
        # The size in another storage is not known before all messages are read.
        moved = bool(limits.max_bytes and self.request.target_storage)
        if likely * 2 <= self.messages and not moved:
            measurement = await self._read_from_oldest(limits, young, bounds, count_only=count_only)
        else:
            measurement = await self._read_from_newest(limits, young, bounds)
        if limits.max_age and limits.max_msgs_per_subject and self.level < EXPIRY_LEVEL:
            return replace(measurement, at_least=bounds[0], least_bytes=0)
        return measurement

    async def _read_from_oldest(
        self, limits: ExceededLimits, young: int, bounds: tuple[int, int], *, count_only: bool
    ) -> Measurement:
        walk = ForwardTrim(limits, self.messages, self.bytes, young, self.counts)
        try:
            async for message in self.reader.read_forward(self.state["first_seq"]):
                if not walk.visit(message) or (count_only and walk.is_prefix_known):
                    break
        except (ReadLimitExceeded, ApiError):
            counted = (
                (walk.total, walk.total)
                if walk.is_prefix_known
                else (max(bounds[0], walk.deleted.messages), bounds[1])
            )
            return self._build_measurement(counted, (walk.deleted.bytes, self.bytes), limits.causes)
        if walk.total > walk.deleted.messages:
            return self._build_measurement(
                (walk.total, walk.total), (walk.deleted.bytes, self.bytes), limits.causes
            )
        sizes = (walk.deleted.bytes, walk.deleted.bytes)
        return self._build_measurement(
            (walk.total, walk.total), sizes, limits.causes, walk.deleted.until, walk.deleted.newest
        )

    async def _read_from_newest(
        self, limits: ExceededLimits, young: int, bounds: tuple[int, int]
    ) -> Measurement:
        walk = BackwardTrim(limits, young, bool(self.config.get("allow_msg_ttl")), self.counts)
        try:
            async for message in self.reader.read_backward():
                if not walk.visit(message):
                    break
        except (ReadLimitExceeded, ApiError):
            return self._build_measurement(
                (bounds[0], min(bounds[1], self.messages - walk.kept.messages)),
                (0, self.bytes - walk.kept.bytes),
                limits.causes,
            )
        deleted, size = self.messages - walk.kept.messages, self.bytes - walk.kept.bytes
        return self._build_measurement(
            (deleted, deleted), (size, size), limits.causes, walk.until, walk.newest
        )

    # --- interest --------------------------------------------------------------------------------

    async def _measure_unwanted(self, request: MeasurementRequest) -> Measurement:
        becomes = request.interest == "becomes"
        causes = ["retention"] if becomes else ["interest"]
        everything, nothing = (self.messages, self.messages), (0, 0)
        consumers = await self._read_consumers()
        stay = tuple(
            apply_consumer_changes(
                consumers,
                request.consumers,
                self.state["last_seq"],
                self.level,
                request.since,
                recreated=request.recreates_consumers,
            )
        )
        if (
            not becomes
            and self.level >= PURGE_LEVEL
            and empties_stream(consumers, request.consumers, self.state["last_seq"])
        ):
            return self._build_measurement(everything, None, causes)
        if not stay and becomes and self.level < NO_CONSUMERS_LEVEL:
            return self._build_measurement(nothing, None, causes)
        if not stay and request.since is None:
            return self._build_measurement(everything, None, causes)
        # One whose start was behind the end of the stream is said to wait for what came before it.
        if not becomes and any(
            consumer.unfinished == self.messages
            and consumer.filters_before is None
            and consumer.floor < self.state["first_seq"]
            for consumer in stay
        ):
            return self._build_measurement(nothing, None, causes)
        changing = {change.name for change in request.consumers}
        floors = (consumer.floor for consumer in consumers if consumer.name in changing)
        highest = max(floors, default=0)
        unsure = (
            0 if becomes or request.placeholder or highest < self.state["first_seq"] else highest
        )
        return await self._read_unwanted(
            UnwantedMessages(
                stay,
                self.level,
                becomes,
                self.state["last_seq"],
                unsure,
                has_downstream=self.has_downstream,
            ),
            causes,
            request.since,
        )

    async def _read_consumers(self) -> tuple[ConsumerInterest, ...]:
        """Read all consumers but those of servers for downstream streams: they change soon."""
        infos = await self._list_consumers()
        consumers = [parse_reader(info, self.level) for info in infos]
        internal = [c for c in consumers if c.name.startswith(SERVER_CONSUMER_PREFIXES)]
        self.has_downstream = self.has_downstream or bool(internal)
        return tuple(consumer for consumer in consumers if consumer not in internal)

    async def _list_consumers(self) -> list[dict[str, Any]]:
        """List all consumers once, so that limits and interest are measured on the same ones."""
        if self.consumer_infos is None:
            self.consumer_infos = await self.api.all_consumers(self.request.stream.stream)
        return self.consumer_infos

    async def _read_unwanted(
        self, walk: UnwantedMessages, causes: list[str], since: InterestSnapshot | None = None
    ) -> Measurement:
        """Read to the last position of a consumer; to the end within the limit, for exact bytes."""
        whole = since is not None or (
            not walk.becomes_interest and self.messages <= self.budget.left
        )
        last = since.last_seq if since is not None else self.reader.last if whole else walk.horizon
        reader = replace(self.reader, last=min(self.reader.last, last))
        try:
            known = whole or await self._read_subject_counts()
            async for message in reader.read_forward(self.state["first_seq"]):
                walk.visit(message)
        except (ReadLimitExceeded, ApiError):
            return self._build_measurement((walk.at_least, self.messages), None, causes)
        counted = known or walk.becomes_interest
        beyond = walk.count_beyond(self.counts) if counted and not whole else 0
        hidden = walk.decide_passed(self.counts if known else None, whole=whole)
        most = min(self.messages, walk.at_most + beyond + hidden) if counted else self.messages
        size = (walk.sure.bytes, walk.sure.bytes + walk.doubtful.bytes + walk.passed.bytes)
        if beyond or hidden or not counted:
            size = (size[0], self.bytes) if most else (0, 0)
        if walk.at_least + beyond == self.messages:
            size = (self.bytes, self.bytes)
        return self._build_measurement((walk.at_least + beyond, most), size, causes)

    async def _measure_finished(self, consumers: tuple[FinishedConsumer, ...]) -> Measurement:
        """Measure the messages before the position of a consumer that its filters match."""
        sure, doubtful = DeletionTally(), DeletionTally()
        end = max((c.position or c.delivered + 1) - 1 for c in consumers)
        try:
            async for message in replace(self.reader, last=min(self.reader.last, end)).read_forward(
                self.state["first_seq"]
            ):
                matching = [c for c in consumers if passes_filters(message.subject, c.filters)]
                if any(c.position is not None and message.seq < c.position for c in matching):
                    sure.add(message)
                elif any(c.position is None and message.seq <= c.delivered for c in matching):
                    doubtful.add(message)
        except (ReadLimitExceeded, ApiError):
            most = max(0, min(self.messages, end - int(self.state["first_seq"]) + 1))
            return self._build_measurement(
                (sure.messages, most), (sure.bytes, self.bytes), ["finished"]
            )
        most, size = sure.messages + doubtful.messages, sure.bytes + doubtful.bytes
        return self._build_measurement((sure.messages, most), (sure.bytes, size), ["finished"])

    async def _measure_redelivered(self, span: Redelivery) -> Measurement:
        """Measure the stored messages between position and last delivery that are not pending."""
        first = max(span.floor + 1, int(self.state["first_seq"]))
        last, between = min(span.delivered, self.reader.last), StoredBetween()
        anchored = int(self.state["first_seq"]) <= span.floor
        try:
            async for message in replace(self.reader, last=last).read_forward(first):
                between.count(message.subject, span)
        except (ReadLimitExceeded, ApiError):
            stored, gaps = max(0, last - first + 1), self.reader.gaps
            stored -= sum(first <= gap <= last for gap in gaps or ())
            missing = span.delivered - span.floor - (0 if gaps is None else stored)
            return self._build_measurement(
                (0, max_unread(span, stored, missing=missing, anchored=anchored)),
                (0, 0),
                ["position", span.consumer],
            )
        missing = span.delivered - span.floor - between.total
        return self._build_measurement(
            redelivery_bounds(span, between, missing=missing, anchored=anchored),
            (0, 0),
            ["position", span.consumer],
        )

    async def _measure_undelivered(self, change: FilterChange) -> Measurement:
        """Measure what a changed filter leaves undelivered. Subjects show where that is nothing."""
        try:
            known = await self._read_subject_counts()
        except (ReadLimitExceeded, ApiError):
            known = False
        most = (
            sum(n for subject, n in self.counts.items() if change.may_count(subject))
            if known
            else self.messages
        )
        walk, causes = UndeliveredWalk(change), ["filter", change.aspect]
        if not most:
            return self._build_measurement((0, 0), None, causes)
        try:
            async for message in self.reader.read_forward(
                max(change.start, int(self.state["first_seq"]))
            ):
                walk.visit(message)
        except (ReadLimitExceeded, ApiError):
            return self._build_measurement((walk.sure.messages, most), (0, 0), causes)
        return self._build_measurement(
            (walk.sure.messages, walk.sure.messages + walk.doubtful.messages), (0, 0), causes
        )

    async def _measure_drained(self, filters: tuple[str, ...]) -> Measurement:
        """Measure what a downstream stream consumes of a workqueue or interest stream."""
        if self.config["retention"] == "limits":
            return self._build_measurement((0, 0), None, ["origin"])
        if not filters:
            return self._build_measurement((0, self.messages), None, ["origin"])
        try:
            known = await self._read_subject_counts()
        except (ReadLimitExceeded, ApiError):
            known = False
        matching = (
            sum(n for s, n in self.counts.items() if any(is_subset(s, f) for f in filters))
            if known
            else self.messages
        )
        return self._build_measurement((0, matching), None, ["origin"])
