"""backup: streams with configuration, data and consumers into a folder. Read-only, no lock."""

from __future__ import annotations

from functools import partial

from jsplan.address import Address
from jsplan.backup.folder import open_for_writing
from jsplan.backup.run import BackupOptions, BackupResult, BackupRun
from jsplan.backup.selection import identify_all, select_domains, select_streams
from jsplan.config.model import LoadOptions
from jsplan.context import Context, known_domains, open_context, open_pool, state_bucket
from jsplan.event_loop import runs_to_end
from jsplan.options import Observer
from jsplan.units import count_text


@runs_to_end
async def backup(load: LoadOptions, options: BackupOptions, observer: Observer) -> BackupResult:
    """Save each stream, bucket and object store that the addresses name, with its consumers.

    Failed ones are in `manifest.missing`, and the others are still saved (exit 6, or 1 if nothing
    was saved). A folder with a backup of this workspace is updated: unchanged streams are not read
    again. Raises UsageError for addresses that cannot be backed up, JsplanError for one that names
    nothing, ConnectError, and BackupError for the folder.
    """
    async with open_context(load) as context, open_pool(context, read_only=True) as pool:
        declared = context.workspace.domains
        domains = select_domains(declared, options.addresses)
        observer.phase(f"Looking at {count_text(len(domains), 'domain')}")
        facts = await identify_all(pool, domains, declared, known_domains(context))
        wanted = await select_streams(
            pool, facts, domains, options.addresses, partial(_is_own_state, context)
        )
        with open_for_writing(
            options.folder, context.workspace.name, context.workspace.environment
        ) as folder:
            run = BackupRun(pool, declared, facts, folder, observer.event, options)
            return await run.save_all(wanted)


def _is_own_state(context: Context, address: Address) -> bool:
    """Return True for the bucket with the state of this workspace."""
    return context.topology.canonicalize(address) in state_bucket(context.workspace)
