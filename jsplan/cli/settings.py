"""The global options: given before or after the command, or by the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from jsplan.cli.types import AbsolutePath, Assignment, Duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

    from jsplan.config.model import LoadOptions

FORMATS = ("text", "json", "markdown", "html", "junit", "github", "sarif", "mermaid", "dot", "svg")
#: The more explicit source wins; between equals, the one nearer to the command.
_RANK = {ParameterSource.COMMANDLINE: 2, ParameterSource.ENVIRONMENT: 1}
_REPEATABLE_OPTIONS = frozenset({"variables", "var_files"})


@dataclass(slots=True)
class Settings:
    """The global options from all their sources. `verbose` counts `-v`, `wait` is ns."""

    chdir: Path | None = None
    environment: str | None = None
    variables: tuple[str, ...] = ()
    var_files: tuple[Path, ...] = ()
    no_color: bool = False
    verbose: int = 0
    log_format: str = "text"
    format: str = "text"
    json_into: Path | None = None
    wait: int = 0
    _ranks: dict[str, int] = field(default_factory=dict)

    def set_if_stronger(self, name: str, value: Any, rank: int) -> None:
        """Take a value unless a more explicit one is there; repeatable ones add up."""
        current = self._ranks.get(name, 0)
        if rank < current or rank == 0:
            return
        setattr(
            self,
            name,
            getattr(self, name) + value
            if name in _REPEATABLE_OPTIONS and rank == current
            else value,
        )
        self._ranks[name] = rank

    @property
    def json(self) -> bool:
        """Return True if stdout holds exactly one JSON document."""
        return self.format == "json"

    def workspace_args(self) -> list[str]:
        """Return the arguments that select the workspace, for the next command in a hint."""
        given = [
            name for name, rank in self._ranks.items() if rank == _RANK[ParameterSource.COMMANDLINE]
        ]
        words = ["-C", str(self.chdir)] if "chdir" in given else []
        words += ["-e", str(self.environment)] if "environment" in given else []
        words += [
            word
            for path in self.var_files
            if "var_files" in given
            for word in ("--var-file", str(path))
        ]
        return words + [
            word for text in self.variables if "variables" in given for word in ("--var", text)
        ]

    def load_options(self) -> LoadOptions:
        """Return the options for loading the workspace.

        Files on the command line are relative to the folder of the command.
        """
        from jsplan.config.model import LoadOptions

        return LoadOptions(
            directory=self.chdir or Path(),
            environment=self.environment,
            variables=self.variables,
            var_files=self.var_files,
            environ=dict(os.environ),
        )


def _store_option(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if ctx.resilient_parsing and value is None:
            return  # the shell asks for completions of an unfinished line
        rank = _RANK.get(ctx.get_parameter_source(param.name or "") or ParameterSource.DEFAULT, 0)
        if param.name == "json":
            value, rank = "json", rank if value else 0
        ctx.ensure_object(Settings).set_if_stronger(name, value, rank)

    return callback


def _complete_environments(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    from jsplan.cli.completion_values import complete_environments

    return complete_environments(ctx, incomplete)


class GlobalSection(Enum):
    """A section of `jsplan help options`."""

    WORKSPACE = "Workspace"
    OUTPUT = "Output"


class GlobalOption(click.Option):
    """An option that works before and after the command; only `jsplan help options` lists it.

    `into` is the field of `Settings` that it sets.
    """

    def __init__(self, *names: str, section: GlobalSection, into: str, **attrs: Any) -> None:
        super().__init__(names, expose_value=False, callback=_store_option(into), **attrs)
        self.section = section


def _workspace_options(*, autoenv: bool) -> list[click.Option]:
    """Return new options that select the workspace.

    `JSPLAN_VAR_<name>` sets a variable of the workspace, and `JSPLAN_ENV` counts where there are
    environments. So without `autoenv` the shell sets none of `--env`, `--var` and `--var-file`.
    """
    option = partial(GlobalOption, section=GlobalSection.WORKSPACE)
    return [
        option(
            "-C",
            "--chdir",
            into="chdir",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="Use the workspace in this folder.",
        ),
        option(
            "-e",
            "--env",
            into="environment",
            metavar="NAME",
            allow_from_autoenv=autoenv,
            shell_complete=_complete_environments,
            help="Use this environment of the workspace.",
        ),
        option(
            "--var",
            into="variables",
            multiple=True,
            type=Assignment(),
            metavar="NAME=VALUE",
            allow_from_autoenv=autoenv,
            help="Set a variable of the workspace; repeatable.",
        ),
        option(
            "--var-file",
            into="var_files",
            multiple=True,
            type=AbsolutePath(),
            metavar="FILE",
            allow_from_autoenv=autoenv,
            help="Set variables from a YAML or JSON file; repeatable.",
        ),
        option(
            "--wait",
            into="wait",
            type=Duration(),
            metavar="DURATION",
            help="Wait up to this long for servers that are still starting.",
        ),
    ]


def _output_options() -> list[click.Option]:
    """Return new options about what is printed, where, and how."""
    option = partial(GlobalOption, section=GlobalSection.OUTPUT)
    return [
        option(
            "--format",
            into="format",
            type=click.Choice(FORMATS),
            help="Format of the result: text or json; the help of a command names others.",
        ),
        option("--json", into="format", is_flag=True, help="The same as --format json."),
        option(
            "--json-into",
            into="json_into",
            type=AbsolutePath(),
            metavar="FILE",
            help="Also write the JSON to this file.",
        ),
        option(
            "--no-color", into="no_color", is_flag=True, help="Print no colours (also NO_COLOR)."
        ),
        option(
            "-v",
            "--verbose",
            into="verbose",
            count=True,
            help="Log to stderr what jsplan does; -vv logs details.",
        ),
        option(
            "--log-format",
            into="log_format",
            type=click.Choice(("text", "json")),
            help="Write logs and progress as text or as JSON lines.",
        ),
    ]


def with_globals(command: click.Command, *, root: bool = False) -> click.Command:
    """Add the global options to a command or group."""
    command.params.extend([*_workspace_options(autoenv=not root), *_output_options()])
    return command


def settings_of(ctx: click.Context) -> Settings:
    """Return the settings of this run."""
    return ctx.ensure_object(Settings)
