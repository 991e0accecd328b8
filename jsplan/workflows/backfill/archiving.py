"""One stream into an archive, each message once: written by pieces, each read back, and made a part of the archive in one step."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jsplan.backfill.job import promoting
from jsplan.backfill.job.archive import (
    Archive,
    ArchiveError,
    Chosen,
    Commit,
    File,
    Made,
    Origin,
    covered,
    gaps_of,
    merged,
    receipts,
    staged_at,
)
from jsplan.backfill.job.archived import sequences_of
from jsplan.backfill.job.archiving import Piece, archive, leave_empty
from jsplan.backfill.job.copying import Copy, Known
from jsplan.backfill.job.lanes import Job
from jsplan.backfill.ranges import LISTED, Span, common, minus, total
from jsplan.backfill.sequence_arrays import without
from jsplan.documents.backfill import LegResult, MessagesMoved
from jsplan.errors import JsplanError
from jsplan.units import stamp
from jsplan.workflows.backfill.archives import folder_of, identity
from jsplan.workflows.backfill.bringing import WRITING
from jsplan.workflows.backfill.hours import portion
from jsplan.workflows.backfill.missing import Missing
from jsplan.workflows.backfill.waiting import PERIOD, patiently, until_done

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.backfill.ranges import Leg
    from jsplan.workflows.backfill.freeze import Ends
    from jsplan.workflows.backfill.leg import Work
    from jsplan.workflows.backfill.shapes import Shape
    from jsplan.workflows.world import World

#: A piece has at most so many sequences and about so many bytes: what is lost when a worker dies, and how large files become.
SEQUENCES, SIZE = 1_000_000, 256 << 20
#: Into so many pieces a range is cut if it has at least so many messages for each.
LANES, WORTHWHILE = 4, 50_000


class ArchiveRun:
    """Carries out one leg into an archive. `result` says at any time how far it is."""

    def __init__(self, world: World, work: Work, leg: Leg, ends: Ends, shape: Shape) -> None:
        self.work = work
        self.leg = leg
        self.ends = ends
        self.result = LegResult(leg.origin, leg.target, leg.first, leg.last)
        self.folder = folder_of(world, leg.target)
        self.origin = Origin(ends.identity, leg.origin_address.stream, leg.created)
        domains = world.workspace.domains
        self._origins = sorted({f"{identity(domains[side.domain])}/{side.stream}" for side in work.entry.origins})
        self._missing = Missing(leg, ends, work.topology)
        self._shape = shape
        self._chosen = Chosen(tuple(sorted(leg.filters)), shape.where)
        mapping = (shape.mapping.src, shape.mapping.dest) if shape.mapping is not None else ()
        self._made = Made(str(shape.transform) if shape.transform is not None else None, mapping)

    async def run(self) -> LegResult:
        """Archive what is missing, and prove it. Raises JsplanError and ApiError; then it can be run again."""
        started = time.monotonic()
        info = await self._origin_info()
        if info["created"] != self.leg.created:
            raise JsplanError(
                f"{self.leg.origin} was made anew ({info['created']}) since the range of this backfill was pinned",
                hint="Run it with --reset-range to pin the range of the new stream.",
            )
        await until_done(self._attempt, lambda: self.result.copied, self.work.observer, self._title)
        self.result.seconds = time.monotonic() - started
        return self.result

    async def _attempt(self) -> None:
        self.work.require_open()
        self.result.attempts += 1
        self.work.may_write(WRITING)
        found = await asyncio.to_thread(self._opened)
        self._require_alike(found)
        lost = await asyncio.to_thread(self._lost, found)
        spans, known = await asyncio.to_thread(self._left, found, lost)
        if not spans and self.origin in found.origins:
            self._drop_others(found, "")
            self._tell(found)
            return
        attempt = os.urandom(6).hex()
        mark = {"entry": self.work.entry_id, "hash": self._text(found), "origin": json.dumps(self.origin)}
        place = await asyncio.to_thread(found.begin, attempt, mark)
        pieces = await asyncio.to_thread(self._adopted, found, place, spans)
        await self._written(minus(spans, [Span(*piece["span"]) for piece in pieces]), known, place, attempt)
        pieces = await asyncio.to_thread(receipts, place)
        await self._committed(found, spans, pieces, attempt, [file.name for file in lost])

    # --- what is there ------------------------------------------------------------------------------------------

    def _opened(self) -> Archive:
        found = Archive.read(self.folder)
        found.finish()
        return found

    def _require_alike(self, found: Archive) -> None:
        """Raise ArchiveError where messages of the origin are there that became something else on their way."""
        other = next((one.made for one in found.origins.get(self.origin, []) if one.made != self._made), None)
        if other is not None:
            raise ArchiveError(
                f"{self.folder} has messages of {self.leg.origin} that went through {other}, and this entry has {self._made}: an archive "
                "has each message once",
                hint="Name another folder.",
            )

    def _lost(self, found: Archive) -> list[File]:
        """Files of the origin that are gone. Raises ArchiveError for one that this entry would not write whole again."""
        every = [found.files[name] for name in found.gone()]
        mine = [(commit, file) for commit, file in every if commit.origin == self.origin]
        for commit, file in mine:
            if not self._chosen.covers(commit.chosen):
                raise ArchiveError(
                    f"{file.name} of the archive {self.folder} is gone, and has messages that this entry does not want",
                    hint=f"Run {commit.entry}, which wrote it, or this entry without filter_subjects and where.",
                )
        return [file for _, file in mine]

    def _left(self, found: Archive, lost: list[File]) -> tuple[list[Span], Known]:
        """What has not been read yet, and messages among it that the archive has from a reading that wanted others."""
        commits = found.origins.get(self.origin, [])
        read, again = covered(commits, self._chosen, lost)
        whole = [self.leg.span] if self.leg.span.size > 0 else []
        spans = minus(whole, minus(read, again))
        there = [file for file in found.of(self.origin) if file not in lost and common(spans, [Span(file.first_seq, file.last_seq)])]
        return spans, Known(*sequences_of((str(self.folder / file.name), file) for file in there))

    def _adopted(self, found: Archive, place: Path, spans: list[Span]) -> list[dict[str, Any]]:
        """Take over the pieces that attempts which died have finished, as far as they are still meant. Nobody writes to those again."""
        for _, mark, other in found.attempts(self.work.entry_id):
            if other == place or (mark["hash"], mark["origin"]) != (self._text(found), json.dumps(self.origin)):
                continue
            for piece in receipts(other):
                span = Span(*piece["span"])
                if common(spans, [span]) == [span] and not common([Span(*one["span"]) for one in receipts(place)], [span]):
                    _move(piece, other, place)
        if found_ones := receipts(place):
            self.work.observer.phase(f"Resuming with {sum(one['rows'] for one in found_ones):,} messages of an earlier attempt")
        return found_ones

    # --- doing it -----------------------------------------------------------------------------------------------

    async def _written(self, spans: list[Span], known: Known, place: Path, attempt: str) -> None:
        if not spans:
            return
        piece = Piece(
            self.ends.source_way, self.ends.identity, self.origin.stream, spans[0], tuple(self.leg.filters), str(place), attempt,
            rate=self.work.entry.rate, mapping=self._shape.mapping, until=self.work.until,
        )  # fmt: skip
        pieces = [replace(piece, span=span) for span in _cut(spans, await self._step(spans))]
        await self.work.engine.session()
        self.work.observer.phase(f"Archiving {self._title}")
        if self._shape.needs_rows:
            for some in [[one] for one in pieces] if self.work.until is not None else [pieces]:
                await self._shaped([piece.span for piece in some] if self.work.until is not None else spans, known, some, place)
            return
        pieces = [replace(one, known=_inside(known.seq, one.span)) for one in pieces]
        lanes = [tuple(pieces)] if piece.rate else [(one,) for one in pieces]
        job = self.work.engine.run([partial(archive, lane) for lane in lanes], self._title)
        await self._watched(job, place, total(spans))

    async def _shaped(self, spans: list[Span], known: Known, pieces: list[Piece], place: Path) -> None:
        """The same of what SQL and a function make of the messages. A piece of which they leave nothing has no writer, so its receipt is
        written here, when all of them are done.
        """
        shape, entry, way = self._shape, self.work.entry, self.ends.source_way
        filters, until = tuple(self.leg.filters), self.work.until
        leg = Copy(way, self.ends.identity, self.origin.stream, tuple(spans), filters, way, "", "", known, until=until)
        cuts = tuple(piece.span.first for piece in pieces)
        job = Job((), (leg,), "stream", (), shape.where, shape.transform, shape.mapping, entry.rate, cuts)
        said = await self._watched(self.work.engine.pieces(job, pieces, self._title), place, total(spans))
        some = {one["lane"] for one in said}
        await asyncio.to_thread(leave_empty, [piece for number, piece in enumerate(pieces) if number not in some])

    async def _step(self, spans: list[Span]) -> int:
        """How many sequences a piece has."""
        state = (await self._origin_info())["state"]
        each: int = max(1, state["bytes"] // max(1, state["messages"]))
        size = min(SIZE, portion(self.work.entry) or SIZE)
        return max(1, min(SEQUENCES, size // each, max(WORTHWHILE, -(-total(spans) // LANES))))

    async def _watched(self, job: Any, place: Path, messages: int) -> Any:
        task, started = asyncio.ensure_future(job), time.monotonic()
        while not (await asyncio.wait([task], timeout=PERIOD))[0]:
            done = sum(piece["rows"] for piece in await asyncio.to_thread(receipts, place))
            self.work.observer.event(
                MessagesMoved(self.leg.origin, f"{self._title}: archiving", done, messages, time.monotonic() - started)
            )
        return task.result()

    async def _committed(self, found: Archive, spans: list[Span], pieces: list[dict[str, Any]], attempt: str, lost: list[str]) -> None:
        """Make the pieces a part of the archive, all of them or none."""
        if left := minus(spans, merged(sorted(Span(*piece["span"]) for piece in pieces))):
            raise JsplanError(
                f"nothing of sequence {left[0].first:,} of {self.leg.origin} is in {self.folder}, and a worker has written it",
                hint="On a cluster the driver and every worker must reach the archive under the same path.",
            )
        files = [File(**file) for piece in pieces for file in piece["files"]]
        gaps = await self._gaps(spans, found, attempt, files)
        commit = Commit(
            self.work.entry_id, self.origin, self.leg.first, self.leg.last, list(self.leg.filters), [list(span) for span in spans], attempt,
            stamp(), files, [list(gap) for gap in gaps[:LISTED]], total(gaps), self._origins, lost, self._chosen.where,
            self._made.transform, list(self._made.subject_transform) or None,
        )  # fmt: skip
        self.work.may_write(WRITING)
        done = await asyncio.to_thread(found.commit, commit)
        self.result.copied += sum(file.rows for file in files)
        self.result.bytes += sum(piece["bytes"] for piece in pieces)
        self.result.path, self.result.verified = "spark, as Parquet", bool(files)
        await asyncio.to_thread(self._drop_others, done, attempt)
        self._tell(done)

    async def _gaps(self, spans: list[Span], found: Archive, attempt: str, files: list[File]) -> list[Span]:
        """Sequences that were gone before they could be archived. Of what is chosen only what is gone counts."""
        placed = [(str(staged_at(found.folder, attempt, file.name)), file) for file in files]
        seqs, _ = await asyncio.to_thread(sequences_of, placed)
        left = without(spans, seqs)
        return common(left, await self._missing.gone()) if self.leg.filters or self._shape.needs_rows else left

    def _drop_others(self, found: Archive, attempt: str) -> None:
        """What attempts of this entry at this stream left is committed, or of no use."""
        for name, mark, _ in list(found.attempts(self.work.entry_id)):
            if name == attempt or mark["origin"] == json.dumps(self.origin):
                found.drop(name)

    def _tell(self, found: Archive) -> None:
        self.result.gaps, self.result.gap_messages = gaps_of(found.origins[self.origin])

    async def _origin_info(self) -> dict[str, Any]:
        ask: Callable[[], Any] = partial(promoting.target_info, self.ends.origin, self.origin.stream)
        found: dict[str, Any] = await patiently(self.ends.origin, ask)
        return found

    def _text(self, found: Archive) -> str:
        """What a piece must have been made for: the same range of the same stream, on top of the same commits."""
        made = f"{self.leg.created} {self.leg.first} {self.leg.last} {len(found.origins.get(self.origin, []))}"
        return f"{self.work.text} {made} {self._shape.fingerprint}"

    @property
    def _title(self) -> str:
        return f"{self.leg.origin} to {self.leg.target}"


def _cut(spans: list[Span], step: int) -> Iterator[Span]:
    for span in spans:
        yield from (Span(first, min(span.last, first + step - 1)) for first in range(span.first, span.last + 1, step))


def _inside(seqs: np.ndarray[Any, Any], span: Span) -> np.ndarray[Any, Any]:
    return seqs[np.searchsorted(seqs, span.first) : np.searchsorted(seqs, span.last, side="right")]


def _move(piece: dict[str, Any], other: Path, place: Path) -> None:
    """The files first: a receipt is believed. One whose files somebody began to move and died is left."""
    if not all((other / file["name"]).exists() for file in piece["files"]):
        return
    for file in piece["files"]:  # `receipts` has checked the names
        (place / file["name"]).parent.mkdir(exist_ok=True)
        (other / file["name"]).rename(place / file["name"])
    name = f"piece-{piece['span'][0]}-{piece['span'][1]}.json"
    (other / name).rename(place / name)
