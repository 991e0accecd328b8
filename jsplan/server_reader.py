"""Reads the inputs of planning from the servers: live objects, and what changes affect.

What counts messages, entries and names is imported where it is used: a plan without a change needs
none of it, and is to start quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import Domain, PrunedPrefix
from jsplan.context import Session, known_domains
from jsplan.documents.apply import ObjectsRead
from jsplan.errors import ConnectError
from jsplan.facts.live import Live
from jsplan.facts.refresh import read_live
from jsplan.facts.unmanaged import read_unmanaged
from jsplan.jetstream import Pool
from jsplan.options import Observer
from jsplan.planning.build import candidate_addresses, decide_all
from jsplan.planning.contents.decide import with_owned_buckets
from jsplan.planning.crash_recovery import recover_contents, recover_interrupted, staging_streams
from jsplan.planning.domain_findings import find_never_answered
from jsplan.planning.hazard_permissions import permitted_addresses
from jsplan.planning.measurements import find_counts
from jsplan.planning.model import Measurements, PlanInputs, ResourceDecision, split_contents
from jsplan.planning.replication.arriving_messages import planned_flows
from jsplan.planning.replication.checks import continue_sequence_for_unmanaged
from jsplan.planning.replication.impact import unplanned_downstream
from jsplan.planning.replication.lost_origins import list_sourced_positions
from jsplan.planning.replication.removed_sources import add_unknown_domains, list_removed_sources
from jsplan.planning.replication.source_starts import list_start_times
from jsplan.planning.transfer.contents import (
    at_bucket,
    rename_live,
    unmoved_buckets,
    without_unplanned,
)
from jsplan.planning.transfer.entries import relocation_reads, select_stage
from jsplan.planning.transfer.positions import list_reset_times
from jsplan.planning.unmanaged import reader_domains
from jsplan.planning.unmanaged import required_reads as unmanaged_reads
from jsplan.units import count_text

Decisions = dict[Address, ResourceDecision]


#: Resources from which on planning takes so long that it is reported.
MANY: Final = 500
#: Objects between two reports of the progress of reading.
REPORT_EVERY: Final = 50


class ReadCounter(Struct):
    """Counts what was read, and reports it now and then."""

    observer: Observer
    total: int = 0
    done: int = 0

    def __call__(self, count: int) -> None:
        """Count objects that were read."""
        before, self.done = self.done, self.done + count
        if before // REPORT_EVERY < self.done // REPORT_EVERY:
            self.observer.event(ObjectsRead(self.done, self.total))


class ServerReader(Struct, frozen=True):
    """Reads over open connections. Each method returns new inputs and changes none."""

    session: Session

    @property
    def _pool(self) -> Pool:
        return self.session.pool

    @property
    def _domains(self) -> Mapping[str, Domain]:
        return self.session.context.workspace.domains

    async def read(
        self,
        addresses: Iterable[Address],
        domains: Iterable[str] = (),
        *,
        may_refuse: Collection[str] = (),
    ) -> Live:
        """Read these objects, and the facts about their domains and `domains`, as `read_live`."""
        known, wanted = known_domains(self.session.context), set(addresses)
        on_read = ReadCounter(self.session.observer, len(wanted))
        return await read_live(
            self._pool, self._domains, wanted, known, domains, on_read, may_refuse=may_refuse
        )

    async def refresh(self, inputs: PlanInputs, *, require_online: bool = False) -> PlanInputs:
        """Read the live side of the selection: streams, consumers, and then what streams hold.

        The selection of a stage is known between them. `require_online` raises ConnectError.
        """
        wanted = with_parent_streams(
            inputs.selected
            | _excluded_consumers(inputs)
            | _origin_addresses(inputs)
            | staging_streams(inputs)
            | _backfill_streams(inputs)
            | permitted_addresses(inputs)
            | relocation_reads(inputs)
        )
        moved = inputs.moved_from.items()
        wanted |= {old for new, old in moved if new in inputs.selected and not old.is_content}
        count = len({address.domain for address in wanted})
        self.session.observer.phase(
            f"Reading {count_text(len(wanted), 'object')} in {count_text(count, 'domain')}"
        )
        others = self._others(inputs)
        live = await self.read(wanted, operators_of(inputs.selected), may_refuse=others)
        inputs = recover_interrupted(replace(inputs, live=live))
        inputs = await read_domain_names(inputs, self._pool)
        planned = {address.domain for address in inputs.selected}
        offline = [
            facts
            for facts in inputs.live.domains.values()
            if not facts.reachable and facts.key in planned
        ]
        if offline and require_online:
            raise ConnectError(
                offline[0].offline_text,
                hint="Without --offline fail its resources would be deferred.",
            )
        pruned = () if inputs.options.destroy else inputs.workspace.pruned
        return await self.read_contents(select_stage(inputs), pruned)

    async def read_contents(
        self, inputs: PlanInputs, pruned: Collection[PrunedPrefix] = ()
    ) -> PlanInputs:
        """Read the selected contents, and all keys below `pruned`. The rest was read before."""
        inputs = without_unplanned(inputs)
        origins = unmoved_buckets(inputs)
        wanted = {_read_at(a, origins) for a in inputs.selected if a.is_content}
        pruned = tuple(replace(b, bucket=origins.get(b.bucket, b.bucket)) for b in pruned)
        buckets = {a.parent for a in wanted if a.parent is not None} | {b.bucket for b in pruned}
        if not buckets and not wanted:
            return inputs
        if unread := buckets - inputs.live.requested:
            inputs = replace(inputs, live=inputs.live.merge(await self.read(unread)))
        from jsplan.facts.contents import read_all_entries  # noqa: PLC0415 - see above

        self.session.observer.phase(f"Reading {count_text(len(wanted), 'entry', 'entries')}")
        found = await read_all_entries(self._pool, self._domains, inputs.live, wanted, pruned)
        found = rename_live(found, {origin: target for target, origin in origins.items()})
        found = with_owned_buckets(found, inputs, origins)
        return recover_contents(replace(inputs, live=inputs.live.merge(found)))

    async def decide(self, inputs: PlanInputs) -> tuple[PlanInputs, Decisions]:
        """Decide each resource; read and count what the decisions affect."""
        if len(inputs.selected) >= MANY:
            self.session.observer.phase(f"Planning {count_text(len(inputs.selected), 'resource')}")
        if times := list_reset_times(inputs):
            seqs = await self._find_seqs(inputs, times)
            inputs = replace(inputs, measured=replace(inputs.measured, seqs_by_time=seqs))
        decisions, contents = split_contents(decide_all(inputs))
        inputs = await self._read_affected(inputs, decisions)
        decisions = decisions | continue_sequence_for_unmanaged(inputs, decisions)
        return await self._measure(inputs, decisions), decisions | contents

    # --- what the changes affect ------------------------------------------------------------------

    async def _read_affected(self, inputs: PlanInputs, decisions: Decisions) -> PlanInputs:
        """Read downstream streams outside the plan, origins, and unmanaged objects.

        The counts of the server decide whether there are unmanaged ones.
        """
        inputs = await self._read_downstreams(inputs, decisions)
        inputs = await self._read_origins(inputs, decisions)
        inputs = await self._identify_readers(inputs, decisions)
        wanted = unmanaged_reads(inputs, decisions)
        live = await read_unmanaged(self._pool, self._domains, wanted, inputs.live)
        return replace(inputs, live=live)

    def _others(self, inputs: PlanInputs) -> set[str]:
        """Return the domains in which nothing is selected, which a plan reads if they let it."""
        return self._domains.keys() - {address.domain for address in inputs.selected}

    async def _identify_readers(self, inputs: PlanInputs, decisions: Decisions) -> PlanInputs:
        """Identify the domains outside the plan where streams may read what it changes.

        Those that do not answer, or lead elsewhere, are left out.
        """
        own = {key for key, domain in self._domains.items() if domain.is_own}
        unread = own - inputs.live.domains.keys()
        if not unread or not reader_domains(inputs, decisions):
            return inputs
        try:
            found = await self.read((), unread, may_refuse=unread)
        except ConnectError:
            return inputs
        answering = {key: facts for key, facts in found.domains.items() if facts.reachable}
        return replace(inputs, live=inputs.live.merge(Live(answering)))

    async def _read_downstreams(self, inputs: PlanInputs, decisions: Decisions) -> PlanInputs:
        """Read unselected downstream streams of deleted and restored streams, with these."""
        unread = unplanned_downstream(inputs, decisions)
        if not unread:
            return inputs
        found = await self.read({*unread, *unread.values()}, may_refuse=self._others(inputs))
        downstreams = Live(
            found.domains,
            {address: live for address, live in found.objects.items() if address in unread},
            {address: why for address, why in found.unreadable.items() if address in unread},
        )
        return replace(inputs, live=inputs.live.merge(downstreams))

    async def _read_origins(self, inputs: PlanInputs, decisions: Decisions) -> PlanInputs:
        """Read level by level the streams outside the plan that new flows bring messages of."""
        while unread := planned_flows(inputs, decisions).find_unread():
            found = await self.read(unread, may_refuse=self._others(inputs))
            origins = Live({}, found.objects, found.unreadable, requested=set(unread))
            inputs = replace(inputs, live=inputs.live.merge(origins))
        return inputs

    # --- counts -----------------------------------------------------------------------------------

    async def _measure(self, inputs: PlanInputs, decisions: Decisions) -> PlanInputs:
        """Count the messages that the changes would delete, within the limit of reads."""
        domains, limit = self._domains, inputs.options.measure_limit
        levels = {key: facts.level for key, facts in inputs.live.domains.items()}
        times = _backfill_times(inputs) | _history_times(inputs, decisions)
        times |= list_start_times(inputs, decisions)
        seqs = dict(inputs.measured.seqs_by_time) | await self._find_seqs(inputs, times)
        found = Measurements(seqs_by_time=seqs)
        removed = list_removed_sources(inputs, decisions)
        arriving = list(planned_flows(inputs, decisions).list_counts())
        positions = list(list_sourced_positions(inputs, decisions))
        if removed or arriving or positions:
            from jsplan.facts.flow_count import (  # noqa: PLC0415 - see above
                count_flows,
                find_sourced_positions,
            )

            sourced = await find_sourced_positions(self._pool, domains, positions, levels, limit)
            found = replace(found, sourced=sourced)
            every = add_unknown_domains(domains, removed)
            counts = await count_flows(self._pool, every, removed, levels, limit)
            uncopied = {
                stream: some
                for stream, answers in counts.items()
                if (some := [answer for answer in answers if answer.at_most != 0])
            }
            found = replace(found, uncopied=uncopied)
            if arriving:
                counts = await count_flows(self._pool, domains, arriving, levels, limit)
                found = replace(found, arriving=counts)
        requests, answers = find_counts(inputs, decisions)
        if requests:
            from jsplan.facts.measure import measure_all  # noqa: PLC0415 - see above

            changes = count_text(len(requests), "change")
            self.session.observer.phase(f"Measuring what {changes} may delete")
            unread: dict[Address, dict[Address, str]] = {}
            counted = await measure_all(self._pool, domains, requests, levels, limit, unread)
            for address, several in counted.items():
                answers.setdefault(address, []).extend(several)
            found = replace(found, unreadable_origins=unread)
        return replace(inputs, measured=replace(found, answers=answers))

    async def _find_seqs(
        self, inputs: PlanInputs, times: Iterable[tuple[Address, str]]
    ) -> dict[tuple[Address, str], int]:
        """Find the sequences for these times, each of a stream that was read."""
        known = [
            (live, time)
            for address, time in sorted(times)
            if (live := inputs.live.get(address)) is not None
        ]
        if not known:
            return {}
        from jsplan.facts.messages import find_seqs_by_time  # noqa: PLC0415 - see above

        levels = {key: facts.level for key, facts in inputs.live.domains.items()}
        return await find_seqs_by_time(self._pool, self._domains, known, levels)


async def read_domain_names(inputs: PlanInputs, pool: Pool) -> PlanInputs:
    """List the visible domains where a domain never answered: its name may be misspelt."""
    unknown = find_never_answered(inputs)
    if not unknown:
        return inputs
    from jsplan.facts.discover import list_visible_domains  # noqa: PLC0415 - see above

    names = await list_visible_domains(pool, {domain.connection for domain in unknown})
    return replace(inputs, live=replace(inputs.live, visible_domains=names))


def operators_of(addresses: Iterable[Address]) -> set[str]:
    """Return the places of the accounts among the addresses."""
    return {address.domain for address in addresses if address.kind == "account"}


def with_parent_streams(addresses: Iterable[Address]) -> set[Address]:
    """Return the streams and consumers among the addresses, and the streams of all others."""
    found = set(addresses)
    found |= set(filter(None, {a.parent for a in found}))
    return {address for address in found if not address.is_content}


def _backfill_streams(inputs: PlanInputs) -> set[Address]:
    """Return the origins and targets of the backfills that are not done."""
    if not inputs.workspace.backfills:
        return set()
    from jsplan.planning.backfill.entries import list_streams  # noqa: PLC0415 - see above

    return list_streams(inputs)


def _backfill_times(inputs: PlanInputs) -> set[tuple[Address, str]]:
    """Return the times of backfills whose sequences the plan needs, each with its stream."""
    if not inputs.workspace.backfills:
        return set()
    from jsplan.planning.backfill.entries import list_time_lookups  # noqa: PLC0415 - see above

    return list_time_lookups(inputs)


def _history_times(inputs: PlanInputs, decisions: Decisions) -> set[tuple[Address, str]]:
    """Return the starts of new sources whose sequences the plan needs, each with its origin."""
    if not inputs.topology.edges:
        return set()
    from jsplan.planning.backfill.source_history import (  # noqa: PLC0415 - see above
        source_history_times,
    )

    return source_history_times(inputs, decisions)


def _excluded_consumers(inputs: PlanInputs) -> set[Address]:
    """Return consumers outside the selection whose stream is selected: they share its fate."""
    return {
        address
        for address in candidate_addresses(inputs) - inputs.selected
        if address.kind == "consumer" and address.parent in inputs.selected
    }


def _origin_addresses(inputs: PlanInputs) -> set[Address]:
    """Return the origins of selected streams: they affect these, and they should exist."""
    if inputs.options.destroy:
        return set()
    return {edge.origin for edge in inputs.topology.edges if edge.downstream in inputs.selected}


def _read_at(entry: Address, origins: Mapping[Address, Address]) -> Address:
    """Return where an entry is now: in the origin of its bucket until that is activated."""
    bucket = origins.get(entry.parent) if entry.parent is not None else None
    return entry if bucket is None else at_bucket(entry, bucket)
