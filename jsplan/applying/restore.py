"""Carries out the steps of a restore: an archive goes out, and what came of it is held against what was saved.

What is restored, and whether it may be, was decided by `planning.restoring`; that archives are undamaged was checked
before the first write and is checked again on the way out.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.backup.consumer_position import extract_position
from jsplan.backup.manifest import SavedConsumer, SavedStream, StreamSnapshot
from jsplan.disk import open_regular
from jsplan.documents.apply import ApplyEvent, BytesMoved
from jsplan.documents.plan import Step
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    NotPermittedError,
    ServerRefusedError,
    StateError,
)
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import parse_consumer
from jsplan.jetstream.api import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from jsplan.jetstream.snapshots import restore_stream
from jsplan.planning.decide import table_of
from jsplan.planning.restore import RestoreTarget, position_differences, restore_differences

#: Seconds that must be left of the lock when a restore begins; it is renewed while the restore goes on.
MIN_LEASE = 30.0
READ_SIZE = 128 * 1024
#: Seconds for a cluster to bring consumers back: since 2.15 it answers before it has.
RECOVERY_TIMEOUT = 20.0
#: Seconds for which a consumer in a cluster must be where it was: on 2.10 one that was given nothing yet may jump to the end later.
STABLE_TIME = 2.0
#: Seconds for one answer about something that may not have a leader yet.
ANSWER_TIMEOUT = 2.0


@dataclass(frozen=True)
class RestoreOperations:
    """The operations of a restore from one folder. `targets` are its streams by step address, `consumers` likewise."""

    folder: Path
    targets: Mapping[str, RestoreTarget]
    consumers: Mapping[str, tuple[SavedStream, SavedConsumer]]
    emit: Callable[[ApplyEvent], None]

    async def restore_stream(self, work: StepContext, step: Step) -> None:
        """Restore one stream. Raises StepFailed where it came back as something else, ApiError where it was refused."""
        one = self.targets[step.address]
        await work.check_precondition(step)
        await work.begin(step)
        state = await self._send_archive(work, step, one)
        await _wait_for_leader(work, step)
        await work.verify_write(step)
        expires = bool(one.config.get("max_age") or one.config.get("allow_msg_ttl"))
        if lost := restore_differences(one.saved, state, expires=expires):
            raise StepFailed(f"{step.address} was restored, but it has {', '.join(lost)}")

    async def _send_archive(
        self, work: StepContext, step: Step, one: RestoreTarget
    ) -> Mapping[str, Any]:
        archive = one.saved.archive

        def progress(done: int) -> None:
            self.emit(BytesMoved(step.id, done, archive.bytes))

        try:
            work.backend.may_write(MIN_LEASE)
            answer = await restore_stream(
                work.api(step),
                one.config,
                one.saved.before,
                _read_archive(self.folder, archive),
                on_progress=progress,
            )
        except (ServerRefusedError, NotPermittedError):
            await work.record({"end": step.address}, durable=False)
            raise
        except StateError as error:
            raise StepFailed(f"{error}; nothing was restored") from None
        except ApiError as error:
            raise StepFailed(error.full_text, "unknown") from None
        except OSError as error:
            raise StepFailed(str(error), "unknown") from None
        state: Mapping[str, Any] = answer["state"]
        _set_declared(step, one)
        return state

    async def verify_consumer(self, work: StepContext, step: Step) -> None:
        """A consumer came with its stream: is it there, and where it was? Raises StepFailed that says what differs."""
        stream, saved = self.consumers[step.address]
        end, since, lost = time.monotonic() + RECOVERY_TIMEOUT, time.monotonic(), list[str]()
        while True:
            live = await _read_consumer(work, step)
            lost = (
                position_differences(stream, saved, extract_position(live.state))
                if live is not None
                else []
            )
            if live is None or lost:
                since = time.monotonic()
            elif not live.is_clustered or time.monotonic() - since > STABLE_TIME:
                break
            if time.monotonic() > end or work.stop.is_set():
                break
            await asyncio.sleep(0.1)
        if live is None:
            raise StepFailed(f"{step.address} was saved and did not come back with its stream")
        if step.record is not None:
            step.record["declared"] = _restored_values(
                step, table_of(step.target_address).compact(saved.config)
            )
            await work.save_entry(step, live)
        if lost:
            raise StepFailed(f"{step.address} came back, but has {', '.join(lost)}")


async def _read_consumer(work: StepContext, step: Step) -> LiveObject | None:
    """The consumer; None as well while it has no leader yet, as nobody answers for it then."""
    address = step.target_address
    try:
        answer = await work.api(step).request(
            f"CONSUMER.INFO.{address.stream}.{address.consumer}", timeout=ANSWER_TIMEOUT
        )
    except ApiTimeoutError:
        return None
    except ServerRefusedError as error:
        if error.err_code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
            return None
        raise
    return parse_consumer(address, answer)


async def _wait_for_leader(work: StepContext, step: Step) -> None:
    """Wait until somebody in a cluster answers for the new stream; one that nobody answers for is left to the read-back."""
    end = time.monotonic() + RECOVERY_TIMEOUT
    while time.monotonic() < end:
        try:
            await work.api(step).request(
                f"STREAM.INFO.{step.target_address.stream}", timeout=ANSWER_TIMEOUT
            )
        except ApiTimeoutError:
            continue
        except ApiError:
            await asyncio.sleep(0.1)
            continue
        return


def _set_declared(step: Step, one: RestoreTarget) -> None:
    if step.record is not None:
        step.record["declared"] = _restored_values(
            step, table_of(step.target_address).compact(one.config)
        )


def _restored_values(step: Step, compact: Mapping[str, Any]) -> dict[str, Any]:
    """What the files name, with the values that were restored: the next plan shows where they differ."""
    assert step.record is not None
    return {name: compact.get(name) for name in step.record["declared"]}


async def _read_archive(folder: Path, archive: StreamSnapshot) -> AsyncGenerator[bytes, None]:
    """The archive; raises ApiError instead of the end when it is not what its manifest says, so that nothing is restored."""
    digest = hashlib.sha256()
    with open_regular(folder / archive.file) as file:
        while data := file.read(READ_SIZE):
            digest.update(data)
            yield data
    if digest.hexdigest() != archive.sha256:
        raise ApiError(
            f"{archive.file} changed while it was restored", hint="Nothing of it was kept."
        )
