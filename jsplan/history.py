"""The history in state: written at the begin and end of an apply, and read with its changes.

An entry comes from the plan and from state, which have no secrets. Errors of servers are redacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from jsplan import __version__
from jsplan.address import Address
from jsplan.context import Context
from jsplan.diagnostics import did_you_mean
from jsplan.documents.apply import ApplyResult, StepResult
from jsplan.documents.base import digest, plain
from jsplan.documents.plan import Plan, ResourceChange
from jsplan.errors import ExitCode, JsplanError
from jsplan.planning.decide import table_of
from jsplan.planning.diff import field_changes, with_bucket_names
from jsplan.planning.revert.selection import permanent_cost
from jsplan.resources.server_features import NEWEST_LEVEL
from jsplan.secrets import conceal
from jsplan.state import Entry, LockInfo, State
from jsplan.state.history import MAX_ENTRIES, JsonObject, pack_changes, unpack_changes
from jsplan.units import format_timestamp

_OPERATIONS: Final = {
    "destroy": "destroy",
    "refresh-only": "refresh",
    "restore": "restore",
    "revert": "revert",
}
#: Outcomes of a change, worst first: the worst one is reported for a resource with several steps.
_STATUS_ORDER: Final = ("failed", "unknown", "started", "skipped", "done")


def operation_name(plan: Plan) -> str:
    """Return the name of the operation in the history."""
    return _OPERATIONS.get(plan.mode, "import" if plan.options.get("import") else "apply")


class HistoryWriter(Struct):
    """The entry of one session. `before` are the resources in state at its begin."""

    context: Context
    plan: Plan
    entry: JsonObject
    before: Mapping[Address, Entry]
    changes: list[JsonObject] = field(default_factory=list)

    @classmethod
    def record_begin(cls, context: Context, plan: Plan) -> HistoryWriter | None:
        """Record the plan at the begin. None for a plan without changes, which gets no entry."""
        if not plan.has_changes:
            return None
        entry = _build_entry(context.state, operation_name(plan)) | {
            "plan": {"id": plan.id, "sha256": plan.sha256 or plan.compute_sha256()},
            "summary": plan.summary,
            "result": "started",
        }
        backfills = [each["name"] for each in plan.backfills]
        entry |= {"backfills": backfills} if backfills else {}
        entry |= {"reverts": plan.options["revert"]["id"]} if "revert" in plan.options else {}
        writer = cls(context, plan, entry, dict(context.state.resources))
        writer.changes = [writer._start_change(change) for change in _changed_resources(plan)]
        writer._write()
        return writer

    def record_end(self, results: Iterable[StepResult], result: ApplyResult) -> None:
        """Record the outcome of each resource and of the apply. Raises StateError."""
        ended = list(results)
        by_address: dict[str, list[StepResult]] = {}
        for each in ended:
            by_address.setdefault(each.address, []).append(each)
        for item in self.changes:
            self._finish_change(item, by_address)
        self.entry |= {
            "ended": format_timestamp(),
            "result": _determine_outcome(self.plan, ended, result),
            "summary": result.summary,
        }
        self.entry |= {"backup": result.backup["folder"]} if result.backup else {}
        self._write()

    def _write(self) -> None:
        self.context.backend.append(
            self.context.state, {"history": self.entry | {"changes": pack_changes(self.changes)}}
        )

    def _start_change(self, change: ResourceChange) -> JsonObject:
        address = Address.parse(change.address)
        known = self.before.get(
            Address.parse(change.previous_address) if change.previous_address else address
        )
        item: JsonObject = {
            "address": change.address,
            "actions": change.change.actions,
            "reason": change.action_reason,
            "status": "started",
        }
        item |= {"importing": True} if change.change.importing else {}
        item |= {"moved_from": change.previous_address} if change.previous_address else {}
        for side in ("relocated_from", "relocated_to"):
            item |= {side: other} if (other := getattr(change, side)) else {}
        item["before"] = change.change.before
        item["entry"] = _entry_before(known, change.change.before)
        item["after"] = _after_values(address, change.change.before, change.change.after, None)
        costs = [cost for hazard in change.hazards if (cost := permanent_cost(hazard)) is not None]
        return item | ({"costs": costs} if costs else {})

    def _finish_change(self, item: JsonObject, results: Mapping[str, list[StepResult]]) -> None:
        address = Address.parse(item["address"])
        own_results = results.get(item["address"]) or results.get(str(address.parent), [])
        found = {result.status for result in own_results}
        item["status"] = next((status for status in _STATUS_ORDER if status in found), "skipped")
        if error := next(
            (r.error for r in own_results if r.status in ("failed", "unknown") and r.error), None
        ):
            item["error"] = conceal(error)
        now = self.context.state.resources.get(address)
        if item["status"] == "done" and now is not None and now is not self.before.get(address):
            item["after"] = _after_values(address, item["before"], now.config, now.created)


def build_state_entry(state: State, operation: str, changes: list[JsonObject]) -> dict[str, Any]:
    """Build the journal line of a session without steps; `changes` are `{address, actions}`."""
    entry = _build_entry(state, operation) | {
        "ended": format_timestamp(),
        "result": "done",
        "plan": None,
        "summary": {"state": len(changes)},
    }
    return {
        "history": entry
        | {"changes": pack_changes([item | {"status": "done"} for item in changes])}
    }


def _build_entry(state: State, operation: str) -> JsonObject:
    here = LockInfo.for_this_process(operation)
    return {
        "id": state.serial,
        "at": here.since,
        "ended": None,
        "who": here.who,
        "host": here.host,
        "operation": operation,
        "environment": state.environment,
        "jsplan_version": __version__,
    }


def _changed_resources(plan: Plan) -> list[ResourceChange]:
    """Return the changes of a plan; for refresh-only those that state takes note of."""
    if plan.mode == "refresh-only":
        noted = {step.address for step in plan.steps}
        return [change for change in plan.resource_changes if change.address in noted]
    return [
        c
        for c in plan.resource_changes
        if c.change.actions != ["no-op"] or c.change.importing or c.previous_address
    ]


def _entry_before(entry: Entry | None, before: dict[str, Any] | None) -> JsonObject | None:
    """Return the entry in state, without its configuration if that equals `before`."""
    if entry is None:
        return None
    raw = plain(entry)
    return {name: value for name, value in raw.items() if name != "config" or value != before}


def _after_values(
    address: Address,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    created: str | None,
) -> JsonObject | None:
    """Return the values after a change, or None if the resource is deleted.

    For an update `values` has the changed fields in compact form; for a creation there is a hash of
    all fields. `created` is None while only planned.
    """
    if after is None:
        return None
    if before == after or (before is None and created is None):
        return {"created": created, "sha256": None, "values": {}}
    new = table_of(address).compact(after)
    if before is None:
        return {"created": created, "sha256": digest(new).removeprefix("sha256:"), "values": {}}
    old = table_of(address).compact(before)
    values = {
        name: new.get(name) for name in sorted({*old, *new}) if old.get(name) != new.get(name)
    }
    return {"created": created, "sha256": None, "values": values}


def _determine_outcome(plan: Plan, results: list[StepResult], result: ApplyResult) -> str:
    """Return `done`, `partial`, `interrupted`, or `failed` if nothing was done."""
    done = [r for r in results if r.status == "done"]
    if result.exit_code == int(ExitCode.INTERRUPTED):
        return "interrupted"
    if len(done) == len(plan.steps):
        return "done"
    return "partial" if done else "failed"


def find_entry(state: State, number: int) -> JsonObject:
    """Return the entry with this id. Raises JsplanError with the existing ids."""
    for entry in state.history:
        if entry["id"] == number:
            return entry
    known = [str(entry["id"]) for entry in state.history]
    if not known:
        raise JsplanError(
            f"there is no entry for an apply {number}: the history is empty",
            hint="It begins with the next apply.",
        )
    near = did_you_mean(str(number), known) or f" It has {known[0]} to {known[-1]}."
    raise JsplanError(
        f"the history has no entry {number}.{near}",
        hint=f"See: jsplan history. The newest {MAX_ENTRIES} are kept.",
    )


def without_changes(entry: JsonObject) -> JsonObject:
    """Return an entry for the list."""
    return {name: value for name, value in entry.items() if name != "changes"}


def with_changes(entry: JsonObject) -> JsonObject:
    """Return an entry with its changes by field; null if state has only counts."""
    changes = unpack_changes(entry)
    return entry | {
        "changes": None if changes is None else [_build_change(item) for item in changes]
    }


def _build_change(item: JsonObject) -> JsonObject:
    """Build one change with the differences instead of whole configurations."""
    identity = {
        name: item[name]
        for name in ("address", "actions", "importing", "moved_from")
        if name in item
    }
    return identity | {
        "status": item.get("status", "done"),
        "fields": _field_changes(item),
        "costs": item.get("costs", []),
        "error": item.get("error"),
    }


def _field_changes(item: JsonObject) -> list[dict[str, Any]]:
    values, address = (item.get("after") or {}).get("values") or {}, Address.parse(item["address"])
    if not values or not item.get("before"):
        return []
    table = table_of(address)
    before = table.compact(item["before"])
    after = {name: value for name, value in (before | values).items() if value is not None}
    return [
        plain(change)
        for change in with_bucket_names(address, field_changes(table, before, after, NEWEST_LEVEL))
    ]
