"""import --generate-config: list, select, and generate what a new file declares."""

from __future__ import annotations

from jsplan.address import names_content
from jsplan.codegen import ResourceToWrite
from jsplan.config.model import LoadOptions
from jsplan.context import Context, known_domains, open_pool
from jsplan.facts.refresh import list_live
from jsplan.importing.entries import read_selected_entries
from jsplan.importing.generated_config import MAX_SHOWN, GeneratedConfig, build_codegen_context
from jsplan.importing.selection import (
    exact_addresses,
    matches_domain,
    read_exact,
    require_existing,
    select_objects,
    skip_internal_streams,
)
from jsplan.options import Observer
from jsplan.units import count_text


async def generate_config(
    load: LoadOptions, context: Context, globs: tuple[str, ...], observer: Observer
) -> GeneratedConfig | None:
    """Select what the globs name and no file declares, or None. Warn about what is skipped."""
    every, globs = globs, tuple(glob for glob in globs if not names_content(glob))
    keys = [
        key for key in context.workspace.domains if any(matches_domain(glob, key) for glob in globs)
    ]
    async with open_pool(context, read_only=True, guarded=True) as pool:
        observer.phase(f"Listing {count_text(len(keys), 'domain')}")
        live = await list_live(
            pool,
            context.workspace.domains,
            known_domains(context),
            exact_addresses(globs),
            domain_keys=keys,
        )
        await read_exact(pool, context, live, exact_addresses(globs))
        selection = select_objects(context, live, globs)
        await skip_internal_streams(pool, context, live, globs, selection)
        entries = await read_selected_entries(pool, context, live, every, selection)
    require_existing(context, live, exact_addresses(globs))
    for reason, named in selection.skipped.items():
        more = f" and {len(named) - MAX_SHOWN} more" if len(named) > MAX_SHOWN else ""
        verb = "is" if len(named) == 1 else "are"
        observer.warn(f"{', '.join(named[:MAX_SHOWN])}{more} {verb} not written: {reason}")
    if not selection.selected:
        return None
    return GeneratedConfig(
        tuple(
            ResourceToWrite(
                each.address,
                each.config,
                complete=True,
                settings={"entries": found} if (found := entries.get(each.address)) else {},
            )
            for each in selection.selected
        ),
        build_codegen_context(load, context, live),
    )
