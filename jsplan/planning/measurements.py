"""Which changes may make a server delete messages, as questions that `facts.measure` answers. Pure: asks nobody.

A question is asked only where the stream's own state does not rule out that anything goes (server_semantics, section 4).
What the answers mean is left to `hazards`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from jsplan.address import Address
from jsplan.facts.interest import ConsumerChange
from jsplan.facts.limit_trimming import ExceededLimits
from jsplan.facts.live import LiveObject
from jsplan.facts.measurement import MeasurementRequest
from jsplan.facts.stored_message import TargetStorage
from jsplan.planning.decide import ResourceDecision
from jsplan.planning.interest import InterestChange, find_interest_changes
from jsplan.planning.interest import interest_measurement as about_interest
from jsplan.planning.model import PlanInputs
from jsplan.planning.preserve.consumers import redelivery_measurement
from jsplan.planning.preserve.hazards import finished_ranges, redelivery_spans
from jsplan.planning.preserve.staged_measurements import redirect_to_staging, resized_storage
from jsplan.planning.replication.checks import find_downstream
from jsplan.planning.stranded import list_filter_measurements
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.topology import Edge

#: From this level (2.14) on, a first max_msgs_per_subject is enforced at once, not with the next message of a subject.
IMMEDIATE_LIMIT_LEVEL = 4


def list_measurements(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> list[MeasurementRequest]:
    """What must be measured before hazards can be assessed, in address order."""
    flows: dict[Address, list[Edge]] = {}
    for edge in sorted(inputs.topology.edges, key=lambda edge: edge.origin):
        flows.setdefault(edge.downstream, []).append(edge)
    changing = find_interest_changes(inputs, decisions)
    by_stream = {one.stream.address: one for one in changing.values()}
    found: list[MeasurementRequest] = []
    for address in sorted(decisions):
        found += _list_for_decision(inputs, decisions, decisions[address], by_stream)
    stated = {question.stream for question in found if question.interest}
    alone = (
        about_interest(inputs, parent, one)
        for parent, one in changing.items()
        if one.stream.address not in stated
    )
    found += [question for question in alone if question is not None]
    found = [
        replace(
            q,
            has_downstream=_has_downstream(inputs, q.stream),
            changes_subjects=_changes_subjects(decisions.get(q.stream)),
        )
        for q in found
    ]
    for address in sorted(decisions):
        found += _list_for_origins(inputs, decisions[address], flows.get(address, ()))
    return [*found, *list_filter_measurements(inputs, decisions)]


def _list_for_decision(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    decision: ResourceDecision,
    changing: Mapping[Address, InterestChange],
) -> Iterable[MeasurementRequest]:
    """What is to be measured of one change apart from the interest of consumers."""
    address, live = decision.address, decision.live
    if decision.deleted_with is not None or live is None:
        return
    if address.kind == "consumer":
        stream = inputs.live.get(address.parent) if address.parent else None
        if (
            decision.preserves
            and stream is not None
            and (again := redelivery_measurement(decision, stream)) is not None
        ):
            yield again
    elif decision.after is not None and _meets_other_limits(inputs, decision):
        one = changing.get(address)
        consumers = one.consumers if one is not None else ()
        moved = (
            resized_storage(live, decision.after, inputs.level(address))
            if decision.preserves
            else None
        )
        found = update_measurement(
            live,
            decision.after,
            inputs.level(address),
            consumers,
            replaced=decision.preserves,
            recreates_consumers=decision.recreates_consumers,
            resized=moved,
        )
        if (
            found is not None
            and one is not None
            and (more := about_interest(inputs, address, one)) is not None
        ):
            found = replace(
                more,
                address=address,
                limits=found.limits,
                deletes_later=found.deletes_later,
                target_storage=found.target_storage,
            )
        if decision.preserves:
            finished = finished_ranges(inputs, decision, decisions)
            found = (
                replace(found or MeasurementRequest(address, address), finished=finished)
                if found or finished
                else None
            )
            spans = (
                redelivery_spans(inputs, decision, decisions)
                if address not in inputs.interrupted
                else ()
            )
            yield from (MeasurementRequest(address, address, redelivery=span) for span in spans)
        found = redirect_to_staging(inputs, found) if found is not None else None
        yield from [found] if found is not None else []


def _meets_other_limits(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Whether what the stream holds meets other limits, and all of it is in one place."""
    under_way = inputs.interrupted.get(decision.address)
    return (decision.actions == ["update"] or decision.preserves) and not (
        under_way is not None and under_way.has_moved_messages
    )


