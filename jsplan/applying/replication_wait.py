"""Sees whether a copy follows the new stream that stands under the name of its origin. Writes nothing but what state has of it.

What counts are the sequences of both ends: `lag` is 0 also where nothing comes any more (server_semantics, section 5). Where nothing
is left to copy, the origin must be heard: it sends a heartbeat a second, and each is another moment in `active`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

from jsplan.address import Address
from jsplan.applying.replicated_streams import SEARCH_DEPTH, newest_origin_seqs
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted
from jsplan.diagnostics import quote_shell
from jsplan.documents.plan import VERIFY_OP, Step
from jsplan.errors import OFFLINE_ERRORS, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_object
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.planning.replication.duplicates import subject_filters
from jsplan.resources.nested import origin_key

#: Seconds until a copy follows: a server looks every ten, and tries again after up to thirty (measured: 10 to 32).
REPLICATION_TIMEOUT: Final = 90.0
#: Seconds between two looks.
POLL_INTERVAL: Final = 0.5
#: Seconds in which two signs of life must come to be heartbeats: a server that only tries to begin does that every ten.
HEARTBEAT_GAP: Final = 5.0
#: How often a copy that is ahead of its origin must have heard it to be stuck for good.
STUCK_HEARTBEATS: Final = 3
#: So many messages of a copy are looked through for the last one of its origin, each time but the first.
REPEAT_DEPTH: Final = 100


async def record_pending_checks(work: StepContext, done: Step) -> None:
    """Put on record which copies are to be looked at now that a step is done: whoever dies before leaves that to the next apply."""
    for step in work.plan.steps if done.op != VERIFY_OP else ():
        if step.op == VERIFY_OP and done.id in step.depends_on:
            await work.record({"begin": _begin_record(step)}, durable=False)


def _begin_record(step: Step) -> dict[str, Any]:
    return {
        "id": step.id,
        "address": step.address,
        "op": step.op,
        "expect": None,
        "record": None,
        "params": step.params,
    }


async def verify_replication(work: StepContext, step: Step) -> None:
    """Wait until the copy follows all of the origins that the step names. Raises StepFailed, NotBegun and StateError."""
    params = step.params or {}
    await work.record({"begin": _begin_record(step)})
    left, end = (
        [ReplicationFlow(work, step, flow) for flow in params["flows"]],
        time.monotonic() + REPLICATION_TIMEOUT,
    )
    while True:
        before = time.monotonic()
        copy, look = await work.read(step.target_address), TimeSpan(before, time.monotonic())
        if copy is None:
            raise StepFailed(
                f"{step.target_address} is gone: somebody else deleted it at the same moment"
            )
        left = [flow for flow in left if not await flow.is_replicating(copy, look)]
        if not left or time.monotonic() > end or all(flow.is_stuck for flow in left):
            break
        await _wait_for_poll(work)
    if left:
        raise StepFailed(f"{'; '.join(flow.reason for flow in left)}. {_remedy(step, left)}")
    await work.record({"end": step.address})


async def _wait_for_poll(work: StepContext) -> None:
    """Until the next look. Raises NotBegun after Ctrl-C: the next apply looks."""
    try:
        await asyncio.wait_for(work.stop.wait(), POLL_INTERVAL)
    except TimeoutError:
        return
    raise StepNotStarted


def _remedy(step: Step, left: list[ReplicationFlow]) -> str:
    origins = " and ".join(dict.fromkeys(str(flow.origin) for flow in left))
    text = f"{origins} {'is' if ' and ' not in origins else 'are'} made anew; only the copy is behind. The next apply looks again"
    if not (step.params or {})["managed"]:
        return f"{text}. It is not managed here: its owner has to know"
    if all(flow.is_stuck for flow in left):
        return f"{text}. To make the copy anew, without what it holds: jsplan apply --replace {quote_shell(step.address)}"
    return f"{text}, jsplan drift as well; the way between the two may be down"


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Between two moments of our clock: when a server looked, when it had heard of an origin."""

    begin: float
    end: float


