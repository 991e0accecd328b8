"""Assembles the plan: a visible sequence of decide, assess, guard, order, write down. Pure: no I/O."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from jsplan import __version__
from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Change, Deferred, Plan, ResourceChange
from jsplan.planning import following, interest
from jsplan.planning.backfills import deferred_backfills, impossible_backfills, planned_backfills
from jsplan.planning.downstream import plan_downstream
from jsplan.planning.drifted import drift_of
from jsplan.planning.explained import orphans, with_settled
from jsplan.planning.fleet import of_domains
from jsplan.planning.given_up import given_up_changes, given_up_steps
from jsplan.planning.guards import check_verdict, refuses, still_there, undeclared_domains
from jsplan.planning.hazards import assess
from jsplan.planning.inputs import Inputs, select
from jsplan.planning.interest import left_over
from jsplan.planning.leaving import bound_copies
from jsplan.planning.left_out import left_out, left_out_and_away
from jsplan.planning.limits import over_limits
from jsplan.planning.origins import check_origins
from jsplan.planning.ownership import settle_owners
from jsplan.planning.parents import expect_streams
from jsplan.planning.permissions import unknown_permissions
from jsplan.planning.preserve.brought import shown_after, starts_anew
from jsplan.planning.recovered import in_the_middle
from jsplan.planning.refusals import refusals
from jsplan.planning.stakes import bound
from jsplan.planning.steps import build_steps
from jsplan.planning.verdict import Verdict, decide, follow_streams, table_of
from jsplan.planning.words import in_words
from jsplan.resources.fields import Config
from jsplan.units import stamp


def candidates(inputs: Inputs) -> frozenset[Address]:
    """Every address that desired or last applied knows, of domains that are declared."""
    declared = () if inputs.request.destroy else inputs.workspace.resources
    known = {*declared, *inputs.entries, *inputs.pending, *inputs.replacements}
    return frozenset(a for a in known if a.domain in inputs.workspace.domains)


def compare(inputs: Inputs) -> dict[Address, Verdict]:
    """What becomes of each selected resource; `inputs.live` must cover every selected address."""
    verdicts = {address: decide(inputs, address) for address in _present(inputs)}
    verdicts = {a: v for a, v in verdicts.items() if v.reason != "not_managed"}
    verdicts |= _companions(inputs, verdicts)
    follow_streams(inputs, verdicts)
    plan_downstream(inputs, verdicts)
    settle_owners(inputs, verdicts)
    for verdict in left_over(inputs, verdicts):
        verdicts[verdict.address] = verdict
    return verdicts


def _present(inputs: Inputs) -> list[Address]:
    return sorted(a for a in inputs.selected if inputs.live.reachable(a.domain) and a not in inputs.live.broken)


def build_plan(inputs: Inputs, verdicts: dict[Address, Verdict], advice: Sequence[Diagnostic] = ()) -> Plan:
    """The plan document for what `compare` found; `inputs.measured` has the answers to `questions`, `advice` is lint's."""
    away = sorted(a for a in inputs.selected if not inputs.live.reachable(a.domain))
    plan = _empty(inputs)
    plan.deferred = [Deferred(str(a), inputs.live.domains[a.domain].absence) for a in away]
    plan.deferred += [*deferred_backfills(inputs), *left_out_and_away(inputs, verdicts)]
    plan.diagnostics = [*_diagnostics(inputs, verdicts), *advice]
    plan.errored = any(d.severity == "error" and not refuses(d) for d in plan.diagnostics)
    changes = [*(_resource_change(inputs, v, verdicts) for v in verdicts.values()), *given_up_changes(inputs)]
    plan.resource_changes = sorted(changes, key=lambda change: Address.parse(change.address))
    plan.resource_drift = [d for d in (_drift(inputs, a) for a in _present(inputs)) if d is not None]
    known = {*candidates(inputs), *inputs.given_up, *(Address.parse(c.address) for c in changes)}
    plan.diagnostics += unknown_permissions(inputs.request.allow_hazards, known)
    if not plan.errored:
        plan.steps = build_steps(inputs, verdicts)
        plan.steps += given_up_steps(inputs, len(plan.steps) + 1)
        plan.resource_changes = with_settled(plan)
        plan.diagnostics += orphans(plan)
        bound(inputs, verdicts, plan.steps)
        expect_streams(inputs, verdicts, plan.steps)
        bound_copies(inputs, verdicts, plan.steps)
    plan.backfills = [*planned_backfills(inputs, verdicts), *left_out(inputs, verdicts)] if not plan.errored else []
    plan.complete = not (inputs.request.targets or inputs.request.excludes or plan.deferred)
    plan.applyable = bool(plan.steps) and not plan.errored and not any(refuses(d) for d in plan.diagnostics)
    return plan


def _companions(inputs: Inputs, verdicts: dict[Address, Verdict]) -> dict[Address, Verdict]:
    """The consumers of a stream that goes go with it, also where `--target` or `--exclude` leaves them out."""
    gone = {address for address, verdict in verdicts.items() if verdict.deletes and address.kind != "consumer"}
    left_out = candidates(inputs) - inputs.selected if gone else frozenset()
    found = {a: decide(inputs, a) for a in sorted(left_out) if a.parent in gone and inputs.live.get(a) is not None}
    return {a: v for a, v in found.items() if v.reason != "not_managed"}


