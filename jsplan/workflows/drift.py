"""drift: one read-only run. What changed, what is missing, what nobody manages."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from jsplan import __version__
from jsplan.address import Address, matches
from jsplan.config.model import LoadOptions, Mute, Workspace
from jsplan.documents.drift import Drift, Unmanaged
from jsplan.documents.plan import Deferred, ResourceChange
from jsplan.errors import ExitCode, combine
from jsplan.facts.inventory import unmanaged
from jsplan.facts.live import LiveObject
from jsplan.facts.survey import survey
from jsplan.planning.away import excused, last_seen
from jsplan.planning.downstream import named
from jsplan.planning.drifted import drift_of
from jsplan.planning.inputs import Inputs, Request
from jsplan.planning.preserve.resumed import stand_ins
from jsplan.planning.recovered import recover
from jsplan.units import stamp
from jsplan.workflows.options import DriftOptions, Observer
from jsplan.workflows.running import run
from jsplan.workflows.world import World, inputs_of, known_domains, open_pool, open_world, state_bucket, with_streams

#: Why a resource is left for later although its domain is there.
MIDDLE = "it is in the middle of a replacement"


def drift(load: LoadOptions, options: DriftOptions, observer: Observer) -> Drift:
    """Compare live with last applied. Sends nothing that could change a server, takes no lock.

    Raises ConfigError, StateError, ConnectError (no domain at all can be reached) and ApiError.
    """
    return run(_load_and_drift(load, options, observer))


async def _load_and_drift(load: LoadOptions, options: DriftOptions, observer: Observer) -> Drift:
    async with open_world(load) as world:
        return await _drift(world, options, observer)


async def _drift(world: World, options: DriftOptions, observer: Observer) -> Drift:
    request = Request(now=datetime.now(UTC), targets=options.targets, excludes=options.excludes)
    inputs = inputs_of(world, request)
    ours = sorted(a for a in {*inputs.entries, *inputs.pending} if a in inputs.selected and not _ignored(world.workspace, a))
    observer.phase(f"Reading {len(ours):,} resource{'' if len(ours) == 1 else 's'}")
    async with open_pool(world, read_only=True) as pool:
        needed = [*with_streams(ours), *sorted(stand_ins(inputs))]
        wanted = needed if options.targets else [*needed, *_one_of_each(world)]
        inputs.live = await survey(pool, world.workspace.domains, wanted, known_domains(world))
        recover(inputs)
        known = {*world.workspace.resources, *inputs.entries, *state_bucket(world.workspace)}
        known |= {world.topology.real(a) for a in known if a.domain in world.workspace.domains}  # what is ours by another way
        strangers = [] if options.targets else await unmanaged(pool, world.workspace.domains, inputs.live, known)
    managed = [a for a in ours if a in inputs.entries and not _deleted_by_us(inputs, a)]
    return _document(world, inputs, managed, strangers, options)


def _deleted_by_us(inputs: Inputs, address: Address) -> bool:
    """Whether an apply that died had begun to delete it, and it is gone."""
    begun = inputs.pending.get(address, {}).get("op", "")
    return begun.endswith(".delete") and inputs.live.reachable(address.domain) and inputs.live.get(address) is None


def _one_of_each(world: World) -> list[Address]:
    """An address per domain, so that a domain without managed resources is asked for unmanaged ones too."""
    named = {d.key for d in world.workspace.domains.values() if d.same_as is None}
    return [Address(key, "stream", "JSPLAN_IS_ANYBODY_THERE") for key in sorted(named)]


def _ignored(workspace: Workspace, address: Address) -> bool:
    return any(matches(glob, address) for glob in workspace.drift.ignore)


def _document(world: World, inputs: Inputs, managed: list[Address], strangers: list[LiveObject], options: DriftOptions) -> Drift:
    live, workspace = inputs.live, world.workspace
    out = Drift(__version__, workspace.name, workspace.environment, stamp(), str(uuid.uuid4()))
    for address in managed:
        if not live.reachable(address.domain):
            out.deferred.append(Deferred(str(address), live.domains[address.domain].absence))
            continue
        if address in live.broken:
            out.deferred.append(Deferred(str(address), f"it is offline on its server: {live.broken[address]}"))
            continue
        if (under_way := inputs.under_way.get(address.parent or address)) is not None:
            out.deferred.append(Deferred(str(address), f"{MIDDLE}: its messages are in {under_way.where}"))
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
        _report(out, workspace, address, found)
        if found is None and address in inputs.taken_out:
            out.deferred.append(Deferred(str(address), f"{MIDDLE}: {named(inputs.taken_out[address])} is to be put back into it"))
    out.unmanaged = [_unmanaged(o) for o in strangers if not _ignored(workspace, o.address)]
    seen = last_seen(inputs)
    out.away = [_away(inputs, key, seen.get(key)) for key, facts in sorted(live.domains.items()) if not facts.reachable]
    out.pending = _pending(inputs)
    out.exit_code = int(_exit_code(out, options))
    return out


def _report(out: Drift, workspace: Workspace, address: Address, found: ResourceChange | None) -> None:
    if found is None:
        return
    mute = next((m for m in workspace.drift.mute if _mutes(m, address, found)), None)
    if mute is None:
        out.resource_drift.append(found)
    else:
        out.mutes.append({"address": str(address), "owner": mute.owner, "reason": mute.reason, "until": mute.until})


def _mutes(mute: Mute, address: Address, found: ResourceChange) -> bool:
    """A mute of fields holds only while nothing else of the resource drifts."""
    if not matches(mute.address, address) or (mute.until is not None and datetime.now(UTC).date().isoformat() > mute.until):
        return False
    drifted = {field.path.split(".")[0].split("[")[0] for field in found.change.fields}
    return not mute.fields or (bool(drifted) and drifted <= set(mute.fields))


def _unmanaged(found: LiveObject) -> Unmanaged:
    state = found.state
    return Unmanaged(
        str(found.address), found.address.kind, state.get("messages", state.get("num_pending")), state.get("bytes"), found.created
    )


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


def _exit_code(out: Drift, options: DriftOptions) -> ExitCode:
    """For drift, 2 comes before 1 (contract, section 3): the document holds both."""
    counts = out.summary
    names = {"changed": "changed", "missing": "missing", "replication": "unhealthy", "unmanaged": "unmanaged"}
    if any(counts[names[what]] for what in options.fail_on):
        return ExitCode.CHANGES
    return combine([ExitCode.ERROR] if any(not away["excused"] for away in out.away) else [])
