"""An entry of `backfills:`: found, and checked before any server is asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.backfill.parquet.location import resolve_store
from jsplan.errors import NotAvailableError, UsageError
from jsplan.planning.backfill.model import make_ad_hoc_entry

if TYPE_CHECKING:
    from jsplan.backfill.options import EntryOptions
    from jsplan.config.model import Backfill, BackfillSide
    from jsplan.context import Context


def resolve_entry(world: Context, options: EntryOptions) -> Backfill:
    """Return the entry of the options, or build one for two addresses.

    Raises UsageError, and NotAvailableError if it is not possible.
    """
    if options.name is not None:
        found = world.workspace.backfills.get(options.name)
        if found is None:
            names = ", ".join(world.workspace.backfills)
            hint = "The files declare none. Or name both ends: --from ADDRESS --to ADDRESS"
            if names:
                hint = f"The files declare: {names}."
            raise UsageError(f"there is no backfill {options.name}", hint=hint)
    else:
        origin, target = (
            _parse_stream_address(world, text or "") for text in (options.origin, options.target)
        )
        found = make_ad_hoc_entry(origin, target)
    _check_archives(world, found)
    return found


def _parse_stream_address(world: Context, text: str) -> Address:
    try:
        address = Address.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if address.kind == "consumer" or address.domain not in world.workspace.domains:
        raise UsageError(
            f"{text} is no stream of a declared domain", hint="Write DOMAIN/stream/NAME."
        )
    return address


def _check_archives(world: Context, entry: Backfill) -> None:
    """Raise UsageError or NotAvailableError for an entry whose archives are not supported."""
    folders = [side.parquet for side in (*entry.origins, entry.target) if side.parquet is not None]
    for folder in folders:
        resolve_store(world, folder)
    if entry.target.parquet is not None and reads_archive(entry):
        raise UsageError(
            f"backfill {entry.name} copies from an archive to an archive",
            hint="Copy the folder instead. It is self-contained.",
        )
    if reads_archive(entry) and len(folders) < len(entry.origins):
        raise UsageError(
            f"backfill {entry.name} mixes archives and streams as origins",
            hint="Split it into two entries.",
        )
    if entry.target.parquet is not None and entry.order != "stream":
        raise UsageError(
            f"backfill {entry.name}: an archive is written in the order of the stream, "
            f"so `order: {entry.order}` has no effect",
            hint="Remove `order` here. Set it in the entry that reads the archive.",
        )
    if folders and (entry.mode == "exact" or entry.strategy not in {"auto", "spark"}):
        raise NotAvailableError(
            f"backfill {entry.name}: an archive is written and read by Spark, "
            "and copies from it have an origin header",
            hint="Remove `mode` and `strategy` from the entry.",
        )


def has_transforms(entry: Backfill) -> bool:
    """Check whether an entry changes messages or their order."""
    return entry.order != "stream" or any((entry.where, entry.transform, entry.subject_transform))


def reads_archive(entry: Backfill) -> bool:
    """Check whether an entry reads an archive."""
    return any(side.parquet is not None for side in entry.origins)


def is_joint_copy(entry: Backfill) -> bool:
    """Check whether the origins of an entry are copied together, as partitions of one copy.

    Otherwise each is a copy of its own: into an archive, by the servers, and where two origins are
    of one stream.
    """
    if entry.target.parquet is not None:
        return False
    if has_transforms(entry):
        return True
    return (
        not reads_archive(entry)
        and has_distinct_origins(entry.origins)
        and len(entry.origins) > 1
        and entry.mode == "tagged"
        and entry.strategy in ("auto", "spark")
    )


def has_distinct_origins(sides: Iterable[BackfillSide]) -> bool:
    """Check that no stream is named twice."""
    names = [str(side) for side in sides]
    return len(set(names)) == len(names)
