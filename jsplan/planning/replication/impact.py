"""The effects of a recreated stream on its downstream streams.

Measured on five servers. Up to 2.14 a flow resumes behind the last sequence that it took, even if
the origin is another stream. If the origin restarts at sequence 1, the downstream stream misses as
many messages as it has. Since 2.15 a source detects the new origin and copies all of it again: kept
messages arrive twice. So an origin that loses its messages continues the sequence of the old one.
That is right for every downstream stream, mirrors and unmanaged ones included. Sources since 2.15
are detached before and attached after, at the sequence behind the last one that they took. (A
source that stays attached also detects the new origin, some twenty seconds later.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.plan import FieldChange
from jsplan.documents.step_kinds import RESTORED
from jsplan.facts.live import get_retention
from jsplan.facts.measurement import MAX_SEARCHED
from jsplan.flows.graph import FlowKind, list_origins
from jsplan.planning.model import Overrides
from jsplan.planning.revision import Revision
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_api, origin_key, source_keys
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL
from jsplan.subjects import is_covered

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
    from jsplan.state.document import Entry

#: A stream that reads an origin, `mirror` or `source`, and the configuration of that.
Flow = tuple[Address, str, Config]
#: The reason of a stream whose only change is that one of its sources is detached and attached.
ORIGIN_REPLACED: Final = "update_because_origin_is_replaced"


def managed_downstream(inputs: PlanInputs, origin: Address) -> set[Address]:
    """Return the streams of the workspace that read it, by the files or as last applied."""
    declared = {edge.downstream for edge in inputs.topology.edges_from(origin)}
    return declared | inputs.recorded_downstream(origin)


def flows_from(inputs: PlanInputs, decisions: Decisions, origin: Address) -> Sequence[Flow]:
    """Return the flows from a stream to all streams that were read, in address order.

    With the decisions of a whole plan those when it is executed, without decisions those now.
    """
    flows = inputs.index(
        "planned flows" if decisions else "flows",
        (inputs.live.objects, decisions) if decisions else (inputs.live.objects,),
        lambda: _flows_by_origin(inputs, decisions),
    )
    return flows.get((inputs.topology.routes.canonicalize(origin.domain), origin.stream), ())


def _flows_by_origin(
    inputs: PlanInputs, decisions: Decisions
) -> dict[tuple[str | None, str], list[Flow]]:
    found: dict[tuple[str | None, str], list[Flow]] = {}
    for address in sorted(a for a in inputs.live.objects if a.is_stream):
        for kind, source in planned_origins(inputs, decisions, address):
            origin = origin_domain(inputs, address, source), source["name"]
            found.setdefault(origin, []).append((address, kind, source))
    return found


def planned_origins(
    inputs: PlanInputs, decisions: Decisions, downstream: Address
) -> list[tuple[FlowKind, Config]]:
    """Return the mirror or the sources that a stream has when the plan is executed."""
    planned = decisions.get(downstream)
    config = (
        inputs.live.objects[downstream].compact
        if planned is None or planned.after is None
        else planned.after
    )
    return list_origins(config)


def unplanned_downstream(inputs: PlanInputs, decisions: Decisions) -> dict[Address, Address]:
    """Return the unread downstream streams of deleted and restored streams.

    Those in the plan are left out. Each has one such origin.
    """
    origins = [
        v.address
        for v in decisions.values()
        if v.address.is_stream and ((v.deletes and v.live is not None) or v.reason == RESTORED)
    ]
    declared = inputs.workspace.domains
    pairs = {
        downstream: origin
        for origin in origins
        for downstream in managed_downstream(inputs, origin)
        if downstream.domain in declared
    }
    live = inputs.live
    known = decisions.keys() | live.objects.keys() | live.unreadable.keys() | inputs.selected
    return {downstream: origin for downstream, origin in pairs.items() if downstream not in known}


def can_continue_sequence(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check whether the new, empty stream may continue the sequence of the old one.

    Not if the files set `first_seq`, and not a mirror, which has the sequences of its origin. It is
    used if the stream has downstream streams.
    """
    is_consumer = decision.address.kind == "consumer"
    if decision.actions != ["delete", "create"] or is_consumer or decision.planned.get("mirror"):
        return False
    return "first_seq" not in inputs.body(decision.address) and "first_seq" not in decision.unknown


def continue_sequence(decision: ResourceDecision) -> ResourceDecision:
    """Continue the sequence of the old stream; its last sequence is known when it is deleted."""
    assert decision.live is not None
    assert decision.after is not None
    after = decision.after | {"first_seq": int(decision.live.state.get("last_seq") or 0) + 1}
    return replace(decision, after=after, unknown=[*decision.unknown, "first_seq"])


