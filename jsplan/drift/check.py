"""Checks live against last applied: everything, some addresses, or the flows. Read-only."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from jsplan.address import STAGING_PREFIX, Address
from jsplan.context import Context, Session, state_bucket
from jsplan.documents.drift import Drift
from jsplan.drift.document import build_document, is_ignored
from jsplan.drift.watermarks import WatermarkFile, list_marked
from jsplan.facts.live import Live
from jsplan.facts.lost_messages import read_losses
from jsplan.facts.reader import read_into
from jsplan.facts.replicas import compare_replicas
from jsplan.facts.unmanaged import ask_if_permitted, is_state_bucket, list_unmanaged, may_be_listed
from jsplan.options import DriftOptions
from jsplan.plan_inputs import build_inputs, look_for_holder
from jsplan.planning.crash_recovery import recover_interrupted, staging_streams
from jsplan.planning.model import PlanInputs
from jsplan.planning.options import PlanningOptions
from jsplan.planning.transfer.configs import probe_address
from jsplan.replication import FlowHealth, ReplicationChecker
from jsplan.server_reader import ServerReader, operators_of, read_domain_names, with_parent_streams
from jsplan.units import count_text


async def check_drift(
    session: Session, options: DriftOptions, marks: WatermarkFile | None = None
) -> Drift:
    """Check everything selected over guarded connections, for `drift` and the drift job.

    `marks` are compared with the streams, and then take what these have.
    """
    context, pool = session.context, session.pool
    selection = PlanningOptions(targets=options.targets, excludes=options.excludes)
    inputs = await look_for_holder(context, build_inputs(context, selection))
    if marks is not None:
        inputs = replace(inputs, watermarks=marks.known(context.state.serial))
    checked = _list_checked(context, inputs, inputs.selected)
    session.observer.phase(f"Reading {count_text(len(checked), 'resource')}")
    needed, domains = (
        with_parent_streams(checked) | staging_streams(inputs),
        context.workspace.domains,
    )
    also = set() if options.targets else {key for key, domain in domains.items() if domain.is_own}
    also |= operators_of(inputs.selected)
    live = await ServerReader(session).read(needed, also, may_refuse=domains)
    marked = list_marked(replace(inputs, live=live))
    await read_losses(pool, domains, live, checked, marked)
    await compare_replicas(pool, domains, live, checked)
    inputs = recover_interrupted(replace(inputs, live=live))
    inputs = await read_domain_names(inputs, pool)
    unmanaged = (
        []
        if options.targets
        else await list_unmanaged(pool, domains, inputs.live, _known_addresses(context, inputs))
    )
    if inputs.interrupted.is_running:  # what it makes on the way comes and goes
        unmanaged = [o for o in unmanaged if not o.address.stream.startswith(STAGING_PREFIX)]
    managed = [a for a in checked if a in inputs.entries]
    flows = await _check_flows(session, inputs, managed) if options.replication else ()
    inputs = await _read_contents(session, inputs, inputs.selected)
    if marks is not None:
        marks.update(inputs, managed)
    return build_document(inputs, managed, unmanaged, options, flows)


def _list_checked(
    context: Context, inputs: PlanInputs, chosen: Collection[Address]
) -> list[Address]:
    """List the chosen streams and consumers in state, without those to ignore."""
    return sorted(
        a
        for a in {*inputs.entries, *inputs.interrupted.steps}
        if a in chosen and not a.is_content and not is_ignored(context.workspace, a)
    )


async def _read_contents(
    session: Session, inputs: PlanInputs, chosen: Collection[Address]
) -> PlanInputs:
    """Read the chosen contents of buckets and streams, and select no others."""
    workspace = session.context.workspace
    kept = (
        a
        for a in inputs.selected
        if not a.is_content or (a in chosen and not is_ignored(workspace, a))
    )
    return await ServerReader(session).read_contents(replace(inputs, selected=frozenset(kept)))


async def check_replication(session: Session) -> Drift:
    """Check only mirrors and sources, which takes longer for one that does not follow."""
    context = session.context
    inputs = build_inputs(context)
    copying = [
        a
        for a, entry in inputs.entries.items()
        if entry.config.get("mirror") or entry.config.get("sources")
    ]
    copying = sorted(
        a
        for a in copying
        if a.domain in context.workspace.domains and not is_ignored(context.workspace, a)
    )
    flows: Iterable[FlowHealth] = ()
    if copying:
        wanted = [*copying, *sorted(staging_streams(inputs))]
        live = await ServerReader(session).read(wanted, may_refuse=context.workspace.domains)
        inputs = recover_interrupted(replace(inputs, live=live))
        flows = await _check_flows(session, inputs, copying)
    return build_document(inputs, [], [], DriftOptions(), flows)


async def _check_flows(
    session: Session, inputs: PlanInputs, managed: Iterable[Address]
) -> list[FlowHealth]:
    health = ReplicationChecker(session, inputs.live)
    # A stream in a replacement has its flows afterwards.
    replaced = {*inputs.interrupted.streams, *inputs.interrupted.detached_sources}
    return await health.check_until_conclusive(
        [a for a in managed if a.is_stream and a not in replaced], replaced
    )


async def check_addresses(
    session: Session, addresses: Collection[Address], options: DriftOptions
) -> Drift:
    """Check only these addresses, managed or not, as `check_drift` would check them."""
    context = session.context
    inputs = build_inputs(context)
    requested = {
        a
        for a in addresses
        if a.domain in context.workspace.domains and not is_ignored(context.workspace, a)
    }
    checked = _list_checked(context, inputs, requested)
    known = _known_addresses(context, inputs)
    others = {a for a in requested - known if may_be_listed(a)}
    if requested:
        needed = with_parent_streams(checked) | staging_streams(inputs)
        asked = {a.domain for a in requested}
        live = await ServerReader(session).read(needed, asked, may_refuse=context.workspace.domains)
        await _read_unmanaged(session, live, sorted(with_parent_streams(others)))
        inputs = recover_interrupted(replace(inputs, live=live))
    managed = [a for a in checked if a in inputs.entries]
    inputs = await _read_contents(session, inputs, requested)
    found = (inputs.live.get(a) for a in sorted(others))
    return build_document(
        inputs,
        managed,
        [o for o in found if o is not None and not is_state_bucket(o)],
        options,
    )


async def _read_unmanaged(session: Session, live: Live, addresses: Iterable[Address]) -> None:
    """Read unmanaged objects into `live`, as far as this user may and they are not read yet."""
    for address in addresses:
        if live.is_reachable(address.domain) and live.get(address) is None:
            api = session.pool.api(session.context.workspace.domains[address.domain])
            await ask_if_permitted(read_into(api, live, [address]), address.domain, live)


def _known_addresses(context: Context, inputs: PlanInputs) -> set[Address]:
    """Return addresses of the files, of state, and of the state's bucket, with `same_as` ones."""
    known = {*context.workspace.resources, *inputs.entries, *state_bucket(context.workspace)}
    for staging in staging_streams(inputs):
        known |= {staging, probe_address(staging)}
    return known | {
        context.topology.canonicalize(a) for a in known if a.domain in context.workspace.domains
    }
