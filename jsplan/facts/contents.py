"""Reads of entries and objects of buckets: their last message. Never through a consumer.

Batches of DIRECT.GET where any answer is the newest one, else MSG.GET, which the leader answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from jsplan.address import Address, Kind
from jsplan.config.model import Domain, PrunedPrefix
from jsplan.errors import OFFLINE_ERRORS, ApiError
from jsplan.facts.accounts import read_account
from jsplan.facts.content import (
    KeyRevision,
    count_chunks,
    has_chunks,
    parse_entry,
    read_entry,
    read_revision,
)
from jsplan.facts.domains import mark_offline
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.pages import OWN_HEADERS
from jsplan.facts.reader import run_parallel
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.contents import content_subject
from jsplan.resources.kv_entry import is_deleted, parse_ttl, subject_of
from jsplan.resources.server_features import BATCH_LEVEL
from jsplan.resources.stored_object import name_of_subject

#: Keys of one batch. The server answers at most 1,024 (413, "Too Many Results").
BATCH_KEYS: Final = 1_000
#: Bytes of the subjects of one batch, far below the usual max_payload.
BATCH_SUBJECT_BYTES: Final = 256 << 10
#: Bytes of values in one batch: small enough not to be a slow consumer.
BATCH_BYTES: Final = 8 << 20


async def read_all_entries(
    pool: Pool,
    domains: Mapping[str, Domain],
    buckets: Live,
    addresses: Iterable[Address],
    pruned: Iterable[PrunedPrefix],
) -> Live:
    """Read entries, and all keys below the pruned prefixes. `buckets` has their buckets.

    Entries of an unreadable bucket, or of a domain that stops answering, are unreadable.
    """
    live = Live(dict(buckets.domains), requested=set(addresses))
    wanted: dict[Address, set[Address]] = {block.bucket: set() for block in pruned}
    for address in live.requested:
        if address.parent is not None:
            wanted.setdefault(address.parent, set()).add(address)

    async def read(bucket: Address) -> None:
        found = buckets.get(bucket)
        if bucket in buckets.unreadable:
            live.unreadable |= dict.fromkeys(wanted[bucket], buckets.unreadable[bucket])
        if found is None or not live.is_reachable(bucket.domain):
            return
        api = pool.api(domains[bucket.domain])
        try:
            for block in pruned:
                if block.bucket == bucket:
                    wanted[bucket] |= set(await list_contents(api, bucket, block.prefix))
            level = live.domains[bucket.domain].level
            entries = await read_entries(api, found, sorted(wanted[bucket]), level)
            if bucket.kind == "object_store" and entries:
                entries = await _check_chunks(api, bucket, entries)
            live.objects |= entries
        except OFFLINE_ERRORS as error:
            mark_offline(live, bucket.domain, error)

    await run_parallel(read, sorted(wanted))
    await _read_accounts(pool, domains, live)
    if silent := buckets.reachable - live.reachable:
        live.objects = {a: found for a, found in live.objects.items() if a.domain not in silent}
        lost = (a for a in live.requested if a.domain in silent)
        live.unreadable |= {a: live.domains[a.domain].offline_text for a in lost}
    return live


async def _read_accounts(pool: Pool, domains: Mapping[str, Domain], live: Live) -> None:
    """Read the accounts of operators into `live`."""

    async def read(account: Address) -> None:
        if not live.is_reachable(account.domain):
            return
        try:
            found = await read_account(pool.api(domains[account.domain]), account)
        except OFFLINE_ERRORS as error:
            mark_offline(live, account.domain, error)
        else:
            live.objects |= {account: found} if found is not None else {}

    await run_parallel(read, sorted(a for a in live.requested if a.kind == "account"))


async def read_entries(
    api: DomainApi, bucket: LiveObject, addresses: Iterable[Address], level: int
) -> dict[Address, LiveObject]:
    """Read entries of one bucket. `level` is the API level of its domain. Raises ApiError.

    A batch may come from any replica and from a mirror. So it is used for one replica only, and
    a key that it does not have is asked for again.
    """
    wanted = list(addresses)
    found: dict[Address, KeyRevision] = {}
    config = bucket.raw
    if config.get("allow_direct") and level >= BATCH_LEVEL and config.get("num_replicas", 1) <= 1:
        for chunk in _chunks(wanted):
            if (answers := await _read_batch(api, bucket, chunk)) is None:
                found.clear()
                break
            found |= answers
    await run_parallel(
        partial(_read_single, api, found), (address for address in wanted if address not in found)
    )
    live = {a: parse_entry(a, revision, bucket.created) for a, revision in found.items()}
    return {address: entry for address, entry in live.items() if entry is not None}


async def _read_single(api: DomainApi, found: dict[Address, KeyRevision], address: Address) -> None:
    found[address] = await read_revision(api, address)


def _chunks(addresses: list[Address]) -> Iterable[dict[bytes, Address]]:
    """Yield the addresses of each batch by their subjects."""
    chunk: dict[bytes, Address] = {}
    size = 0
    for address in addresses:
        subject = content_subject(address).encode()
        if chunk and (len(chunk) == BATCH_KEYS or size + len(subject) > BATCH_SUBJECT_BYTES):
            yield chunk
            chunk, size = {}, 0
        chunk[subject] = address
        size += len(subject)
    if chunk:
        yield chunk


async def _read_batch(
    api: DomainApi, bucket: LiveObject, chunk: Mapping[bytes, Address]
) -> dict[Address, KeyRevision] | None:
    """Read the last messages of some subjects. None if another stream answered, as a mirror may."""
    stream, left, found = bucket.address.stream, dict(chunk), dict[Address, KeyRevision]()
    while left:
        answers = await api.request_many(
            f"DIRECT.GET.{stream}",
            {
                "multi_last": [subject.decode() for subject in left],
                "batch": BATCH_KEYS,
                "max_bytes": BATCH_BYTES,
            },
        )
        end = answers.pop()[0]
        if not end.startswith((b"NATS/1.0 204", b"NATS/1.0 404")):
            return None
        for block, payload in answers:
            own, headers = _split_headers(stream, block)
            if own.get(b"Nats-Stream") != stream.encode():
                return None
            address = left.pop(own.get(b"Nats-Subject", b""), None)
            if address is not None:
                content = None if is_deleted(headers) else payload
                stored_at = own.get(b"Nats-Time-Stamp", b"").decode()
                found[address] = KeyRevision(
                    int(own[b"Nats-Sequence"]), content, parse_ttl(headers), stored_at, headers
                )
        if not answers or b"Nats-Num-Pending: 0\r\n" in end:
            break
    return found


def _split_headers(stream: str, block: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """Return the server's own headers, which it appends, and the block of the message's own."""
    at = block.rfind(OWN_HEADERS)
    if at < 0:
        raise ApiError(f"{stream} cannot be read: a message of a batch lacks the server's headers")
    lines = (line.split(b": ", 1) for line in block[at + 2 : -4].split(b"\r\n") if b": " in line)
    return dict(lines), block[:at] + b"\r\n"


async def _check_chunks(
    api: DomainApi, bucket: Address, entries: dict[Address, LiveObject]
) -> dict[Address, LiveObject]:
    """Read again the objects whose chunks are not all there: they may have changed meanwhile."""
    counts = await count_chunks(api, bucket)
    again = [a for a, live in entries.items() if not has_chunks(live, counts)]

    async def read(address: Address) -> None:
        live = await read_entry(api, address)
        if live is None:
            del entries[address]
        else:
            entries[address] = live

    await run_parallel(read, again)
    return entries


async def list_contents(api: DomainApi, bucket: Address, prefix: str) -> list[Address]:
    """List the keys or objects that begin with a prefix, deleted ones included. Raises ApiError."""
    is_store = bucket.kind == "object_store"
    start = f"$O.{bucket.name}.M." if is_store else subject_of(bucket.name, "")
    subjects = f"{start}>" if is_store else f"{start}{prefix}>"
    kind: Kind = "object" if is_store else "kv_entry"
    found: dict[str, None] = {}
    async for page in api.pages(
        f"STREAM.INFO.{bucket.stream}", "subjects", {"subjects_filter": subjects}
    ):
        names = page["state"].get("subjects") or {}
        keys = (name_of_subject(n) if is_store else n.removeprefix(start) for n in names)
        found |= dict.fromkeys(key for key in keys if key is not None and key.startswith(prefix))
    return [Address(bucket.domain, kind, f"{bucket.name}/{key}") for key in sorted(found)]
