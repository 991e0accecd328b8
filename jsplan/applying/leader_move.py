"""Moves of leaders of streams and consumers to other servers, followed to their end.

Nothing of it is in state: an apply that dies leaves an election to the servers, and the next plan
counts the leaders again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from jsplan.applying.follow_move import LEADERLESS_TIMEOUT, read_moving
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted
from jsplan.documents.apply import MoveProgress
from jsplan.documents.plan import Step
from jsplan.facts.live import LiveObject

#: Seconds between two reads, and before the first: an election takes about a twentieth.
POLL_INTERVAL: Final = 0.1
#: Seconds for the replica that is to lead to be current.
CURRENT_TIMEOUT: Final = 10.0
#: Seconds for one read: a server whose object has no leader does not answer.
READ_TIMEOUT: Final = 1.0


async def move_leader(context: StepContext, step: Step) -> None:
    """Ask the leader to step down for the server of the plan.

    Sends nothing where that server leads already. Raises StepFailed where another one does, or
    where it lacks messages for too long; StepNotStarted, ApiError.
    """
    live, began = await context.check_precondition(step), time.monotonic()
    assert step.request is not None
    while not context.stop.is_set():
        if live is not None and live.server.get("leader") == _servers(step)[1]:
            return
        obstacle, may_pass = _find_obstacle(step, live)
        if not obstacle:
            await context.send(step, step.request["api"], step.request["payload"])
            return
        if not may_pass or time.monotonic() - began > CURRENT_TIMEOUT:
            raise StepFailed(f"{obstacle}; nothing was sent. The next plan counts again")
        await asyncio.sleep(POLL_INTERVAL)
        live = await context.read(step.target_address)
    raise StepNotStarted


def _servers(step: Step) -> tuple[str, str]:
    params = step.params or {}
    return params["old_leader"], params["new_leader"]


def _find_obstacle(step: Step, live: LiveObject | None) -> tuple[str, bool]:
    """Return what keeps the leader from moving now, empty if nothing; and whether it may pass.

    While messages are published, a replica is current at one moment and not at the next.
    """
    address, (origin, target) = step.target_address, _servers(step)
    if live is None:
        return f"{address} is gone: another client deleted it during the apply", False
    leader = live.server.get("leader") or "no server"
    if leader != origin:
        return f"{leader} leads {address} since it was planned, and not {origin}", False
    if any(peer.get("name") == target and peer.get("current") for peer in live.peers):
        return "", False
    offline = target in live.offline_peers
    state = "is offline" if offline else "does not have all of it"
    return f"{target} cannot lead {address}: it {state}", not offline


async def follow_leader(
    context: StepContext, step: Step, report: Callable[[MoveProgress], None]
) -> str | None:
    """Wait until the server of the plan leads the object.

    `report` gets the progress. After Ctrl-C it returns at once, with a note. Raises StepFailed
    where the cluster elects another server, or none, or where the domain stops answering.
    """
    (origin, target), began = _servers(step), time.monotonic()
    title = f"{step.target_address}: its leader moves to {target}"
    while True:
        try:
            await asyncio.wait_for(context.stop.wait(), POLL_INTERVAL)
        except TimeoutError:
            pass
        else:
            return "the cluster continues alone. Follow it with: jsplan status"
        live = await read_moving(context, step, "its leader moves", READ_TIMEOUT)
        leader = str(live.server.get("leader") or "") if live is not None else ""
        if leader == target:
            return None
        seconds = time.monotonic() - began
        if leader not in ("", origin):
            raise StepFailed(
                f"the cluster elected {leader} as leader of {step.target_address}, and not "
                f"{target}. The next plan counts again"
            )
        if seconds > LEADERLESS_TIMEOUT:
            state = f"{origin} still leads it" if leader else "it has had no leader"
            raise StepFailed(
                f"the leader of {step.target_address} does not move to {target}: {state} after "
                f"{seconds:.0f}s. Check that its servers run: jsplan status"
            )
        report(MoveProgress(step.id, title, "" if leader else "no leader", 0, 0, seconds))
