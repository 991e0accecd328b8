"""Scans of a target and of staging streams, to prove that nothing is lost; and the capacity.

Where the last message of each chunk is fenced (`FencedPublisher`), everything up to it is stored.
Only among the few thousand messages after the last fenced one can a message be missing while a
later one is stored: a cluster elects another leader, or a disk is full for a moment. A resumed run
could add the missing ones only at the end, out of order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.backfill.message_schema import contains_bytes, parse_times
from jsplan.backfill.protocol.columns import group_rows
from jsplan.backfill.protocol.publisher import FENCE_HEADER
from jsplan.backfill.protocol.stream_info import fetch_stream_info
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import (
    BlockHasher,
    escape_regex,
    extract_sourced,
    parse_origins,
    strip_transport_headers,
)
from jsplan.backfill.tasks.origin_task import (
    ExistingMessages,
    OriginTask,
    build_target_headers,
    read_messages,
    select_fitting,
)
from jsplan.errors import ApiTimeoutError
from jsplan.planning.backfill.model import SeqRange
from jsplan.resources.source_header import SOURCE_HEADER, SourceName
from jsplan.units import count_text, format_bytes

_SOURCE_PATTERN: Final = f"\r\n{SOURCE_HEADER}: ?(?P<name>[^ \r]+) (?P<seq>[0-9]{{1,18}})"
#: Approximate bytes that one message grows by at the target: the server adds a source header,
#: and the headers of the staging stream are removed.
_OVERHEAD_BYTES: Final = 64
#: What identifies an origin: its name, or its number in a plan.
Name = TypeVar("Name", str, int)


class OriginQuery(Struct, frozen=True):
    """An origin whose messages are searched: copied ones, and those of its own sources.

    `origin_names` are as in `Jsplan-Origin` (`domain/stream`). `source_names` are names as
    `Nats-Stream-Source` has them, each with the times (ns) between which a source has stored its
    messages: others are of another stream of that name. `is_restored`: the target was created from
    a snapshot, so sequence and time identify its messages.
    """

    origin_names: tuple[str, ...]
    source_names: dict[str, tuple[int, int]] = field(default_factory=dict)
    is_restored: bool = False


class _FoundMessages(Struct):
    seqs: list[SeqArray] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    times: list[SeqArray] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    former: int = 0

    def add(self, seqs: SeqArray, times: SeqArray) -> None:
        self.seqs.append(seqs)
        self.times.append(times)

    def to_existing(self) -> ExistingMessages:
        seqs, times = np.concatenate(self.seqs).astype(np.int64), np.concatenate(self.times)
        return replace(build_existing(seqs, times), former=self.former)


def scan_target(
    endpoint: Endpoint, stream: str, first: int, last: int, queries: Sequence[OriginQuery]
) -> list[ExistingMessages]:
    """Find the messages of each origin between two sequences of the target.

    A message that is there twice counts once. Raises the errors of `read`.
    """
    found = [_FoundMessages() for _ in queries]
    by_origin, by_source = dict[str, list[int]](), dict[str, list[int]]()
    for number, query in enumerate(queries):
        for name in dict.fromkeys(query.origin_names):
            by_origin.setdefault(name, []).append(number)
        for source in query.source_names:
            by_source.setdefault(source, []).append(number)
    for rows in endpoint.read(stream, first, last, headers_only=True):
        names, seq, time = (column.drop_null() for column in parse_origins(rows["headers"]))
        # A header with another time than a copy writes does not count: a user wrote it.
        seqs, times = seq.to_numpy(), parse_times(time, invalid=-1)
        for name, places in group_rows(names):
            valid = places[times[places] >= 0]
            for number in by_origin.get(name.decode(errors="surrogateescape"), ()):
                found[number].add(seqs[valid], times[valid])
        for name, seqs, stored_at in _parse_sources(rows):
            for number in by_source.get(name, ()):
                begin, end = queries[number].source_names[name]
                current = seqs[(stored_at >= begin) & (stored_at < end)]
                former = seqs[stored_at < begin]
                found[number].add(current, np.zeros(len(current), dtype=np.int64))
                found[number].former = max(found[number].former, *former.tolist(), 0)
        for number, query in enumerate(queries):
            if query.is_restored:
                found[number].add(rows["seq"].to_numpy(), rows["time"].to_numpy())
    return [messages.to_existing() for messages in found]


def find_sourced_range(
    target: Endpoint, stream: str, span: SeqRange, source: SourceName, created_at: int
) -> SeqRange | None:
    """Return the lowest and highest origin sequence that a source brought, or None.

    The server resumes an earlier source after the last message that it delivered, even if the
    source says that it begins later. It finds that message by the name, filters and transforms of
    the source. Messages before `created_at` (ns) are of another stream of that name. Raises the
    errors of `read`.
    """
    name, filters, destinations = (escape_regex(part) for part in source)
    pattern = f"\r\n{SOURCE_HEADER}: ?{name} (?P<seq>[0-9]+) {filters} {destinations}[ \r]"
    found: list[int] = []
    for rows in target.read(stream, *span, headers_only=True):
        headers = rows["headers"].filter(pc.greater_equal(rows["time"], created_at))
        seqs = pc.struct_field(pc.extract_regex(headers, pattern=pattern), "seq").drop_null()
        numbers = [*found, *(int(text) for text in seqs.to_pylist())]
        found = [min(numbers), max(numbers)] if numbers else []
    return SeqRange(*found) if found else None


def build_existing(seqs: SeqArray, times: SeqArray) -> ExistingMessages:
    """Sort by sequence and time, and remove repeated pairs."""
    order = np.lexsort((times, seqs))
    seqs, times = seqs[order], times[order]
    first = np.ones(len(seqs), dtype=bool)
    first[1:] = (np.diff(seqs) != 0) | (np.diff(times) != 0)
    return ExistingMessages(seqs[first], times[first])


def _parse_sources(rows: pa.RecordBatch) -> Iterator[tuple[str, SeqArray, SeqArray]]:
    """Yield each source of messages that a server copied.

    Each comes as the server names it, with the sequences there and the times of storage here (ns).
    """
    if not contains_bytes(rows["headers"], f"{SOURCE_HEADER}:".encode()):
        return
    found = pc.extract_regex(rows["headers"], pattern=_SOURCE_PATTERN)
    times = rows["time"].filter(found.is_valid()).to_numpy()
    name, seq = (pc.struct_field(found.drop_null(), part) for part in ("name", "seq"))
    seqs = pc.cast(seq.view(pa.string()), pa.int64()).to_numpy()
    for text, places in group_rows(name):
        yield text.decode(errors="surrogateescape"), seqs[places], times[places]


class CapacityProblem(Struct, frozen=True):
    """Reason why a target has no capacity for a copy.

    `deletes`: the target would delete its own messages. Otherwise it would refuse new ones.
    """

    text: str
    deletes: bool


def find_capacity_problem(
    address: str, info: dict[str, Any], messages: int, size: int
) -> CapacityProblem | None:
    """Return the reason why a stream cannot take a copy, or None.

    `info` is its STREAM.INFO. The copy has `messages` messages, of `size` bytes in their
    staging streams.
    """
    config, state = info["config"], info["state"]
    size += messages * _OVERHEAD_BYTES
    is_full = config.get("discard") == "new"
    limits: tuple[tuple[str, int, str, Callable[[int], str]], ...] = (
        (
            "max_msgs",
            state["messages"] + messages,
            f"has {state['messages']:,} messages, and {messages:,} will be copied",
            lambda most: f"{most:,} messages",
        ),
        (
            "max_bytes",
            state["bytes"] + size,
            f"has {format_bytes(state['bytes'])}, and about {format_bytes(size)} will be copied",
            format_bytes,
        ),
    )
    for name, wanted, problem, show in limits:
        if 0 <= (most := int(config.get(name, -1))) < wanted:
            end = (
                f"It accepts at most {show(most)} (discard: new)"
                if is_full
                else f"It keeps {show(most)} and would delete its oldest messages"
            )
            return CapacityProblem(f"{address} {problem}. {end}", deletes=not is_full)
    each = int(config.get("max_msgs_per_subject", -1))
    if each <= 0 or not messages:
        return None
    limit = f"{count_text(each, 'message')} per subject"
    if is_full and config.get("discard_new_per_subject"):
        return CapacityProblem(
            f"{address} accepts {limit} and refuses more (discard_new_per_subject), "
            "so a copy may stop before its end",
            deletes=False,
        )
    return CapacityProblem(
        f"{address} keeps {limit}. Copied messages would replace its current ones", deletes=True
    )


class StagedMessages(Struct):
    """The content of a staging stream: the hashes and the origin sequences of its messages.

    `seqs` are by origin (`domain/stream`), in order. The last `unproven` messages come after the
    last fenced one.
    """

    hashes: list[str]
    seqs: dict[str, SeqArray]
    unproven: int = 0

    def find_tail(self, origin: str) -> tuple[int, SeqArray]:
        """Return the last proven sequence of the only origin (0: none), and those after it."""
        seqs = self.seqs.get(origin, np.empty(0, dtype=np.int64))
        cut = max(0, len(seqs) - self.unproven)
        return int(seqs[cut - 1]) if cut else 0, seqs[cut:]


def read_staged_messages(endpoint: Endpoint, staging_stream: str, count: int) -> StagedMessages:
    """Read a whole staging stream. Raises the errors of `read`."""
    hasher, found, unproven = BlockHasher(), dict[str, list[SeqArray]](), 0
    for rows in endpoint.read(staging_stream, 1, count):
        headers = strip_transport_headers(rows["headers"])
        hasher.add(rows["subject"], headers, rows["data"])
        names, seqs, _ = (column.drop_null() for column in parse_origins(headers))
        for name, places in group_rows(names):
            origin = name.decode(errors="surrogateescape")
            found.setdefault(origin, []).append(seqs.to_numpy()[places])
        fenced = np.flatnonzero(
            pc.match_substring(rows["headers"], b"\r\n" + FENCE_HEADER).to_numpy(
                zero_copy_only=False
            )
        )
        unproven = rows.num_rows - 1 - int(fenced[-1]) if len(fenced) else unproven + rows.num_rows
    return StagedMessages(
        hasher.hashes(), {name: np.concatenate(parts) for name, parts in found.items()}, unproven
    )


def find_duplicate(partitions: Sequence[dict[Name, SeqArray]]) -> tuple[Name, int] | None:
    """Return the origin and sequence of a message that the partitions have twice, or None."""
    for name in dict.fromkeys(name for partition in partitions for name in partition):
        seqs = np.sort(
            np.concatenate([partition[name] for partition in partitions if name in partition])
        )
        repeated = np.flatnonzero(np.diff(seqs) == 0)
        if len(repeated):
            return name, int(seqs[repeated[0]])
    return None


def lacks_messages(
    task: OriginTask, target: Endpoint, staging_stream: str, present: SeqArray
) -> bool:
    """Return True if the origin has a message that is not in `present`.

    `task` reads the ranges of the tail of a staging stream. Raises the errors of `read_messages`.
    """
    with contextlib.closing(target.open()) as connection:
        max_payload = connection.max_payload
    with contextlib.closing(read_messages(task)) as batches:
        for rows in batches:
            block = build_target_headers(task, rows)
            fits = select_fitting(task, rows, block, staging_stream, max_payload)
            seqs = rows["seq"].to_numpy() if fits is None else rows["seq"].to_numpy()[fits]
            if not np.isin(seqs, present).all():
                return True
    return False


# --- what a target receives from them -------------------------------------------------------------

#: Seconds between two checks of an unchanged target, and until the scan gives up.
POLL_PAUSE: Final = 0.1
IDLE_TIMEOUT: Final = 120.0
#: Messages per read while more arrive. Frequent reads slow down the server that stores them: with
#: 32,768 a million messages of 128 bytes took 5 % longer. Reading all at the end took as long.
READ_STRIDE: Final = 200_000


class Arrived(Struct):
    """Messages of one staging stream that arrived: their number, and their hashes in order.

    `reached` is the last sequence of the staging stream that arrived, `first` the first one there.
    `twice` counts repeated messages.
    """

    messages: int = 0
    hashes: list[str] = field(default_factory=list)
    twice: int = 0
    reached: int = 0
    first: int = 0


def scan_promotions(
    target: Endpoint,
    stream: str,
    first: int,
    staged: Sequence[tuple[str, int]],
    patience: float = IDLE_TIMEOUT,
) -> Iterator[Arrived]:
    """Read a target from a sequence on until all messages of several staging streams are there.

    `staged` are their names and numbers of messages, which the target receives at the same time.
    Yields what arrived of each. Ends without an error when nothing arrives for `patience` seconds.
    """
    scans = [(name, count, Arrived(), BlockHasher()) for name, count in staged]
    place, last_arrival = first, time.monotonic()
    while (
        pending := sum(count - arrived.reached for _, count, arrived, _ in scans)
    ) > 0 and time.monotonic() - last_arrival < patience:
        end = _await_messages(target, stream, place, min(READ_STRIDE, pending))
        if end < place:
            continue
        for rows in target.read(stream, place, end):
            found = [_add_rows(name, rows, arrived, hasher) for name, _, arrived, hasher in scans]
            if any(found):
                last_arrival = time.monotonic()
        place = end + 1
    for _, _, arrived, hasher in scans:
        arrived.messages, arrived.hashes = hasher.count, hasher.hashes()
        yield arrived


def _await_messages(target: Endpoint, stream: str, place: int, wanted: int) -> int:
    """Wait for messages, and return the last sequence of the target; 0 if it does not answer.

    Returns once `wanted` messages from `place` on are there, or when no more arrive for a moment.
    """
    with contextlib.closing(target.open()) as connection:
        try:
            before, end = -1, fetch_stream_info(connection, target.api_prefix, stream).last
            while end - place + 1 < wanted and end != before:
                time.sleep(POLL_PAUSE)
                before, end = end, fetch_stream_info(connection, target.api_prefix, stream).last
        except ApiTimeoutError:
            time.sleep(POLL_PAUSE)
            return 0
    return end


def _add_rows(name: str, rows: pa.RecordBatch, arrived: Arrived, hasher: BlockHasher) -> bool:
    """Add the rows that came from a staging stream. Returns False if there are none."""
    sourced, block, number = extract_sourced(rows, name)
    if not len(number):
        return False
    arrived.first = arrived.first or int(sourced["seq"][0].as_py())
    highest = np.maximum.accumulate(np.concatenate([[arrived.reached], number]))
    arrived.twice += int((number <= highest[:-1]).sum())
    arrived.reached = int(highest[-1])
    hasher.add(sourced["subject"], block, sourced["data"])
    return True
