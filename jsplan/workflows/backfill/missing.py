"""What of a leg is to be copied: the frozen range without what the target has, and without what its own sources bring.

Only looks; nothing is written here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jsplan.address import Address
from jsplan.backfill.job.copying import Claim, Known
from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.job.reading import Look, look
from jsplan.backfill.ranges import Leg, Sequences, Span, common, runs, total, without
from jsplan.backfill.wire.asking import first_at, from_text
from jsplan.errors import ApiError
from jsplan.resources.nested import header_of
from jsplan.topology import Topology
from jsplan.workflows.backfill.freeze import Ends

#: Runs of messages that are there already and shorter than this are read again and left out one by one.
WORTH_SKIPPING: Final = 10_000
#: Deleted sequences above this are not asked for by name.
MANY_DELETED: Final = 100_000


@dataclass(frozen=True, slots=True)
class Todo:
    """`spans` are read, without what is `known` or claimed; `messages` is how many that are at most."""

    spans: tuple[Span, ...]
    known: Known
    claims: tuple[Claim, ...]

    @property
    def messages(self) -> int:
        """At most so many messages are left: sequences, of which some may be gone or not match."""
        return total(without(self.spans, self.known.seq))


@dataclass(slots=True)
class Missing:
    """Finds what is missing of one leg."""

    leg: Leg
    ends: Ends
    topology: Topology

    async def todo(self) -> Todo:
        """What is to be copied now. Raises ApiError."""
        known, claims = await self._known()
        return Todo(tuple(await self._spans(known)), known, claims)

    async def _known(self) -> tuple[Known, tuple[Claim, ...]]:
        """What the target has already, and what its own sources will bring by themselves."""
        info = await target_info(self.ends.target, self._target.stream)
        sources = [s for s in info["config"].get("sources") or [] if self._is_origin(s)]
        state = info["state"]
        claims = tuple(await asyncio.gather(*(self._claim(source) for source in sources)))
        if not state["messages"]:
            return Known(), claims
        names = {header_of(source)[0] for source in [*sources, self._as_source()]}
        first, last, since = int(state["first_seq"]), int(state["last_seq"]), from_text(self.leg.created)
        stream, origin = self._target.stream, self._origin.stream
        task = Look(self.ends.target_way, stream, first, last, self.ends.identity, origin, tuple(sorted(names)), since)
        return await asyncio.to_thread(look, task), claims

    def _is_origin(self, source: dict[str, Any]) -> bool:
        api = (source.get("external") or {}).get("api")
        leads_to = self.topology.reach.leads_to(self._target.domain, api)
        return bool(source["name"] == self._origin.stream and leads_to == self.topology.real(self._origin).domain)

    def _as_source(self) -> dict[str, Any]:
        """The origin as the target would name it in a source of its own."""
        way = self.topology.reach.way(self._target.domain, self._origin.domain) if self._origin.domain != self._target.domain else None
        api = way.api if way is not None else None
        return {"name": self._origin.stream} | ({"external": {"api": api}} if api else {})

    async def _claim(self, source: dict[str, Any]) -> Claim:
        filters = tuple(t["src"] for t in source.get("subject_transforms") or []) or tuple(filter(None, [source.get("filter_subject")]))
        if source.get("opt_start_seq"):
            return Claim(int(source["opt_start_seq"]), filters)
        if source.get("opt_start_time"):
            return Claim(await asyncio.to_thread(self._first_at, from_text(source["opt_start_time"])), filters)
        return Claim(1, filters)

    def _first_at(self, time: int) -> int:
        wire = self.ends.source_way.open()
        try:
            return first_at(wire, self.ends.source_way.api_prefix, self._origin.stream, time)
        finally:
            wire.close()

    async def _spans(self, known: Known) -> list[Span]:
        """What of the frozen range is to be read: without long runs that are surely there, and of a done leg without what has expired."""
        spans = [self.leg.span] if self.leg.first <= self.leg.last else []
        if self.leg.status == "done":
            spans = await self._not_expired(spans, known)
        long = [run for run in runs(known.seq) if run.size >= WORTH_SKIPPING]
        sure = [run for run in long if await self._same_message(known, run)]
        for run in sure:
            spans = without(spans, np.arange(run.first, run.last + 1, dtype=np.int64))
        return spans if total(without(spans, known.seq)) else []

    async def _not_expired(self, spans: list[Span], known: Known) -> list[Span]:
        """What was copied and is gone at the target has expired there: it is not brought back."""
        info = await target_info(self.ends.target, self._target.stream)
        if int(info["state"]["first_seq"]) <= self.leg.target_next:
            return without(spans, self._gone_before())
        oldest = int(known.seq[0]) if len(known.seq) else self.leg.last + 1
        return common(without(spans, self._gone_before()), [Span(oldest, self.leg.last)]) if oldest <= self.leg.last else []

    def _gone_before(self) -> Sequences:
        """What was not there to be copied, or was left out."""
        pieces = [np.arange(first, last + 1, dtype=np.int64) for first, last in self.leg.gaps]
        found: Sequences = np.unique(np.concatenate([np.array(self.leg.skipped, dtype=np.int64), *pieces]))
        return found

    async def _same_message(self, known: Known, run: Span) -> bool:
        """Whether both ends of a run are the origin's messages and not those of an earlier stream of that name."""
        for seq in (run.first, run.last):
            when = int(known.time[np.searchsorted(known.seq, seq)])
            try:
                found = await self.ends.origin.request(f"STREAM.MSG.GET.{self._origin.stream}", {"seq": seq})
            except ApiError:
                continue  # it is gone there; there is nothing that could be read again
            if when and from_text(found["message"]["time"]) != when:
                return False
        return True

    async def gone(self) -> list[Span]:
        """Sequences that the origin does not have any more."""
        info = await target_info(self.ends.origin, self._origin.stream)
        state = info["state"]
        gone = [Span(1, int(state["first_seq"]) - 1)] if state["first_seq"] > 1 else []
        if 0 < int(state.get("num_deleted") or 0) <= MANY_DELETED:
            detailed = await self.ends.origin.request(f"STREAM.INFO.{self._origin.stream}", {"deleted_details": True})
            gone += runs(np.array(sorted(detailed["state"].get("deleted") or []), dtype=np.int64))
        return gone

    @property
    def _origin(self) -> Address:
        return Address.parse(self.leg.origin)

    @property
    def _target(self) -> Address:
        return Address.parse(self.leg.target)
