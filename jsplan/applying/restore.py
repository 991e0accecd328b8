"""Steps of a restore from a backup: send a snapshot, compare the result with the manifest.

The snapshots were checked before the first write, and are checked again while they are sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from jsplan.applying.operations import Operation
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.transfer.consumers import create_consumer, find_position
from jsplan.backup.differences import extract_position, position_differences, restore_differences
from jsplan.backup.folder import BackupError, find_damage
from jsplan.backup.manifest import SavedConsumer, StreamSnapshot
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
from jsplan.facts.live import LiveObject, get_retention
from jsplan.facts.reader import parse_consumer
from jsplan.jetstream.snapshots import repeat_restore, restore_stream
from jsplan.planning.restore.interrupted import is_part_of
from jsplan.planning.restore.selection import Backup, RestoreTarget
from jsplan.planning.transfer.consumer_position import choose_position_method, with_start_sequence
from jsplan.resources import CONSUMER
from jsplan.resources.error_codes import NOT_FOUND

#: Seconds of the lock that must be left when a restore begins. It is renewed during the restore.
MIN_LEASE = 30.0
READ_SIZE = 128 * 1024
#: Seconds for a cluster to restore consumers: since 2.15 it answers before it has.
RECOVERY_TIMEOUT = 20.0
#: Seconds a consumer must stay at its position: on 2.10 an unused one may jump to the end later.
STABLE_TIME = 2.0
#: Seconds for one answer about an object that may have no leader yet.
ANSWER_TIMEOUT = 2.0


async def verify_snapshots(folder: Path, backup: Backup) -> None:
    """Raise BackupError that lists damaged archives, before any request to a server."""
    archives = [target.saved.archive for target in backup.values()]
    found = await asyncio.gather(
        *(asyncio.to_thread(find_damage, folder, archive) for archive in archives)
    )
    damaged = [text for text in found if text is not None]
    if damaged:
        listed = "".join(f"\n  - {text}" for text in damaged)
        raise BackupError(
            f"{folder} is damaged, nothing was restored:{listed}",
            hint="Exclude it with --exclude, or use another backup.",
        )


class RestoreOperations(Struct, frozen=True):
    """Operations of a restore: they need the folder of the backup, which no plan names."""

    folder: Path
    backup: Backup
    emit: Callable[[ApplyEvent], None]

    @property
    def by_op(self) -> Mapping[str, Operation]:
        """The operations by the kinds of their steps."""
        return {"stream.restore": self.restore_stream, "consumer.verify": self.verify_consumer}

    async def restore_stream(self, context: StepContext, step: Step) -> None:
        """Restore one stream. Raises StepFailed where the result differs, ApiError on refusal."""
        target = self.backup[step.target_address]
        part = await context.check_precondition(step)
        if part is not None and not is_part_of(part, target):
            raise StepFailed(f"{step.address} has got other messages; nothing was written")
        await context.begin(step)
        if part is not None:
            await context.api(step).request(f"STREAM.DELETE.{step.target_address.stream}")
        state = await self._send_snapshot(context, step, target)
        await _wait_for_leader(context, step)
        if target.first_config != target.config:
            name = step.target_address.stream
            answer = await context.api(step).request(f"STREAM.UPDATE.{name}", target.config)
            state = answer["state"]
        await context.verify_write(step)
        expires = bool(target.config.get("max_age") or target.config.get("allow_msg_ttl"))
        if lost := restore_differences(target.saved, state, expires=expires):
            raise StepFailed(f"{step.address} was restored, but it has {', '.join(lost)}")

    async def _send_snapshot(
        self, context: StepContext, step: Step, target: RestoreTarget
    ) -> Mapping[str, Any]:
        snapshot = target.saved.archive

        def progress(done: int) -> None:
            self.emit(BytesMoved(step.id, done, snapshot.bytes))

        async def send() -> dict[str, Any]:
            context.backend.may_write(MIN_LEASE)
            return await restore_stream(
                context.api(step),
                target.first_config,
                target.saved.before,
                read_snapshot(self.folder, snapshot),
                on_progress=progress,
            )

        try:
            answer = await repeat_restore(context.api(step), send)
        except (ServerRefusedError, NotPermittedError):
            await context.record({"end": step.address}, durable=False)
            raise
        except StateError as error:
            raise StepFailed(f"{error}; nothing was restored") from None
        except ApiError as error:
            raise StepFailed(error.full_text, "unknown") from None
        except OSError as error:
            raise StepFailed(str(error), "unknown") from None
        state: Mapping[str, Any] = answer["state"]
        return state

    async def verify_consumer(self, context: StepContext, step: Step) -> None:
        """Verify a restored consumer and its position. Raises StepFailed with the differences."""
        assert step.target_address.parent is not None
        target = self.backup[step.target_address.parent]
        stream, saved = target.saved, target.consumers[step.target_address]
        began = since = time.monotonic()
        end, lost, is_created = began + RECOVERY_TIMEOUT, list[str](), False
        while True:
            live = await _read_consumer(context, step)
            if is_created and live is not None:
                break
            may_lack = live is None and not is_created and time.monotonic() - began > STABLE_TIME
            if may_lack and await _is_not_in_archive(context, step):
                await _create_at_position(context, step, saved)
                is_created = True
                continue
            now = extract_position(live.state) if live is not None else None
            lost = position_differences(stream, saved, now) if now is not None else []
            if live is None or lost:
                since = time.monotonic()
            elif not live.is_clustered or time.monotonic() - since > STABLE_TIME:
                break
            if time.monotonic() > end or context.stop.is_set():
                break
            await asyncio.sleep(0.1)
        if live is None:
            raise StepFailed(
                f"{step.address} is in the backup, but was not restored with its stream"
            )
        if step.record is not None:
            await context.save_entry(step, live)
        if lost:
            raise StepFailed(f"{step.address} was restored, but has {', '.join(lost)}")


async def _read_consumer(context: StepContext, step: Step) -> LiveObject | None:
    """Read the consumer; None also while it has no leader yet, since then no server answers."""
    address = step.target_address
    try:
        answer = await context.api(step).request(
            f"CONSUMER.INFO.{address.stream}.{address.consumer}", timeout=ANSWER_TIMEOUT
        )
    except ApiTimeoutError:
        return None
    except ServerRefusedError as error:
        if error.err_code in NOT_FOUND:
            return None
        raise
    return parse_consumer(address, answer)


async def _is_not_in_archive(context: StepContext, step: Step) -> bool:
    """Check whether a consumer is none of those that the server took from the archive.

    Clusters before 2.15 save the consumers of the server that leads the stream, no server before
    2.15 those in memory. The stream counts what came with it, also before a cluster knows it.
    """
    address, api = step.target_address, context.api(step)
    try:
        stream = await api.request(f"STREAM.INFO.{address.stream}", timeout=ANSWER_TIMEOUT)
    except ApiTimeoutError:
        return False
    names = await api.consumer_names(address.stream)
    count = int(stream["state"].get("consumer_count") or 0)
    return address.consumer not in names and len(names) >= count


async def _create_at_position(context: StepContext, step: Step, saved: SavedConsumer) -> None:
    """Create a consumer at the position in the manifest, in one request, so that a kill is safe.

    State records the start that it gets in place of its own. Raises StepFailed and ApiError.
    """
    assert step.target_address.parent is not None
    stream = await context.require(step.target_address.parent)
    own = replace(step, params={"api_level": context.plan.domains[step.domain]["api_level"]})
    old = {"config": saved.config, "created": saved.created, "state": saved.before}
    position = await find_position(context, own, stream, old)
    retention, first = get_retention(stream.compact), int(stream.state.get("first_seq") or 0)
    config = CONSUMER.compact(saved.config)
    method = choose_position_method(position, config, 0, retention=retention, first_seq=first)
    config = with_start_sequence(position, saved.config) if method == "start" else saved.config
    if method == "start" and step.record is not None:
        step.record["starts"] = {saved.name: position}
    await create_consumer(context, own, step.target_address, config)


async def _wait_for_leader(context: StepContext, step: Step) -> None:
    """Wait until a server of the cluster answers for the new stream, or until the timeout."""
    end = time.monotonic() + RECOVERY_TIMEOUT
    while time.monotonic() < end:
        try:
            await context.api(step).request(
                f"STREAM.INFO.{step.target_address.stream}", timeout=ANSWER_TIMEOUT
            )
        except ApiTimeoutError:
            continue
        except ApiError:
            await asyncio.sleep(0.1)
            continue
        return


async def read_snapshot(folder: Path, snapshot: StreamSnapshot) -> AsyncGenerator[bytes, None]:
    """Read a snapshot file. Raises ApiError at its end if its checksum differs."""
    digest = hashlib.sha256()
    with open_regular(folder / snapshot.file) as file:
        while data := file.read(READ_SIZE):
            digest.update(data)
            yield data
    if digest.hexdigest() != snapshot.sha256:
        raise ApiError(
            f"{snapshot.file} changed while it was restored", hint="Nothing of it was kept."
        )
