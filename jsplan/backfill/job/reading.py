"""What tasks find out at the target: what of an origin is there already, and whether everything of a staging stream has arrived."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.job.copying import Known
from jsplan.backfill.job.digests import Blocks, canonical, origin_of, source_of, sourced
from jsplan.backfill.job.numbered import numbered_in
from jsplan.backfill.job.ways import Way
from jsplan.backfill.ranges import LISTED, Span, total
from jsplan.backfill.sequence_arrays import Sequences, without
from jsplan.backfill.wire import read
from jsplan.backfill.wire.asking import from_text, stream_facts
from jsplan.backfill.wire.reading import Range
from jsplan.errors import ApiTimeoutError

#: Between two looks at a target that has nothing new, and for how long nothing new may come. Seconds.
PAUSE: Final = 0.1
PATIENCE: Final = 120.0
#: So many messages are read at once while more arrive: whoever looks often takes time from the server that stores them. With 32,768 a
#: million messages of 128 bytes took 5 % longer, and as long with all of them at the end.
STRIDE: Final = 200_000


@dataclass(frozen=True, slots=True)
class Look:
    """Find what a target has of an origin: by `Jsplan-Origin`, and what its own sources brought.

    `sources` are names as `Nats-Stream-Source` has them; what they brought before `since` (ns) was of another stream of that name.
    `placed`: it was made from a snapshot, so messages are known by their sequence and time; `mark`: how `numbered` knows the origin.
    """

    target: Way
    stream: str
    first: int
    last: int
    domain: str
    origin: str
    sources: tuple[str, ...] = ()
    since: int = 0
    placed: bool = False
    mark: str = ""


def look(task: Look) -> Known:
    """What is there; a message that is there twice counts once. Raises what `wire.read` raises."""
    seqs, times = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    what = Range(task.target.api_prefix, task.stream, task.first, task.last, headers_only=True)
    for rows in read(task.target.open, what):
        headers = rows["headers"]
        seq, text = origin_of(headers, task.domain, task.origin)
        found = pc.is_valid(seq)
        seqs.append(seq.filter(found).to_numpy())
        times.append(np.fromiter((from_text(one) for one in text.filter(found).to_pylist()), dtype=np.int64))
        came = numbered_in(headers, task.mark).drop_null()
        seqs.append(came.to_numpy())
        times.append(np.zeros(len(came), dtype=np.int64))
        if task.placed:
            seqs.append(rows["seq"].to_numpy())
            times.append(rows["time"].to_numpy())
        for source in task.sources:
            brought = source_of(headers, source)
            found = pc.and_(pc.is_valid(brought), pc.greater_equal(rows["time"], task.since))
            seqs.append(brought.filter(found).to_numpy())
            times.append(np.zeros(len(seqs[-1]), dtype=np.int64))
    return known(np.concatenate(seqs).astype(np.int64), np.concatenate(times))


def known(seqs: Sequences, times: Sequences) -> Known:
    """Sorted by sequence and time, each pair once."""
    order = np.lexsort((times, seqs))
    seqs, times = seqs[order], times[order]
    first = np.ones(len(seqs), dtype=bool)
    first[1:] = (np.diff(seqs) != 0) | (np.diff(times) != 0)
    return Known(seqs[first], times[first])


@dataclass(frozen=True, slots=True)
class Follow:
    """Read what a target takes from a staging stream with `messages` messages, from `first` on, until it has all of them.

    `expected` are sequences at the origin that should be among them: those that are not are returned as gaps. `base` and `numbered` are
    those of the staging stream.
    """

    target: Way
    stream: str
    first: int
    stage: str
    messages: int
    domain: str
    origin: str
    expected: tuple[Span, ...] = ()
    base: int = 0
    numbered: bool = False


@dataclass(slots=True)
class _Seen:
    blocks: Blocks
    last: int = 0
    twice: int = 0
    first_place: int = 0
    last_place: int = 0
    natively: int = 0


def follow(tasks: Sequence[Follow], patience: float = PATIENCE) -> Iterator[dict[str, Any]]:
    """Carry them out, of staging streams that one target takes at the same time, in one reading of it; of each come the hashes of what
    arrived, in order, and the gaps.

    Ends without an error when nothing more arrives for `patience` seconds: then `messages` says how many did, and `reached` which of
    the staging stream was the last.
    """
    lanes = [(task, _Seen(Blocks()), [np.empty(0, dtype=np.int64)]) for task in tasks]
    first, place, since = tasks[0], tasks[0].first, time.monotonic()
    while (left := sum(task.messages - seen.last for task, seen, _ in lanes)) > 0 and time.monotonic() - since < patience:
        end = _enough(first, place, min(STRIDE, left))
        if end < place:
            continue
        for rows in read(first.target.open, Range(first.target.api_prefix, first.stream, place, end)):
            if any([_take(task, rows, seen, origins) for task, seen, origins in lanes]):  # noqa: C419 - each of them has to look
                since = time.monotonic()
        place = end + 1
    yield from (_said(task, seen, origins) for task, seen, origins in lanes)


def _said(task: Follow, seen: _Seen, origins: list[np.ndarray[Any, Any]]) -> dict[str, Any]:
    gaps = without(task.expected, np.unique(np.concatenate(origins))) if _may_have_gaps(task) else []
    return {
        "messages": seen.blocks.count, "hashes": seen.blocks.hashes(), "twice": seen.twice, "reached": seen.last,
        "first": seen.first_place, "last": seen.last_place, "gaps": [list(gap) for gap in gaps[:LISTED]], "gap_messages": total(gaps),
        "natively": seen.natively,
    }  # fmt: skip


def _may_have_gaps(task: Follow) -> bool:
    """Messages come once each: as many as are expected are all of them."""
    return bool(task.expected) and total(task.expected) != task.messages


def _enough(task: Follow, place: int, wanted: int) -> int:
    """The target's last sequence once so many messages are there from `place` on, or no more came for a moment. 0: it does not answer."""
    wire = task.target.open()
    try:
        end = stream_facts(wire, task.target.api_prefix, task.stream).last
        while end - place + 1 < wanted:
            time.sleep(PAUSE)
            before, end = end, stream_facts(wire, task.target.api_prefix, task.stream).last
            if end == before:
                break
    except ApiTimeoutError:
        time.sleep(PAUSE)
        return 0
    finally:
        wire.close()
    return end


def _take(task: Follow, rows: pa.RecordBatch, seen: _Seen, origins: list[np.ndarray[Any, Any]]) -> bool:
    """Take the rows that came from the staging stream; whether there were any."""
    mine, block, number = sourced(rows, task.stage)
    if not len(number):
        return False
    seen.first_place = seen.first_place or int(mine["seq"][0].as_py())
    seen.last_place = int(mine["seq"][-1].as_py())
    number = number - task.base
    highest = np.maximum.accumulate(np.concatenate([[seen.last], number]))
    seen.twice += int((number <= highest[:-1]).sum())
    seen.last = int(highest[-1])
    seen.blocks.add(canonical(mine["subject"], block, mine["data"]))
    if _may_have_gaps(task) or task.numbered:
        seqs, _ = origin_of(block, task.domain, task.origin)
        if task.numbered:
            seen.natively += seqs.null_count
            seqs = pc.coalesce(seqs, pa.array(number + task.base))
        origins.append(seqs.drop_null().to_numpy())
    return True
