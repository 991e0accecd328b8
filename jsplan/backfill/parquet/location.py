"""Archives as ends of a backfill: where they are, and which range of which stream is to be taken out of one."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from jsplan.address import Address
from jsplan.backfill.parquet.log import (
    Archive,
    ArchivedOrigin,
    ArchiveError,
    merge_gaps,
    parse_origin,
    read_receipts,
)
from jsplan.backfill.seq_ranges import OriginState
from jsplan.documents.backfill import Orphan
from jsplan.errors import JsplanError, NotAvailableError, UsageError

if TYPE_CHECKING:
    from jsplan.backfill.parquet.reader import LocatedFile
    from jsplan.config.model import Backfill, Domain
    from jsplan.context import Context


def resolve_folder(world: Context, text: str) -> Path:
    """The folder that an entry means; a relative one is below the workspace. Raises NotAvailableError for one that is no folder."""
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return Path(unquote(parts.path))
    if "://" in text:
        raise NotAvailableError(
            f"{text} is no folder: an archive is written to a file system, where of two writers only one gets a name",
            hint="Name a folder (on a cluster one that every worker reaches), and sync it with the object store when the backfill is done; "
            "to read one, fetch it first. See docs/how-to/archives.md.",
        )
    return world.workspace.root / text


def check_archives(world: Context, entry: Backfill) -> None:
    """Raise UsageError or NotAvailableError for an entry with an archive that cannot be carried out."""
    sides = [side for side in (*entry.origins, entry.target) if side.parquet is not None]
    if not sides:
        return
    for side in sides:
        resolve_folder(world, side.parquet or "")
    if entry.target.parquet is not None and any(side.parquet is not None for side in entry.origins):
        raise UsageError(
            f"backfill {entry.name} goes from an archive to an archive",
            hint="Copy the folder: it is complete in itself.",
        )
    if any(side.parquet is not None for side in entry.origins) != all(
        side.parquet is not None for side in entry.origins
    ):
        raise UsageError(
            f"backfill {entry.name} mixes archives and streams as origins",
            hint="Make two entries of it.",
        )
    if entry.target.parquet is not None and entry.order != "stream":
        raise UsageError(
            f"backfill {entry.name}: an archive is written in the order of the stream, and `order: {entry.order}` would be lost in it",
            hint="Leave `order` out here, and say it where the archive is brought into a stream.",
        )
    if entry.mode == "exact" or entry.strategy not in {"auto", "spark"}:
        raise NotAvailableError(
            f"backfill {entry.name}: an archive is written and read by Spark, and a copy out of it says where it is from"
        )


@dataclass(slots=True)
class ParquetOrigin:
    """What an archive has of one stream.

    `has_declared_domain`: the workspace knows the domain that the messages come from, so a source of the target may have brought some.
    """

    folder: Path
    archive: Archive
    origin: ArchivedOrigin
    gaps: list[list[int]]
    gap_messages: int
    has_declared_domain: bool = True

    @property
    def files(self) -> tuple[LocatedFile, ...]:
        """Where they are, in order."""
        return tuple(
            (str(self.folder / file.name), file) for file in self.archive.files_of(self.origin)
        )

    @property
    def stream_info(self) -> dict[str, Any]:
        """As much of a STREAM.INFO as a copy asks for."""
        files = self.archive.files_of(self.origin)
        return {
            "created": self.origin.created,
            "state": {
                "messages": sum(file.rows for file in files),
                "bytes": sum(file.content for file in files),
            },
        }


def list_parquet_origins(archive: Archive) -> list[ParquetOrigin]:
    """Everything that an archive has, by stream."""
    found = []
    for origin, commits in archive.origins.items():
        found.append(ParquetOrigin(archive.folder, archive, origin, *merge_gaps(commits)))
    return found


async def load_parquet_origin(world: Context, leg: OriginState) -> ParquetOrigin:
    """What the archive of a leg has of its stream, if it is whole. Raises ArchiveError."""
    archive = await _load_complete_archive(world, leg.archive)
    found = next(
        (
            one
            for one in list_parquet_origins(archive)
            if (resolve_origin_key(world, one.origin), one.origin.created)
            == (leg.origin, leg.created)
        ),
        None,
    )
    if found is None:
        raise ArchiveError(
            f"the archive {archive.folder} has nothing of {leg.origin} as it was made {leg.created}, of which the range was pinned",
            hint="Run it with --reset-range to pin what is there now.",
        )
    found.has_declared_domain = leg.origin_address.domain in world.workspace.domains
    return found


async def _load_complete_archive(world: Context, text: str) -> Archive:
    archive = await asyncio.to_thread(Archive.read, resolve_folder(world, text))
    await asyncio.to_thread(archive.require_complete)
    return archive


async def pin_parquet_origins(
    world: Context, text: str, target: str, info: dict[str, Any]
) -> list[OriginState]:
    """The legs that bring everything of an archive into a stream with this STREAM.INFO. Raises ArchiveError."""
    legs = []
    for held in list_parquet_origins(await _load_complete_archive(world, text)):
        files = [file for _, file in held.files]
        first, last = (
            (min(file.first_seq for file in files), max(file.last_seq for file in files))
            if files
            else (1, 0)
        )
        legs.append(
            OriginState(
                resolve_origin_key(world, held.origin),
                target,
                held.origin.created,
                first,
                last,
                [],
                info["created"],
                int(info["state"]["last_seq"]) + 1,
                archive=text,
            )
        )
    return legs


def resolve_origin_key(world: Context, origin: ArchivedOrigin) -> str:
    """The address of a stream that an archive has, as this workspace calls its domain; one that it does not know keeps its name."""
    keys = (
        domain.key
        for domain in world.workspace.domains.values()
        if name_origin_domain(domain) == origin.domain
    )
    return str(Address.of_stream(next(keys, origin.domain), origin.stream))


def name_origin_domain(domain: Domain) -> str:
    """What a domain is called in `Jsplan-Origin`."""
    return domain.js_domain or domain.key


def find_orphaned_attempts(world: Context) -> list[Orphan]:
    """What attempts that died left in the archives of this workspace's entries."""
    found = []
    for entry in world.workspace.backfills.values():
        with contextlib.suppress(JsplanError):  # what is wrong with the folder is what a run says
            if entry.target.parquet is not None:
                archive = Archive.read(resolve_folder(world, entry.target.parquet))
                found += [
                    _to_orphan(entry.name, mark, place)
                    for _, mark, place in archive.list_attempts(
                        f"{world.workspace.state_name}/{entry.name}"
                    )
                ]
    return found


def _to_orphan(entry: str, mark: dict[str, str], place: Path) -> Orphan:
    done, origin = read_receipts(place), parse_origin(mark)
    assert origin is not None, "attempts yields no other"
    rows, size = (sum(piece[name] for piece in done) for name in ("rows", "bytes"))
    return Orphan(
        "", str(place), entry, f"{origin.domain}/{origin.stream}", rows, size, sealed=False
    )