def plan_downstream(inputs: PlanInputs, decisions: Decisions) -> Overrides:
    """Complete the decisions: first sequences of replaced origins, sources to detach and attach."""
    revision = Revision(decisions)
    for address in inputs.touched(decisions):
        _plan_origin(inputs, revision, address)
        decision = revision[address]
        if address.is_stream and (
            decision.preserves or "first_seq" in decision.unknown or fills_again(decision)
        ):
            for downstream in sorted(managed_downstream(inputs, address) & decisions.keys()):
                _plan_detach(inputs, revision, downstream, address)
                _refuse_joint_replacement(inputs, revision, downstream, decision)
    for address in inputs.interrupted.detached_sources.keys() & decisions.keys():
        _plan_attach(inputs, revision, address)
    for address, before in decisions.items():
        if before.entry is None or not before.entry.starts:
            continue
        decision = revision[address]
        if decision.actions == ["update"]:
            waiting = _unattached_sources(decision, before.entry)
            revision.change(address, sources_to_attach=decision.sources_to_attach | waiting)
    return revision.overrides


def _plan_origin(inputs: PlanInputs, revision: Revision, address: Address) -> None:
    """Let a replaced origin continue its sequence, and its sources where they were."""
    decision = revision[address]
    if can_continue_sequence(inputs, decision) and managed_downstream(inputs, address):
        revision.overrides[address] = decision = continue_sequence(decision)
    first = inputs.interrupted.replacements.get(address, {}).get("first_seq")
    resumes = decision.live is None and decision.after is not None
    if first is not None and resumes and "first_seq" not in inputs.body(address):
        after = decision.planned | {"first_seq": int(first)}
        revision.change(address, after=after, unknown=["first_seq"])
    decision = revision[address]
    if _may_lack_newest(inputs, decision) and "sources" not in decision.unknown:
        revision.change(address, unknown=[*decision.unknown, "sources"])


