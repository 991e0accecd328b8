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
from jsplan.applying.preconditions import exceeded_bound, stream_difference
from jsplan.applying.recheck_deletions import DeletionCheck
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.documents.apply import StepStatus
from jsplan.documents.plan import Plan, Step
from jsplan.errors import (
    OFFLINE_ERRORS,
    ApiError,
    ApiTimeoutError,
    JsplanError,
    NoRespondersError,
    NotPermittedError,
    ServerRefusedError,
    StateError,
)
from jsplan.facts.live import LiveObject, get_retention
from jsplan.facts.reader import read_object
from jsplan.jetstream import DomainApi
from jsplan.state import Entry, Journal, State
from jsplan.units import format_timestamp

#: Writes may take longer than reads: a restore or a large trim. Seconds.
WRITE_TIMEOUT = 30.0
#: How long a step waits for a cluster that is moving or scaling the stream. Seconds.
STABLE_TIMEOUT = 600.0


class StepFailed(JsplanError):
    """One step could not be done; `status` is `failed`, or `unknown` when the call was sent and no answer came."""

    def __init__(self, message: str, status: StepStatus = "failed") -> None:
        super().__init__(message)
        self.status: StepStatus = status


#: Does something right before a step writes, and says whether it did. What it raises keeps the step from being done.
BeforeWrite = Callable[[Step], Awaitable[bool]]


class StepNotStarted(Exception):
    """A step was not sent after all: Ctrl-C came while its precondition was read, or its domain went away."""


