"""Locations of archives, and the origins that an archive provides."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from jsplan.address import Address
from jsplan.backfill.parquet.manifest import Archive, ArchivedOrigin, OriginContent
from jsplan.backfill.parquet.store import ArchiveError, ArchiveStore, LocalFolder, ObjectFolder
from jsplan.config.parsing import OBJECT_SCHEMES, PLACE_HINT, archive_url_problem
from jsplan.errors import UsageError
from jsplan.planning.backfill.model import OriginState

if TYPE_CHECKING:
    from jsplan.backfill.parquet.reader import LocatedFile
    from jsplan.config.model import Domain
    from jsplan.context import Context


def resolve_store(context: Context, text: str) -> ArchiveStore:
    """Return the place of an archive: a folder or a path in a bucket.

    A relative path is below the workspace. Raises UsageError for another URL.
    """
    if problem := archive_url_problem(text):
        raise UsageError(f"the place of an archive is not valid: {problem}", hint=PLACE_HINT)
    scheme, is_url, rest = text.partition("://")
    if scheme in OBJECT_SCHEMES and is_url:
        bucket, _, prefix = rest.partition("/")
        return ObjectFolder(f"{scheme}://{bucket}", prefix.strip("/"))
    if is_url:
        return LocalFolder(Path(unquote(urlsplit(text).path)))
    return LocalFolder(context.workspace.root / text)


class ParquetOrigin(Struct):
    """Messages of one stream in an archive.

    `has_declared_domain`: the workspace has the domain of the messages, so a source of the target
    may have delivered some.
    """

    archive: Archive
    content: OriginContent
    has_declared_domain: bool = True

    @property
    def origin(self) -> ArchivedOrigin:
        """The stream, and what was done to its messages."""
        return self.content.origin

    @property
    def files(self) -> tuple[LocatedFile, ...]:
        """Files in order, with their place."""
        return tuple((self.archive.store, file) for file in self.content.files)

    @property
    def stream_info(self) -> dict[str, Any]:
        """Part of STREAM.INFO that a copy reads."""
        files = self.content.files
        return {
            "created": self.origin.created,
            "state": {
                "messages": sum(file.rows for file in files),
                "bytes": sum(file.content for file in files),
            },
        }


async def load_parquet_origin(context: Context, origin_state: OriginState) -> ParquetOrigin:
    """Load the archive of an origin, if it is complete. Raises ArchiveError."""
    archive = await _load_complete_archive(context, origin_state.archive)
    for content in archive.origins:
        key = resolve_origin_key(context, content.origin), content.origin.created
        if key == (origin_state.origin, origin_state.created):
            domain = origin_state.origin_address.domain
            return ParquetOrigin(archive, content, domain in context.workspace.domains)
    raise ArchiveError(
        f"the archive {archive.store} has no message of {origin_state.origin} "
        f"of {origin_state.created}, whose range was pinned",
        hint="Run it with --reset-range to pin the current content.",
    )


async def _load_complete_archive(context: Context, text: str) -> Archive:
    archive = await asyncio.to_thread(Archive.read, resolve_store(context, text))
    await asyncio.to_thread(archive.require_complete)
    return archive


async def pin_parquet_origins(
    context: Context, text: str, target: str, info: dict[str, Any]
) -> list[OriginState]:
    """Pin everything in an archive for the stream with this STREAM.INFO. Raises ArchiveError."""
    archive = await _load_complete_archive(context, text)
    return [
        OriginState(
            resolve_origin_key(context, content.origin),
            target,
            content.origin.created,
            min((file.first_seq for file in content.files), default=1),
            max((file.last_seq for file in content.files), default=0),
            [],
            info["created"],
            int(info["state"]["last_seq"]) + 1,
            archive=text,
        )
        for content in archive.origins
    ]


def resolve_origin_key(context: Context, origin: ArchivedOrigin) -> str:
    """Return the address of an archived stream, with the domain as this workspace names it.

    An unknown domain keeps its name.
    """
    keys = (
        domain.key
        for domain in context.workspace.domains.values()
        if name_origin_domain(domain) == origin.domain
    )
    return str(Address.of_stream(next(keys, origin.domain), origin.stream))


def name_origin_domain(domain: Domain) -> str:
    """Return the name of a domain in `Jsplan-Origin`."""
    return domain.js_domain or domain.key
