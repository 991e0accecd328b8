"""Assemble the plan document: decide, assess, guard, order. Pure: no I/O.

What concerns backfills and backups is imported where it is used: most plans have none, and start
quickly.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from jsplan import __version__
from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Change, Hazard, Plan, ResourceChange
from jsplan.documents.step_kinds import CANNOT_PRESERVE
from jsplan.documents.types import Deferred
from jsplan.facts.live import unreadable_hint
from jsplan.planning import interest
from jsplan.planning.account_limits import check_account_limits
from jsplan.planning.contents.changes import (
    assess_content,
    build_content_change,
    detect_content_drift,
)
from jsplan.planning.contents.decide import check_contents, decide_contents, deferral
from jsplan.planning.crash_recovery import describe_interruption
from jsplan.planning.decide import decide, decide_dependent_consumers, table_of
from jsplan.planning.diff import with_bucket_names
from jsplan.planning.domain_findings import check_domains
from jsplan.planning.drift import detect_drift
from jsplan.planning.forgotten_entries import build_forgotten_changes, build_forgotten_steps
from jsplan.planning.guards import (
    check_decision,
    check_parent,
    check_undeclared_domains,
    is_at_old_address,
    is_refusal,
)
from jsplan.planning.hazard_permissions import check_plan_permissions
from jsplan.planning.hazards import assess_hazards
from jsplan.planning.interest import orphaned_placeholders
from jsplan.planning.interruptions import note_others
from jsplan.planning.losses import changed_last_seqs, note_losses
from jsplan.planning.lost_records import check_lost_records
from jsplan.planning.measurements import keep_counts
from jsplan.planning.model import (
    Decisions,
    Findings,
    Overrides,
    PlanInputs,
    ResourceDecision,
    select_addresses,
    split_contents,
)
from jsplan.planning.origins import check_origins, note_unchecked_imports
from jsplan.planning.orphans import add_closing_changes, note_orphans
from jsplan.planning.ownership import decide_owners
from jsplan.planning.preconditions import bound_deletions, expect_readers, expect_streams
from jsplan.planning.replication import checks
from jsplan.planning.replication.arriving_messages import bound_arrivals
from jsplan.planning.replication.impact import plan_downstream
from jsplan.planning.replication.lost_origins import continue_lost_origins
from jsplan.planning.replication.removed_sources import bound_uncopied
from jsplan.planning.replication.source_starts import check_late_starts, fix_source_starts
from jsplan.planning.server_rules import check_server_rules
from jsplan.planning.steps import build_steps
from jsplan.planning.stranded import check_starved_consumers
from jsplan.planning.transfer.consumers import config_with_start, origin_consumer, target_consumer
from jsplan.planning.transfer.decisions import (
    ORIGIN_RELOCATED,
    TARGET_RELOCATED,
    check_waiting_relocations,
    decide_relocations,
)
from jsplan.planning.transfer.downstream import plan_relocated_sources
from jsplan.planning.transfer.entries import deferral_reasons, limit_changes
from jsplan.planning.transfer.hazards import preserve_obstacle
from jsplan.planning.transfer.positions import check_resets
from jsplan.resources.fields import Config
from jsplan.units import format_timestamp


def candidate_addresses(inputs: PlanInputs) -> frozenset[Address]:
    """Collect the addresses in the files and in state, in declared domains."""
    declared = () if inputs.options.destroy else inputs.workspace.resources
    begun = {*inputs.interrupted.steps, *inputs.interrupted.replacements}
    known = begun.union(declared, inputs.entries)
    return frozenset(a for a in known if a.domain in inputs.workspace.domains)


def decide_all(inputs: PlanInputs) -> dict[Address, ResourceDecision]:
    """Decide each selected resource. `inputs.live` must cover every selected address.

    Contents come last: they follow what is decided about their bucket, and affect nothing else.
    """
    if inputs.backup:
        from jsplan.planning.restore.obstacles import decide_restored  # noqa: PLC0415 - as above

        return decide_restored(inputs)
    readable = _readable_addresses(inputs)
    decisions = {address: decide(inputs, address) for address in readable if not address.is_content}
    decisions = {a: v for a, v in decisions.items() if v.reason != "not_managed"}
    # No pass changes a dict in place: indexes are kept for each (`PlanInputs.index`).
    decisions = decisions | _decide_consumers_of_deleted(inputs, decisions)
    decisions = decisions | decide_relocations(inputs, decisions)
    for find_overrides in (
        decide_dependent_consumers,
        plan_downstream,
        plan_relocated_sources,
        decide_owners,
    ):
        decisions = decisions | find_overrides(inputs, decisions)
    orphaned = orphaned_placeholders(inputs, decisions)
    decisions = decisions | {decision.address: decision for decision in orphaned}
    return decisions | decide_contents(inputs, decisions, [a for a in readable if a.is_content])


def _readable_addresses(inputs: PlanInputs) -> list[Address]:
    unread = inputs.live.unreadable.keys() | _waiting(inputs).keys()
    reachable = inputs.live.reachable
    return sorted(a for a in inputs.selected if a.domain in reachable and a not in unread)


def _waiting(inputs: PlanInputs) -> dict[Address, str]:
    """Return what is planned later although its domain may answer, with the reason."""
    found = deferral_reasons(inputs)
    if not (found or inputs.interrupted.replacements or inputs.live.unreadable):
        return found
    for address in (a for a in inputs.selected if a.is_content):
        if why := deferral(inputs, address) or found.get(address.parent or address, ""):
            found[address] = why
    return found


def build_plan(
    inputs: PlanInputs, decisions: Decisions, lint_findings: Sequence[Diagnostic] = ()
) -> Plan:
    """Build the plan document from the decisions of `decide_all`.

    `inputs.measured` must have the results of `list_measurements`.
    """
    decisions, contents = split_contents(decisions)
    decisions = decisions | continue_lost_origins(inputs, decisions)
    decisions = decisions | fix_source_starts(inputs, decisions)
    every = decisions | contents
    plan = _empty_plan(inputs)
    plan.deferred = _defer_resources(inputs)
    plan.deferred += _defer_backfills(inputs)
    forgotten = list(build_forgotten_changes(inputs))
    changes = [_resource_change(inputs, every[a], decisions) for a in sorted(every)]
    changes = limit_changes(inputs, decisions, changes)
    changes += forgotten
    plan.diagnostics = [
        *_diagnostics(inputs, decisions),
        *note_others(inputs),
        *lint_findings,
        *check_plan_permissions(inputs, changes),
        *check_contents(inputs, contents, decisions),
    ]
    plan.errored = any(d.severity == "error" and not is_refusal(d) for d in plan.diagnostics)
    plan.resource_changes = (
        sorted(changes, key=lambda change: Address.parse(change.address)) if forgotten else changes
    )
    plan.resource_drift = [
        drift
        for address in _readable_addresses(inputs)
        if not ((decision := every.get(address)) and decision.is_untouched)
        and (drift := _detect_drift(inputs, address)) is not None
    ]
    if not plan.errored:
        plan.steps = build_steps(inputs, every)
        plan.steps += build_forgotten_steps(inputs, len(plan.steps) + 1)
        plan.resource_changes = add_closing_changes(plan)
        plan.diagnostics += note_orphans(plan)
        keep_counts(inputs, plan.steps)
        bound_deletions(inputs, decisions, plan.steps)
        expect_streams(inputs, decisions, plan.steps)
        expect_readers(inputs, decisions, plan.steps)
        bound_uncopied(inputs, decisions, plan.steps)
        bound_arrivals(inputs, decisions, plan.steps)
    plan.backfills = _plan_backfills(inputs, decisions) if not plan.errored else []
    options = inputs.options
    partial = options.targets or options.excludes or options.stage
    plan.complete = not (partial or plan.deferred)
    plan.applyable = (
        bool(plan.steps) and not plan.errored and not any(is_refusal(d) for d in plan.diagnostics)
    )
    return plan


def _defer_backfills(inputs: PlanInputs) -> list[Deferred]:
    if not inputs.workspace.backfills:
        return []
    from jsplan.planning.backfill.entries import defer_backfills  # noqa: PLC0415 - see above

    return defer_backfills(inputs)


def _plan_backfills(inputs: PlanInputs, decisions: Decisions) -> list[dict[str, Any]]:
    if not inputs.workspace.backfills:
        return []
    from jsplan.planning.backfill.entries import plan_backfills  # noqa: PLC0415 - see above

    return plan_backfills(inputs, decisions)


def _diagnose_backfills(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Yield the findings about backfills, and about sources that leave out history."""
    if inputs.workspace.backfills:
        from jsplan.planning.backfill.entries import diagnose_impossible  # noqa: PLC0415

        yield from diagnose_impossible(inputs)
    if inputs.topology.edges:
        from jsplan.planning.backfill.source_history import (  # noqa: PLC0415 - see above
            diagnose_source_history,
        )

        yield from diagnose_source_history(inputs, decisions)


