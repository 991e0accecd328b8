"""The meaning of the files on another release of nats-server. Pure: no server is asked.

The files are planned against imagined servers of that release that have nothing yet. So the same
rules find what it refuses as in a real plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import DeclaredResource, Workspace
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.facts.live import DomainFacts, Live
from jsplan.planning.build import build_plan, candidate_addresses, decide_all
from jsplan.planning.decide import table_of
from jsplan.planning.model import Findings, PlanInputs
from jsplan.resources.buckets import alias_of
from jsplan.resources.fields import Config
from jsplan.resources.server_features import (
    EXPIRY_LEVEL,
    OFFLINE_LEVEL,
    SERVER_VERSIONS,
    SOURCES_NO_WINDOW_LEVEL,
)
from jsplan.state.document import State
from jsplan.topology import Topology

CANNOT_RUN, MEANS_ELSE = "JS464", "JS465"


class Difference(Struct, frozen=True):
    """Configurations of streams that mean something else before API level `level`.

    `field` is where it shows. `concerns` gets a compact configuration as it will be written.
    `since` is None where newer servers do what everybody expects.
    """

    field: str
    level: int
    concerns: Callable[[Config], bool]
    before: str
    since: str | None = None


#: Measured on every supported release.
DIFFERENCES: Final = (
    Difference(
        "sources",
        SOURCES_NO_WINDOW_LEVEL,
        lambda config: bool(config.get("sources")) and "duplicate_window" not in config,
        "a new stream with sources and without duplicate_window remembers message ids for 2m",
        "a new stream with sources and without duplicate_window remembers no message ids",
    ),
    Difference(
        "max_msgs_per_subject",
        EXPIRY_LEVEL,
        lambda config: bool(config.get("max_age")) and bool(config.get("max_msgs_per_subject")),
        "messages can outlive max_age for a while where max_msgs_per_subject has left gaps",
    ),
)


def check_server_version(
    workspace: Workspace, topology: Topology, version: str, level: int
) -> list[Diagnostic]:
    """Find what a nats-server refuses, cannot run or takes for something else.

    It is of release `version` and API level `level`. Errors are what it refuses of a new object and
    another release accepts. Warnings are what becomes of an object that exists when the server is
    downgraded to it (measured: `tests/facts/test_downgrades.py`).
    """
    found = _find_errors(workspace, topology, level)
    others = [each for each in SERVER_VERSIONS if each != level]
    if found:
        elsewhere = (set(_find_errors(workspace, topology, each)) for each in others)
        everywhere = set.intersection(*elsewhere)
        found = {key: error for key, error in found.items() if key not in everywhere}
    diagnostics = list(found.values())
    for address, declared in sorted(workspace.resources.items()):
        if address.is_content:
            continue
        body = topology.bodies[address]
        diagnostics += _check_downgrade(address, declared, body, version, level)
        if address.is_stream:
            diagnostics += _list_differences(address, declared, body, version, level)
    return diagnostics


def _find_errors(
    workspace: Workspace, topology: Topology, level: int
) -> dict[tuple[str, str | None, SourceRange | None], Diagnostic]:
    """Return the errors of a plan against empty servers, by code, address and place."""
    live = Live({key: DomainFacts(key, reachable=True, level=level) for key in workspace.domains})
    inputs = PlanInputs(workspace, topology, State(workspace.name, workspace.environment), live)
    inputs = replace(inputs, selected=candidate_addresses(inputs))
    live.requested |= inputs.selected
    plan = build_plan(inputs, decide_all(inputs))
    return {(d.code, d.address, d.range): d for d in plan.diagnostics if d.severity == "error"}


def _check_downgrade(
    address: Address, declared: DeclaredResource, body: Config, version: str, level: int
) -> Findings:
    """Warn that the release cannot run an existing object as a newer one wrote it."""
    table = table_of(address)
    newer = {path.split(".")[0] for path, each in table.required_levels(body) if each > level}
    if not newer:
        return
    needed = sorted(alias_of(address.kind, name) for name in newer)
    names = ", ".join(needed)
    # No release reads a new word in a setting that it knows.
    new_word = address.kind == "consumer" and any(table.by_name[n].level <= level for n in newer)
    if level < OFFLINE_LEVEL and not new_word:
        text = f"after a downgrade nats-server {version} runs it without {names}, without a word"
        detail = "A newer server finds the setting again, and what was stored without it."
    elif address.kind == "consumer":
        text = f"after a downgrade nats-server {version} neither runs nor lists it: {names}"
        detail = "Its clients get 10014, consumer not found. A newer server runs it again."
    else:
        text = f"after a downgrade the stream is offline on nats-server {version}: {names}"
        detail = (
            "Its publishers get no answer and its consumers nothing (10194)."
            " The messages stay, and a newer server runs it again."
        )
    at = declared.ranges.get(needed[0], declared.range)
    yield Diagnostic("warning", CANNOT_RUN, text, detail, str(address), at)


def _list_differences(
    address: Address, declared: DeclaredResource, body: Config, version: str, level: int
) -> Findings:
    compact = table_of(address).compact({"name": address.stream} | body)
    for each in DIFFERENCES:
        old, first = level < each.level, SERVER_VERSIONS[each.level]
        means = each.before if old else each.since
        if means is None or not each.concerns(compact):
            continue
        text = f"on nats-server {version}, {means}"
        other = each.since or "that is mended"
        detail = f"Since {first}: {other}." if old else f"Before {first}: {each.before}."
        word = alias_of(address.kind, each.field)
        at = declared.ranges.get(word, declared.range)
        yield Diagnostic("info", MEANS_ELSE, text, detail, str(address), at)
