"""Request measurements of the messages that each change may delete. Pure: no I/O.

A measurement is requested wherever the change can delete messages (server_semantics, section 4).
Where the state of the stream rules that out now, nothing is counted before the apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from jsplan.address import STAGING_PREFIX, Address
from jsplan.documents.deletions import (
    ConsumerChange,
    DeletionRequest,
    Limits,
    PlannedDeletion,
    Storage,
)
from jsplan.documents.plan import Step
from jsplan.documents.step_kinds import Op
from jsplan.facts.interest import build_change
from jsplan.facts.live import LiveObject
from jsplan.facts.measurement import Answer, MeasurementRequest, reduce_request
from jsplan.planning.interest import InterestChange, find_interest_changes, unwanted_measurement
from jsplan.planning.left_origins import find_left_origins
from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
from jsplan.planning.replication.checks import find_downstream
from jsplan.planning.stranded import list_filter_measurements
from jsplan.planning.transfer.consumers import origin_consumer
from jsplan.planning.transfer.decisions import TARGET_RELOCATED
from jsplan.planning.transfer.hazards import finishing_consumers
from jsplan.planning.transfer.positions import reset_measurements
from jsplan.resources import TABLES
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import IMMEDIATE_LIMIT_LEVEL
from jsplan.topology import Edge


def find_counts(
    inputs: PlanInputs, decisions: Decisions
) -> tuple[list[MeasurementRequest], dict[Address, list[Answer]]]:
    """Return what must be counted, and what deletes nothing in the state that was read."""
    wanted, answers = list[MeasurementRequest](), dict[Address, list[Answer]]()
    for request in list_measurements(inputs, decisions):
        counts, live = request.counts, inputs.live.get(request.stream)
        if (
            isinstance(counts, DeletionRequest)
            and live is not None
            and reduce_request(counts, live.state, live.compact.get("storage", "file")) is None
        ):
            answers.setdefault(request.address, []).append((request, None))
        else:
            wanted.append(request)
    return wanted, answers


def list_measurements(inputs: PlanInputs, decisions: Decisions) -> list[MeasurementRequest]:
    """List the measurements that the hazards need, in address order."""
    flows: dict[Address, list[Edge]] = {}
    for edge in sorted(inputs.topology.edges, key=lambda edge: edge.origin):
        flows.setdefault(edge.downstream, []).append(edge)
    changing = find_interest_changes(inputs, decisions)
    by_stream = {change.stream.address: change for change in changing.values()}
    found: list[MeasurementRequest] = []
    touched = sorted(inputs.touched(decisions))
    for address in touched:
        found += _list_for_decision(inputs, decisions, decisions[address], by_stream.get(address))
    requested = {
        request.stream
        for request in found
        if isinstance(request.counts, DeletionRequest) and request.counts.interest
    }
    for parent, change in changing.items():
        lead, unwanted = change.reporting_consumer, unwanted_measurement(inputs, parent, change)
        if change.stream.address not in requested and lead is not None and unwanted is not None:
            found.append(MeasurementRequest(lead, change.stream.address, unwanted))
    known = requested | by_stream.keys()
    for address in touched:
        left = set(find_left_origins(inputs, decisions, decisions[address])) - known
        counts = DeletionRequest(interest="is", was_interest=True)
        found += (MeasurementRequest(address, origin, counts) for origin in sorted(left))
        known |= left
    found = [_with_stream(inputs, decisions, request) for request in found]
    for address in touched:
        found += _list_for_origins(inputs, decisions[address], flows.get(address, ()))
    return [*found, *list_filter_measurements(inputs, decisions)]


def _with_stream(
    inputs: PlanInputs, decisions: Decisions, request: MeasurementRequest
) -> MeasurementRequest:
    """Let a request about interest know what the server may keep because of the stream."""
    counts, decision = request.counts, decisions.get(request.stream)
    if not isinstance(counts, DeletionRequest) or not counts.interest:
        return request
    changes = decision is not None and any(one.path == "subjects" for one in decision.fields)
    has_downstream = _has_downstream(inputs, request.stream)
    counts = replace(counts, has_downstream=has_downstream, changes_subjects=changes)
    return replace(request, counts=counts)


#: The operations before which the deletions of a stream are counted again: the first that the plan
#: has for it. Of a replaced one that is before its publishers are rejected.
_CHECKED: Final[tuple[tuple[Op, ...], ...]] = (
    ("stream.update", "transfer.quiesce"),
    ("transfer.compare",),
    ("sources.detach",),
    ("origin.delete", "stream.delete"),
)


def keep_counts(inputs: PlanInputs, steps: Iterable[Step]) -> None:
    """Let each step keep the counts of its deletions, which the executor repeats.

    What a new downstream stream consumes is only counted again where that was announced.
    """
    by_address: dict[str, list[Step]] = {}
    for step in steps:
        place = step.target_address.parent if step.kind.on == "consumer" else None
        by_address.setdefault(str(place or step.address), []).append(step)
    for request, answer in chain.from_iterable(inputs.measured.answers.values()):
        counts = request.counts
        if not isinstance(counts, DeletionRequest):
            continue
        at_most, live = answer.at_most if answer is not None else 0, inputs.live.get(request.stream)
        state = answer.as_of if answer is not None else live.state if live is not None else {}
        last = int(state.get("last_seq") or 0)
        planned = PlannedDeletion(str(request.stream), counts, at_most, last)
        place = request.stream if request.address.kind == "consumer" else request.address
        for step in _counting_steps(request, counts, by_address.get(str(place), ())):
            if counts.drains is None or at_most:
                step.deletions.append(planned)


def _counting_steps(
    request: MeasurementRequest, counts: DeletionRequest, steps: Sequence[Step]
) -> Iterable[Step]:
    """Return the steps of a stream and its consumers that delete what was counted."""
    if request.address.kind == "consumer":
        names = {change.name for change in counts.consumers}
        losing = [
            step
            for step in steps
            if step.kind.on == "consumer"
            and step.kind.loses
            and (step.target_address.consumer in names or step.object)
        ]
        held = [step for step in losing if step.op == "consumer.create_placeholder"]
        return held or losing
    address = str(request.address)
    own = [s for s in steps if s.address == address and not _leaves_staging(s)]
    if counts.drains is not None:
        return [step for step in own if step.op in ("stream.create", "stream.update")]
    for ops in _CHECKED:
        if found := [step for step in own if step.op in ops]:
            return found
    return ()


def _leaves_staging(step: Step) -> bool:
    """Check whether a step belongs to the way out of a staging stream."""
    origin = (step.params or {}).get("from")
    return origin is not None and Address.parse(origin).stream.startswith(STAGING_PREFIX)


def _list_for_decision(
    inputs: PlanInputs,
    decisions: Decisions,
    decision: ResourceDecision,
    change: InterestChange | None,
) -> Iterable[MeasurementRequest]:
    """List the measurements of one change, except the interest of consumers alone.

    `change` is that of the consumers of a stream.
    """
    address = decision.address
    if decision.reason == TARGET_RELOCATED and (found := _measure_relocated(inputs, decision)):
        moved = decision.relocation
        assert moved is not None
        yield MeasurementRequest(address, address if moved.promotes else moved.origin, found)
    if decision.deleted_with is not None or decision.live is None:
        return
    if address.kind == "consumer":
        stream = inputs.stream_of(address)
        yield from reset_measurements(decision, stream) if stream is not None else ()
    elif decision.after is not None and _meets_other_limits(inputs, decision):
        found = _measure_update(inputs, decision, decision.live, decision.after, change)
        if decision.preserves and (finishing := finishing_consumers(inputs, decision, decisions)):
            names = tuple(consumer.address.consumer for consumer, _ in finishing)
            found = replace(found or DeletionRequest(), finished=names)
        if found is not None and (request := _redirect_to_staging(inputs, address, found)):
            yield request


def _measure_relocated(inputs: PlanInputs, decision: ResourceDecision) -> DeletionRequest | None:
    """Request what a relocated stream loses of the messages of its origin; None if nothing.

    That is by its limits, and by the consumers of an interest stream that do not come along.
    """
    relocation = decision.relocation
    origin = inputs.live.get(relocation.origin) if relocation is not None else None
    if origin is None or decision.after is None or decision.address.kind == "consumer":
        return None
    assert relocation is not None
    after, level = decision.after | {"retention": "limits"}, inputs.level(decision.address)
    resized = _resized_storage(origin, after)
    found = update_measurement(origin, after, level, replaced=True, resized=resized)
    # What is acknowledged once it is quiesced counts as unwanted. The rest was counted before.
    if decision.after.get("retention") != "interest" or relocation.is_quiesced:
        return found
    coming: dict[str, Config] = {}
    for address in inputs.workspace.resources:
        if address.kind == "consumer" and address.parent == relocation.target:
            old = origin_consumer(inputs.workspace, relocation, address)
            # One that is measured at the origin has the name that it has there.
            name = old.consumer if old is not None else str(address)
            body, level = inputs.creation_body(address), inputs.level(address)
            coming[name] = TABLES["consumer"].with_defaults(body, level)
    present = {consumer.address.consumer for consumer in inputs.consumers_of(relocation.origin)}
    changes = (
        *(ConsumerChange(name, "gone") for name in sorted(present - coming.keys())),
        *(
            build_change(name, "floor" if name in present else "start", config)
            for name, config in sorted(coming.items())
        ),
    )
    was = origin.compact.get("retention") == "interest"
    found = found or DeletionRequest()
    return replace(found, interest="is", was_interest=was, consumers=changes)


def _measure_update(
    inputs: PlanInputs,
    decision: ResourceDecision,
    live: LiveObject,
    after: Config,
    change: InterestChange | None,
) -> DeletionRequest | None:
    """Request the deletions of an update with those of its consumers' change; None if none."""
    replaced, consumers = decision.preserves, change.consumers if change is not None else ()
    resized = _resized_storage(live, after) if replaced else ""
    level = inputs.level(live.address)
    found = update_measurement(live, after, level, consumers, replaced=replaced, resized=resized)
    if found is None or change is None:
        return found
    if reduce_request(found, live.state, live.compact.get("storage", "file")) is None:
        return found  # it deletes nothing now: the change of the consumers is counted alone
    unwanted = unwanted_measurement(inputs, live.address, change)
    if unwanted is None:
        return found
    later, storage = found.deletes_later, found.target_storage
    return replace(unwanted, limits=found.limits, deletes_later=later, target_storage=storage)