def _defer_resources(inputs: PlanInputs) -> list[Deferred]:
    """Defer what is offline, and what waits for the other side of its relocation."""
    waiting, live, found = _waiting(inputs), inputs.live, list[Deferred]()
    for address in sorted(inputs.selected):
        if address.domain not in live.reachable:
            found.append(Deferred(str(address), live.domains[address.domain].offline_text))
        elif address in waiting:
            found.append(Deferred(str(address), waiting[address]))
    return found


def _decide_consumers_of_deleted(inputs: PlanInputs, decisions: Decisions) -> Overrides:
    """Decide the unselected consumers of deleted streams: the server deletes them too."""
    gone = {a for a, decision in decisions.items() if decision.deletes and a.is_stream}
    left_out = candidate_addresses(inputs) - inputs.selected if gone else frozenset()
    found = {
        a: decide(inputs, a)
        for a in sorted(left_out)
        if a.kind == "consumer" and a.parent in gone and inputs.live.get(a) is not None
    }
    return {a: v for a, v in found.items() if v.reason != "not_managed"}


#: The options that a plan always shows: as they are, and as lists.
_SHOWN_OPTIONS: Final = ("adopt", "safe_below", "measure_limit", "offline")
_LISTED_OPTIONS: Final = ("excludes", "replace", "reinstalled")


