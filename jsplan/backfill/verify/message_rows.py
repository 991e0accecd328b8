"""What verify reads of both sides: of each message where it comes from and a hash of what a copy keeps of it, as small columns.

Only those leave the process that reads; they are joined elsewhere. Each side is read once, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.message_schema import (
    KEPT_PREFIX,
    ORIGIN_HEADER,
    contains_bytes,
    neutralize_headers,
)
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.arrow_split import get_buffers
from jsplan.backfill.protocol.frames import BYTES, concat_rows
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import (
    SOURCE_HEADER,
    encode_canonical,
    parse_origin_header,
    parse_source_header,
    split_last_line,
    strip_transport_headers,
)
from jsplan.backfill.tasks.sequence_identity import EMPTY_BLOCK, find_staged_sequences
from jsplan.backfill.tasks.staging_streams import STAGING_PREFIX
from jsplan.units import SECOND

#: `side` is 0 at the origin and 1 at the target; `time` is ns (0: not told); `place` is the sequence at the target; `origin_hash` is a sum of the
#: numbers below. `said` is an error.
ROW_SCHEMA: Final = pa.schema(
    [
        ("leg", pa.int32()), ("seq", pa.int64()), ("side", pa.int32()), ("time", pa.int64()), ("digest", pa.int64()),
        ("place", pa.int64()), ("mark", pa.int32()), ("said", pa.string()),
    ]
)  # fmt: skip
#: After one with a later origin, in what was copied at once; after one that an earlier run had brought; never there to be copied; left out.
LATE, REPAIRED, IMPOSSIBLE, SKIPPED = 1, 2, 4, 8
#: The leg of what belongs to none.
NO_ORIGIN: Final = -1
#: What stands for a time that is not told; it is 0 as a number.
_UNKNOWN_TIME: Final = "1970-01-01T00:00:00.000000000Z"
_ORIGIN_LINE: Final = f"\r\n{ORIGIN_HEADER}:[^\r]*"
#: What a server does not carry along when it copies natively.
_DROPPED_HEADERS: Final = f"\r\n{KEPT_PREFIX}(?:Nats-Expected-[^:\r]*|{SOURCE_HEADER}):[^\r]*"
_SOURCE_PATTERN: Final = (
    f"\r\n{SOURCE_HEADER}: ?(?P<name>[^ \r]*) [0-9]+(?: [^ \r]* [^ \r]* (?P<subject>[^ \r]*))?"
)


@dataclass(frozen=True, slots=True)
class ComparedOrigin:
    """One leg: what both sides must know of it. `source_names` are names of the origin in `Nats-Stream-Source`; `created_at` is when the origin was
    made (ns), `last_possible_seq` its last sequence. `gaps` were never there to be copied, `skipped` were left out; `origin_hash` as in `numbered`.
    """

    number: int
    domain: str
    stream: str
    first: int
    last: int
    filters: tuple[str, ...]
    created_at: int
    last_possible_seq: int
    source_names: tuple[str, ...] = ()
    ignores_dropped_headers: bool = False
    gaps: tuple[tuple[int, int], ...] = ()
    skipped: tuple[int, ...] = ()
    origin_hash: str = ""


def read_origin_rows(endpoint: Endpoint, leg: ComparedOrigin) -> Iterator[pa.RecordBatch]:
    """The origin's side of a leg. Raises what `wire.read` raises."""
    if leg.first > leg.last:
        return
    for rows in read(
        endpoint.open,
        ReadRequest(endpoint.api_prefix, leg.stream, leg.first, leg.last, leg.filters),
    ):
        yield to_stored_rows(leg, rows)


