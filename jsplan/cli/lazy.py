"""Groups and commands that are imported when they are called, so that help is fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from jsplan.cli.commands import CommandEntry
from jsplan.cli.settings import settings_of, with_globals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


#: Every command has both, as in git, docker and kubectl.
HELP = ["-h", "--help"]


def _with_context(error: click.UsageError, ctx: click.Context) -> click.UsageError:
    """Return the error with its command, which click leaves out if an option lacks its argument."""
    error.ctx = error.ctx or ctx
    return error


class _BaseCommand(click.Command):
    """A command or a group: usage errors name the command, `-h` is `--help`, help has examples.

    `connects`: it uses servers, always or with the flag of that name, and waits for them before.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        connects: bool | str = False,
        **attrs: Any,
    ) -> None:
        super().__init__(*args, **attrs)
        self.examples = tuple(examples)
        self.connects = connects

    def invoke(self, ctx: click.Context) -> Any:
        flag = self.connects
        if (ctx.params[flag] if isinstance(flag, str) else flag) and settings_of(ctx).wait:
            from jsplan.cli.run import wait_for_servers

            wait_for_servers(ctx)
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _with_context(error, ctx) from None

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(HELP)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from jsplan.cli.help_text import write_options

        write_options(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        from jsplan.cli.help_text import write_end

        write_end(self.examples, formatter)


class Command(_BaseCommand):
    """A command with the global options, which its help does not list."""


class LazyGroup(_BaseCommand, click.Group):
    """A group over a static table: help is known without importing a command."""

    def __init__(
        self, *args: Any, sections: Mapping[str, Mapping[str, CommandEntry]], **attrs: Any
    ) -> None:
        super().__init__(*args, **attrs)
        self.sections = sections
        self.table = {name: entry for table in sections.values() for name, entry in table.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"jsplan.cli.commands.{entry.module}")
        found = getattr(module, entry.attribute)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not ctx.resilient_parsing:
            from jsplan.diagnostics import did_you_mean

            raise click.UsageError(
                f'There is no command "{ctx.command_path} {name}".{did_you_mean(name, self.table)}',
                ctx,
            )
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from jsplan.cli.help_text import write_commands

        write_commands(self.sections, formatter)
        super().format_options(ctx, formatter)


def declare(name: str, **attrs: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command that also takes the global options."""

    def wrap(function: Callable[..., Any]) -> click.Command:
        return with_globals(click.command(name, cls=Command, **attrs)(function))

    return wrap


def group(
    name: str, table: Mapping[str, CommandEntry], **attrs: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a lazy group that also takes the global options."""
    return sectioned_group(name, {"Commands": table}, **attrs)


def sectioned_group(
    name: str,
    sections: Mapping[str, Mapping[str, CommandEntry]],
    *,
    root: bool = False,
    **attrs: Any,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a lazy group whose help lists the commands by section."""

    def wrap(function: Callable[..., Any]) -> click.Command:
        made = click.group(name, cls=LazyGroup, sections=sections, no_args_is_help=False, **attrs)(
            function
        )
        return with_globals(made, root=root)

    return wrap
