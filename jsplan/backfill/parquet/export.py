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

from jsplan.backfill.parquet.location import name_origin_domain, resolve_folder
from jsplan.backfill.parquet.log import (
    Archive,
    ArchivedOrigin,
    ArchiveError,
    ArchiveFile,
    Commit,
    Selection,
    Transformation,
    find_covered_ranges,
    merge_gaps,
    merge_ranges,
    read_receipts,
    staged_path,
)
from jsplan.backfill.parquet.reader import read_sequences
from jsplan.backfill.parquet.writer import ExportChunk, export_chunks, write_empty_receipts
from jsplan.backfill.pending import PendingScan
from jsplan.backfill.retry import POLL_INTERVAL, retry_transient, retry_while_progressing
from jsplan.backfill.schedule import compute_byte_budget
from jsplan.backfill.seq_arrays import subtract_present
from jsplan.backfill.seq_ranges import (
    MAX_LISTED_RANGES,
    SeqRange,
    count_sequences,
    intersect,
    subtract,
)
from jsplan.backfill.staging import WRITE_SECONDS
from jsplan.backfill.tasks import staging_sources
from jsplan.backfill.tasks.copy import CopyTask, ExistingMessages
from jsplan.backfill.tasks.partitioning import PartitionPlan
from jsplan.documents.backfill import MessagesMoved, OriginResult
from jsplan.errors import JsplanError
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.backfill.origin_copy import RunContext
    from jsplan.backfill.pinning import Endpoints
    from jsplan.backfill.seq_ranges import OriginState
    from jsplan.backfill.transforms import TransformSpec
    from jsplan.context import Context

#: A piece has at most so many sequences and about so many bytes: what is lost when a worker dies, and how large files become.
CHUNK_SEQUENCES, CHUNK_BYTES = 1_000_000, 256 << 20
#: Into so many pieces a range is cut if it has at least so many messages for each.
PARALLEL_CHUNKS, MIN_CHUNK_MESSAGES = 4, 50_000


