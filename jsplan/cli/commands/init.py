"""`jsplan init`: create a workspace from a template."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from jsplan.cli.lazy import declare
from jsplan.cli.run import start

TEMPLATES = ("hub-and-leaf", "single")


@declare("init", examples=["jsplan init shop", "jsplan init shop --template hub-and-leaf"])
@click.argument("directory", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--template",
    type=click.Choice(TEMPLATES),
    default="single",
    show_default=True,
    help="Start with the files of this template.",
)
@click.option(
    "--name", metavar="NAME", help="Name of the workspace.  [default: name of the folder]"
)
@click.option("--schema", is_flag=True, help="Write the JSON Schema beside the files, for editors.")
@click.pass_context
def command(
    ctx: click.Context, directory: Path | None, template: str, name: str | None, *, schema: bool
) -> int:
    """Create a workspace in DIRECTORY, by default in the current folder. Never overwrite a file."""
    settings, output = start(ctx)
    from jsplan.workflows.init import init as init_workflow

    folder = (settings.chdir or Path()) / (directory or "")
    written = init_workflow(folder, template, name or workspace_name(folder), schema=schema)
    shown = "\n".join(f"Wrote {path}" for path in written)
    there = "" if folder.resolve() == Path.cwd() else f" -C {shlex.quote(str(folder))}"
    document = {"format_version": "1.0", "kind": "init", "files": [str(path) for path in written]}
    state = (
        f"The state will be in {folder / 'state'}. Commit it too, or keep it in a bucket "
        "(`backend: kv`)."
    )
    output.result_lines(lambda: document, f"{shown}\n\n{state}\nNext: jsplan{there} plan")
    return 0


def workspace_name(folder: Path) -> str:
    """Make a workspace name from the name of a folder: lower case, `-` for other characters."""
    import re

    name = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-_")
    return name or "workspace"
