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
from jsplan.facts.live import LiveObject
from jsplan.facts.question import Question
from jsplan.facts.stored import Resized
from jsplan.facts.trims import Limits
from jsplan.planning.following import copies
from jsplan.planning.inputs import Inputs
from jsplan.planning.interest import Interest, interests
from jsplan.planning.interest import question as about_interest
from jsplan.planning.preserve.consumers import redelivery
from jsplan.planning.preserve.costs import about_consumers, about_stream
from jsplan.planning.preserve.sizes import moves_to, where_it_is
from jsplan.planning.stranded import about_filters
from jsplan.planning.verdict import Verdict
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.topology import Edge

#: From this level (2.14) on, a first max_msgs_per_subject is enforced at once, not with the next message of a subject.
FIRST_LIMIT_AT_ONCE = 4


def questions(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> list[Question]:
    """What must be measured before hazards can be assessed, in address order."""
    flows: dict[Address, list[Edge]] = {}
    for edge in sorted(inputs.topology.edges, key=lambda edge: edge.origin):
        flows.setdefault(edge.copy, []).append(edge)
    changing = interests(inputs, verdicts)
    by_stream = {one.stream.address: one for one in changing.values()}
    found: list[Question] = []
    for address in sorted(verdicts):
        found += _ask(inputs, verdicts, verdicts[address], by_stream)
    stated = {question.stream for question in found if question.interest}
    alone = (about_interest(inputs, parent, one) for parent, one in changing.items() if one.stream.address not in stated)
    found += [question for question in alone if question is not None]
    found = [
        replace(q, copied=_is_copied(inputs, q.stream), resubjected=_changes_subjects(verdicts.get(q.stream))) for q in found
    ]  # fmt: skip
    for address in sorted(verdicts):
        found += _about_copy(inputs, verdicts[address], flows.get(address, ()))
    return [*found, *about_filters(inputs, verdicts)]


def _ask(inputs: Inputs, verdicts: Mapping[Address, Verdict], verdict: Verdict, changing: Mapping[Address, Interest]) -> Iterable[Question]:
    """What is to be measured of one change apart from the interest of consumers."""
    address, live = verdict.address, verdict.live
    if verdict.follows is not None or live is None:
        return
    if address.kind == "consumer":
        stream = inputs.live.get(address.parent) if address.parent else None
        if verdict.preserves and stream is not None and (again := redelivery(verdict, stream)) is not None:
            yield again
    elif verdict.after is not None and _updates(inputs, verdict):
        one = changing.get(address)
        consumers = one.consumers if one is not None else ()
        moved = moves_to(live, verdict.after, inputs.level(address)) if verdict.preserves else None
        found = about_update(
            live, verdict.after, inputs.level(address), consumers, replaced=verdict.preserves, renewed=verdict.renews, moved=moved
        )
        if found is not None and one is not None and (more := about_interest(inputs, address, one)) is not None:
            found = replace(more, address=address, limits=found.limits, later=found.later, resized=found.resized)
        if verdict.preserves:
            finished = about_stream(inputs, verdict, verdicts)
            found = replace(found or Question(address, address), finished=finished) if found or finished else None
            spans = about_consumers(inputs, verdict, verdicts) if address not in inputs.under_way else ()
            yield from (Question(address, address, again=span) for span in spans)
        found = where_it_is(inputs, found) if found is not None else None
        yield from [found] if found is not None else []


def _updates(inputs: Inputs, verdict: Verdict) -> bool:
    """Whether what the stream holds meets other limits, and all of it is in one place."""
    under_way = inputs.under_way.get(verdict.address)
    return (verdict.actions == ["update"] or verdict.preserves) and not (under_way is not None and under_way.only_copy)


def _changes_subjects(verdict: Verdict | None) -> bool:
    return verdict is not None and any(change.path == "subjects" for change in verdict.fields)


def _is_copied(inputs: Inputs, stream: Address) -> bool:
    """Whether a stream that is there copies it, as far as the files know, or did until this plan."""
    known = any(edge.origin == stream and inputs.live.get(edge.copy) is not None for edge in inputs.topology.edges)
    return known or any(True for _ in copies(inputs, {}, stream))


def about_update(
    live: LiveObject,
    after: Config,
    level: int,
    consumers: tuple[ConsumerChange, ...] = (),
    *,
    replaced: bool = False,
    renewed: bool = False,
    moved: Resized | None = None,
) -> Question | None:
    """What an update of a stream to the compact configuration `after` may delete; `consumers` change before it becomes one of interest.

    `replaced`: the stream is replaced with its messages, so it keeps by limits until then; `renewed`: and its consumers are made again.
    `moved`: the messages are moved to a stream in which they count otherwise.
    """
    messages = live.state.get("messages", 0)
    was = "limits" if replaced else live.compact.get("retention")
    becomes_interest = after.get("retention") == "interest" != was and messages > 0
    limits = _exceeded(live, after, moved)
    if not becomes_interest and not limits.causes:
        return None
    first = limits.max_msgs_per_subject > 0 and not _set(live.compact.get("max_msgs_per_subject"))
    return Question(
        live.address, live.address, limits, interest="becomes" if becomes_interest else "", renewed=renewed,
        consumers=consumers if becomes_interest else (), later=first and level < FIRST_LIMIT_AT_ONCE,
        resized=moved if limits.max_bytes else None,
    )  # fmt: skip


def _exceeded(live: LiveObject, after: Config, moved: Resized | None) -> Limits:
    """The limits that will hold and that the stream may exceed. Lowered ones, and all once `discard: old` comes into force."""
    state, before = live.state, live.compact
    held = state.get("bytes", 0) + (state.get("messages", 0) * moved.most(before.get("storage", "file")) if moved is not None else 0)
    messages, drops_old = state.get("messages", 0), after.get("discard", "old") == "old"
    most, size = (_set(after.get(name)) if drops_old else 0 for name in ("max_msgs", "max_bytes"))
    age, keep = _set(after.get("max_age")), _set(after.get("max_msgs_per_subject"))
    return Limits(
        max_msgs=most if most < messages else 0,
        max_bytes=size if size < held else 0,
        max_age=age if messages and _lowered(before.get("max_age"), age) else 0,
        max_msgs_per_subject=keep if keep < messages and _lowered(before.get("max_msgs_per_subject"), keep) else 0,
    )


def _set(limit: Any) -> int:
    """A limit as a number, 0 for none."""
    return limit if isinstance(limit, int) and limit > 0 else 0


def _lowered(before: Any, after: int) -> bool:
    return after > 0 and (not _set(before) or after < _set(before))


def _about_copy(inputs: Inputs, verdict: Verdict, edges: Iterable[Edge]) -> Iterable[Question]:
    """A new copy of a workqueue or interest stream consumes it; `edges` are all that it copies."""
    after = verdict.after
    if after is None or verdict.follows is not None or not ({"create", "update"} & set(verdict.actions)):
        return
    before = verdict.live.compact if verdict.live is not None and not verdict.loses else {}
    begun = {origin_key(origin): origin for origin in new_origins(before, after)}
    for edge in edges:
        new = begun.get(origin_key(dict(edge.config)))
        if new is not None and _consumable(inputs, edge.origin):
            yield about_origin(verdict.address, edge.origin, new)


def _consumable(inputs: Inputs, origin: Address) -> bool:
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


def about_origin(copy: Address, origin: Address, config: Config) -> Question:
    """What `copy` takes from a stream that it begins to mirror or source by `config`, the element of its configuration."""
    one = config.get("filter_subject")
    filters = (one,) if one else tuple(t.get("src") or ">" for t in config.get("subject_transforms") or ())
    return Question(copy, origin, drains=filters)
