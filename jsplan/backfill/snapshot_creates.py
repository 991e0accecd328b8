"""Creates of an apply whose stream is to be made from a snapshot: the step is the plan's, only what is created has messages already."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jsplan.applying.operations import Operation, run_step
from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.backfill.model import BackfillState, OriginState, find_stored_state, hash_config
from jsplan.documents.apply import BytesMoved
from jsplan.errors import ApiError, JsplanError, ServerRefusedError
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from jsplan.backfill.snapshot_copy import SnapshotRestore
    from jsplan.config.model import Backfill
    from jsplan.context import Context
    from jsplan.documents.plan import Plan, Step
    from jsplan.jetstream import Pool
    from jsplan.options import Observer, PlanOptions

#: Seconds that must be left of the lock when something is written; it is renewed while a restore goes on.
LEASE_SECONDS = 30.0


class SnapshotCreates:
    """The targets of a plan that are made so, by address, and what became of their entries (`results`, as in the result of an apply)."""

    def __init__(
        self, world: Context, pool: Pool, plan: Plan, options: PlanOptions, observer: Observer
    ) -> None:
        self._world = world
        self._pool = pool
        self._observer = observer
        names = [
            entry["name"]
            for entry in plan.backfills
            if entry.get("strategy") == "snapshot" and options.backfill
        ]
        entries = [
            world.workspace.backfills[name] for name in names if name in world.workspace.backfills
        ]
        self._entries_by_target = {str(entry.target): entry for entry in entries}
        self.results: dict[str, dict[str, Any]] = {}

    @property
    def operations(self) -> Mapping[str, Operation]:
        """What the executor does differently; nothing where no plan asks for it."""
        return {"stream.create": self._create_stream} if self._entries_by_target else {}

    async def _create_stream(self, work: StepContext, step: Step) -> None:
        entry = self._entries_by_target.get(step.address)
        if entry is None:
            await run_step(work, step, {})
            return
        await work.check_precondition(step)
        await work.begin(step)
        started = time.monotonic()
        record, filling = await self._prepare_restore(work, step, entry)
        self._observer.phase(f"Making {step.address} from a snapshot of {entry.origins[0]}")
        await _run_restore(work, step, filling)
        await work.verify_write(step)
        await self._save_done(work, record, filling, time.monotonic() - started)

    async def _prepare_restore(
        self, work: StepContext, step: Step, entry: Backfill
    ) -> tuple[BackfillState, SnapshotRestore]:
        """What is pinned, and what makes the target. A death from here on leaves a record that says by what it was begun."""
        from jsplan.backfill.pinning import Endpoints  # noqa: PLC0415
        from jsplan.backfill.snapshot_copy import SnapshotRestore  # noqa: PLC0415 - only a plan with backfills needs the extra

        assert step.request is not None
        side, domains = entry.origins[0], self._world.workspace.domains
        ends = Endpoints.of_domains(
            self._world, self._pool, domains[side.domain], domains[entry.target.domain]
        )
        try:
            info = await ends.origin.stream_info(side.stream)
        except ApiError as error:
            raise StepFailed(f"{error.full_text}; nothing was written") from None
        if info is None:
            raise StepFailed(f"{side} does not exist; nothing was written")
        record = find_stored_state(work.state.backfills, entry)
        if record is None or record.origins[0].created != info["created"]:
            state = info["state"]
            leg = OriginState(
                str(side),
                str(entry.target),
                info["created"],
                1,
                state["last_seq"],
                [],
                "",
                1,
                strategy="snapshot",
            )
            leg.first = int(state["first_seq"])
            record = BackfillState(entry.name, hash_config(entry), [leg], format_timestamp())
        record.origins[0].strategy, record.planned = "snapshot", False
        await work.record({"backfill": record.to_json()})
        whose = f"{self._world.workspace.state_name}/{entry.name}"

        def moved(done: int) -> None:
            work.backend.may_write(LEASE_SECONDS)
            self._observer.event(BytesMoved(step.id, done, 0))

        return record, SnapshotRestore(
            record.origins[0],
            ends,
            step.request["payload"],
            whose,
            lambda: work.backend.may_write(LEASE_SECONDS),
            moved,
        )

    async def _save_done(
        self, work: StepContext, record: BackfillState, filling: SnapshotRestore, seconds: float
    ) -> None:
        """The entry is done: nothing of it is left for Spark."""
        from jsplan.backfill.strategy_copy import find_snapshot_gaps  # noqa: PLC0415

        leg = record.origins[0]
        info = await filling.endpoints.target.stream_info(leg.target_address.stream)
        assert info is not None
        leg.gaps, leg.gap_messages = await find_snapshot_gaps(
            leg, filling.endpoints, self._world.topology
        )
        leg.status, leg.target_created, leg.target_last, leg.seconds = (
            "done",
            info["created"],
            int(info["state"]["last_seq"]),
            seconds,
        )
        leg.copied, record.done_at = int(info["state"]["messages"]), format_timestamp()
        await work.record({"backfill": record.to_json()})
        self.results[record.name] = {
            "status": "done",
            "copied": leg.copied,
            "gap_messages": leg.gap_messages,
            "error": None,
        }


async def _run_restore(work: StepContext, step: Step, filling: SnapshotRestore) -> None:
    """Raise StepFailed where the target could not be made; what is left of it then counts as not there."""
    try:
        await filling.run()
    except ServerRefusedError:
        await work.record({"end": step.address}, durable=False)
        raise
    except StepFailed:
        raise
    except JsplanError as error:
        await work.record({"end": step.address}, durable=False)
        raise StepFailed(
            f"{error.full_text} What is left of {step.address} is made anew by the next apply"
        ) from None