def to_stored_rows(leg: ComparedOrigin, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The origin's side of messages as it has them."""
    seq = rows["seq"].to_numpy()
    mark = np.where(np.isin(seq, np.array(sorted(leg.skipped), dtype=np.int64)), SKIPPED, 0)
    hashes = _hash_messages(
        rows["subject"],
        _expected_headers(rows["headers"], leg.ignores_dropped_headers),
        rows["data"],
    )
    return _build_batch(
        leg.number,
        seq,
        0,
        rows["time"].to_numpy(),
        hashes,
        np.zeros(len(seq), dtype=np.int64),
        mark,
    )


@dataclass(slots=True)
class OrderTracker:
    """The highest origin so far: of everything that came, of what our copies brought, and of each copy by its staging stream."""

    highest: int = 0
    highest_copied: int = 0
    highest_by_stage: dict[str, int] = field(default_factory=dict)

    def mark_rows(self, names: pa.Array, seqs: SeqArray) -> np.ndarray[Any, Any]:
        """LATE or REPAIRED for each row; `names` are staging streams, empty for what came by itself."""
        encoded = pc.dictionary_encode(names)
        marks = np.zeros(len(seqs), dtype=np.int64)
        after_copies, self.highest_copied = _running_maximum(self.highest_copied, seqs)
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            inside = encoded.indices.to_numpy() == code
            if name:
                before, self.highest_by_stage[name] = _running_maximum(
                    self.highest_by_stage.get(name, 0), seqs[inside]
                )
                marks[inside] = np.where(
                    seqs[inside] < before,
                    LATE,
                    np.where(seqs[inside] < after_copies[inside], REPAIRED, 0),
                )
            else:
                marks[inside] = np.where(seqs[inside] < after_copies[inside], LATE, 0)
        return marks


def _running_maximum(highest: int, seqs: SeqArray) -> tuple[SeqArray, int]:
    """What was the highest before each, and in the end."""
    found = np.maximum.accumulate(np.concatenate([np.array([highest], dtype=np.int64), seqs]))
    return found[:-1], int(found[-1])


def read_target_rows(
    endpoint: Endpoint, stream: str, first: int, last: int, legs: tuple[ComparedOrigin, ...]
) -> Iterator[pa.RecordBatch]:
    """The target's side of all legs, in one reading; then how many messages are of none. Raises what `wire.read` raises."""
    orders, others = {leg.number: OrderTracker() for leg in legs}, 0
    for rows in (
        read(endpoint.open, ReadRequest(endpoint.api_prefix, stream, first, last))
        if first <= last
        else ()
    ):
        taken = 0
        for leg in legs:
            for batch in (
                extract_copied_rows(leg, rows, orders[leg.number]),
                *(extract_sourced_rows(leg, rows, name) for name in leg.source_names),
            ):
                if batch is not None:
                    taken += batch.num_rows
                    yield batch
        others += rows.num_rows - taken
    none = np.zeros(1, dtype=np.int64)
    yield _build_batch(NO_ORIGIN, none, 1, none, none, np.array([others], dtype=np.int64), none)


def extract_copied_rows(
    leg: ComparedOrigin, rows: pa.RecordBatch, order: OrderTracker
) -> pa.RecordBatch | None:
    """Of a batch what says that it comes from this origin, and what came from there without a word."""
    came = find_staged_sequences(rows["headers"], leg.origin_hash)
    mine = pc.or_(pc.match_substring(rows["headers"], build_origin_prefix(leg)), pc.is_valid(came))
    if not pc.any(mine).as_py():
        return None
    if not pc.all(mine).as_py():
        rows, came = rows.filter(mine), came.filter(mine)
    quick = _parse_uniform_headers(leg, rows["headers"]) if came.null_count == len(came) else None
    if quick is not None:
        seqs, texts, names, headers = quick
    else:
        seqs, texts = parse_origin_header(rows["headers"], leg.domain, leg.stream)
        seqs, texts = pc.coalesce(seqs, came), pc.fill_null(texts, _UNKNOWN_TIME)
        mine = pc.is_valid(seqs)
        rows, seqs, texts = rows.filter(mine), seqs.filter(mine), texts.filter(mine)
        names, _ = _parse_source_details(rows["headers"])
        names = pc.if_else(pc.starts_with(names, STAGING_PREFIX), names, "")
        headers = pc.replace_substring_regex(
            strip_transport_headers(rows["headers"]), pattern=_ORIGIN_LINE, replacement=""
        )
    seq, time = seqs.to_numpy(), _parse_times(texts)
    marks = order.mark_rows(names, seq) | _mark_impossible(leg, seq)
    wanted = (((seq >= leg.first) & (seq <= leg.last)) | (seq > leg.last_possible_seq)) & (
        (time >= leg.created_at) | (time == 0)
    )
    hashes = _hash_messages(
        rows["subject"], _normalize_headers(headers, leg.ignores_dropped_headers), rows["data"]
    )
    return _filter_rows(
        _build_batch(leg.number, seq, 1, time, hashes, rows["seq"].to_numpy(), marks), wanted
    )


def build_origin_prefix(leg: ComparedOrigin) -> bytes:
    """How the value of `Jsplan-Origin` begins, in what was copied from there."""
    return f"{leg.domain}/{leg.stream}/".encode()


def _parse_uniform_headers(
    leg: ComparedOrigin, headers: pa.BinaryArray
) -> tuple[pa.Array, pa.StringArray, pa.StringArray, pa.BinaryArray] | None:
    """Sequence and time at the origin, staging stream, and header block without the lines that say so: of messages that all came by
    one, as they do in a stream that nobody else writes to. At a third of the price of the regular expressions; None: they are needed.
    """
    by_stage = split_last_line(headers, f"\r\n{SOURCE_HEADER}: {STAGING_PREFIX}".encode(), ends=3)
    own = (
        split_last_line(by_stage[0], f"\r\n{ORIGIN_HEADER}: ".encode() + build_origin_prefix(leg))
        if by_stage is not None
        else None
    )
    if by_stage is None or own is None or contains_bytes(own[0], b"\r\nNats-"):
        return None
    words = pc.split_pattern(own[1].view(pa.string()), "/", max_splits=1)
    name = pc.list_element(pc.split_pattern(by_stage[1].view(pa.string()), " ", max_splits=1), 0)
    try:
        seqs, texts = pc.cast(pc.list_element(words, 0), pa.int64()), pc.list_element(words, 1)
    except pa.ArrowInvalid:
        return None
    return (
        seqs,
        texts,
        concat_rows(STAGING_PREFIX.encode(), name.view(BYTES)).view(pa.string()),
        concat_rows(own[0], b"\r\n\r\n"),
    )


def extract_sourced_rows(
    leg: ComparedOrigin, rows: pa.RecordBatch, name: str
) -> pa.RecordBatch | None:
    """Of a batch what a source of the target itself brought from this origin."""
    seqs = parse_source_header(rows["headers"], name)
    mine = pc.and_(pc.is_valid(seqs), pc.greater_equal(rows["time"], leg.created_at))
    if not pc.any(mine).as_py():
        return None
    rows, seq = rows.filter(mine), seqs.filter(mine).to_numpy()
    _, subjects = _parse_source_details(rows["headers"])
    told, _ = parse_origin_header(rows["headers"], leg.domain, leg.stream)
    wanted = (
        (seq >= leg.first) & (seq <= leg.last) & ~pc.is_valid(told).to_numpy(zero_copy_only=False)
    )
    hashes = _hash_messages(
        pc.coalesce(subjects, rows["subject"]),
        _expected_headers(strip_transport_headers(rows["headers"]), leg.ignores_dropped_headers),
        rows["data"],
    )
    none = np.zeros(len(seq), dtype=np.int64)
    return _filter_rows(
        _build_batch(leg.number, seq, 1, none, hashes, rows["seq"].to_numpy(), none), wanted
    )


def _parse_source_details(headers: pa.BinaryArray) -> tuple[pa.Array, pa.BinaryArray]:
    """From which source a server copied each message, empty if from none; and which subject it had there, null if that is not said."""
    found = pc.extract_regex(headers, pattern=_SOURCE_PATTERN)
    name, subject = (pc.struct_field(found, part) for part in ("name", "subject"))
    subject = pc.if_else(
        pc.equal(pc.binary_length(subject), 0), pa.scalar(None, subject.type), subject
    )
    return pc.fill_null(name.view(pa.string()), ""), subject.view(BYTES)


def _mark_impossible(leg: ComparedOrigin, seqs: SeqArray) -> np.ndarray[Any, Any]:
    marks = np.where(seqs > leg.last_possible_seq, IMPOSSIBLE, 0)
    if leg.gaps:
        firsts, lasts = np.array(leg.gaps, dtype=np.int64).T
        place = np.searchsorted(firsts, seqs, side="right") - 1
        marks = np.where((place >= 0) & (seqs <= lasts[np.maximum(place, 0)]), IMPOSSIBLE, marks)
    return marks


def _expected_headers(headers: pa.BinaryArray, loose: bool) -> pa.BinaryArray:
    """Header blocks as a copy has them, but for the line that says where it is from."""
    return _normalize_headers(neutralize_headers(headers), loose)


def _normalize_headers(headers: pa.BinaryArray, loose: bool) -> pa.BinaryArray:
    if loose and contains_bytes(headers, KEPT_PREFIX.encode()):
        headers = pc.replace_substring_regex(headers, pattern=_DROPPED_HEADERS, replacement="")
    return pc.if_else(
        pc.equal(headers, pa.scalar(EMPTY_BLOCK, BYTES)), pa.scalar(b"", BYTES), headers
    )


def _hash_messages(
    subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray
) -> np.ndarray[Any, Any]:
    """64 bits of each message."""
    rows = encode_canonical(subject, headers, data)
    offsets = get_buffers(rows)[1].tolist()
    view = memoryview(rows.buffers()[2])
    found = b"".join(
        [blake2b(view[start:stop], digest_size=8).digest() for start, stop in pairwise(offsets)]
    )
    return np.frombuffer(found, dtype=np.int64)


def _parse_times(texts: pa.Array) -> SeqArray:
    """Times that origins tell, as ns; 1 for what is none."""
    if pc.all(pc.equal(pc.binary_length(texts), 30)).as_py():
        try:
            encoded = pc.dictionary_encode(pc.utf8_slice_codeunits(texts, 0, 19))
            seconds = (
                pc.strptime(encoded.dictionary, format="%Y-%m-%dT%H:%M:%S", unit="s")
                .cast(pa.int64())
                .take(encoded.indices)
            )
            found: SeqArray = (
                seconds.to_numpy() * SECOND
                + pc.cast(pc.utf8_slice_codeunits(texts, 20, 29), pa.int64()).to_numpy()
            )
            return found
        except pa.ArrowInvalid:
            pass
    return np.fromiter(
        (_parse_time(text) for text in texts.to_pylist()), dtype=np.int64, count=len(texts)
    )


def _parse_time(text: str) -> int:
    try:
        return parse_time(text)
    except ValueError:
        return 1


def _build_batch(
    leg: int, seq: Any, side: int, time: Any, digest: Any, place: Any, mark: Any
) -> pa.RecordBatch:
    count = len(seq)
    columns = [
        np.full(count, leg),
        seq,
        np.full(count, side),
        time,
        digest,
        place,
        mark,
        pa.nulls(count, pa.string()),
    ]
    arrays = [
        pa.array(column).cast(kind.type) for column, kind in zip(columns, ROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def _filter_rows(batch: pa.RecordBatch, wanted: np.ndarray[Any, Any]) -> pa.RecordBatch:
    return batch if wanted.all() else batch.filter(pa.array(wanted))
