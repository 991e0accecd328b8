"""Orders the calls of a plan: who waits for whom, how circles are broken, and the numbers they get.

An origin comes before its copy, also across domains; a consumer after its stream; deletes the other way round; whoever
takes a subject waits for whoever frees it. The calls themselves are made in `steps`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from jsplan.address import PARKING, Address
from jsplan.documents.plan import Op, Step
from jsplan.facts.live import retention_of
from jsplan.planning.compound import wait_for_consumers
from jsplan.planning.inputs import Inputs
from jsplan.planning.verdict import Verdict
from jsplan.subjects import SubjectTree


@dataclass(slots=True)
class Draft:
    """A step before it has a number. `frees` and `takes` are subjects; `after` are keys of other drafts.

    Streams of one domain take subjects from each other, consumers of one work queue filters; see `scope`.
    `soft` are those of `after` that the server does not insist on: the first to give way when steps wait for
    each other. `settles` is a stream that the cluster must have finished to move or scale. `touches` and `params` are the
    step's `object` and `params`.
    """

    key: tuple[Address, str]
    op: Op
    title: str
    request: dict[str, Any] | None
    precondition: str
    expect: dict[str, Any] | None = None
    record: dict[str, Any] | None = None
    frees: list[str] = field(default_factory=list)
    takes: list[str] = field(default_factory=list)
    after: set[tuple[Address, str]] = field(default_factory=set)
    soft: set[tuple[Address, str]] = field(default_factory=set)
    settles: Address | None = None
    touches: Address | None = None
    params: dict[str, Any] | None = None

    @property
    def scope(self) -> str:
        """Among what a subject has one owner at most: the streams of a domain, or the consumers of a work queue."""
        address = self.key[0]
        return address.domain if address.parent is None else str(address.parent)


Drafts = dict[tuple[Address, str], Draft]

#: Steps around those of all consumers of a stream, whose order is settled where they are made (`interest`).
PLACEHOLDER = ("hold", "release")


def in_order(inputs: Inputs, verdicts: dict[Address, Verdict], drafts: Drafts) -> list[Step]:
    """The steps in an order that respects every dependency, numbered from `s1` on; may add steps that break circles."""
    _depend(inputs, verdicts, drafts)
    _depend_on_subjects(drafts)
    return _numbered(drafts, _ordered(inputs, drafts))


def _depend(inputs: Inputs, verdicts: dict[Address, Verdict], drafts: Drafts) -> None:
    copies = {(edge.copy, edge.origin) for edge in inputs.topology.edges}
    dependants = _dependants(inputs, verdicts)
    going = _going(drafts)
    for (address, kind), draft in drafts.items():
        if kind in PLACEHOLDER:
            continue
        if kind == "create" and address.parent in going:
            draft.after |= going[address.parent] - {draft.key}
            draft.soft |= going[address.parent] - {draft.key}
        if kind != "delete":
            _after(draft, drafts, address, "delete", *_EARLIER.get(kind, ()))
            for other in inputs.topology.after.get(address, ()) if kind != "leave" else ():
                _after(draft, drafts, other, "create", "update", "state", soft=(address, other) in copies)
                if other != address.parent:
                    _after(draft, drafts, other, "last", soft=True)
        elif (stream := verdicts[address].follows) is not None:
            _after(draft, drafts, stream, "delete")
        else:
            for other in dependants.get(address, ()):
                _after(draft, drafts, other, "delete", "update", soft=True)
        _with_carried_stream(inputs, draft, drafts)
        _around_reorganisation(draft, drafts)
    wait_for_consumers(inputs, verdicts, drafts)


def _with_carried_stream(inputs: Inputs, draft: Draft, drafts: Drafts) -> None:
    """What happens to consumers of a stream that is replaced with its messages happens when it is back.

    A stream that becomes an interest stream then has all of them before.
    """
    stream = draft.key[0].parent
    if stream is None or (stream, "resume") not in drafts:
        return
    becomes = (stream, "update") in drafts and retention_of(drafts[stream, "update"].expect or {}) == "interest"
    if becomes and draft.op in ("consumer.create", "state.forget"):
        draft.after = (draft.after - {(stream, "update")}) | {(stream, "resume")}
        draft.precondition = ""  # its old object goes with the old stream
        drafts[stream, "update"].after.add(draft.key)
    else:
        draft.after |= {key for key in ((stream, "update"), (stream, "resume")) if key in drafts}
    if stream in inputs.under_way:
        draft.precondition = ""  # the consumer is where its stream is, and as it was only once that is back


def _going(drafts: Drafts) -> dict[Address | None, set[tuple[Address, str]]]:
    """The consumers that each stream loses: those that it gets wait for them, since their number may be limited (10026)."""
    found: dict[Address | None, set[tuple[Address, str]]] = {}
    for address, kind in drafts:
        if kind == "delete" and address.parent is not None:
            found.setdefault(address.parent, set()).add((address, kind))
    return found


def _around_reorganisation(draft: Draft, drafts: Drafts) -> None:
    """While a cluster moves or scales a stream its consumers cannot be made (10023): those that go, go before, the rest wait."""
    address, kind = draft.key
    first, last = (drafts.get((address.parent, name)) if address.parent else None for name in ("first", "update"))
    if draft.request is None or last is None or last.settles is None:
        return
    if kind == "delete":
        (first or last).after.add(draft.key)
    else:
        draft.settles = last.settles


#: The calls of one update that come before each: a part of it, subjects out of the way, the rest, the pause, limits that shrink.
_EARLIER = {
    "park": ("first",), "retire": ("stop",), "leave": ("first", "park"),
    "update": ("first", "park", "leave", "refill"), "pause": ("first", "park", "update"),
    "last": ("first", "park", "leave", "update"),
}  # fmt: skip


def _after(draft: Draft, drafts: Drafts, address: Address, *kinds: str, soft: bool = False) -> None:
    found = {(address, kind) for kind in kinds if (address, kind) in drafts and (address, kind) != draft.key}
    draft.after |= found
    if soft:
        draft.soft |= found


def _dependants(inputs: Inputs, verdicts: dict[Address, Verdict]) -> dict[Address, list[Address]]:
    """What goes, or stops copying, before each address goes: copies before their origin. Consumers go with their stream."""
    found: dict[Address, list[Address]] = {}
    for address, verdict in verdicts.items():
        if verdict.follows is not None:
            continue
        before = {Address.parse(text) for text in (verdict.entry.depends_on if verdict.entry else ())}
        now = inputs.topology.after.get(address, set())
        for origin in (before | now if verdict.deletes else before - now) - {address}:
            found.setdefault(origin, []).append(address)
    return found


def _depend_on_subjects(drafts: Drafts) -> None:
    """Whoever takes a subject waits for whoever frees it, however else the two stand to each other."""
    freed: dict[str, SubjectTree[Draft]] = {}
    for draft in drafts.values():
        for subject in draft.frees:
            freed.setdefault(draft.scope, SubjectTree()).add(subject, draft)
    for draft in drafts.values():
        tree = freed.get(draft.scope)
        for other in (other for subject in draft.takes for other in tree.overlapping(subject)) if tree else ():
            if other.key[0] != draft.key[0]:
                draft.after.add(other.key)
                draft.soft.discard(other.key)


def _ordered(inputs: Inputs, drafts: Drafts) -> list[tuple[Address, str]]:
    while True:
        graph = {key: sorted(draft.after) for key, draft in sorted(drafts.items())}
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            if not _give_way(drafts, error.args[1]):
                _break_swap(inputs, drafts, error.args[1])


def _give_way(drafts: Drafts, cycle: list[tuple[Address, str]]) -> bool:
    """Drop one wait that the server does not insist on, as where two domains source from each other."""
    for before, then in pairwise(cycle):
        if before in drafts[then].soft:
            drafts[then].after.discard(before)
            drafts[then].soft.discard(before)
            return True
    return False


def part_of(inputs: Inputs, address: Address) -> dict[str, Any]:
    """What a step carries that is one of several for an update: the name under which state has the resource."""
    return {"state_address": str(inputs.moved_from.get(address, address))}


def _break_swap(inputs: Inputs, drafts: Drafts, cycle: list[tuple[Address, str]]) -> None:
    """Streams that exchange subjects wait for each other: the first gives its own up in a step of its own before."""
    key = next((k for k in cycle if k[1] == "update" and drafts[k].frees and (k[0], "park") not in drafts), None)
    if key is None:
        raise AssertionError(f"steps wait for each other: {cycle}")
    final, first = drafts[key], drafts.get((key[0], "first"))
    park = _consumer_park(inputs, final) if key[0].parent else _stream_park(inputs, final, first)
    park.after |= {first.key} if first else set()
    final.frees = []
    final.after.add(park.key)
    for draft in drafts.values():
        if key in draft.after and draft.key != key and draft.takes:
            draft.after = (draft.after - {key}) | {park.key}
    drafts[park.key] = park


def _stream_park(inputs: Inputs, final: Draft, first: Draft | None) -> Draft:
    address, live = final.key[0], inputs.live.objects[final.key[0]]
    base = first.request["payload"] if first and first.request else live.raw
    rest = [s for s in live.raw.get("subjects", []) if s not in final.frees] or [PARKING + address.stream]
    return Draft(
        (address, "park"), "stream.update", f"release the subjects of stream {address.name} in {address.domain}",
        {"api": f"STREAM.UPDATE.{address.stream}", "payload": base | {"subjects": rest}},
        final.precondition, {"subjects": sorted(rest)}, None, frees=final.frees, settles=first.settles if first else None,
        params=part_of(inputs, address),
    )  # fmt: skip


def _consumer_park(inputs: Inputs, final: Draft) -> Draft:
    """A consumer of a work queue on a subject that nothing is published to."""
    address, live = final.key[0], inputs.live.objects[final.key[0]]
    subject = PARKING + address.consumer
    config = {name: value for name, value in live.raw.items() if name != "filter_subjects"} | {"filter_subject": subject}
    return Draft(
        (address, "park"), "consumer.update", f"release the filters of consumer {address.consumer} of {address.stream} in {address.domain}",
        {"api": f"CONSUMER.CREATE.{address.stream}.{address.consumer}",
         "payload": {"stream_name": address.stream, "config": config, "action": "update"}},
        final.precondition, {"filter_subject": subject, "filter_subjects": None}, None, frees=final.frees, settles=final.settles,
        params=part_of(inputs, address),
    )  # fmt: skip


def _numbered(drafts: Drafts, order: list[tuple[Address, str]]) -> list[Step]:
    ids = {key: f"s{number}" for number, key in enumerate(order, 1)}
    return [_step(drafts[key], ids) for key in order]


def _may_come_later(copy: Draft, origin: tuple[Address, str]) -> bool:
    """Whether a copy may be made before its origin: the server takes it, and begins to copy when the origin is there."""
    return origin in copy.soft and origin[1] == "create" and copy.key[1] in ("create", "update") and origin[0].domain != copy.key[0].domain


def _step(draft: Draft, ids: dict[tuple[Address, str], str]) -> Step:
    precondition: dict[str, Any] = {"fingerprint": draft.precondition} if draft.precondition else {}
    earlier = [ids[key] for kind in _EARLIER.get(draft.key[1], ()) if (key := (draft.key[0], kind)) in ids]
    if earlier:
        precondition = {"after_step": earlier[-1]}
    if draft.settles is not None:
        precondition["wait_until_stable"] = str(draft.settles)
    return Step(
        id=ids[draft.key], address=str(draft.key[0]), op=draft.op, title=draft.title, request=draft.request,
        precondition=precondition, depends_on=sorted(ids[key] for key in draft.after), expect=draft.expect, record=draft.record,
        optional_if_offline=sorted(ids[key] for key in draft.after if _may_come_later(draft, key)),
        object=str(draft.touches) if draft.touches else None, params=draft.params,
    )  # fmt: skip
