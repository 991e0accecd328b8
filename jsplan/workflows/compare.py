"""compare: two streams, message by message. Read-only, without a lock.

The state says what they were before they were moved. Without it they are taken for new ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.backfill.spark_extra import list_missing_packages, require_spark
from jsplan.backup.folder import read_manifest
from jsplan.comparing.by_header import compare_by_header, last_to_match
from jsplan.comparing.former_streams import NEVER, StreamIdentity, find_former_names
from jsplan.comparing.kept import read_kept, why_unusable, write_kept
from jsplan.comparing.relation import Relation, explain, relate
from jsplan.config.model import LoadOptions
from jsplan.context import Session, open_session, open_stateless_context
from jsplan.disk import display_path
from jsplan.documents.comparison import ComparedSide
from jsplan.documents.comparison import Comparison as Result
from jsplan.errors import RefusedError, UsageError
from jsplan.event_loop import runs_to_end
from jsplan.facts.compare_streams import (
    Comparison,
    IncomparableError,
    Side,
    compare_streams,
)
from jsplan.facts.live import LiveObject, get_retention
from jsplan.facts.pages import ReadLimitExceeded
from jsplan.facts.reader import parse_stream
from jsplan.jetstream import DomainApi
from jsplan.options import Observer
from jsplan.planning.backfill.model import SeqRange
from jsplan.rehearsal.saved_stream import open_saved_stream
from jsplan.resources.server_features import RESTORE_ANY_NAME_LEVEL, read_level
from jsplan.units import format_timestamp, parse_instant

if TYPE_CHECKING:
    from jsplan.backfill.compare_rows import StreamAt

#: The domain of a saved stream in addresses.
BACKUP_DOMAIN: Final = "backup"
#: Seconds for a mirror or source to copy the newest messages, and between two looks.
CATCH_UP_TIMEOUT: Final = 10.0
_PAUSE: Final = 0.2
#: Looks in a row at a source without a lag, and at a kept result.
CALM_LOOKS: Final = 3
#: Sequences from which on it is faster to load Arrow.
MIN_ROWS: Final = 50_000


class CompareOptions(Struct, frozen=True):
    """Two addresses of streams, or one and the folder of a `backup` that has it.

    `first_seq` and `last_seq` are sequences of the origin. `since` is the file of a kept result,
    and `out` that of this one. `master` is a Spark master that reads both; None: this process.
    """

    one: str
    other: str | None
    first_seq: int | None = None
    last_seq: int | None = None
    since: Path | None = None
    out: Path | None = None
    backup: Path | None = None
    master: str | None = None


@runs_to_end
async def compare(load: LoadOptions, options: CompareOptions, observer: Observer) -> Result:
    """Compare two streams.

    Raises UsageError, ConfigError, ConnectError, ApiError, RefusedError for what cannot be
    compared, and DocumentError for a damaged kept result.
    """
    if options.backup is not None:
        return await _compare_backup(load, options, options.backup, observer)
    begun = time.monotonic()
    kept = read_kept(options.since) if options.since is not None else None
    async with open_session(load, observer, open_stateless_context) as session:
        relation = await _relate(session, options)
        origin, copy = [session.pool.api(_domain(session, side)) for side in _sides(relation)]
        first = options.first_seq or 1
        unusable = await _why_unusable(kept, relation, (origin, copy), first)
        used = kept if not unusable else None
        # The copy first: whatever it has then is of a message up to the end of its origin.
        begun_with = await _read_again(copy, relation.copy)
        relation = replace(relation, origin=await _read_again(origin, relation.origin))
        last = min(options.last_seq or _last(relation.origin), _last(relation.origin))
        relation = await _wait_for_copy(relation, copy, last)
        observer.phase(f"Comparing {relation.origin.address} with {relation.copy.address}")
        found = await _find(session, relation, (first, last), used, options.master)
        # A message that expired meanwhile is before the first one then.
        now = replace(
            relation,
            origin=await _read_again(origin, relation.origin),
            copy=await _read_again(copy, relation.copy),
        )
        parts = explain(now, found, forked=await _is_forked(now, origin, found))
        if relation.by == "sequence" and last == _last(relation.origin):  # newer ones were read too
            last = max(last, min(_last(relation.copy), _last(now.origin)))
        result = Result(
            timestamp=format_timestamp(),
            origin=_describe(relation.origin),
            copy=_describe(begun_with if relation.by == "header" else relation.copy),
            relation=relation.role,
            by=relation.by,
            first=first,
            last=last,
            equal=found.messages - found.different.count + (used.equal if used else 0),
            parts=parts,
            since=used.timestamp if used else "",
            kept=unusable,
            seconds=round(time.monotonic() - begun, 1),
        )
    if options.out is not None:
        write_kept(options.out, result)
    return result


async def _why_unusable(
    kept: Result | None, relation: Relation, apis: tuple[DomainApi, DomainApi], first: int
) -> str:
    """Return why a kept result says nothing; empty where it does, or there is none.

    The counts of a busy stream may not fit together, so one look proves nothing.
    """
    found = ""
    for _ in range(CALM_LOOKS if kept is not None else 0):
        assert kept is not None
        if not (found := await why_unusable(kept, relation, apis, first)):
            break
        origin = await _read_again(apis[0], relation.origin)
        copy = await _read_again(apis[1], relation.copy)
        relation = replace(relation, origin=origin, copy=copy)
    return found


async def _compare_backup(
    load: LoadOptions, options: CompareOptions, folder: Path, observer: Observer
) -> Result:
    """Compare a stream with what a backup has of it."""
    begun, manifest = time.monotonic(), read_manifest(folder)
    async with open_session(load, observer, open_stateless_context) as session:
        address = _parse(session, options.one)
        if (saved := manifest.streams.get(address)) is None:
            raise RefusedError(f"the backup has no {address}", hint=f"See: jsplan restore {folder}")
        origin = await _read(session, address)
        observer.phase(f"Restoring {address} on an embedded server")
        async with open_saved_stream(folder, saved) as api:
            info = await api.request(f"STREAM.INFO.{address.stream}")
            copy = parse_stream(address._replace(domain=BACKUP_DOMAIN), info)
            relation = Relation(origin, copy, "backup")
            last = options.last_seq or max(_last(origin), _last(copy))
            observer.phase(f"Comparing {address} with its backup")
            sides = (
                await _open_side(session, origin),
                (api, info, read_level(await api.request("INFO"))),
            )
            found = await _compare_pages(relation, sides, options.first_seq or 1, last)
            own = session.pool.api(_domain(session, origin))
            now = replace(relation, origin=await _read_again(own, origin))
            return Result(
                timestamp=format_timestamp(),
                origin=_describe(origin),
                copy=replace(_describe(copy), created=saved.created),
                relation="backup",
                by="sequence",
                first=options.first_seq or 1,
                last=last,
                equal=found.messages - found.different.count,
                parts=explain(now, found, forked=await _is_forked(now, own, found)),
                seconds=round(time.monotonic() - begun, 1),
                backup=display_path(folder),
                beside=await _choose_beside(session, address, saved.archive.format),
            )


async def _choose_beside(session: Session, address: Address, archive: str) -> str:
    """Return where a saved stream can be restored beside the one that is there; empty: nowhere.

    An archive of a server before 2.15 keeps its name, so it goes to another domain.
    """
    domains = session.context.workspace.domains
    info = await session.pool.api(domains[address.domain]).request("INFO")
    if (
        archive == "natsarc1"
        and read_level(info) >= RESTORE_ANY_NAME_LEVEL
        and address.kind == "stream"
    ):
        return f"{address.domain}/stream/{address.name}_SAVED"
    for key, domain in domains.items():
        if key != address.domain and domain.is_own:
            return str(address._replace(domain=key))
    return ""


async def _relate(session: Session, options: CompareOptions) -> Relation:
    """Read both streams. Raises UsageError, RefusedError, ConnectError and ApiError."""
    addresses = [_parse(session, text) for text in (options.one, options.other or "")]
    if addresses[0] == addresses[1]:
        raise UsageError("both addresses are the same stream")
    one, other = [await _read(session, address) for address in addresses]
    context = session.context
    found = relate(context.workspace, context.topology.routes, one, other)
    if found.by == "sequence":
        return found
    origin, copy = (StreamIdentity(side.address, side.created) for side in _sides(found))
    former = find_former_names(context, origin, copy)
    names = {name for name, (_, end) in former.sources.items() if end == NEVER}
    tags = {name for name, end in former.origins.items() if end == NEVER}
    return replace(found, names=found.names | names, tags=found.tags | tags)


def _parse(session: Session, text: str) -> Address:
    try:
        address = Address.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not address.is_stream or address.is_content:
        raise UsageError(f"{text} is no stream or bucket", hint="Write DOMAIN/stream/NAME.")
    if address.domain not in session.context.workspace.domains:
        raise UsageError(f"{text} is in no declared domain", hint="Write DOMAIN/stream/NAME.")
    return address


def _domain(session: Session, stream: LiveObject) -> Any:
    return session.context.workspace.domains[stream.address.domain]


def _sides(relation: Relation) -> tuple[LiveObject, LiveObject]:
    return relation.origin, relation.copy


def _last(stream: LiveObject) -> int:
    return int(stream.state.get("last_seq") or 0)


async def _read(session: Session, address: Address) -> LiveObject:
    domain = session.context.workspace.domains[address.domain]
    await session.pool.open([domain.connection])
    info = await session.pool.api(domain).stream_info(address.stream)
    if info is None:
        raise RefusedError(f"{address} does not exist", hint="See what there is: jsplan status")
    return parse_stream(address, info)


async def _wait_for_copy(relation: Relation, api: DomainApi, last: int) -> Relation:
    """Return the relation once the copy has what the origin had, or after some seconds.

    A new source has not heard of its origin, and reports no lag. So one look proves nothing.
    """
    end, calm = time.monotonic() + CATCH_UP_TIMEOUT, 0
    while True:
        copy = await _read_again(api, relation.copy)
        flows = [f for f in copy.flows if f.get("name") == relation.origin.address.stream]
        late = any(f.get("lag") or f.get("active", -1) < 0 for f in flows)
        calm = 0 if late else calm + 1
        follows = _last(copy) >= last if relation.role == "mirror" else calm == CALM_LOOKS
        if not relation.role or follows or time.monotonic() > end:
            return replace(relation, copy=copy)
        await asyncio.sleep(_PAUSE)


async def _read_again(api: DomainApi, stream: LiveObject) -> LiveObject:
    return parse_stream(stream.address, await _info(api, stream))


async def _info(api: DomainApi, stream: LiveObject) -> dict[str, Any]:
    return await api.request(f"STREAM.INFO.{stream.address.stream}")


async def _find(
    session: Session,
    relation: Relation,
    span: tuple[int, int],
    kept: Result | None,
    master: str | None,
) -> Comparison:
    """Return the differences by sequences of the origin."""
    first, last = span
    start = max(first, kept.last + 1) if kept else first
    copy = await _open_side(session, relation.copy)  # it has nothing that its origin has not, then
    origin = await _open_side(session, relation.origin)
    if relation.by == "header":
        copy_first = kept.copy.last_seq + 1 if kept else 1
        if master is not None:
            ends = [int(info["state"]["last_seq"]) for _, info, _ in (origin, copy)]
            read = SeqRange(start, min(ends[0], last_to_match(relation, last)))
            spans = read, SeqRange(copy_first, ends[1])
            return await _compare_on_spark(session, relation, spans, last, master)
        with _refuse_incomparable(relation):
            return await compare_by_header(relation, origin, copy, (start, last), copy_first)
    end = last if last < _last(relation.origin) else max(last, _last(relation.copy))
    if start > end:
        return Comparison()
    if master is not None:
        spans = SeqRange(start, end), SeqRange(start, end)
        return await _compare_on_spark(session, relation, spans, last, master)
    if (
        end - start >= MIN_ROWS
        and _can_be_read_by_consumers(relation)
        and not list_missing_packages()
    ):
        return await _compare_rows(session, relation, SeqRange(start, end))
    return await _compare_pages(relation, (origin, copy), start, end)


async def _compare_pages(
    relation: Relation, sides: tuple[Side, Side], first: int, last: int
) -> Comparison:
    with _refuse_incomparable(relation):
        return await compare_streams(*sides, first, last)


@contextmanager
def _refuse_incomparable(relation: Relation) -> Iterator[None]:
    """Turn what cannot be read without `allow_direct` into RefusedError."""
    names = f"{relation.origin.address} or {relation.copy.address}"
    hint = "Set allow_direct: true there, apply, and compare again."
    try:
        yield
    except IncomparableError as error:
        raise RefusedError(f"{names} has {error}", hint=hint) from None
    except ReadLimitExceeded:
        raise RefusedError(
            f"{names} has too many deleted messages to be read without allow_direct", hint=hint
        ) from None


async def _open_side(session: Session, stream: LiveObject) -> Side:
    api = session.pool.api(_domain(session, stream))
    return api, await _info(api, stream), read_level(await api.request("INFO"))


def _can_be_read_by_consumers(relation: Relation) -> bool:
    """Check whether a consumer more changes nothing in either stream."""
    return all(get_retention(side.compact) == "limits" for side in _sides(relation))


async def _compare_rows(session: Session, relation: Relation, span: SeqRange) -> Comparison:
    from jsplan.backfill.compare_rows import compare_rows  # noqa: PLC0415

    return await asyncio.to_thread(compare_rows, *_export_sides(session, relation), span)


def _export_sides(session: Session, relation: Relation) -> tuple[StreamAt, StreamAt]:
    """Return both streams as tasks reach them, which inherit the environment that this sets."""
    from jsplan.backfill.endpoints import Endpoints  # noqa: PLC0415

    domains = [_domain(session, side) for side in _sides(relation)]
    ends = Endpoints.of_domains(session.context, session.pool, *domains)
    return (
        (ends.source_endpoint, relation.origin.address.stream),
        (ends.target_endpoint, relation.copy.address.stream),
    )


async def _compare_on_spark(
    session: Session, relation: Relation, spans: tuple[SeqRange, SeqRange], last: int, master: str
) -> Comparison:
    """Compare with tasks that read these ranges of origin and copy. Raises RefusedError."""
    if not _can_be_read_by_consumers(relation):
        raise RefusedError(
            f"{relation.origin.address} or {relation.copy.address} keeps its messages for "
            "consumers: one of Spark would take part in that",
            hint="Leave out --master.",
        )
    require_spark()
    from jsplan.backfill.compare_rows import StreamPair  # noqa: PLC0415
    from jsplan.backfill.spark_runner import SparkRunner  # noqa: PLC0415

    pair = StreamPair(relation, _export_sides(session, relation), spans, last)
    runner = SparkRunner(session.observer, master)
    try:
        await runner.start()
        session.observer.phase(
            f"Comparing {relation.origin.address} with {relation.copy.address} on Spark"
        )
        return await runner.compare_streams(pair)
    finally:
        await runner.close()


def _describe(stream: LiveObject) -> ComparedSide:
    first, last, messages = (
        int(stream.state.get(name) or 0) for name in ("first_seq", "last_seq", "messages")
    )
    time = str(stream.state.get("last_ts") or "") if messages else ""
    return ComparedSide(str(stream.address), stream.created, messages, first, last, time)


async def _is_forked(relation: Relation, api: DomainApi, found: Comparison) -> bool:
    """Check whether the origin has newer messages than the copy at the sequences that differ.

    It went back then, and gave new messages the sequences of those that it lost.
    """
    end = str(relation.copy.state.get("last_ts") or "")
    seq = found.different.first
    if relation.by != "sequence" or seq is None or not end:
        return False
    message = await api.get_message(relation.origin.address.stream, {"seq": seq})
    return message is not None and parse_instant(message["time"]) > parse_instant(end)
