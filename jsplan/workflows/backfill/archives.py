"""Archives as ends of a backfill: where they are, and which range of which stream is to be taken out of one."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from jsplan.address import Address
from jsplan.backfill.job.archive import Archive, ArchiveError, Origin, gaps_of, origin_of, receipts
from jsplan.backfill.ranges import Leg
from jsplan.documents.backfill import Leftover
from jsplan.errors import JsplanError, NotAvailableError, UsageError

if TYPE_CHECKING:
    from jsplan.backfill.job.archived import Placed
    from jsplan.config.model import Backfill, Domain
    from jsplan.workflows.world import World


def folder_of(world: World, text: str) -> Path:
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


def check_archives(world: World, entry: Backfill) -> None:
    """Raise UsageError or NotAvailableError for an entry with an archive that cannot be carried out."""
    sides = [side for side in (*entry.origins, entry.target) if side.parquet is not None]
    if not sides:
        return
    for side in sides:
        folder_of(world, side.parquet or "")
    if entry.target.parquet is not None and any(side.parquet is not None for side in entry.origins):
        raise UsageError(f"backfill {entry.name} goes from an archive to an archive", hint="Copy the folder: it is complete in itself.")
    if any(side.parquet is not None for side in entry.origins) != all(side.parquet is not None for side in entry.origins):
        raise UsageError(f"backfill {entry.name} mixes archives and streams as origins", hint="Make two entries of it.")
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
class Held:
    """What an archive has of one stream.

    `declared`: the workspace knows the domain that the messages come from, so a source of the target may have brought some.
    """

    folder: Path
    archive: Archive
    origin: Origin
    gaps: list[list[int]]
    gap_messages: int
    declared: bool = True

    @property
    def files(self) -> tuple[Placed, ...]:
        """Where they are, in order."""
        return tuple((str(self.folder / file.name), file) for file in self.archive.of(self.origin))

    @property
    def info(self) -> dict[str, Any]:
        """As much of a STREAM.INFO as a copy asks for."""
        files = self.archive.of(self.origin)
        return {
            "created": self.origin.created,
            "state": {"messages": sum(file.rows for file in files), "bytes": sum(file.content for file in files)},
        }


def held_of(archive: Archive) -> list[Held]:
    """Everything that an archive has, by stream."""
    found = []
    for origin, commits in archive.origins.items():
        found.append(Held(archive.folder, archive, origin, *gaps_of(commits)))
    return found


async def held_by(world: World, leg: Leg) -> Held:
    """What the archive of a leg has of its stream, if it is whole. Raises ArchiveError."""
    archive = await _whole(world, leg.archive)
    found = next((one for one in held_of(archive) if (key_of(world, one.origin), one.origin.created) == (leg.origin, leg.created)), None)
    if found is None:
        raise ArchiveError(
            f"the archive {archive.folder} has nothing of {leg.origin} as it was made {leg.created}, of which the range was pinned",
            hint="Run it with --reset-range to pin what is there now.",
        )
    found.declared = leg.origin_address.domain in world.workspace.domains
    return found


async def _whole(world: World, text: str) -> Archive:
    archive = await asyncio.to_thread(Archive.read, folder_of(world, text))
    await asyncio.to_thread(archive.require_whole)
    return archive


async def archived_legs(world: World, text: str, target: str, info: dict[str, Any]) -> list[Leg]:
    """The legs that bring everything of an archive into a stream with this STREAM.INFO. Raises ArchiveError."""
    legs = []
    for held in held_of(await _whole(world, text)):
        files = [file for _, file in held.files]
        first, last = (min(file.first_seq for file in files), max(file.last_seq for file in files)) if files else (1, 0)
        legs.append(
            Leg(
                key_of(world, held.origin),
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


def key_of(world: World, origin: Origin) -> str:
    """The address of a stream that an archive has, as this workspace calls its domain; one that it does not know keeps its name."""
    keys = (domain.key for domain in world.workspace.domains.values() if identity(domain) == origin.domain)
    return str(Address.of_stream(next(keys, origin.domain), origin.stream))


def identity(domain: Domain) -> str:
    """What a domain is called in `Jsplan-Origin`."""
    return domain.js_domain or domain.key


def begun_archives(world: World) -> list[Leftover]:
    """What attempts that died left in the archives of this workspace's entries."""
    found = []
    for entry in world.workspace.backfills.values():
        with contextlib.suppress(JsplanError):  # what is wrong with the folder is what a run says
            if entry.target.parquet is not None:
                archive = Archive.read(folder_of(world, entry.target.parquet))
                found += [
                    _begun(entry.name, mark, place) for _, mark, place in archive.attempts(f"{world.workspace.state_name}/{entry.name}")
                ]
    return found


def _begun(entry: str, mark: dict[str, str], place: Path) -> Leftover:
    done, origin = receipts(place), origin_of(mark)
    assert origin is not None, "attempts yields no other"
    rows, size = (sum(piece[name] for piece in done) for name in ("rows", "bytes"))
    return Leftover("", str(place), entry, f"{origin.domain}/{origin.stream}", rows, size, sealed=False)
