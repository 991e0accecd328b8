"""`jsplan import`: take existing resources into the state without changing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.completion_values import complete_domains
from jsplan.cli.lazy import declare
from jsplan.cli.plan_options import approval_options, build_plan_options, import_options
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath, AddressGlob
from jsplan.disk import display_path
from jsplan.errors import UsageError
from jsplan.units import count_text

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.options import Approve

QUESTION = "Do you want jsplan to take these into its state?"


@declare(
    "import",
    connects=True,
    examples=[
        "jsplan import hub/stream/ORDERS",
        "jsplan import --all --generate-config found.jsplan.yaml",
    ],
)
@click.argument("addresses", nargs=-1, type=AddressGlob(), metavar="[ADDRESS]...")
@click.option(
    "--all",
    is_flag=True,
    help=(
        "Import everything that exists and is not managed; with --generate-config also what is "
        "in no file."
    ),
)
@click.option(
    "--domain",
    multiple=True,
    metavar="DOMAIN",
    shell_complete=complete_domains,
    help="With --all: only in this domain, or label:NAME; repeatable.",
)
@click.option(
    "--generate-config",
    type=AbsolutePath(),
    metavar="FILE",
    help="Write a new file that declares what is in no file yet.",
)
@approval_options
@import_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    addresses: tuple[str, ...],
    domain: tuple[str, ...],
    generate_config: Path | None,
    auto_approve: bool,
    no_input: bool,
    **planning: Any,
) -> int:
    """Take resources that exist on the servers into the state. No server is changed."""
    settings, output = start(ctx)
    wanted = _requested_globs(addresses, domain, everything=planning.pop("all"))
    options = build_plan_options(planning)
    from jsplan.cli.approval import ask_and_apply
    from jsplan.workflows import import_

    load, notes = settings.load_options(), list[str]()

    def run(approve: Approve) -> tuple[Plan, ApplyResult]:
        if generate_config is None:
            return import_.import_(load, wanted, options, approve, output.progress)
        plan, result, written = import_.import_with_config(
            load, wanted, options, approve, output.progress, generate_config
        )
        if written is not None:
            resources = count_text(written.resource_count, "resource")
            lines = count_text(written.text.count("\n"), "line")
            notes.append(f"{display_path(generate_config)} is new: {resources} in {lines}.")
        return plan, result

    code = ask_and_apply(output, run, QUESTION, auto_approve=auto_approve, no_input=no_input)
    for note in notes:
        output.note(note)
    return code


def _requested_globs(
    addresses: tuple[str, ...], domains: tuple[str, ...], *, everything: bool
) -> tuple[str, ...]:
    """Return the requested addresses and globs; raise UsageError for none, or for both options."""
    if everything == bool(addresses):
        raise UsageError("give addresses, or --all, as in: jsplan import hub/stream/ORDERS")
    if domains and not everything:
        raise UsageError("--domain requires --all; an address names its domain itself")
    return addresses or tuple(f"{domain}/**" for domain in domains) or ("**",)