def _empty(inputs: Inputs) -> Plan:
    request, workspace = inputs.request, inputs.workspace
    mode = "destroy" if request.destroy else "refresh-only" if request.refresh_only else "normal"
    shown = {name: str(value) for name, value in workspace.variables.items()}
    return Plan(
        jsplan_version=__version__, workspace=workspace.name, environment=workspace.environment,
        timestamp=stamp(request.now), id=str(uuid.uuid4()),
        state={"lineage": inputs.state.lineage or None, "serial": inputs.state.serial}, config_hash=workspace.config_hash,
        variables=shown, mode=mode, targets=list(request.targets), allowed_hazards=list(request.allow_hazards),
        options={
            "adopt": request.adopt, "excludes": list(request.excludes), "replace": list(request.replace),
            "reinstalled": list(request.reinstalled), "owner": inputs.owner if workspace.ownership_marker else None,
            "safe_below": request.safe_below, "measure_limit": request.measure_limit, "offline": request.offline,
        } | ({"import": True} if request.imports else {}) | ({} if request.backfill else {"backfill": False}),
        domains={key: facts.to_json() | _way(inputs, key) for key, facts in sorted(inputs.live.domains.items())},
    )  # fmt: skip


def _way(inputs: Inputs, key: str) -> dict[str, Any]:
    domain = inputs.workspace.domains[key]
    way = {"api_prefix": domain.api_prefix, "connection": domain.connection}
    imported = {row.api: row.origin for row in inputs.workspace.imports if row.into == key}
    return way | ({"imports": imported} if imported else {})


def _diagnostics(inputs: Inputs, verdicts: dict[Address, Verdict]) -> list[Diagnostic]:
    found = [*inputs.workspace.diagnostics, *inputs.topology.diagnostics, *undeclared_domains(inputs)]
    found += of_domains(inputs, verdicts)
    for address in sorted(inputs.selected & inputs.live.broken.keys()):
        text = f"exists on the server but is offline there: {inputs.live.broken[address]}"
        found.append(
            Diagnostic("error", "JS415", text, "It uses a feature this server does not know. Upgrade the server again.", str(address))
        )
    for verdict in verdicts.values():
        found += check_verdict(inputs, verdict)
        found += _parent_missing(inputs, verdict, verdicts)
    found += over_limits(inputs, verdicts)
    found += _odd_origins(inputs, verdicts)
    found += following.findings(inputs, verdicts)
    found += impossible_backfills(inputs)
    return [*found, *interest.findings(inputs, verdicts), *refusals(inputs, verdicts)]


def _odd_origins(inputs: Inputs, verdicts: dict[Address, Verdict]) -> list[Diagnostic]:
    """What is odd about the origins of the copies that stay or come."""
    after = {address: verdict.after for address, verdict in verdicts.items()}
    copies = (address for address, config in after.items() if config is not None)
    places = {a: declared.range for a in copies if (declared := inputs.declared(a)) is not None}
    return list(check_origins(inputs.topology.edges, inputs.topology, inputs.live, after, places))


def _parent_missing(inputs: Inputs, verdict: Verdict, verdicts: dict[Address, Verdict]) -> list[Diagnostic]:
    """A consumer whose stream is neither there nor planned."""
    parent = verdict.address.parent
    if parent is None or verdict.actions != ["create"]:
        return []
    planned = verdicts.get(inputs.topology.called(parent))
    if (planned is not None and not planned.goes) or inputs.live.get(parent) is not None:
        return []
    declared = inputs.declared(verdict.address)
    text = f"its stream {parent} neither exists nor is planned"
    return [
        Diagnostic(
            "error", "JS416", text, "Declare the stream, or correct the name.", str(verdict.address), declared.range if declared else None
        )
    ]


def _resource_change(inputs: Inputs, verdict: Verdict, verdicts: dict[Address, Verdict]) -> ResourceChange:
    address, live = verdict.address, verdict.live
    moved = inputs.moved_from.get(address)
    change = Change(
        actions=verdict.actions,
        before=live.config if live else None,
        after=shown_after(inputs, verdict, verdicts) or _after(verdict, inputs.level(address)),
        fields=in_words(address, [*verdict.fields, *verdict.ignored]),
        replace_paths=_replace_paths(verdict),
        unknown=["opt_start_seq"] if starts_anew(inputs, verdict, verdicts) else verdict.unknown,
        importing={"id": str(address)} if verdict.adopts and not verdict.deletes else None,
    )
    return ResourceChange(
        address=str(address), type=address.kind, domain=address.domain, name=address.name, change=change,
        action_reason=verdict.reason, hazards=assess(inputs, verdict, verdicts),
        fingerprint=live.fingerprint if live else "absent",
        depends_on=sorted(str(a) for a in inputs.topology.after.get(address, ())),
        previous_address=str(moved) if moved else None,
    )  # fmt: skip


def _after(verdict: Verdict, level: int) -> Config | None:
    """The full configuration, with what the tables do not know kept. An untouched one is shown as it is."""
    if verdict.actions in (["delete"], ["forget"]) or verdict.after is None:
        return None
    if verdict.live is not None and verdict.actions == ["no-op"]:
        return verdict.live.config
    return table_of(verdict.address).full(verdict.after, level)


def _replace_paths(verdict: Verdict) -> list[list[str]]:
    replacing = [f for f in verdict.fields if f.effect == "replace"] if verdict.replaces else []
    return [f.path.split(".") for f in in_words(verdict.address, replacing)]


def _drift(inputs: Inputs, address: Address) -> ResourceChange | None:
    entry, declared = inputs.entries.get(address), inputs.workspace.resources.get(address)
    if entry is None or in_the_middle(inputs, address) or still_there(inputs, address):
        return None
    ignore = declared.lifecycle.ignore_changes if declared else ()
    return drift_of(address, entry, inputs.live.get(address), inputs.level(address), ignore, now=inputs.request.now)


__all__ = ["build_plan", "candidates", "compare", "select"]
