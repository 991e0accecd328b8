"""Create steps of an apply that create a stream from a snapshot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from jsplan.applying.operations import Operation, run_step
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.documents.apply import BytesMoved
from jsplan.errors import ApiError, JsplanError, ServerRefusedError
from jsplan.planning.backfill.model import (
    BackfillState,
    OriginState,
    find_stored_state,
    hash_config,
)
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from jsplan.backfill.snapshot_copy import SnapshotRestore
    from jsplan.config.model import Backfill
    from jsplan.context import Session
    from jsplan.documents.plan import Plan, Step

#: Seconds that the lock must still last for a write; it is renewed during a restore.
LEASE_SECONDS = 30.0


class SnapshotCreates:
    """The targets of a plan with strategy `snapshot`; `results` are as in an apply."""

    def __init__(self, session: Session, plan: Plan, *, with_backfills: bool) -> None:
        world = self._world = session.context
        self._pool = session.pool
        self._observer = session.observer
        declared = world.workspace.backfills
        entries = [
            declared[entry["name"]]
            for entry in plan.backfills
            if with_backfills and entry.get("strategy") == "snapshot" and entry["name"] in declared
        ]
        self._entries_by_target = {str(entry.target): entry for entry in entries}
        self.results: dict[str, dict[str, Any]] = {}

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The operations that the executor replaces; empty without such targets."""
        return {"stream.create": self._create_stream} if self._entries_by_target else {}

    async def _create_stream(self, context: StepContext, step: Step) -> None:
        entry = self._entries_by_target.get(step.address)
        if entry is None:
            await run_step(context, step)
            return
        await context.check_precondition(step)
        await context.begin(step)
        started = time.monotonic()
        record, restore = await self._prepare_restore(context, step, entry)
        self._observer.phase(f"Creating {step.address} from a snapshot of {entry.origins[0]}")
        await _run_restore(context, step, restore)
        await context.verify_write(step)
        await self._save_done(context, record, restore, time.monotonic() - started)

    async def _prepare_restore(
        self, context: StepContext, step: Step, entry: Backfill
    ) -> tuple[BackfillState, SnapshotRestore]:
        """Pin the range and build the restore. A resumed run finds the strategy in the record."""
        from jsplan.backfill.endpoints import Endpoints  # noqa: PLC0415
        from jsplan.backfill.snapshot_copy import SnapshotRestore  # noqa: PLC0415 - needs the extra

        assert step.request is not None
        side, domains = entry.origins[0], self._world.workspace.domains
        endpoints = Endpoints.of_domains(
            self._world, self._pool, domains[side.domain], domains[entry.target.domain]
        )
        try:
            info = await endpoints.origin.stream_info(side.stream)
        except ApiError as error:
            raise StepFailed(f"{error.full_text}; nothing was written") from None
        if info is None:
            raise StepFailed(f"{side} does not exist; nothing was written")
        record = find_stored_state(context.state.backfills, entry)
        if record is None or record.origins[0].created != info["created"]:
            # The first sequence of a stream that never had a message is 0.
            seqs = max(1, info["state"]["first_seq"]), info["state"]["last_seq"]
            origin = OriginState(str(side), str(entry.target), info["created"], *seqs, [], "", 1)
            record = BackfillState(entry.name, hash_config(entry), [origin], format_timestamp())
        record.origins[0].strategy, record.planned = "snapshot", False
        await context.record({"backfill": to_builtins(record)})
        owner = f"{self._world.workspace.state_name}/{entry.name}"

        def report_progress(done: int) -> None:
            context.backend.may_write(LEASE_SECONDS)
            self._observer.event(BytesMoved(step.id, done, 0))

        return record, SnapshotRestore(
            record.origins[0],
            endpoints,
            step.request["payload"],
            owner,
            lambda: context.backend.may_write(LEASE_SECONDS),
            report_progress,
        )

    async def _save_done(
        self, context: StepContext, record: BackfillState, restore: SnapshotRestore, seconds: float
    ) -> None:
        """Record the entry as done: Spark has nothing to copy."""
        from jsplan.backfill.snapshot_copy import find_snapshot_gaps  # noqa: PLC0415

        origin = record.origins[0]
        info = await restore.endpoints.target.stream_info(origin.target_address.stream)
        assert info is not None
        origin.gaps, origin.gap_messages = await find_snapshot_gaps(origin, restore.endpoints)
        origin.status, origin.target_created, origin.seconds = "done", info["created"], seconds
        origin.copied, record.done_at = int(info["state"]["messages"]), format_timestamp()
        await context.record({"backfill": to_builtins(record)})
        self.results[record.name] = {
            "status": "done",
            "copied": origin.copied,
            "gap_messages": origin.gap_messages,
            "error": None,
        }


async def _run_restore(context: StepContext, step: Step, restore: SnapshotRestore) -> None:
    """Raise StepFailed if the target was not created; an incomplete one counts as absent."""
    try:
        await restore.run()
    except StepFailed:
        raise
    except JsplanError as error:
        await context.record({"end": step.address}, durable=False)
        if isinstance(error, ServerRefusedError):
            raise
        raise StepFailed(f"{error.full_text} The next apply creates {step.address} again") from None
