"""Parameter types of the command line: addresses, durations, hazards, files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from jsplan.planning.backfill.model import Deadline

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic since click 8.4 only


class AddressGlob(ParamType):
    """`hub/stream/ORDERS`, or a glob such as `hub/**`."""

    name = "ADDRESS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from jsplan.address import Address, is_glob

        text = str(value)
        try:
            return text if is_glob(text) else str(Address.parse(text))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        from jsplan.cli.completion_values import complete_addresses

        return complete_addresses(ctx, incomplete)


class Duration(ParamType):
    """`10s`, `1m30s`; the value is ns."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from jsplan.units import parse_duration

        if isinstance(value, int):
            return value
        try:
            length = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if length < 0:
            self.fail("a negative duration", param, ctx)
        return length


class HazardPermission(ParamType):
    """`CODE` or `CODE:ADDRESS`; the list of codes is closed."""

    name = "CODE[:ADDRESS]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from jsplan.codes import HAZARDS

        code, colon, address = str(value).partition(":")
        if code not in HAZARDS:
            from jsplan.diagnostics import did_you_mean

            known = f" They are {', '.join(HAZARDS)}."
            advice = did_you_mean(code.upper(), HAZARDS) or known
            self.fail(f'there is no hazard "{code}".{advice}', param, ctx)
        return f"{code}:{AddressGlob().convert(address, param, ctx)}" if colon else code

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        from jsplan.cli.completion_values import complete_addresses, complete_hazards

        code, colon, address = incomplete.partition(":")
        if not colon:
            return complete_hazards(incomplete)
        return [type(item)(f"{code}:{item.value}") for item in complete_addresses(ctx, address)]


class Assignment(ParamType):
    """`NAME=VALUE`; in the environment one per line, since values may contain spaces."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.partition("=")[1] or not text.partition("=")[0].strip():
            self.fail(f'"{text}" is not NAME=VALUE', param, ctx)
        return text

    def split_envvar_value(self, rv: str) -> list[str]:
        return [line for line in rv.splitlines() if line.strip()]


class Waves(ParamType):
    """`label:canary,10%,100%`: labels, names and globs of domains, and shares of all of them."""

    name = "WAVES"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        terms = tuple(term.strip() for term in str(value).split(","))
        for term in terms:
            share = term.removesuffix("%")
            if term in ("", "label:"):
                self.fail(f'"{value}" has an empty wave', param, ctx)
            if share != term and not (share.isdigit() and 0 < int(share) <= 100):
                self.fail(f'"{term}" is no share between 1% and 100%', param, ctx)
        return terms


class Crontab(ParamType):
    """The five fields of a crontab line."""

    name = "CRON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from jsplan.drift.service.options import Cron

        try:
            return Cron(str(value)).line
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Until(ParamType):
    """`05:00`, the next such local time, or an RFC 3339 time."""

    name = "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Deadline:
        from jsplan.planning.backfill.model import Deadline

        if isinstance(value, Deadline):
            return value
        try:
            return Deadline.parse(str(value), time.time())
        except ValueError:
            self.fail(f'"{value}" is no time; write 05:00 or 2026-01-31T05:00:00Z', param, ctx)


class HostPort(ParamType):
    """`:9464` or `HOST:PORT`."""

    name = "[HOST]:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from jsplan.drift.service.endpoint import parse_listen_address

        try:
            parse_listen_address(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class AbsolutePath(click.Path):
    """A file or folder, made absolute against the folder of the command."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path.cwd() / str(super().convert(value, param, ctx))


class PlanFile(AbsolutePath):
    """A saved plan."""

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        from jsplan.cli.completion_values import complete_plan_files

        return complete_plan_files(incomplete)
