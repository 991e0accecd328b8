"""Sources that continue where others were; the server takes them for new ones.

So the old source is removed first, and the new one begins after the last message that the old one
copied. That is so for a source of a relocated stream at its new address; of a domain that has
another JetStream name now; and of another copy of the same stream, with the same sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jsplan.address import Address, matches, move_address
from jsplan.facts.live import LiveObject
from jsplan.planning.model import Decisions, Overrides, PlanInputs, ResourceDecision
from jsplan.planning.replication.impact import attach_sources, origin_of, reads_origin
from jsplan.planning.revision import Revision
from jsplan.planning.transfer.decisions import ORIGIN_RELOCATED, TARGET_RELOCATED
from jsplan.planning.transfer.obstacles import find_old_source, find_replaced_sources
from jsplan.planning.transfer.progress import Transfer
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_api, origin_key, source_keys
from jsplan.state.document import former_names
from jsplan.units import parse_instant


def plan_relocated_sources(inputs: PlanInputs, decisions: Decisions) -> Overrides:
    """Complete the decisions about streams that will read a target instead of its origin.

    So do those that read a domain under its new name, or another copy of the same stream.
    """
    revision = Revision(decisions)
    updated = [a for a, v in decisions.items() if v.actions == ["update"] and a.is_stream]
    for address in updated:
        for find in (find_renamed_sources, find_switched_sources):
            _resume_sources(inputs, revision, address, find(inputs, revision[address]))
    for relocation in inputs.relocations.values():
        sides = (decisions.get(side) for side in (relocation.target, relocation.origin))
        reasons = {side.reason for side in sides if side is not None}
        if not reasons & {TARGET_RELOCATED, ORIGIN_RELOCATED} and not relocation.is_origin_lost:
            continue
        for address in updated:
            moved = _moved_sources(inputs, relocation, revision[address])
            _resume_sources(inputs, revision, address, moved)
    return revision.overrides


def _resume_sources(
    inputs: PlanInputs, revision: Revision, address: Address, moved: Iterable[tuple[str, Config]]
) -> None:
    for key, old in list(moved):
        decision = revision[address]
        if key in decision.relocated_sources:
            continue
        if decision.planned.get("allow_msg_counter"):
            _refuse_counters(inputs, revision, decision, old["name"], key)
            continue
        leaving = {origin_key(old)} - inputs.interrupted.detached_sources.get(address, set())
        relocated = decision.relocated_sources | {key: old}
        revision.change(address, sources_to_detach=decision.sources_to_detach | leaving)
        revision.change(address, relocated_sources=relocated)
        attach_sources(revision, address, {key})


def _refuse_counters(
    inputs: PlanInputs, revision: Revision, decision: ResourceDecision, old: str, key: str
) -> None:
    """Refuse to continue a source of counters elsewhere.

    The server remembers by the name and the API prefix of a source what it has counted of it
    (measured on 2.12 to 2.15). Under another one it adds the total of the origin once more.
    """
    text = f"counts what source {old} has brought, and would count it once more as {key}"
    detail = (
        "Keep the source. Or delete the stream and declare it again in a later plan: it then "
        "counts its sources from the beginning."
    )
    found = inputs.finding("error", "JS303", text, detail, decision.address)
    revision.change(decision.address, diagnostics=[*decision.diagnostics, found])


def _moved_sources(
    inputs: PlanInputs, relocation: Transfer, decision: ResourceDecision
) -> Iterator[tuple[str, Config]]:
    """Yield the key of each source of the target, with the source of the origin before it."""
    live = decision.live
    if live is None:
        return
    existing = source_keys(live.compact)
    for source in decision.planned.get("sources") or ():
        reads = reads_origin(inputs, decision.address, source, relocation.target)
        if origin_key(source) not in existing and reads:
            old = find_old_source(inputs, relocation, live, source)
            if old is not None:
                yield origin_key(source), old


# --- a domain with another name ----


def find_renamed_sources(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterator[tuple[str, Config]]:
    """Return the key of each source of a renamed domain, with the source before it."""

    def continues(old: Config, new: Config) -> bool:
        former = _former_prefixes(inputs, decision.address, new)
        return origin_api(old) in former and old["name"] == new["name"]

    return find_replaced_sources(decision, continues)


def _former_prefixes(inputs: PlanInputs, downstream: Address, source: Config) -> set[str]:
    """Return the earlier API prefixes of the origin, if that is the managed stream it was."""
    origin = origin_of(inputs, downstream, source)
    live = inputs.live.get(origin) if origin is not None else None
    entry = inputs.entries.get(origin) if origin is not None else None
    if origin is None or live is None or entry is None or entry.created != live.created:
        return set()
    keys = {origin.domain} | {
        move_address(block.new_address, block.old_address, origin).domain
        for block in inputs.workspace.moved
        if matches(block.new_address, origin)
    }
    names = [name for key in keys for name in former_names(inputs.state.domains.get(key, {}))]
    return {f"$JS.{name}.API" for name in names if name} - {str(origin_api(source))}


# --- another copy of the same stream ----


#: Fields of a mirror that copies a part, or copies it elsewhere.
_PARTIAL = ("filter_subject", "subject_transforms", "opt_start_seq", "opt_start_time")


def find_switched_sources(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterator[tuple[str, Config]]:
    """Return the key of each source that a copy of its stream replaces, with the source before."""

    def continues(old: Config, new: Config) -> bool:
        before, after = (origin_of(inputs, decision.address, source) for source in (old, new))
        if before is None or after is None:
            return False
        return _first_copied(inputs, before) == _first_copied(inputs, after)

    return find_replaced_sources(decision, continues)


def _first_copied(inputs: PlanInputs, stream: Address) -> Address:
    """Return the stream whose sequences a stream has, over any number of whole mirrors."""
    seen = set[Address]()
    while stream not in seen:
        seen.add(stream)
        live = inputs.live.get(stream)
        mirror = live.compact.get("mirror") if live is not None else None
        if live is None or not mirror or any(mirror.get(name) for name in _PARTIAL):
            break
        origin = origin_of(inputs, stream, mirror)
        found = inputs.live.get(origin) if origin is not None else None
        if origin is None or found is None or not _has_its_sequences(live, found):
            break
        stream = origin
    return stream


def _has_its_sequences(mirror: LiveObject, origin: LiveObject) -> bool:
    """Check that the mirror was not made of an earlier stream of the origin's name."""
    ahead = int(mirror.state.get("last_seq") or 0) > int(origin.state.get("last_seq") or 0)
    return not ahead or parse_instant(mirror.created) > parse_instant(origin.created)
