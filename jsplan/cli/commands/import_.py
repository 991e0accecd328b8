"""`jsplan import`: take what exists into the state, without changing it."""

from __future__ import annotations

from typing import Any

import click

from jsplan.cli.lazy import declare
from jsplan.cli.planning import approval_options, import_options, plan_options
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath, AddressGlob
from jsplan.errors import NotAvailableError, UsageError

QUESTION = "Do you want jsplan to take these into its state?"


@declare("import")
@click.argument("addresses", nargs=-1, type=AddressGlob(), metavar="[ADDRESS]...")
@click.option("--all", is_flag=True, help="Everything in the files that exists and is not in state.")
@click.option("--domain", multiple=True, metavar="D", help="With --all: only in this domain; repeatable.")
@click.option("--generate-config", type=AbsolutePath(), metavar="FILE", help="Write the files too (not in this release yet).")
@approval_options
@import_options
@click.pass_context
def command(
    ctx: click.Context, /, addresses: tuple[str, ...], domain: tuple[str, ...], generate_config: object, auto_approve: bool,
    no_input: bool, **planning: Any,
) -> int:  # fmt: skip
    """Adopt resources that are in the files and on the server, but not in state."""
    settings, output = start(ctx)
    if generate_config is not None:
        raise NotAvailableError("--generate-config is not in this release yet", hint="Write the resource into a file, then import it.")
    wanted = _wanted(addresses, domain, everything=planning.pop("all"))
    options = plan_options(planning)
    from jsplan.cli.approval import Approval
    from jsplan.cli.views import apply_result
    from jsplan.workflows.imports import import_ as import_workflow

    approval = Approval(output, auto_approve=auto_approve, no_input=no_input, question=QUESTION)
    with approval.interruptible() as approve:
        plan, result = import_workflow(settings.load_options(), wanted, options, approve, output.progress)
    output.progress.stop()
    return apply_result(output, plan, result, shown=approval.shown)


def _wanted(addresses: tuple[str, ...], domains: tuple[str, ...], *, everything: bool) -> tuple[str, ...]:
    """The addresses and globs that are meant; raises UsageError for none and for both ways at once."""
    if everything == bool(addresses):
        raise UsageError("give addresses, or --all, as in: jsplan import hub/stream/ORDERS")
    if domains and not everything:
        raise UsageError("--domain goes with --all; an address names its domain itself")
    return addresses or tuple(f"{domain}/**" for domain in domains) or ("**",)
