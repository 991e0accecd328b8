"""Writes an apply into the history as it begins and as it ends. What is kept is said by `state.history`, what can be undone by `planning`.

Everything in an entry comes from the plan and from state, neither of which has a secret; errors of servers are cleaned of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jsplan import __version__
from jsplan.address import Address
from jsplan.documents.apply import ApplyResult, StepResult
from jsplan.documents.base import digest
from jsplan.documents.plan import Plan, ResourceChange
from jsplan.errors import ExitCode
from jsplan.planning.undoing.costs import costs_of
from jsplan.planning.verdict import table_of
from jsplan.secrets import conceal
from jsplan.state import Entry, LockInfo, State
from jsplan.state.history import Item, packed
from jsplan.units import stamp
from jsplan.workflows.world import World

_OPERATIONS: Final = {"destroy": "destroy", "refresh-only": "refresh", "restore": "restore", "revert": "revert"}
#: How a change ended, the worst first: what is said of a resource with several steps.
_WORST: Final = ("failed", "unknown", "started", "skipped", "done")


def operation_of(plan: Plan) -> str:
    """The word for what is done, as the history has it."""
    return _OPERATIONS.get(plan.mode, "import" if plan.options.get("import") else "apply")


@dataclass
class Recording:
    """The entry of one writing session. `before` is what state had when it began."""

    world: World
    plan: Plan
    entry: Item
    before: Mapping[Address, Entry]
    changes: list[Item] = field(default_factory=list)

    @classmethod
    def begin(cls, world: World, plan: Plan) -> Recording | None:
        """Write down what is about to happen. None for a session that only brings state up to date, without a word."""
        if not plan.has_changes:
            return None
        entry = _head(world.state, operation_of(plan)) | {
            "plan": {"id": plan.id, "sha256": plan.sha256 or plan.to_json()["sha256"]}, "summary": plan.summary, "result": "started",
        }  # fmt: skip
        copies = [one["name"] for one in plan.copies]
        entry |= {"backfills": copies} if copies else {}
        entry |= {"reverts": plan.options["revert"]["id"]} if "revert" in plan.options else {}
        recording = cls(world, plan, entry, dict(world.state.resources))
        recording.changes = [recording._begun(change) for change in _changing(plan)]
        recording._write()
        return recording

    def end(self, results: Iterable[StepResult], result: ApplyResult) -> None:
        """Write down how it ended: of each resource, and of all. Raises StateError."""
        ended = list(results)
        for item in self.changes:
            self._finish(item, ended)
        self.entry |= {"ended": stamp(), "result": _outcome(self.plan, ended, result), "summary": result.summary}
        self.entry |= {"backup": result.backup["folder"]} if result.backup else {}
        self._write()

    def _write(self) -> None:
        self.world.backend.append(self.world.state, {"history": self.entry | {"changes": packed(self.changes)}})

    def _begun(self, change: ResourceChange) -> Item:
        address = Address.parse(change.address)
        known = self.before.get(Address.parse(change.previous_address) if change.previous_address else address)
        item: Item = {"address": change.address, "actions": change.change.actions, "reason": change.action_reason, "status": "started"}
        item |= {"importing": True} if change.change.importing else {}
        item |= {"moved_from": change.previous_address} if change.previous_address else {}
        item["before"] = change.change.before
        item["entry"] = _without_config(known, change.change.before)
        item["after"] = _after(address, change.change.before, change.change.after, None)
        costs = [cost for hazard in change.hazards if (cost := costs_of(hazard)) is not None]
        return item | ({"costs": costs} if costs else {})

    def _finish(self, item: Item, results: list[StepResult]) -> None:
        address = Address.parse(item["address"])
        mine = [r for r in results if r.address == item["address"]] or [r for r in results if r.address == str(address.parent)]
        item["status"] = next((status for status in _WORST if any(r.status == status for r in mine)), "skipped")
        if error := next((r.error for r in mine if r.status in ("failed", "unknown") and r.error), None):
            item["error"] = conceal(error)
        now = self.world.state.resources.get(address)
        if item["status"] == "done" and now is not None and now is not self.before.get(address):
            item["after"] = _after(address, item["before"], now.config, now.created)


def record_by_hand(state: State, operation: str, changes: list[Item]) -> dict[str, Any]:
    """The journal line of a session that changes state alone; `changes` are `{address, actions}`."""
    entry = _head(state, operation) | {"ended": stamp(), "result": "done", "plan": None, "summary": {"state": len(changes)}}
    return {"history": entry | {"changes": packed([item | {"status": "done"} for item in changes])}}


def _head(state: State, operation: str) -> Item:
    here = LockInfo.here(operation)
    return {
        "id": state.serial, "at": here.since, "ended": None, "who": here.who, "host": here.host, "operation": operation,
        "environment": state.environment, "jsplan_version": __version__,
    }  # fmt: skip


def _changing(plan: Plan) -> list[ResourceChange]:
    """What a plan shows as changing; of one that only reads, what it takes note of."""
    if plan.mode == "refresh-only":
        noted = {step.address for step in plan.steps}
        return [change for change in plan.resource_changes if change.address in noted]
    return [c for c in plan.resource_changes if c.change.actions != ["no-op"] or c.change.importing or c.previous_address]


def _without_config(entry: Entry | None, before: dict[str, Any] | None) -> Item | None:
    """What state had, without the configuration where that is `before` already."""
    if entry is None:
        return None
    raw = entry.to_json()
    return {name: value for name, value in raw.items() if name != "config" or value != before}


def _after(address: Address, before: dict[str, Any] | None, after: dict[str, Any] | None, created: str | None) -> Item | None:
    """What is left behind: `values` of the fields that changed, in compact form, or of what was made a hash over all. None: nothing.

    `created` None: as it was planned, and nobody has seen it yet.
    """
    if after is None:
        return None
    if before is None and created is None:
        return {"created": None, "sha256": None, "values": {}}
    new = table_of(address).compact(after)
    if before is None:
        return {"created": created, "sha256": digest(new).removeprefix("sha256:"), "values": {}}
    old = table_of(address).compact(before)
    values = {name: new.get(name) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}
    return {"created": created, "sha256": None, "values": values}


def _outcome(plan: Plan, results: list[StepResult], result: ApplyResult) -> str:
    """`done`, `partial`, `interrupted`, or `failed` where nothing was done at all."""
    done = [r for r in results if r.status == "done"]
    if result.exit_code == int(ExitCode.INTERRUPTED):
        return "interrupted"
    if len(done) == len(plan.steps):
        return "done"
    return "partial" if done else "failed"
