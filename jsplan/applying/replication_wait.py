"""Verification that a downstream stream replicates the recreated origin. Writes only state.

It compares the sequences of both ends: `lag` is also 0 where replication stopped (server_semantics,
section 5). Where nothing is left to copy, the heartbeats of the origin count: one a second, each of
them another moment in `active`.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from typing import Any, Final

from msgspec import Struct

from jsplan.address import Address
from jsplan.applying.replicated_streams import SEARCH_DEPTH, newest_origin_seqs
from jsplan.applying.step_context import StepContext, StepFailed, StepNotStarted, check_record
from jsplan.applying.step_journal import gone_error
from jsplan.diagnostics import quote_shell
from jsplan.documents.plan import Step
from jsplan.errors import OFFLINE_ERRORS
from jsplan.facts.limit_trimming import stored_size
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_object
from jsplan.flows.graph import list_origins
from jsplan.flows.refusals import is_full
from jsplan.jetstream.api import has_header, message_headers
from jsplan.resources.nested import key_in_info, origin_key
from jsplan.resources.server_features import ROLLUP_MIRROR_LEVEL
from jsplan.topology.replication_graph import subject_filters

#: Seconds until replication runs: servers check every 10, retry after up to 30 (measured: 10-32).
REPLICATION_TIMEOUT: Final = 90.0
#: Seconds between two reads.
POLL_INTERVAL: Final = 0.5
#: Most seconds between two heartbeats. A server that only tries to connect shows one every ten.
HEARTBEAT_GAP: Final = 5.0
#: Heartbeats after which a downstream stream that is ahead of its origin counts as stuck.
STUCK_HEARTBEATS: Final = 3
#: Messages that each later search reads back from the end for the last one of an origin.
REPEAT_DEPTH: Final = 100


async def verify_replication(context: StepContext, step: Step) -> None:
    """Wait until the stream replicates all origins of the step.

    Raises StepFailed, StepNotStarted and StateError.
    """
    params = step.params or {}
    await context.record({"begin": check_record(step)})
    waiting = [ReplicationFlow(context, step, flow) for flow in params["flows"]]
    end = time.monotonic() + REPLICATION_TIMEOUT
    while True:
        before = time.monotonic()
        live = await context.require(step.target_address)
        span = TimeSpan(before, time.monotonic())
        waiting = [flow for flow in waiting if not await flow.is_replicating(live, span)]
        if not waiting or time.monotonic() > end or all(flow.is_stuck for flow in waiting):
            break
        await _wait_for_poll(context)
    if waiting:
        reasons = "; ".join(flow.reason for flow in waiting)
        raise StepFailed(f"{reasons}. {_remedy(step, waiting)}")
    await context.record({"end": step.address})


async def _wait_for_poll(context: StepContext) -> None:
    """Wait until the next read. Raises StepNotStarted after Ctrl-C: the next apply checks again."""
    try:
        await asyncio.wait_for(context.stop.wait(), POLL_INTERVAL)
    except TimeoutError:
        return
    raise StepNotStarted


def _remedy(step: Step, waiting: list[ReplicationFlow]) -> str:
    origins = " and ".join(dict.fromkeys(str(flow.origin) for flow in waiting))
    verb = "is" if " and " not in origins else "are"
    text = (
        f"{origins} {verb} recreated; only {step.target_address} is behind. "
        "The next apply checks again"
    )
    if not (step.params or {})["managed"]:
        return f"{text}. This workspace does not manage it: tell its owner"
    if all(flow.is_stuck for flow in waiting):
        return (
            f"{text}. To recreate it without its messages: "
            f"jsplan apply --replace {quote_shell(step.address)}"
        )
    return f"{text}, and jsplan drift too. Check the leafnode connection between the two"


class TimeSpan(Struct, frozen=True):
    """A span on our clock: when a server was read, or when it had heard from an origin."""

    begin: float
    end: float


class ReplicationFlow:
    """One mirror or source, read repeatedly.

    `reason` describes its last reading, `is_stuck` says that waiting does not help.
    """

    def __init__(self, context: StepContext, step: Step, flow: dict[str, Any]) -> None:
        self.context = context
        self.downstream = step.target_address
        self.origin = Address.parse(flow["origin"])
        self.origin_config: dict[str, Any] = flow["config"]
        self.is_mirror = flow["kind"] == "mirror"
        self.recopies_origin: bool = flow["from_start"]
        self.reason = f"{self.downstream} was not seen to replicate {self.origin}"
        self.is_stuck = False
        self._started_at = time.monotonic()
        self._heartbeats: list[TimeSpan] = []
        self._initial_origin_seq: int | None = None  # last sequence of the origin at our first read
        self._copied_seq: int | None = None
        self._has_progressed = False
        self._was_ahead: bool | None = None
        self._seq_when_heard = 0
        self._searched_seq = 0
        self._newest_seq: int | None = None

    async def is_replicating(self, live: LiveObject, span: TimeSpan) -> bool:
        """Return True if it does, by the downstream stream read in `span` and the origin now."""
        key = key_in_info(self.origin_config)
        flow = next((one for one in live.flows if key_in_info(one) == key), None)
        if flow is None:
            return self._set_reason(f"does not copy {self.origin}: its source was removed")
        self._record_heartbeat(int(flow.get("active", -1)), span)
        copied = await self._read_copied_seq(live, flow)
        origin = await self._read_origin()
        last = int(origin.state.get("last_seq") or 0)
        if self._initial_origin_seq is None:
            self._initial_origin_seq = last
        if error := (flow.get("error") or {}).get("description"):
            return self._set_reason(f"cannot copy {self.origin}: {error}")
        start = self._configured_start(live)
        if copied is not None and copied > max(last, start) and self.is_mirror:
            return self._report_ahead(copied, last)
        if not self.is_mirror and not self.recopies_origin and self._is_ahead(copied, start):
            # A mirror has the same messages again, under the sequences that are copied.
            known = (copied or 0) if origin.compact.get("mirror") else 0
            return self._check_skipped(last, known)
        if copied is not None and copied > last:
            copied = None  # of an earlier origin, or before its own start: nothing can be missing
        if copied is not None and copied > self._initial_origin_seq:
            return True  # messages stored since then are copied
        if self._heartbeats and copied is not None and self._copied_seq is not None:
            self._has_progressed |= copied > self._copied_seq
        self._copied_seq = copied
        found = await self._next_message(copied) if copied is not None else None
        if len(self._heartbeats) < 2:
            return self._set_reason(f"receives no heartbeat of the new {self.origin}")
        if found is None or self._has_progressed:
            return True
        level = int(self.context.plan.domains[self.downstream.domain]["api_level"])
        if _refuses(live, found, level) or _has_dropped(live, flow):
            return True
        return self._set_reason(
            f"stands at message {copied:,} of {self.origin}, "
            f"and message {found['seq']:,} does not arrive"
        )

    def _set_reason(self, why: str) -> bool:
        self.reason = f"{self.downstream} {why} ({time.monotonic() - self._started_at:.0f}s)"
        return False

    def _report_ahead(self, copied: int, last: int) -> bool:
        """Report a mirror that is ahead of its origin: it skips the messages until there."""
        self.is_stuck = len(self._heartbeats) >= STUCK_HEARTBEATS
        return self._set_reason(
            f"stands at message {copied:,}, and the new {self.origin} is at {last:,}: "
            "it copies nothing until the origin passes that"
        )

    def _is_ahead(self, copied: int | None, start: int) -> bool:
        """Return True if the source was ahead of its origin at first, not just of its start."""
        if self._was_ahead is None:
            self._was_ahead = copied is not None and copied > max(
                self._initial_origin_seq or 0, start
            )
        return self._was_ahead

    def _check_skipped(self, last: int, known: int) -> bool:
        """Check what a source skipped: up to 2.14 it continues after its server's next check.

        It skips what came before that (measured on 2.11). Up to `known` it has all.
        """
        if len(self._heartbeats) == 1:
            self._seq_when_heard = last
        if len(self._heartbeats) < 2:
            return self._set_reason(f"receives no heartbeat of the new {self.origin}")
        missed = self._seq_when_heard - max(self._initial_origin_seq or 0, known)
        self.is_stuck = missed > 0
        return missed <= 0 or self._set_reason(
            f"continues without up to {missed:,} messages that {self.origin} stored "
            "before its first heartbeat"
        )

    def _record_heartbeat(self, silent: int, span: TimeSpan) -> None:
        """Record a heartbeat, if it is surely a new one. `silent` is its age in ns (-1: never)."""
        heard = TimeSpan(span.begin - silent / 1e9, span.end - silent / 1e9)
        if silent < 0 or heard.begin <= (
            self._heartbeats[-1].end if self._heartbeats else self._started_at
        ):
            return
        if self._heartbeats and heard.begin - self._heartbeats[-1].end > HEARTBEAT_GAP:
            self._heartbeats.clear()
        self._heartbeats.append(heard)

    async def _read_copied_seq(self, live: LiveObject, flow: dict[str, Any]) -> int | None:
        """Return the last copied sequence of the origin; None where it is unknown.

        A mirror has its origin's sequences. Messages of a source have them in a header, and servers
        since 2.15 report them in INFO.
        """
        last = int(live.state.get("last_seq") or 0)
        if self.is_mirror:
            return last
        depth = REPEAT_DEPTH if self._searched_seq else SEARCH_DEPTH
        down_to = max(self._searched_seq, last - depth) + 1
        api, sources = self.context.apis[live.address.domain], [self.origin_config]
        name = live.address.stream
        newest = await newest_origin_seqs(api, name, live.state, sources, down_to)
        self._searched_seq = last
        self._newest_seq = newest.get(origin_key(self.origin_config), self._newest_seq)
        known = (self._newest_seq, int(flow.get("seq") or 0), self._configured_start(live))
        return max(filter(None, known), default=None)

    def _configured_start(self, live: LiveObject) -> int:
        """Return the sequence before the configured start of the mirror or source; else 0."""
        key = origin_key(self.origin_config)
        same = (one for _, one in list_origins(live.raw) if origin_key(one) == key)
        start = next(same, {}).get("opt_start_seq")
        return int(start) - 1 if start else 0

    async def _read_origin(self) -> LiveObject:
        domain = self.origin.domain
        api = self.context.apis.get(domain)
        if api is None:
            raise self._offline_error()
        try:
            live = await read_object(api, self.origin)
        except OFFLINE_ERRORS as error:
            self.context.lost_domains.setdefault(domain, str(error))
            raise self._offline_error() from None
        if live is None:
            raise gone_error(self.origin)
        return live

    def _offline_error(self) -> StepFailed:
        text = (
            f"domain {self.origin.domain} is offline, "
            f"so replication from {self.origin} to {self.downstream} is not verified"
        )
        return StepFailed(text, "skipped")

    async def _next_message(self, after: int) -> dict[str, Any] | None:
        """Return the first message after `after` that passes the filters, as in its answer."""
        api, stream = self.context.apis[self.origin.domain], self.origin.stream
        reads = (
            api.get_message(stream, {"seq": after + 1, "next_by_subj": subject})
            for subject in subject_filters(self.origin_config)
        )
        found = filter(None, await asyncio.gather(*reads))
        return min(found, key=lambda message: int(message["seq"]), default=None)


def _has_dropped(live: LiveObject, flow: dict[str, Any]) -> bool:
    """Return True if the stream may have received all and dropped what no consumer of it wants.

    That is so of interest retention. No message remains to show it, only the server's count.
    """
    return live.compact.get("retention") == "interest" and int(flow.get("lag") or 0) == 0


def _refuses(live: LiveObject, message: dict[str, Any], level: int) -> bool:
    """Return True if the stream refuses the message: it is full, or the message is not for it.

    Its flow stands there, whatever becomes of its origin.
    """
    limits, state, headers = live.raw, live.state, message_headers(message)
    data = b64decode(message.get("data") or "")
    size = stored_size(
        limits.get("storage", "file"), len(message["subject"].encode()), len(headers), len(data)
    )
    by_subject = limits.get("discard") == "new" and limits.get("discard_new_per_subject")
    return bool(
        is_full(limits, state, size)
        or (by_subject and state["messages"])
        or 0 <= int(limits.get("max_msg_size", -1)) < len(headers) + len(data)
        or (limits.get("allow_msg_counter") and not has_header(message, "Nats-Incr"))
        or (
            level < ROLLUP_MIRROR_LEVEL
            and not limits.get("allow_rollup_hdrs")
            and has_header(message, "Nats-Rollup")
        )
    )
