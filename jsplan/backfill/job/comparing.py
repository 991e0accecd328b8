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

from jsplan.backfill.columns import KEPT, ORIGIN, mentions, unaddressed
from jsplan.backfill.job.digests import SOURCE, bare, canonical, last_line, origin_of, source_of
from jsplan.backfill.job.numbered import EMPTY, numbered_in
from jsplan.backfill.job.stages import PREFIX
from jsplan.backfill.job.ways import Way
from jsplan.backfill.sequence_arrays import Sequences
from jsplan.backfill.wire import read
from jsplan.backfill.wire.asking import from_text
from jsplan.backfill.wire.cutting import raw
from jsplan.backfill.wire.frames import BYTES, joined
from jsplan.backfill.wire.reading import Range
from jsplan.units import SECOND

#: `side` is 0 at the origin and 1 at the target; `time` is ns (0: not told); `place` is the sequence at the target; `mark` is a sum of the
#: numbers below. `said` is an error.
ROWS: Final = pa.schema(
    [
        ("leg", pa.int32()), ("seq", pa.int64()), ("side", pa.int32()), ("time", pa.int64()), ("digest", pa.int64()),
        ("place", pa.int64()), ("mark", pa.int32()), ("said", pa.string()),
    ]
)  # fmt: skip
#: After one with a later origin, in what was copied at once; after one that an earlier run had brought; never there to be copied; left out.
LATE, REPAIRED, IMPOSSIBLE, LEFT_OUT = 1, 2, 4, 8
#: The leg of what belongs to none.
NONE: Final = -1
#: What stands for a time that is not told; it is 0 as a number.
_UNTOLD: Final = "1970-01-01T00:00:00.000000000Z"
_OWN_LINE: Final = f"\r\n{ORIGIN}:[^\r]*"
#: What a server does not carry along when it copies natively.
_DROPPED: Final = f"\r\n{KEPT}(?:Nats-Expected-[^:\r]*|{SOURCE}):[^\r]*"
_WORDS: Final = f"\r\n{SOURCE}: ?(?P<name>[^ \r]*) [0-9]+(?: [^ \r]* [^ \r]* (?P<subject>[^ \r]*))?"


@dataclass(frozen=True, slots=True)
class Compared:
    """One leg: what both sides must know of it. `natives` are names of the origin in `Nats-Stream-Source`; `since` is when the origin was
    made (ns), `ceiling` its last sequence. `gaps` were never there to be copied, `skipped` were left out; `mark` as in `numbered`.
    """

    number: int
    domain: str
    stream: str
    first: int
    last: int
    filters: tuple[str, ...]
    since: int
    ceiling: int
    natives: tuple[str, ...] = ()
    loose: bool = False
    gaps: tuple[tuple[int, int], ...] = ()
    skipped: tuple[int, ...] = ()
    mark: str = ""


def origin_rows(way: Way, leg: Compared) -> Iterator[pa.RecordBatch]:
    """The origin's side of a leg. Raises what `wire.read` raises."""
    if leg.first > leg.last:
        return
    for rows in read(way.open, Range(way.api_prefix, leg.stream, leg.first, leg.last, leg.filters)):
        yield as_stored(leg, rows)


