"""Rows of a comparison: small columns with the origin and the hash of each message.

Each side is read once, in order, as rows of one format. The hash covers what a copy preserves. Only
these columns leave the reading process; another process joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from jsplan.backfill.message_schema import contains_bytes, neutralize_headers, parse_times
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.columns import get_buffers, group_rows
from jsplan.backfill.protocol.frames import BYTES, concat_rows
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import (
    encode_canonical,
    parse_origins,
    parse_source_seqs,
    split_last_line,
    strip_transport_headers,
)
from jsplan.backfill.tasks.origin_task import OriginTask, read_messages, select_inside
from jsplan.backfill.tasks.partitioning import PartitionPlan
from jsplan.backfill.tasks.staging_streams import STAGING_PREFIX
from jsplan.resources.source_header import KEPT_PREFIX, ORIGIN_HEADER, SOURCE_HEADER

#: After a later message of the same attempt, and after a later message of an earlier attempt.
LATE, REPAIRED = 1, 2
#: Reads rows of one side, in batches of `ROW_SCHEMA`. May raise JsplanError.
SideReader = Callable[[], Iterator[pa.RecordBatch]]
#: Finds for each origin the sequence below which everything has expired at the target.
FloorFinder = Callable[[], dict[int, int]]


class OrderTracker(Struct):
    """Marks messages of one origin that come after a later one, while a target is read in order.

    `order` is that of the entry. `highest` has the highest sequence of each subject (empty for
    `order: stream`) and staging stream (None: of all copies).
    """

    order: str = "stream"
    highest: dict[tuple[bytes, str | None], int] = field(default_factory=dict)

    def mark_rows(
        self, names: pa.Array, seqs: SeqArray, subjects: pa.BinaryArray
    ) -> np.ndarray[Any, Any]:
        """Return LATE or REPAIRED for each row.

        `names` are staging streams, empty for messages of a source.
        """
        if self.order == "stream":
            return self._mark_subject(b"", names, seqs)
        marks = np.zeros(len(seqs), dtype=np.int64)
        if self.order == "subject":
            for subject, places in group_rows(subjects):
                marks[places] = self._mark_subject(
                    subject, names.take(pa.array(places)), seqs[places]
                )
        return marks

    def _mark_subject(
        self, subject: bytes, names: pa.Array, seqs: SeqArray
    ) -> np.ndarray[Any, Any]:
        marks = np.zeros(len(seqs), dtype=np.int64)
        before_copies = self._advance((subject, None), seqs)
        for name, places in group_rows(names):
            before = before_copies[places]
            if name:
                before = self._advance((subject, name), seqs[places])
            mark = np.where(seqs[places] < before, LATE, REPAIRED)
            marks[places] = np.where(seqs[places] < before_copies[places], mark, 0)
        return marks

    def _advance(self, key: tuple[bytes, str | None], seqs: SeqArray) -> SeqArray:
        """Return the highest sequence before each row."""
        highest = np.maximum.accumulate(np.concatenate([[self.highest.get(key, 0)], seqs]))
        self.highest[key] = int(highest[-1])
        return highest[:-1]


# --- the rows -------------------------------------------------------------------------------------

#: `time` is ns (0: unknown). `place` is the sequence at the target. `mark` is a sum of flags.
ROW_SCHEMA: Final = pa.schema(
    [
        ("origin_number", pa.int32()),
        ("seq", pa.int64()),
        ("side", pa.int32()),
        ("time", pa.int64()),
        ("digest", pa.int64()),
        ("place", pa.int64()),
        ("mark", pa.int32()),
    ]
)
#: `side`: a message as expected at the target, as stored there, or only its presence at the origin.
EXPECTED, AT_TARGET, PRESENT = 0, 1, 2
#: `mark`, besides those of `order`: not at the origin at the time of the copy, and too large.
IMPOSSIBLE, SKIPPED = 4, 8
#: Number of messages of no origin.
NO_ORIGIN: Final = -1
#: A header block without headers. A server stores it for a message that had none.
_EMPTY_BLOCK: Final = b"NATS/1.0\r\n\r\n"
_ORIGIN_LINE: Final = f"\r\n{ORIGIN_HEADER}:[^\r]*"
#: Headers that a server drops in a native copy.
_DROPPED_HEADERS: Final = f"\r\n{KEPT_PREFIX}(?:Nats-Expected-[^:\r]*|{SOURCE_HEADER}):[^\r]*"
_SOURCE_PATTERN: Final = (
    f"\r\n{SOURCE_HEADER}: ?(?P<name>[^ \r]*) [0-9]+(?: [^ \r]* [^ \r]* (?P<subject>[^ \r]*))?"
)


class ComparedOrigin(Struct, frozen=True):
    """Origin in a comparison: what both sides must know of it.

    `names` are those in `Jsplan-Origin`, `domain/stream`: its own and those that it had before,
    each with the time (ns) at which it became that of another stream. `source_names` are those in
    `Nats-Stream-Source`, each with the times (ns) between which a source has stored its messages.
    `created_at` is its creation time (ns), `replaced_at` that of its successor of the same name, as
    far as one is compared, and `last_possible_seq` its last sequence. `gaps` were deleted before
    they could be copied, `skipped` are too large messages.
    """

    number: int
    domain: str
    stream: str
    first: int
    last: int
    created_at: int
    last_possible_seq: int
    names: dict[str, int]
    source_names: dict[str, tuple[int, int]] = field(default_factory=dict)
    gaps: tuple[tuple[int, int], ...] = ()
    skipped: tuple[int, ...] = ()
    replaced_at: int = 1 << 62

    def has_times(self, times: SeqArray) -> np.ndarray[Any, Any]:
        """Return which times (ns) are those of messages of this stream, not of another one."""
        inside: np.ndarray[Any, Any] = (times >= self.created_at) & (times < self.replaced_at)
        return inside


def to_stored_rows(
    origin: ComparedOrigin,
    rows: pa.RecordBatch,
    side: int = EXPECTED,
    place: Any = None,
    mark: Any = None,
) -> pa.RecordBatch:
    """Convert messages with the sequences of the origin. Without `mark` skipped ones are marked."""
    seq = rows["seq"].to_numpy()
    if mark is None:
        mark = np.where(np.isin(seq, np.array(sorted(origin.skipped), dtype=np.int64)), SKIPPED, 0)
    hashes = _hash_messages(
        rows["subject"],
        _normalize_headers(origin, neutralize_headers(rows["headers"])),
        rows["data"],
    )
    return build_rows(origin.number, seq, side, rows["time"].to_numpy(), hashes, place, mark)


def extract_copied_rows(
    origin: ComparedOrigin, rows: pa.RecordBatch, order: OrderTracker, name: bytes
) -> pa.RecordBatch | None:
    """Return the rows of a batch that were copied from this origin under this name."""
    copied = pc.match_substring(rows["headers"], name + b"/")
    if not pc.any(copied).as_py():
        return None
    if not pc.all(copied).as_py():
        rows = rows.filter(copied)
    if (uniform := _parse_uniform_headers(name, rows["headers"])) is not None:
        seqs, texts, names, headers = uniform
    else:
        claimed, seqs, texts = parse_origins(rows["headers"])
        copied = pc.equal(claimed, name)
        rows, seqs, texts = rows.filter(copied), seqs.filter(copied), texts.filter(copied)
        names, _ = _parse_source_details(rows["headers"])
        names = pc.if_else(pc.starts_with(names, STAGING_PREFIX), names, "")
        headers = pc.replace_substring_regex(
            strip_transport_headers(rows["headers"]), pattern=_ORIGIN_LINE, replacement=""
        )
    time = parse_times(texts, invalid=1)
    inside = origin.has_times(time) & (time < origin.names[name.decode()])
    if not inside.all():
        mask, time = pa.array(inside), time[inside]
        rows, seqs, names, headers = (one.filter(mask) for one in (rows, seqs, names, headers))
    seq = seqs.to_numpy()
    impossible = (seq > origin.last_possible_seq) | select_inside(seq, origin.gaps)
    marks = order.mark_rows(names, seq, rows["subject"]) | np.where(impossible, IMPOSSIBLE, 0)
    wanted = ((seq >= origin.first) & (seq <= origin.last)) | (seq > origin.last_possible_seq)
    hashes = _hash_messages(rows["subject"], _normalize_headers(origin, headers), rows["data"])
    return _filter_rows(
        build_rows(origin.number, seq, AT_TARGET, time, hashes, rows["seq"].to_numpy(), marks),
        wanted,
    )


def _parse_uniform_headers(
    origin_name: bytes, headers: pa.BinaryArray
) -> tuple[pa.Array, pa.StringArray, pa.StringArray, pa.BinaryArray] | None:
    """Parse the headers of messages that all came through one staging stream.

    Returns the origin sequence and time, the staging stream, and the header block without these
    lines. Costs a third of the regular expressions. Returns None where those are needed.
    """
    staged = split_last_line(headers, f"\r\n{SOURCE_HEADER}: {STAGING_PREFIX}".encode(), ends=3)
    tagged = (
        split_last_line(staged[0], f"\r\n{ORIGIN_HEADER}: ".encode() + origin_name + b"/")
        if staged is not None
        else None
    )
    if staged is None or tagged is None:
        return None
    others = (b"\r\nNats-", f"\r\n{ORIGIN_HEADER}:".encode())
    if any(contains_bytes(tagged[0], line) for line in others):
        return None
    words = pc.split_pattern(tagged[1].view(pa.string()), "/", max_splits=1)
    name = pc.list_element(pc.split_pattern(staged[1].view(pa.string()), " ", max_splits=1), 0)
    try:
        seqs, texts = pc.cast(pc.list_element(words, 0), pa.int64()), pc.list_element(words, 1)
    except pa.ArrowInvalid:
        return None
    return (
        seqs,
        texts,
        concat_rows(STAGING_PREFIX.encode(), name.view(BYTES)).view(pa.string()),
        concat_rows(tagged[0], b"\r\n\r\n"),
    )


def extract_sourced_rows(
    origin: ComparedOrigin, rows: pa.RecordBatch, name: str
) -> pa.RecordBatch | None:
    """Return the rows of a batch that a source of the target delivered from this origin."""
    seqs = parse_source_seqs(rows["headers"], name)
    times, (begin, end) = rows["time"].to_numpy(), origin.source_names[name]
    inside = origin.has_times(times) & (times >= begin) & (times < end)
    sourced = pc.and_(pc.is_valid(seqs), pa.array(inside))
    if not pc.any(sourced).as_py():
        return None
    rows, seq = rows.filter(sourced), seqs.filter(sourced).to_numpy()
    _, subjects = _parse_source_details(rows["headers"])
    own = pa.array([each.encode() for each in origin.names], BYTES)
    tagged = pc.is_in(parse_origins(rows["headers"])[0], own)
    wanted = (seq >= origin.first) & (seq <= origin.last)
    wanted &= ~tagged.to_numpy(zero_copy_only=False)
    hashes = _hash_messages(
        pc.coalesce(subjects, rows["subject"]),
        _normalize_headers(origin, neutralize_headers(strip_transport_headers(rows["headers"]))),
        rows["data"],
    )
    return _filter_rows(
        build_rows(origin.number, seq, AT_TARGET, None, hashes, rows["seq"].to_numpy()), wanted
    )


def _parse_source_details(headers: pa.BinaryArray) -> tuple[pa.Array, pa.BinaryArray]:
    """Return the source of each message and its subject there.

    The source is empty for a message of no source, the subject is null if not given.
    """
    found = pc.extract_regex(headers, pattern=_SOURCE_PATTERN)
    name, subject = (pc.struct_field(found, part) for part in ("name", "subject"))
    subject = pc.if_else(
        pc.equal(pc.binary_length(subject), 0), pa.scalar(None, subject.type), subject
    )
    return pc.fill_null(name.view(pa.string()), ""), subject.view(BYTES)


def _normalize_headers(origin: ComparedOrigin, headers: pa.BinaryArray) -> pa.BinaryArray:
    """Return header blocks as in a copy, without the origin header and what a source drops."""
    if origin.source_names and contains_bytes(headers, KEPT_PREFIX.encode()):
        headers = pc.replace_substring_regex(headers, pattern=_DROPPED_HEADERS, replacement="")
    return pc.if_else(
        pc.equal(headers, pa.scalar(_EMPTY_BLOCK, BYTES)), pa.scalar(b"", BYTES), headers
    )


def _hash_messages(
    subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray
) -> np.ndarray[Any, Any]:
    """Compute a 64-bit hash of each message."""
    rows = encode_canonical(subject, headers, data)
    offsets = get_buffers(rows)[1].tolist()
    view = memoryview(rows.buffers()[2])
    digests = b"".join(
        [blake2b(view[start:stop], digest_size=8).digest() for start, stop in pairwise(offsets)]
    )
    return np.frombuffer(digests, dtype=np.int64)


def build_rows(
    origin_number: int,
    seq: SeqArray,
    side: int,
    time: Any = None,
    digest: Any = None,
    place: Any = None,
    mark: Any = None,
) -> pa.RecordBatch:
    """Build rows of one origin and side; a column that is not given is 0."""
    zeros = np.zeros(len(seq), dtype=np.int64)
    others = [zeros if column is None else column for column in (time, digest, place, mark)]
    columns = [np.full(len(seq), origin_number), seq, np.full(len(seq), side), *others]
    arrays = [
        pa.array(column).cast(kind.type) for column, kind in zip(columns, ROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def _filter_rows(batch: pa.RecordBatch, wanted: np.ndarray[Any, Any]) -> pa.RecordBatch:
    return batch if wanted.all() else batch.filter(pa.array(wanted))


class Comparison(Struct):
    """Both sides of an entry, and how their messages are matched.

    `readers` read the rows of both sides. With a `plan` it makes the expected messages, and of the
    origins `readers` only read which messages they have. `find_floors` finds for each origin the
    sequence below which everything has expired at the target by now (0: none). It is None if
    nothing expires there. `is_transformed`: what a source of the target delivers has another
    content than a copy.
    """

    origins: list[ComparedOrigin] = field(default_factory=list)
    readers: list[SideReader] = field(default_factory=list)
    plan: PartitionPlan | None = None
    find_floors: FloorFinder | None = None
    is_transformed: bool = False


def read_origin_rows(
    task: OriginTask, origin: ComparedOrigin, *, is_presence: bool = False
) -> Iterator[pa.RecordBatch]:
    """Read the messages of an origin, a stream or an archive; or only which ones it has.

    Raises the errors of `read`, and RefusedError for a changed file.
    """
    for rows in read_messages(task, headers_only=is_presence):
        if is_presence:
            seq = rows["seq"].to_numpy()
            yield build_rows(origin.number, seq, PRESENT)
        else:
            yield to_stored_rows(origin, rows)


def read_kept_rows(task: OriginTask, origin: ComparedOrigin) -> Iterator[pa.RecordBatch]:
    """Read a target whose messages keep their sequences: an archive, or a restored stream.

    Raises the errors of `read_origin_rows`.
    """
    last = 0
    for rows in read_messages(task):
        seq = rows["seq"].to_numpy()
        highest = np.maximum.accumulate(np.concatenate([[last], seq]))
        mark = np.where(seq > origin.last_possible_seq, IMPOSSIBLE, 0)
        mark |= np.where(seq < highest[:-1], LATE, 0)
        last = int(highest[-1])
        yield to_stored_rows(origin, rows, AT_TARGET, seq, mark)


def read_target_rows(
    endpoint: Endpoint, request: ReadRequest, origins: Sequence[ComparedOrigin], order: str
) -> Iterator[pa.RecordBatch]:
    """Read the messages of all origins in a target, then the number of other messages.

    Raises the errors of `read`.
    """
    trackers, others = {origin.number: OrderTracker(order) for origin in origins}, 0
    for rows in read(endpoint.open, request):
        batches = list(_extract_rows(rows, origins, trackers))
        yield from batches
        others += rows.num_rows - sum(batch.num_rows for batch in batches)
    yield build_rows(NO_ORIGIN, np.zeros(1, dtype=np.int64), AT_TARGET, place=np.array([others]))


def _extract_rows(
    rows: pa.RecordBatch, origins: Sequence[ComparedOrigin], trackers: dict[int, OrderTracker]
) -> Iterator[pa.RecordBatch]:
    # One search for all names costs less than one for each of many origins, and more than one.
    names = parse_origins(rows["headers"])[0].unique().to_pylist() if len(origins) > 1 else None
    for origin in origins:
        batches = [extract_sourced_rows(origin, rows, name) for name in origin.source_names]
        batches += [
            extract_copied_rows(origin, rows, trackers[origin.number], name)
            for name in map(str.encode, origin.names)
            if names is None or name in names
        ]
        yield from (batch for batch in batches if batch is not None and batch.num_rows)