def _empty_plan(inputs: PlanInputs) -> Plan:
    options, workspace = inputs.options, inputs.workspace
    shown = {name: str(value) for name, value in workspace.variables.items()}
    given: dict[str, Any] = {name: getattr(options, name) for name in _SHOWN_OPTIONS}
    given |= {name: list(getattr(options, name)) for name in _LISTED_OPTIONS}
    given["owner"] = inputs.owner_tag if workspace.ownership_marker else None
    given |= {"import": True} if options.imports else {}
    given |= {} if options.backfill else {"backfill": False}
    given |= {"stage": options.stage} if options.stage else {}
    return Plan(
        jsplan_version=__version__,
        workspace=workspace.name,
        environment=workspace.environment,
        timestamp=format_timestamp(inputs.now),
        id=str(uuid.uuid4()),
        state={"lineage": inputs.state.lineage or None, "serial": inputs.state.serial},
        config_hash=workspace.config_hash,
        variables=shown,
        mode="destroy" if options.destroy else "refresh-only" if options.refresh_only else "normal",
        targets=list(options.targets),
        allowed_hazards=list(options.allow_hazards),
        options=given,
        domains={
            key: facts.to_json() | _domain_access(inputs, key)
            for key, facts in sorted(inputs.live.domains.items())
        },
    )


def _domain_access(inputs: PlanInputs, key: str) -> dict[str, Any]:
    domain = inputs.workspace.domains[key]
    access: dict[str, Any] = {"api_prefix": domain.api_prefix, "connection": domain.connection}
    rows = (row for row in inputs.workspace.imports if row.into_domain == key)
    imported = {row.api: row.from_domain for row in rows}
    access |= {"imports": imported} if imported else {}
    last = changed_last_seqs(inputs, key)
    return access | ({"last_seqs": last} if last else {})


def _diagnostics(inputs: PlanInputs, decisions: Decisions) -> list[Diagnostic]:
    found = [
        *inputs.workspace.diagnostics,
        *inputs.topology.diagnostics,
        *check_undeclared_domains(inputs),
    ]
    found += check_domains(inputs, decisions)
    found += check_waiting_relocations(inputs)
    found += note_losses(inputs)
    for address in sorted(inputs.selected & inputs.live.unreadable.keys()):
        if address.is_content:
            continue  # it is deferred
        text = f"exists but cannot be read: {inputs.live.unreadable[address]}"
        hint = unreadable_hint(inputs.live.unreadable[address])
        found.append(Diagnostic("error", "JS415", text, hint, str(address)))
    for decision in decisions.values():
        found += check_decision(inputs, decision)
        if not decision.is_untouched:
            found += check_starved_consumers(inputs, decision, decisions)
            found += check_parent(inputs, decision, decisions)
    found += check_lost_records(inputs, decisions)
    found += check_account_limits(inputs, decisions)
    found += check_resets(inputs, decisions)
    found += _check_planned_origins(inputs, decisions)
    found += checks.check_unverified_downstream(inputs, decisions)
    found += checks.check_stuck_mirrors(inputs, decisions)
    found += check_late_starts(inputs, decisions)
    found += _diagnose_backfills(inputs, decisions)
    return [
        *found,
        *interest.check_placeholders(inputs, decisions),
        *check_server_rules(inputs, decisions),
    ]


