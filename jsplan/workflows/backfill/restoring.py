"""One stream out of an archive into a stream: the way of a copy, staged, sealed and brought in, with files in the place of an origin."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jsplan.backfill.job.archived import sequences_of
from jsplan.backfill.job.copying import Copy, Known, known_among
from jsplan.backfill.sequence_arrays import runs
from jsplan.workflows.backfill.leg import LegRun
from jsplan.workflows.backfill.missing import Missing, Todo

if TYPE_CHECKING:
    from jsplan.backfill.job.stages import Stage
    from jsplan.backfill.ranges import Leg, Span
    from jsplan.documents.backfill import LegResult
    from jsplan.topology import Topology
    from jsplan.workflows.backfill.archives import Held
    from jsplan.workflows.backfill.freeze import Ends
    from jsplan.workflows.backfill.leg import Work


class InArchive(Missing):
    """Finds what of an archive a stream does not have: by sequence and time of each message."""

    def __init__(self, leg: Leg, ends: Ends, topology: Topology, held: Held) -> None:
        super().__init__(leg, ends, topology)
        self.held = held

    async def todo(self) -> Todo:
        """What is to be copied now. Raises ApiError."""
        known, claims = await self._known()
        meant = await self._meant(known)
        spans = await asyncio.to_thread(self._left, meant, known) if meant else ()
        return Todo(spans, Known(), claims)

    def _left(self, meant: list[Span], known: Known) -> tuple[Span, ...]:
        seqs, times = sequences_of(self.held.files)
        wanted = np.zeros(len(seqs), dtype=bool)
        for span in meant:
            wanted[np.searchsorted(seqs, span.first) : np.searchsorted(seqs, span.last, side="right")] = True
        if len(known.seq):
            wanted &= ~known_among(known, seqs, times)
        return tuple(runs(seqs[wanted]))

    async def counted(self) -> int:
        """How many messages the archive has."""
        return int(self.held.info["state"]["messages"])

    async def gone(self) -> list[Span]:
        """Nothing goes away while it is copied."""
        return []

    async def _is_placed(self, state: dict[str, Any]) -> bool:
        """Whether the target was made from a snapshot of the stream that was archived: a message is at its own place."""
        seqs, times = await asyncio.to_thread(sequences_of, self.held.files)
        for seq in {int(state["first_seq"]), min(int(state["last_seq"]), self.leg.last)}:
            place = int(np.searchsorted(seqs, seq))
            here = await self._time_at(self.ends.target_way, self.leg.target_address.stream, seq)
            if here is not None and place < len(seqs) and (int(seqs[place]), int(times[place])) == (seq, here):
                return True
        return False

    def _is_origin(self, source: dict[str, Any]) -> bool:
        return self.held.declared and super()._is_origin(source)

    def _as_source(self) -> dict[str, Any]:
        return super()._as_source() if self.held.declared else {"name": self.leg.origin_address.stream}

    def _first_at(self, time: int) -> int:
        seqs, times = sequences_of(self.held.files)
        later = np.flatnonzero(times >= time)
        return int(seqs[later[0]]) if len(later) else self.leg.last + 1


class RestoreRun(LegRun):
    """Carries out one leg out of an archive."""

    def __init__(self, work: Work, leg: Leg, ends: Ends, held: Held) -> None:
        super().__init__(work, leg, ends)
        self.held = held
        self.missing = InArchive(leg, ends, work.topology, held)

    async def run(self) -> LegResult:
        """Bring in what is missing, prove it, and say what the archive itself had no chance to get. Raises what a copy raises."""
        found = await super().run()
        found.gaps, found.gap_messages = self.held.gaps, self.held.gap_messages
        if found.copied:
            found.path = f"{found.path}, from {self.leg.archive}"
        return found

    async def _origin_info(self) -> dict[str, Any]:
        return self.held.info

    def _copy(self, stage: Stage, todo: Todo, target: dict[str, Any]) -> Copy:
        return replace(super()._copy(stage, todo, target), stream=self.held.origin.stream, archive=self.held.files)
