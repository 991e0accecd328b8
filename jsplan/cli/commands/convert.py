"""`jsplan convert`: convert files of another tool to a workspace file, without a server."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from jsplan.cli.commands import CommandEntry
from jsplan.cli.commands.init import workspace_name
from jsplan.cli.lazy import declare, group
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath
from jsplan.disk import display_path
from jsplan.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.config.model import LoadOptions
    from jsplan.converting.model import ConvertResult, Tool


@group(
    "convert",
    {
        "nats": CommandEntry(
            "JSON of the nats CLI: backups, `info --json`, configurations.", "convert", "nats"
        ),
        "nack": CommandEntry("Custom resources of NACK, as YAML.", "convert", "nack"),
        "terraform": CommandEntry(
            "The jetstream provider: what `terraform show -json` prints.", "convert", "terraform"
        ),
    },
    examples=["jsplan convert nats backup/ -o found.jsplan.yaml"],
)
def command() -> None:
    """Convert files of other tools to workspace files.

    Reports what is not converted, and which defaults differ.
    """


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    path = click.argument("path", type=click.Path(path_type=Path))
    domain = click.option(
        "--domain",
        metavar="NAME",
        help="Use this domain for everything that does not name its own.",
    )
    output = click.option(
        "-o",
        "--output",
        type=AbsolutePath(),
        metavar="FILE",
        help="Write a new file.  [default: standard output]",
    )
    return path(domain(output(function)))


@declare("nats", examples=["jsplan convert nats backup/ -o found.jsplan.yaml"])
@_options
@click.pass_context
def nats(ctx: click.Context, path: Path, domain: str | None, output: Path | None) -> int:
    """Convert a backup, `nats stream info --json`, or configurations of the nats CLI."""
    return _convert(ctx, "nats", path, domain, output)


@declare("nack", examples=["jsplan convert nack manifests/ --domain hub -o nack.jsplan.yaml"])
@_options
@click.option(
    "--control-loop/--no-control-loop",
    default=None,
    help=(
        "How the controller runs, which changes what a missing maxAge means; guessed by default."
    ),
)
@click.pass_context
def nack(
    ctx: click.Context,
    path: Path,
    domain: str | None,
    output: Path | None,
    control_loop: bool | None,
) -> int:
    """Convert NACK resources: manifests, or the output of `kubectl get -o yaml`."""
    return _convert(ctx, "nack", path, domain, output, control_loop=control_loop)


@declare("terraform", examples=["jsplan convert terraform tf.json -o streams.jsplan.yaml"])
@_options
@click.pass_context
def terraform(ctx: click.Context, path: Path, domain: str | None, output: Path | None) -> int:
    """Convert the output of `terraform show -json`, of a state or a saved plan, or of OpenTofu."""
    return _convert(ctx, "terraform", path, domain, output)


def _convert(
    ctx: click.Context, tool: Tool, path: Path, domain: str | None, file: Path | None, **more: Any
) -> int:
    settings, output = start(ctx)
    from jsplan.converting.model import ConvertTarget
    from jsplan.workflows.convert import convert, write_new

    load = settings.load_options()
    folder = file.parent if file is not None else load.directory
    made = convert(tool, path, ConvertTarget(load, workspace_name(folder), domain), **more)
    if file is not None:
        write_new(file, made.text)
    if not settings.json:
        from jsplan.render.convert_text import render_notes

        render_notes(made, output.err)
    text = made.text.rstrip("\n") if file is None else _success_text(made, file, load)
    output.result_lines(lambda: _document(made, file), text)
    return 0


def _success_text(made: ConvertResult, file: Path, load: LoadOptions) -> str:

    return (
        f"Wrote {display_path(file)}: {count_text(len(made.addresses), 'resource')}.\n\nNext: "
        f"{_next_step(made, file, load)}"
    )


def _next_step(made: ConvertResult, file: Path, load: LoadOptions) -> str:
    """Return the command that reads the file, and what to do before it."""
    from jsplan.config.files import MAIN_FILE
    from jsplan.workflows.convert import is_loaded

    folder = file.parent if made.new_workspace else load.directory
    there = "" if folder.resolve() == Path.cwd() else f" -C {shlex.quote(str(folder))}"
    if made.new_workspace and file.name != MAIN_FILE:
        return f"rename it to {MAIN_FILE}, since it is a whole workspace. Then: jsplan{there} plan"
    if not made.new_workspace and not is_loaded(load, made):
        return (
            f"name it under `include:` in {MAIN_FILE}, since no file there does. Then: "
            f"jsplan{there} plan"
        )
    return f"jsplan{there} plan"


def _document(made: ConvertResult, file: Path | None) -> dict[str, Any]:
    return {
        "format_version": "1.0",
        "kind": "convert",
        "tool": made.tool,
        "file": str(file) if file is not None else None,
        "text": made.text,
        "resources": [str(address) for address in made.addresses],
        "diagnostics": to_builtins([*made.diagnostics]),
    }
