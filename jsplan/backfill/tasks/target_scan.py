"""What tasks find out at the target: what of an origin is there already, and whether everything of a staging stream has arrived."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import fetch_stream_info, parse_time
from jsplan.backfill.seq_arrays import SeqArray, subtract_present
from jsplan.backfill.seq_ranges import MAX_LISTED_RANGES, SeqRange, count_sequences
from jsplan.backfill.tasks.copy import ExistingMessages
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import (
    BlockHasher,
    encode_canonical,
    extract_sourced,
    parse_origin_header,
    parse_source_header,
)
from jsplan.backfill.tasks.sequence_identity import find_staged_sequences
from jsplan.errors import ApiTimeoutError

#: Between two looks at a target that has nothing new, and for how long nothing new may come. Seconds.
POLL_PAUSE: Final = 0.1
IDLE_TIMEOUT: Final = 120.0
#: So many messages are read at once while more arrive: whoever looks often takes time from the server that stores them. With 32,768 a
#: million messages of 128 bytes took 5 % longer, and as long with all of them at the end.
READ_STRIDE: Final = 200_000


@dataclass(frozen=True, slots=True)
class TargetScan:
    """Find what a target has of an origin: by `Jsplan-Origin`, and what its own sources brought.

    `source_names` are names as `Nats-Stream-Source` has them; what they brought before `created_at` (ns) was of another stream of that name.
    `is_restored`: it was made from a snapshot, so messages are known by their sequence and time; `origin_hash`: how `keeps_sequences` knows the origin.
    """

    target: Endpoint
    stream: str
    first: int
    last: int
    domain: str
    origin: str
    source_names: tuple[str, ...] = ()
    created_at: int = 0
    is_restored: bool = False
    origin_hash: str = ""


def scan_target(task: TargetScan) -> ExistingMessages:
    """What is there; a message that is there twice counts once. Raises what `wire.read` raises."""
    seqs, times = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    what = ReadRequest(
        task.target.api_prefix, task.stream, task.first, task.last, headers_only=True
    )
    for rows in read(task.target.open, what):
        headers = rows["headers"]
        seq, text = parse_origin_header(headers, task.domain, task.origin)
        found = pc.is_valid(seq)
        seqs.append(seq.filter(found).to_numpy())
        times.append(
            np.fromiter((parse_time(one) for one in text.filter(found).to_pylist()), dtype=np.int64)
        )
        came = find_staged_sequences(headers, task.origin_hash).drop_null()
        seqs.append(came.to_numpy())
        times.append(np.zeros(len(came), dtype=np.int64))
        if task.is_restored:
            seqs.append(rows["seq"].to_numpy())
            times.append(rows["time"].to_numpy())
        for source in task.source_names:
            brought = parse_source_header(headers, source)
            found = pc.and_(pc.is_valid(brought), pc.greater_equal(rows["time"], task.created_at))
            seqs.append(brought.filter(found).to_numpy())
            times.append(np.zeros(len(seqs[-1]), dtype=np.int64))
    return build_existing(np.concatenate(seqs).astype(np.int64), np.concatenate(times))


def build_existing(seqs: SeqArray, times: SeqArray) -> ExistingMessages:
    """Sorted by sequence and time, each pair once."""
    order = np.lexsort((times, seqs))
    seqs, times = seqs[order], times[order]
    first = np.ones(len(seqs), dtype=bool)
    first[1:] = (np.diff(seqs) != 0) | (np.diff(times) != 0)
    return ExistingMessages(seqs[first], times[first])


@dataclass(frozen=True, slots=True)
class PromotionScan:
    """Read what a target takes from a staging stream with `messages` messages, from `first` on, until it has all of them.

    `expected` are sequences at the origin that should be among them: those that are not are returned as gaps. `base_seq` and `keeps_sequences` are
    those of the staging stream.
    """

    target: Endpoint
    stream: str
    first: int
    staging_stream: str
    messages: int
    domain: str
    origin: str
    expected: tuple[SeqRange, ...] = ()
    base_seq: int = 0
    keeps_sequences: bool = False


@dataclass(slots=True)
class _PromotionProgress:
    hasher: BlockHasher
    last_staged_seq: int = 0
    duplicates: int = 0
    first_target_seq: int = 0
    last_target_seq: int = 0
    untagged: int = 0


def scan_promotions(
    tasks: Sequence[PromotionScan], patience: float = IDLE_TIMEOUT
) -> Iterator[dict[str, Any]]:
    """Carry them out, of staging streams that one target takes at the same time, in one reading of it; of each come the hashes of what
    arrived, in order, and the gaps.

    Ends without an error when nothing more arrives for `patience` seconds: then `messages` says how many did, and `reached` which of
    the staging stream was the last.
    """
    lanes = [
        (task, _PromotionProgress(BlockHasher()), [np.empty(0, dtype=np.int64)]) for task in tasks
    ]
    first, place, since = tasks[0], tasks[0].first, time.monotonic()
    while (
        left := sum(task.messages - seen.last_staged_seq for task, seen, _ in lanes)
    ) > 0 and time.monotonic() - since < patience:
        end = _await_messages(first, place, min(READ_STRIDE, left))
        if end < place:
            continue
        for rows in read(
            first.target.open, ReadRequest(first.target.api_prefix, first.stream, place, end)
        ):
            if any([_add_rows(task, rows, seen, origins) for task, seen, origins in lanes]):  # noqa: C419 - each of them has to look
                since = time.monotonic()
        place = end + 1
    yield from (_to_result(task, seen, origins) for task, seen, origins in lanes)


def _to_result(
    task: PromotionScan, seen: _PromotionProgress, origins: list[np.ndarray[Any, Any]]
) -> dict[str, Any]:
    gaps = (
        subtract_present(task.expected, np.unique(np.concatenate(origins)))
        if _may_have_gaps(task)
        else []
    )
    return {
        "messages": seen.hasher.count,
        "hashes": seen.hasher.hashes(),
        "twice": seen.duplicates,
        "reached": seen.last_staged_seq,
        "first": seen.first_target_seq,
        "last": seen.last_target_seq,
        "gaps": [list(gap) for gap in gaps[:MAX_LISTED_RANGES]],
        "gap_messages": count_sequences(gaps),
        "natively": seen.untagged,
    }


def _may_have_gaps(task: PromotionScan) -> bool:
    """Messages come once each: as many as are expected are all of them."""
    return bool(task.expected) and count_sequences(task.expected) != task.messages


def _await_messages(task: PromotionScan, place: int, wanted: int) -> int:
    """The target's last sequence once so many messages are there from `place` on, or no more came for a moment. 0: it does not answer."""
    wire = task.target.open()
    try:
        end = fetch_stream_info(wire, task.target.api_prefix, task.stream).last
        while end - place + 1 < wanted:
            time.sleep(POLL_PAUSE)
            before, end = end, fetch_stream_info(wire, task.target.api_prefix, task.stream).last
            if end == before:
                break
    except ApiTimeoutError:
        time.sleep(POLL_PAUSE)
        return 0
    finally:
        wire.close()
    return end


def _add_rows(
    task: PromotionScan,
    rows: pa.RecordBatch,
    seen: _PromotionProgress,
    origins: list[np.ndarray[Any, Any]],
) -> bool:
    """Take the rows that came from the staging stream; whether there were any."""
    mine, block, number = extract_sourced(rows, task.staging_stream)
    if not len(number):
        return False
    seen.first_target_seq = seen.first_target_seq or int(mine["seq"][0].as_py())
    seen.last_target_seq = int(mine["seq"][-1].as_py())
    number = number - task.base_seq
    highest = np.maximum.accumulate(np.concatenate([[seen.last_staged_seq], number]))
    seen.duplicates += int((number <= highest[:-1]).sum())
    seen.last_staged_seq = int(highest[-1])
    seen.hasher.add(encode_canonical(mine["subject"], block, mine["data"]))
    if _may_have_gaps(task) or task.keeps_sequences:
        seqs, _ = parse_origin_header(block, task.domain, task.origin)
        if task.keeps_sequences:
            seen.untagged += seqs.null_count
            seqs = pc.coalesce(seqs, pa.array(number + task.base_seq))
        origins.append(seqs.drop_null().to_numpy())
    return True
