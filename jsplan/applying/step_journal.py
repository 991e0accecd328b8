"""Journal of the steps of one apply: the lines that begin and end each step.

A step ends well only if the server kept what it was sent (promise 2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.apply import StepStatus
from jsplan.documents.base import plain
from jsplan.documents.plan import Plan, Step
from jsplan.documents.state_parts import FormerStream
from jsplan.documents.step_kinds import VERIFY_OP, recorded_effect
from jsplan.errors import JsplanError, StateError
from jsplan.facts.live import LiveObject
from jsplan.planning.decide import table_of
from jsplan.planning.diff import differing_fields
from jsplan.planning.restore.interrupted import count_saved
from jsplan.resources.nested import source_keys
from jsplan.state import Entry, Journal, State
from jsplan.units import format_timestamp


class StepFailed(JsplanError):
    """One step failed. `status` is `unknown` when the call was sent and no answer came."""

    def __init__(self, message: str, status: StepStatus = "failed") -> None:
        super().__init__(message)
        self.status: StepStatus = status


def gone_error(address: Address, *, again: bool = False) -> StepFailed:
    """Return the error of an object that is not there any more, or not after it was written."""
    once_more = " again" if again else ""
    return StepFailed(f"{address} is gone{once_more}: another client deleted it during the apply")


class StepNotStarted(Exception):
    """A step was not sent: Ctrl-C came first, or its domain went offline."""


@dataclass
class StepJournal:
    """State and journal of one apply.

    `stop` is set by Ctrl-C. `state_failure` is the error after which state cannot be written: no
    further step begins.
    """

    plan: Plan
    backend: Journal
    state: State
    stop: asyncio.Event
    state_failure: StateError | None = field(init=False, default=None)
    _consumers: dict[str, list[Address]] | None = field(init=False, default=None)
    _checks: dict[str, Step] = field(init=False)
    _checks_after: dict[str, list[Step]] = field(init=False)

    def __post_init__(self) -> None:
        self._checks = {step.address: step for step in self.plan.steps if step.op == VERIFY_OP}
        self._checks_after = {}
        for check in self._checks.values():
            for other in check.depends_on:
                self._checks_after.setdefault(other, []).append(check)

    async def record(self, *changes: dict[str, Any], durable: bool = True) -> None:
        """Apply changes to state and journal them; with `durable` wait for the disk.

        Raises StateError.
        """
        self.backend.append(self.state, *changes)
        if durable:
            await self.backend.sync()

    async def begin(
        self, step: Step, live: LiveObject | None = None, uploads: Collection[str] = ()
    ) -> None:
        """Journal that the step begins. `live` is the object that the step changes in place.

        `uploads` are the ids of the chunks that the step writes and replaces.

        Raises StepNotStarted after Ctrl-C, StepFailed where the journal fails: nothing was sent.
        """
        await self._begin(self._begin_lines(step, live, uploads))

    async def begin_together(self, steps: Iterable[tuple[Step, LiveObject | None]]) -> None:
        """Journal in one write that these steps begin, each with the object that it changes.

        Raises what `begin` raises, for all of them.
        """
        await self._begin(line for step, live in steps for line in self._begin_lines(step, live))

    async def _begin(self, lines: Iterable[dict[str, Any]]) -> None:
        if self.stop.is_set():
            raise StepNotStarted
        try:
            await self.record(*lines, durable=False)
            await self.backend.flush()
        except StateError as error:
            raise self.begin_error(error) from None

    def _begin_lines(
        self, step: Step, live: LiveObject | None, uploads: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        begun: dict[str, Any] = {"id": step.id, "address": step.address, "op": step.op}
        begun |= {"expect": step.expect, "record": step.record}
        if uploads:
            begun["uploads"] = list(uploads)
        if step.op == "stream.restore" and step.request is not None:
            begun["saved"] = count_saved(step.request["payload"]["state"])
        for check in self.pending_checks(step.address):
            begun["check"] = check
        return [*self._earlier_deletion_lines(step), *self.seen_lines(step, live), {"begin": begun}]

    def check_lines(self, step: Step) -> list[dict[str, Any]]:
        """Return journal lines that begin the checks after a step: the next apply runs them."""
        pending = self.state.pending
        begun = {str(check["address"]): check for check in self.pending_checks(step.address)}
        for check in self._checks_after.get(step.id, ()):
            # A step of that stream that is pending keeps its check.
            if check.address == step.address or (
                pending.get(check.address, {}).get("op", VERIFY_OP) == VERIFY_OP
            ):
                begun[check.address] = check_record(check)
        return [{"begin": check} for name, check in begun.items() if pending.get(name) != check]

    def pending_checks(self, address: str) -> list[dict[str, Any]]:
        """Return the pending check of a stream, if the plan has it too or leaves it for later."""
        begun = self.state.pending.get(address, {})
        check = begun if begun.get("op") == VERIFY_OP else begun.get("check")
        wanted = address in self._checks or self.plan.mode == "refresh-only"
        return [check] if check is not None and wanted else []

    def seen_lines(self, step: Step, live: LiveObject | None) -> list[dict[str, Any]]:
        """Return journal lines that identify an object if its `created` changes later."""
        if live is None or not live.answered_at:
            return []
        names = (str(live.address), (step.record or {}).get("previous_address"))
        known = [
            name
            for name in names
            if name
            and (entry := self.state.resources.get(Address.parse(name)))
            and entry.created == live.created
        ]
        return [{"seen": {"address": name, "at": live.answered_at}} for name in known]

    def _earlier_deletion_lines(self, step: Step) -> list[dict[str, Any]]:
        """Return lines for an unrecorded deletion of an earlier apply, before this step recreates.

        The `begin` of that deletion would be lost otherwise.
        """
        earlier = self.state.pending.get(step.address, {})
        absent = step.precondition.get("fingerprint") == "absent"
        return self.deletion_lines(step) if absent and recorded_effect(earlier) == "delete" else []

    def deletion_lines(self, step: Step) -> list[dict[str, Any]]:
        """Return the journal lines of a deleted resource and of the consumers deleted with it."""
        lines = removal_lines(step)
        consumers = self._recorded_consumers()
        return lines + [
            {"drop": str(consumer)}
            for line in lines
            for consumer in consumers.get(line.get("drop", ""), ())
            if consumer in self.state.resources
        ]

    def _recorded_consumers(self) -> Mapping[str, Collection[Address]]:
        """Return by stream the consumers that state has, or that a step of the plan may add."""
        if self._consumers is None:
            self._consumers = {}
            steps = (Address.parse(step.address) for step in self.plan.steps)
            for address in dict.fromkeys((*self.state.resources, *steps)):
                if address.kind == "consumer":
                    self._consumers.setdefault(str(address.parent), []).append(address)
        return self._consumers

    def begin_error(self, error: StateError) -> StepFailed:
        """Record that no step may begin any more: the journal or the lock failed."""
        self.state_failure = error
        return StepFailed(f"{error}; nothing was written")

    def partial_update_lines(self, step: Step, live: LiveObject) -> list[dict[str, Any]]:
        """Return the journal lines of one of several update steps: its change is ours."""
        recorded = (step.params or {}).get("state_address", step.address)
        entry = self.state.resources.get(Address.parse(recorded))
        end = {"end": step.address}
        if step.kind.does != "update" or entry is None or entry.created != live.created:
            return [end]
        changed = entry.with_fields(step.expect or {}, live.config)
        return [{"put": {"address": recorded, "entry": plain(changed)}} | end]

    async def save_entry(self, step: Step, live: LiveObject, lost: Collection[str] = ()) -> None:
        """Put the object into state, and wait for the disk if the step has written to a server."""
        await self.record(*self.entry_lines(step, live, lost), durable=step.request is not None)

    def entry_lines(
        self, step: Step, live: LiveObject, lost: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the journal lines that put an object into state.

        Fields that the server did not keep (`lost`) count as not applied.
        """
        assert step.record is not None
        record = step.record
        declared = {n: value for n, value in record["declared"].items() if n not in lost}
        entry = Entry.of_record(
            record | {"declared": declared}, live.config, live.created, live.answered_at
        )
        last = int(live.state.get("last_seq") or 0)  # of a stream
        entry = replace(entry, applied_at=format_timestamp(), last_seq=last)
        entry = self._with_past(step, entry)
        put = {"put": {"address": step.address, "entry": plain(entry)}}
        replaced = {"replaced": record["replaced"]} if "replaced" in record else {}
        return [*_drop_previous_lines(step), put | replaced, *self.check_lines(step)]

    def _with_past(self, step: Step, entry: Entry) -> Entry:
        """Return the entry with what its stream was before, and the sources that it had.

        That is as state has it, or, once the stream has been transferred, as that began.
        """
        recorded = (step.record or {}).get("previous_address", step.address)
        before = self.state.resources.get(Address.parse(recorded))
        former = before.former if before is not None else []
        if before is None or before.created != entry.created:
            transfer = self.state.replacements.get(step.address, {})
            if "origin" not in transfer:
                return entry
            address, created = transfer["origin"], transfer["old"]["created"]
            before = self.state.resources.get(Address.parse(address))
            former = [*(before.former if before is not None else ())]
            former.append(FormerStream(address=address, created=created))
        left = {*before.left_sources, *source_keys(before.config)} if before is not None else set()
        return replace(entry, former=former, left_sources=sorted(left - source_keys(entry.config)))