class ParquetExport:
    """Carries out one leg into an archive. `result` says at any time how far it is."""

    def __init__(
        self,
        world: Context,
        work: RunContext,
        leg: OriginState,
        ends: Endpoints,
        shape: TransformSpec,
    ) -> None:
        self.context = work
        self.origin_state = leg
        self.endpoints = ends
        self.result = OriginResult(leg.origin, leg.target, leg.first, leg.last)
        self.folder = resolve_folder(world, leg.target)
        self.origin = ArchivedOrigin(
            ends.origin_domain_name, leg.origin_address.stream, leg.created
        )
        domains = world.workspace.domains
        self._origins = sorted(
            {
                f"{name_origin_domain(domains[side.domain])}/{side.stream}"
                for side in work.entry.origins
            }
        )
        self._pending_scan = PendingScan(leg, ends, work.topology)
        self._transforms = shape
        self._selection = Selection(tuple(sorted(leg.filters)), shape.where)
        mapping = (
            (shape.subject_transform.src, shape.subject_transform.dest)
            if shape.subject_transform is not None
            else ()
        )
        self._transformation = Transformation(
            str(shape.transform) if shape.transform is not None else None, mapping
        )

    async def run(self) -> OriginResult:
        """Archive what is missing, and prove it. Raises JsplanError and ApiError; then it can be run again."""
        started = time.monotonic()
        info = await self._fetch_origin_info()
        if info["created"] != self.origin_state.created:
            raise JsplanError(
                f"{self.origin_state.origin} was made anew ({info['created']}) since the range of this backfill was pinned",
                hint="Run it with --reset-range to pin the range of the new stream.",
            )
        await retry_while_progressing(
            self._attempt, lambda: self.result.copied, self.context.observer, self._title
        )
        self.result.seconds = time.monotonic() - started
        return self.result

    async def _attempt(self) -> None:
        self.context.require_open()
        self.result.attempts += 1
        self.context.may_write(WRITE_SECONDS)
        found = await asyncio.to_thread(self._open_archive)
        self._require_same_transformation(found)
        lost = await asyncio.to_thread(self._find_lost_files, found)
        spans, known = await asyncio.to_thread(self._find_unread, found, lost)
        if not spans and self.origin in found.origins:
            self._drop_attempts(found, "")
            self._report_gaps(found)
            return
        attempt = os.urandom(6).hex()
        mark = {
            "entry": self.context.entry_id,
            "hash": self._build_fingerprint(found),
            "origin": json.dumps(self.origin),
        }
        place = await asyncio.to_thread(found.begin_attempt, attempt, mark)
        pieces = await asyncio.to_thread(self._adopt_chunks, found, place, spans)
        await self._write_chunks(
            subtract(spans, [SeqRange(*piece["span"]) for piece in pieces]), known, place, attempt
        )
        pieces = await asyncio.to_thread(read_receipts, place)
        await self._commit_chunks(found, spans, pieces, attempt, [file.name for file in lost])

    # --- what is there ------------------------------------------------------------------------------------------

    def _open_archive(self) -> Archive:
        found = Archive.read(self.folder)
        found.finish_commits()
        return found

    def _require_same_transformation(self, found: Archive) -> None:
        """Raise ArchiveError where messages of the origin are there that became something else on their way."""
        other = next(
            (
                one.transformation
                for one in found.origins.get(self.origin, [])
                if one.transformation != self._transformation
            ),
            None,
        )
        if other is not None:
            raise ArchiveError(
                f"{self.folder} has messages of {self.origin_state.origin} that went through {other}, and this entry has {self._transformation}: an archive "
                "has each message once",
                hint="Name another folder.",
            )

    def _find_lost_files(self, found: Archive) -> list[ArchiveFile]:
        """Files of the origin that are gone. Raises ArchiveError for one that this entry would not write whole again."""
        every = [found.files[name] for name in found.find_missing_files()]
        mine = [(commit, file) for commit, file in every if commit.origin == self.origin]
        for commit, file in mine:
            if not self._selection.covers(commit.selection):
                raise ArchiveError(
                    f"{file.name} of the archive {self.folder} is gone, and has messages that this entry does not want",
                    hint=f"Run {commit.entry}, which wrote it, or this entry without filter_subjects and where.",
                )
        return [file for _, file in mine]

    def _find_unread(
        self, found: Archive, lost: list[ArchiveFile]
    ) -> tuple[list[SeqRange], ExistingMessages]:
        """What has not been read yet, and messages among it that the archive has from a reading that wanted others."""
        commits = found.origins.get(self.origin, [])
        read, again = find_covered_ranges(commits, self._selection, lost)
        whole = [self.origin_state.seq_range] if self.origin_state.seq_range.size > 0 else []
        spans = subtract(whole, subtract(read, again))
        there = [
            file
            for file in found.files_of(self.origin)
            if file not in lost and intersect(spans, [SeqRange(file.first_seq, file.last_seq)])
        ]
        return spans, ExistingMessages(
            *read_sequences((str(self.folder / file.name), file) for file in there)
        )

    def _adopt_chunks(
        self, found: Archive, place: Path, spans: list[SeqRange]
    ) -> list[dict[str, Any]]:
        """Take over the pieces that attempts which died have finished, as far as they are still meant. Nobody writes to those again."""
        for _, mark, other in found.list_attempts(self.context.entry_id):
            if other == place or (mark["hash"], mark["origin"]) != (
                self._build_fingerprint(found),
                json.dumps(self.origin),
            ):
                continue
            for piece in read_receipts(other):
                span = SeqRange(*piece["span"])
                if intersect(spans, [span]) == [span] and not intersect(
                    [SeqRange(*one["span"]) for one in read_receipts(place)], [span]
                ):
                    _move_chunk(piece, other, place)
        if found_ones := read_receipts(place):
            self.context.observer.phase(
                f"Resuming with {sum(one['rows'] for one in found_ones):,} messages of an earlier attempt"
            )
        return found_ones

    # --- doing it -----------------------------------------------------------------------------------------------

    async def _write_chunks(
        self, spans: list[SeqRange], known: ExistingMessages, place: Path, attempt: str
    ) -> None:
        if not spans:
            return
        piece = ExportChunk(
            self.endpoints.source_endpoint,
            self.endpoints.origin_domain_name,
            self.origin.stream,
            spans[0],
            tuple(self.origin_state.filters),
            str(place),
            attempt,
            rate=self.context.entry.rate,
            subject_transform=self._transforms.subject_transform,
            deadline=self.context.deadline,
        )
        pieces = [
            replace(piece, span=span)
            for span in _split_ranges(spans, await self._compute_chunk_sequences(spans))
        ]
        await self.context.runner.session()
        self.context.observer.phase(f"Archiving {self._title}")
        if self._transforms.needs_rows:
            for some in (
                [[one] for one in pieces] if self.context.deadline is not None else [pieces]
            ):
                await self._write_transformed(
                    [piece.span for piece in some] if self.context.deadline is not None else spans,
                    known,
                    some,
                    place,
                )
            return
        pieces = [replace(one, existing=_slice_range(known.seq, one.span)) for one in pieces]
        lanes = [tuple(pieces)] if piece.rate else [(one,) for one in pieces]
        job = self.context.runner.run([partial(export_chunks, lane) for lane in lanes], self._title)
        await self._watch_progress(job, place, count_sequences(spans))

    async def _write_transformed(
        self, spans: list[SeqRange], known: ExistingMessages, pieces: list[ExportChunk], place: Path
    ) -> None:
        """The same of what SQL and a function make of the messages. A piece of which they leave nothing has no writer, so its receipt is
        written here, when all of them are done.
        """
        shape, entry, way = self._transforms, self.context.entry, self.endpoints.source_endpoint
        filters, until = tuple(self.origin_state.filters), self.context.deadline
        leg = CopyTask(
            way,
            self.endpoints.origin_domain_name,
            self.origin.stream,
            tuple(spans),
            filters,
            way,
            "",
            "",
            known,
            deadline=until,
        )
        cuts = tuple(piece.span.first for piece in pieces)
        job = PartitionPlan(
            (),
            (leg,),
            "stream",
            (),
            shape.where,
            shape.transform,
            shape.subject_transform,
            entry.rate,
            cuts,
        )
        said = await self._watch_progress(
            self.context.runner.run_export(job, pieces, self._title), place, count_sequences(spans)
        )
        some = {one["lane"] for one in said}
        await asyncio.to_thread(
            write_empty_receipts,
            [piece for number, piece in enumerate(pieces) if number not in some],
        )

    async def _compute_chunk_sequences(self, spans: list[SeqRange]) -> int:
        """How many sequences a piece has."""
        state = (await self._fetch_origin_info())["state"]
        each: int = max(1, state["bytes"] // max(1, state["messages"]))
        size = min(CHUNK_BYTES, compute_byte_budget(self.context.entry) or CHUNK_BYTES)
        return max(
            1,
            min(
                CHUNK_SEQUENCES,
                size // each,
                max(MIN_CHUNK_MESSAGES, -(-count_sequences(spans) // PARALLEL_CHUNKS)),
            ),
        )

    async def _watch_progress(self, job: Any, place: Path, messages: int) -> Any:
        task, started = asyncio.ensure_future(job), time.monotonic()
        while not (await asyncio.wait([task], timeout=POLL_INTERVAL))[0]:
            done = sum(piece["rows"] for piece in await asyncio.to_thread(read_receipts, place))
            self.context.observer.event(
                MessagesMoved(
                    self.origin_state.origin,
                    f"{self._title}: archiving",
                    done,
                    messages,
                    time.monotonic() - started,
                )
            )
        return task.result()

    async def _commit_chunks(
        self,
        found: Archive,
        spans: list[SeqRange],
        pieces: list[dict[str, Any]],
        attempt: str,
        lost: list[str],
    ) -> None:
        """Make the pieces a part of the archive, all of them or none."""
        if left := subtract(
            spans, merge_ranges(sorted(SeqRange(*piece["span"]) for piece in pieces))
        ):
            raise JsplanError(
                f"nothing of sequence {left[0].first:,} of {self.origin_state.origin} is in {self.folder}, and a worker has written it",
                hint="On a cluster the driver and every worker must reach the archive under the same path.",
            )
        files = [ArchiveFile(**file) for piece in pieces for file in piece["files"]]
        gaps = await self._find_gaps(spans, found, attempt, files)
        commit = Commit(
            self.context.entry_id,
            self.origin,
            self.origin_state.first,
            self.origin_state.last,
            list(self.origin_state.filters),
            [list(span) for span in spans],
            attempt,
            format_timestamp(),
            files,
            [list(gap) for gap in gaps[:MAX_LISTED_RANGES]],
            count_sequences(gaps),
            self._origins,
            lost,
            self._selection.where,
            self._transformation.transform,
            list(self._transformation.subject_transform) or None,
        )
        self.context.may_write(WRITE_SECONDS)
        done = await asyncio.to_thread(found.commit, commit)
        self.result.copied += sum(file.rows for file in files)
        self.result.bytes += sum(piece["bytes"] for piece in pieces)
        self.result.path, self.result.verified = "spark, as Parquet", bool(files)
        await asyncio.to_thread(self._drop_attempts, done, attempt)
        self._report_gaps(done)

    async def _find_gaps(
        self, spans: list[SeqRange], found: Archive, attempt: str, files: list[ArchiveFile]
    ) -> list[SeqRange]:
        """Sequences that were gone before they could be archived. Of what is chosen only what is gone counts."""
        placed = [(str(staged_path(found.folder, attempt, file.name)), file) for file in files]
        seqs, _ = await asyncio.to_thread(read_sequences, placed)
        left = subtract_present(spans, seqs)
        return (
            intersect(left, await self._pending_scan.find_gone())
            if self.origin_state.filters or self._transforms.needs_rows
            else left
        )

    def _drop_attempts(self, found: Archive, attempt: str) -> None:
        """What attempts of this entry at this stream left is committed, or of no use."""
        for name, mark, _ in list(found.list_attempts(self.context.entry_id)):
            if name == attempt or mark["origin"] == json.dumps(self.origin):
                found.drop_attempt(name)

    def _report_gaps(self, found: Archive) -> None:
        self.result.gaps, self.result.gap_messages = merge_gaps(found.origins[self.origin])

    async def _fetch_origin_info(self) -> dict[str, Any]:
        ask: Callable[[], Any] = partial(
            staging_sources.require_stream_info, self.endpoints.origin, self.origin.stream
        )
        found: dict[str, Any] = await retry_transient(self.endpoints.origin, ask)
        return found

    def _build_fingerprint(self, found: Archive) -> str:
        """What a piece must have been made for: the same range of the same stream, on top of the same commits."""
        made = f"{self.origin_state.created} {self.origin_state.first} {self.origin_state.last} {len(found.origins.get(self.origin, []))}"
        return f"{self.context.config_hash} {made} {self._transforms.fingerprint}"

    @property
    def _title(self) -> str:
        return f"{self.origin_state.origin} to {self.origin_state.target}"


def _split_ranges(spans: list[SeqRange], step: int) -> Iterator[SeqRange]:
    for span in spans:
        yield from (
            SeqRange(first, min(span.last, first + step - 1))
            for first in range(span.first, span.last + 1, step)
        )


def _slice_range(seqs: np.ndarray[Any, Any], span: SeqRange) -> np.ndarray[Any, Any]:
    return seqs[np.searchsorted(seqs, span.first) : np.searchsorted(seqs, span.last, side="right")]


def _move_chunk(piece: dict[str, Any], other: Path, place: Path) -> None:
    """The files first: a receipt is believed. One whose files somebody began to move and died is left."""
    if not all((other / file["name"]).exists() for file in piece["files"]):
        return
    for file in piece["files"]:  # `read_receipts` has checked the names
        (place / file["name"]).parent.mkdir(exist_ok=True)
        (other / file["name"]).rename(place / file["name"])
    name = f"piece-{piece['span'][0]}-{piece['span'][1]}.json"
    (other / name).rename(place / name)
