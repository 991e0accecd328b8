"""Context of the steps of one apply: precondition, call, read-back and journal of a step.

The plan says what each call means: no JetStream rules here.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Task
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jsplan.address import Address
from jsplan.applying.preconditions import exceeded_bound, has_no_consumers, stream_difference
from jsplan.applying.recheck_deletions import DeletionCheck
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.config.model import ContentFile
from jsplan.documents.apply import StepStatus
from jsplan.documents.plan import Plan, Step
from jsplan.documents.plan_types import DELETE_OPS, UPDATE_OPS, VERIFY_OP
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
from jsplan.jetstream.leftovers import has_older_messages
from jsplan.resources.error_codes import NOT_FOUND
from jsplan.state import Entry, Journal, State
from jsplan.units import format_timestamp

#: Seconds for a write. It may take longer than a read: a restore, or a large trim.
WRITE_TIMEOUT = 30.0
#: Seconds to wait for a cluster that moves or scales a stream.
STABLE_TIMEOUT = 600.0
#: Seconds for a written object to be found, which a cluster that has just started may miss.
READ_BACK_TIMEOUT = 3.0

T = TypeVar("T")
#: Operations whose one request creates a stream.
_STREAM_CREATIONS = ("stream.create", "origin.create")


class StepFailed(JsplanError):
    """One step failed. `status` is `unknown` when the call was sent and no answer came."""

    def __init__(self, message: str, status: StepStatus = "failed") -> None:
        super().__init__(message)
        self.status: StepStatus = status


#: Called right before a step writes; returns True if it did something. Its errors stop the step.
BeforeWrite = Callable[[Step], Awaitable[bool]]


class StepNotStarted(Exception):
    """A step was not sent: Ctrl-C came first, or its domain went offline."""


@dataclass
class StepContext:
    """Shared context of the steps of one apply.

    `apis` has the API of each domain that the plan touches and that is reachable now. `stop` is set
    by Ctrl-C. `before_write` is called when a step's precondition holds, right before it writes.
    `imports` are objects that the first check read and that steps only take into state: such a
    step writes to no server, and reads nothing again.
    `lost_domains` are domains that stopped answering, with their last error: each is waited for
    once, not once per step. `contents` are the values of entries that the files have now.
    `state_failure` is the error after which state cannot be written: no
    further step begins. `fingerprints` are those that steps left behind, `stream_versions` the
    streams after steps, as consumers expect them. `new_fingerprints` maps the fingerprints of
    objects that were deleted and restored with their stream to their new ones. `mirrored_at` has
    for each mirror that this apply created when that was (s, monotonic).
    """

    plan: Plan
    apis: Mapping[str, DomainApi]
    backend: Journal
    state: State
    stop: asyncio.Event
    before_write: BeforeWrite | None = None
    imports: dict[Address, LiveObject] = field(default_factory=dict)
    lost_domains: dict[str, str] = field(default_factory=dict)
    state_failure: StateError | None = None
    contents: Mapping[Address, bytes | ContentFile] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    stream_versions: dict[Address, dict[str, str]] = field(default_factory=dict)
    new_fingerprints: dict[str, str] = field(default_factory=dict)
    mirrored_at: dict[Address, float] = field(default_factory=dict)
    deletion_check: DeletionCheck = field(init=False)
    _consumers: dict[str, list[Address]] | None = None
    _awaited: set[str] = field(init=False)
    _checks: dict[str, Step] = field(init=False)
    _checks_after: dict[str, list[Step]] = field(init=False)

    def __post_init__(self) -> None:
        self.deletion_check = DeletionCheck(self.plan, self.apis, self.state.replacements)
        self._awaited = {step.precondition.get("after_step", "") for step in self.plan.steps}
        self._checks = {step.address: step for step in self.plan.steps if step.op == VERIFY_OP}
        self._checks_after = {}
        for check in self._checks.values():
            for other in check.depends_on:
                self._checks_after.setdefault(other, []).append(check)

    def api(self, step: Step) -> DomainApi:
        """Return the API of the domain that the step is sent to."""
        return self.apis[step.domain]

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
        if self.stop.is_set():
            raise StepNotStarted
        begun: dict[str, Any] = {
            "id": step.id,
            "address": step.address,
            "op": step.op,
            "expect": step.expect,
            "record": step.record,
        }
        if uploads:
            begun["uploads"] = list(uploads)
        for check in self._pending_checks(step.address):
            begun["check"] = check
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

    def check_lines(self, step: Step) -> list[dict[str, Any]]:
        """Return journal lines that begin the checks after a step: the next apply runs them."""
        pending = self.state.pending
        begun = {str(check["address"]): check for check in self._pending_checks(step.address)}
        for check in self._checks_after.get(step.id, ()):
            # A step of that stream that is pending keeps its check.
            if check.address == step.address or (
                pending.get(check.address, {}).get("op", VERIFY_OP) == VERIFY_OP
            ):
                begun[check.address] = check_record(check)
        return [{"begin": check} for name, check in begun.items() if pending.get(name) != check]

    def _pending_checks(self, address: str) -> list[dict[str, Any]]:
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
        return self.deletion_lines(step) if absent and earlier.get("op") in DELETE_OPS else []

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

    def _write_timeout(self) -> float:
        """Return the seconds that one write may take. Raises StepFailed if the lock may be lost."""
        try:
            return self.backend.may_write(WRITE_TIMEOUT)
        except StateError as error:
            raise self._begin_error(error) from None

    def _begin_error(self, error: StateError) -> StepFailed:
        """Record that no step may begin any more: the journal or the lock failed."""
        self.state_failure = error
        return StepFailed(f"{error}; nothing was written")

    async def read(self, address: Address) -> LiveObject | None:
        """Read the object now. Remember a domain that stopped answering; raise StepNotStarted."""
        try:
            return await read_object(self.apis[address.domain], address)
        except OFFLINE_ERRORS as error:
            self.lost_domains.setdefault(address.domain, str(error))
            raise StepNotStarted from None

    async def check_precondition(self, step: Step) -> LiveObject | None:
        """Check the precondition again just before the write (promise 2). Raises StepFailed.

        `before_write` takes time, so the precondition is checked again after it.
        """
        live = await self._check_precondition_once(step)
        if self.before_write is not None and await self.before_write(step):
            live = await self._check_precondition_once(step)
        return live

    async def _check_precondition_once(self, step: Step) -> LiveObject | None:
        address = step.target_address
        await self._wait_until_stable(step)
        wanted = step.precondition.get("fingerprint") or self.fingerprints.get(
            step.precondition.get("after_step", "")
        )
        wanted = self.new_fingerprints.get(wanted or "", wanted)
        parent = await self._read_parent(step) if wanted == "absent" else None
        is_absent = parent is not None and has_no_consumers(parent)
        live = None if is_absent else await self.read(address)
        try:
            excess = exceeded_bound(step, live) or await self.deletion_check.describe_excess(
                step, live
            )
        except OFFLINE_ERRORS as error:
            self.lost_domains.setdefault(address.domain, str(error))
            raise StepNotStarted from None
        fingerprint = live.fingerprint if live else "absent"
        if wanted is not None and fingerprint != wanted:
            raise StepFailed(
                f"{address} was changed by another client since it was planned; nothing was written"
            )
        self._check_parent(step, parent or await self._read_parent(step))
        if excess is not None:
            raise StepFailed(f"{address} {excess}; nothing was written")
        return live

    def _expected_parent(self, step: Step) -> dict[str, str] | None:
        """Return what a consumer's stream is to be: as planned, or as an earlier step left it."""
        parent, planned = step.target_address.parent, step.precondition.get("parent")
        return None if parent is None else self.stream_versions.get(parent, planned)

    async def _read_parent(self, step: Step) -> LiveObject | None:
        """Read the stream of a consumer, if something is expected of it."""
        parent = step.target_address.parent
        if parent is None or self._expected_parent(step) is None:
            return None
        return await self.read(parent)

    def _check_parent(self, step: Step, live: LiveObject | None) -> None:
        """Raise StepFailed where a consumer's stream is not as expected."""
        expected = self._expected_parent(step)
        if expected is not None and (why := stream_difference(expected, live)) is not None:
            raise StepFailed(
                f"{step.target_address.parent} {why}, since {step.address} was planned; "
                "nothing was written"
            )

    def note_result(self, step: Step, live: LiveObject) -> None:
        """Remember the object that a step left, for later steps."""
        if step.id in self._awaited:
            self.fingerprints[step.id] = live.fingerprint
        if live.address.parent is None:
            self.stream_versions[live.address] = {
                "created": live.created,
                "retention": get_retention(live.compact),
            }

    async def _wait_until_stable(self, step: Step) -> None:
        """Wait, where the step asks for it, until a cluster has finished moving or scaling."""
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
                    f"{stream} is still being moved or scaled after {STABLE_TIMEOUT:.0f}s; "
                    "the next plan continues from there"
                )
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 1.5)

    async def call(self, step: Step) -> None:
        """Send the step's one request. Raises ApiError on refusal, StepFailed if it may be lost."""
        assert step.request is not None
        api, payload = step.request["api"], step.request["payload"]
        await self.write(
            step, lambda timeout: self.api(step).request(api, payload, timeout=timeout)
        )

    async def write(self, step: Step, send: Callable[[float], Awaitable[object]]) -> None:
        """Write once with `send`, which gets the timeout in seconds. Raises as `call` does."""
        timeout = self._write_timeout()
        try:
            await self._await_answer(self.api(step), send(timeout))
        except (ServerRefusedError, NotPermittedError):
            await self._record_refused(step)
            raise
        except NoRespondersError as error:
            await self._record_refused(step)
            raise StepFailed(f"{error}; nothing was written") from None
        except ApiError as error:
            if not await self._was_applied(step):
                raise StepFailed(
                    f"{error}; it is not known if the change was applied. The next plan shows it",
                    "unknown",
                ) from None

    async def _record_refused(self, step: Step) -> None:
        checks = self._pending_checks(step.address)
        await self.record(
            {"end": step.address}, *({"begin": check} for check in checks), durable=False
        )

    async def send(
        self, step: Step, verb: str, payload: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send one of several requests of a step. The journal must suffice to resume after it.

        Raises ServerRefusedError and NotPermittedError, and StepFailed where no answer came or the
        lock may be lost.
        """
        timeout = self._write_timeout()
        try:
            api = self.api(step)
            return await self._await_answer(api, api.request(verb, payload, timeout=timeout))
        except (ServerRefusedError, NotPermittedError):
            raise
        except ApiError as error:
            raise StepFailed(f"{error}; the next plan continues from there", "unknown") from None

    async def send_message(self, step: Step, subject: str, payload: bytes) -> dict[str, Any]:
        """Store one of several messages of a step, and return the acknowledgement; see `send`."""
        timeout = self._write_timeout()
        try:
            api = self.api(step)
            sent = api.publish_plainly(subject, payload, {}, timeout=timeout)
            return await self._await_answer(api, sent)
        except (ServerRefusedError, NotPermittedError):
            raise
        except ApiError as error:
            raise StepFailed(f"{error}; the next plan continues from there", "unknown") from None

    async def send_if_exists(
        self, step: Step, verb: str, payload: dict[str, Any] | None = None
    ) -> None:
        """Send a request like `send`. The object may be gone: an answer may have been lost."""
        try:
            await self.send(step, verb, payload)
        except ServerRefusedError as error:
            if error.err_code not in NOT_FOUND:
                raise

    async def _await_answer(self, api: DomainApi, sent: Awaitable[T]) -> T:
        """Wait for the answer of a write, which has its own timeout, while the domain answers.

        A domain that stops answering is remembered.
        """
        loop, failures, watches = asyncio.get_running_loop(), list[ApiError](), list[Task[None]]()

        async def watch() -> None:
            try:
                while True:
                    await self._require_answering(api)
                    await asyncio.sleep(api.connection.settings.timeout)
            except ApiError as error:
                failures.append(error)
                scope.reschedule(loop.time())

        # Nearly every answer comes before its domain is asked, and costs no task then.
        timer = loop.call_later(
            api.connection.settings.timeout, lambda: watches.append(loop.create_task(watch()))
        )
        try:
            async with asyncio.timeout(None) as scope:
                return await sent
        except TimeoutError:  # of the scope: those of the request are ApiTimeoutError
            raise failures[0] from None
        except NoRespondersError as error:
            self.lost_domains.setdefault(api.domain.key, str(error))
            raise
        finally:
            timer.cancel()
            for task in watches:
                task.cancel()

    async def _require_answering(self, api: DomainApi) -> None:
        try:
            await api.request("INFO")
        except ApiError as error:
            self.lost_domains.setdefault(api.domain.key, str(error))
            raise ApiTimeoutError(str(error)) from None

    async def _was_applied(self, step: Step) -> bool:
        """Check whether a call without an answer was applied."""
        if step.domain in self.lost_domains:
            return False
        try:
            live = await read_object(self.api(step), step.target_address)
        except ApiError as error:
            self.lost_domains.setdefault(step.domain, str(error))
            return False
        if step.op in DELETE_OPS:
            return live is None
        if live is None or (step.op in _STREAM_CREATIONS and _has_leftovers(live)):
            return False
        return live.fingerprint != step.precondition.get("fingerprint") and not unkept_fields(
            step, live
        )

    async def verify_write(self, step: Step, *, durable: bool = True) -> None:
        """Verify and record the written object. Raises StepFailed with the lost fields."""
        try:
            live = await self._read_back(step)
        except ApiError as error:
            if isinstance(error, OFFLINE_ERRORS):
                self.lost_domains.setdefault(step.domain, str(error))
            raise StepFailed(
                f"written, but it could not be read back: {error}", "unknown"
            ) from None
        if step.op in DELETE_OPS:
            await self.record(*self.deletion_lines(step), durable=durable)
            if live is not None:
                raise StepFailed(
                    f"{step.target_address} exists again: another client created it "
                    "during the apply"
                )
            return
        if live is None:
            await self.record({"end": step.address}, durable=durable)
            raise StepFailed(
                f"{step.target_address} is gone again: another client deleted it during the apply"
            )
        self.note_result(step, live)
        lost = unkept_fields(step, live)
        await (
            self.save_entry(step, live, lost, durable=durable)
            if step.record
            else self.record(*self._partial_update_lines(step, live), durable=False)
        )
        if lost:
            raise StepFailed(
                f"{step.target_address}: the server did not keep "
                f"{describe_unkept(step, live, lost)}"
            )

    async def _read_back(self, step: Step) -> LiveObject | None:
        """Read the written object. A new cluster may not find for a moment what it created."""
        end = time.monotonic() + READ_BACK_TIMEOUT
        while True:
            live = await read_object(self.api(step), step.target_address)
            if live is not None or step.op in DELETE_OPS or time.monotonic() > end:
                return live
            await asyncio.sleep(0.05)

    def _partial_update_lines(self, step: Step, live: LiveObject) -> list[dict[str, Any]]:
        """Return the journal lines of one of several update steps: its change is ours."""
        recorded = (step.params or {}).get("state_address", step.address)
        entry = self.state.resources.get(Address.parse(recorded))
        end = {"end": step.address}
        if step.op not in UPDATE_OPS or entry is None or entry.created != live.created:
            return [end]
        changed = entry.with_fields(step.expect or {}, live.config)
        return [{"put": {"address": recorded, "entry": changed.to_json()}} | end]

    async def save_entry(
        self, step: Step, live: LiveObject, lost: Collection[str] = (), *, durable: bool = True
    ) -> None:
        """Put the object into state. Fields that the server did not keep count as not applied."""
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
            sensitive=record.get("sensitive", False),
            position_once=record.get("position_once", ""),
        )
        put = {"put": {"address": step.address, "entry": entry.to_json()}}
        replaced = {"replaced": record["replaced"]} if "replaced" in record else {}
        await self.record(
            *_drop_previous_lines(step),
            put | replaced,
            *self.check_lines(step),
            durable=durable and step.request is not None,
        )


def check_record(step: Step) -> dict[str, Any]:
    """Return what state keeps of a pending check."""
    return {
        "id": step.id,
        "address": step.address,
        "op": step.op,
        "expect": None,
        "record": None,
        "params": step.params,
    }


def _has_leftovers(live: LiveObject) -> bool:
    """Return True for a new stream with messages of a deleted one; those of a mirror are older."""
    return not live.raw.get("mirror") and has_older_messages(live.created, live.state)


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
    return (
        [{"end": step.address}]
        if step.object
        else [*_drop_previous_lines(step), {"drop": step.address}]
    )