def _may_lack_newest(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check whether a kept stream may have deleted the newest message of a source.

    Then the source gets a start when it is replaced, since 2.15.
    """
    live = decision.live
    if live is None or not decision.preserves or not decision.planned.get("sources"):
        return False
    return inputs.level(decision.address) >= ORIGIN_IDENTITY_LEVEL and may_lack_newest(live)


def may_lack_newest(stream: LiveObject) -> bool:
    """Check whether a stream may have deleted the newest message that it had of a source."""
    return (
        get_retention(stream.compact) != "limits"
        or not stream.state.get("messages")
        or bool(stream.state.get("num_deleted"))
    )


def fills_again(decision: ResourceDecision) -> bool:
    """Check whether a recreated mirror gets the same messages again, under the same sequences."""
    mirrors = [config.get("mirror") for config in (decision.before, decision.planned)]
    keys = {origin_key(mirror) for mirror in mirrors if mirror}
    return decision.actions == ["delete", "create"] and all(mirrors) and len(keys) == 1


def _plan_detach(inputs: PlanInputs, revision: Revision, address: Address, origin: Address) -> None:
    """Detach the sources that read the origin until the origin is complete again."""
    downstream = revision[address]
    live, after, stays = downstream.live, downstream.after, (["no-op"], ["update"])
    if live is None or after is None or downstream.actions not in stays:
        return
    if inputs.level(address) < ORIGIN_IDENTITY_LEVEL:
        return
    resumed = _resumable_new_sources(inputs, downstream, origin)
    if resumed:
        revision.change(address, sources_to_attach=downstream.sources_to_attach | resumed)
    staying = source_keys(after)
    keys = _source_keys(inputs, live, origin) & staying
    if not keys:
        return
    detached = keys - inputs.interrupted.detached_sources.get(address, set())
    revision.change(address, sources_to_detach=downstream.sources_to_detach | detached)
    attach_sources(revision, address, keys)


def _source_keys(inputs: PlanInputs, downstream: LiveObject, origin: Address) -> set[str]:
    """Return the keys of the sources by which a stream reads the origin now."""
    sources = downstream.compact.get("sources") or ()
    return {
        origin_key(one) for one in sources if reads_origin(inputs, downstream.address, one, origin)
    }


def _refuse_joint_replacement(
    inputs: PlanInputs, revision: Revision, address: Address, origin: ResourceDecision
) -> None:
    """Refuse to preserve a stream and its origin in one plan, since all would be copied again.

    Measured on 2.15. Also for two that copy each other. Each alone is handled.
    """
    downstream = revision[address]
    knows_origins = inputs.level(address) >= ORIGIN_IDENTITY_LEVEL
    both = downstream.preserves and origin.preserves and address != origin.address
    if not both or not knows_origins or address in inputs.interrupted.streams:
        return
    sources = downstream.planned.get("sources") or ()
    if not any(reads_origin(inputs, address, source, origin.address) for source in sources):
        return
    text = (
        f"must be replaced in the same plan as its source {origin.address}, "
        "and would copy all of that again"
    )
    detail = (
        "Change one of the two in the files and apply, then change the other. "
        "Its sources are then detached, and attached where they were."
    )
    found = inputs.finding("error", "JS303", text, detail, address)
    revision.change(address, diagnostics=[*downstream.diagnostics, found])


def _plan_attach(inputs: PlanInputs, revision: Revision, address: Address) -> None:
    """Attach the sources that an interrupted apply detached and did not attach again."""
    decision = revision[address]
    detached = inputs.interrupted.detached_sources.get(decision.address, set())
    keys = detached & source_keys(decision.planned)
    if not keys or inputs.options.refresh_only or decision.actions not in (["no-op"], ["update"]):
        return
    attach_sources(revision, address, keys)


def attach_sources(revision: Revision, address: Address, keys: set[str]) -> None:
    """Attach sources; their start is known only then."""
    downstream = revision[address]
    shown = [
        FieldChange(f'sources["{key}"].opt_start_seq', None, None, "in_place")
        for key in sorted(keys - downstream.sources_to_attach)
    ]
    attached = downstream.sources_to_attach | keys
    revision.change(address, sources_to_attach=attached, fields=[*downstream.fields, *shown])
    if "sources" not in downstream.unknown:
        revision.change(address, unknown=[*downstream.unknown, "sources"])
    if downstream.actions == ["no-op"]:
        revision.change(address, actions=["update"], reason=ORIGIN_REPLACED)


def source_names(keys: Iterable[str]) -> str:
    """Return the names of the streams behind the keys of sources."""
    return " and ".join(sorted({key.split("@")[0].split("#")[0].split("!")[0] for key in keys}))


def _resumable_new_sources(
    inputs: PlanInputs, downstream: ResourceDecision, origin: Address
) -> set[str]:
    """Return the new sources of which the stream may have earlier messages.

    They resume behind those. A start in the files takes precedence.
    """
    if downstream.live is None or not downstream.live.state.get("messages"):
        return set()
    existing = source_keys(downstream.before)
    resuming = {
        origin_key(s)
        for s in downstream.planned.get("sources") or ()
        if not (s.get("opt_start_seq") or s.get("opt_start_time"))
        and reads_origin(inputs, downstream.address, s, origin)
    }
    return resuming - existing


def reads_origin(inputs: PlanInputs, downstream: Address, source: Config, origin: Address) -> bool:
    """Check whether a mirror or source of `downstream` reads `origin`, by name and domain."""
    return inputs.topology.routes.reads_origin(downstream, source, origin)


def origin_domain(inputs: PlanInputs, downstream: Address, source: Config) -> str | None:
    """Return the domain that a mirror or source reads; None if the files know none."""
    return inputs.topology.routes.resolve_prefix(downstream.domain, origin_api(source))


def origin_of(inputs: PlanInputs, downstream: Address, source: Config) -> Address | None:
    """Return the stream that a mirror or source reads; None in a domain of no file."""
    domain = origin_domain(inputs, downstream, source)
    return Address.of_stream(domain, source["name"]) if domain is not None else None


def find_interest_origins(
    inputs: PlanInputs, downstream: Address, flows: Iterable[Config]
) -> Iterator[Address]:
    """Yield the origins of these mirrors and sources that have interest retention, or get it.

    Such a stream keeps nothing for a mirror or source that is not there (measured on 2.15).
    """
    for flow in flows:
        origin = origin_of(inputs, downstream, flow)
        live = inputs.live.get(origin) if origin is not None else None
        if live is None:
            continue
        declared = inputs.declared(live.address)
        wanted = declared.body.get("retention") if declared is not None else None
        if "interest" in (get_retention(live.compact), wanted):
            yield live.address


def mirrors_relocated(inputs: PlanInputs, downstream: LiveObject, after: Config) -> bool:
    """Check whether a mirror of the origin of a relocation becomes one of the target.

    The target has the same messages under the same sequences, so the mirror continues there.
    """
    old: Config = downstream.compact.get("mirror") or {}
    new: Config = after.get("mirror") or {}
    return bool(old and new) and any(
        reads_origin(inputs, downstream.address, old, relocation.origin)
        and reads_origin(inputs, downstream.address, new, relocation.target)
        for relocation in inputs.relocations.values()
    )


def _unattached_sources(decision: ResourceDecision, entry: Entry) -> set[str]:
    """Return the sources that an apply detached and did not attach."""
    wanted = source_keys(decision.planned) - source_keys(decision.before)
    return wanted & continued_sources(entry)


def continued_sources(entry: Entry) -> set[str]:
    """Return the sources that continue where state says. One that starts at 1 brings all."""
    return {key for key, start in entry.starts.items() if start > 1}


def downstream_domains(inputs: PlanInputs, decisions: Decisions) -> set[str]:
    """Return the domains that may have downstream streams of a stream that they depend on."""
    matters = bool(inputs.backup) or any(
        map(matters_to_readers, inputs.touched(decisions).values())
    )
    return inputs.live.reachable if matters else set()


def matters_to_readers(decision: ResourceDecision) -> bool:
    """Check whether a stream changes what its readers get.

    It is deleted, recreated, deletes what they copy, lets it expire with markers, begins to limit
    their acknowledgements, or republishes less.
    """
    if decision.live is None or not decision.address.is_stream:
        return False
    return (
        decision.replaces
        or decision.deletes
        or decision.relocation is not None
        or begins_to_limit_acks(decision.before, decision.after)
        or begins_to_queue(decision.before, decision.after)
        or leaves_markers_sooner(decision)
        or republishes_less(decision.before, decision.after or {})
    )


def begins_to_queue(before: Config, after: Config | None) -> bool:
    """Check whether a stream becomes a work queue: what a mirror or source copies is deleted."""
    return after is not None and (
        get_retention(before) != "workqueue" and get_retention(after) == "workqueue"
    )


def leaves_markers_sooner(decision: ResourceDecision) -> bool:
    """Check whether a stream begins to leave markers of expired subjects, or does so sooner.

    A marker is a rollup of its subject, which mirrors and sources copy (measured on 2.12 to 2.15).
    """
    before, after = (
        [int(config.get(name) or 0) for name in ("max_age", "subject_delete_marker_ttl")]
        for config in (decision.before, decision.planned)
    )
    stays = decision.actions == ["update"] or decision.preserves
    return stays and all(after) and (not all(before) or after[0] < before[0])


def republishes_less(before: Config, after: Config) -> bool:
    """Check whether a stream republishes less than before, or under another subject."""
    old, new = before.get("republish") or {}, after.get("republish") or {}
    if not old or not new:
        return bool(old)
    sources = [republish.get("src") or ">" for republish in (old, new)]
    return (
        old["dest"] != new["dest"]
        or not is_covered(sources[0], sources[1:])
        or bool(new.get("headers_only") and not old.get("headers_only"))
    )


def begins_to_limit_acks(before: Config, after: Config | None) -> bool:
    """Check whether a stream gets `consumer_limits.max_ack_pending`.

    That refuses the consumer by which a server reads it for a mirror or source (10082).
    """
    return limits_acks(after or {}) and not limits_acks(before)


def limits_acks(config: Config) -> bool:
    """Check whether a stream has `consumer_limits.max_ack_pending`."""
    return int((config.get("consumer_limits") or {}).get("max_ack_pending") or 0) > 0


def copies_again(
    inputs: PlanInputs, downstream: LiveObject, origin: Address, decisions: Decisions
) -> bool:
    """Check whether a stream copies all of a preserved origin again.

    nats-server 2.15 takes that for another one, and the source stays attached: its stream is
    unmanaged, forgotten, or not part of this plan.
    """
    if inputs.level(downstream.address) < ORIGIN_IDENTITY_LEVEL:
        return False
    keys, planned = _source_keys(inputs, downstream, origin), decisions.get(downstream.address)
    if planned is None or planned.actions == ["forget"]:
        return bool(keys)
    if planned.deletes:
        return False
    is_large = int(downstream.state.get("messages") or 0) > MAX_SEARCHED
    if is_large and _resumable_new_sources(inputs, planned, origin):
        return True  # too many to be sure that the last message of that source is found
    staying = source_keys(planned.planned)
    detached = inputs.interrupted.detached_sources.get(downstream.address, set())
    return bool((keys & staying) - planned.sources_to_detach - detached)


def effective_starts(
    decision: ResourceDecision, entry: Entry, named: Mapping[str, Any]
) -> dict[str, int]:
    """Return the starts of attached sources that still replace those in the files."""
    if decision.live is None or decision.replaces or decision.address.kind == "consumer":
        return {}
    before, now = _declared_starts(entry.declared), _declared_starts(named)
    return {
        key: start
        for key, start in entry.starts.items()
        if key in now and now[key] == before.get(key, now[key])
    }


def _declared_starts(named: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the declared start of each source."""
    return {
        origin_key(s): (s.get("opt_start_seq"), s.get("opt_start_time"))
        for s in named.get("sources") or ()
        if not s.get("consumer")
    }


def without_replacement_starts(
    ignored: list[FieldChange], entry: Entry | None, named: Mapping[str, Any]
) -> list[FieldChange]:
    """Return the changes that the server would ignore, without the starts of a replacement."""
    if entry is None or not entry.starts or not named.get("sources"):
        return ignored
    before, now = _declared_starts(entry.declared), _declared_starts(named)
    ours = tuple(
        f'sources["{key}"].opt_start_' for key in entry.starts if now.get(key) == before.get(key)
    )
    return [change for change in ignored if not (ours and change.path.startswith(ours))]
