"""The entries of KV buckets in a plan: changes and steps, after those of their buckets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from jsplan.address import Address, names_content
from jsplan.documents.parts import Deferred
from jsplan.documents.plan import Plan, Step
from jsplan.documents.plan_types import Op
from jsplan.planning.contents.changes import build_change, detect_entry_drift, shown_text
from jsplan.planning.contents.decide import (
    Decisions,
    announce_times,
    check_entries,
    decide_entries,
    deferral,
)
from jsplan.planning.decide import REPLACEMENT_INTERRUPTED
from jsplan.planning.forgotten_entries import build_forgotten_changes, build_forgotten_steps
from jsplan.planning.guards import is_refusal
from jsplan.planning.hazard_permissions import check_permissions
from jsplan.planning.model import UNTOUCHED, PlanInputs, ResourceDecision
from jsplan.planning.order import partial_update_params
from jsplan.planning.orphans import add_closing_changes
from jsplan.planning.relocation.entries import deferral_reasons
from jsplan.planning.state_records import (
    build_state_record,
    is_lifecycle_outdated,
    previous_address,
    provenance_of,
)
from jsplan.resources.kv_entry import VALUE

_CREATE: Final[Mapping[str, Op]] = {
    "kv_entry": "kv_entry.create",
    "object": "object.create",
    "schedule": "schedule.create",
}
_UPDATE: Final[Mapping[str, Op]] = {
    "kv_entry": "kv_entry.update",
    "object": "object.update",
    "schedule": "schedule.update",
}
_DELETE: Final[Mapping[str, Op]] = {
    "kv_entry": "kv_entry.delete",
    "object": "object.delete",
    "schedule": "schedule.delete",
}


def add_entries(
    plan: Plan,
    inputs: PlanInputs,
    buckets: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
) -> None:
    """Add the entries to a plan of everything else, in place.

    `inputs` hold only entries, with the live values; `buckets` and `decisions` are those of the
    plan.
    """
    late = {str(bucket): why for bucket, why in deferral_reasons(buckets).items()}
    waiting = {
        a: why
        for a in sorted(inputs.selected)
        if (why := deferral(inputs, buckets, a) or late.get(str(a.parent), ""))
    }
    entries = decide_entries(inputs, buckets, decisions, sorted(inputs.selected - waiting.keys()))
    plan.deferred += [Deferred(str(address), why) for address, why in waiting.items()]
    plan.diagnostics += [
        *check_entries(inputs, entries, buckets, dict(decisions)),
        *_check_flags(inputs),
        *announce_times(inputs, entries),
    ]
    changes = [*plan.resource_changes, *build_forgotten_changes(inputs)]
    keyed = [(Address.parse(change.address), change) for change in changes]
    keyed += [(address, build_change(inputs, found)) for address, found in entries.items()]
    plan.resource_changes = [change for _, change in sorted(keyed, key=itemgetter(0))]
    drift = (detect_entry_drift(inputs, a) for a in sorted(inputs.selected - waiting.keys()))
    plan.resource_drift += [found for found in drift if found is not None]
    wrong = any(d.severity == "error" and not is_refusal(d) for d in plan.diagnostics)
    plan.errored = plan.errored or wrong
    if plan.errored:
        plan.steps, plan.backfills = [], []
    else:
        drafter = _Drafter(inputs, decisions, plan)
        drafter.draft_all(entries)
        plan.steps += build_forgotten_steps(inputs, len(plan.steps) + 1)
        plan.resource_changes = add_closing_changes(plan)
    plan.complete = plan.complete and not plan.deferred
    plan.applyable = (
        bool(plan.steps) and not plan.errored and not any(is_refusal(d) for d in plan.diagnostics)
    )


def _check_flags(inputs: PlanInputs) -> Iterable[Any]:
    """Check the flags that name entries, of which only this side knows the live ones."""
    flags = [f for f in inputs.options.allow_hazards if names_content(f.partition(":")[2])]
    known = {*inputs.workspace.resources, *inputs.state.resources, *inputs.live.objects}
    offline = [key for key, facts in inputs.live.domains.items() if not facts.reachable]
    return check_permissions(flags, known, offline)


@dataclass(slots=True)
class _Drafter:
    """Appends the steps of entries to those of a plan."""

    inputs: PlanInputs
    decisions: Mapping[Address, ResourceDecision]
    plan: Plan
    _bucket_steps: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for step in self.plan.steps:
            self._bucket_steps.setdefault(step.address, []).append(step.id)

    def draft_all(self, entries: Decisions) -> None:
        """Append the steps of all decisions, and close those of an interrupted apply."""
        for decision in entries.values():
            self._draft(decision)
        self._draft_closing({Address.parse(step.address) for step in self.plan.steps})

    def _draft(self, decision: ResourceDecision) -> None:
        kind = decision.address.kind
        match decision.actions:
            case ["create"]:
                self._add_write(decision, _CREATE[kind], "create")
            case ["delete", "create"]:
                self._add_write(decision, _CREATE[kind], "create")
            case ["update"]:
                self._add_write(decision, _UPDATE[kind], "update")
            case ["delete"] if decision.deleted_with is None:
                self._add_delete(decision)
            case ["delete"] | ["forget"]:
                record = previous_address(self.inputs, decision.address)
                # What goes with its bucket must be what the plan showed.
                before = self._precondition(decision) if decision.deletes else {}
                self._add(decision.address, "state.forget", "forget", before, record=record)
            case _ if decision.adopts and not self.inputs.options.refresh_only:
                self._add_state(decision, "state.import", "import", "imported")
            case _ if self._is_state_outdated(decision):
                leftovers = self._leftovers(decision)
                op: Op = "object.clean" if leftovers else "state.update"
                self._add_state(decision, op, "record", provenance_of(decision), leftovers or None)

    def _add_write(self, decision: ResourceDecision, op: Op, verb: str) -> None:
        assert decision.after is not None
        text = shown_text(self.inputs, decision.address)
        replaced = decision.deleted_with is not None
        before = decision.live.raw[VALUE] if decision.live is not None and not replaced else ""
        provenance = "imported" if decision.adopts else provenance_of(decision)
        self._add(
            decision.address,
            op,
            verb,
            self._precondition(decision),
            expect=dict(decision.after),
            record=self._record(decision, "created" if verb == "create" else provenance),
            params={"before": before}
            | ({"text": text} if text is not None else {})
            | self._leftovers(decision),
        )

    def _add_delete(self, decision: ResourceDecision) -> None:
        assert decision.live is not None
        self._add(
            decision.address,
            _DELETE[decision.address.kind],
            "delete",
            self._precondition(decision),
            record=previous_address(self.inputs, decision.address),
            params={"before": decision.live.raw[VALUE]} | self._leftovers(decision),
        )

    def _leftovers(self, decision: ResourceDecision) -> dict[str, Any]:
        """Return the uploads that an interrupted apply began or replaced, but the live one."""
        begun = self.inputs.interrupted.steps.get(decision.address, {})
        live = decision.live.state.get("upload") if decision.live is not None else None
        found = [upload for upload in begun.get("uploads", ()) if upload != live]
        return {"leftovers": found} if found else {}

    def _add_state(
        self,
        decision: ResourceDecision,
        op: Op,
        verb: str,
        provenance: str,
        params: dict[str, Any] | None = None,
    ) -> None:
        self._add(
            decision.address,
            op,
            verb,
            self._precondition(decision),
            record=self._record(decision, provenance),
            params=(params or {}) | self._expected_value(decision) or None,
        )

    def _expected_value(self, decision: ResourceDecision) -> dict[str, Any]:
        """Return the value that the key must have, where its fingerprint is not known yet."""
        if "fingerprint" in self._precondition(decision) or decision.live is None:
            return {}
        return {"before": decision.live.raw[VALUE]}

    def _precondition(self, decision: ResourceDecision) -> dict[str, Any]:
        """Return the fingerprint; where an earlier step gives it another one, that before it.

        It has none where its bucket was relocated, or is in the middle of a replacement.
        """
        bucket, live = self._bucket(decision.address), decision.live
        now = live.fingerprint if live is not None else "absent"
        if bucket is None or not (bucket.deletes or bucket.relocation is not None):
            return {"fingerprint": now}
        is_interrupted = bucket.reason == REPLACEMENT_INTERRUPTED
        return {} if bucket.relocation is not None or is_interrupted else {"before_apply": now}

    def _bucket(self, address: Address) -> ResourceDecision | None:
        for name in (*self.inputs.topology.dependencies.get(address, ()), address.parent):
            if name in self.decisions:
                return self.decisions[name]
        return None

    def _record(self, decision: ResourceDecision, provenance: str) -> dict[str, Any]:
        record = build_state_record(self.inputs, decision, provenance)
        declared = self.inputs.workspace.resources.get(decision.address)
        if self.inputs.options.refresh_only:
            secret = decision.entry is not None and decision.entry.sensitive
        else:
            secret = declared is not None and declared.sensitive
        return record | ({"sensitive": True} if secret else {})

    def _is_state_outdated(self, decision: ResourceDecision) -> bool:
        """Check whether the state must change although the key is as wanted."""
        address, entry, live = decision.address, decision.entry, decision.live
        if entry is None or live is None:
            return False
        declared = self.inputs.workspace.resources.get(address)
        if self.inputs.options.refresh_only:
            return live.raw != entry.config
        if decision.reason == UNTOUCHED and not is_lifecycle_outdated(self.inputs, decision, entry):
            hidden = declared is not None and declared.sensitive
            return hidden != entry.sensitive or address in self.inputs.interrupted.recovered
        # A default that an application changed stays as it was written.
        kept = declared is not None and VALUE in declared.lifecycle.ignore_changes
        remembered = {
            "declared": entry.declared,
            "origin": entry.origin,
            "depends_on": entry.depends_on,
            "prevent_destroy": entry.prevent_destroy,
        } | ({"sensitive": True} if entry.sensitive else {})
        return (
            address in self.inputs.interrupted.recovered
            or self._record(decision, entry.origin) != remembered
            or (live.raw != entry.config and not kept)
        )

    def _draft_closing(self, drafted: Collection[Address]) -> None:
        """Close the steps of an interrupted apply that nothing in this plan resumes."""
        work = self.inputs.interrupted
        open_steps = (work.steps.keys() & self.inputs.selected) | work.recovered_deletions
        for address in sorted(open_steps - set(drafted)):
            if not self.inputs.live.is_reachable(address.domain):
                continue
            live = self.inputs.live.get(address)
            fingerprint = live.fingerprint if live is not None else "absent"
            leftovers = self._leftovers(ResourceDecision(address, ["no-op"], "", live))
            self._add(
                address,
                "object.clean" if leftovers else "state.update",
                "record",
                {"fingerprint": fingerprint},
                params=leftovers or partial_update_params(self.inputs, address),
            )

    def _add(
        self,
        address: Address,
        op: Op,
        verb: str,
        precondition: dict[str, Any],
        *,
        expect: dict[str, Any] | None = None,
        record: dict[str, Any] | None = None,
        params: dict[str, Any] | None = None,
    ) -> None:
        names = self.inputs.topology.dependency_names(address)
        waits = [
            step
            for name in sorted({*names, str(address.parent)})
            for step in self._bucket_steps.get(name, ())
        ]
        bucket, _, key = address.name.partition("/")
        what = "key" if address.kind == "kv_entry" else address.kind
        parent = "stream" if address.kind == "schedule" else "bucket"
        self.plan.steps.append(
            Step(
                id=f"s{len(self.plan.steps) + 1}",
                address=str(address),
                op=op,
                title=f"{verb} {what} {key} of {parent} {bucket} in {address.domain}",
                request=None,
                precondition=precondition,
                depends_on=waits,
                expect=expect,
                record=record,
                params=params,
            )
        )