def check_record(step: Step) -> dict[str, Any]:
    """Return what state keeps of a pending check."""
    found = {"id": step.id, "address": step.address, "op": step.op, "params": step.params}
    return found | {"expect": None, "record": None}


def _drop_previous_lines(step: Step) -> list[dict[str, Any]]:
    """Return the line that drops a resource under its name before a `moved` block."""
    previous = (step.record or {}).get("previous_address")
    return [{"drop": previous}] if previous else []


def closing_lines(step: Step, live: LiveObject | None) -> list[dict[str, Any]]:
    """Return the journal lines that end a step of an earlier apply; a missing object is dropped."""
    recorded = (step.params or {}).get("state_address", step.address)
    return [
        {"drop" if live is None else "end": address}
        for address in dict.fromkeys([step.address, recorded])
    ]


def removal_lines(step: Step) -> list[dict[str, Any]]:
    """Return the journal lines of a removed resource. Staging objects were never in state."""
    if step.object:
        return [{"end": step.address}]
    return [*_drop_previous_lines(step), {"drop": step.address}]


def unkept_fields(step: Step, live: LiveObject) -> list[str]:
    """List the fields whose live value differs from the step's expectation."""
    return differing_fields(table_of(live.address), live.compact, step.expect or {})


def describe_unkept(step: Step, live: LiveObject, lost: Iterable[str]) -> str:
    """Describe the lost fields: what was requested and what the server has."""
    expect = step.expect or {}
    return ", ".join(
        f"{name} (asked for {_format_value(expect[name])}, "
        f"has {_format_value(live.compact.get(name))})"
        for name in lost
    )


def require_kept(step: Step, live: LiveObject, lost: Collection[str]) -> None:
    """Raise StepFailed that names the lost fields, if there are any."""
    if lost:
        unkept = describe_unkept(step, live, lost)
        raise StepFailed(f"{live.address}: the server did not keep {unkept}")


def _format_value(value: object) -> str:
    return "the default" if value is None else str(value)
