"""Entries of KV buckets that a generated file declares together with their buckets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jsplan.address import Address, is_glob, matches_any, names_content
from jsplan.codegen.value_format import escape_references
from jsplan.context import Context
from jsplan.errors import UsageError
from jsplan.facts.contents import list_contents, read_entries
from jsplan.facts.live import Live
from jsplan.importing.selection import ImportSelection
from jsplan.jetstream import Pool
from jsplan.resources.contents import CONTENTS
from jsplan.resources.kv_entry import MAX_SHOWN, TTL, readable_text

NOT_TEXT: Final = f"its value is no text of at most {MAX_SHOWN:,} bytes; put it into a `file:`"
HAS_TTL: Final = "it expires"


async def read_selected_entries(
    pool: Pool, context: Context, live: Live, globs: Iterable[str], selection: ImportSelection
) -> dict[Address, dict[str, str]]:
    """Return the values to declare, by bucket and key: those of selected buckets.

    Raises UsageError for a bucket that is in the files already: a generated file cannot add to it.
    """
    wanted = [glob for glob in globs if names_content(glob)]
    found: dict[Address, dict[str, str]] = {}
    if not wanted:
        return found
    _require_generated(context, wanted, selection)
    for bucket in selection.selected:
        if bucket.address.kind != "kv":
            continue
        api = pool.api(context.workspace.domains[bucket.address.domain])
        keys = [
            address
            for address in await list_contents(api, bucket.address, "")
            if matches_any(wanted, address) and CONTENTS["kv_entry"].is_name(address.key)
        ]
        level = live.domains[bucket.address.domain].level
        for address, entry in sorted((await read_entries(api, bucket, keys, level)).items()):
            text = readable_text(entry.content or b"")
            if entry.raw.get(TTL):
                selection.skip(HAS_TTL, address)
            elif text is None:
                selection.skip(NOT_TEXT, address)
            else:
                found.setdefault(bucket.address, {})[address.key] = escape_references(text)
    return found


def _require_generated(context: Context, globs: list[str], selection: ImportSelection) -> None:
    buckets = {found.address for found in selection.selected}
    for glob in globs:
        domain, kind, *rest = glob.split("/")
        bucket = Address(domain, "kv", rest[0] if rest else "")
        if kind != "kv_entry" or (not is_glob(f"{domain}/{bucket.name}") and bucket not in buckets):
            declared = bucket in context.workspace.resources
            what = "is in the files already" if declared else "is not imported by this command"
            raise UsageError(
                f"{glob}: no generated file can declare it: {bucket} {what}"
                if kind == "kv_entry"
                else f"{glob}: only entries of KV buckets can be written to a generated file",
                hint="Declare it under `entries:`, `objects:` or `schedules:` there. The next "
                "apply imports what is equal without a write."
                if declared or kind != "kv_entry"
                else f"Name the bucket too: {bucket}.",
            )
