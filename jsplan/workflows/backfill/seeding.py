"""Creates of an apply whose stream is to be made from a snapshot: the step is the plan's, only what is created has messages already."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jsplan.applying.operations import Operation, carry_out
from jsplan.applying.work import StepFailed, Work
from jsplan.backfill.records import Leg, Record, kept, text_of
from jsplan.documents.apply import BytesMoved
from jsplan.errors import ApiError, JsplanError, ServerRefusedError
from jsplan.units import stamp

if TYPE_CHECKING:
    from jsplan.config.model import Backfill
    from jsplan.documents.plan import Plan, Step
    from jsplan.jetstream import Pool
    from jsplan.workflows.backfill.filling import Filling
    from jsplan.workflows.options import Observer, PlanOptions
    from jsplan.workflows.world import World

#: Seconds that must be left of the lock when something is written; it is renewed while a restore goes on.
LEASE = 30.0


class Seeding:
    """The targets of a plan that are made so, by address, and what became of their entries (`done`, as in the result of an apply)."""

    def __init__(self, world: World, pool: Pool, plan: Plan, options: PlanOptions, observer: Observer) -> None:
        self._world = world
        self._pool = pool
        self._observer = observer
        names = [entry["name"] for entry in plan.backfills if entry.get("strategy") == "snapshot" and options.backfill]
        entries = [world.workspace.backfills[name] for name in names if name in world.workspace.backfills]
        self._wanted = {str(entry.target): entry for entry in entries}
        self.done: dict[str, dict[str, Any]] = {}

    @property
    def operations(self) -> Mapping[str, Operation]:
        """What the executor does differently; nothing where no plan asks for it."""
        return {"stream.create": self._create} if self._wanted else {}

    async def _create(self, work: Work, step: Step) -> None:
        entry = self._wanted.get(step.address)
        if entry is None:
            await carry_out(work, step, {})
            return
        await work.check(step)
        await work.begin(step)
        started = time.monotonic()
        record, filling = await self._prepared(work, step, entry)
        self._observer.phase(f"Making {step.address} from a snapshot of {entry.origins[0]}")
        await _filled(work, step, filling)
        await work.read_back(step)
        await self._keep(work, record, filling, time.monotonic() - started)

    async def _prepared(self, work: Work, step: Step, entry: Backfill) -> tuple[Record, Filling]:
        """What is pinned, and what makes the target. A death from here on leaves a record that says by what it was begun."""
        from jsplan.workflows.backfill.filling import Filling  # noqa: PLC0415 - only a plan with backfills needs the extra
        from jsplan.workflows.backfill.freeze import Ends  # noqa: PLC0415

        assert step.request is not None
        side, domains = entry.origins[0], self._world.workspace.domains
        ends = Ends.of(self._world, self._pool, domains[side.domain], domains[entry.target.domain])
        try:
            info = await ends.origin.stream_info(side.stream)
        except ApiError as error:
            raise StepFailed(f"{error.in_full}; nothing was written") from None
        if info is None:
            raise StepFailed(f"{side} does not exist; nothing was written")
        record = kept(work.state.backfills, entry)
        if record is None or record.origins[0].created != info["created"]:
            state = info["state"]
            leg = Leg(str(side), str(entry.target), info["created"], 1, state["last_seq"], [], "", 1, strategy="snapshot")
            leg.first = int(state["first_seq"])
            record = Record(entry.name, text_of(entry), [leg], stamp())
        record.origins[0].strategy, record.planned = "snapshot", False
        await work.record({"backfill": record.to_json()})
        whose = f"{self._world.workspace.state_name}/{entry.name}"

        def moved(done: int) -> None:
            work.backend.may_write(LEASE)
            self._observer.event(BytesMoved(step.id, done, 0))

        return record, Filling(record.origins[0], ends, step.request["payload"], whose, lambda: work.backend.may_write(LEASE), moved)

    async def _keep(self, work: Work, record: Record, filling: Filling, seconds: float) -> None:
        """The entry is done: nothing of it is left for Spark."""
        from jsplan.workflows.backfill.tools import snapshot_gaps  # noqa: PLC0415

        leg = record.origins[0]
        info = await filling.ends.target.stream_info(leg.target_address.stream)
        assert info is not None
        leg.gaps, leg.gap_messages = await snapshot_gaps(leg, filling.ends, self._world.topology)
        leg.status, leg.target_created, leg.target_last, leg.seconds = "done", info["created"], int(info["state"]["last_seq"]), seconds
        leg.copied, record.done_at = int(info["state"]["messages"]), stamp()
        await work.record({"backfill": record.to_json()})
        self.done[record.name] = {"status": "done", "copied": leg.copied, "gap_messages": leg.gap_messages, "error": None}


async def _filled(work: Work, step: Step, filling: Filling) -> None:
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
        raise StepFailed(f"{error.in_full} What is left of {step.address} is made anew by the next apply") from None
