"""drift: one read-only run. What changed, what is missing, what nobody manages."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from jsplan import __version__
from jsplan.address import Address, matches
from jsplan.config.model import LoadOptions, Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.documents.drift import Drift
from jsplan.documents.plan import Deferred
from jsplan.drift.flows import graded
from jsplan.drift.mutes import mute
from jsplan.drift.strangers import stranger
from jsplan.errors import ExitCode, combine
from jsplan.facts.inventory import keeps_state, may_be_listed, permitted, unmanaged
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.survey import read_into, survey
from jsplan.jetstream import Pool
from jsplan.planning.away import excused, last_seen
from jsplan.planning.downstream import named
from jsplan.planning.drifted import drift_of
from jsplan.planning.inputs import Inputs, Request
from jsplan.planning.preserve.resumed import interrupted, stand_ins
from jsplan.planning.recovered import in_the_middle, recover
from jsplan.planning.unanswered import unanswered
from jsplan.units import stamp
from jsplan.workflows.health import Found, Health
from jsplan.workflows.options import DriftOptions, Observer
from jsplan.workflows.running import run
from jsplan.workflows.world import World, inputs_of, known_domains, name_domains, open_pool, open_world, state_bucket, with_streams

#: Why a resource is left for later although its domain is there.
MIDDLE = "it is in the middle of a replacement"


def drift(load: LoadOptions, options: DriftOptions, observer: Observer) -> Drift:
    """Compare live with last applied. Sends nothing that could change a server, takes no lock.

    Raises ConfigError, StateError, ConnectError (no domain at all can be reached) and ApiError.
    """
    return run(_load_and_drift(load, options, observer))


async def _load_and_drift(load: LoadOptions, options: DriftOptions, observer: Observer) -> Drift:
    async with open_world(load) as world, open_pool(world, read_only=True, sealed=True) as pool:
        return await look(world, pool, options, observer)


async def look(world: World, pool: Pool, options: DriftOptions, observer: Observer) -> Drift:
    """Compare all that is selected, over connections that cannot write: the sequence that `drift` and the scheduled job share."""
    request = Request(now=datetime.now(UTC), targets=options.targets, excludes=options.excludes)
    inputs = inputs_of(world, request)
    ours = sorted(a for a in {*inputs.entries, *inputs.pending} if a in inputs.selected and not _ignored(world.workspace, a))
    observer.phase(f"Reading {len(ours):,} resource{'' if len(ours) == 1 else 's'}")
    needed, domains = [*with_streams(ours), *sorted(stand_ins(inputs))], world.workspace.domains
    also = () if options.targets else [key for key, domain in domains.items() if domain.same_as is None]
    inputs.live = await survey(pool, domains, needed, known_domains(world), also)
    recover(inputs)
    await name_domains(inputs, pool)
    strangers = [] if options.targets else await unmanaged(pool, domains, inputs.live, _known(world, inputs))
    managed = [a for a in ours if a in inputs.entries]
    flows = await _flows(world, pool, inputs, managed) if options.replication else ()
    return _document(world, inputs, managed, strangers, options, flows)


async def replication(world: World, pool: Pool) -> Drift:
    """Look at mirrors and sources alone, which may take a while where one does not follow: a drift document with nothing else in it."""
    inputs = inputs_of(world, Request(now=datetime.now(UTC)))
    copying = [a for a, entry in inputs.entries.items() if entry.config.get("mirror") or entry.config.get("sources")]
    copying = sorted(a for a in copying if a.domain in world.workspace.domains and not _ignored(world.workspace, a))
    flows: Iterable[Found] = ()
    if copying:
        inputs.live = await survey(pool, world.workspace.domains, [*copying, *sorted(stand_ins(inputs))], known_domains(world))
        recover(inputs)
        flows = await _flows(world, pool, inputs, copying)
    return _document(world, inputs, [], [], DriftOptions(), flows)


async def _flows(world: World, pool: Pool, inputs: Inputs, managed: Iterable[Address]) -> list[Found]:
    health = Health(world, pool, inputs.live)
    return await health.thorough(_copies(inputs, managed), {*inputs.under_way, *inputs.taken_out})


def _copies(inputs: Inputs, managed: Iterable[Address]) -> list[Address]:
    """The streams that may copy others. One in the middle of a replacement copies when that is done."""
    return [a for a in managed if a.kind != "consumer" and a not in inputs.under_way and a not in inputs.taken_out]


async def glance(world: World, pool: Pool, addresses: Collection[Address], options: DriftOptions) -> Drift:
    """Look at nothing but these, managed or not: what follows when something is said to have changed. Reads what `look` would read."""
    request = Request(now=datetime.now(UTC))
    inputs = inputs_of(world, request)
    asked = {a for a in addresses if a.domain in world.workspace.domains and not _ignored(world.workspace, a)}
    ours = sorted(asked & {*inputs.entries, *inputs.pending})
    known = _known(world, inputs)
    others = {a for a in asked - known if may_be_listed(a)}
    if asked:
        needed = [*with_streams(ours), *sorted(stand_ins(inputs))]
        inputs.live = await survey(pool, world.workspace.domains, needed, known_domains(world), {a.domain for a in asked})
        await _read_others(world, pool, inputs, with_streams(others))
        recover(inputs)
    managed = [a for a in ours if a in inputs.entries]
    found = (inputs.live.get(a) for a in sorted(others))
    return _document(world, inputs, managed, [o for o in found if o is not None and not keeps_state(o)], options)


async def _read_others(world: World, pool: Pool, inputs: Inputs, addresses: Iterable[Address]) -> None:
    """Read what is not managed, as far as this user may and it is not read yet."""
    for address in addresses:
        if inputs.live.reachable(address.domain) and inputs.live.get(address) is None:
            api = pool.api(world.workspace.domains[address.domain])
            await permitted(read_into(api, inputs.live, address), address.domain, inputs.live)


def _known(world: World, inputs: Inputs) -> set[Address]:
    """What is somebody's: of the files, of state, and the state itself; also by another way to its domain."""
    known = {*world.workspace.resources, *inputs.entries, *state_bucket(world.workspace)}
    return known | {world.topology.real(a) for a in known if a.domain in world.workspace.domains}


