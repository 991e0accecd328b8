"""What a step needs to be done: its precondition, its call, the read-back, the journal. When it runs is left to `executor`.

What the calls mean is said by the plan: nothing here knows a JetStream rule.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import Address
from jsplan.applying.preconditions import other_stream, outgrown
from jsplan.applying.readback import describe, not_kept
from jsplan.applying.remeasure import Deletions
from jsplan.documents.apply import StepStatus
from jsplan.documents.plan import Plan, Step
from jsplan.errors import (
    OFFLINE,
    ApiError,
    ApiTimeoutError,
    JsplanError,
    NoRespondersError,
    NotPermittedError,
    ServerRefusedError,
    StateError,
)
from jsplan.facts.live import LiveObject, retention_of
from jsplan.facts.survey import read_object
from jsplan.jetstream import DomainApi
from jsplan.state import Entry, Journal, State
from jsplan.units import stamp

#: Writes may take longer than reads: a restore or a large trim. Seconds.
WRITE_TIMEOUT = 30.0
#: How long a step waits for a cluster that is moving or scaling the stream. Seconds.
SETTLE_TIMEOUT = 600.0


class StepFailed(JsplanError):
    """One step could not be done; `status` is `failed`, or `unknown` when the call was sent and no answer came."""

    def __init__(self, message: str, status: StepStatus = "failed") -> None:
        super().__init__(message)
        self.status: StepStatus = status


#: Does something right before a step writes, and says whether it did. What it raises keeps the step from being done.
BeforeWrite = Callable[[Step], Awaitable[bool]]


class NotBegun(Exception):
    """A step was not sent after all: Ctrl-C came while its precondition was read, or its domain went away."""


@dataclass
class Work:
    """What the steps of one apply share.

    `apis` has the API of each domain that the plan touches and that is reachable now. `stop` is set by Ctrl-C. `before_write` is
    asked when a step's precondition holds, right before it writes. `lost`
    are domains that stopped answering meanwhile, with what they said last: each is waited for once, not once per step.
    `failure` is why state could not be written any more: then nothing more begins either. `prints` are the fingerprints that steps
    left behind, `streams` what they made of streams, as consumers expect it; `successors` are fingerprints of objects that went away with
    their stream and came back with it, by what they were before.
    """

    plan: Plan
    apis: Mapping[str, DomainApi]
    backend: Journal
    state: State
    stop: asyncio.Event
    before_write: BeforeWrite | None = None
    lost: dict[str, str] = field(default_factory=dict)
    failure: StateError | None = None
    prints: dict[str, str] = field(default_factory=dict)
    streams: dict[Address, dict[str, str]] = field(default_factory=dict)
    successors: dict[str, str] = field(default_factory=dict)
    deletions: Deletions = field(init=False)

    def __post_init__(self) -> None:
        self.deletions = Deletions(self.plan, self.apis, self.state.replacements)

    def api(self, step: Step) -> DomainApi:
        """The API of the domain that the step is sent to."""
        return self.apis[step.domain]

    async def record(self, *changes: dict[str, Any], durable: bool = True) -> None:
        """Carry out changes on state and journal them; with `durable` only come back when they are on the disk. Raises StateError."""
        self.backend.append(self.state, *changes)
        if durable:
            await self.backend.sync()

    async def begin(self, step: Step, live: LiveObject | None = None) -> None:
        """Journal that the step begins. Raises NotBegun after Ctrl-C, StepFailed where it cannot be journaled: nothing was sent.

        `live` is the object that the step changes in place.
        """
        if self.stop.is_set():
            raise NotBegun
        begun = {"id": step.id, "address": step.address, "op": step.op, "expect": step.expect, "record": step.record}
        try:
            await self.record(*self._deleted_before(step), *self.seen(step, live), {"begin": begun}, durable=False)
            await self.backend.flush()
        except StateError as error:
            raise self._cannot_begin(error) from None

    def seen(self, step: Step, live: LiveObject | None) -> list[dict[str, Any]]:
        """The journal line by which an object is known again although its server will report another `created` for it."""
        if live is None or not live.seen:
            return []
        names = (str(live.address), (step.record or {}).get("previous_address"))
        known = [
            name for name in names if name and (entry := self.state.resources.get(Address.parse(name))) and entry.created == live.created
        ]
        return [{"seen": {"address": name, "at": live.seen}} for name in known]

    def _deleted_before(self, step: Step) -> list[dict[str, Any]]:
        """What an earlier apply had deleted without recording it, where this step begins to make it again: its `begin` would be lost."""
        earlier = self.state.pending.get(step.address, {})
        absent = step.precondition.get("fingerprint") == "absent"
        return self.deleted(step) if absent and earlier.get("op", "").endswith(".delete") else []

    def deleted(self, step: Step) -> list[dict[str, Any]]:
        """The journal lines of a resource that was deleted, and of the consumers that went with it."""
        lines = gone(step)
        streams = {line["drop"] for line in lines if "drop" in line}
        return lines + [{"drop": str(a)} for a in self.state.resources if a.parent is not None and str(a.parent) in streams]

    def _time_to_write(self) -> float:
        """How many seconds one write may take under the lock. Raises StepFailed where the lock may be lost."""
        try:
            return self.backend.may_write(WRITE_TIMEOUT)
        except StateError as error:
            raise self._cannot_begin(error) from None

    def _cannot_begin(self, error: StateError) -> StepFailed:
        """Without a journal, or without the lock, neither this step nor another one begins."""
        self.failure = error
        return StepFailed(f"{error}; nothing was written")

    async def read(self, address: Address) -> LiveObject | None:
        """The object as it is now. A domain that stopped answering is remembered. Raises NotBegun for that."""
        try:
            return await read_object(self.apis[address.domain], address)
        except OFFLINE as error:
            self.lost.setdefault(address.domain, str(error))
            raise NotBegun from None

    async def check(self, step: Step) -> LiveObject | None:
        """The precondition, once more, just before the write (promise 2). Raises StepFailed where it does not hold any more.

        What `before_write` does in between takes its time, so the precondition is looked at again after it.
        """
        live = await self._holds(step)
        if self.before_write is not None and await self.before_write(step):
            live = await self._holds(step)
        return live

    async def _holds(self, step: Step) -> LiveObject | None:
        address = step.touches
        await self._settled(step)
        live = await self.read(address)
        try:
            more = outgrown(step, live) or await self.deletions.more_than_planned(step, live)
        except OFFLINE as error:
            self.lost.setdefault(address.domain, str(error))
            raise NotBegun from None
        wanted = step.precondition.get("fingerprint") or self.prints.get(step.precondition.get("after_step", ""))
        wanted = self.successors.get(wanted or "", wanted)
        found = live.fingerprint if live else "absent"
        if wanted is not None and found != wanted:
            raise StepFailed(f"{address} was changed by somebody else since it was planned; nothing was written")
        await self._parent_holds(step)
        if more is not None:
            raise StepFailed(f"{address} {more}; nothing was written")
        return live

    async def _parent_holds(self, step: Step) -> None:
        """The stream of a consumer, which is as planned, or as an earlier step left it. Raises StepFailed where it is not."""
        parent = step.touches.parent
        expected = self.streams.get(parent, step.precondition.get("parent")) if parent is not None else None
        if parent is not None and expected is not None and (why := other_stream(expected, await self.read(parent))) is not None:
            raise StepFailed(f"{parent} {why}, since {step.address} was planned; nothing was written")

    def left(self, step: Step, live: LiveObject) -> None:
        """Remember what a step made of an object, for those that go on from there."""
        self.prints[step.id] = live.fingerprint
        if live.address.parent is None:
            self.streams[live.address] = {"created": live.created, "retention": retention_of(live.compact)}

    async def _settled(self, step: Step) -> None:
        """Wait, where the step asks for it, until a cluster has done with a stream what it was told before."""
        stream, end, pause = step.precondition.get("wait_until_stable"), time.monotonic() + SETTLE_TIMEOUT, 0.05
        while stream and (live := await self.read(Address.parse(stream))) is not None and not live.settled:
            if self.stop.is_set():
                raise NotBegun
            if time.monotonic() > end:
                raise StepFailed(f"{stream} is still being moved or scaled after {SETTLE_TIMEOUT:.0f}s; the next plan goes on from there")
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 1.5)

    async def call(self, step: Step) -> None:
        """Send the step's one request. Raises ApiError where it was refused, StepFailed where it may not have arrived."""
        assert step.request is not None
        timeout = self._time_to_write()
        try:
            await self._answered(self.api(step), step.request["api"], step.request["payload"], timeout)
        except (ServerRefusedError, NotPermittedError):
            await self.record({"end": step.address}, durable=False)
            raise
        except NoRespondersError as error:
            await self.record({"end": step.address}, durable=False)
            raise StepFailed(f"{error}; nothing was written") from None
        except ApiError as error:
            if not await self._arrived(step):
                raise StepFailed(f"{error}; whether it was carried out is not known, the next plan will tell", "unknown") from None

    async def send(self, step: Step, verb: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        """One of several requests of a step; what the journal has by then must be enough to go on.

        Raises ServerRefusedError and NotPermittedError, and StepFailed where no answer came or the lock may be lost.
        """
        timeout = self._time_to_write()
        try:
            return await self._answered(self.api(step), verb, payload, timeout)
        except (ServerRefusedError, NotPermittedError):
            raise
        except ApiError as error:
            raise StepFailed(f"{error}; the next plan goes on from there", "unknown") from None

    async def _answered(self, api: DomainApi, request: str, payload: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
        """Wait for the answer of one write, at most `timeout` seconds, and for as long only as the domain answers anything at all.

        A domain that does not is remembered.
        """
        call = asyncio.ensure_future(api.request(request, payload, timeout=timeout))
        try:
            while not (await asyncio.wait({call}, timeout=api.link.target.timeout))[0]:
                await self._still_there(api)
            return call.result()
        except NoRespondersError as error:
            self.lost.setdefault(api.domain.key, str(error))
            raise
        finally:
            call.cancel()

    async def _still_there(self, api: DomainApi) -> None:
        try:
            await api.request("INFO")
        except ApiError as error:
            self.lost.setdefault(api.domain.key, str(error))
            raise ApiTimeoutError(str(error)) from None

    async def _arrived(self, step: Step) -> bool:
        """Whether a call without an answer was carried out after all."""
        if step.domain in self.lost:
            return False
        try:
            live = await read_object(self.api(step), step.touches)
        except ApiError as error:
            self.lost.setdefault(step.domain, str(error))
            return False
        if step.op.endswith(".delete"):
            return live is None
        before = step.precondition.get("fingerprint")
        return live is not None and live.fingerprint != before and not not_kept(step, live)

    async def read_back(self, step: Step) -> None:
        """Prove that the server kept what was sent, and remember what it has now. Raises StepFailed that names what it did not keep."""
        try:
            live = await read_object(self.api(step), step.touches)
        except ApiError as error:
            if isinstance(error, OFFLINE):
                self.lost.setdefault(step.domain, str(error))
            raise StepFailed(f"written, but it could not be read back: {error}", "unknown") from None
        if step.op.endswith(".delete"):
            await self.record(*self.deleted(step))
            if live is not None:
                raise StepFailed(f"{step.touches} is there again: somebody else made it at the same moment")
            return
        if live is None:
            await self.record({"end": step.address})
            raise StepFailed(f"{step.touches} is gone again: somebody else deleted it at the same moment")
        self.left(step, live)
        lost = not_kept(step, live)
        await (self.remember(step, live, lost) if step.record else self.record(*self._part(step, live), durable=False))
        if lost:
            raise StepFailed(f"{step.touches}: the server did not keep {describe(step, live, lost)}")

    def _part(self, step: Step, live: LiveObject) -> list[dict[str, Any]]:
        """The journal lines of one of several steps of an update: what it changed is nobody else's change."""
        recorded = (step.params or {}).get("state_address", step.address)
        entry = self.state.resources.get(Address.parse(recorded))
        over = {"end": step.address}
        if not step.op.endswith(".update") or entry is None or entry.created != live.created:
            return [over]
        changed = entry.with_fields(step.expect or {}, live.config)
        return [{"put": {"address": recorded, "entry": changed.to_json()}} | over]

    async def remember(self, step: Step, live: LiveObject, lost: Collection[str] = ()) -> None:
        """Put the object into state. What the server did not keep counts as not applied, so that the next plan shows it."""
        assert step.record is not None
        record = step.record
        entry = Entry(
            config=live.config, declared={name: value for name, value in record["declared"].items() if name not in lost},
            created=live.created, origin=record["origin"], prevent_destroy=record["prevent_destroy"], depends_on=record["depends_on"],
            applied_at=stamp(), starts=record.get("starts", {}), seen=live.seen,
        )  # fmt: skip
        put = {"put": {"address": step.address, "entry": entry.to_json()}}
        over = {"replaced": record["replaced"]} if "replaced" in record else {}
        await self.record(*_renamed(step), put | over, durable=step.request is not None)


def _renamed(step: Step) -> list[dict[str, Any]]:
    """A resource that a `moved` block renamed is dropped under its old name."""
    previous = (step.record or {}).get("previous_address")
    return [{"drop": previous}] if previous else []


def settled(step: Step, live: LiveObject | None) -> list[dict[str, Any]]:
    """The journal lines of a step that an earlier apply did not end: it is over, and what is not there is no longer ours."""
    recorded = (step.params or {}).get("state_address", step.address)
    return [{"drop" if live is None else "end": address} for address in dict.fromkeys([step.address, recorded])]


def gone(step: Step) -> list[dict[str, Any]]:
    """The journal lines of a resource that is no more, or no more ours. What only stood in for it was never in state."""
    return [{"end": step.address}] if step.object else [*_renamed(step), {"drop": step.address}]