class ReplicationFlow:
    """One mirror or source, looked at again and again; `reason` says what it was like last, `is_stuck` that waiting does not help."""

    def __init__(self, work: StepContext, step: Step, flow: dict[str, Any]) -> None:
        self.context = work
        self.downstream = step.target_address
        self.origin = Address.parse(flow["origin"])
        self.origin_config: dict[str, Any] = flow["config"]
        self.is_mirror = flow["kind"] == "mirror"
        self.recopies_origin: bool = flow["from_start"]
        self.reason = f"{self.downstream} was not seen to follow {self.origin}"
        self.is_stuck = False
        self._started_at = time.monotonic()
        self._heartbeats: list[TimeSpan] = []
        self._initial_origin_seq: int | None = None  # where the origin was when we began to look
        self._copied_seq: int | None = None
        self._has_progressed = False
        self._was_ahead: bool | None = None
        self._seq_when_heard = 0
        self._searched_seq = 0
        self._newest_seq: int | None = None

    async def is_replicating(self, copy: LiveObject, look: TimeSpan) -> bool:
        """Whether it does, by what the copy said in that time and what the origin says now."""
        flow = next(
            (f for f in copy.flows if origin_key(f) == origin_key(self.origin_config)), None
        )
        if flow is None:
            return self._set_reason(f"does not copy {self.origin}: that was taken out of it")
        self._record_heartbeat(int(flow.get("active", -1)), look)
        place = await self._read_copied_seq(copy, flow)
        origin = await self._read_origin()
        last = int(origin.state.get("last_seq") or 0)
        if self._initial_origin_seq is None:
            self._initial_origin_seq = last
        if said := (flow.get("error") or {}).get("description"):
            return self._set_reason(f"cannot copy {self.origin}: {said}")
        if place is not None and place > max(last, self._configured_start(copy)) and self.is_mirror:
            return self._report_ahead(place, last)
        if (
            not self.is_mirror
            and not self.recopies_origin
            and self._is_ahead(place, self._configured_start(copy))
        ):
            return self._check_skipped(last)
        if place is not None and place > last:
            place = None  # of an earlier origin, or before its own start: nothing of this one can be missing
        if place is not None and place > self._initial_origin_seq:
            return True  # what was stored since is copied
        self._has_progressed = self._has_progressed or (
            bool(self._heartbeats)
            and None not in (place, self._copied_seq)
            and (place or 0) > (self._copied_seq or 0)
        )
        self._copied_seq = place
        missing = await self._next_message(place) if place is not None else None
        if len(self._heartbeats) < 2:
            return self._set_reason(f"does not hear of the new {self.origin}")
        if missing is not None and not self._has_progressed:
            return self._set_reason(
                f"stands at message {place:,} of {self.origin}, and message {missing:,} does not come"
            )
        return True

    def _set_reason(self, why: str) -> bool:
        self.reason = f"{self.downstream} {why} ({time.monotonic() - self._started_at:.0f}s)"
        return False

    def _report_ahead(self, place: int, last: int) -> bool:
        """A mirror that has later messages than there are waits until they have been passed, and never gets those before."""
        self.is_stuck = len(self._heartbeats) >= STUCK_HEARTBEATS
        return self._set_reason(
            f"stands at message {place:,}, and the new {self.origin} has come to {last:,}: it takes nothing until that is passed"
        )

    def _is_ahead(self, place: int | None, start: int) -> bool:
        """Whether the source had later messages than there are when we began to look; one that waits for its start has none."""
        if self._was_ahead is None:
            self._was_ahead = place is not None and place > max(
                self._initial_origin_seq or 0, start
            )
        return self._was_ahead

    def _check_skipped(self, last: int) -> bool:
        """Up to 2.14 such a source goes on with what comes after its server has looked, without what came before (measured on 2.11)."""
        if len(self._heartbeats) == 1:
            self._seq_when_heard = last
        if len(self._heartbeats) < 2:
            return self._set_reason(f"does not hear of the new {self.origin}")
        missed = self._seq_when_heard - (self._initial_origin_seq or 0)
        self.is_stuck = missed > 0
        return missed <= 0 or self._set_reason(
            f"goes on without up to {missed:,} messages that {self.origin} got before it was heard of again"
        )

    def _record_heartbeat(self, silent: int, look: TimeSpan) -> None:
        """Another sign of life, if it is surely another: by how long ago (ns; -1: never) the copy's server had the last one."""
        heard = TimeSpan(look.begin - silent / 1e9, look.end - silent / 1e9)
        if silent < 0 or heard.begin <= (
            self._heartbeats[-1].end if self._heartbeats else self._started_at
        ):
            return
        if self._heartbeats and heard.begin - self._heartbeats[-1].end > HEARTBEAT_GAP:
            self._heartbeats.clear()
        self._heartbeats.append(heard)

    async def _read_copied_seq(self, copy: LiveObject, flow: dict[str, Any]) -> int | None:
        """The sequence of the origin up to which the copy has it; None where nothing in the copy says so.

        A mirror has its origin's sequences; messages of a source say theirs, and servers since 2.15 in INFO too.
        """
        last = int(copy.state.get("last_seq") or 0)
        if self.is_mirror:
            return last
        down_to = (
            max(self._searched_seq, last - (REPEAT_DEPTH if self._searched_seq else SEARCH_DEPTH))
            + 1
        )
        found = await newest_origin_seqs(
            self.context.apis[copy.address.domain],
            copy.address.stream,
            copy.state,
            [self.origin_config],
            down_to,
        )
        self._searched_seq, self._newest_seq = (
            last,
            found.get(origin_key(self.origin_config), self._newest_seq),
        )
        said = (
            self._newest_seq,
            int(flow.get("seq") or 0) or None,
            self._configured_start(copy) or None,
        )
        return max((place for place in said if place is not None), default=None)

    def _configured_start(self, copy: LiveObject) -> int:
        """Behind which sequence the mirror or source was told to begin; 0 where it was not."""
        origins = [copy.raw["mirror"]] if copy.raw.get("mirror") else copy.raw.get("sources") or ()
        start = next(
            (
                s.get("opt_start_seq")
                for s in origins
                if origin_key(s) == origin_key(self.origin_config)
            ),
            None,
        )
        return int(start) - 1 if start else 0

    async def _read_origin(self) -> LiveObject:
        domain = self.origin.domain
        api = self.context.apis.get(domain)
        if api is None:
            raise self._offline_error()
        try:
            live = await read_object(api, self.origin)
        except OFFLINE_ERRORS as error:
            self.context.lost_domains.setdefault(domain, str(error))
            raise self._offline_error() from None
        if live is None:
            raise StepFailed(f"{self.origin} is gone: somebody else deleted it at the same moment")
        return live

    def _offline_error(self) -> StepFailed:
        text = f"domain {self.origin.domain} is away, so whether {self.downstream} follows {self.origin} is not verified"
        return StepFailed(text, "skipped")

    async def _next_message(self, place: int) -> int | None:
        """The first message of the origin behind `place` that passes the filters, by its sequence."""
        found = await asyncio.gather(
            *(
                self._first_message(place + 1, subject)
                for subject in subject_filters(self.origin_config)
            )
        )
        return min((seq for seq in found if seq is not None), default=None)

    async def _first_message(self, seq: int, subject: str) -> int | None:
        request = {"seq": seq, "next_by_subj": subject}
        try:
            answer = await self.context.apis[self.origin.domain].request(
                f"STREAM.MSG.GET.{self.origin.stream}", request
            )
        except ServerRefusedError as error:
            if error.err_code != NO_MESSAGE:
                raise
            return None
        return int(answer["message"]["seq"])
