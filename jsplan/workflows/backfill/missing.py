"""What of a leg is to be copied: the pinned range without what the target has, and without what its own sources bring.

Only looks; nothing is written here.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from jsplan.backfill.job.copying import RANGES, Claim, Known
from jsplan.backfill.job.going_on import LastOf, last_of
from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.job.reading import Look, look
from jsplan.backfill.job.stages import mark_of
from jsplan.backfill.job.ways import Way
from jsplan.backfill.ranges import Leg, Span, common, minus, total
from jsplan.backfill.sequence_arrays import runs, without
from jsplan.backfill.wire import read
from jsplan.backfill.wire.asking import first_at, from_text, pending
from jsplan.backfill.wire.reading import Range
from jsplan.errors import ServerRefusedError
from jsplan.jetstream.api import STREAM_NOT_FOUND
from jsplan.resources.nested import header_of
from jsplan.topology import Topology
from jsplan.workflows.backfill.freeze import Ends

#: Runs of messages that are there already and shorter than this are read again and left out one by one; the second number is for the
#: longest few of them, which cost no more than a range each.
WORTH_SKIPPING, WORTH_A_RANGE = 10_000, 100
#: More deleted sequences than these are not asked for by name: their list would be larger than what a link between servers takes.
MANY_DELETED: Final = 50_000
#: So often a message is looked for that is known at the target and still at the origin.
TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Todo:
    """`spans` are read, without what is `known` or claimed. `whole`: what is known is of this very origin; otherwise some may be of an
    earlier stream of its name, which only reading tells.
    """

    spans: tuple[Span, ...]
    known: Known
    claims: tuple[Claim, ...]
    whole: bool = True

    @property
    def messages(self) -> int:
        """At most so many messages are left: sequences, of which some may be gone or not match."""
        return total(without(self.spans, self.known.seq) if self.whole else self.spans)

    def cut(self, first: int, last: int) -> Todo:
        """What of it lies between two sequences, both included."""
        return replace(self, spans=tuple(common(self.spans, [Span(first, last)])))


def skipped(known: Known) -> list[Span]:
    """Runs of known messages that are not read again: what is left is so many ranges at most as one task reads, or each run is long."""
    largest = sorted(runs(known.seq), key=lambda run: -run.size)
    worth = (run for n, run in enumerate(largest) if run.size >= (WORTH_A_RANGE if n < RANGES - 1 else WORTH_SKIPPING))
    return sorted(worth)


@dataclass(slots=True)
class Missing:
    """Finds what is missing of one leg."""

    leg: Leg
    ends: Ends
    topology: Topology

    async def todo(self) -> Todo:
        """What is to be copied now. Raises ApiError."""
        known, claims = await self._known()
        spans = await self._meant(known)
        if not spans:
            return Todo((), known, claims)
        if not await self._of_this_origin(known):
            return Todo(tuple(spans), known, claims, whole=False)
        return Todo(tuple(minus(spans, skipped(known))) if without(spans, known.seq) else (), known, claims)

    async def counted(self) -> int:
        """How many messages the range has at the origin now. Raises ApiError."""
        return await asyncio.to_thread(self._counted)

    def _counted(self) -> int:
        way, name = self.ends.source_way, self.leg.origin_address.stream
        wire = way.open()
        try:
            first, after = (
                pending(wire, way.api_prefix, name, seq, tuple(self.leg.filters)) for seq in (self.leg.first, self.leg.last + 1)
            )
        finally:
            wire.close()
        return first - after

    async def _known(self) -> tuple[Known, tuple[Claim, ...]]:
        """What the target has already, and what its own sources will bring by themselves."""
        info = await target_info(self.ends.target, self.leg.target_address.stream)
        sources = [s for s in info["config"].get("sources") or [] if self._is_origin(s)]
        state = info["state"]
        claims = tuple(await asyncio.gather(*(self._claim(source) for source in sources)))
        if not state["messages"]:
            return Known(), claims
        names = {header_of(source)[0] for source in [*sources, self._as_source()]}
        first, last, since = int(state["first_seq"]), int(state["last_seq"]), from_text(self.leg.created)
        stream, origin = self.leg.target_address.stream, self.leg.origin_address.stream
        placed, mark = await self._is_placed(state), mark_of(self.ends.identity, origin, self.leg.created)
        task = Look(self.ends.target_way, stream, first, last, self.ends.identity, origin, tuple(sorted(names)), since, placed, mark)
        known = await asyncio.to_thread(look, task)
        last_ones = [LastOf(self.ends.target_way, stream, first, last, header_of(source), since) for source in sources]
        going_on = [self._going_on(claim, known, one) for claim, one in zip(claims, last_ones, strict=True)]
        return known, tuple(await asyncio.gather(*going_on))

    @staticmethod
    async def _going_on(claim: Claim, known: Known, source: LastOf) -> Claim:
        """What a source brings that the target had before: it begins behind what is there of it."""
        if not (known.seq[known.time == 0] < claim.first).any():
            return claim
        last = await asyncio.to_thread(last_of, source)
        return replace(claim, first=min(claim.first, last + 1)) if last else claim

    async def _is_placed(self, state: dict[str, Any]) -> bool:
        """Whether the target was made from a snapshot of the origin: a message is at its own sequence, with its own time."""
        for seq in {int(state["first_seq"]), min(int(state["last_seq"]), self.leg.last)}:
            here = await self._time_at(self.ends.target_way, self.leg.target_address.stream, seq)
            if here is not None and here == await self._time_at(self.ends.source_way, self.leg.origin_address.stream, seq):
                return True
        return False

    async def _time_at(self, way: Way, stream: str, seq: int) -> int | None:
        """When the message was stored; None where there is none. Without its payload, which may be more than a link takes in one answer."""
        found = await self._first_from(way, stream, seq, seq)
        return found[1] if found is not None else None

    async def _first_from(self, way: Way, stream: str, seq: int, last: int) -> tuple[int, int] | None:
        """Sequence and time of the first message from `seq` on; None where there is none, or no stream."""

        def first() -> tuple[int, int] | None:
            what = Range(way.api_prefix, stream, seq, last, headers_only=True)
            with contextlib.closing(read(way.open, what)) as batches:
                return next(((rows["seq"][0].as_py(), rows["time"][0].as_py()) for rows in batches), None)

        try:
            return await asyncio.to_thread(first)
        except ServerRefusedError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise

    def _is_origin(self, source: dict[str, Any]) -> bool:
        api = (source.get("external") or {}).get("api")
        leads_to = self.topology.reach.leads_to(self.leg.target_address.domain, api)
        return bool(source["name"] == self.leg.origin_address.stream and leads_to == self.topology.real(self.leg.origin_address).domain)

    def _as_source(self) -> dict[str, Any]:
        """The origin as the target would name it in a source of its own."""
        way = (
            self.topology.reach.way(self.leg.target_address.domain, self.leg.origin_address.domain)
            if self.leg.origin_address.domain != self.leg.target_address.domain
            else None
        )
        api = way.api if way is not None else None
        return {"name": self.leg.origin_address.stream} | ({"external": {"api": api}} if api else {})

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
            return first_at(wire, self.ends.source_way.api_prefix, self.leg.origin_address.stream, time)
        finally:
            wire.close()

    async def _meant(self, known: Known) -> list[Span]:
        """What the target should have: the pinned range, of a done leg without what has expired since."""
        spans = [self.leg.span] if self.leg.first <= self.leg.last else []
        return await self._not_expired(spans, known) if self.leg.status == "done" else spans

    async def _not_expired(self, spans: list[Span], known: Known) -> list[Span]:
        """What was copied and has expired at the target is not brought back; nor is what a limit per subject has pushed out, which looks
        like anything else that is missing.
        """
        info = await target_info(self.ends.target, self.leg.target_address.stream)
        if info["config"].get("max_msgs_per_subject", -1) > 0:
            return []
        there = minus(spans, self._never_copied())
        if int(info["state"]["first_seq"]) <= self.leg.target_next:
            return there
        return common(there, [Span(int(known.seq[0]), self.leg.last)]) if len(known.seq) else []

    def _never_copied(self) -> list[Span]:
        """What was not there to be copied, or was left out."""
        gone = np.concatenate(
            [np.arange(first, last + 1, dtype=np.int64) for first, last in self.leg.gaps] or [np.empty(0, dtype=np.int64)]
        )
        return runs(np.unique(np.concatenate([np.array(self.leg.skipped, dtype=np.int64), gone])))

    async def _of_this_origin(self, known: Known) -> bool:
        """Whether all that is known is of the origin as it is, and nothing of an earlier stream of its name: times grow with sequences
        in each, and every message of the earlier one is older.
        """
        told = known.time[known.time > 0]
        if not len(told):
            return True
        if (np.diff(known.seq) == 0).any() or (np.diff(told) < 0).any():
            return False
        return await self._same_message(known)

    async def _same_message(self, known: Known) -> bool:
        """Whether the first known message that the origin still has is that message."""
        seqs = known.seq[known.time > 0]
        place, tries = 0, 0
        while place < len(seqs) and tries < TRIES:
            tries += 1
            way, stream = self.ends.source_way, self.leg.origin_address.stream
            found = await self._first_from(way, stream, int(seqs[place]), int(seqs[-1]))
            if found is None:
                return True  # all of it is gone there; there is nothing that could be copied twice
            place = int(np.searchsorted(seqs, found[0]))
            if place < len(seqs) and seqs[place] == found[0]:
                return bool(found[1] == known.time[known.time > 0][place])
        return place >= len(seqs)

    async def gone(self) -> list[Span]:
        """Sequences that the origin does not have any more."""
        info = await target_info(self.ends.origin, self.leg.origin_address.stream)
        state = info["state"]
        gone = [Span(1, int(state["first_seq"]) - 1)] if state["first_seq"] > 1 else []
        deleted = int(state.get("num_deleted") or 0)
        if deleted > MANY_DELETED:
            return minus([Span(1, int(state["last_seq"]))], await asyncio.to_thread(self._present))
        if deleted:
            detailed = await self.ends.origin.request(f"STREAM.INFO.{self.leg.origin_address.stream}", {"deleted_details": True})
            gone += runs(np.array(sorted(detailed["state"].get("deleted") or []), dtype=np.int64))
        return gone

    def _present(self) -> list[Span]:
        way, last = self.ends.source_way, self.leg.last
        what = Range(way.api_prefix, self.leg.origin_address.stream, self.leg.first, last, headers_only=True)
        return runs(np.concatenate([rows["seq"].to_numpy() for rows in read(way.open, what)] or [np.empty(0, dtype=np.int64)]))
