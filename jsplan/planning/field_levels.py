"""Errors about what the servers of a domain do not know, or refuse since a release."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jsplan.address import Address
from jsplan.config.checks import find_reserved, reserved_problem
from jsplan.config.hints import field_hint
from jsplan.config.model import DeclaredResource
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.model import PlanInputs, ResourceDecision
from jsplan.resources.buckets import alias_of
from jsplan.resources.fields import Config
from jsplan.resources.server_features import (
    NEWEST_LEVEL,
    REPLACE_LEVEL,
    RESERVED_SUBJECTS_LEVEL,
    SERVER_VERSIONS,
)

#: The code of what servers before `REPLACE_LEVEL` are not asked for.
NEEDS_NEWER_SERVER: Final = "JS459"


def check_server_level(inputs: PlanInputs, decision: ResourceDecision) -> Iterable[Diagnostic]:
    """Yield an error for each field that the server does not know: it might drop it."""
    level, declared = inputs.level(decision.address), inputs.declared(decision.address)
    if declared is None:
        return
    yield from _check_reserved_subjects(declared, inputs.body(decision.address), level)
    if level > NEWEST_LEVEL:
        return
    if level < NEWEST_LEVEL:
        yield from list_level_errors(declared, inputs.body(decision.address), level)
    if declared.raw_fields:
        yield from _list_unknown_fields(declared, decision.live)


def _check_reserved_subjects(
    declared: DeclaredResource, body: Config, level: int
) -> Iterable[Diagnostic]:
    """Yield an error for a subject such as `*.orders.>`, and a warning where 2.10 runs it."""
    subject = find_reserved(body)
    if subject is None:
        return
    refused = level >= RESERVED_SUBJECTS_LEVEL
    problem, since = reserved_problem(subject), SERVER_VERSIONS[RESERVED_SUBJECTS_LEVEL]
    yield Diagnostic(
        "error" if refused else "warning",
        problem.code,
        problem.summary
        if refused
        else f'nats-server {since} refuses "{subject}": the stream is gone after an upgrade',
        problem.detail if refused else f"{problem.detail} Do that before the upgrade.",
        str(declared.address),
        declared.ranges.get("subjects", declared.range),
    )


def _list_unknown_fields(
    declared: DeclaredResource, live: LiveObject | None
) -> Iterable[Diagnostic]:
    """Yield an error for each key of `x_raw` that no known release has, and that is not live."""
    address, known = declared.address, table_of(declared.address).by_name
    for name in sorted(declared.raw_fields - known.keys() - (live.raw if live else {}).keys()):
        yield Diagnostic(
            "error",
            "JS413",
            f'no nats-server up to {SERVER_VERSIONS[NEWEST_LEVEL]} knows the field "{name}" '
            "of x_raw",
            f"{field_hint(address.kind, name, known)} Remove it from x_raw.".strip(),
            str(address),
            declared.ranges.get("x_raw", declared.range),
        )


def old_server(inputs: PlanInputs, *addresses: Address) -> str | None:
    """Return the domain and release of the first server that is older than `REPLACE_LEVEL`."""
    for address in addresses:
        facts = inputs.live.domains.get(address.domain)
        if facts is not None and facts.reachable and facts.level < REPLACE_LEVEL:
            return f"{address.domain} runs {facts.version or SERVER_VERSIONS[facts.level]}"
    return None


def needs_newer_server(
    address: Address, what: str, server: str, detail: str, place: SourceRange | None
) -> Diagnostic:
    """Return the error for what jsplan does on newer servers only; `server` is of `old_server`."""
    return Diagnostic(
        "error",
        NEEDS_NEWER_SERVER,
        f"{what} needs nats-server {SERVER_VERSIONS[REPLACE_LEVEL]} or later; {server}",
        f"Upgrade that server. {detail}",
        str(address),
        place,
    )


def list_level_errors(declared: DeclaredResource, body: Config, level: int) -> Iterable[Diagnostic]:
    """Yield an error for each field of a body that servers of this API level do not know."""
    address, table = declared.address, table_of(declared.address)
    for path, needed in table.required_levels(body):
        if needed <= level:
            continue
        name = path.split(".")[0]
        value, word = body[name], alias_of(address.kind, name)
        shown = (
            f"{word}: {value}"
            if isinstance(value, str) and value in table.by_name[name].value_levels
            else word + path.removeprefix(name)
        )
        yield Diagnostic(
            "error",
            "JS413",
            f"{shown} needs API level {needed} (nats-server {SERVER_VERSIONS[needed]}); "
            f"{address.domain} has level {level}",
            "Upgrade that server, or leave it out.",
            str(address),
            declared.ranges.get(word, declared.range),
        )