def as_stored(leg: Compared, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The origin's side of messages as it has them."""
    seq = rows["seq"].to_numpy()
    mark = np.where(np.isin(seq, np.array(sorted(leg.skipped), dtype=np.int64)), LEFT_OUT, 0)
    hashes = _hashes(rows["subject"], _kept(rows["headers"], leg.loose), rows["data"])
    return _batch(leg.number, seq, 0, rows["time"].to_numpy(), hashes, np.zeros(len(seq), dtype=np.int64), mark)


@dataclass(slots=True)
class Order:
    """The highest origin so far: of everything that came, of what our copies brought, and of each copy by its staging stream."""

    all: int = 0
    copied: int = 0
    by_stage: dict[str, int] = field(default_factory=dict)

    def marks(self, names: pa.Array, seqs: Sequences) -> np.ndarray[Any, Any]:
        """LATE or REPAIRED for each row; `names` are staging streams, empty for what came by itself."""
        encoded = pc.dictionary_encode(names)
        marks = np.zeros(len(seqs), dtype=np.int64)
        after_copies, self.copied = _running(self.copied, seqs)
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            inside = encoded.indices.to_numpy() == code
            if name:
                before, self.by_stage[name] = _running(self.by_stage.get(name, 0), seqs[inside])
                marks[inside] = np.where(seqs[inside] < before, LATE, np.where(seqs[inside] < after_copies[inside], REPAIRED, 0))
            else:
                marks[inside] = np.where(seqs[inside] < after_copies[inside], LATE, 0)
        return marks


def _running(highest: int, seqs: Sequences) -> tuple[Sequences, int]:
    """What was the highest before each, and in the end."""
    found = np.maximum.accumulate(np.concatenate([np.array([highest], dtype=np.int64), seqs]))
    return found[:-1], int(found[-1])


def target_rows(way: Way, stream: str, first: int, last: int, legs: tuple[Compared, ...]) -> Iterator[pa.RecordBatch]:
    """The target's side of all legs, in one reading; then how many messages are of none. Raises what `wire.read` raises."""
    orders, others = {leg.number: Order() for leg in legs}, 0
    for rows in read(way.open, Range(way.api_prefix, stream, first, last)) if first <= last else ():
        taken = 0
        for leg in legs:
            for batch in (copied(leg, rows, orders[leg.number]), *(native(leg, rows, name) for name in leg.natives)):
                if batch is not None:
                    taken += batch.num_rows
                    yield batch
        others += rows.num_rows - taken
    none = np.zeros(1, dtype=np.int64)
    yield _batch(NONE, none, 1, none, none, np.array([others], dtype=np.int64), none)


def copied(leg: Compared, rows: pa.RecordBatch, order: Order) -> pa.RecordBatch | None:
    """Of a batch what says that it comes from this origin, and what came from there without a word."""
    came = numbered_in(rows["headers"], leg.mark)
    mine = pc.or_(pc.match_substring(rows["headers"], own_mark(leg)), pc.is_valid(came))
    if not pc.any(mine).as_py():
        return None
    if not pc.all(mine).as_py():
        rows, came = rows.filter(mine), came.filter(mine)
    quick = _quickly(leg, rows["headers"]) if came.null_count == len(came) else None
    if quick is not None:
        seqs, texts, names, headers = quick
    else:
        seqs, texts = origin_of(rows["headers"], leg.domain, leg.stream)
        seqs, texts = pc.coalesce(seqs, came), pc.fill_null(texts, _UNTOLD)
        mine = pc.is_valid(seqs)
        rows, seqs, texts = rows.filter(mine), seqs.filter(mine), texts.filter(mine)
        names, _ = _source_words(rows["headers"])
        names = pc.if_else(pc.starts_with(names, PREFIX), names, "")
        headers = pc.replace_substring_regex(bare(rows["headers"]), pattern=_OWN_LINE, replacement="")
    seq, time = seqs.to_numpy(), _times(texts)
    marks = order.marks(names, seq) | _impossible(leg, seq)
    wanted = (((seq >= leg.first) & (seq <= leg.last)) | (seq > leg.ceiling)) & ((time >= leg.since) | (time == 0))
    hashes = _hashes(rows["subject"], _normal(headers, leg.loose), rows["data"])
    return _chosen(_batch(leg.number, seq, 1, time, hashes, rows["seq"].to_numpy(), marks), wanted)


def own_mark(leg: Compared) -> bytes:
    """How the value of `Jsplan-Origin` begins, in what was copied from there."""
    return f"{leg.domain}/{leg.stream}/".encode()


def _quickly(leg: Compared, headers: pa.BinaryArray) -> tuple[pa.Array, pa.StringArray, pa.StringArray, pa.BinaryArray] | None:
    """Sequence and time at the origin, staging stream, and header block without the lines that say so: of messages that all came by
    one, as they do in a stream that nobody else writes to. At a third of the price of the regular expressions; None: they are needed.
    """
    by_stage = last_line(headers, f"\r\n{SOURCE}: {PREFIX}".encode(), ends=3)
    own = last_line(by_stage[0], f"\r\n{ORIGIN}: ".encode() + own_mark(leg)) if by_stage is not None else None
    if by_stage is None or own is None or mentions(own[0], b"\r\nNats-"):
        return None
    words = pc.split_pattern(own[1].view(pa.string()), "/", max_splits=1)
    name = pc.list_element(pc.split_pattern(by_stage[1].view(pa.string()), " ", max_splits=1), 0)
    try:
        seqs, texts = pc.cast(pc.list_element(words, 0), pa.int64()), pc.list_element(words, 1)
    except pa.ArrowInvalid:
        return None
    return seqs, texts, joined(PREFIX.encode(), name.view(BYTES)).view(pa.string()), joined(own[0], b"\r\n\r\n")


def native(leg: Compared, rows: pa.RecordBatch, name: str) -> pa.RecordBatch | None:
    """Of a batch what a source of the target itself brought from this origin."""
    seqs = source_of(rows["headers"], name)
    mine = pc.and_(pc.is_valid(seqs), pc.greater_equal(rows["time"], leg.since))
    if not pc.any(mine).as_py():
        return None
    rows, seq = rows.filter(mine), seqs.filter(mine).to_numpy()
    _, subjects = _source_words(rows["headers"])
    told, _ = origin_of(rows["headers"], leg.domain, leg.stream)
    wanted = (seq >= leg.first) & (seq <= leg.last) & ~pc.is_valid(told).to_numpy(zero_copy_only=False)
    hashes = _hashes(pc.coalesce(subjects, rows["subject"]), _kept(bare(rows["headers"]), leg.loose), rows["data"])
    none = np.zeros(len(seq), dtype=np.int64)
    return _chosen(_batch(leg.number, seq, 1, none, hashes, rows["seq"].to_numpy(), none), wanted)


def _source_words(headers: pa.BinaryArray) -> tuple[pa.Array, pa.BinaryArray]:
    """From which source a server copied each message, empty if from none; and which subject it had there, null if that is not said."""
    found = pc.extract_regex(headers, pattern=_WORDS)
    name, subject = (pc.struct_field(found, part) for part in ("name", "subject"))
    subject = pc.if_else(pc.equal(pc.binary_length(subject), 0), pa.scalar(None, subject.type), subject)
    return pc.fill_null(name.view(pa.string()), ""), subject.view(BYTES)


def _impossible(leg: Compared, seqs: Sequences) -> np.ndarray[Any, Any]:
    marks = np.where(seqs > leg.ceiling, IMPOSSIBLE, 0)
    if leg.gaps:
        firsts, lasts = np.array(leg.gaps, dtype=np.int64).T
        place = np.searchsorted(firsts, seqs, side="right") - 1
        marks = np.where((place >= 0) & (seqs <= lasts[np.maximum(place, 0)]), IMPOSSIBLE, marks)
    return marks


def _kept(headers: pa.BinaryArray, loose: bool) -> pa.BinaryArray:
    """Header blocks as a copy has them, but for the line that says where it is from."""
    return _normal(unaddressed(headers), loose)


def _normal(headers: pa.BinaryArray, loose: bool) -> pa.BinaryArray:
    if loose and mentions(headers, KEPT.encode()):
        headers = pc.replace_substring_regex(headers, pattern=_DROPPED, replacement="")
    return pc.if_else(pc.equal(headers, pa.scalar(EMPTY, BYTES)), pa.scalar(b"", BYTES), headers)


def _hashes(subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> np.ndarray[Any, Any]:
    """64 bits of each message."""
    rows = canonical(subject, headers, data)
    offsets = raw(rows)[1].tolist()
    view = memoryview(rows.buffers()[2])
    found = b"".join([blake2b(view[start:stop], digest_size=8).digest() for start, stop in pairwise(offsets)])
    return np.frombuffer(found, dtype=np.int64)


def _times(texts: pa.Array) -> Sequences:
    """Times that origins tell, as ns; 1 for what is none."""
    if pc.all(pc.equal(pc.binary_length(texts), 30)).as_py():
        try:
            encoded = pc.dictionary_encode(pc.utf8_slice_codeunits(texts, 0, 19))
            seconds = pc.strptime(encoded.dictionary, format="%Y-%m-%dT%H:%M:%S", unit="s").cast(pa.int64()).take(encoded.indices)
            found: Sequences = seconds.to_numpy() * SECOND + pc.cast(pc.utf8_slice_codeunits(texts, 20, 29), pa.int64()).to_numpy()
            return found
        except pa.ArrowInvalid:
            pass
    return np.fromiter((_time(text) for text in texts.to_pylist()), dtype=np.int64, count=len(texts))


def _time(text: str) -> int:
    try:
        return from_text(text)
    except ValueError:
        return 1


def _batch(leg: int, seq: Any, side: int, time: Any, digest: Any, place: Any, mark: Any) -> pa.RecordBatch:
    count = len(seq)
    columns = [
        np.full(count, leg), seq, np.full(count, side), time, digest, place, mark, pa.nulls(count, pa.string())
    ]  # fmt: skip
    arrays = [pa.array(column).cast(kind.type) for column, kind in zip(columns, ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def _chosen(batch: pa.RecordBatch, wanted: np.ndarray[Any, Any]) -> pa.RecordBatch:
    return batch if wanted.all() else batch.filter(pa.array(wanted))