def _meets_other_limits(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check whether the messages come under other limits and are all in one stream."""
    interrupted = inputs.interrupted.streams.get(decision.address)
    return (decision.actions == ["update"] or decision.preserves) and not (
        interrupted is not None and interrupted.has_moved_messages
    )


def _has_downstream(inputs: PlanInputs, stream: Address) -> bool:
    """Check whether a live stream mirrors or sources it, by the files or until this plan."""
    known = any(
        inputs.live.get(edge.downstream) is not None for edge in inputs.topology.edges_from(stream)
    )
    return known or any(True for _ in find_downstream(inputs, {}, stream))


def _resized_storage(live: LiveObject, after: Config) -> Storage:
    """Return the storage that moved messages get; empty if their bytes count as they do now."""
    storage: Storage = after.get("storage", "file")
    return storage if storage != live.compact.get("storage", "file") else ""


def _redirect_to_staging(
    inputs: PlanInputs, address: Address, request: DeletionRequest
) -> MeasurementRequest | None:
    """Return the request for the stream that has the messages.

    That is the staging stream once the old stream is deleted. It has no consumers, so what they
    have finished is not measured there.
    """
    found = inputs.interrupted.streams.get(address)
    if found is None or found.has_origin:
        return MeasurementRequest(address, address, request)
    if not request.limits.causes or found.staging is None:
        return None
    limited = replace(request, interest="", consumers=(), finished=())
    return MeasurementRequest(address, found.staging, limited)


def update_measurement(
    live: LiveObject,
    after: Config,
    level: int,
    consumers: tuple[ConsumerChange, ...] = (),
    *,
    replaced: bool = False,
    resized: Storage = "",
) -> DeletionRequest | None:
    """Request the deletions of an update to the compact configuration `after`; None if none.

    `consumers` change before the stream becomes an interest stream. `replaced`: a preserving
    replacement, so the stream has limits retention until then. `resized`: the messages move to this
    storage, where they count other bytes.
    """
    was = "limits" if replaced else live.compact.get("retention")
    becomes_interest = after.get("retention") == "interest" != was
    limits = _lowered_limits(live.compact, after, resized=bool(resized))
    if not becomes_interest and not limits.causes:
        return None
    # The messages of a replaced stream come under the limit only after they are copied.
    first = limits.max_msgs_per_subject > 0 and (
        replaced or not _limit_value(live.compact.get("max_msgs_per_subject"))
    )
    return DeletionRequest(
        limits,
        interest="becomes" if becomes_interest else "",
        consumers=consumers if becomes_interest else (),
        deletes_later=first and level < IMMEDIATE_LIMIT_LEVEL,
        target_storage=resized if limits.max_bytes else "",
        was_interest=live.compact.get("retention") == "interest",
    )


def _lowered_limits(before: Config, after: Config, *, resized: bool) -> Limits:
    """Return the limits that may delete messages with the update.

    `max_msgs` and `max_bytes` delete only with `discard: old`. `resized`: the bytes of the messages
    change.
    """
    drops, dropped = (config.get("discard", "old") == "old" for config in (after, before))
    found = {
        name: _limit_value(after.get(name))
        for name in ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
        if _is_lowered(before.get(name), _limit_value(after.get(name)))
        or (name == "max_bytes" and resized)
        or (name in ("max_msgs", "max_bytes") and not dropped)
    }
    if not drops:
        found |= dict.fromkeys(("max_msgs", "max_bytes"), 0)
    return Limits(**found)


def _limit_value(limit: Any) -> int:
    """Return a limit as a number, 0 for none."""
    return limit if isinstance(limit, int) and limit > 0 else 0


def _is_lowered(before: Any, after: int) -> bool:
    return after > 0 and (not _limit_value(before) or after < _limit_value(before))


def _list_for_origins(
    inputs: PlanInputs, decision: ResourceDecision, edges: Iterable[Edge]
) -> Iterable[MeasurementRequest]:
    """Measure origins that a new mirror or source consumes. `edges` are all its origins."""
    writes = {"create", "update"} & set(decision.actions) and decision.deleted_with is None
    if decision.after is None or not writes or inputs.continues_flows(decision.address):
        return
    before = decision.before if not decision.loses_content else {}
    added = {origin_key(origin): origin for origin in new_origins(before, decision.after)}
    for edge in edges:
        new = added.get(origin_key(dict(edge.config)))
        if new is not None and _is_consumable(inputs, edge.origin):
            counts = DeletionRequest(drains=_filters_of(new))
            yield MeasurementRequest(decision.address, edge.origin, counts)


def _is_consumable(inputs: PlanInputs, origin: Address) -> bool:
    """Check whether a mirror or source may delete messages of the origin; True if it is unread."""
    domain = inputs.live.domains.get(origin.domain)
    live = inputs.live.get(origin)
    if live is None:
        return origin.domain in inputs.workspace.domains and (domain is None or domain.reachable)
    return bool(live.compact.get("retention", "limits") != "limits")


def new_origins(before: Config, after: Config) -> Iterable[Config]:
    """Yield the mirror and the sources that only `after` has. Both are compact."""
    if after.get("mirror") and not before.get("mirror"):
        yield after["mirror"]
    known = {origin_key(origin) for origin in before.get("sources") or ()}
    yield from (origin for origin in after.get("sources") or () if origin_key(origin) not in known)


def _filters_of(origin: Config) -> tuple[str, ...]:
    """Return the filters through which a mirror or source reads its origin; none: all of it."""
    if subject := origin.get("filter_subject"):
        return (subject,)
    return tuple(one.get("src") or ">" for one in origin.get("subject_transforms") or ())
