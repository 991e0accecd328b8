"""backfill plan: what is missing of an entry, measured, and how it would be copied. Starts no Spark, takes no lock, keeps nothing.

Where the target has nothing of an origin its server counts the range; else the target is looked through and compared, headers only.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow.compute as pc

from jsplan.address import Address
from jsplan.backfill.choosing import Choice, Stream, choose, explained, situation
from jsplan.backfill.estimating import estimate_for
from jsplan.backfill.job.copying import Claim, Known, known_among
from jsplan.backfill.job.fleets import look_many
from jsplan.backfill.job.ways import Way
from jsplan.backfill.ranges import Leg, common, total
from jsplan.backfill.records import Record
from jsplan.backfill.windows import Clock
from jsplan.backfill.wire import read
from jsplan.backfill.wire.reading import Range
from jsplan.config.model import Backfill, BackfillSide, LoadOptions
from jsplan.documents.backfill_plan import COMPARED, COUNTED, LegOutlook, Outlook
from jsplan.errors import JsplanError
from jsplan.jetstream import Pool
from jsplan.planning.backfills import BEGUN, past_legs
from jsplan.planning.inputs import Request
from jsplan.subjects import within
from jsplan.topology.reach import is_import
from jsplan.workflows.backfill.archives import archived_legs, held_by
from jsplan.workflows.backfill.freeze import Ends, bounds, entry_of, record_of, refuse_target
from jsplan.workflows.backfill.jobs import ends_from
from jsplan.workflows.backfill.missing import Missing, Todo
from jsplan.workflows.backfill.options import BackfillOptions
from jsplan.workflows.backfill.restoring import InArchive
from jsplan.workflows.backfill.shared import Shared
from jsplan.workflows.backfill.waiting import at_once
from jsplan.workflows.backfill.wide import is_wide
from jsplan.workflows.world import World, inputs_of, open_pool, open_world

Info = dict[str, Any]


async def backfill_outlook(load: LoadOptions, options: BackfillOptions) -> Outlook:
    """What `workflows.backfill.plan` does."""
    async with open_world(load) as world, open_pool(world, read_only=True) as pool:
        entry = entry_of(world, options)
        await pool.open(domain.connection for domain in world.workspace.domains.values())
        return await _Looking(world, pool, entry, options.clock).all()


@dataclass(slots=True)
class _Looking:
    world: World
    pool: Pool
    entry: Backfill
    clock: Clock
    infos: dict[str, Info | None] = field(default_factory=dict)

    async def all(self) -> Outlook:
        """The whole document."""
        record = record_of(self.world, self.entry)
        target = await self._info(self.entry.target) if self.entry.target.parquet is None else None
        if target is not None:
            refuse_target(str(self.entry.target), target["config"])
        choice = explained(self.entry, await self._choice(record))
        absent = target is None and self.entry.target.parquet is None
        how = "jsplan apply" if absent else command(self.entry)
        before = tuple(name for name in ("where", "transform") if getattr(self.entry, name) is not None)
        found = Outlook(self.entry.name, _status(record), choice.strategy, choice.reason, how, choice.against, filtered_by=before)
        every = await at_once(self.entry.origins, lambda side: self._frozen(side, record, there=target is not None))
        legs = [leg for one in every if isinstance(one, list) for leg in one]
        together = target is not None and is_wide(self.entry) and not any(leg.archive for leg in legs)
        seen = await self._seen_at_once(legs, target) if target is not None and together else {}
        for side, one in zip(self.entry.origins, every, strict=True):
            if isinstance(one, JsplanError):
                found.origins.append(LegOutlook(str(side), str(self.entry.target), error=one.in_full))
            else:
                found.origins += [await self._side(leg, seen.get(id(leg)), record, there=target is not None) for leg in one]
        if any(leg.messages is not None for leg in found.origins):
            past, now = past_legs(self.world.state), self.clock.now()
            found.estimate = estimate_for(self.entry, choice.strategy, found.messages, found.bytes, past, now).to_json()
        return found

    # --- by what ------------------------------------------------------------------------------------------------

    async def _choice(self, record: Record | None) -> Choice:
        if record is not None and record.origins and not record.planned:
            return BEGUN.get(
                record.origins[0].strategy, choose(situation(self.world.topology, self.entry, (), Stream(), datetime.now(UTC)))
            )
        origins = [await self._stream(side) for side in self.entry.origins if side.parquet is None]
        target = await self._stream(self.entry.target) if self.entry.target.parquet is None else Stream()
        there = [origin for origin in origins if origin.exists]
        return choose(situation(self.world.topology, self.entry, there, target, datetime.now(UTC)))

    async def _stream(self, side: BackfillSide) -> Stream:
        domain, address = self.world.workspace.domains[side.domain], Address.of_stream(side.domain, side.stream)
        try:
            info = await self._info(side)
            level = int(((await self.pool.api(domain).request("INFO")).get("api") or {}).get("level") or 0)
        except JsplanError:
            return Stream(exists=False)
        if info is not None:
            return Stream(info["config"], info["state"], level, imported=is_import(domain))
        inputs = inputs_of(self.world, Request(now=datetime.now(UTC)))
        declared = inputs.body(address) if address in self.world.workspace.resources else {}
        return Stream(declared, {}, level, exists=False, imported=is_import(domain))

    async def _info(self, side: BackfillSide) -> Info | None:
        """STREAM.INFO, asked once. Raises ApiError and ConnectError."""
        if str(side) not in self.infos:
            self.infos[str(side)] = await self.pool.api(self.world.workspace.domains[side.domain]).stream_info(side.stream)
        return self.infos[str(side)]

    # --- how much -----------------------------------------------------------------------------------------------

    async def _frozen(self, side: BackfillSide, record: Record | None, *, there: bool) -> list[Leg] | JsplanError:
        """The legs of an origin; an archive may have several. Of one that cannot be asked, why."""
        try:
            legs = [leg for leg in (record.origins if record else ()) if str(side) in (leg.origin, leg.archive)]
            return legs or await self._legs(side, there=there)
        except JsplanError as error:
            return error

    async def _seen_at_once(self, legs: list[Leg], target: Info) -> dict[int, Missing]:
        """What the target has of many origins, found in one reading of it. By the leg. Raises ApiError."""
        first, last = int(target["state"]["first_seq"]), int(target["state"]["last_seq"])
        every = [Ends.of_leg(self.world, self.pool, leg) for leg in legs]
        mixed = self.entry.order != "stream"
        shared = [Shared(leg, ends, self.world.topology, mixed=mixed) for leg, ends in zip(legs, every, strict=True)]
        wanted = await at_once(shared, lambda one: one.asked(target))
        if shared and target["state"]["messages"]:
            known = await asyncio.to_thread(look_many, every[0].target_way, self.entry.target.stream, first, last, wanted)
            for one, found in zip(shared, known, strict=True):
                one.found = found
        return {id(leg): one for leg, one in zip(legs, shared, strict=True)}

    async def _side(self, leg: Leg, seen: Missing | None, record: Record | None, *, there: bool) -> LegOutlook:
        """What is missing of one origin. One that cannot be asked says why."""
        try:
            return await self._leg(leg, seen, there=there, pinned=record is not None)
        except JsplanError as error:
            return LegOutlook(leg.origin, leg.target, error=error.in_full)

    async def _legs(self, side: BackfillSide, *, there: bool) -> list[Leg]:
        """As a run would pin them now. Raises JsplanError where there is no such stream."""
        to = str(self.entry.target)
        if side.parquet is not None:
            info = await self._info(self.entry.target)
            if info is None:
                raise JsplanError(f"{to} does not exist", hint="Apply the workspace first: jsplan apply")
            return await archived_legs(self.world, side.parquet, to, info)
        origin, domain = await self._info(side), self.world.workspace.domains[side.domain]
        if origin is None:
            raise JsplanError(f"{side} does not exist")
        first, last = bounds(Ends.of(self.world, self.pool, domain, domain), side, origin)
        target = await self._info(self.entry.target) if there else None
        created, after = (target["created"], int(target["state"]["last_seq"]) + 1) if target is not None else ("", 1)
        return [Leg(str(side), to, origin["created"], first, last, list(side.filters), created, after)]

    async def _leg(self, leg: Leg, seen: Missing | None, *, there: bool, pinned: bool) -> LegOutlook:
        found = LegOutlook(leg.origin, leg.target, leg.first, leg.last, pinned=pinned, done=leg.status == "done")
        if leg.archive:
            return await self._archived(leg, found)
        origin = self.world.workspace.domains[leg.origin_address.domain]
        target = self.world.workspace.domains[self.entry.target.domain] if there else origin
        ends = Ends.of(self.world, self.pool, origin, target)
        missing = seen or Missing(leg, ends, self.world.topology)
        info = await self._info(BackfillSide(leg.origin_address.domain, leg.origin_address.stream))
        found.gap_messages = total(common([leg.span], await missing.gone())) if leg.first <= leg.last else 0
        if found.done:
            found.messages, found.bytes, found.measured = 0, 0, COUNTED
            return found
        todo = await missing.todo() if there else None
        if todo is None or not (len(todo.known.seq) or todo.claims):
            found.messages, found.measured = (await missing.counted() if leg.first <= leg.last else 0), COUNTED
        else:
            left = asyncio.to_thread(_left, ends.source_way, leg, todo)
            found.messages, found.measured = await left, COMPARED
            found.in_target = int(((todo.known.seq >= leg.first) & (todo.known.seq <= leg.last)).sum())
        state = info["state"] if info is not None else {"messages": 0, "bytes": 0}
        found.bytes = found.messages * int(state["bytes"]) // max(1, int(state["messages"]))
        return found

    async def _archived(self, leg: Leg, found: LegOutlook) -> LegOutlook:
        held = await held_by(self.world, leg)
        todo = await InArchive(leg, ends_from(self.world, self.pool, leg, held), self.world.topology, held).todo()
        state = held.info["state"]
        found.messages, found.measured, found.gap_messages = todo.messages, COMPARED, held.gap_messages
        found.in_target = int(state["messages"]) - found.messages
        found.bytes = found.messages * int(state["bytes"]) // max(1, int(state["messages"]))
        return found


def _left(way: Way, leg: Leg, todo: Todo) -> int:
    """How many messages of the range the target has not and its own sources do not bring. Raises what `wire.read` raises."""
    count = 0
    for span in todo.spans:
        what = Range(way.api_prefix, leg.origin_address.stream, span.first, span.last, tuple(leg.filters), headers_only=True)
        for rows in read(way.open, what):
            wanted = _unknown(todo.known, rows)
            for claim in todo.claims:
                wanted &= ~_claimed(claim, rows)
            count += int(wanted.sum())
    return count


def _unknown(known: Known, rows: Any) -> np.ndarray[Any, Any]:
    seq = rows["seq"].to_numpy()
    return ~known_among(known, seq, rows["time"].to_numpy()) if len(known.seq) else np.ones(len(seq), dtype=bool)


def _claimed(claim: Claim, rows: Any) -> np.ndarray[Any, Any]:
    later: np.ndarray[Any, Any] = np.greater_equal(rows["seq"].to_numpy(), claim.first)
    if not claim.filters:
        return later
    encoded = pc.dictionary_encode(rows["subject"])
    texts = (text.decode(errors="surrogateescape") for text in encoded.dictionary.to_pylist())
    hit = np.array([any(within(text, one) for one in claim.filters) for text in texts], dtype=bool)
    mine: np.ndarray[Any, Any] = np.logical_and(later, hit[encoded.indices.to_numpy()])
    return mine


def _status(record: Record | None) -> str:
    return "new" if record is None or record.is_new else "done" if record.done_at else "started"


def command(entry: Backfill) -> str:
    """What runs the entry; one that was made of two addresses is run by them."""
    origin, between, target = entry.name.partition(">")
    return f"jsplan backfill run {f'--from {shlex.quote(origin)} --to {shlex.quote(target)}' if between else entry.name}"
