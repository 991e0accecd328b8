"""strategy native: the target gets the origin as a source for a while, and what it brought is compared with the origin before it goes.

The server says of each message where it comes from (`Nats-Stream-Source`), so whoever takes over sees what is there already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from jsplan.address import Address
from jsplan.backfill.origin_copy import RunContext
from jsplan.backfill.pending import PendingScan
from jsplan.backfill.pinning import Endpoints, require_same_streams, require_valid_target
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.retry import POLL_INTERVAL, retry_transient
from jsplan.backfill.seq_arrays import subtract_present
from jsplan.backfill.seq_ranges import MAX_LISTED_RANGES, OriginState, count_sequences, intersect
from jsplan.backfill.staging import WRITE_SECONDS
from jsplan.backfill.tasks.capacity import estimate_overhead, find_capacity_problem
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.tasks.target_scan import READ_STRIDE
from jsplan.backfill.tasks.temporary_source import (
    attach_source,
    detach_source,
    find_temporary_source,
    read_owner,
)
from jsplan.backfill.verify.message_rows import ComparedOrigin
from jsplan.backfill.verify.native import (
    NativeComparison,
    Tally,
    compare_tallies,
    tally_origin,
    tally_sourced,
)
from jsplan.documents.backfill import MessagesMoved, OriginResult
from jsplan.errors import JsplanError, RefusedError
from jsplan.resources.nested import source_header
from jsplan.topology.routes import NoRouteError

#: For how long a source may bring nothing before what it lacks counts as not coming; for how long if the server says that it is not
#: behind: it dropped messages whose ids it knows. Seconds.
IDLE_TIMEOUT: Final = 120.0
CAUGHT_UP_TIMEOUT: Final = 5.0
SOURCE_PATH: Final = "a source of the server"

Result = TypeVar("Result")


@dataclass(slots=True)
class NativeCopy:
    """Carries out one leg. `result` says what it brought; what it could not bring is left to Spark."""

    context: RunContext
    origin_state: OriginState
    endpoints: Endpoints
    idle_timeout: float = IDLE_TIMEOUT
    result: OriginResult = field(init=False)
    pending_scan: PendingScan = field(init=False)
    received: Tally = field(default_factory=Tally)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.result = OriginResult(
            self.origin_state.origin,
            self.origin_state.target,
            self.origin_state.first,
            self.origin_state.last,
        )
        self.pending_scan = PendingScan(self.origin_state, self.endpoints, self.context.topology)

    async def run(self) -> bool:
        """Let the server copy and compare; whether nothing is left to do. Raises RefusedError, JsplanError and ApiError."""
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
        found, self.received = await self._compare_while_copying()
        await self._write(self._detach)
        self._report_result(found)
        if found.missing:
            words = f"{self.origin_state.target} did not take {count_sequences(found.missing):,} messages from its source; they are copied by Spark"
            self.context.observer.warn(words)
        return not found.missing

    # --- the source ---------------------------------------------------------------------------------------------

    async def _begin(self, origin: dict[str, Any], target: dict[str, Any]) -> bool:
        """Attach the source; False where that would not do: something of the origin is there already, so that the server would bring it
        again, or there may not be room for all of it, which Spark looks at more closely.
        """
        if self.origin_state.first > self.origin_state.last or len(
            (await self.pending_scan.scan()).existing.seq
        ):
            return False
        if read_owner(target["config"]) is not None:
            raise RefusedError(
                f"another backfill has a source in {self.origin_state.target}: {read_owner(target['config'])}",
                hint="Let that one come to its end first.",
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
        await self._write(partial(self._attach, self.build_source()))
        return True

    async def _attach(self, source: dict[str, Any]) -> None:
        """An update that is asked for a second time, since no answer came, finds its mark."""
        config = (await self._fetch_info(self.origin_state.target))["config"]
        if read_owner(config) is None:
            await attach_source(self.endpoints.target, config, source, self.owner)

    async def _detach(self) -> None:
        await detach_source(
            self.endpoints.target, (await self._fetch_info(self.origin_state.target))["config"]
        )

    def build_source(self) -> dict[str, Any]:
        """The origin as the target's source. Raises JsplanError where its servers cannot reach it."""
        origin, target = self.origin_state.origin_address, self.origin_state.target_address
        found: dict[str, Any] = {"name": origin.stream, "opt_start_seq": self.origin_state.first}
        if self.origin_state.filters:
            found["filter_subject"] = self.origin_state.filters[0]
        try:
            way = self.context.topology.routes.find_route(target.domain, origin.domain)
        except NoRouteError as error:
            raise JsplanError(str(error), hint=error.detail) from None
        if way.api is not None:
            deliver = (
                f"{way.deliver}.{target.domain}.{target.stream}.{origin.stream}"
                if way.deliver
                else ""
            )
            found["external"] = {"api": way.api, "deliver": deliver}
        return found

    # --- comparing ----------------------------------------------------------------------------------------------

    async def _compare_while_copying(self) -> tuple[NativeComparison, Tally]:
        """Read along until everything has come, or nothing comes any more; what both sides say then."""
        config = (await self._fetch_info(self.origin_state.target))["config"]
        state = (await self._fetch_info(self.origin_state.origin))["state"]
        compared = self._build_compared_origin(config, state)
        reading = asyncio.ensure_future(
            asyncio.to_thread(tally_origin, self.endpoints.source_endpoint, compared)
        )
        brought, place, before, since = Tally(), self.origin_state.target_next, -1, time.monotonic()
        try:
            while True:
                info = await self._fetch_info(self.origin_state.target)
                last = int(info["state"]["last_seq"])
                there = (
                    self.endpoints.target_endpoint,
                    self.origin_state.target_address.stream,
                    place,
                    last,
                    compared,
                )
                if place <= last and (last == before or last - place >= READ_STRIDE):
                    if await asyncio.to_thread(tally_sourced, brought, *there):
                        since = time.monotonic()
                        self._report_progress(brought)
                    place = last + 1
                before = last
                if reading.done() and (
                    brought.last >= reading.result().last
                    or self._is_over(info, time.monotonic() - since)
                ):
                    break
                await asyncio.sleep(POLL_INTERVAL / 5)
        finally:
            origin = await reading
        self.result.bytes = (
            len(brought.seqs) * int(state["bytes"]) // max(1, int(state["messages"]))
        )
        return compare_tallies(origin, brought), brought

    def _is_over(self, info: dict[str, Any], idle: float) -> bool:
        """Whether nothing more is to be waited for."""
        name, own = (
            self.origin_state.origin_address.stream,
            find_temporary_source(info["config"]) or {},
        )
        api = (own.get("external") or {}).get("api")
        flows = [
            one
            for one in info.get("sources") or ()
            if one["name"] == name and (one.get("external") or {}).get("api") == api
        ]
        behind = (
            any(one.get("lag") or int(one.get("active") or -1) < 0 for one in flows) or not flows
        )
        return idle > (self.idle_timeout if behind else min(self.idle_timeout, CAUGHT_UP_TIMEOUT))

    def _report_progress(self, brought: Tally) -> None:
        title = f"{self.origin_state.origin} to {self.origin_state.target}: copying"
        done, seconds = len(brought.seqs), time.monotonic() - self._started
        self.context.observer.event(
            MessagesMoved(
                self.origin_state.origin, title, done, self.origin_state.seq_range.size, seconds
            )
        )

    def _build_compared_origin(
        self, config: dict[str, Any], state: dict[str, Any]
    ) -> ComparedOrigin:
        leg, source = self.origin_state, find_temporary_source(config) or self.build_source()
        return ComparedOrigin(
            0,
            self.endpoints.origin_domain_name,
            leg.origin_address.stream,
            leg.first,
            leg.last,
            tuple(leg.filters),
            parse_time(leg.created),
            int(state["last_seq"]),
            (source_header(source)[0],),
            ignores_dropped_headers=True,
        )

    def _report_result(self, found: NativeComparison) -> None:
        leg, result = self.origin_state, self.result
        if found.first_difference or found.duplicates or not found.in_order:
            what = (
                f"message {found.first_difference:,} differs"
                if found.first_difference
                else "some are there twice, or out of order"
            )
            raise JsplanError(
                f"what {leg.target} got from its source is not what {leg.origin} has: {what}",
                hint=f"Look at it: jsplan backfill verify {self.context.entry.name}",
            )
        result.copied, result.attempts, result.path = len(self.received.seqs), 1, SOURCE_PATH
        result.verified = not found.missing
        result.seconds = time.monotonic() - self._started

    async def finish(self) -> OriginResult:
        """What a finished leg reports, with the sequences of the range that neither came nor are at the origin any more."""
        left = (
            subtract_present([self.origin_state.seq_range], np.unique(self.received.seqs))
            if self.origin_state.first <= self.origin_state.last
            else []
        )
        gaps = intersect(left, await self.pending_scan.find_gone()) if left else []
        self.result.gaps, self.result.gap_messages = (
            [list(gap) for gap in gaps[:MAX_LISTED_RANGES]],
            count_sequences(gaps),
        )
        return self.result

    # --- asking -------------------------------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """How its source is marked: by the entry, and by which stream of the origin's name it is of."""
        return f"{self.context.entry_id} {self.origin_state.origin} {self.origin_state.created}"

    async def _fetch_info(self, address: str) -> dict[str, Any]:
        api = (
            self.endpoints.origin if address == self.origin_state.origin else self.endpoints.target
        )
        return await retry_transient(
            api, partial(require_stream_info, api, Address.parse(address).stream)
        )

    async def _write(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask for something that writes, each time only if the lock is still ours."""

        async def once() -> Result:
            self.context.may_write(WRITE_SECONDS)
            return await ask()

        return await retry_transient(self.endpoints.target, once)
