"""Context of the steps of one apply: precondition, call, read-back and journal of a step.

The plan says what each call means: no JetStream rules here.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Task
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from jsplan.address import Address
from jsplan.applying.preconditions import (
    NewReaders,
    exceeded_bound,
    has_no_consumers,
    is_scaled_with_stream,
    stream_difference,
)
from jsplan.applying.recheck_deletions import DeletionCheck
from jsplan.applying.step_journal import (
    StepFailed,
    StepJournal,
    StepNotStarted,
    check_record,
    closing_lines,
    describe_unkept,
    gone_error,
    removal_lines,
    unkept_fields,
)
from jsplan.config.model import ContentFile
from jsplan.documents.plan import Step
from jsplan.errors import (
    OFFLINE_ERRORS,
    ApiError,
    ApiTimeoutError,
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

__all__ = [
    "StepContext",
    "StepFailed",
    "StepNotStarted",
    "check_record",
    "closing_lines",
    "removal_lines",
]

#: Seconds for a write. It may take longer than a read: a restore, or a large trim.
WRITE_TIMEOUT = 30.0
#: Seconds to wait for a cluster that moves or scales a stream.
STABLE_TIMEOUT = 600.0
#: Seconds for a written object to be found, which a cluster that has just started may miss.
READ_BACK_TIMEOUT = 3.0

T = TypeVar("T")
#: Objects that were read just now; None for what does not exist.
Found = Mapping[Address, LiveObject | None]
NOTHING_READ: Found = MappingProxyType({})
#: Called right before a step writes; returns True if it did something. Its errors stop the step.
BeforeWrite = Callable[[Step], Awaitable[bool]]


@dataclass
class StepContext(StepJournal):
    """Shared context of the steps of one apply.

    `apis` has the API of each domain that the plan touches and that is reachable now.
    `before_write` is called when a step's precondition holds, right before it writes. `imports` are
    objects that the first check read and that steps only take into state: such a step writes to no
    server, and reads nothing again.
    `lost_domains` are domains that stopped answering, with their last error: each is waited for
    once, not once per step. `contents` are the values of entries that the files have now.
    `fingerprints` are those that steps left behind, `stream_versions` the
    streams after steps, as consumers expect them. `new_fingerprints` maps the fingerprints of
    objects that were deleted and restored with their stream to their new ones. `mirrored_at` has
    for each mirror that this apply created when that was (s, monotonic). `scaled` has the replicas
    of streams that steps scaled. `notes` has by step what remains to be done by hand.
    """

    apis: Mapping[str, DomainApi]
    before_write: BeforeWrite | None = None
    imports: dict[Address, LiveObject] = field(default_factory=dict)
    lost_domains: dict[str, str] = field(default_factory=dict)
    contents: Mapping[Address, bytes | ContentFile] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    stream_versions: dict[Address, dict[str, str]] = field(default_factory=dict)
    new_fingerprints: dict[str, str] = field(default_factory=dict)
    mirrored_at: dict[Address, float] = field(default_factory=dict)
    scaled: dict[Address, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    deletion_check: DeletionCheck = field(init=False)
    _new_readers: NewReaders = field(init=False)
    _created: set[str] = field(init=False)
    _awaited: set[str] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.deletion_check = DeletionCheck(self.plan, self.apis)
        self._new_readers = NewReaders(self.plan, self.apis)
        self._created = {step.address for step in self.plan.steps if step.op == "stream.create"}
        self._awaited = {step.precondition.get("after_step", "") for step in self.plan.steps}

    def api(self, step: Step) -> DomainApi:
        """Return the API of the domain that the step is sent to."""
        return self.apis[step.domain]

    def _write_timeout(self) -> float:
        """Return the seconds that one write may take. Raises StepFailed if the lock may be lost."""
        try:
            return self.backend.may_write(WRITE_TIMEOUT)
        except StateError as error:
            raise self.begin_error(error) from None

    async def read(self, address: Address, known: Found = NOTHING_READ) -> LiveObject | None:
        """Return the object of `known`, else read it now.

        Remembers a domain that stopped answering; raises StepNotStarted then.
        """
        if address in known:
            return known[address]
        try:
            return await read_object(self.apis[address.domain], address)
        except OFFLINE_ERRORS as error:
            self.lost_domains.setdefault(address.domain, str(error))
            raise StepNotStarted from None

    async def require(self, address: Address) -> LiveObject:
        """Read an object that must exist. Raises StepFailed, and what `read` raises."""
        live = await self.read(address)
        if live is None:
            raise gone_error(address)
        return live

    async def check_precondition(
        self, step: Step, known: Found = NOTHING_READ
    ) -> LiveObject | None:
        """Check the precondition again just before the write (promise 2). Raises StepFailed.

        `known` has objects that were read just now. `before_write` takes time, so the precondition
        is checked again after it.
        """
        live = await self._check_precondition_once(step, known)
        if self.before_write is not None and await self.before_write(step):
            live = await self._check_precondition_once(step)
        return live

    async def _check_precondition_once(
        self, step: Step, known: Found = NOTHING_READ
    ) -> LiveObject | None:
        address = step.target_address
        await self._wait_until_stable(step)
        wanted, decider = self._wanted_fingerprint(step), self.deciding_parent(step)
        parent = await self.read(decider, known) if decider is not None else None
        is_absent = parent is not None and has_no_consumers(parent)
        live = None if is_absent else await self._read_scaled(address, known)
        try:
            excess = exceeded_bound(step, live) or await self.deletion_check.describe_excess(
                step, live
            )
            is_created = step.kind.deletes and step.address in self._created
            replaces = step.op == "transfer.quiesce" or is_created
            readers = await self._new_readers.find([step] if replaces else [])
        except OFFLINE_ERRORS as error:
            self.lost_domains.setdefault(address.domain, str(error))
            raise StepNotStarted from None
        fingerprint = live.fingerprint if live else "absent"
        scaled = self.scaled.get(address.parent) if address.parent else None
        if wanted not in (None, fingerprint) and not is_scaled_with_stream(live, wanted, scaled):
            raise StepFailed(
                f"{address} was changed by another client since it was planned; nothing was written"
            )
        self._check_parent(step, parent or await self._read_parent(step, known))
        if (excess := excess or readers.get(step.id)) is not None:
            raise StepFailed(f"{address} {excess}; nothing was written")
        return live

    def deciding_parent(self, step: Step) -> Address | None:
        """Return the stream of a consumer to create, which may show that it does not exist."""
        if self._expected_parent(step) is None or self._wanted_fingerprint(step) != "absent":
            return None
        return step.target_address.parent

    def _wanted_fingerprint(self, step: Step) -> str | None:
        """Return the fingerprint that the object of the step is to have now; None for any."""
        wanted = step.precondition.get("fingerprint") or self.fingerprints.get(
            step.precondition.get("after_step", "")
        )
        return self.new_fingerprints.get(wanted or "", wanted)

    def _expected_parent(self, step: Step) -> dict[str, str] | None:
        """Return what a consumer's stream is to be: as planned, or as an earlier step left it."""
        parent, planned = step.target_address.parent, step.precondition.get("parent")
        return None if parent is None else self.stream_versions.get(parent, planned)

    async def _read_parent(self, step: Step, known: Found) -> LiveObject | None:
        """Read the stream of a consumer, if something is expected of it."""
        parent = step.target_address.parent
        if parent is None or self._expected_parent(step) is None:
            return None
        return await self.read(parent, known)

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
            retention = get_retention(live.compact)
            self.stream_versions[live.address] = {"created": live.created, "retention": retention}
        if step.op == "stream.update" and step.moves_in_cluster:
            self.scaled[live.address] = int(live.raw.get("num_replicas") or 1)

    async def _read_scaled(self, address: Address, known: Found) -> LiveObject | None:
        """Read an object; wait while a consumer has more replicas than its stream was scaled to."""
        live, end = await self.read(address, known), time.monotonic() + READ_BACK_TIMEOUT
        most = self.scaled.get(address.parent) if address.parent else None
        while most and live and live.raw["num_replicas"] > most and time.monotonic() < end:
            await asyncio.sleep(0.05)
            live = await self.read(address)
        return live

    async def _wait_until_stable(self, step: Step) -> None:
        """Wait, where the step asks for it, until a cluster has finished moving or scaling."""
        stream = step.precondition.get("wait_until_stable")
        end, pause = time.monotonic() + STABLE_TIMEOUT, 0.05
        while stream:
            live = await self.read(Address.parse(stream))
            if live is None or live.is_stable:
                return
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
        except ApiError as error:
            await self._settle_error(step, error)

    async def create_together(
        self, steps: Sequence[Step], visit: Callable[[Step, Awaitable[None]], Awaitable[None]]
    ) -> None:
        """Send the creations of one domain together; `visit` awaits the result of each.

        A result raises what `call` raises. Raises StepFailed where nothing was sent.
        """
        timeout, api = self._write_timeout(), self.api(steps[0])
        requests = [
            (step.request["api"], step.request["payload"]) for step in steps if step.request
        ]
        outcomes: dict[int, ApiError | None] = {}
        lost: ApiError | None = None
        try:
            await self._await_answer(api, api.create_each(requests, outcomes, timeout=timeout))
        except ApiError as error:
            lost = ApiTimeoutError(str(error))
        for number, step in enumerate(steps):
            if (failure := outcomes.get(number, lost)) is not None:
                await visit(step, self._settle_error(step, failure))

    async def _settle_error(self, step: Step, error: ApiError) -> None:
        """Raise the failure of a write that ended with an error; nothing where it was applied."""
        if isinstance(error, NoRespondersError):
            self.lost_domains.setdefault(step.domain, str(error))
            await self._record_refused(step)
            raise StepFailed(f"{error}; nothing was written") from None
        if isinstance(error, ServerRefusedError | NotPermittedError):
            await self._record_refused(step)
            raise error
        if not await self._was_applied(step):
            raise StepFailed(
                f"{error}; it is not known if the change was applied. The next plan shows it",
                "unknown",
            ) from None

    async def _record_refused(self, step: Step) -> None:
        checks = self.pending_checks(step.address)
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
        timeout, api = self._write_timeout(), self.api(step)
        return await self._send(api, api.request(verb, payload, timeout=timeout))

    async def send_message(self, step: Step, subject: str, payload: bytes) -> dict[str, Any]:
        """Store one of several messages of a step, and return the acknowledgement; see `send`."""
        timeout, api = self._write_timeout(), self.api(step)
        return await self._send(api, api.publish_plainly(subject, payload, {}, timeout=timeout))

    async def _send(self, api: DomainApi, sent: Awaitable[T]) -> T:
        try:
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
        if step.kind.does == "delete":
            return live is None
        creates = step.kind.does == "create" and step.kind.on == "stream"
        if live is None or (creates and _has_leftovers(live)):
            return False
        return live.fingerprint != step.precondition.get("fingerprint") and not unkept_fields(
            step, live
        )

    async def verify_write(self, step: Step) -> None:
        """Verify and record the written object. Raises StepFailed with the lost fields."""
        live = await self.read_back(step)
        lines, failure = self.judge_write(step, live)
        is_partial = step.record is None and live is not None and step.kind.does != "delete"
        await self.record(*lines, durable=not is_partial)
        if failure is not None:
            raise failure

    def judge_write(
        self, step: Step, live: LiveObject | None
    ) -> tuple[list[dict[str, Any]], StepFailed | None]:
        """Compare what a step left with what it expected.

        Returns the journal lines that end the step, and its failure.
        """
        if step.kind.does == "delete":
            again = f"{step.target_address} exists again: another client created it"
            failure = StepFailed(f"{again} during the apply") if live is not None else None
            return self.deletion_lines(step), failure
        if live is None:
            return [{"end": step.address}], gone_error(step.target_address, again=True)
        self.note_result(step, live)
        lost = unkept_fields(step, live)
        lines = (
            self.entry_lines(step, live, lost)
            if step.record
            else self.partial_update_lines(step, live)
        )
        if not lost:
            return lines, None
        unkept = describe_unkept(step, live, lost)
        return lines, StepFailed(f"{step.target_address}: the server did not keep {unkept}")

    async def read_back(self, step: Step) -> LiveObject | None:
        """Read the written object. Raises StepFailed.

        A new cluster may not find for a moment what it created.
        """
        try:
            if step.domain in self.lost_domains:
                raise ApiTimeoutError(self.lost_domains[step.domain])
            return await self._read_back(step)
        except ApiError as error:
            if isinstance(error, OFFLINE_ERRORS):
                self.lost_domains.setdefault(step.domain, str(error))
            raise StepFailed(
                f"written, but it could not be read back: {error}", "unknown"
            ) from None

    async def _read_back(self, step: Step) -> LiveObject | None:
        end = time.monotonic() + READ_BACK_TIMEOUT
        while True:
            live = await read_object(self.api(step), step.target_address)
            if live is not None or step.kind.does == "delete" or time.monotonic() > end:
                return live
            await asyncio.sleep(0.05)


def _has_leftovers(live: LiveObject) -> bool:
    """Return True for a new stream with messages of a deleted one; those of a mirror are older."""
    return not live.raw.get("mirror") and has_older_messages(live.created, live.state)
