"""`jsplan help [COMMAND]`: what `--help` of the command prints."""

from __future__ import annotations

import click

from jsplan.cli.lazy import LazyGroup, declare


@declare("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...]) -> int:
    """Show the help of COMMAND, as in: jsplan help state mv. Without one, list all commands."""
    at = ctx.find_root()
    for word in words:
        if not isinstance(at.command, LazyGroup):
            raise click.UsageError(f"{at.command_path} has no commands of its own", at)
        name, found, _ = at.command.resolve_command(at, [word])
        assert found is not None
        at = click.Context(found, info_name=name, parent=at)
    click.echo(at.get_help())
    return 0
