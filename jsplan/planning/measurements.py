"""Request measurements of the messages that each change may delete. Pure: no I/O.

A measurement is requested only if the state of the stream does not rule out deletions
(server_semantics, section 4). `facts.measure` counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.facts.interest import ConsumerChange, build_change
from jsplan.facts.limit_trimming import ExceededLimits
from jsplan.facts.live import LiveObject
from jsplan.facts.measurement import MeasurementRequest
from jsplan.facts.stored_message import TargetStorage
from jsplan.planning.interest import InterestChange, find_interest_changes, interest_measurement
from jsplan.planning.model import PlanInputs, ResourceDecision, find_touched
from jsplan.planning.preserve.consumers import redelivery_measurement
from jsplan.planning.preserve.hazards import (
    finished_ranges,
    list_consumers,
    redelivery_spans,
)
from jsplan.planning.preserve.position_reset import reset_measurements
from jsplan.planning.preserve.staged_measurements import redirect_to_staging, resized_storage
from jsplan.planning.relocation.consumers import origin_consumer
from jsplan.planning.relocation.decisions import TARGET_RELOCATED
from jsplan.planning.replication.checks import find_downstream
from jsplan.planning.stranded import list_filter_measurements
from jsplan.resources import TABLES
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import IMMEDIATE_LIMIT_LEVEL
from jsplan.topology import Edge


def list_measurements(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> list[MeasurementRequest]:
    """List the measurements that the hazards need, in address order."""
    flows: dict[Address, list[Edge]] = {}
    for edge in sorted(inputs.topology.edges, key=lambda edge: edge.origin):
        flows.setdefault(edge.downstream, []).append(edge)
    changing = find_interest_changes(inputs, decisions)
    by_stream = {change.stream.address: change for change in changing.values()}
    found: list[MeasurementRequest] = []
    touched = sorted(find_touched(decisions))
    for address in touched:
        found += _list_for_decision(inputs, decisions, decisions[address], by_stream.get(address))
    requested = {request.stream for request in found if request.interest}
    remaining = (
        interest_measurement(inputs, parent, change)
        for parent, change in changing.items()
        if change.stream.address not in requested
    )
    found += [request for request in remaining if request is not None]
    found = [
        replace(
            request,
            has_downstream=_has_downstream(inputs, request.stream),
            changes_subjects=_changes_subjects(decisions.get(request.stream)),
        )
        for request in found
    ]
    for address in touched:
        found += _list_for_origins(inputs, decisions[address], flows.get(address, ()))
    return [*found, *list_filter_measurements(inputs, decisions)]


def _list_for_decision(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    decision: ResourceDecision,
    change: InterestChange | None,
) -> Iterable[MeasurementRequest]:
    """List the measurements of one change, except the interest of consumers alone.

    `change` is that of the consumers of a stream.
    """
    address = decision.address
    if decision.reason == TARGET_RELOCATED and (found := _measure_relocated(inputs, decision)):
        yield found
    if decision.deleted_with is not None or decision.live is None:
        return
    if address.kind == "consumer":
        yield from _list_for_consumer(inputs, decision)
    elif decision.after is not None and _meets_other_limits(inputs, decision):
        found = _measure_update(inputs, decision, decision.live, decision.after, change)
        if decision.preserves:
            if finished := finished_ranges(inputs, decision, decisions):
                found = replace(found or MeasurementRequest(address, address), finished=finished)
            if address not in inputs.interrupted.streams:
                for span in redelivery_spans(inputs, decision, decisions):
                    yield MeasurementRequest(address, address, redelivery=span)
        if found is not None and (found := redirect_to_staging(inputs, found)) is not None:
            yield found


def _measure_relocated(inputs: PlanInputs, decision: ResourceDecision) -> MeasurementRequest | None:
    """Request what the limits of a relocated stream delete of the messages of its origin."""
    relocation = decision.relocation
    origin = inputs.live.get(relocation.origin) if relocation is not None else None
    if origin is None or decision.after is None or decision.address.kind == "consumer":
        return None
    assert relocation is not None
    if relocation.is_quiesced:
        # What is acknowledged meanwhile counts as unwanted. The rest was counted before.
        after = decision.after | {"retention": "limits"}
        return relocated_measurement(
            decision.address, origin, after, inputs.level(decision.address), {}, ()
        )
    coming: dict[str, Config] = {}
    for address in inputs.workspace.resources:
        if address.kind == "consumer" and address.parent == relocation.target:
            old = origin_consumer(inputs.workspace, relocation, address)
            # One that is measured at the origin has the name that it has there.
            coming[old.consumer if old is not None else str(address)] = TABLES[
                "consumer"
            ].with_defaults(inputs.creation_body(address), inputs.level(address))
    return relocated_measurement(
        decision.address,
        origin,
        decision.after,
        inputs.level(decision.address),
        coming,
        [consumer.address.consumer for consumer in list_consumers(inputs, relocation.origin)],
    )


def relocated_measurement(
    target: Address,
    origin: LiveObject,
    after: Config,
    level: int,
    coming: Mapping[str, Config],
    present: Iterable[str],
) -> MeasurementRequest | None:
    """Request what a relocated stream loses of the messages of its origin; None if nothing.

    That is by its limits, and by the consumers of an interest stream that do not come along.
    `coming` are the consumers of the target by name, `present` the names of those of the origin.
    """
    limits = update_measurement(origin, after | {"retention": "limits"}, level, replaced=True)
    found = replace(limits, address=target) if limits is not None else None
    if after.get("retention") != "interest" or not origin.state.get("messages"):
        return found
    known = frozenset(present)
    changes = (
        *(ConsumerChange(name, "gone") for name in sorted(known - coming.keys())),
        *(
            build_change(name, "floor" if name in known else "start", config)
            for name, config in sorted(coming.items())
        ),
    )
    return replace(
        found or MeasurementRequest(target, origin.address),
        interest="is",
        consumers=changes,
        placeholder=True,
    )


def _list_for_consumer(
    inputs: PlanInputs, decision: ResourceDecision
) -> Iterable[MeasurementRequest]:
    """List what a consumer that is replaced with its position delivers again."""
    parent = decision.address.parent
    stream = inputs.live.get(parent) if parent else None
    if decision.reset is not None and stream is not None:
        yield from reset_measurements(decision, stream)
    elif decision.preserves and stream is not None:
        found = redelivery_measurement(decision, stream, inputs.level(decision.address))
        yield from [found] if found is not None else []


def _measure_update(
    inputs: PlanInputs,
    decision: ResourceDecision,
    live: LiveObject,
    after: Config,
    change: InterestChange | None,
) -> MeasurementRequest | None:
    """Request the deletions of an update with those of its consumers' change; None if none."""
    level = inputs.level(live.address)
    found = update_measurement(
        live,
        after,
        level,
        change.consumers if change is not None else (),
        replaced=decision.preserves,
        recreates_consumers=decision.recreates_consumers,
        resized=resized_storage(live, after) if decision.preserves else None,
    )
    if found is None or change is None:
        return found
    unwanted = interest_measurement(inputs, live.address, change)
    if unwanted is None:
        return found
    return replace(
        unwanted,
        address=live.address,
        limits=found.limits,
        deletes_later=found.deletes_later,
        target_storage=found.target_storage,
    )


