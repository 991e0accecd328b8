"""The strategy `native`: a temporary source of the target copies the messages.

The server adds the origin of each message (`Nats-Stream-Source`), so a resumed run finds the
messages that have arrived.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from jsplan.address import Address
from jsplan.backfill.copy_origin import CopyOrigin
from jsplan.backfill.pending import PendingScan, scan_pending
from jsplan.backfill.pinning import Endpoints, require_same_streams, require_valid_target
from jsplan.backfill.retry import POLL_INTERVAL
from jsplan.backfill.rows.message_rows import ComparedOrigin
from jsplan.backfill.rows.native import (
    NativeComparison,
    Tally,
    compare_tallies,
    tally_origin,
    tally_sourced,
)
from jsplan.backfill.run_context import RunContext
from jsplan.backfill.seq_arrays import subtract_present
from jsplan.backfill.seq_ranges import count_sequences, intersect
from jsplan.backfill.tasks.capacity import estimate_overhead, find_capacity_problem
from jsplan.backfill.tasks.promotion_scan import READ_STRIDE
from jsplan.backfill.tasks.staging_sources import await_stream_info
from jsplan.backfill.tasks.temporary_source import (
    attach_source,
    detach_source,
    find_temporary_source,
    read_owner,
)
from jsplan.documents.apply import MessagesMoved
from jsplan.documents.backfill import OriginResult
from jsplan.errors import JsplanError, RefusedError
from jsplan.planning.backfill.model import MAX_LISTED_RANGES, OriginState
from jsplan.resources.source_header import source_name
from jsplan.topology.routes import NoRouteError
from jsplan.units import parse_instant

#: Seconds without new messages after which the source is finished. The second number is for a
#: source without lag: the server dropped messages whose ids it knows.
IDLE_TIMEOUT: Final = 120.0
CAUGHT_UP_TIMEOUT: Final = 5.0
SOURCE_PATH: Final = "a source of the server"

Result = TypeVar("Result")


@dataclass(slots=True)
class NativeCopy:
    """The native copy of one origin. `result` is its progress; Spark copies what is missing."""

    context: RunContext
    origin: CopyOrigin
    idle_timeout: float = IDLE_TIMEOUT
    result: OriginResult = field(init=False)
    received: Tally = field(default_factory=Tally)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.result = OriginResult(
            self.origin_state.origin,
            self.origin_state.target,
            self.origin_state.first,
            self.origin_state.last,
        )

    @property
    def origin_state(self) -> OriginState:
        """The pinned range."""
        return self.origin.state

    @property
    def endpoints(self) -> Endpoints:
        """Both sides."""
        return self.origin.endpoints

    async def run(self) -> bool:
        """Let the server copy, and compare. Return True if nothing is pending.

        Raises RefusedError, JsplanError and ApiError.
        """
        origin, target = (
            await self._fetch_info(self.origin_state.origin),
            await self._fetch_info(self.origin_state.target),
        )
        require_same_streams(self.origin_state, origin, target)
        require_valid_target(self.origin_state.target, target["config"])
        if read_owner(target["config"]) != self.owner and not await self._begin(origin, target):
            return False
        self.context.observer.phase(
            f"The server copies {self.origin_state.origin} to {self.origin_state.target}"
        )
        comparison, self.received = await self._compare_while_copying()
        await self.context.write(self.endpoints.target, self._detach)
        self._report_result(comparison)
        if comparison.missing:
            count = count_sequences(comparison.missing)
            self.context.observer.warn(
                f"{self.origin_state.target} did not take {count:,} messages from its source; "
                "they are copied by Spark"
            )
        return not comparison.missing

    # --- the source -------------------------------------------------------------------------------

    async def _begin(self, origin: dict[str, Any], target: dict[str, Any]) -> bool:
        """Attach the source. Return False if the server must not copy.

        The target already has messages of the origin, which the server would copy again, or its
        capacity may be too small, which Spark checks exactly.
        """
        if self.origin_state.seq_range.size <= 0 or await self._has_copied():
            return False
        if read_owner(target["config"]) is not None:
            raise RefusedError(
                f"another backfill has a source in {self.origin_state.target}: "
                f"{read_owner(target['config'])}",
                hint="Finish that backfill first.",
            )
        state = origin["state"]
        messages = int(state["messages"])
        if (
            find_capacity_problem(
                self.origin_state.target,
                target,
                messages,
                int(state["bytes"]) + estimate_overhead(messages),
            )
            is not None
        ):
            return False
        self.origin_state.target_next = int(target["state"]["last_seq"]) + 1
        await self.context.write(self.endpoints.target, partial(self._attach, self.build_source()))
        return True

    async def _has_copied(self) -> bool:
        """Check whether the target has messages of the origin."""
        pending = await scan_pending([PendingScan(self.origin, self.context.topology)])
        return len(pending[0].existing.seq) > 0

    async def _attach(self, source: dict[str, Any]) -> None:
        """Attach the source, unless an earlier request without an answer has done it."""
        config = (await self._fetch_info(self.origin_state.target))["config"]
        if read_owner(config) is None:
            await attach_source(self.endpoints.target, config, source, self.owner)

    async def _detach(self) -> None:
        await detach_source(
            self.endpoints.target, (await self._fetch_info(self.origin_state.target))["config"]
        )

    def build_source(self) -> dict[str, Any]:
        """Build the source for the origin. Raises JsplanError if the target cannot reach it."""
        origin, target = self.origin_state.origin_address, self.origin_state.target_address
        source: dict[str, Any] = {
            "name": origin.stream,
            "opt_start_seq": self.origin_state.first,
        }
        if self.origin_state.filters:
            source["filter_subject"] = self.origin_state.filters[0]
        try:
            route = self.context.topology.routes.find_route(target.domain, origin.domain)
        except NoRouteError as error:
            raise JsplanError(str(error), hint=error.detail) from None
        if route.api is not None:
            deliver = (
                f"{route.deliver}.{target.domain}.{target.stream}.{origin.stream}"
                if route.deliver
                else ""
            )
            source["external"] = {"api": route.api, "deliver": deliver}
        return source

    # --- comparing --------------------------------------------------------------------------------

    async def _compare_while_copying(self) -> tuple[NativeComparison, Tally]:
        """Read the new messages until the copy ends, and compare them with the origin."""
        config = (await self._fetch_info(self.origin_state.target))["config"]
        state = (await self._fetch_info(self.origin_state.origin))["state"]
        compared = self._build_compared_origin(config, state)
        reading = asyncio.ensure_future(
            asyncio.to_thread(tally_origin, self.endpoints.source_endpoint, compared)
        )
        received, next_seq, before, since = (
            Tally(),
            self.origin_state.target_next,
            -1,
            time.monotonic(),
        )
        try:
            while True:
                info = await self._fetch_info(self.origin_state.target)
                last = int(info["state"]["last_seq"])
                scanned = (
                    self.endpoints.target_endpoint,
                    self.origin_state.target_address.stream,
                    next_seq,
                    last,
                    compared,
                )
                if next_seq <= last and (last == before or last - next_seq >= READ_STRIDE):
                    if await asyncio.to_thread(tally_sourced, received, *scanned):
                        since = time.monotonic()
                        self._report_progress(received)
                    next_seq = last + 1
                before = last
                if reading.done() and (
                    received.last >= reading.result().last
                    or self._is_over(info, time.monotonic() - since)
                ):
                    break
                await asyncio.sleep(POLL_INTERVAL / 5)
        finally:
            origin = await reading
        self.result.bytes = (
            len(received.seqs) * int(state["bytes"]) // max(1, int(state["messages"]))
        )
        return compare_tallies(origin, received), received

    def _is_over(self, info: dict[str, Any], idle: float) -> bool:
        """Check whether the source is finished."""
        name, source = (
            self.origin_state.origin_address.stream,
            find_temporary_source(info["config"]) or {},
        )
        api = (source.get("external") or {}).get("api")
        flows = [
            flow
            for flow in info.get("sources") or ()
            if flow["name"] == name and (flow.get("external") or {}).get("api") == api
        ]
        behind = (
            any(flow.get("lag") or int(flow.get("active") or -1) < 0 for flow in flows) or not flows
        )
        return idle > (self.idle_timeout if behind else min(self.idle_timeout, CAUGHT_UP_TIMEOUT))

    def _report_progress(self, received: Tally) -> None:
        title = f"{self.origin_state.origin} to {self.origin_state.target}: copying"
        done, seconds = len(received.seqs), time.monotonic() - self._started
        self.context.observer.event(
            MessagesMoved(
                self.origin_state.origin, title, done, self.origin_state.seq_range.size, seconds
            )
        )

    def _build_compared_origin(
        self, config: dict[str, Any], state: dict[str, Any]
    ) -> ComparedOrigin:
        origin, source = self.origin_state, find_temporary_source(config) or self.build_source()
        return ComparedOrigin(
            0,
            self.endpoints.origin_domain_name,
            origin.origin_address.stream,
            origin.first,
            origin.last,
            tuple(origin.filters),
            parse_instant(origin.created),
            int(state["last_seq"]),
            (source_name(source).stream,),
            ignores_dropped_headers=True,
        )

    def _report_result(self, comparison: NativeComparison) -> None:
        origin, result = self.origin_state, self.result
        if comparison.first_difference or comparison.duplicates or not comparison.in_order:
            difference = (
                f"message {comparison.first_difference:,} differs"
                if comparison.first_difference
                else "some are there twice, or out of order"
            )
            raise JsplanError(
                f"{origin.target} does not have the same messages as {origin.origin}: {difference}",
                hint=f"See the differences: jsplan backfill verify {self.context.entry.name}",
            )
        result.copied, result.attempts, result.path = len(self.received.seqs), 1, SOURCE_PATH
        result.verified = not comparison.missing
        result.seconds = time.monotonic() - self._started

    async def finish(self) -> OriginResult:
        """Return the result of a finished copy, with its gaps: sequences deleted at the origin."""
        pending = (
            subtract_present([self.origin_state.seq_range], np.unique(self.received.seqs))
            if self.origin_state.first <= self.origin_state.last
            else []
        )
        gaps = intersect(pending, await self.origin.reader.find_gone()) if pending else []
        self.result.gaps, self.result.gap_messages = (
            [list(gap) for gap in gaps[:MAX_LISTED_RANGES]],
            count_sequences(gaps),
        )
        return self.result

    # --- asking -----------------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """The owner mark of the source: the entry, the origin and its creation time."""
        return f"{self.context.entry_id} {self.origin_state.origin} {self.origin_state.created}"

    async def _fetch_info(self, address: str) -> dict[str, Any]:
        api = (
            self.endpoints.origin if address == self.origin_state.origin else self.endpoints.target
        )
        return await await_stream_info(api, Address.parse(address).stream)
