"""Which changes may make a server delete messages, as questions that `facts.measure` answers. Pure: asks nobody.

A question is asked only where the stream's own state does not rule out that anything goes (server_semantics, section 4).
What the answers mean is left to `hazards`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from jsplan.address import Address
from jsplan.facts.interest import ACKS_ABOVE_FLOOR, filters_of
from jsplan.facts.live import LiveObject
from jsplan.facts.question import Question
from jsplan.facts.trims import Limits
from jsplan.planning.inputs import Inputs
from jsplan.planning.preserve.consumers import redelivery
from jsplan.planning.verdict import Verdict
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.topology import Edge

#: From this level (2.14) on, a first max_msgs_per_subject is enforced at once, not with the next message of a subject.
FIRST_LIMIT_AT_ONCE = 4


def questions(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> list[Question]:
    """What must be measured before hazards can be assessed, in address order."""
    siblings: dict[Address, list[Verdict]] = {}
    for address, verdict in verdicts.items():
        if address.parent is not None and (verdict.deletes or verdict.actions == ["update"]):
            siblings.setdefault(address.parent, []).append(verdict)
    flows: dict[Address, list[Edge]] = {}
    for edge in sorted(inputs.topology.edges, key=lambda edge: edge.origin):
        flows.setdefault(edge.copy, []).append(edge)
    return [question for address in sorted(verdicts) for question in _ask(inputs, verdicts[address], siblings, flows)]


def _ask(
    inputs: Inputs, verdict: Verdict, siblings: Mapping[Address, list[Verdict]], flows: Mapping[Address, list[Edge]]
) -> Iterable[Question]:
    address, live = verdict.address, verdict.live
    if verdict.follows is not None:
        return
    found: Question | None = None
    if address.kind == "consumer":
        stream = inputs.live.get(address.parent) if address.parent else None
        if stream is not None and live is not None and (verdict.deletes or verdict.actions == ["update"]):
            goes = verdict.deletes and not verdict.preserves
            found = about_consumer(live, None if goes else verdict.after, stream, inputs.level(address), anew=verdict.preserves)
            found = _among(found, siblings[stream.address]) if found is not None else None
            if verdict.preserves and (again := redelivery(verdict, stream)) is not None:
                yield again
    elif live is not None and verdict.after is not None and _updates(inputs, verdict):
        found = about_update(live, verdict.after, inputs.level(address), _gone(siblings.get(address, ())))
    if found is not None:
        yield replace(found, copied=_is_copied(inputs, found.stream))
    if address.kind != "consumer":
        yield from _about_copy(inputs, verdict, flows.get(address, ()))


def _updates(inputs: Inputs, verdict: Verdict) -> bool:
    """Whether what the stream holds meets other limits; once a replacement is under way that was allowed before."""
    return (verdict.actions == ["update"] or verdict.preserves) and verdict.address not in inputs.under_way


def _is_copied(inputs: Inputs, stream: Address) -> bool:
    """Whether a stream that is there copies it, as far as the files know."""
    return any(edge.origin == stream and inputs.live.get(edge.copy) is not None for edge in inputs.topology.edges)


def _gone(consumers: Iterable[Verdict]) -> frozenset[str]:
    """The names of those that are gone in the end; one that goes on where it stands is not."""
    return frozenset(v.address.consumer for v in consumers if v.deletes and not v.preserves)


def _among(question: Question, changing: list[Verdict]) -> Question:
    """The question about one consumer, with what the plan does to the others of its stream."""
    if len(changing) == 1:
        return question
    gone = _gone(changing)
    filters = tuple((v.address.consumer, filters_of(v.after)) for v in changing if v.address.consumer not in gone and v.after is not None)
    return replace(question, together=replace(question, loses=gone, refilters=filters))


def about_update(live: LiveObject, after: Config, level: int, going: frozenset[str] = frozenset()) -> Question | None:
    """What an update of a stream to the compact configuration `after` may delete; `going` are consumers that go too."""
    messages = live.state.get("messages", 0)
    becomes_interest = after.get("retention") == "interest" and live.compact.get("retention") != "interest" and messages > 0
    limits = _exceeded(live, after)
    if not becomes_interest and not limits.causes:
        return None
    first = limits.max_msgs_per_subject > 0 and not _set(live.compact.get("max_msgs_per_subject"))
    return Question(
        live.address, live.address, limits, becomes_interest=becomes_interest, loses=going if becomes_interest else frozenset(),
        later=first and level < FIRST_LIMIT_AT_ONCE,
    )  # fmt: skip


def _exceeded(live: LiveObject, after: Config) -> Limits:
    """The limits that will hold and that the stream may exceed. Lowered ones, and all once `discard: old` comes into force."""
    state, before = live.state, live.compact
    messages, drops_old = state.get("messages", 0), after.get("discard", "old") == "old"
    most, size = (_set(after.get(name)) if drops_old else 0 for name in ("max_msgs", "max_bytes"))
    age, keep = _set(after.get("max_age")), _set(after.get("max_msgs_per_subject"))
    return Limits(
        max_msgs=most if most < messages else 0,
        max_bytes=size if size < state.get("bytes", 0) else 0,
        max_age=age if messages and _lowered(before.get("max_age"), age) else 0,
        max_msgs_per_subject=keep if keep < messages and _lowered(before.get("max_msgs_per_subject"), keep) else 0,
    )


def _set(limit: Any) -> int:
    """A limit as a number, 0 for none."""
    return limit if isinstance(limit, int) and limit > 0 else 0


def _lowered(before: Any, after: int) -> bool:
    return after > 0 and (not _set(before) or after < _set(before))


def about_consumer(live: LiveObject, after: Config | None, stream: LiveObject, level: int, *, anew: bool = False) -> Question | None:
    """What goes from an interest stream when a consumer goes (`after` is None) or is updated to `after`.

    `anew`: it is made anew where it stands. All that it has not finished is kept by a guard until the new one wants it.
    """
    if stream.compact.get("retention") != "interest" or not stream.state.get("messages"):
        return None
    name = live.address.consumer
    if after is None:
        return Question(live.address, stream.address, loses=frozenset({name}))
    old, new = filters_of(live.compact), filters_of(after)
    # Servers before 2.12 look for messages that nobody wants at every update of a consumer.
    if sorted(old) == sorted(new) and (anew or level >= ACKS_ABOVE_FLOOR):
        return None
    return Question(live.address, stream.address, refilters=((name, new),))


def _about_copy(inputs: Inputs, verdict: Verdict, edges: Iterable[Edge]) -> Iterable[Question]:
    """A new copy of a workqueue or interest stream consumes it; `edges` are all that it copies."""
    after = verdict.after
    if after is None or not ({"create", "update"} & set(verdict.actions)):
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
