"""Replacement of a consumer at its position.

It takes several requests, and the process may die after each. State records the replacement under
`replacements`:

1. before the first request: `created` of the old consumer, its own pause, the pause that holds it;
2. the old consumer is paused, so that nothing more is delivered;
3. before the old one is deleted: the position, and the configuration of the new one;
4. the delete, the create, and where the server can (2.14) the reset of the new one, which is paused
   until then;
5. the new one in state; the record is removed.

An interest stream has a placeholder consumer meanwhile, through its own steps (`placeholders`).

A later process finds the old consumer (starts over), none (continues at the recorded position), a
new one with the same holding pause (recreates it), or the finished one (removes the record).
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.wake import resume_consumers
from jsplan.applying.verify_write import describe_unkept, unkept_fields
from jsplan.documents.base import plain
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, JsplanError, ServerRefusedError
from jsplan.facts.consumer_position import position_of
from jsplan.facts.consumer_start import find_first_delivered
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_object
from jsplan.planning.decide import table_of
from jsplan.planning.pauses import PAUSE, is_held
from jsplan.planning.transfer.consumer_position import (
    START_FIELDS,
    PositionMethod,
    choose_position_method,
    with_start_sequence,
)
from jsplan.resources.consumer import filters_of
from jsplan.resources.error_codes import RESET_REFUSED
from jsplan.resources.fields import Config

#: Polls, and seconds between them, while clients have not acknowledged their messages yet.
MAX_POLLS, POLL_INTERVAL = 20, 0.05


async def replace_consumer(context: StepContext, step: Step) -> None:
    """Run `consumer.replace`. Raises StepFailed, StepNotStarted, ApiError and StateError."""
    live = await context.check_precondition(step)
    await context.begin(step, live)
    interrupted = context.state.replacements.get((step.params or {})["state_address"])
    replacement = ConsumerReplacement(context, step, dict(interrupted or {}))
    if live is None:
        await replacement.create_new()
    elif (
        interrupted is not None
        and live.created != interrupted["created"]
        and is_held(live.compact, interrupted)
    ):
        await replacement.delete()
        await replacement.create_new()
    else:
        await replacement.remove_old(live)
        await replacement.create_new()


async def clean_up_consumer(context: StepContext, step: Step) -> None:
    """Run `consumer.cleanup`: resume an old consumer that is still paused.

    Raises as `replace_consumer` does.
    """
    recorded = (step.params or {})["state_address"]
    interrupted = context.state.replacements.get(recorded)
    if interrupted is None:
        return
    address = Address.parse(step.address)
    live = await context.read(address)
    if live is not None and is_held(live.compact, interrupted):
        await resume_consumers(context, step, {address: interrupted.get(PAUSE)})
        await _record_resumed(context, address)
    await context.record({"replaced": recorded})


async def _record_resumed(context: StepContext, address: Address) -> None:
    """Record the resumed configuration: an entry that was recorded before has the holding pause."""
    entry, live = context.state.resources.get(address), await context.read(address)
    if entry is not None and live is not None and live.created == entry.created:
        await context.record(
            {
                "put": {
                    "address": str(address),
                    "entry": plain(replace(entry, config=live.config, seen=live.answered_at)),
                }
            }
        )


@dataclass
class ConsumerReplacement:
    """The replacement of one consumer. `record` is its record in state."""

    context: StepContext
    step: Step
    record: dict[str, Any]
    final_step: Step = field(init=False)

    def __post_init__(self) -> None:
        self.final_step = self.step
        self.address = self.step.target_address
        self.params = self.step.params or {}
        self.payload = (self.step.request or {}).get("payload", {})

    async def _send(self, verb: str, payload: dict[str, Any] | None = None) -> None:
        await self.context.send(
            self.step, f"CONSUMER.{verb}.{self.address.stream}.{self.address.consumer}", payload
        )

    async def _save_record(self, **changes: Any) -> None:
        self.record |= changes
        await self.context.record({"replacing": self.record})

    # --- the old consumer ------------------------------------------------------------------------

    async def remove_old(self, live: LiveObject) -> None:
        """Pause the old consumer, record its position, delete it. Undo what fails before that."""
        stream, position = await self.hold(live)
        await self._save_record(position=position, stream_created=stream.created)
        await self._choose_method(stream)
        await self.delete()

    async def hold(self, live: LiveObject) -> tuple[LiveObject, int]:
        """Record and pause the consumer; return its stream and the position that is wanted.

        Resume it where that fails.
        """
        is_resumed = self.record.get("created") == live.created
        own = self.record.get(PAUSE) if is_resumed else live.compact.get(PAUSE)
        hold = self.record["hold_until"] if is_resumed else _hold_until()
        await self._save_record(
            address=self.params["state_address"],
            created=live.created,
            hold_until=hold,
            position_once=(self.params.get("reset") or {}).get("once", ""),
            **{PAUSE: own},
        )
        try:
            await self._send("PAUSE", {PAUSE: self.record["hold_until"]})
            stream, state = await self._wait_until_idle(live)
            position = position_of(
                live.compact, state, self.params["api_level"]
            ) or await self._find_start(live, stream, state["delivered"])
        except JsplanError:
            await self.resume_old()
            raise
        return stream, self._reset_position(position)

    def _reset_position(self, position: int) -> int:
        """Return the position of the new consumer, whose old one is at `position` now.

        What the plan did not announce does not happen: a reset forward repeats nothing if the old
        consumer has passed the sequence by now, and one back skips nothing.
        """
        reset = self.params.get("reset")
        if reset is None:
            return position
        match reset["direction"]:
            case "back":
                return min(int(reset["seq"]), position)
            case "forward":
                return max(int(reset["seq"]), position)
            case _:
                return int(reset["seq"])

    async def _wait_until_idle(self, live: LiveObject) -> tuple[LiveObject, dict[str, Any]]:
        """Wait a moment for acknowledgements; return the stream and the consumer's state."""
        now = await self._require_unchanged(live)
        for _ in range(MAX_POLLS):
            if not now.state.get("num_ack_pending"):
                break
            await asyncio.sleep(POLL_INTERVAL)
            now = await self._require_unchanged(live)
        stream = await self.context.read(self._stream_address)
        if stream is None:
            raise StepFailed(
                f"the stream of {self.address} was deleted by another client during the apply"
            )
        return stream, now.state

    async def _find_start(self, live: LiveObject, stream: LiveObject, given: dict[str, Any]) -> int:
        """Find the start of a consumer that acknowledged nothing, by its number of deliveries.

        Redeliveries move it further back.
        """
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
                f"{self.address} was changed by another client during the apply; "
                "it was not replaced"
            )
        return now

    @property
    def _stream_address(self) -> Address:
        parent = self.address.parent
        assert parent is not None
        return parent

    async def resume_old(self) -> None:
        """Resume the old consumer. If that fails, the next plan does it."""
        with suppress(JsplanError):
            await clean_up_consumer(self.context, self.step)

    async def delete(self) -> None:
        """Delete the consumer that has the name now, if there is one."""
        name = f"{self.address.stream}.{self.address.consumer}"
        await self.context.send_if_exists(self.step, f"CONSUMER.DELETE.{name}")

    # --- the new consumer ------------------------------------------------------------------------

    async def _choose_method(
        self, stream: LiveObject, method: PositionMethod | None = None
    ) -> PositionMethod:
        """Choose how the new consumer gets the recorded position, and record it."""
        position, config = self.record.get("position"), self.payload["config"]
        if position is None or stream.created != self.record.get("stream_created"):
            method = "plain"
        elif method is None:
            retention, first = (
                stream.compact.get("retention", "limits"),
                int(stream.state.get("first_seq") or 0),
            )
            method = choose_position_method(
                position,
                table_of(self.address).compact(config),
                self.params["api_level"],
                retention=retention,
                first_seq=first,
            )
        record, expect = dict(self.step.record or {}), dict(self.step.expect or {})
        if method == "start":
            assert position is not None
            config = with_start_sequence(position, config)
            record["starts"] = {self.address.consumer: position}
            expect |= {name: config.get(name) for name in START_FIELDS}
        config = {name: value for name, value in config.items() if name != PAUSE}
        until = self.record["hold_until"] if method == "reset" else self.params[PAUSE]
        config |= {PAUSE: until} if until else {}
        expect |= {PAUSE: self.params[PAUSE]}
        self.final_step = replace(
            self.step,
            expect=expect,
            record=record,
            request={"payload": self.payload | {"config": config}},
        )
        await self._save_record(expect=expect, record=record)
        return method

    async def create_new(self) -> None:
        """Create the new consumer at its position and record it."""
        stream = await self.context.read(self._stream_address)
        if stream is None:
            raise StepFailed(f"the stream of {self.address} is gone; nothing was written")
        method = await self._choose_method(stream)
        try:
            await self._create()
            if method == "reset" and not await self._reset():
                await self.delete()
                method = await self._choose_method(stream, "start")
                await self._create()
        except ApiError as error:
            position = self.record.get("position")
            raise StepFailed(
                f"{error}; the old consumer is deleted, and its position (sequence {position}) "
                "is kept for the next apply"
            ) from None
        if method == "reset":
            await resume_consumers(self.context, self.step, {self.address: self.params[PAUSE]})
        await self._verify_write()
        await self.context.record({"replaced": self.params["state_address"]})

    async def _create(self) -> None:
        assert self.final_step.request is not None
        await self._send("CREATE", self.final_step.request["payload"])

    async def _reset(self) -> bool:
        """Reset the new consumer to the position; False where its deliver_policy forbids it."""
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
                f"recreated, but it could not be read back: {error}", "unknown"
            ) from None
        if live is None:
            raise StepFailed(
                f"{self.address} is gone again: another client deleted it during the apply"
            )
        self.context.note_result(self.step, live)
        lost = unkept_fields(self.final_step, live)
        await self.context.save_entry(self.final_step, live, lost)
        if lost:
            raise StepFailed(
                f"{self.address}: the server did not keep "
                f"{describe_unkept(self.final_step, live, lost)}"
            )


def _without_pause(live: LiveObject) -> Config:
    return {name: value for name, value in live.compact.items() if name != PAUSE}


def _hold_until() -> str:
    """Return a random far instant that identifies our pause, to the nanosecond."""
    return f"2250-01-01T00:00:00.{secrets.randbelow(10**8):08d}{1 + secrets.randbelow(9)}Z"
