"""State records of steps: the fields, the provenance and the dependencies that state keeps."""

from __future__ import annotations

from typing import Any

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import REPLACEMENT_INTERRUPTED, table_of
from jsplan.planning.model import UNTOUCHED, PlanInputs, ResourceDecision
from jsplan.planning.replication.impact import effective_starts
from jsplan.planning.replication.reattach import closing_record
from jsplan.planning.transfer.consumers import replacement_fields
from jsplan.planning.transfer.positions import start_of_new
from jsplan.resources.kv_entry import VALUE
from jsplan.state.document import Entry


def provenance_of(decision: ResourceDecision) -> str:
    """Return the recorded provenance of a resource; `created` if state has none."""
    return decision.entry.origin if decision.entry else "created"


def previous_address(inputs: PlanInputs, address: Address) -> dict[str, Any] | None:
    """Return the address that state still has, if a `moved` block renamed it."""
    old = inputs.moved_from.get(address)
    return {"previous_address": str(old)} if old else None


def record_entry(entry: Entry) -> dict[str, Any]:
    """Return the record of a consumer outside the plan that is recreated with its stream.

    Only its `created` changes.
    """
    names = ("declared", "origin", "depends_on", "prevent_destroy")
    optional = ("sensitive", "starts", "position_once")
    record = {name: getattr(entry, name) for name in names}
    return record | {name: value for name in optional if (value := getattr(entry, name))}


def build_state_record(
    inputs: PlanInputs, decision: ResourceDecision, provenance: str = ""
) -> dict[str, Any]:
    """Return the state record; apply adds the configuration and `created` as read back.

    Without another `provenance` it is that of state.
    """
    address, declared, entry = decision.address, inputs.declared(decision.address), decision.entry
    known = "imported" if decision.adopts else provenance_of(decision)
    guard = declared.lifecycle.prevent_destroy if declared else None
    if inputs.options.refresh_only and entry is not None:
        fields, after = _declared_with_drift(decision, entry), entry.depends_on
    else:
        fields = _recorded_fields(inputs, decision)
        after = inputs.topology.dependency_names(address)
    record: dict[str, Any] = {
        "declared": fields,
        "origin": provenance or known,
        "depends_on": after,
        "prevent_destroy": guard if guard is not None else bool(entry and entry.prevent_destroy),
    }
    if entry is not None and entry.starts:
        keeps = decision.live is not None and not decision.replaces
        if keeps and replacement_fields(address, entry, fields):  # a consumer keeps its start
            record["starts"] = entry.starts
        elif starts := effective_starts(decision, entry, fields):
            record["starts"] = starts
    if _is_sensitive(inputs, decision):
        record["sensitive"] = True
    if (start := start_of_new_consumer(inputs, decision)) is not None:
        record["starts"] = {address.consumer: start}
    if word := _recorded_word(inputs, decision):
        record["position_once"] = word
    return record | (previous_address(inputs, address) or {}) | closing_record(inputs, address)


def _is_sensitive(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check whether only the digest of a value may be shown, by the files or by the last apply."""
    if inputs.options.refresh_only:
        return decision.entry is not None and decision.entry.sensitive
    declared = inputs.declared(decision.address)
    return declared is not None and declared.sensitive


def start_of_new_consumer(inputs: PlanInputs, decision: ResourceDecision) -> int | None:
    """Return the sequence at which a new consumer starts because of its `position`."""
    if decision.reset is None or decision.live is not None:
        return None
    body = inputs.creation_body(decision.address)
    return start_of_new(inputs, decision.address, body, decision.reset)


def _recorded_word(inputs: PlanInputs, decision: ResourceDecision) -> str:
    """Return the word of the last reset: of this plan, of an interrupted apply, or before.

    That of a reset in place is recorded by its own step.
    """
    if decision.reset is not None and not decision.reset.in_place:
        return decision.reset.once
    if decision.reason == REPLACEMENT_INTERRUPTED and decision.address.kind == "consumer":
        begun = inputs.interrupted.replacements.get(decision.address) or {}
        if begun.get("position_once"):
            return str(begun["position_once"])
    return decision.entry.position_once if decision.entry is not None else ""


def _declared_with_drift(decision: ResourceDecision, entry: Entry) -> dict[str, Any]:
    """Return the declared fields with drifted values, so the next plan sees the difference."""
    live, before = decision.before, table_of(decision.address).compact(entry.config)
    return {
        name: value if before.get(name) == live.get(name) else live.get(name)
        for name, value in entry.declared.items()
    }


def _recorded_fields(inputs: PlanInputs, decision: ResourceDecision) -> dict[str, Any]:
    """Return the declared fields. An import by request counts all live fields as declared."""
    if decision.reason == "import_by_request" and decision.live is not None:
        return decision.live.compact
    if inputs.declared(decision.address) is None:
        return {}
    return inputs.declared_fields(decision.address)


def is_state_outdated(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check whether the state must change although the server is as wanted."""
    entry, live = decision.entry, decision.live
    if entry is None or live is None or decision.reason == "not_managed":
        return False
    is_recovered = decision.address in inputs.interrupted.recovered
    if is_recovered or decision.address in inputs.interrupted.detached_sources:
        return is_recovered
    if closing_record(inputs, decision.address):
        return not inputs.options.refresh_only
    if inputs.options.refresh_only:
        return live.config != entry.config
    if decision.reason == UNTOUCHED and not _is_lifecycle_outdated(inputs, decision, entry):
        return False
    record = build_state_record(inputs, decision, entry.origin)
    recorded = {"depends_on": _recorded_dependencies(inputs, decision, entry)}
    is_same = record == record_entry(entry) | recorded
    return not is_same or _is_config_outdated(inputs, decision, entry, live)


def _is_config_outdated(
    inputs: PlanInputs, decision: ResourceDecision, entry: Entry, live: LiveObject
) -> bool:
    if not decision.address.is_content:
        return table_of(decision.address).compact(entry.config) != live.compact
    declared = inputs.declared(decision.address)
    # A default that an application changed stays as it was written.
    kept = declared is not None and VALUE in declared.lifecycle.ignore_changes
    return entry.config != live.raw and not kept


def _is_lifecycle_outdated(inputs: PlanInputs, decision: ResourceDecision, entry: Entry) -> bool:
    """Check whether the guard, the secrecy, the dependencies or the address are outdated."""
    declared, address = inputs.declared(decision.address), decision.address
    guard = declared.lifecycle.prevent_destroy if declared else None
    return (
        (guard is not None and guard != entry.prevent_destroy)
        or _is_sensitive(inputs, decision) != entry.sensitive
        or inputs.topology.dependency_names(address)
        != _recorded_dependencies(inputs, decision, entry)
        or address in inputs.moved_from
    )


def _recorded_dependencies(
    inputs: PlanInputs, decision: ResourceDecision, entry: Entry
) -> list[str]:
    """Return the dependencies in state, whose names `moved` blocks may have changed since."""
    name = inputs.moved_from.get(decision.address, decision.address)
    return inputs.state.resources.get(name, entry).depends_on
