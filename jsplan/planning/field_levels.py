"""Errors about what the servers of a domain do not know, or refuse since a release."""

from __future__ import annotations

from typing import Final

from jsplan.address import Address
from jsplan.config.checks import find_reserved, reserved_problem
from jsplan.config.hints import field_hint
from jsplan.config.model import DeclaredResource
from jsplan.diagnostics import Diagnostic, Severity, SourceRange
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.model import Findings, PlanInputs, ResourceDecision
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


def check_server_level(inputs: PlanInputs, decision: ResourceDecision) -> Findings:
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


def _check_reserved_subjects(declared: DeclaredResource, body: Config, level: int) -> Findings:
    """Yield an error for a subject such as `*.orders.>`, and a warning where 2.10 runs it."""
    subject = find_reserved(body)
    if subject is None:
        return
    problem, since = reserved_problem(subject), SERVER_VERSIONS[RESERVED_SUBJECTS_LEVEL]
    severity: Severity = "error"
    text, detail = problem.summary, problem.detail
    if level < RESERVED_SUBJECTS_LEVEL:
        severity, detail = "warning", f"{detail} Do that before the upgrade."
        text = f'nats-server {since} refuses "{subject}": the stream is gone after an upgrade'
    place = declared.ranges.get("subjects", declared.range)
    yield Diagnostic(severity, problem.code, text, detail, str(declared.address), place)


def _list_unknown_fields(declared: DeclaredResource, live: LiveObject | None) -> Findings:
    """Yield an error for each key of `x_raw` that no known release has, and that is not live."""
    address, known = declared.address, table_of(declared.address).by_name
    newest, place = SERVER_VERSIONS[NEWEST_LEVEL], declared.ranges.get("x_raw", declared.range)
    for name in sorted(declared.raw_fields - known.keys() - (live.raw if live else {}).keys()):
        text = f'no nats-server up to {newest} knows the field "{name}" of x_raw'
        detail = f"{field_hint(address.kind, name, known)} Remove it from x_raw.".strip()
        yield Diagnostic("error", "JS413", text, detail, str(address), place)


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
    text = f"{what} needs nats-server {SERVER_VERSIONS[REPLACE_LEVEL]} or later; {server}"
    detail = f"Upgrade that server. {detail}"
    return Diagnostic("error", NEEDS_NEWER_SERVER, text, detail, str(address), place)


def list_level_errors(declared: DeclaredResource, body: Config, level: int) -> Findings:
    """Yield an error for each field of a body that servers of this API level do not know."""
    address, table = declared.address, table_of(declared.address)
    for path, needed in table.required_levels(body):
        if needed <= level:
            continue
        name = path.split(".")[0]
        value, word = body[name], alias_of(address.kind, name)
        is_word = isinstance(value, str) and value in table.by_name[name].value_levels
        shown = f"{word}: {value}" if is_word else word + path.removeprefix(name)
        text = (
            f"{shown} needs API level {needed} (nats-server {SERVER_VERSIONS[needed]}); "
            f"{address.domain} has level {level}"
        )
        detail, place = "Upgrade that server, or leave it out.", declared.ranges.get(word)
        place = place or declared.range
        yield Diagnostic("error", "JS413", text, detail, str(address), place)
