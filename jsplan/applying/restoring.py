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

from jsplan.applying.work import StepFailed, Work
from jsplan.archives.manifest import Archive, Saved, SavedConsumer
from jsplan.archives.position import position
from jsplan.disk import open_regular
from jsplan.documents.apply import ApplyEvent, BytesMoved
from jsplan.documents.plan import Step
from jsplan.errors import ApiError, ApiTimeoutError, NotPermittedError, ServerRefusedError, StateError
from jsplan.facts.live import LiveObject
from jsplan.facts.survey import consumer_of
from jsplan.jetstream.api import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from jsplan.jetstream.snapshots import restore
from jsplan.planning.restoring import Wanted, differences, position_differences
from jsplan.planning.verdict import table_of

#: Seconds that must be left of the lock when a restore begins; it is renewed while the restore goes on.
LEASE = 30.0
READ = 128 * 1024
#: Seconds for a cluster to bring consumers back: since 2.15 it answers before it has.
SETTLES = 20.0
#: Seconds for which a consumer in a cluster must be where it was: on 2.10 one that was given nothing yet may jump to the end later.
STEADY = 2.0
#: Seconds for one answer about something that may not have a leader yet.
PATIENCE = 2.0


@dataclass(frozen=True)
class Restoring:
    """The operations of a restore from one folder. `wanted` are its streams by step address, `consumers` likewise."""

    folder: Path
    wanted: Mapping[str, Wanted]
    consumers: Mapping[str, tuple[Saved, SavedConsumer]]
    emit: Callable[[ApplyEvent], None]

    async def stream(self, work: Work, step: Step) -> None:
        """Restore one stream. Raises StepFailed where it came back as something else, ApiError where it was refused."""
        one = self.wanted[step.address]
        await work.check(step)
        await work.begin(step)
        state = await self._restored(work, step, one)
        await _led(work, step)
        await work.read_back(step)
        expires = bool(one.config.get("max_age") or one.config.get("allow_msg_ttl"))
        if lost := differences(one.saved, state, expires=expires):
            raise StepFailed(f"{step.address} was restored, but it has {', '.join(lost)}")

    async def _restored(self, work: Work, step: Step, one: Wanted) -> Mapping[str, Any]:
        archive = one.saved.archive

        def progress(done: int) -> None:
            self.emit(BytesMoved(step.id, done, archive.bytes))

        try:
            work.backend.may_write(LEASE)
            answer = await restore(work.api(step), one.config, one.saved.before, _chunks(self.folder, archive), on_progress=progress)
        except (ServerRefusedError, NotPermittedError):
            await work.record({"end": step.address}, durable=False)
            raise
        except StateError as error:
            raise StepFailed(f"{error}; nothing was restored") from None
        except ApiError as error:
            raise StepFailed(error.in_full, "unknown") from None
        except OSError as error:
            raise StepFailed(str(error), "unknown") from None
        state: Mapping[str, Any] = answer["state"]
        _tell_declared(step, one)
        return state

    async def consumer(self, work: Work, step: Step) -> None:
        """A consumer came with its stream: is it there, and where it was? Raises StepFailed that says what differs."""
        stream, saved = self.consumers[step.address]
        end, since, lost = time.monotonic() + SETTLES, time.monotonic(), list[str]()
        while True:
            live = await _looked_up(work, step)
            lost = position_differences(stream, saved, position(live.state)) if live is not None else []
            if live is None or lost:
                since = time.monotonic()
            elif not live.clustered or time.monotonic() - since > STEADY:
                break
            if time.monotonic() > end or work.stop.is_set():
                break
            await asyncio.sleep(0.1)
        if live is None:
            raise StepFailed(f"{step.address} was saved and did not come back with its stream")
        if step.record is not None:
            step.record["declared"] = _as_restored(step, table_of(step.touches).compact(saved.config))
            await work.remember(step, live)
        if lost:
            raise StepFailed(f"{step.address} came back, but has {', '.join(lost)}")


async def _looked_up(work: Work, step: Step) -> LiveObject | None:
    """The consumer; None as well while it has no leader yet, as nobody answers for it then."""
    address = step.touches
    try:
        answer = await work.api(step).request(f"CONSUMER.INFO.{address.stream}.{address.consumer}", timeout=PATIENCE)
    except ApiTimeoutError:
        return None
    except ServerRefusedError as error:
        if error.err_code in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
            return None
        raise
    return consumer_of(address, answer)


async def _led(work: Work, step: Step) -> None:
    """Wait until somebody in a cluster answers for the new stream; one that nobody answers for is left to the read-back."""
    end = time.monotonic() + SETTLES
    while time.monotonic() < end:
        try:
            await work.api(step).request(f"STREAM.INFO.{step.touches.stream}", timeout=PATIENCE)
        except ApiTimeoutError:
            continue
        except ApiError:
            await asyncio.sleep(0.1)
            continue
        return


def _tell_declared(step: Step, one: Wanted) -> None:
    if step.record is not None:
        step.record["declared"] = _as_restored(step, table_of(step.touches).compact(one.config))


def _as_restored(step: Step, compact: Mapping[str, Any]) -> dict[str, Any]:
    """What the files name, with the values that were restored: the next plan shows where they differ."""
    assert step.record is not None
    return {name: compact.get(name) for name in step.record["declared"]}


async def _chunks(folder: Path, archive: Archive) -> AsyncGenerator[bytes, None]:
    """The archive; raises ApiError instead of the end when it is not what its manifest says, so that nothing is restored."""
    digest = hashlib.sha256()
    with open_regular(folder / archive.file) as file:
        while data := file.read(READ):
            digest.update(data)
            yield data
    if digest.hexdigest() != archive.sha256:
        raise ApiError(f"{archive.file} changed while it was restored", hint="Nothing of it was kept.")
