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


class _ParsedText(ParamType):
    """A value that `parse` reads; its ValueError says what is wrong."""

    def parse(self, text: str) -> Any:
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class AddressGlob(_ParsedText):
    """`hub/stream/ORDERS`, or a glob such as `hub/**`."""

    name = "ADDRESS"

    def parse(self, text: str) -> str:
        from jsplan.address import Address, is_glob

        return text if is_glob(text) else str(Address.parse(text))

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        from jsplan.cli.completion_values import complete_addresses

        return complete_addresses(ctx, incomplete)


class Duration(_ParsedText):
    """`10s`, `1m30s`; the value is ns."""

    name = "DURATION"

    def parse(self, text: str) -> int:
        from jsplan.units import parse_duration

        length = parse_duration(text)
        if length < 0:
            raise ValueError("a negative duration")
        return length


class HazardPermission(_ParsedText):
    """`CODE` or `CODE:ADDRESS`; the list of codes is closed."""

    name = "CODE[:ADDRESS]"

    def parse(self, text: str) -> str:
        from jsplan.codes import HAZARDS

        code, colon, address = text.partition(":")
        if code not in HAZARDS:
            from jsplan.diagnostics import did_you_mean

            known = f" They are {', '.join(HAZARDS)}."
            advice = did_you_mean(code.upper(), HAZARDS) or known
            raise ValueError(f'there is no hazard "{code}".{advice}')
        return f"{code}:{AddressGlob().parse(address)}" if colon else code

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


class Assignment(_ParsedText):
    """`NAME=VALUE`; in the environment one per line, since values may contain spaces."""

    name = "NAME=VALUE"

    def parse(self, text: str) -> str:
        if not text.partition("=")[1] or not text.partition("=")[0].strip():
            raise ValueError(f'"{text}" is not NAME=VALUE')
        return text

    def split_envvar_value(self, rv: str) -> list[str]:
        return [line for line in rv.splitlines() if line.strip()]


class Waves(_ParsedText):
    """`label:canary,10%,100%`: labels, names and globs of domains, and shares of all of them."""

    name = "WAVES"

    def parse(self, text: str) -> tuple[str, ...]:
        terms = tuple(term.strip() for term in text.split(","))
        for term in terms:
            share = term.removesuffix("%")
            if term in ("", "label:"):
                raise ValueError(f'"{text}" has an empty wave')
            if share != term and not (share.isdigit() and 0 < int(share) <= 100):
                raise ValueError(f'"{term}" is no share between 1% and 100%')
        return terms


class Crontab(_ParsedText):
    """The five fields of a crontab line."""

    name = "CRON"

    def parse(self, text: str) -> str:
        from jsplan.drift.service.options import Cron

        return Cron(text).line


class Until(_ParsedText):
    """`05:00`, the next such local time, or an RFC 3339 time."""

    name = "TIME"

    def parse(self, text: str) -> Deadline:
        from jsplan.planning.backfill.model import Deadline

        try:
            return Deadline.parse(text, time.time())
        except ValueError:
            example = "write 05:00 or 2026-01-31T05:00:00Z"
            raise ValueError(f'"{text}" is no time; {example}') from None


class HostPort(_ParsedText):
    """`:9464` or `HOST:PORT`."""

    name = "[HOST]:PORT"

    def parse(self, text: str) -> str:
        from jsplan.drift.service.endpoint import parse_listen_address

        parse_listen_address(text)
        return text


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