def _check_planned_origins(inputs: PlanInputs, decisions: Decisions) -> list[Diagnostic]:
    """Check the origins of the mirrors and sources of all remaining streams."""
    after = {address: decision.after for address, decision in decisions.items()}
    staying = (address for address, config in after.items() if config is not None)
    places = {a: declared.range for a in staying if (declared := inputs.declared(a)) is not None}
    return [
        *check_origins(inputs.topology.edges, inputs.topology, inputs.live, after, places),
        *note_unchecked_imports(inputs.topology, inputs.live, places),
    ]


def _resource_change(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> ResourceChange:
    address, live, hazards = decision.address, decision.live, list[Hazard]()
    moved = inputs.moved_from.get(address)
    if address.is_content:
        change, hazards = build_content_change(inputs, decision), assess_content(inputs, decision)
    elif live is not None and _is_unchanged(inputs, decision):
        change = Change(decision.actions, live.config, live.config)
    else:
        change = _build_change(inputs, decision, decisions)
        hazards = assess_hazards(inputs, decision, decisions)
    keeps = decision.preserves and address.is_stream
    cannot_preserve = keeps and preserve_obstacle(inputs, decision) is not None
    return ResourceChange.of(
        address,
        change,
        CANNOT_PRESERVE if cannot_preserve else decision.reason,
        hazards=hazards,
        fingerprint=live.fingerprint if live else "absent",
        depends_on=inputs.topology.dependency_names(address),
        previous_address=str(moved) if moved else None,
        relocated_from=_relocated_from(inputs, decision),
        relocated_to=_relocated_to(inputs, decision, decisions) if inputs.relocations else None,
    )


def _build_change(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Change:
    address, live = decision.address, decision.live
    with_start = config_with_start(inputs, decision, decisions)
    return Change(
        actions=decision.actions,
        before=live.config if live else None,
        after=with_start or _final_config(decision, inputs.level(address)),
        fields=[
            *with_bucket_names(address, [*decision.fields, *decision.ignored]),
            *([decision.reset.field_change()] if decision.reset and live else []),
        ],
        replace_paths=_replace_paths(decision),
        importing={"id": str(address)} if decision.adopts and not decision.deletes else None,
        after_unknown=dict.fromkeys(
            ["opt_start_seq"] if with_start is not None else sorted(decision.unknown), True
        ),
    )


def _is_unchanged(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check cheaply that nothing about the resource changes: most of a large plan."""
    return (
        decision.is_untouched
        and decision.restored_with is None
        and not inputs.relocations
        and not inputs.measured.concern(decision.address)
    )


def _relocated_from(inputs: PlanInputs, decision: ResourceDecision) -> str | None:
    """Return the old address of a relocated stream, or of a consumer of one."""
    if decision.relocation is None or decision.reason != TARGET_RELOCATED:
        return None
    if decision.address.kind == "consumer":
        return str(origin_consumer(inputs.workspace, decision.relocation, decision.address))
    return str(decision.relocation.origin)


def _relocated_to(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> str | None:
    """Return the new address of a relocated stream, or of a consumer that comes along."""
    stream = decisions.get(decision.address.parent) if decision.address.parent else decision
    relocation = stream.relocation if stream is not None else None
    if relocation is None or stream is None or stream.reason != ORIGIN_RELOCATED:
        return None
    if stream is decision:
        return str(relocation.target)
    new = target_consumer(inputs.workspace, relocation, decision.address)
    planned = decisions.get(new) if new is not None else None
    return str(new) if planned is not None and not planned.is_removed else None


def _final_config(decision: ResourceDecision, level: int) -> Config | None:
    """Return the full configuration after the plan. A no-op shows the live one unchanged."""
    if decision.actions in (["delete"], ["forget"]) or decision.after is None:
        return None
    if decision.live is not None and decision.actions == ["no-op"]:
        return decision.live.config
    return table_of(decision.address).with_defaults(decision.after, level)


def _replace_paths(decision: ResourceDecision) -> list[list[str]]:
    replacing = [f for f in decision.fields if f.effect == "replace"] if decision.replaces else []
    return [f.path.split(".") for f in with_bucket_names(decision.address, replacing)]


def _detect_drift(inputs: PlanInputs, address: Address) -> ResourceChange | None:
    if address not in inputs.entries:
        return None
    if address.is_content:
        return detect_content_drift(inputs, address)
    if describe_interruption(inputs, address) or is_at_old_address(inputs, address):
        return None
    return detect_drift(inputs, address)


__all__ = ["build_plan", "candidate_addresses", "decide_all", "select_addresses"]
