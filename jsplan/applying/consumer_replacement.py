"""Makes a consumer anew where the old one stands. What has to be said about that before is left to `planning.preserve`.

Several requests, and after each of them the process may die. What is under way is in state as `replacements`:

1. what will be done, before the first request: the old object's `created`, its own pause, the pause that holds it;
2. the old consumer is paused, so that nothing is delivered any more (2.11 and later);
3. the position, and what the new one is to be, before the old one goes;
4. the delete, the create, and where the server can (2.14) the reset of the new one, which is paused until it stands there;
5. the new one in state; the record goes with it.

An interest stream has a placeholder consumer meanwhile, by steps of its own (`placeholders`).

Whoever comes after a death finds the old consumer (begins again), none (goes on at the recorded position), a new one under
the very same pause (makes it once more), or the new one as it was to be (only tidies up).
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, JsplanError, ServerRefusedError
from jsplan.facts.consumer_start import find_first_delivered
from jsplan.facts.interest import filters_of
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_object
from jsplan.jetstream.api import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from jsplan.planning.decide import table_of
from jsplan.planning.pauses import PAUSE
from jsplan.planning.preserve.consumer_position import (
    PAUSE_LEVEL,
    START_FIELDS,
    PositionMethod,
    choose_position_method,
    position_of,
    with_start_sequence,
)
from jsplan.resources.fields import Config

#: What CONSUMER.RESET answers where it cannot: another deliver_policy, or a sequence before the start.
RESET_REFUSED = 10204
#: How often, and how far apart (seconds), clients are waited for that have not acknowledged yet.
MAX_POLLS, POLL_INTERVAL = 20, 0.05


async def replace_consumer(work: StepContext, step: Step) -> None:
    """Carry out `consumer.replace`. Raises StepFailed, NotBegun, ApiError and StateError."""
    live = await work.check_precondition(step)
    await work.begin(step, live)
    under_way = work.state.replacements.get((step.params or {})["state_address"])
    making = _ConsumerReplacement(work, step, dict(under_way or {}))
    if live is None:
        await making.create_new()
    elif (
        under_way is not None
        and live.created != under_way["created"]
        and live.compact.get(PAUSE) == under_way["hold_until"]
    ):
        await making.delete()
        await making.create_new()
    else:
        await making.remove_old(live)
        await making.create_new()


async def clean_up_consumer(work: StepContext, step: Step) -> None:
    """Carry out `consumer.cleanup`: an old consumer that is still paused is resumed. Raises as `replace_consumer` does."""
    recorded = (step.params or {})["state_address"]
    under_way = work.state.replacements.get(recorded)
    if under_way is None:
        return
    address = Address.parse(step.address)
    live = await work.read(address)
    if live is not None and live.compact.get(PAUSE) == under_way["hold_until"]:
        await work.send(
            step,
            f"CONSUMER.PAUSE.{address.stream}.{address.consumer}",
            _pause_payload(under_way.get(PAUSE)),
        )
        await _record_resumed(work, address)
    await work.record({"replaced": recorded})


async def _record_resumed(work: StepContext, address: Address) -> None:
    """What was recorded while the consumer was held shows the pause that held it."""
    entry, live = work.state.resources.get(address), await work.read(address)
    if entry is not None and live is not None and live.created == entry.created:
        await work.record(
            {
                "put": {
                    "address": str(address),
                    "entry": replace(entry, config=live.config, seen=live.answered_at).to_json(),
                }
            }
        )


def _pause_payload(instant: str | None) -> dict[str, Any] | None:
    """What CONSUMER.PAUSE is sent; nothing resumes."""
    return {PAUSE: instant} if instant else None


async def _delete_consumer(work: StepContext, step: Step, stream: str, consumer: str) -> None:
    """Delete a consumer that may be gone already, alone or with its stream."""
    try:
        await work.send(step, f"CONSUMER.DELETE.{stream}.{consumer}")
    except ServerRefusedError as error:
        if error.err_code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
            raise


@dataclass
class _ConsumerReplacement:
    """One consumer on its way. `record` is what state has of it."""

    context: StepContext
    step: Step
    record: dict[str, Any]
    final_step: Step = field(init=False)

    def __post_init__(self) -> None:
        self.final_step = self.step
        self.address = self.step.target_address
        self.params = self.step.params or {}
        assert self.step.request is not None
        self.payload = self.step.request["payload"]

    @property
    def _can_pause(self) -> bool:
        return int(self.params["api_level"]) >= PAUSE_LEVEL

    async def _send(self, verb: str, payload: dict[str, Any] | None = None) -> None:
        await self.context.send(
            self.step, f"CONSUMER.{verb}.{self.address.stream}.{self.address.consumer}", payload
        )

    async def _save_record(self, **more: Any) -> None:
        self.record |= more
        await self.context.record({"replacing": self.record})

    # --- the old one -----------------------------------------------------------------------------------------

    async def remove_old(self, live: LiveObject) -> None:
        """Hold the old consumer, write down where it stands, delete it. What fails before that is undone."""
        again = self.record.get("created") == live.created
        own = self.record.get(PAUSE) if again else live.compact.get(PAUSE)
        hold = self.record["hold_until"] if again else _hold_until()
        await self._save_record(
            address=self.params["state_address"],
            created=live.created,
            hold_until=hold,
            **{PAUSE: own},
        )
        try:
            if self._can_pause:
                await self._send("PAUSE", {PAUSE: self.record["hold_until"]})
            stream, state = await self._wait_until_idle(live)
            position = position_of(live.compact, state) or await self._find_start(
                live, stream, state["delivered"]
            )
        except JsplanError:
            await self._resume_old()
            raise
        await self._save_record(position=position, stream_created=stream.created)
        await self._choose_method(stream)
        await self.delete()

    async def _wait_until_idle(self, live: LiveObject) -> tuple[LiveObject, dict[str, Any]]:
        """The stream, and what the consumer has done once those who were given messages had a moment to acknowledge them."""
        now = await self._require_unchanged(live)
        for _ in range(MAX_POLLS if self._can_pause else 0):
            if not now.state.get("num_ack_pending"):
                break
            await asyncio.sleep(POLL_INTERVAL)
            now = await self._require_unchanged(live)
        stream = await self.context.read(self._stream_address)
        if stream is None:
            raise StepFailed(
                f"the stream of {self.address} was deleted by somebody else at the same moment"
            )
        return stream, now.state

    async def _find_start(self, live: LiveObject, stream: LiveObject, given: dict[str, Any]) -> int:
        """Where a consumer began that acknowledged nothing: as many messages back as it made deliveries; further, if some were repeated."""
        api, filters = self.context.api(self.step), filters_of(live.compact)
        return await find_first_delivered(
            api, stream, filters, upto=given["stream_seq"], count=given["consumer_seq"]
        )

    async def _require_unchanged(self, live: LiveObject) -> LiveObject:
        now = await self.context.read(self.address)
        if (
            now is None
            or now.created != live.created
            or _without_pause(now) != _without_pause(live)
        ):
            raise StepFailed(
                f"{self.address} was changed by somebody else at the same moment; it was not replaced"
            )
        return now

    @property
    def _stream_address(self) -> Address:
        parent = self.address.parent
        assert parent is not None
        return parent

    async def _resume_old(self) -> None:
        """Leave the old consumer as it was; what cannot be undone now, the next plan undoes."""
        with suppress(JsplanError):
            await clean_up_consumer(self.context, self.step)

    async def delete(self) -> None:
        """Delete what has the name now, if anything has."""
        await _delete_consumer(self.context, self.step, self.address.stream, self.address.consumer)

    # --- the new one -----------------------------------------------------------------------------------------

    async def _choose_method(
        self, stream: LiveObject, way: PositionMethod | None = None
    ) -> PositionMethod:
        """How the new one comes to the recorded position; written down, so that whoever comes after knows it again."""
        position, config = self.record.get("position"), self.payload["config"]
        if position is None or stream.created != self.record.get("stream_created"):
            way = "plain"
        elif way is None:
            retention, first = (
                stream.compact.get("retention", "limits"),
                int(stream.state.get("first_seq") or 0),
            )
            way = choose_position_method(
                position,
                table_of(self.address).compact(config),
                self.params["api_level"],
                retention=retention,
                first_seq=first,
            )
        record, expect = dict(self.step.record or {}), dict(self.step.expect or {})
        if way == "start":
            assert position is not None
            config = with_start_sequence(position, config)
            record["starts"] = {self.address.consumer: position}
            expect |= {name: config.get(name) for name in START_FIELDS}
        config = {name: value for name, value in config.items() if name != PAUSE}
        until = self.record["hold_until"] if way == "reset" else self.params[PAUSE]
        config |= {PAUSE: until} if until else {}
        expect |= {PAUSE: self.params[PAUSE]} if self._can_pause else {}
        self.final_step = replace(
            self.step,
            expect=expect,
            record=record,
            request={"payload": self.payload | {"config": config}},
        )
        await self._save_record(expect=expect, record=record)
        return way

    async def create_new(self) -> None:
        """Make the new consumer, take it to its position, and record it."""
        stream = await self.context.read(self._stream_address)
        if stream is None:
            raise StepFailed(f"the stream of {self.address} is gone; nothing was written")
        way = await self._choose_method(stream)
        try:
            await self._create()
            if way == "reset" and not await self._reset():
                await self.delete()
                way = await self._choose_method(stream, "start")
                await self._create()
        except ApiError as error:
            place = self.record.get("position")
            raise StepFailed(
                f"{error}; the old consumer is gone, and its position (sequence {place}) is kept for the next apply"
            ) from None
        if way == "reset":
            await self._send("PAUSE", _pause_payload(self.params[PAUSE]))
        await self._verify_write()
        await self.context.record({"replaced": self.params["state_address"]})

    async def _create(self) -> None:
        assert self.final_step.request is not None
        await self._send("CREATE", self.final_step.request["payload"])

    async def _reset(self) -> bool:
        """Take the new consumer to the position; False where the server does not do that for its deliver_policy."""
        try:
            await self._send("RESET", {"seq": self.record["position"]})
        except ServerRefusedError as error:
            if error.err_code != RESET_REFUSED:
                raise
            return False
        return True

    async def _verify_write(self) -> None:
        try:
            live = await read_object(self.context.api(self.step), self.address)
        except ApiError as error:
            raise StepFailed(
                f"made anew, but it could not be read back: {error}", "unknown"
            ) from None
        if live is None:
            raise StepFailed(
                f"{self.address} is gone again: somebody else deleted it at the same moment"
            )
        self.context.note_result(self.step, live)
        lost = unkept_fields(self.final_step, live)
        await self.context.save_entry(self.final_step, live, lost)
        if lost:
            raise StepFailed(
                f"{self.address}: the server did not keep {describe_unkept(self.final_step, live, lost)}"
            )


def _without_pause(live: LiveObject) -> Config:
    return {name: value for name, value in live.compact.items() if name != PAUSE}


def _hold_until() -> str:
    """An instant that nobody else chooses, to the nanosecond: a consumer that is paused until then is ours, on its way."""
    return f"2250-01-01T00:00:00.{secrets.randbelow(10**8):08d}{1 + secrets.randbelow(9)}Z"
