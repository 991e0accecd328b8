"""Rehearsals of real plans whose requests were changed after planning."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsplan.context import Session, open_context, open_pool
from jsplan.documents.plan import Plan
from jsplan.event_loop import run_until_complete
from jsplan.options import PlanOptions
from jsplan.plan_inputs import build_inputs
from jsplan.planning.build import build_plan, decide_all
from jsplan.rehearsal.run import rehearse
from jsplan.server_reader import ServerReader
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from jsplan.sandbox import Server
    from tests.support.workspaces import Space

Tamper = Callable[[dict[str, Any]], None]


def rehearse_tampered(
    space: Space, tamper: dict[str, Tamper], *, api: str | None = None, **options: Any
) -> Plan:
    """Plan the workspace, change the requests of `tamper` by address, and rehearse.

    `api` replaces the API of the changed requests.
    """
    return run_until_complete(_rehearse(space, tamper, api, options))


async def _rehearse(
    space: Space, tamper: dict[str, Tamper], api: str | None, options: dict[str, Any]
) -> Plan:
    plan_options, observer = PlanOptions(**options), RecordingObserver()
    async with open_context(space.load) as context, open_pool(context, read_only=True) as pool:
        inputs = build_inputs(context, plan_options)
        inputs = await ServerReader(Session(context, pool, observer)).refresh(inputs)
        plan = build_plan(inputs, decide_all(inputs))
        assert not plan.errored, plan.diagnostics
        for step in plan.steps:
            if step.address in tamper and "placeholder" not in step.op:
                assert step.request is not None
                step.request["api"] = api or step.request["api"]
                payload = step.request["payload"]
                tamper.pop(step.address)(payload.get("config", payload))
        assert tamper == {}, f"no step of the plan is about {sorted(tamper)}"
        await rehearse(plan, context.workspace, inputs.live, pool, observer)
    return plan


def refusals(plan: Plan) -> dict[str, str]:
    """Return the err_code of each refusal in the plan, by resource."""
    return {
        str(d.address): d.summary.rpartition("(")[2].rstrip(")")
        for d in plan.diagnostics
        if d.code == "JS460"
    }


def create_on_server(server: Server, *requests: tuple[str, Any]) -> None:
    """Create unmanaged objects on the server; raise AssertionError if it refuses."""
    with Raw(server.url, server.user, server.password) as raw:
        for subject, payload in requests:
            raw.api_ok(f"$JS.API.{subject}", payload)


def with_fields(fields: dict[str, Any]) -> Tamper:
    """Return a change that adds these fields to a request."""
    return lambda config: config.update(fields)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[None]:
    """Create all temporary folders of the block in this folder."""
    folder.mkdir(exist_ok=True)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def leftover_files(folder: Path) -> list[str]:
    """Return the files in a folder, and the processes whose command line names it."""
    leftovers = [str(path) for path in folder.iterdir()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                leftovers += [f"{entry.name} {line}"] if str(folder) in line else []
    return leftovers
