"""Order the calls of a plan, break circles and number the steps.

An origin comes before its downstream streams, also across domains. A consumer comes after its
stream. Deletes are in the reverse order. A step that takes a subject waits for the step that
frees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, Final

from jsplan.address import PARKING_PREFIX, Address
from jsplan.documents.plan import Step
from jsplan.documents.step_kinds import Op
from jsplan.facts.live import get_retention
from jsplan.planning.drafts import EARLIER_PARTS, Draft, Drafts, Key, Part
from jsplan.planning.model import Decisions, PlanInputs
from jsplan.planning.pauses import is_left_held
from jsplan.planning.split_updates import delay_limit_updates
from jsplan.subjects import SubjectTree

#: Steps around those of all consumers of a stream. `interest` sets their order.
PLACEHOLDER_PARTS: Final = ("hold", "release")
#: The step that ends a relocation without an origin. `relocation.order` sets its order.
RELOCATION_END: Final = "ended"


def order_steps(
    inputs: PlanInputs, decisions: Decisions, drafts: Drafts, contents: Drafts
) -> list[Step]:
    """Return the steps in an order that respects every dependency, numbered from `s1`.

    May add steps that break circles. Those of `contents` come last: nothing waits for them. What
    accounts may do changes before all that may need it; they are deleted after all.
    """
    order: list[Key] = []
    if drafts:
        _add_dependencies(inputs, decisions, drafts)
        _depend_on_subjects(drafts)
        order = _sort_drafts(inputs, drafts)
    _order_contents(inputs, drafts, contents)
    drafts = drafts | contents
    accounts = sorted(key for key in contents if key[0].kind == "account")
    first = [key for key in accounts if key[1] != "delete"]
    last = [key for key in accounts if key[1] == "delete"]
    others = [*order, *sorted(contents.keys() - set(accounts))]
    for before, after in ((first, [*others, *last]), (others, last)):
        for key in after:
            drafts[key].depends_on |= set(before)
    order = [*first, *others, *last]
    ids = {key: f"s{number}" for number, key in enumerate(order, 1)}
    return [_build_step(drafts[key], ids) for key in order]


def order_sources(inputs: PlanInputs, drafts: Drafts) -> None:
    """Send the sources of a stream in an order that the server accepts: copies before origins.

    The server looks at all of them at each update, and takes the other order for a cycle (10052).
    """
    origins: dict[Address, set[Address]] = {}
    for edge in inputs.topology.edges:
        if edge.is_local:
            origins.setdefault(edge.downstream, set()).add(edge.origin)
    for (address, _), draft in drafts.items():
        request = draft.request or {}
        sources = (request.get("payload") or {}).get("sources") or ()
        if address.parent is not None or len(sources) < 2:
            continue
        hops = {o.stream: _count_hops(origins, o) for o in origins.get(address, ())}
        ordered = sorted(sources, key=lambda source: -hops.get(source["name"], 0))
        draft.request = request | {"payload": request["payload"] | {"sources": ordered}}


def _count_hops(origins: Mapping[Address, set[Address]], stream: Address) -> int:
    """Count the flows of the longest path to a stream; a circle ends it."""
    level, passed, hops = {stream}, {stream}, 0
    while level := {o for one in level for o in origins.get(one, ())} - passed:
        passed |= level
        hops += 1
    return hops


def _add_dependencies(inputs: PlanInputs, decisions: Decisions, drafts: Drafts) -> None:
    flows = {(edge.downstream, edge.origin) for edge in inputs.topology.edges}
    dependants = _dependants(inputs, decisions)
    deletions = _deleted_consumers(drafts)
    for (address, kind), draft in drafts.items():
        if kind in (*PLACEHOLDER_PARTS, RELOCATION_END):
            continue
        if kind == "create" and address.parent in deletions:
            draft.depends_on |= deletions[address.parent] - {draft.key}
            draft.soft_dependencies |= deletions[address.parent] - {draft.key}
        if kind != "delete":
            _depend_on(draft, drafts, address, "delete", *EARLIER_PARTS.get(kind, ()))
            for other in inputs.topology.dependencies.get(address, ()) if kind != "leave" else ():
                is_flow = (address, other) in flows
                _depend_on(draft, drafts, other, "create", "update", "state", soft=is_flow)
                if other != address.parent:
                    _depend_on(draft, drafts, other, "last", soft=True)
        elif (stream := decisions[address].deleted_with) is not None:
            _depend_on(draft, drafts, stream, "delete")
        else:
            for other in dependants.get(address, ()):
                _depend_on(draft, drafts, other, "delete", "update", soft=True)
        _order_after_replacement(inputs, draft, drafts)
        _order_reorganisation(draft, drafts)
    delay_limit_updates(inputs, decisions, drafts)


def _order_contents(inputs: PlanInputs, drafts: Drafts, contents: Drafts) -> None:
    """Let the steps of contents wait for all steps of their bucket or stream."""
    others: dict[Address | None, set[Key]] = {}
    for key in drafts if contents else ():
        others.setdefault(key[0], set()).add(key)
    for (address, _), draft in contents.items():
        for name in inputs.topology.dependencies.get(address) or (address.parent,):
            draft.depends_on |= others.get(name, set())


def _order_after_replacement(inputs: PlanInputs, draft: Draft, drafts: Drafts) -> None:
    """Run the steps of the consumers of a preserving replacement after the stream is back.

    A stream that becomes an interest stream has all its consumers first.
    """
    stream = draft.key[0].parent
    if stream in inputs.interrupted.streams:
        # The consumer is where its stream is. It is unchanged only after the stream is back.
        draft.precondition = ""
    if stream is None or (stream, "resume") not in drafts:
        return
    update = drafts.get((stream, "update"))
    becomes = update is not None and get_retention(update.expect or {}) == "interest"
    if update and becomes and draft.op in ("consumer.create", "state.forget"):
        draft.depends_on = (draft.depends_on - {update.key}) | {(stream, "resume")}
        draft.precondition = ""  # its old object goes with the old stream
        update.depends_on.add(draft.key)
    else:
        live = inputs.live.get(draft.key[0])
        if live is not None and is_left_held(inputs, live):
            draft.precondition = ""  # its successor is not paused
        draft.depends_on.add((stream, "resume"))
        draft.depends_on |= {update.key} if update else set()


def _deleted_consumers(drafts: Drafts) -> dict[Address | None, set[Key]]:
    """Return the consumers that each stream loses.

    New consumers wait for them, since the number of consumers may be limited (10026).
    """
    found: dict[Address | None, set[Key]] = {}
    for address, kind in drafts:
        if kind == "delete" and address.parent is not None:
            found.setdefault(address.parent, set()).add((address, kind))
    return found


def _order_reorganisation(draft: Draft, drafts: Drafts) -> None:
    """Order the steps of consumers around a move or a scaling of their stream.

    A cluster refuses to create consumers meanwhile (10023). Deletes come before, the rest waits.
    """
    address, kind = draft.key
    first, last = (
        drafts.get((address.parent, name)) if address.parent else None
        for name in ("first", "update")
    )
    if draft.request is None or last is None or last.stable_stream is None:
        return
    if kind == "delete":
        (first or last).depends_on.add(draft.key)
    else:
        draft.stable_stream = last.stable_stream


def _depend_on(
    draft: Draft, drafts: Drafts, address: Address, *kinds: Part, soft: bool = False
) -> None:
    keys: set[Key] = {(address, kind) for kind in kinds}
    found = (keys & drafts.keys()) - {draft.key}
    draft.depends_on |= found
    if soft:
        draft.soft_dependencies |= found


def _dependants(inputs: PlanInputs, decisions: Decisions) -> dict[Address, list[Address]]:
    """Return what is deleted, or stops copying, before each address is deleted.

    Downstream streams come before their origin. Consumers are deleted with their stream.
    """
    found: dict[Address, list[Address]] = {}
    for address, decision in decisions.items():
        if decision.deleted_with is not None:
            continue
        before = {
            Address.parse(text) for text in (decision.entry.depends_on if decision.entry else ())
        }
        now = inputs.topology.dependencies.get(address, set())
        for origin in (before | now if decision.deletes else before - now) - {address}:
            found.setdefault(origin, []).append(address)
    return found


def _depend_on_subjects(drafts: Drafts) -> None:
    """Let a step that takes a subject wait for the step that frees it, before all other rules."""
    freed: dict[str, SubjectTree[Draft]] = {}
    for draft in drafts.values():
        for subject in draft.freed_subjects:
            freed.setdefault(draft.scope, SubjectTree()).add(subject, draft)
    for draft in drafts.values():
        tree = freed.get(draft.scope, SubjectTree())
        for subject in draft.taken_subjects:
            for other in tree.find_overlapping(subject):
                if other.key[0] != draft.key[0]:
                    draft.depends_on.add(other.key)
                    draft.soft_dependencies.discard(other.key)


def _sort_drafts(inputs: PlanInputs, drafts: Drafts) -> list[Key]:
    while True:
        graph = {key: sorted(draft.depends_on) for key, draft in sorted(drafts.items())}
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            if not _drop_soft_dependency(drafts, error.args[1]):
                _break_subject_swap(inputs, drafts, error.args[1])


def _drop_soft_dependency(drafts: Drafts, cycle: list[Key]) -> bool:
    """Drop a dependency that the server does not require, as for sources in both directions."""
    for before, after in pairwise(cycle):
        if before in drafts[after].soft_dependencies:
            drafts[after].depends_on.discard(before)
            drafts[after].soft_dependencies.discard(before)
            return True
    return False


def partial_update_params(inputs: PlanInputs, address: Address) -> dict[str, Any]:
    """Return the parameters of one of several steps of an update: the address in state."""
    return {"state_address": inputs.state_name(address)}


def _break_subject_swap(inputs: PlanInputs, drafts: Drafts, cycle: list[Key]) -> None:
    """Let one of the streams that exchange subjects give up its own in an earlier step."""
    updates = (key for key in cycle if key[1] == "update" and drafts[key].freed_subjects)
    key = next((key for key in updates if (key[0], "park") not in drafts), None)
    if key is None:
        raise AssertionError(f"steps wait for each other: {cycle}")
    final, first = drafts[key], drafts.get((key[0], "first"))
    park = _draft_parking(inputs, final, first)
    park.depends_on |= {first.key} if first else set()
    final.freed_subjects = []
    final.depends_on.add(park.key)
    for draft in drafts.values():
        if key in draft.depends_on and draft.key != key and draft.taken_subjects:
            draft.depends_on = (draft.depends_on - {key}) | {park.key}
    drafts[park.key] = park


def _draft_parking(inputs: PlanInputs, final: Draft, first: Draft | None) -> Draft:
    """Draft an update to subjects, or of a work queue's consumer to filters, without messages."""
    address, live = final.key[0], inputs.live.objects[final.key[0]]
    op: Op = "stream.update" if address.parent is None else "consumer.update"
    draft = Draft((address, "park"), op, "", None, final.precondition)
    draft.freed_subjects = final.freed_subjects
    draft.params = partial_update_params(inputs, address)
    if address.parent is None:
        base = first.request["payload"] if first and first.request else live.raw
        own = [s for s in live.raw.get("subjects", []) if s not in final.freed_subjects]
        rest = [*own, PARKING_PREFIX + address.stream]  # it says that this is not the end
        draft.title = f"release the subjects of stream {address.name} in {address.domain}"
        payload = base | {"subjects": rest}
        draft.request = {"api": f"STREAM.UPDATE.{address.stream}", "payload": payload}
        draft.expect = {"subjects": sorted(rest)}
        draft.stable_stream = first.stable_stream if first else None
        return draft
    name = f"{address.consumer} of {address.stream} in {address.domain}"
    draft.title = f"release the filters of consumer {name}"
    subject = PARKING_PREFIX + address.consumer
    config = {field: value for field, value in live.raw.items() if field != "filter_subjects"}
    config |= {"filter_subject": subject}
    payload = {"stream_name": address.stream, "config": config, "action": "update"}
    api = f"CONSUMER.CREATE.{address.stream}.{address.consumer}"
    draft.request = {"api": api, "payload": payload}
    draft.expect = {"filter_subject": subject, "filter_subjects": None}
    draft.stable_stream = final.stable_stream
    return draft


