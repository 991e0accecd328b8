"""status: live streams, consumers and flows. Read-only; does not compare with the files."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NoReturn, Protocol

from msgspec.structs import replace

from jsplan.address import Address, is_selected
from jsplan.applying.transfer.record import read_transfers
from jsplan.config.model import LoadOptions
from jsplan.context import known_domains, open_session, open_stateless_context, state_bucket
from jsplan.documents.status import Status
from jsplan.drift.document import judge_status
from jsplan.drift.watermarks import WatermarkFile, list_marked
from jsplan.errors import ApiError, ConnectError, JsplanError
from jsplan.event_loop import run_until_complete
from jsplan.facts.domains import name_silent_servers
from jsplan.facts.live import LiveObject
from jsplan.facts.lost_messages import read_losses
from jsplan.facts.reader import read_object
from jsplan.facts.refresh import list_live
from jsplan.facts.replicas import compare_replicas
from jsplan.facts.unmanaged import is_state_bucket
from jsplan.jetstream import Pool
from jsplan.options import NullObserver, Observer
from jsplan.plan_inputs import build_inputs, look_for_holder
from jsplan.planning.model import PlanInputs
from jsplan.replication import ReplicationChecker, SampleHistory
from jsplan.server_reader import ReadCounter, read_domain_names, with_parent_streams
from jsplan.status import build_document
from jsplan.units import count_text


def status(load: LoadOptions, observer: Observer, targets: Collection[str] = ()) -> Status:
    """Read the live status, also without the state.

    Raises ConfigError, ConnectError where no domain answers, and ApiError.
    """
    return run_until_complete(_status(load, observer, targets))


class StatusScreen(Protocol):
    """The display of `watch`."""

    def show(self, status: Status) -> None:
        """Show the current status."""

    def show_error(self, error: JsplanError) -> None:
        """Show that nothing could be read this time."""


def watch(
    load: LoadOptions, screen: StatusScreen, every: float, targets: Collection[str] = ()
) -> NoReturn:
    """Show the status again and again, every `every` seconds, until interrupted.

    Each time it takes one sample of the flows, and uses the earlier ones. Raises the errors of
    `status` for the first time only.
    """
    run_until_complete(_watch(load, screen, every, targets))
    raise AssertionError


async def _watch(
    load: LoadOptions, screen: StatusScreen, every: float, targets: Collection[str]
) -> NoReturn:
    seen: SampleHistory = {}
    screen.show(await _status(load, NullObserver(), targets, seen))
    while True:
        await asyncio.sleep(every)
        try:
            screen.show(await _status(load, NullObserver(), targets, seen))
        except (ApiError, ConnectError) as error:
            screen.show_error(error)


async def _status(
    load: LoadOptions,
    observer: Observer,
    targets: Collection[str],
    seen: SampleHistory | None = None,
) -> Status:
    async with open_session(load, observer, open_stateless_context) as session:
        context, pool = session.context, session.pool
        inputs = await look_for_holder(context, build_inputs(context))
        marks = WatermarkFile(context.workspace).read()
        inputs = replace(inputs, watermarks=marks.known(context.state.serial))
        domains = context.workspace.domains
        named = sum(1 for domain in domains.values() if domain.is_own)
        observer.phase(f"Asking {count_text(named, 'domain')}")
        wanted = sorted(with_parent_streams({*context.workspace.resources, *inputs.entries}))
        live = await list_live(
            pool,
            domains,
            known_domains(context) if not context.state_error else frozenset(domains),
            wanted,
            on_read=ReadCounter(observer),
            may_refuse=domains,
        )
        marked = list_marked(replace(inputs, live=live))
        await read_losses(pool, domains, live, [*live.objects], marked)
        await compare_replicas(pool, domains, live, [*live.objects])
        await name_silent_servers(pool, domains, live, wanted)
        inputs = await _read_transfers(pool, replace(inputs, live=live))
        inputs = await read_domain_names(inputs, pool)
        own = state_bucket(context.workspace)
        listed = {
            a: o
            for a, o in inputs.live.objects.items()
            if not (is_state_bucket(o) or own & {a, a.parent})
        }
        chosen = [o for a, o in sorted(listed.items()) if is_selected(a, targets)]
        downstreams = [o.address for o in chosen if o.flows]
        if downstreams:
            observer.phase(f"Looking at {count_text(len(downstreams), 'downstream stream')}")
        health = ReplicationChecker(session, inputs.live, {} if seen is None else seen)
        flows = await (
            health.check_until_conclusive(downstreams)
            if seen is None
            else health.check_again(downstreams)
        )
    found = build_document(context, inputs, chosen, flows, targets)
    found.exit_code = int(judge_status(inputs, found, flows))
    return found


async def _read_transfers(pool: Pool, inputs: PlanInputs) -> PlanInputs:
    """Determine the progress of the transfers that are not finished."""

    async def read(address: Address) -> LiveObject | None:
        return await read_object(pool.api(inputs.workspace.domains[address.domain]), address)

    records = [
        record | {"address": str(address)}
        for address, record in inputs.interrupted.replacements.items()
        if address.domain in inputs.workspace.domains
    ]
    found = await read_transfers(records, inputs.live.is_reachable, read)
    streams = {each.target: each for each in found if not each.is_relocation}
    relocations = {each.target: each for each in found if each.is_relocation}
    work = replace(inputs.interrupted, streams=streams)
    return replace(inputs, relocations=relocations, interrupted=work)
