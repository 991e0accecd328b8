"""Reads of stored messages: sequence, subject, and bytes by the store's own accounting.

The sequence of a time is found by a binary search with direct reads, without a consumer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.facts.limit_trimming import StoredMessage, stored_size
from jsplan.facts.live import LiveObject
from jsplan.facts.pages import (
    BATCH_MESSAGES,
    OWN_HEADERS,
    PageReader,
    ReadBudget,
    ReadLimitExceeded,
    answering_stream,
    stored_headers,
)
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.api import message_headers
from jsplan.resources.server_features import BATCH_LEVEL, TIME_LOOKUP_LEVEL
from jsplan.resources.source_header import parse_source_header
from jsplan.units import format_instant, parse_instant

__all__ = ["ReadBudget", "ReadLimitExceeded"]

R = TypeVar("R", bound=PageReader[Any])
#: Most reads for one time. A stream of a billion messages takes thirty.
MAX_READS = 200


@dataclass
class MessageReader(PageReader[StoredMessage]):
    """One stream as of one INFO. `target_storage`: the storage to which messages are to move."""

    target_storage: str = ""

    async def read_backward(self) -> AsyncIterator[StoredMessage]:
        """Yield messages newest first. Raises ReadLimitExceeded and ApiError."""
        end, width = self.last, BATCH_MESSAGES
        while end >= self.first:
            start, messages = max(self.first, end - width + 1), list[StoredMessage]()
            at = start
            while at <= end:
                page, at = await self.read_page(at, end)
                messages += page
            for message in reversed(messages):
                yield message
            width = BATCH_MESSAGES if len(messages) > BATCH_MESSAGES // 4 else width * 4
            end = start - 1

    def _from_json(self, message: dict[str, Any]) -> StoredMessage:
        size = _decoded_length(message.get("data") or "")
        headers, subject = message_headers(message), message["subject"]
        return self._build_message(message["seq"], subject, message["time"], headers, size)

    def _from_batch(self, block: bytes, payload: bytes) -> StoredMessage:
        """Parse a message of a batch.

        The server appends its own headers to those of the message, which may have the same names.
        """
        at = block.rfind(OWN_HEADERS)
        own = dict(line.split(b": ", 1) for line in block[at + 2 : -4].split(b"\r\n"))
        subject, time = own[b"Nats-Subject"].decode(), own[b"Nats-Time-Stamp"].decode()
        headers = stored_headers(block)
        return self._build_message(int(own[b"Nats-Sequence"]), subject, time, headers, len(payload))

    def _build_message(
        self, seq: int, subject: str, time: str, headers: bytes, payload: int
    ) -> StoredMessage:
        """Build a message from its parts; `payload` is the number of its bytes."""
        sizes = len(subject.encode()), len(headers), payload
        return StoredMessage(
            seq,
            subject,
            stored_size(self.storage, *sizes),
            time,
            _never_expires(headers),
            parse_source_header(headers),
            stored_size(self.target_storage, *sizes) if self.target_storage else None,
        )

    async def read_at_or_after(self, seq: int) -> StoredMessage | None:
        """Read the first message from a sequence on, or None after the last one."""
        return await self._get_message({"seq": seq, "next_by_subj": ">"})

    async def _get_message(self, query: dict[str, Any]) -> StoredMessage | None:
        self.budget.spend(1)
        answer = await self.api.get_message(self.stream, query)
        message = self._from_json(answer) if answer is not None else None
        return message if message is not None and message.seq <= self.last else None

    async def find_first_since(self, instant: int, *, by_time: bool) -> StoredMessage | None:
        """Find the first message stored at or after an instant (ns), or None.

        Uses binary search. `by_time`: the server can look it up (2.11 and later); its answer is
        only the start, since the memory store of 2.11 is wrong where messages were deleted.
        """
        low, high = self.first, self.last + 1
        hint: int | None = None
        if by_time:
            guess = await self._get_message({"start_time": format_instant(instant)})
            hint = guess.seq if guess else self.last
        found, step = None, 1
        while low < high:
            middle = (low + high) // 2 if hint is None else min(max(hint, low), high - 1)
            message = await self.read_at_or_after(middle)
            if message is None or parse_instant(message.time) >= instant:
                high, found = middle, message or found
                if hint is not None:
                    hint, step = hint - step, step * 2
            else:
                low, hint = message.seq + 1, None
        return found

    async def count_from(self, seq: int) -> int | None:
        """Count the messages from a sequence on, or None where only reading them would tell."""
        if self.gaps is not None:
            return max(
                0,
                self.last
                - max(seq, self.first)
                + 1
                - (len(self.gaps) - bisect_left(self.gaps, seq)),
            )
        if not self.batches:
            return None
        self.budget.spend(1)
        answers = await self.api.request_many(f"DIRECT.GET.{self.stream}", {"seq": seq, "batch": 1})
        if len(answers) < 2 or answering_stream(answers[0][0]) != self.stream:
            return None
        pending = dict(
            line.split(b": ", 1) for line in answers[-1][0][:-4].split(b"\r\n")[1:] if b": " in line
        )
        count = pending.get(b"Nats-Num-Pending", b"0")
        return 1 + int(count) if count.isdigit() else None


async def open_reader(
    api: DomainApi, info: Mapping[str, Any], level: int, limit: int
) -> MessageReader:
    """Open a reader of the stream from its INFO, with a limit of reads. Raises ApiError."""
    return await open_pages(MessageReader, api, info, level, limit)


async def open_pages(
    reader_type: type[R], api: DomainApi, info: Mapping[str, Any], level: int, limit: int
) -> R:
    """Open a reader of this type, with a limit of reads. Raises ApiError.

    Deleted sequences are requested only where the list is short. `level` is the API level of its
    domain.
    """
    config, state = info["config"], info["state"]
    batches = bool(config.get("allow_direct")) and level >= BATCH_LEVEL
    reader = reader_type(
        api,
        config["name"],
        config["storage"],
        state["first_seq"],
        state["last_seq"],
        batches,
        ReadBudget(limit),
    )
    deleted = int(state.get("num_deleted") or 0)
    if deleted > limit:
        reader.gaps = None
        # Replicas may lag behind, which only the gaps would show.
        reader.batches = batches and config["num_replicas"] == 1
    elif deleted:
        reader.gaps = await list_deleted(api, config["name"])
    return reader


async def list_deleted(api: DomainApi, stream: str) -> list[int]:
    """List the sequences that were deleted between the first and the last message, sorted.

    The answer grows with their number. Raises ApiError.
    """
    answer = await api.request(f"STREAM.INFO.{stream}", {"deleted_details": True})
    return sorted(answer["state"].get("deleted") or ())


async def count_by_subject(
    api: DomainApi, info: Mapping[str, Any], budget: ReadBudget, most: int
) -> dict[str, int] | None:
    """Count messages per subject, page by page.

    Returns None for more than `most` subjects, or if they changed meanwhile. Raises
    ReadLimitExceeded and ApiError.
    """
    state, counts = info["state"], dict[str, int]()
    if int(state.get("num_subjects") or 0) > most:
        return None
    async for page in api.pages(
        f"STREAM.INFO.{info['config']['name']}", "subjects", {"subjects_filter": ">"}
    ):
        budget.spend(1)
        counts |= page["state"].get("subjects") or {}
    return counts if sum(counts.values()) == state["messages"] else None


def _never_expires(headers: bytes) -> bool:
    return any(
        line.partition(b":")[2].strip() == b"never"
        for line in headers.split(b"\r\n")
        if line.startswith(b"Nats-TTL:")
    )


def _decoded_length(encoded: str) -> int:
    return len(encoded) * 3 // 4 - (encoded.endswith("=") + encoded.endswith("=="))


async def find_seqs_by_time(
    pool: Pool,
    domains: Mapping[str, Domain],
    wanted: Iterable[tuple[LiveObject, str]],
    levels: Mapping[str, int],
) -> dict[tuple[Address, str], int]:
    """Find the sequence of the first message at or after each RFC 3339 time.

    One after the last where there is none. Raises ApiError.
    """
    seqs: dict[tuple[Address, str], int] = {}
    for live, time in wanted:
        address = live.address
        info = {"config": live.raw, "state": live.state}
        api, level = pool.api(domains[address.domain]), levels.get(address.domain, 0)
        if (seq := await find_seq_at(api, info, time, level)) is not None:
            seqs[address, time] = seq
    return seqs


async def find_seq_at(api: DomainApi, info: Mapping[str, Any], time: str, level: int) -> int | None:
    """Find the sequence of the first message at or after an RFC 3339 time, or None.

    It is one after the last where there is none, and None where `MAX_READS` do not suffice. `info`
    is STREAM.INFO, `level` the API level of its domain. Raises ApiError.
    """
    # Without `num_deleted` the reader does not request the gaps.
    info = {"config": info["config"], "state": info["state"] | {"num_deleted": 0}}
    reader = await open_reader(api, info, level, MAX_READS)
    try:
        first = await reader.find_first_since(
            parse_instant(time), by_time=level >= TIME_LOOKUP_LEVEL
        )
    except ReadLimitExceeded:
        return None
    return first.seq if first is not None else int(info["state"]["last_seq"]) + 1