def _is_optional_if_offline(downstream: Draft, origin: Key) -> bool:
    """Check whether a stream may be created before its origin.

    The server accepts it, and starts to copy when the origin exists.
    """
    return (
        origin in downstream.soft_dependencies
        and origin[1] == "create"
        and downstream.key[1] in ("create", "update")
        and origin[0].domain != downstream.key[0].domain
    )


def _build_step(draft: Draft, ids: dict[Key, str]) -> Step:
    precondition: dict[str, Any] = {"fingerprint": draft.precondition} if draft.precondition else {}
    for kind in EARLIER_PARTS.get(draft.key[1], ()):
        if (draft.key[0], kind) in ids:
            precondition = {"after_step": ids[draft.key[0], kind]}
    if draft.before_apply:
        precondition = {"before_apply": draft.before_apply}
    if draft.stable_stream is not None:
        precondition["wait_until_stable"] = str(draft.stable_stream)
    return Step(
        id=ids[draft.key],
        address=str(draft.key[0]),
        op=draft.op,
        title=draft.title,
        request=draft.request,
        precondition=precondition,
        depends_on=sorted(ids[key] for key in draft.depends_on),
        expect=draft.expect,
        record=draft.record,
        optional_if_offline=sorted(
            ids[key] for key in draft.depends_on if _is_optional_if_offline(draft, key)
        ),
        object=str(draft.object_address) if draft.object_address else None,
        params=draft.params,
    )
