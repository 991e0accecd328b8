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
from jsplan.applying.downstream import FAR_ENOUGH, newest_of
from jsplan.applying.work import NotBegun, StepFailed, Work
from jsplan.diagnostics import shell_word
from jsplan.documents.plan import VERIFY, Step
from jsplan.errors import OFFLINE, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.facts.survey import read_object
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.planning.recopies import filters
from jsplan.resources.nested import origin_key

#: Seconds until a copy follows: a server looks every ten, and tries again after up to thirty (measured: 10 to 32).
PATIENCE: Final = 90.0
#: Seconds between two looks.
PAUSE: Final = 0.5
#: Seconds in which two signs of life must come to be heartbeats: a server that only tries to begin does that every ten.
BEAT: Final = 5.0
#: How often a copy that is ahead of its origin must have heard it to be stuck for good.
STUCK: Final = 3
#: So many messages of a copy are looked through for the last one of its origin, each time but the first.
AGAIN: Final = 100


async def announce(work: Work, done: Step) -> None:
    """Put on record which copies are to be looked at now that a step is done: whoever dies before leaves that to the next apply."""
    for step in work.plan.steps if done.op != VERIFY else ():
        if step.op == VERIFY and done.id in step.depends_on:
            await work.record({"begin": _begun(step)}, durable=False)


def _begun(step: Step) -> dict[str, Any]:
    return {"id": step.id, "address": step.address, "op": step.op, "expect": None, "record": None, "params": step.params}


async def verify(work: Work, step: Step) -> None:
    """Wait until the copy follows all of the origins that the step names. Raises StepFailed, NotBegun and StateError."""
    params = step.params or {}
    await work.record({"begin": _begun(step)})
    left, end = [Flow(work, step, flow) for flow in params["flows"]], time.monotonic() + PATIENCE
    while True:
        before = time.monotonic()
        copy, look = await work.read(step.touches), Span(before, time.monotonic())
        if copy is None:
            raise StepFailed(f"{step.touches} is gone: somebody else deleted it at the same moment")
        left = [flow for flow in left if not await flow.seen_to_follow(copy, look)]
        if not left or time.monotonic() > end or all(flow.stuck for flow in left):
            break
        await _wait(work)
    if left:
        raise StepFailed(f"{'; '.join(flow.why for flow in left)}. {_mend(step, left)}")
    await work.record({"end": step.address})


async def _wait(work: Work) -> None:
    """Until the next look. Raises NotBegun after Ctrl-C: the next apply looks."""
    try:
        await asyncio.wait_for(work.stop.wait(), PAUSE)
    except TimeoutError:
        return
    raise NotBegun


def _mend(step: Step, left: list[Flow]) -> str:
    origins = " and ".join(dict.fromkeys(str(flow.origin) for flow in left))
    text = f"{origins} {'is' if ' and ' not in origins else 'are'} made anew; only the copy is behind. The next apply looks again"
    if not (step.params or {})["managed"]:
        return f"{text}. It is not managed here: its owner has to know"
    if all(flow.stuck for flow in left):
        return f"{text}. To make the copy anew, without what it holds: jsplan apply --replace {shell_word(step.address)}"
    return f"{text}, jsplan drift as well; the way between the two may be down"


@dataclass(frozen=True, slots=True)
class Span:
    """Between two moments of our clock: when a server looked, when it had heard of an origin."""

    begin: float
    end: float


