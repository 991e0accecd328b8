"""`jsplan explain [CODE]`: meaning, cause and fix of a code, without a workspace or server."""

from __future__ import annotations

import click

from jsplan.cli.completion_values import complete_codes
from jsplan.cli.lazy import declare
from jsplan.cli.run import start
from jsplan.errors import ExitCode


@declare("explain", examples=["jsplan explain JS438", "jsplan explain DELETES_MESSAGES"])
@click.argument("code", required=False, metavar="[CODE]", shell_complete=complete_codes)
@click.pass_context
def command(ctx: click.Context, /, code: str | None) -> int:
    """Explain a code: what it means, why it is reported, and what to do.

    CODE is the code of a finding or lint rule such as JS438, a hazard such as DELETES_MESSAGES, or
    an exit code such as 4. Without CODE, list all codes.
    """
    _, output = start(ctx)
    from jsplan.render import explanation_text
    from jsplan.workflows import explain

    if code is not None:
        found = explain.explain(code)
        output.result(found.to_json, lambda console: explanation_text.render(found, console))
        return ExitCode.OK
    from jsplan.documents.lint import list_explanations

    known = explain.list_explanations()
    output.result(
        lambda: list_explanations(known), lambda console: explanation_text.overview(known, console)
    )
    return ExitCode.OK
