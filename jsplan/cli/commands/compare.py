"""`jsplan compare`: two streams, message by message. Read-only."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import number_option
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath, AddressGlob
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@declare(
    "compare",
    connects=True,
    examples=[
        "jsplan compare hub/stream/ORDERS leaf/stream/ORDERS",
        "jsplan compare hub/stream/A leaf/stream/A --since a.json -o a.json",
        "jsplan compare hub/stream/ORDERS --backup saved",
    ],
)
@click.argument("one", type=AddressGlob(), metavar="ADDRESS")
@click.argument("other", type=AddressGlob(), metavar="[ADDRESS]", required=False)
@click.option(
    "--backup",
    type=AbsolutePath(),
    metavar="DIR",
    help="Instead of another stream, compare with what this backup has of it.",
)
@number_option("--first-seq", "Compare from this sequence of the origin on.")
@number_option("--last-seq", "Compare up to this sequence of the origin.")
@click.option(
    "--since",
    type=AbsolutePath(),
    metavar="FILE",
    help="Read only what came after this kept result, if it still holds.",
)
@click.option(
    "-o", "--out", type=AbsolutePath(), metavar="FILE", help="Keep the result in this file."
)
@click.option(
    "--master",
    metavar="URL",
    help="Read on this Spark master, for more messages than this machine reads in time.",
)
@click.pass_context
def command(
    ctx: click.Context,
    one: str,
    other: str | None,
    backup: Path | None,
    first_seq: int | None,
    last_seq: int | None,
    since: Path | None,
    out: Path | None,
    master: str | None,
) -> int:
    """Compare two streams, message by message. Exits with 2 where they differ. Read-only.

    A mirror is compared with its origin by sequence, and what a source or a backfill copied by the
    origin that each message names; other streams by sequence. With the extra `spark` it is ten
    times as fast.
    """
    settings, output = start(ctx)
    from jsplan.render import compare_text
    from jsplan.workflows.compare import CompareOptions, compare

    if (other is None) == (backup is None):
        raise UsageError("give two addresses, or one and --backup")
    if backup is not None and (since or out):
        raise UsageError("--since and --out are for two streams")
    if backup is not None and master:
        raise UsageError("--master is for two streams")
    options = CompareOptions(one, other, first_seq, last_seq, since, out, backup, master)
    found = compare(settings.load_options(), options, output.progress)
    output.result(found.to_json, partial(compare_text.render, found))
    return found.exit_code
