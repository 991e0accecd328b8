"""The history that a new source leaves out because it begins later than its origin. Pure.

An apply copies none of it. The plan has a note with the number of messages and with the command
that copies them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.planning.backfill.entries import estimate_between
from jsplan.planning.backfill.model import make_ad_hoc_entry
from jsplan.planning.backfill.strategy import find_read_obstacle, find_target_problem
from jsplan.resources.nested import origin_key
from jsplan.units import count_text, instant_of, parse_instant

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs, ResourceDecision

LEFT_OUT_CODE: Final = "JS475"


class _LateSource(Struct, frozen=True):
    """A new source that begins after the first message of its origin."""

    decision: ResourceDecision
    source: dict[str, Any]
    origin: Address

    @property
    def target(self) -> Address:
        return self.decision.address

    @property
    def start_seq(self) -> int | None:
        return int(self.source.get("opt_start_seq") or 0) or None

    @property
    def start_time(self) -> str:
        return str(self.source.get("opt_start_time") or "")

    @property
    def start(self) -> str:
        return f"sequence {self.start_seq:,}" if self.start_seq else self.start_time

    @property
    def filters(self) -> list[str]:
        transforms = [
            str(one.get("src") or ">") for one in self.source.get("subject_transforms") or ()
        ]
        found = transforms or [str(self.source.get("filter_subject") or ">")]
        return [] if ">" in found else found

    @property
    def changes_subjects(self) -> bool:
        return any(
            one.get("dest") and one["dest"] != (one.get("src") or ">")
            for one in self.source.get("subject_transforms") or ()
        )


def diagnose_source_history(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> Iterator[Diagnostic]:
    """Yield a note for each new source that leaves out messages of its origin."""
    for late in _late_sources(inputs, decisions):
        if amount := _describe_amount(inputs, decisions, late):
            yield Diagnostic(
                "info",
                LEFT_OUT_CODE,
                f"its new source {late.origin} begins at {late.start} and leaves out {amount}",
                f"Apply does not copy them. {_describe_remedy(inputs, late)}",
                str(late.target),
                inputs.workspace.resources[late.target].range,
            )


def source_history_times(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> set[tuple[Address, str]]:
    """Return the times whose sequence in their stream the plan needs."""
    return {
        (late.origin, late.start_time)
        for late in _late_sources(inputs, decisions)
        if late.start_time
    }


# --- which sources --------------------------------------------------------------------------------


def _late_sources(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> Iterator[_LateSource]:
    request = inputs.options
    if request.destroy or request.refresh_only or request.imports:
        return
    for address, decision in decisions.items():
        if (
            address.kind == "stream"
            and address in inputs.workspace.resources
            and decision.actions in (["create"], ["update"])
            and not decision.comes_filled
        ):
            yield from _late_sources_of(inputs, decision)


def _late_sources_of(inputs: PlanInputs, decision: ResourceDecision) -> Iterator[_LateSource]:
    # Existing sources and those that are put back continue where they were.
    continued = {
        origin_key(source)
        for source in (decision.live.raw.get("sources") or () if decision.live else ())
    }
    continued |= decision.sources_to_attach
    continued |= inputs.interrupted.detached_sources.get(decision.address, set())
    for source in inputs.body(decision.address).get("sources") or ():
        later = int(source.get("opt_start_seq") or 0) > 1 or source.get("opt_start_time")
        if not later or origin_key(source) in continued:
            continue
        domain = inputs.topology.routes.resolve_prefix(
            decision.address.domain, (source.get("external") or {}).get("api")
        )
        if domain is None or domain not in inputs.workspace.domains:
            continue
        origin = Address.of_stream(domain, source["name"])
        if not _has_backfill_entry(inputs, origin, decision.address):
            yield _LateSource(decision, source, origin)


def _has_backfill_entry(inputs: PlanInputs, origin: Address, target: Address) -> bool:
    """Check whether a backfill entry copies it, or has copied it."""
    entries = [
        entry for entry in inputs.workspace.backfills.values() if str(entry.target) == str(target)
    ]
    real = inputs.topology.canonicalize
    sides = [side for entry in entries for side in entry.origins if side.parquet is None]
    return any(real(Address.of_stream(side.domain, side.stream)) == real(origin) for side in sides)


# --- how much -------------------------------------------------------------------------------------


def _describe_amount(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision], late: _LateSource
) -> str:
    """Return what a source leaves out, such as `15 earlier messages`; empty for nothing."""
    live, decision = inputs.live.get(late.origin), decisions.get(late.origin)
    if live is None and inputs.live.is_reachable(late.origin.domain):
        return ""
    if live is None:
        most = f"at most {late.start_seq - 1:,}" if late.start_seq else "an unknown number of"
        why = inputs.live.domains[late.origin.domain].offline_text
        return f"{most} earlier messages ({why})"
    if decision is not None and decision.loses_content:
        return ""
    start = late.start_seq or inputs.measured.seqs_by_time.get((late.origin, late.start_time))
    if start is None:
        return "an unknown number of earlier messages" if live.state.get("messages") else ""
    last = min(start - 1, int(live.state["last_seq"]))
    not_begun = late.start_time and parse_instant(late.start_time) > instant_of(inputs.now)
    if not_begun and last == live.state["last_seq"]:
        return ""  # it has not begun, and how much it will leave out is not known yet
    messages, _ = estimate_between(live.state, 1, last)
    if not messages:
        return ""
    first, highest = int(live.state["first_seq"]), int(live.state["last_seq"])
    is_exact = last == highest or int(live.state["messages"]) == highest - first + 1
    most = "" if is_exact and not late.filters else "at most "
    return f"{most}{count_text(messages, 'earlier message')}"


# --- what to do -----------------------------------------------------------------------------------


def _describe_remedy(inputs: PlanInputs, late: _LateSource) -> str:
    live = inputs.live.get(late.origin)
    if live is not None and (why := find_read_obstacle(live.raw)):
        return f"They cannot be copied: {why}."
    why, _ = find_target_problem(late.decision.after or {})
    if why:
        return f"They cannot be copied: {late.target} {why}."
    if late.changes_subjects:
        return "To copy them, declare a backfill with the `subject_transform` of the source."
    if late.filters:
        filters = f"`filter_subjects: {json.dumps(late.filters)}`"
        return f"To copy them, declare a backfill whose `from` has {filters}."
    entry = make_ad_hoc_entry(late.origin, late.target)
    again = " --reset-range" if entry.name in inputs.state.backfills else ""
    ends = f"--from {shlex.quote(str(late.origin))} --to {shlex.quote(str(late.target))}"
    return f"To copy those that are not there yet, after it:\njsplan backfill run {ends}{again}"