def _ignored(workspace: Workspace, address: Address) -> bool:
    return any(matches(glob, address) for glob in workspace.drift.ignore)


def _document(
    world: World, inputs: Inputs, managed: list[Address], strangers: list[LiveObject], options: DriftOptions, flows: Iterable[Found] = ()
) -> Drift:
    live, workspace = inputs.live, world.workspace
    out = Drift(__version__, workspace.name, workspace.environment, stamp(), str(uuid.uuid4()))
    for address in managed:
        if not live.reachable(address.domain):
            out.deferred.append(Deferred(str(address), live.domains[address.domain].absence))
            continue
        if address in live.broken:
            out.deferred.append(Deferred(str(address), f"it is offline on its server: {live.broken[address]}"))
            continue
        if (begun := inputs.under_way.get(address)) is not None and begun.begin != "clear":
            out.interrupted += interrupted({address: begun})
            continue
        if how_far := in_the_middle(inputs, address):
            out.deferred.append(Deferred(str(address), f"{MIDDLE}: {how_far}"))
            continue
        declared = workspace.resources.get(address)
        found = drift_of(
            address,
            inputs.entries[address],
            live.get(address),
            inputs.level(address),
            declared.lifecycle.ignore_changes if declared else (),
            now=inputs.request.now,
        )
        out.resource_drift += [found] if found is not None else []
        if found is None and address in inputs.taken_out:
            out.deferred.append(Deferred(str(address), f"{MIDDLE}: {named(inputs.taken_out[address])} is to be put back into it"))
    out.interrupted.sort(key=lambda item: not item["rejected"])
    out.replication = [graded(found.to_json()) for found in flows if not _ignored(workspace, found.flow.copy)]
    out.unmanaged = [stranger(o, live) for o in strangers if not _ignored(workspace, o.address)]
    seen = last_seen(inputs)
    out.offline = [_away(inputs, key, seen.get(key)) for key, facts in sorted(live.domains.items()) if not facts.reachable]
    out.pending = _pending(inputs)
    out.diagnostics += unanswered(inputs)
    mute(out, workspace.drift.mute, inputs.request.now)
    out.places = {r.address: d.range for r in out.resource_drift if (d := workspace.resources.get(Address.parse(r.address))) is not None}
    out.diagnostics += _unlisted(live)
    out.exit_code = int(_exit_code(out, options, live))
    return out


def _away(inputs: Inputs, key: str, seen: datetime | None) -> dict[str, object]:
    return {
        "domain": key,
        "reason": inputs.live.domains[key].why,
        "may_be_offline": inputs.workspace.domains[key].may_be_offline,
        "last_seen": stamp(seen) if seen else None,
        "excused": excused(inputs, key, seen),
    }


def _pending(inputs: Inputs) -> int:
    """Resources whose files no longer say what was last applied."""
    resources = inputs.workspace.resources
    count = sum(1 for a in resources if a in inputs.selected and a not in inputs.entries)
    for address, entry in inputs.entries.items():
        if address in inputs.selected:
            same = address in resources and inputs.declared_fields(address) == entry.declared
            count += not same
    return count


def _unlisted(live: Live) -> Iterable[Diagnostic]:
    for domain, reason in sorted(live.unlisted.items()):
        text = f"what else is in domain {domain} cannot be listed, so what is unmanaged there is not known: {reason}"
        yield Diagnostic("warning", "JS447", text, "Let this user ask STREAM.NAMES, CONSUMER.NAMES and their INFO.", f"{domain}/**")


def _exit_code(out: Drift, options: DriftOptions, live: Live) -> ExitCode:
    """For drift, 2 comes before 1 (contract, section 3): the document holds both."""
    counts = out.summary
    names = {"changed": "changed", "missing": "missing", "replication": "unhealthy", "unmanaged": "unmanaged"}
    if (out.interrupted and options.fail_on) or any(counts[names[what]] for what in options.fail_on):
        return ExitCode.CHANGES
    unread = any(not away["excused"] for away in out.offline) or (live.unlisted and "unmanaged" in options.fail_on)
    return combine([ExitCode.ERROR] if unread else [])
