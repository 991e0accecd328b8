"""Measures what a change would make the server delete: messages and bytes, exactly or between bounds.

Asks with INFO, LIST, MSG.GET and DIRECT.GET only, never with a consumer, and never reads more than it may. Which changes
are worth asking about is left to `planning.questions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from jsplan.address import SERVERS_CONSUMERS, Address
from jsplan.config.model import Domain
from jsplan.errors import ApiError, ConnectError
from jsplan.facts.interest import (
    NOBODY_COUNTS,
    PURGES,
    STARTS_COUNT,
    Snapshot,
    Unwanted,
    Wants,
    after_changes,
    empties,
    wants_of,
    with_start,
)
from jsplan.facts.messages import Budget, Reader, TooManyReads
from jsplan.facts.question import MEASURE_LIMIT, Finished, Measured, Question
from jsplan.facts.redelivered import Between, Redelivery, bounds, most_unread
from jsplan.facts.stranded import Strands, Walk
from jsplan.facts.trims import FromTheNewest, FromTheOldest, Limits, Tally
from jsplan.jetstream import DomainApi, Pool
from jsplan.subjects import passes, within
from jsplan.units import SECOND

#: 2.10 gives up expiring for a while where max_msgs_per_subject has just torn gaps (level 0).
EXPIRES_AT_ONCE = 1
#: Measurements under way at once.
AT_ONCE = 8
#: MSG.GET and batches take `start_time` since 2.11, which is level 1; so do batches.
HAS_BATCHES = 1


async def measure(
    api: DomainApi, question: Question, level: int, limit: int = MEASURE_LIMIT, *, count_only: bool = False
) -> Measured | None:
    """The answer, or None when nothing would be deleted (or the stream is gone).

    `level` is the API level of the domain. `limit` bounds the reads; where more would be needed, and where the
    server answers no more, the answer is bounds. `count_only`: bytes are not asked for. Raises ApiError when not
    even the stream's INFO can be had.
    """
    info = await api.stream_info(question.stream.stream)
    if info is None or not info["state"]["messages"]:
        return None
    survey = _Survey(api, question, info, level, limit, count_only=count_only)
    found = await survey.answer()
    return found if found.at_most else None


async def measure_all(
    pool: Pool, domains: Mapping[str, Domain], asked: Iterable[Question], levels: Mapping[str, int], limit: int,
    unread: dict[Address, dict[Address, str]],
) -> dict[Address, list[Measured]]:  # fmt: skip
    """The answers by the address whose change each question is about; those that delete nothing are left out.

    A few are measured at once. An origin that does not answer is put into `unread`, with the reason, under the address of
    its copy. Raises ApiError when a stream that was just read does not answer any more.
    """
    asked = list(asked)
    await pool.open(domains[question.stream.domain].connection for question in asked)
    slots, found = asyncio.Semaphore(AT_ONCE), dict[Address, list[Measured]]()

    async def one(question: Question) -> None:
        domain = question.stream.domain
        try:
            async with slots:
                answer = await measure(pool.api(domains[domain]), question, levels.get(domain, 0), limit)
        except (ApiError, ConnectError) as error:
            if question.drains is None:
                raise
            unread.setdefault(question.address, {})[question.stream] = str(error)
            return
        if answer is not None:
            found.setdefault(question.address, []).append(answer)

    try:
        async with asyncio.TaskGroup() as group:
            for question in asked:
                group.create_task(one(question))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {address: sorted(answers, key=lambda a: a.causes) for address, answers in found.items()}


class _Survey:
    """One measurement of one stream, as of one INFO."""

    def __init__(self, api: DomainApi, question: Question, info: dict[str, Any], level: int, limit: int, *, count_only: bool) -> None:
        self.api, self.question, self.level, self.count_only = api, question, level, count_only
        self.config, self.state = info["config"], info["state"]
        self.now = str(info.get("ts") or "")
        self.limit, self.budget = limit, Budget(limit)
        self.messages, self.bytes = int(self.state["messages"]), int(self.state["bytes"])
        batches = bool(self.config.get("allow_direct")) and level >= HAS_BATCHES
        self.reader = Reader(
            api, question.stream.stream, self.config["storage"], self.state["first_seq"], self.state["last_seq"], batches, self.budget,
            resized=question.resized,
        )  # fmt: skip
        self.counts: dict[str, int] = {}
        self.copied = question.copied

    async def answer(self) -> Measured:
        """Everything that the question names, as one number."""
        found: list[Measured] = []
        question = self.question
        await self._learn_gaps()
        if question.again is not None:
            return await self._given_again(question.again)
        if question.strands is not None:
            return await self._stranded(question.strands)
        if question.drains is not None:
            found.append(await self._drained(question.drains))
        if question.limits.causes:
            found += await self._with_acknowledged(question.limits)
        if question.finished:
            found.append(await self._finished(question.finished))
        if question.interest:
            unwanted = await self._unwanted(question)
            found.append(replace(unwanted, at_least=0, least_bytes=0) if question.resubjected or self.copied else unwanted)
        return self._combined(found)

    def _combined(self, found: list[Measured]) -> Measured:
        """What both take counts once: at least the larger, at most the sum."""
        found = [one for one in found if one.at_most] or found
        first, *rest = found
        for other in rest:
            first = replace(
                first, at_least=max(first.at_least, other.at_least), at_most=min(self.messages, first.at_most + other.at_most),
                least_bytes=max(first.least_bytes, other.least_bytes), most_bytes=min(self.bytes, first.most_bytes + other.most_bytes),
                causes=first.causes + other.causes, until="", acknowledged=first.acknowledged + other.acknowledged,
            )  # fmt: skip
        return first

    def _measured(
        self, messages: tuple[int, int], size: tuple[int, int] | None, causes: list[str], until: str = "", newest: int = 0
    ) -> Measured:  # fmt: skip
        at_least, at_most = messages
        if size is None:
            size = (0, 0) if not at_most else (self.bytes, self.bytes) if at_least == self.messages else (0, self.bytes)
        return Measured(
            at_least, at_most, *size, self.messages, tuple(causes), {"last_seq": self.state["last_seq"], "time": self.state.get("last_ts")},
            since=self.state["first_ts"], until=until, later=self.question.later, newest=newest,
        )  # fmt: skip

    # --- what the server tells at once ---------------------------------------------------------------------------

    async def _learn_gaps(self) -> None:
        """Which sequences are deleted: asked for only where the list is short."""
        deleted = int(self.state.get("num_deleted") or 0)
        if deleted > self.limit:
            self.reader.gaps = None
            # Replicas may lag behind, and without the gaps nobody would notice.
            self.reader.batches = self.reader.batches and self.config["num_replicas"] == 1
        elif deleted:
            answer = await self.api.request(f"STREAM.INFO.{self.question.stream.stream}", {"deleted_details": True})
            self.reader.gaps = sorted(answer["state"].get("deleted") or ())

    async def _learn_counts(self) -> bool:
        """Messages per subject, page by page; False when there are too many subjects, or they moved under us."""
        name = self.question.stream.stream
        if self.counts or int(self.state.get("num_subjects") or 0) > 10 * self.limit:
            return bool(self.counts)
        async for page in self.api.pages(f"STREAM.INFO.{name}", "subjects", {"subjects_filter": ">"}):
            self.budget.spend(1)
            self.counts |= page["state"].get("subjects") or {}
        if sum(self.counts.values()) != self.messages:
            self.counts = {}
        return bool(self.counts)

    # --- limits --------------------------------------------------------------------------------------------------

    async def _with_acknowledged(self, limits: Limits) -> list[Measured]:
        """What the limits delete, and what counts as acknowledged with it: an interest stream deletes that too."""
        consumers = await self._with_messages_out() if self._leaves_gaps(limits) else []
        self.count_only = self.count_only and not consumers
        trimmed = await self._trimmed(limits)
        lost = tuple((c.name, c.pending - 1) for c in consumers if trimmed.at_most and (trimmed.newest or c.floor + 1) > c.floor)
        if not lost:
            return [trimmed]
        trimmed = replace(trimmed, acknowledged=lost)
        if self.config["retention"] != "interest":
            return [trimmed]
        return [trimmed, self._measured((0, min(self.messages, sum(most for _, most in lost))), None, ["ack_policy"])]

    def _leaves_gaps(self, limits: Limits) -> bool:
        """Whether a message may stay that is older than one that goes."""
        by_age = limits.max_age and self.config.get("allow_msg_ttl")
        return self.question.resized is None and bool(limits.max_msgs_per_subject or by_age)

    async def _with_messages_out(self) -> list[Wants]:
        """Consumers that acknowledge all messages up to one, and have more than one out."""
        return [one for one in await self._consumers(starts=False) if one.acks_all and one.pending > 1]

    async def _trimmed(self, limits: Limits) -> Measured:
        young, old = await self._too_old(limits.max_age) if limits.max_age else (0, (0, 0))
        known = await self._learn_counts_for(limits)
        bounds = self._bounds(limits, old, known)
        if bounds[0] == bounds[1] and (self.count_only or bounds[1] in (0, self.messages)):
            return self._measured(bounds, None, limits.causes)
        if young is None or (limits.max_msgs_per_subject and not known):
            return self._measured(bounds, None, limits.causes)
        return await self._walk(limits, young, bounds, old)

    async def _learn_counts_for(self, limits: Limits) -> bool:
        try:
            return await self._learn_counts() if limits.max_msgs_per_subject else False
        except (TooManyReads, ApiError):
            self.counts = {}
            return False

    async def _too_old(self, age: int) -> tuple[int | None, tuple[int, int]]:
        """The first sequence that max_age leaves alone, and bounds on how many are before it."""
        try:
            found = await self.reader.first_since(_before(self.now, age), by_time=self.level >= HAS_BATCHES)
            young = found.seq if found else self.state["last_seq"] + 1
            rest = await self.reader.count_from(young)
        except (TooManyReads, ApiError):
            return None, (0, self.messages)
        exempt = bool(self.config.get("allow_msg_ttl"))
        if rest is None:
            span = young - self.state["first_seq"]
            low, high = span - int(self.state.get("num_deleted") or 0), min(span, self.messages)
            return young, (0 if exempt else max(0, low), high)
        count = max(0, self.messages - rest)
        return young, (0 if exempt else count, count)

    def _bounds(self, limits: Limits, old: tuple[int, int], known: bool) -> tuple[int, int]:
        """What is certain without reading: prefixes overlap, so the longest counts; the rest adds up at most."""
        least = most = 0
        if limits.max_msgs:
            least = most = max(0, self.messages - limits.max_msgs)
        if limits.max_bytes and self.question.resized is not None:
            most = self.messages
        elif limits.max_bytes and self.bytes > limits.max_bytes:
            least, most = max(least, 1), self.messages
        least, most = max(least, old[0]), max(most, old[1])
        if limits.max_msgs_per_subject:
            low, high = self._crowded(limits.max_msgs_per_subject, known)
            least, most = max(least, low), most + high
        return least, min(most, self.messages)

    def _crowded(self, keep: int, known: bool) -> tuple[int, int]:
        if known:
            exact = sum(count - keep for count in self.counts.values() if count > keep)
            return exact, exact
        subjects = int(self.state.get("num_subjects") or 0)
        return max(0, self.messages - subjects * keep), max(0, self.messages - max(subjects, min(keep, self.messages)))

    async def _walk(self, limits: Limits, young: int, bounds: tuple[int, int], old: tuple[int, int]) -> Measured:
        """Read from the end that is nearer to the border between what goes and what stays."""
        by_size = self.messages * max(0, self.bytes - limits.max_bytes) // self.bytes if limits.max_bytes else 0
        likely = max(bounds[0], old[1], by_size)
        blind = self.reader.gaps is None and not self.reader.batches
        if blind or min(likely, self.messages - likely) > self.limit:
            return self._measured(bounds, None, limits.causes)
        moved = bool(limits.max_bytes and self.question.resized)  # how much all of it will be is not known before all is read
        nearer = self._from_the_oldest if likely * 2 <= self.messages and not moved else self._from_the_newest
        found = await nearer(limits, young, bounds)
        if limits.max_age and limits.max_msgs_per_subject and self.level < EXPIRES_AT_ONCE:
            return replace(found, at_least=bounds[0], least_bytes=0)
        return found

    async def _from_the_oldest(self, limits: Limits, young: int, bounds: tuple[int, int]) -> Measured:
        walk = FromTheOldest(limits, self.messages, self.bytes, young, self.counts)
        try:
            async for message in self.reader.forward(self.state["first_seq"]):
                if not walk.take(message) or (self.count_only and walk.prefix_is_known):
                    break
        except (TooManyReads, ApiError):
            counted = (walk.total, walk.total) if walk.prefix_is_known else (max(bounds[0], walk.gone.messages), bounds[1])
            return self._measured(counted, (walk.gone.bytes, self.bytes), limits.causes)
        if walk.total > walk.gone.messages:
            return self._measured((walk.total, walk.total), (walk.gone.bytes, self.bytes), limits.causes)
        sizes = (walk.gone.bytes, walk.gone.bytes)
        return self._measured((walk.total, walk.total), sizes, limits.causes, walk.gone.until, walk.gone.newest)

    async def _from_the_newest(self, limits: Limits, young: int, bounds: tuple[int, int]) -> Measured:
        walk = FromTheNewest(limits, young, bool(self.config.get("allow_msg_ttl")), self.counts)
        try:
            async for message in self.reader.backward():
                if not walk.take(message):
                    break
        except (TooManyReads, ApiError):
            return self._measured((bounds[0], min(bounds[1], self.messages - walk.kept.messages)),
                                  (0, self.bytes - walk.kept.bytes), limits.causes)  # fmt: skip
        gone, size = self.messages - walk.kept.messages, self.bytes - walk.kept.bytes
        return self._measured((gone, gone), (size, size), limits.causes, walk.until, walk.newest)

    # --- interest ------------------------------------------------------------------------------------------------

    async def _unwanted(self, question: Question) -> Measured:
        becomes = question.interest == "becomes"
        causes = ["retention"] if becomes else ["interest"]
        everything, nothing = (self.messages, self.messages), (0, 0)
        consumers = await self._consumers(starts=not becomes and self.level < STARTS_COUNT)
        stay = tuple(
            after_changes(consumers, question.consumers, self.state["last_seq"], self.level, question.since, renewed=question.renewed)
        )
        if not becomes and self.level >= PURGES and empties(consumers, question.consumers, self.state["last_seq"]):
            return self._measured(everything, None, causes)
        if not stay and becomes and self.level < NOBODY_COUNTS:
            return self._measured(nothing, None, causes)
        if not stay and question.since is None:
            return self._measured(everything, None, causes)
        if not becomes and any(one.unfinished == self.messages and one.filters_before is None for one in stay):
            return self._measured(nothing, None, causes)
        changing = {change.name for change in question.consumers}
        leaver = max((one.floor for one in consumers if one.name in changing), default=0)
        unsure = 0 if becomes or question.placeholder or leaver < self.state["first_seq"] else leaver
        return await self._walk_wants(
            Unwanted(stay, self.level, becomes, self.state["last_seq"], unsure, copied=self.copied), causes, question.since
        )

    async def _consumers(self, *, starts: bool) -> tuple[Wants, ...]:
        """All consumers but those by which the server itself reads for a copy: they acknowledge soon, nobody knows when."""
        infos = await self.api.consumers(self.question.stream.stream)
        found = [wants_of(info) for info in infos]
        if starts:
            found = [with_start(one, info["config"], int(self.state["last_seq"])) for one, info in zip(found, infos, strict=True)]
        own = [one for one in found if one.name.startswith(SERVERS_CONSUMERS)]
        self.copied = self.copied or bool(own)
        return tuple(one for one in found if one not in own)

    async def _walk_wants(self, walk: Unwanted, causes: list[str], since: Snapshot | None = None) -> Measured:
        """Read as far as any consumer has been; to the end where that is allowed, since bytes are known then too."""
        whole = since is not None or (not walk.becoming and self.messages <= self.budget.left)
        last = since.last_seq if since is not None else self.reader.last if whole else walk.horizon
        reader = replace(self.reader, last=min(self.reader.last, last))
        try:
            counted = walk.becoming or whole or await self._learn_counts()
            async for message in reader.forward(self.state["first_seq"]):
                walk.take(message)
        except (TooManyReads, ApiError):
            return self._measured((walk.at_least, self.messages), None, causes)
        beyond = walk.beyond(self.counts) if counted and not whole else 0
        most = walk.at_most + beyond if counted else self.messages
        size = (walk.sure.bytes, walk.sure.bytes + walk.doubtful.bytes + walk.passed.bytes)
        if beyond or not counted:
            size = (size[0], self.bytes) if most else (0, 0)
        if walk.at_least + beyond == self.messages:
            size = (self.bytes, self.bytes)
        return self._measured((walk.at_least + beyond, most), size, causes)

    async def _finished(self, consumers: tuple[Finished, ...]) -> Measured:
        """What lies before the position of a consumer that its filters match."""
        sure, doubtful = Tally(), Tally()
        end = max((one.position or one.given + 1) - 1 for one in consumers)
        try:
            async for message in replace(self.reader, last=min(self.reader.last, end)).forward(self.state["first_seq"]):
                theirs = [one for one in consumers if passes(message.subject, one.filters)]
                if any(one.position is not None and message.seq < one.position for one in theirs):
                    sure.add(message)
                elif any(one.position is None and message.seq <= one.given for one in theirs):
                    doubtful.add(message)
        except (TooManyReads, ApiError):
            most = max(0, min(self.messages, end - int(self.state["first_seq"]) + 1))
            return self._measured((sure.messages, most), (sure.bytes, self.bytes), ["finished"])
        most, size = sure.messages + doubtful.messages, sure.bytes + doubtful.bytes
        return self._measured((sure.messages, most), (sure.bytes, size), ["finished"])

    async def _given_again(self, span: Redelivery) -> Measured:
        """What lies between the position and the last delivery, is still there, and is not out."""
        first, last, there = max(span.floor + 1, int(self.state["first_seq"])), min(span.given, self.reader.last), Between()
        anchored = int(self.state["first_seq"]) <= span.floor
        try:
            async for message in replace(self.reader, last=last).forward(first):
                there.take(message.subject, span)
        except (TooManyReads, ApiError):
            stored, gaps = max(0, last - first + 1), self.reader.gaps
            stored -= sum(first <= gap <= last for gap in gaps or ())
            missing = span.given - span.floor - (0 if gaps is None else stored)
            return self._measured((0, most_unread(span, stored, missing=missing, anchored=anchored)), (0, 0), ["position", span.consumer])
        missing = span.given - span.floor - there.total
        return self._measured(bounds(span, there, missing=missing, anchored=anchored), (0, 0), ["position", span.consumer])

    async def _stranded(self, asked: Strands) -> Measured:
        """What a changed filter leaves undelivered. Subjects say where there is nothing to count."""
        try:
            known = await self._learn_counts()
        except (TooManyReads, ApiError):
            known = False
        most = sum(n for subject, n in self.counts.items() if asked.concerns(subject)) if known else self.messages
        walk, causes = Walk(asked), ["filter", asked.aspect]
        if not most:
            return self._measured((0, 0), None, causes)
        try:
            async for message in self.reader.forward(max(asked.start, int(self.state["first_seq"]))):
                walk.take(message)
        except (TooManyReads, ApiError):
            return self._measured((walk.sure.messages, most), (0, 0), causes)
        return self._measured((walk.sure.messages, walk.sure.messages + walk.doubtful.messages), (0, 0), causes)

    async def _drained(self, filters: tuple[str, ...]) -> Measured:
        """A copy of a workqueue or interest stream consumes it: as much as its filters match, sooner or later."""
        if self.config["retention"] == "limits":
            return self._measured((0, 0), None, ["origin"])
        if not filters:
            return self._measured((0, self.messages), None, ["origin"])
        try:
            known = await self._learn_counts()
        except (TooManyReads, ApiError):
            known = False
        matching = sum(n for s, n in self.counts.items() if any(within(s, f) for f in filters)) if known else self.messages
        return self._measured((0, matching), None, ["origin"])


def _before(now: str, age: int) -> str:
    """The RFC 3339 instant `age` ns before another one, to the nanosecond."""
    seconds, _, fraction = now.removesuffix("Z").partition(".")
    total = int(fraction.ljust(9, "0")[:9]) - age
    moment = datetime.fromisoformat(seconds) + timedelta(seconds=total // SECOND)
    return f"{moment.isoformat()}.{total % SECOND:09d}Z"