class Flow:
    """One mirror or source, looked at again and again; `why` says what it was like last, `stuck` that waiting does not help."""

    def __init__(self, work: Work, step: Step, flow: dict[str, Any]) -> None:
        self.work = work
        self.copy = step.touches
        self.origin = Address.parse(flow["origin"])
        self.of: dict[str, Any] = flow["config"]
        self.mirrors = flow["kind"] == "mirror"
        self.anew: bool = flow["from_start"]
        self.why = f"{self.copy} was not seen to follow {self.origin}"
        self.stuck = False
        self._since = time.monotonic()
        self._beats: list[Span] = []
        self._from: int | None = None  # where the origin was when we began to look
        self._place: int | None = None
        self._moved = False
        self._ahead_then: bool | None = None
        self._heard_at = 0
        self._searched = 0
        self._found: int | None = None

    async def seen_to_follow(self, copy: LiveObject, look: Span) -> bool:
        """Whether it does, by what the copy said in that time and what the origin says now."""
        flow = next((f for f in copy.flows if origin_key(f) == origin_key(self.of)), None)
        if flow is None:
            return self._not(f"does not copy {self.origin}: that was taken out of it")
        self._listen(int(flow.get("active", -1)), look)
        place = await self._reached(copy, flow)
        origin = await self._read_origin()
        last = int(origin.state.get("last_seq") or 0)
        if self._from is None:
            self._from = last
        if said := (flow.get("error") or {}).get("description"):
            return self._not(f"cannot copy {self.origin}: {said}")
        if place is not None and place > max(last, self._start(copy)) and self.mirrors:
            return self._ahead(place, last)
        if not self.mirrors and not self.anew and self._is_ahead(place, self._start(copy)):
            return self._skips(last)
        if place is not None and place > last:
            place = None  # of an earlier origin, or before its own start: nothing of this one can be missing
        if place is not None and place > self._from:
            return True  # what was stored since is copied
        self._moved = self._moved or (bool(self._beats) and None not in (place, self._place) and (place or 0) > (self._place or 0))
        self._place = place
        missing = await self._next(place) if place is not None else None
        if len(self._beats) < 2:
            return self._not(f"does not hear of the new {self.origin}")
        if missing is not None and not self._moved:
            return self._not(f"stands at message {place:,} of {self.origin}, and message {missing:,} does not come")
        return True

    def _not(self, why: str) -> bool:
        self.why = f"{self.copy} {why} ({time.monotonic() - self._since:.0f}s)"
        return False

    def _ahead(self, place: int, last: int) -> bool:
        """A mirror that has later messages than there are waits until they have been passed, and never gets those before."""
        self.stuck = len(self._beats) >= STUCK
        return self._not(
            f"stands at message {place:,}, and the new {self.origin} has come to {last:,}: it takes nothing until that is passed"
        )

    def _is_ahead(self, place: int | None, start: int) -> bool:
        """Whether the source had later messages than there are when we began to look; one that waits for its start has none."""
        if self._ahead_then is None:
            self._ahead_then = place is not None and place > max(self._from or 0, start)
        return self._ahead_then

    def _skips(self, last: int) -> bool:
        """Up to 2.14 such a source goes on with what comes after its server has looked, without what came before (measured on 2.11)."""
        if len(self._beats) == 1:
            self._heard_at = last
        if len(self._beats) < 2:
            return self._not(f"does not hear of the new {self.origin}")
        missed = self._heard_at - (self._from or 0)
        self.stuck = missed > 0
        return missed <= 0 or self._not(f"goes on without up to {missed:,} messages that {self.origin} got before it was heard of again")

    def _listen(self, silent: int, look: Span) -> None:
        """Another sign of life, if it is surely another: by how long ago (ns; -1: never) the copy's server had the last one."""
        heard = Span(look.begin - silent / 1e9, look.end - silent / 1e9)
        if silent < 0 or heard.begin <= (self._beats[-1].end if self._beats else self._since):
            return
        if self._beats and heard.begin - self._beats[-1].end > BEAT:
            self._beats.clear()
        self._beats.append(heard)

    async def _reached(self, copy: LiveObject, flow: dict[str, Any]) -> int | None:
        """The sequence of the origin up to which the copy has it; None where nothing in the copy says so.

        A mirror has its origin's sequences; messages of a source say theirs, and servers since 2.15 in INFO too.
        """
        last = int(copy.state.get("last_seq") or 0)
        if self.mirrors:
            return last
        down_to = max(self._searched, last - (AGAIN if self._searched else FAR_ENOUGH)) + 1
        found = await newest_of(self.work.apis[copy.address.domain], copy.address.stream, copy.state, [self.of], down_to)
        self._searched, self._found = last, found.get(origin_key(self.of), self._found)
        said = (self._found, int(flow.get("seq") or 0) or None, self._start(copy) or None)
        return max((place for place in said if place is not None), default=None)

    def _start(self, copy: LiveObject) -> int:
        """Behind which sequence the mirror or source was told to begin; 0 where it was not."""
        origins = [copy.raw["mirror"]] if copy.raw.get("mirror") else copy.raw.get("sources") or ()
        start = next((s.get("opt_start_seq") for s in origins if origin_key(s) == origin_key(self.of)), None)
        return int(start) - 1 if start else 0

    async def _read_origin(self) -> LiveObject:
        domain = self.origin.domain
        api = self.work.apis.get(domain)
        if api is None:
            raise self._away()
        try:
            live = await read_object(api, self.origin)
        except OFFLINE as error:
            self.work.lost.setdefault(domain, str(error))
            raise self._away() from None
        if live is None:
            raise StepFailed(f"{self.origin} is gone: somebody else deleted it at the same moment")
        return live

    def _away(self) -> StepFailed:
        text = f"domain {self.origin.domain} is away, so whether {self.copy} follows {self.origin} is not verified"
        return StepFailed(text, "skipped")

    async def _next(self, place: int) -> int | None:
        """The first message of the origin behind `place` that passes the filters, by its sequence."""
        found = await asyncio.gather(*(self._first(place + 1, subject) for subject in filters(self.of)))
        return min((seq for seq in found if seq is not None), default=None)

    async def _first(self, seq: int, subject: str) -> int | None:
        request = {"seq": seq, "next_by_subj": subject}
        try:
            answer = await self.work.apis[self.origin.domain].request(f"STREAM.MSG.GET.{self.origin.stream}", request)
        except ServerRefusedError as error:
            if error.err_code != NO_MESSAGE:
                raise
            return None
        return int(answer["message"]["seq"])
