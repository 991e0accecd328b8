"""`jsplan backup ADDRESS... DIR`: save configuration, data and consumers to a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import number_option
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath, AddressGlob

if TYPE_CHECKING:
    from pathlib import Path


@declare(
    "backup",
    connects=True,
    examples=["jsplan backup hub/stream/ORDERS saved", "jsplan backup 'hub/**' saved"],
)
@click.argument("addresses", nargs=-1, required=True, type=AddressGlob(), metavar="ADDRESS...")
@click.argument("folder", type=AbsolutePath(), metavar="DIR")
@number_option("--parallelism", "Save at most N streams at once.", 4)
@click.option(
    "--check", is_flag=True, help="Let the servers verify the checksums of their data first."
)
@click.pass_context
def command(
    ctx: click.Context, /, addresses: tuple[str, ...], folder: Path, parallelism: int, check: bool
) -> int:
    """Save streams, buckets and object stores with their consumers to DIR. Change no server.

    A glob matches what is on the servers: 'hub/**' is the whole account in that domain. If DIR has
    a backup of this workspace, also an interrupted one, only what changed since is read again.
    """
    settings, output = start(ctx)
    from jsplan.backup.run import BackupOptions
    from jsplan.workflows.backup import backup as backup_workflow

    options = BackupOptions(addresses, folder, parallelism, check)
    result = backup_workflow(settings.load_options(), options, output.progress)
    from jsplan.render import backup_text

    output.result(
        result.to_json,
        lambda console: backup_text.render(result.to_json(), str(result.folder), console),
    )
    return result.exit_code
