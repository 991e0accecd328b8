"""The parts of a help page: commands by section, options, values, examples."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from jsplan.cli.settings import GlobalOption, GlobalSection
from jsplan.codes import HAZARDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jsplan.cli.commands import CommandEntry

_GLOBAL_OPTIONS_HINT = "Global options such as -C, -e and --json are listed by: jsplan help options"
#: The values of options and arguments, by their placeholder.
VALUES = {
    "ADDRESS": "DOMAIN/KIND/NAME, such as hub/stream/ORDERS, hub/kv/CONFIG or "
    "hub/consumer/ORDERS/NEW; or a glob, such as 'hub/stream/*' or 'store-*/**'.",
    "CAUSES": "changed, missing, replication, threshold, unmanaged or none, separated by commas.",
    "CRON": "The five fields of a crontab line, such as '*/10 * * * *'.",
    "DOMAIN": "The name of a domain in the workspace, such as hub; or a glob.",
    "DURATION": "Numbers with units, such as 500ms, 10s or 1h30m.",
    "HAZARD": f"{', '.join(code for code, blocks in HAZARDS.items() if blocks)}. "
    "To read about one: jsplan explain HAZARD.",
    "PLANFILE": "A plan that was saved with jsplan plan -o.",
    "RULE": "The code of a lint rule, such as JS201.",
    "SUBJECT": "A NATS subject, which may have wildcards: 'orders.>'.",
    "VERSION": "A release of nats-server, such as 2.12 or 2.12.8.",
    "WAVES": "Labels, names or globs of domains and shares of all domains, separated by commas: "
    "label:canary,10%,100%.",
}  # fmt: skip
#: Headings of the options of a command that has more than `MOST_UNGROUPED`.
THEMES = {
    "Selection": frozenset(
        {"--target", "--exclude", "--replace", "--refresh-only", "--adopt", "--no-backfill",
         "--stage", "--destroy"}
    ),
    "Approval": frozenset({"--auto-approve", "--no-input", "--allow-hazard", "--backup"}),
    "Checks": frozenset({"--safe-below", "--measure-limit", "--rehearse", "--server-version"}),
    "Offline domains": frozenset({"--offline", "--deferred", "--reinstalled"}),
    "Fleets and clusters": frozenset(
        {"--wave", "--max-failures", "--moves", "--no-wait", "--parallelism"}
    ),
}  # fmt: skip
MOST_UNGROUPED = 14
_ENVIRONMENT_HINT = """\
Each option can also be set in the environment, as JSPLAN_<COMMAND>_<OPTION>:
JSPLAN_PLAN_PARALLELISM=20, JSPLAN_DRIFT_FAIL_ON=changed. Global options need no command:
JSPLAN_ENV=prod, JSPLAN_NO_COLOR=1."""


def write_commands(
    sections: Mapping[str, Mapping[str, CommandEntry]], formatter: click.HelpFormatter
) -> None:
    """Write the commands of each section, all in columns of one width."""
    width = max((len(name) for table in sections.values() for name in table), default=0)
    for title, table in sections.items():
        if table:
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), entry.help) for name, entry in table.items()]
                )


def write_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write the options of the command itself, and their values."""
    # Newer releases of click would list arguments without a description among the options.
    own = [p for p in command.get_params(ctx) if isinstance(p, click.Option)]
    records = [
        (_theme_of(p), record)
        for p in own
        if not isinstance(p, GlobalOption) and (record := p.get_help_record(ctx)) is not None
    ]
    rows = [record for _, record in records]
    grouped = len(rows) > MOST_UNGROUPED
    for theme in ("", *THEMES) if grouped else ("",):
        listed = [record for name, record in records if name == theme or not grouped]
        if listed:
            with formatter.section(theme or "Options"):
                formatter.write_dl(listed)
    shown = " ".join([*command.collect_usage_pieces(ctx), *(names for names, _ in rows)])
    words = set(re.findall(r"[A-Z]{2,}", shown))
    values = [(name, text) for name, text in VALUES.items() if name in words]
    if values:
        with formatter.section("Values"):
            formatter.write_dl(values)


def _theme_of(option: click.Option) -> str:
    """Return the heading of an option; empty for one that stands under `Options`."""
    return next((theme for theme, names in THEMES.items() if names & {*option.opts}), "")


def write_end(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    """Write the examples and where to find the global options."""
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
    formatter.write_paragraph()
    formatter.write(f"{_GLOBAL_OPTIONS_HINT}\n")


def global_options(ctx: click.Context) -> str:
    """Return the page of `jsplan help options`."""
    formatter = ctx.make_formatter()
    formatter.write("Global options work before and after each command.\n")
    found = [p for p in ctx.command.get_params(ctx) if isinstance(p, GlobalOption)]
    for section in GlobalSection:
        records = [p.get_help_record(ctx) for p in found if p.section is section]
        with formatter.section(section.value):
            formatter.write_dl([record for record in records if record is not None])
    formatter.write_paragraph()
    formatter.write(f"{_ENVIRONMENT_HINT}\n")
    return formatter.getvalue().rstrip("\n")