def _changes_subjects(decision: ResourceDecision | None) -> bool:
    return decision is not None and any(change.path == "subjects" for change in decision.fields)


def _has_downstream(inputs: PlanInputs, stream: Address) -> bool:
    """Whether a stream that is there copies it, as far as the files know, or did until this plan."""
    known = any(
        edge.origin == stream and inputs.live.get(edge.downstream) is not None
        for edge in inputs.topology.edges
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
    """What an update of a stream to the compact configuration `after` may delete; `consumers` change before it becomes one of interest.

    `replaced`: the stream is replaced with its messages, so it keeps by limits until then; `renewed`: and its consumers are made again.
    `moved`: the messages are moved to a stream in which they count otherwise.
    """
    messages = live.state.get("messages", 0)
    was = "limits" if replaced else live.compact.get("retention")
    becomes_interest = after.get("retention") == "interest" != was and messages > 0
    limits = _exceeded_limits(live, after, resized)
    if not becomes_interest and not limits.causes:
        return None
    first = limits.max_msgs_per_subject > 0 and not _limit_value(
        live.compact.get("max_msgs_per_subject")
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
    )


def _exceeded_limits(
    live: LiveObject, after: Config, resized: TargetStorage | None
) -> ExceededLimits:
    """The limits that will hold and that the stream may exceed. Lowered ones, and all once `discard: old` comes into force."""
    state, before = live.state, live.compact
    held = state.get("bytes", 0) + (
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
        max_bytes=size if size < held else 0,
        max_age=age if messages and _is_lowered(before.get("max_age"), age) else 0,
        max_msgs_per_subject=keep
        if keep < messages and _is_lowered(before.get("max_msgs_per_subject"), keep)
        else 0,
    )


def _limit_value(limit: Any) -> int:
    """A limit as a number, 0 for none."""
    return limit if isinstance(limit, int) and limit > 0 else 0


def _is_lowered(before: Any, after: int) -> bool:
    return after > 0 and (not _limit_value(before) or after < _limit_value(before))


def _list_for_origins(
    inputs: PlanInputs, decision: ResourceDecision, edges: Iterable[Edge]
) -> Iterable[MeasurementRequest]:
    """A new copy of a workqueue or interest stream consumes it; `edges` are all that it copies."""
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
    begun = {origin_key(origin): origin for origin in new_origins(before, after)}
    for edge in edges:
        new = begun.get(origin_key(dict(edge.config)))
        if new is not None and _is_consumable(inputs, edge.origin):
            yield origin_measurement(decision.address, edge.origin, new)


def _is_consumable(inputs: PlanInputs, origin: Address) -> bool:
    """Whether the origin may lose messages to a copy; one that nobody read is worth a question."""
    domain = inputs.live.domains.get(origin.domain)
    live = inputs.live.get(origin)
    if live is None:
        return origin.domain in inputs.workspace.domains and (domain is None or domain.reachable)
    return bool(live.compact.get("retention", "limits") != "limits")


def new_origins(before: Config, after: Config) -> Iterable[Config]:
    """The mirror and the sources that `after` has and `before` has not, both compact."""
    if after.get("mirror") and not before.get("mirror"):
        yield after["mirror"]
    known = {origin_key(origin) for origin in before.get("sources") or ()}
    yield from (origin for origin in after.get("sources") or () if origin_key(origin) not in known)


def origin_measurement(downstream: Address, origin: Address, config: Config) -> MeasurementRequest:
    """What `copy` takes from a stream that it begins to mirror or source by `config`, the element of its configuration."""
    one = config.get("filter_subject")
    filters = (
        (one,)
        if one
        else tuple(t.get("src") or ">" for t in config.get("subject_transforms") or ())
    )
    return MeasurementRequest(downstream, origin, drains=filters)
