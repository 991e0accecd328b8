"""Follow a cluster that moves or scales a stream after an update. Writes nothing.

The update returns at once (tests/clusters). The cluster is done when the stream has a leader and
all its replicas; since 2.15 `desired` says why it is not. A replica on an offline server is not
waited for: the cluster fills it when its server is back. A move that needs such a server leaves the
stream without a leader.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from jsplan.applying.step_context import StepContext, StepFailed
from jsplan.applying.step_journal import gone_error
from jsplan.documents.apply import MoveProgress
from jsplan.documents.plan import Step
from jsplan.errors import OFFLINE_ERRORS, ApiError, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import parse_stream
from jsplan.jetstream.api import DomainApi
from jsplan.resources.error_codes import NOT_FOUND
from jsplan.resources.server_features import CANCEL_MOVE_LEVEL
from jsplan.units import count_text

#: Seconds without a leader after which a move is reported as stuck. An election takes up to 10.
LEADERLESS_TIMEOUT: Final = 30.0
#: Seconds without any visible change after which it is.
UNCHANGED_TIMEOUT: Final = 60.0
#: The same while a server since 2.15 fetches messages before it shows how many it lacks.
CATCHUP_TIMEOUT: Final = 600.0
#: Most seconds between two reads.
POLL_INTERVAL: Final = 1.0


async def follow_move(
    context: StepContext, step: Step, report: Callable[[MoveProgress], None]
) -> str | None:
    """Wait until the cluster has moved or scaled the stream; return a note if something remains.

    `report` gets the progress. After Ctrl-C it returns at once: the servers continue alone. Raises
    StepFailed where the cluster does not finish, or its domain stops answering.
    """
    move, pause = _Move(context, step), 0.05
    while not context.stop.is_set():
        live = await move.read()
        if live is not None and live.is_stable:
            return _describe_offline(live)
        move.require_progress(live)
        report(move.describe_progress(live))
        try:
            await asyncio.wait_for(context.stop.wait(), pause)
        except TimeoutError:
            pause = min(POLL_INTERVAL, pause * 1.5)
    return f"the cluster continues alone. Follow it with: jsplan status. {move.cancel_hint}"


class _Move:
    """One stream that its cluster moves or scales: what was seen of it, and since when."""

    def __init__(self, context: StepContext, step: Step) -> None:
        self._context, self._step = context, step
        self._began = self._changed = self._led = time.monotonic()
        self._seen: object = None
        self._lowest_lag = self._highest_lag = 0

    async def read(self) -> LiveObject | None:
        """Read the stream once; None while it has no leader to answer.

        Raises StepFailed where it is gone, or where its domain does not answer either.
        """
        address, api = self._step.target_address, self._context.api(self._step)
        try:
            return parse_stream(address, await api.request(f"STREAM.INFO.{address.stream}"))
        except OFFLINE_ERRORS:
            await self._require_domain(api)
        except ServerRefusedError as error:
            if error.err_code in NOT_FOUND:
                raise gone_error(address) from None
        return None  # 10118, 10119: no server that has it answers

    async def _require_domain(self, api: DomainApi) -> None:
        try:
            await api.request("INFO")
        except ApiError as error:
            step = self._step
            self._context.lost_domains.setdefault(step.domain, str(error))
            raise StepFailed(
                f"{step.target_address} is written, but its domain stopped answering while the "
                f"cluster {self._verb} it: {error}. Follow it with: jsplan status"
            ) from None

    @property
    def _is_placed(self) -> bool:
        """True if the placement changes, not only the number of replicas."""
        changes = self._context.plan.resource_changes
        own = (change.change.fields for change in changes if change.address == self._step.address)
        return any(field.path.startswith("placement") for fields in own for field in fields)

    @property
    def _verb(self) -> str:
        return "moves" if self._is_placed else "scales"

    @property
    def cancel_hint(self) -> str:
        """Text about how to cancel it: a scaling takes another update, a move none (10124)."""
        if not self._is_placed:
            return "To cancel it, apply the earlier num_replicas"
        domain, name = self._step.domain, self._step.target_address.stream
        if int(self._context.plan.domains[domain]["api_level"]) >= CANCEL_MOVE_LEVEL:
            prefix = self._context.api(self._step).domain.api_prefix
            return f"To cancel it: nats req '{prefix}.STREAM.CANCEL_MOVE.{name}' ''"
        subject = f"$JS.API.ACCOUNT.STREAM.CANCEL_MOVE.ACCOUNT.{name}"
        return f"Only the system account can cancel it: nats req '{subject}' ''"

    def require_progress(self, live: LiveObject | None) -> None:
        """Raise StepFailed if the stream has been without a leader, or unchanged, for too long."""
        now = time.monotonic()
        cluster = live.server if live is not None else {}
        peers = live.peers if live is not None else []
        lag = sum(int(peer.get("lag") or 0) for peer in peers)
        seen = (
            cluster.get("leader"),
            sorted((str(peer.get("name")), bool(peer.get("current"))) for peer in peers),
            _reason(live),
        )
        if seen != self._seen or lag < self._lowest_lag:
            self._seen, self._lowest_lag, self._changed = seen, lag, now
        self._highest_lag = max(self._highest_lag, lag)
        self._led = now if cluster.get("leader") else self._led
        if now - self._led > LEADERLESS_TIMEOUT:
            raise self._stuck(f"it has had no leader for {now - self._led:.0f}s", live)
        limit = CATCHUP_TIMEOUT if _status(live).get("type") == "catchup" else UNCHANGED_TIMEOUT
        if now - self._changed > limit:
            raise self._stuck(f"nothing has changed for {now - self._changed:.0f}s", live)

    def _stuck(self, fact: str, live: LiveObject | None) -> StepFailed:
        peers = live.peers if live is not None else []
        names = ", ".join(
            f"{peer.get('name')}{' (offline)' if peer.get('offline') else ''}" for peer in peers
        )
        reason = _reason(live)
        return StepFailed(
            f"{self._step.target_address} is written, but the cluster does not finish: {fact}"
            + (f", {reason}" if reason else "")
            + (f". It needs {names}: check that each of them runs" if names else "")
            + f". The servers continue when they can. {self.cancel_hint}"
        )

    def describe_progress(self, live: LiveObject | None) -> MoveProgress:
        """Return the progress: the operations that the replicas still lack together."""
        peers = live.peers if live is not None else []
        return MoveProgress(
            self._step.id,
            f"{self._step.target_address}: the cluster {self._verb} it",
            _reason(live)
            or ("" if live is not None and live.server.get("leader") else "no leader"),
            sum(int(peer.get("lag") or 0) for peer in peers),
            self._highest_lag,
            time.monotonic() - self._began,
        )


def _reason(live: LiveObject | None) -> str:
    """Return why the cluster waits, which servers since 2.15 report."""
    return str(_status(live).get("description") or "")


def _status(live: LiveObject | None) -> dict[str, Any]:
    desired = (live.server.get("desired") or {}) if live is not None else {}
    return desired.get("status") or {}


def _describe_offline(live: LiveObject) -> str | None:
    """Return a note about replicas that the cluster cannot fill yet."""
    names = live.offline_peers
    if not names:
        return None
    return (
        f"{', '.join(names)} offline: {count_text(len(names), 'replica')} of "
        f"{live.raw.get('num_replicas') or 1} without the messages until then"
    )