def _meets_other_limits(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check whether the messages come under other limits and are all in one stream."""
    interrupted = inputs.interrupted.streams.get(decision.address)
    return (decision.actions == ["update"] or decision.preserves) and not (
        interrupted is not None and interrupted.has_moved_messages
    )


def _changes_subjects(decision: ResourceDecision | None) -> bool:
    return decision is not None and any(change.path == "subjects" for change in decision.fields)


def _has_downstream(inputs: PlanInputs, stream: Address) -> bool:
    """Check whether a live stream mirrors or sources it, by the files or until this plan."""
    known = any(
        inputs.live.get(edge.downstream) is not None for edge in inputs.topology.edges_from(stream)
    )
    return known or any(True for _ in find_downstream(inputs, {}, stream))


def update_measurement(
    live: LiveObject,
    after: Config,
    level: int,
    consumers: tuple[ConsumerChange, ...] = (),
    *,
    replaced: bool = False,
    recreates_consumers: bool = False,
    resized: TargetStorage | None = None,
) -> MeasurementRequest | None:
    """Request the deletions of an update to the compact configuration `after`; None if none.

    `consumers` change before the stream becomes an interest stream. `replaced`: a preserving
    replacement, so the stream has limits retention until then. `recreates_consumers`: its
    consumers are created again too. `resized`: the messages move to a stream that counts their
    bytes differently.
    """
    messages = live.state.get("messages", 0)
    was = "limits" if replaced else live.compact.get("retention")
    becomes_interest = after.get("retention") == "interest" != was and messages > 0
    limits = _exceeded_limits(live, after, resized)
    if not becomes_interest and not limits.causes:
        return None
    # The messages of a replaced stream come under the limit only after they are copied.
    first = limits.max_msgs_per_subject > 0 and (
        replaced or not _limit_value(live.compact.get("max_msgs_per_subject"))
    )
    return MeasurementRequest(
        live.address,
        live.address,
        limits,
        interest="becomes" if becomes_interest else "",
        recreates_consumers=recreates_consumers,
        consumers=consumers if becomes_interest else (),
        deletes_later=first and level < IMMEDIATE_LIMIT_LEVEL,
        target_storage=resized if limits.max_bytes else None,
        acknowledged_gone=not consumers and live.compact.get("retention") == "interest",
    )


def _exceeded_limits(
    live: LiveObject, after: Config, resized: TargetStorage | None
) -> ExceededLimits:
    """Return the new limits that the stream may exceed.

    `max_msgs` and `max_bytes` delete only with `discard: old`, the others only if lowered.
    """
    state, before = live.state, live.compact
    total_bytes = state.get("bytes", 0) + (
        state.get("messages", 0) * resized.max_growth(before.get("storage", "file"))
        if resized is not None
        else 0
    )
    messages, drops_old = state.get("messages", 0), after.get("discard", "old") == "old"
    most, size = (
        _limit_value(after.get(name)) if drops_old else 0 for name in ("max_msgs", "max_bytes")
    )
    age, keep = _limit_value(after.get("max_age")), _limit_value(after.get("max_msgs_per_subject"))
    return ExceededLimits(
        max_msgs=most if most < messages else 0,
        max_bytes=size if size < total_bytes else 0,
        max_age=age if messages and _is_lowered(before.get("max_age"), age) else 0,
        max_msgs_per_subject=keep
        if keep < messages and _is_lowered(before.get("max_msgs_per_subject"), keep)
        else 0,
    )


def _limit_value(limit: Any) -> int:
    """Return a limit as a number, 0 for none."""
    return limit if isinstance(limit, int) and limit > 0 else 0


def _is_lowered(before: Any, after: int) -> bool:
    return after > 0 and (not _limit_value(before) or after < _limit_value(before))


def _list_for_origins(
    inputs: PlanInputs, decision: ResourceDecision, edges: Iterable[Edge]
) -> Iterable[MeasurementRequest]:
    """Measure origins that a new mirror or source consumes. `edges` are all its origins."""
    after = decision.after
    if (
        after is None
        or decision.deleted_with is not None
        or not ({"create", "update"} & set(decision.actions))
    ):
        return
    before = (
        decision.live.compact if decision.live is not None and not decision.loses_content else {}
    )
    added = {origin_key(origin): origin for origin in new_origins(before, after)}
    for edge in edges:
        new = added.get(origin_key(dict(edge.config)))
        if new is not None and _is_consumable(inputs, edge.origin):
            yield origin_measurement(decision.address, edge.origin, new)


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


def origin_measurement(downstream: Address, origin: Address, config: Config) -> MeasurementRequest:
    """Request the messages that a new mirror or source (`config`) takes from its origin."""
    subject = config.get("filter_subject")
    filters = (
        (subject,)
        if subject
        else tuple(t.get("src") or ">" for t in config.get("subject_transforms") or ())
    )
    return MeasurementRequest(downstream, origin, drains=filters)