@dataclass
class StepContext:
    """What the steps of one apply share.

    `apis` has the API of each domain that the plan touches and that is reachable now. `stop` is set by Ctrl-C. `before_write` is
    asked when a step's precondition holds, right before it writes. `lost_domains`
    are domains that stopped answering meanwhile, with what they said last: each is waited for once, not once per step.
    `state_failure` is why state could not be written any more: then nothing more begins either. `fingerprints` are the fingerprints that steps
    left behind, `stream_versions` what they made of streams, as consumers expect it; `new_fingerprints` are fingerprints of objects that went away with
    their stream and came back with it, by what they were before.
    """

    plan: Plan
    apis: Mapping[str, DomainApi]
    backend: Journal
    state: State
    stop: asyncio.Event
    before_write: BeforeWrite | None = None
    lost_domains: dict[str, str] = field(default_factory=dict)
    state_failure: StateError | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    stream_versions: dict[Address, dict[str, str]] = field(default_factory=dict)
    new_fingerprints: dict[str, str] = field(default_factory=dict)
    deletion_check: DeletionCheck = field(init=False)

    def __post_init__(self) -> None:
        self.deletion_check = DeletionCheck(self.plan, self.apis, self.state.replacements)

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
            raise StepNotStarted
        begun = {
            "id": step.id,
            "address": step.address,
            "op": step.op,
            "expect": step.expect,
            "record": step.record,
        }
        try:
            await self.record(
                *self._earlier_deletion_lines(step),
                *self.seen_lines(step, live),
                {"begin": begun},
                durable=False,
            )
            await self.backend.flush()
        except StateError as error:
            raise self._begin_error(error) from None

    def seen_lines(self, step: Step, live: LiveObject | None) -> list[dict[str, Any]]:
        """The journal line by which an object is known again although its server will report another `created` for it."""
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
        """What an earlier apply had deleted without recording it, where this step begins to make it again: its `begin` would be lost."""
        earlier = self.state.pending.get(step.address, {})
        absent = step.precondition.get("fingerprint") == "absent"
        return (
            self.deletion_lines(step)
            if absent and earlier.get("op", "").endswith(".delete")
            else []
        )

    def deletion_lines(self, step: Step) -> list[dict[str, Any]]:
        """The journal lines of a resource that was deleted, and of the consumers that went with it."""
        lines = removal_lines(step)
        streams = {line["drop"] for line in lines if "drop" in line}
        return lines + [
            {"drop": str(a)}
            for a in self.state.resources
            if a.parent is not None and str(a.parent) in streams
        ]

    def _write_timeout(self) -> float:
        """How many seconds one write may take under the lock. Raises StepFailed where the lock may be lost."""
        try:
            return self.backend.may_write(WRITE_TIMEOUT)
        except StateError as error:
            raise self._begin_error(error) from None

    def _begin_error(self, error: StateError) -> StepFailed:
        """Without a journal, or without the lock, neither this step nor another one begins."""
        self.state_failure = error
        return StepFailed(f"{error}; nothing was written")

    async def read(self, address: Address) -> LiveObject | None:
        """The object as it is now. A domain that stopped answering is remembered. Raises NotBegun for that."""
        try:
            return await read_object(self.apis[address.domain], address)
        except OFFLINE_ERRORS as error:
            self.lost_domains.setdefault(address.domain, str(error))
            raise StepNotStarted from None

    async def check_precondition(self, step: Step) -> LiveObject | None:
        """The precondition, once more, just before the write (promise 2). Raises StepFailed where it does not hold any more.

        What `before_write` does in between takes its time, so the precondition is looked at again after it.
        """
        live = await self._check_precondition_once(step)
        if self.before_write is not None and await self.before_write(step):
            live = await self._check_precondition_once(step)
        return live

    async def _check_precondition_once(self, step: Step) -> LiveObject | None:
        address = step.target_address
        await self._wait_until_stable(step)
        live = await self.read(address)
        try:
            more = exceeded_bound(step, live) or await self.deletion_check.describe_excess(
                step, live
            )
        except OFFLINE_ERRORS as error:
            self.lost_domains.setdefault(address.domain, str(error))
            raise StepNotStarted from None
        wanted = step.precondition.get("fingerprint") or self.fingerprints.get(
            step.precondition.get("after_step", "")
        )
        wanted = self.new_fingerprints.get(wanted or "", wanted)
        found = live.fingerprint if live else "absent"
        if wanted is not None and found != wanted:
            raise StepFailed(
                f"{address} was changed by somebody else since it was planned; nothing was written"
            )
        await self._check_parent(step)
        if more is not None:
            raise StepFailed(f"{address} {more}; nothing was written")
        return live

    async def _check_parent(self, step: Step) -> None:
        """The stream of a consumer, which is as planned, or as an earlier step left it. Raises StepFailed where it is not."""
        parent = step.target_address.parent
        expected = (
            self.stream_versions.get(parent, step.precondition.get("parent"))
            if parent is not None
            else None
        )
        if (
            parent is not None
            and expected is not None
            and (why := stream_difference(expected, await self.read(parent))) is not None
        ):
            raise StepFailed(
                f"{parent} {why}, since {step.address} was planned; nothing was written"
            )

    def note_result(self, step: Step, live: LiveObject) -> None:
        """Remember what a step made of an object, for those that go on from there."""
        self.fingerprints[step.id] = live.fingerprint
        if live.address.parent is None:
            self.stream_versions[live.address] = {
                "created": live.created,
                "retention": get_retention(live.compact),
            }

    async def _wait_until_stable(self, step: Step) -> None:
        """Wait, where the step asks for it, until a cluster has done with a stream what it was told before."""
        stream, end, pause = (
            step.precondition.get("wait_until_stable"),
            time.monotonic() + STABLE_TIMEOUT,
            0.05,
        )
        while (
            stream
            and (live := await self.read(Address.parse(stream))) is not None
            and not live.is_stable
        ):
            if self.stop.is_set():
                raise StepNotStarted
            if time.monotonic() > end:
                raise StepFailed(
                    f"{stream} is still being moved or scaled after {STABLE_TIMEOUT:.0f}s; the next plan goes on from there"
                )
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 1.5)

    async def call(self, step: Step) -> None:
        """Send the step's one request. Raises ApiError where it was refused, StepFailed where it may not have arrived."""
        assert step.request is not None
        timeout = self._write_timeout()
        try:
            await self._await_answer(
                self.api(step), step.request["api"], step.request["payload"], timeout
            )
        except (ServerRefusedError, NotPermittedError):
            await self.record({"end": step.address}, durable=False)
            raise
        except NoRespondersError as error:
            await self.record({"end": step.address}, durable=False)
            raise StepFailed(f"{error}; nothing was written") from None
        except ApiError as error:
            if not await self._was_applied(step):
                raise StepFailed(
                    f"{error}; whether it was carried out is not known, the next plan will tell",
                    "unknown",
                ) from None

    async def send(
        self, step: Step, verb: str, payload: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """One of several requests of a step; what the journal has by then must be enough to go on.

        Raises ServerRefusedError and NotPermittedError, and StepFailed where no answer came or the lock may be lost.
        """
        timeout = self._write_timeout()
        try:
            return await self._await_answer(self.api(step), verb, payload, timeout)
        except (ServerRefusedError, NotPermittedError):
            raise
        except ApiError as error:
            raise StepFailed(f"{error}; the next plan goes on from there", "unknown") from None

    async def _await_answer(
        self, api: DomainApi, request: str, payload: dict[str, Any] | None, timeout: float
    ) -> dict[str, Any]:
        """Wait for the answer of one write, at most `timeout` seconds, and for as long only as the domain answers anything at all.

        A domain that does not is remembered.
        """
        call = asyncio.ensure_future(api.request(request, payload, timeout=timeout))
        try:
            while not (await asyncio.wait({call}, timeout=api.connection.settings.timeout))[0]:
                await self._require_answering(api)
            return call.result()
        except NoRespondersError as error:
            self.lost_domains.setdefault(api.domain.key, str(error))
            raise
        finally:
            call.cancel()

    async def _require_answering(self, api: DomainApi) -> None:
        try:
            await api.request("INFO")
        except ApiError as error:
            self.lost_domains.setdefault(api.domain.key, str(error))
            raise ApiTimeoutError(str(error)) from None

    async def _was_applied(self, step: Step) -> bool:
        """Whether a call without an answer was carried out after all."""
        if step.domain in self.lost_domains:
            return False
        try:
            live = await read_object(self.api(step), step.target_address)
        except ApiError as error:
            self.lost_domains.setdefault(step.domain, str(error))
            return False
        if step.op.endswith(".delete"):
            return live is None
        before = step.precondition.get("fingerprint")
        return live is not None and live.fingerprint != before and not unkept_fields(step, live)

    async def verify_write(self, step: Step) -> None:
        """Prove that the server kept what was sent, and remember what it has now. Raises StepFailed that names what it did not keep."""
        try:
            live = await read_object(self.api(step), step.target_address)
        except ApiError as error:
            if isinstance(error, OFFLINE_ERRORS):
                self.lost_domains.setdefault(step.domain, str(error))
            raise StepFailed(
                f"written, but it could not be read back: {error}", "unknown"
            ) from None
        if step.op.endswith(".delete"):
            await self.record(*self.deletion_lines(step))
            if live is not None:
                raise StepFailed(
                    f"{step.target_address} is there again: somebody else made it at the same moment"
                )
            return
        if live is None:
            await self.record({"end": step.address})
            raise StepFailed(
                f"{step.target_address} is gone again: somebody else deleted it at the same moment"
            )
        self.note_result(step, live)
        lost = unkept_fields(step, live)
        await (
            self.save_entry(step, live, lost)
            if step.record
            else self.record(*self._partial_update_lines(step, live), durable=False)
        )
        if lost:
            raise StepFailed(
                f"{step.target_address}: the server did not keep {describe_unkept(step, live, lost)}"
            )

    def _partial_update_lines(self, step: Step, live: LiveObject) -> list[dict[str, Any]]:
        """The journal lines of one of several steps of an update: what it changed is nobody else's change."""
        recorded = (step.params or {}).get("state_address", step.address)
        entry = self.state.resources.get(Address.parse(recorded))
        over = {"end": step.address}
        if not step.op.endswith(".update") or entry is None or entry.created != live.created:
            return [over]
        changed = entry.with_fields(step.expect or {}, live.config)
        return [{"put": {"address": recorded, "entry": changed.to_json()}} | over]

    async def save_entry(self, step: Step, live: LiveObject, lost: Collection[str] = ()) -> None:
        """Put the object into state. What the server did not keep counts as not applied, so that the next plan shows it."""
        assert step.record is not None
        record = step.record
        entry = Entry(
            config=live.config,
            declared={
                name: value for name, value in record["declared"].items() if name not in lost
            },
            created=live.created,
            origin=record["origin"],
            prevent_destroy=record["prevent_destroy"],
            depends_on=record["depends_on"],
            applied_at=format_timestamp(),
            starts=record.get("starts", {}),
            seen=live.answered_at,
        )
        put = {"put": {"address": step.address, "entry": entry.to_json()}}
        over = {"replaced": record["replaced"]} if "replaced" in record else {}
        await self.record(*_drop_previous_lines(step), put | over, durable=step.request is not None)


def _drop_previous_lines(step: Step) -> list[dict[str, Any]]:
    """A resource that a `moved` block renamed is dropped under its old name."""
    previous = (step.record or {}).get("previous_address")
    return [{"drop": previous}] if previous else []


def closing_lines(step: Step, live: LiveObject | None) -> list[dict[str, Any]]:
    """The journal lines of a step that an earlier apply did not end: it is over, and what is not there is no longer ours."""
    recorded = (step.params or {}).get("state_address", step.address)
    return [
        {"drop" if live is None else "end": address}
        for address in dict.fromkeys([step.address, recorded])
    ]


def removal_lines(step: Step) -> list[dict[str, Any]]:
    """The journal lines of a resource that is no more, or no more ours. What only stood in for it was never in state."""
    return (
        [{"end": step.address}]
        if step.object
        else [*_drop_previous_lines(step), {"drop": step.address}]
    )
