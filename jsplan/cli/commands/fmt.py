"""`jsplan fmt`: one layout for the YAML files of a workspace."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsplan.cli.lazy import declare
from jsplan.cli.run import start
from jsplan.errors import ExitCode
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.workflows.fmt import FormattedFile


@declare("fmt", examples=["jsplan fmt", "jsplan fmt --check --diff"])
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path))
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing; exit with 2 if the layout of a file would change.",
)
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
@click.pass_context
def command(ctx: click.Context, files: tuple[Path, ...], check: bool, diff: bool) -> int:
    """Format each FILE, by default all YAML files of the workspace.

    Values, comments and the order of keys stay. A file for which that is not possible is left
    unchanged and named, as are JSON files.
    """
    settings, output = start(ctx)
    from jsplan.workflows.fmt import fmt as fmt_workflow

    write = not (check or diff)
    found = fmt_workflow(settings.chdir or Path(), files, write=write)
    changed = [file for file in found if file.changed]
    lines = [_to_diff(file) for file in changed] if diff else [file.shown for file in changed]
    for file in found:
        if file.kept:
            output.note(f"{file.shown} is left unchanged: {file.kept}.")
    document = {
        "format_version": "1.0",
        "kind": "fmt",
        "files": [
            {"path": file.shown, "changed": file.changed, "kept": file.kept} for file in found
        ],
    }
    output.result_lines(lambda: document, "\n".join(lines))
    if changed and not write:
        output.note(f"{count_text(len(changed), 'file')} to format. Run: jsplan fmt")
    return ExitCode.CHANGES if check and changed else ExitCode.OK


def _to_diff(file: FormattedFile) -> str:
    lines = unified_diff(
        file.before.splitlines(),
        file.after.splitlines(),
        file.shown,
        f"{file.shown} (formatted)",
        lineterm="",
    )
    return "\n".join(lines)
