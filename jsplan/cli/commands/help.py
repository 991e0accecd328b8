"""`jsplan help [COMMAND]`: the same as `--help` of the command; `jsplan help options`."""

from __future__ import annotations

import click

from jsplan.cli.lazy import LazyGroup, declare


@declare("help", examples=["jsplan help state mv", "jsplan help options"])
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...]) -> int:
    """Show the help of COMMAND, or with `options` the global options.

    Without COMMAND, list all commands.
    """
    at = ctx.find_root()
    if words == ("options",):
        from jsplan.cli.help_text import global_options

        click.echo(global_options(at))
        return 0
    for word in words:
        if not isinstance(at.command, LazyGroup):
            raise click.UsageError(f"{at.command_path} has no commands of its own", at)
        name, found, _ = at.command.resolve_command(at, [word])
        assert found is not None
        at = click.Context(found, info_name=name, parent=at)
    click.echo(at.get_help())
    return 0
