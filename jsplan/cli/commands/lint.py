"""`jsplan lint`: check the workspace files; with `--live` also the servers. Read-only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.completion_values import complete_rules
from jsplan.cli.lazy import declare
from jsplan.cli.run import start
from jsplan.errors import ConfigError, ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsplan.cli.output import Output
    from jsplan.config.model import LoadOptions
    from jsplan.diagnostics import Diagnostic
    from jsplan.documents.lint import Ignored, Lint

FORMATS = ("sarif", "github")
#: The severities that end with exit code 3, by the value of the option.
FAILING_SEVERITIES = {
    "error": ("error",),
    "warning": ("error", "warning"),
    "note": ("error", "warning", "info"),
    "never": (),
}


@declare("lint", connects="live", examples=["jsplan lint", "jsplan lint --live --fail-on warning"])
@click.option(
    "--live",
    is_flag=True,
    help="Also read the servers, for rules about their content and for unmanaged streams.",
)
@click.option(
    "--explain",
    metavar="RULE",
    shell_complete=complete_rules,
    help="Explain one rule (as jsplan explain does); `all` lists the rules.",
)
@click.option("--fail-on", type=click.Choice(tuple(FAILING_SEVERITIES)), default="error",
              show_default=True,
              help="Exit with code 3 on findings of this severity or higher.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, live: bool, explain: str | None, fail_on: str) -> int:
    """Check for valid but risky configuration. Reads only the files, unless --live is given.

    The files can change the severity of a rule with `lint: {JS201: error}`, or ignore it beside a
    resource with `lint: {ignore: [{code: JS201, reason: "…"}]}`. --format sarif and github are for
    code review.
    """
    settings, output = start(ctx, FORMATS)
    if explain is not None:
        return _explain(output, explain, live=live)
    from jsplan.render import lint_text
    from jsplan.workflows.lint import lint as lint_workflow

    load = settings.load_options()
    try:
        found = lint_workflow(load, output.progress, ask=live)
    except ConfigError as error:
        _report_file_errors(output, error, load)
        raise
    views = {
        "sarif": lambda: _sarif(found.findings, found.ignored, Path(found.root), found),
        "github": lambda: _annotations(found.findings, Path(found.root)),
    }
    output.result(
        found.to_json,
        lambda console: lint_text.render(found, console, verbose=bool(settings.verbose)),
        views=views,
    )
    failed = any(d.severity in FAILING_SEVERITIES[fail_on] for d in found.findings)
    return ExitCode.REFUSED if failed else ExitCode.OK


def _explain(output: Output, code: str, *, live: bool) -> int:
    from jsplan.render import explanation_text, lint_text
    from jsplan.workflows import explain

    if live:
        raise UsageError("--explain reads no server, so it cannot be combined with --live")
    if code == "all":
        rules = explain.list_lint_rules()
        output.result(
            lambda: {"rules": [rule.to_json() for rule in rules]},
            lambda console: lint_text.overview(rules, console),
        )
        return ExitCode.OK
    rule = explain.explain_rule(code)
    output.result(rule.to_json, lambda console: explanation_text.render(rule, console))
    return ExitCode.OK


def _report_file_errors(output: Output, error: ConfigError, load: LoadOptions) -> None:
    """Report errors of the files as findings for code review, then raise the error."""
    root = load.directory.absolute()
    if output.settings.format == "sarif":
        output.line(_sarif(error.diagnostics, [], root))
    elif output.settings.format == "github":
        output.line(_annotations(error.diagnostics, root))


def _sarif(
    findings: Sequence[Diagnostic],
    ignored: Sequence[Ignored],
    root: Path,
    found: Lint | None = None,
) -> str:
    from jsplan import __version__
    from jsplan.render.json import dumps
    from jsplan.render.lint_text import render_sarif

    document: dict[str, Any] = render_sarif(
        findings, ignored, found.rules if found is not None else [], root, __version__
    )
    return dumps(document).rstrip("\n")


def _annotations(findings: Sequence[Diagnostic], root: Path) -> str:
    from jsplan.render.lint_text import workflow_commands

    return workflow_commands(findings, root)
