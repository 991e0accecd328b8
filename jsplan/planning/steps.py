"""Turns decided resources into calls. The executor adds nothing to what is written here; who waits for whom is left to `order`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from jsplan.address import Address
from jsplan.config.checks_consumers import filters_of
from jsplan.documents.plan import VERIFY, Op, Step
from jsplan.planning.compound import KEEPS, first_part, in_parts, inheriting, reorganises, streams_in_wait
from jsplan.planning.downstream import kept_starts
from jsplan.planning.following import following, only_reads
from jsplan.planning.following import put_in_order as put_looks_in_order
from jsplan.planning.inputs import Inputs
from jsplan.planning.interest import LEFT_OVER, add_placeholders, interests, is_placeholder
from jsplan.planning.merge import as_created, patched
from jsplan.planning.order import Draft, Drafts, in_order, part_of
from jsplan.planning.ownership import mark_drafts, marked
from jsplan.planning.pauses import PAUSE, differs
from jsplan.planning.preserve.consumers import held, params
from jsplan.planning.preserve.streams import carried_over, cleared, given_up
from jsplan.planning.rejoining import around, leave, put_in_order
from jsplan.planning.source_cycles import order_sources
from jsplan.planning.taken_out import ends
from jsplan.planning.verdict import GIVEN_UP, UNDER_WAY, UNTOUCHED, Verdict, table_of
from jsplan.state.document import Entry


def build_steps(inputs: Inputs, verdicts: dict[Address, Verdict]) -> list[Step]:
    """All steps of the plan in an order that respects every dependency, numbered from `s1` on."""
    drafts: Drafts = {}
    waiting = streams_in_wait(inputs, verdicts)
    for verdict in verdicts.values():
        found = _drafts(inputs, verdict, verdicts, waits=verdict.address in waiting)
        for draft in around(verdict, found, str(inputs.moved_from.get(verdict.address, verdict.address))):
            drafts[draft.key] = draft
    put_in_order(verdicts, inputs, drafts)
    order_sources(inputs, verdicts, drafts)
    mark_drafts(inputs, drafts)
    looks = list(following(inputs, verdicts))
    put_looks_in_order(drafts, looks)
    for draft in [*_settled(inputs, drafts), *_tidied(inputs, drafts), *cleared(inputs, verdicts)]:
        drafts[draft.key] = draft
    add_placeholders(inputs, interests(inputs, verdicts), drafts)
    return in_order(inputs, verdicts, drafts)


# --- the calls of one resource -------------------------------------------------------------------------------


def _drafts(inputs: Inputs, verdict: Verdict, verdicts: Mapping[Address, Verdict], *, waits: bool) -> Iterable[Draft]:
    if verdict.address.kind != "consumer" and verdict.preserves:
        yield from carried_over(inputs, verdict, _create(inputs, verdict, "absent"), _with_stream(inputs, verdict, verdicts))
    elif verdict.reason == GIVEN_UP:
        yield from given_up(inputs, verdict, _update(inputs, verdict), _with_stream(inputs, verdict, verdicts))
    elif verdict.brought is None and verdict.reason != LEFT_OVER:
        yield from _by_actions(inputs, verdict, waits=waits)


def _by_actions(inputs: Inputs, verdict: Verdict, *, waits: bool) -> Iterable[Draft]:
    match verdict.actions:
        case ["create"] if verdict.reason == UNDER_WAY and verdict.address.kind == "consumer":
            yield _replaced(inputs, verdict)
        case ["create", "delete"] if verdict.address.kind == "consumer":
            yield _replaced(inputs, verdict)
        case ["create"]:
            yield _create(inputs, verdict, "absent")
        case ["update"]:
            yield from _leaves(inputs, verdict)
            yield from _updates(inputs, verdict, waits=waits)
        case ["delete"]:
            yield _delete(inputs, verdict)
        case ["delete", "create"]:
            yield _delete(inputs, verdict)
            yield _create(inputs, verdict, "absent")
        case ["forget"]:
            renamed = _renamed(inputs, verdict.address)
            yield Draft((verdict.address, "forget"), "state.forget", f"forget {verdict.address}", None, "", None, renamed)
        case _ if verdict.adopts and not inputs.request.refresh_only:
            yield _state_only(inputs, verdict, "state.import", "adopt")
        case _ if _state_differs(inputs, verdict):
            yield _state_only(inputs, verdict, "state.update", "record")


def _leaves(inputs: Inputs, verdict: Verdict) -> Iterable[Draft]:
    """The call before an update that takes sources out, where any are."""
    if verdict.leaves:
        recorded = str(inputs.moved_from.get(verdict.address, verdict.address))
        yield leave(verdict, _what(verdict), recorded, inputs.taken_out.get(verdict.address, set()))


def _settled(inputs: Inputs, drafts: Drafts) -> Iterable[Draft]:
    """Steps of a dead apply that nothing in this plan takes up: no longer pending, and what they deleted is no longer in state."""
    taken_up = {address for address, _ in drafts}
    for address in sorted((inputs.pending.keys() & inputs.selected) | inputs.deleted):
        if address in taken_up or not inputs.live.reachable(address.domain) or address in inputs.live.broken:
            continue
        if inputs.pending.get(address, {}).get("op") == VERIFY and only_reads(inputs):
            continue
        live = inputs.live.get(address)
        fingerprint = live.fingerprint if live else "absent"
        yield Draft((address, "settle"), "state.update", f"record {address} in state", None, fingerprint, params=part_of(inputs, address))


def _api(verdict: Verdict, verb: str) -> str:
    address = verdict.address
    if address.kind == "consumer":
        return f"CONSUMER.{verb}.{address.stream}.{address.consumer}"
    return f"STREAM.{verb}.{address.stream}"


def _what(verdict: Verdict) -> str:
    address = verdict.address
    name = f"{address.consumer} of {address.stream}" if address.kind == "consumer" else address.name
    return f"{address.kind} {name} in {address.domain}"


def _payload(verdict: Verdict, config: dict[str, Any], action: str) -> dict[str, Any]:
    """CONSUMER.CREATE is an upsert unless `action` says otherwise."""
    if verdict.address.kind == "consumer":
        return {"stream_name": verdict.address.stream, "config": config, "action": action}
    return config


def _create(inputs: Inputs, verdict: Verdict, precondition: str) -> Draft:
    body, address = inputs.creation(verdict.address), verdict.address
    op: Op = "consumer.create" if address.kind == "consumer" else "stream.create"
    expect = {name: (verdict.after or {}).get(name) for name in _certain(body, inputs.body(address))}
    payload = _payload(verdict, as_created(table_of(address), body, inputs.level(address)), "create")
    return Draft(
        (address, "create"), op, f"create {_what(verdict)}", {"api": _api(verdict, "CREATE"), "payload": payload},
        precondition, expect, _record(inputs, verdict, "created"), takes=_held(inputs, address, verdict.after or {}),
    )  # fmt: skip


def _replaced(inputs: Inputs, verdict: Verdict) -> Draft:
    """A consumer made anew where the old one stood: one step, since nothing else may come between its requests."""
    address, live, draft = verdict.address, verdict.live, _create(inputs, verdict, "absent")
    before, after = _held(inputs, address, live.compact if live else {}), _held(inputs, address, verdict.after or {})
    return replace(
        draft, key=(address, "update"), op="consumer.replace", title=f"replace {_what(verdict)} at its position",
        precondition=live.fingerprint if live else "absent", params=params(inputs, verdict),
        frees=[s for s in before if s not in after], takes=[s for s in after if s not in before],
    )  # fmt: skip


def _tidied(inputs: Inputs, drafts: Drafts) -> Iterable[Draft]:
    """Replacements of consumers that an apply began and that this plan does not take up: what stood in for them goes."""
    if inputs.request.refresh_only or inputs.request.imports:
        return
    for address in sorted(a for a in inputs.replacements if a.kind == "consumer" and not is_placeholder(a) and a in inputs.selected):
        if (address, "update") in drafts and drafts[address, "update"].op == "consumer.replace":
            continue
        if inputs.live.reachable(address.domain):
            recorded = {"state_address": inputs.replacements[address]["address"]}
            title = f"clean up after the replacement of consumer {address.consumer} of {address.stream} in {address.domain}"
            yield Draft(
                (address, "tidy"), "consumer.cleanup", title, None, "", after={key for key in drafts if key[0] == address}, params=recorded,
            )  # fmt: skip


def _with_stream(inputs: Inputs, stream: Verdict, verdicts: Mapping[Address, Verdict]) -> dict[str, Any]:
    """How the consumers that the files name come back with their stream: `{address, config, record}`, None where they do not."""
    found: dict[str, Any] = {}
    for address, verdict in verdicts.items():
        if address.parent != stream.address:
            continue
        if verdict.follows is not None:
            found[address.consumer] = None
        elif verdict.brought is not None:
            left_out = verdict.entry if address not in inputs.selected else None
            record = _as_recorded(left_out) if left_out else _record(inputs, verdict, "imported" if verdict.adopts else _origin(verdict))
            found[address.consumer] = {"address": str(address), "config": _as_it_shall_be(inputs, verdict), "record": record}
    return found


def _as_recorded(entry: Entry) -> dict[str, Any]:
    """What state has of a consumer that the plan leaves out, and that is made anew all the same: only its `created` changes."""
    record = {"declared": entry.declared, "origin": entry.origin, "depends_on": entry.depends_on, "prevent_destroy": entry.prevent_destroy}
    return record | ({"starts": entry.starts} if entry.starts else {})


def _as_it_shall_be(inputs: Inputs, verdict: Verdict) -> dict[str, Any]:
    assert verdict.live is not None
    body, table, live = inputs.body(verdict.address), table_of(verdict.address), verdict.live
    if verdict.preserves:
        return marked(inputs, inheriting(as_created(table, body, inputs.level(verdict.address)), verdict.after or {}))
    return marked(inputs, patched(table, live.raw, body, live.compact, verdict.after or live.compact))


def _certain(body: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """What a create must leave behind. A mirror beside its origin takes over whether it answers reads (server_semantics 1.2)."""
    local = bool(body.get("mirror")) and not body["mirror"].get("external")
    return {name: value for name, value in body.items() if name != "mirror_direct" or name in named or not local}


def _updates(inputs: Inputs, verdict: Verdict, *, waits: bool) -> Iterable[Draft]:
    """The update, in the parts that it takes, and the call that alone moves a consumer's pause."""
    assert verdict.live is not None
    assert verdict.after is not None
    pauses, until = differs(verdict.live.compact, verdict.after), verdict.after.get(PAUSE)
    part = first_part(verdict, inputs.body(verdict.address))
    if part is not None:
        title, payload, expect = part
        yield Draft(
            (verdict.address, "first"), "stream.update", f"update {_what(verdict)}: {title}",
            {"api": _api(verdict, "UPDATE"), "payload": payload}, verdict.live.fingerprint, expect, settles=verdict.address,
            params=part_of(inputs, verdict.address),
        )  # fmt: skip
    if not pauses or len(verdict.fields) > 1:
        as_paused = {PAUSE: verdict.live.compact[PAUSE]} if PAUSE in verdict.live.compact else {}
        rest = {name: value for name, value in verdict.after.items() if name != PAUSE}
        yield from _at_once_and_last(inputs, replace(verdict, after=rest | as_paused), waits=waits)
    if pauses:
        title = f"pause {_what(verdict)} until {until}" if until else f"resume {_what(verdict)}"
        yield Draft(
            (verdict.address, "pause"), "consumer.pause", title,
            {"api": _api(verdict, "PAUSE"), "payload": {PAUSE: until} if until else None},
            verdict.live.fingerprint, {PAUSE: until}, _record(inputs, verdict, "imported" if verdict.adopts else _origin(verdict)),
        )  # fmt: skip


def _at_once_and_last(inputs: Inputs, verdict: Verdict, *, waits: bool) -> Iterable[Draft]:
    """The update; for limits of a stream that wait for its consumers, a second one."""
    now, last, waiting = in_parts(verdict, waits=waits)
    if now is not None:
        draft = _update(inputs, now)
        yield draft if last is None else replace(draft, record=None, params=part_of(inputs, verdict.address))
    if last is not None:
        final = _update(inputs, last)
        what = "retention interest, now that its consumers are in place" if KEEPS in waiting else "tighten its limits for consumers"
        final = replace(final, key=(verdict.address, "last"), title=f"{final.title}: {what}")
        yield final if now is None else replace(final, expect=waiting, frees=[], takes=[])


def _update(inputs: Inputs, verdict: Verdict) -> Draft:
    assert verdict.live is not None
    assert verdict.after is not None
    address, body, live = verdict.address, inputs.body(verdict.address), verdict.live
    op: Op = "consumer.update" if address.kind == "consumer" else "stream.update"
    payload = patched(table_of(address), live.raw, body, live.compact, verdict.after)
    changed = {n for n in live.compact.keys() | verdict.after.keys() if live.compact.get(n) != verdict.after.get(n)}
    declared = inputs.declared(address)
    kept = declared.lifecycle.ignore_changes if declared else ()
    expect = {name: verdict.after.get(name) for name in sorted(changed | body.keys()) if name not in kept}
    before, after = _held(inputs, address, live.compact), _held(inputs, address, verdict.after)
    return Draft(
        (address, "update"), op, f"update {_what(verdict)}",
        {"api": _api(verdict, "CREATE" if op == "consumer.update" else "UPDATE"), "payload": _payload(verdict, payload, "update")},
        live.fingerprint, expect, _record(inputs, verdict, "imported" if verdict.adopts else _origin(verdict)),
        frees=[s for s in before if s not in after], takes=[s for s in after if s not in before],
        settles=address if op == "stream.update" and reorganises(live.compact, verdict.after) else None,
    )  # fmt: skip


def _origin(verdict: Verdict) -> str:
    return verdict.entry.origin if verdict.entry else "created"


def _delete(inputs: Inputs, verdict: Verdict) -> Draft:
    assert verdict.live is not None
    address, live = verdict.address, verdict.live
    subjects, renamed = _held(inputs, address, live.compact), _renamed(inputs, address)
    if verdict.follows is not None:
        title = f"forget {_what(verdict)}, which goes with its stream"
        return Draft((address, "delete"), "state.forget", title, None, live.fingerprint, None, renamed)
    op: Op = "consumer.delete" if address.kind == "consumer" else "stream.delete"
    request = {"api": _api(verdict, "DELETE"), "payload": None}
    return Draft((address, "delete"), op, f"delete {_what(verdict)}", request, live.fingerprint, None, renamed, frees=subjects)


def _held(inputs: Inputs, address: Address, config: dict[str, Any]) -> list[str]:
    """What nobody else may have at the same time: a stream's subjects, the filters of a consumer of a work queue."""
    if address.parent is None:
        subjects: list[str] = config.get("subjects", [])
        return subjects
    stream = inputs.live.get(address.parent)
    if stream is None or stream.compact.get("retention") != "workqueue":
        return []
    return filters_of(config)


def _renamed(inputs: Inputs, address: Address) -> dict[str, Any] | None:
    """What state still calls it, when a `moved` block renamed it."""
    old = inputs.moved_from.get(address)
    return {"previous_address": str(old)} if old else None


def _state_only(inputs: Inputs, verdict: Verdict, op: Op, verb: str) -> Draft:
    """A step that writes nothing to a server, only what state remembers."""
    assert verdict.live is not None
    record = _record(inputs, verdict, "imported" if op == "state.import" else _origin(verdict))
    return Draft((verdict.address, "state"), op, f"{verb} {_what(verdict)}", None, verdict.live.fingerprint, None, record)


def _record(inputs: Inputs, verdict: Verdict, origin: str) -> dict[str, Any]:
    """What state will remember; the executor adds the configuration and `created` as read back."""
    address, declared, entry = verdict.address, inputs.declared(verdict.address), verdict.entry
    guard = declared.lifecycle.prevent_destroy if declared else None
    if inputs.request.refresh_only and entry is not None:
        fields, after = _as_live(verdict, entry), entry.depends_on
    else:
        fields = _named_fields(inputs, verdict)
        after = sorted(str(a) for a in inputs.topology.after.get(address, ()))
    record: dict[str, Any] = {
        "declared": fields, "origin": origin, "depends_on": after,
        "prevent_destroy": guard if guard is not None else bool(entry and entry.prevent_destroy),
    }  # fmt: skip
    if entry is not None and entry.starts and _keeps_starts(verdict, entry, record["declared"]):
        record["starts"] = entry.starts
    elif entry is not None and (starts := kept_starts(verdict, entry, record["declared"])):
        record["starts"] = starts
    return record | (_renamed(inputs, address) or {}) | ends(inputs, address)


def _keeps_starts(verdict: Verdict, entry: Entry, named: dict[str, Any]) -> bool:
    """Whether what a replacement put in place of the files is still there."""
    return verdict.live is not None and not verdict.replaces and bool(held(verdict.address, entry, named))


def _as_live(verdict: Verdict, entry: Entry) -> dict[str, Any]:
    """What the files named, with what drifted since as it is live: so the next plan sees that the files differ."""
    table, live = table_of(verdict.address), verdict.live.compact if verdict.live else {}
    before = table.compact(entry.config)
    return {name: value if before.get(name) == live.get(name) else live.get(name) for name, value in entry.declared.items()}


def _named_fields(inputs: Inputs, verdict: Verdict) -> dict[str, Any]:
    """What the files name. Something imported although it differs counts as named whole, so that the next plan sees it."""
    if verdict.reason == "import_by_request" and verdict.live is not None:
        return verdict.live.compact
    if inputs.declared(verdict.address) is None:
        return {}
    return inputs.declared_fields(verdict.address)


def _state_differs(inputs: Inputs, verdict: Verdict) -> bool:
    """Whether state should remember something else although the server is as wanted."""
    entry, live = verdict.entry, verdict.live
    if entry is None or live is None or verdict.reason == "not_managed":
        return False
    if verdict.address in inputs.recovered or verdict.address in inputs.taken_out:
        return verdict.address in inputs.recovered
    if ends(inputs, verdict.address):
        return not inputs.request.refresh_only
    if inputs.request.refresh_only:
        return live.config != entry.config
    if verdict.reason == UNTOUCHED and not _guard_differs(inputs, verdict, entry):
        return False
    record = _record(inputs, verdict, entry.origin)
    remembered = {
        "declared": entry.declared,
        "origin": entry.origin,
        "depends_on": _recorded_after(inputs, verdict, entry),
        "prevent_destroy": entry.prevent_destroy,
    } | ({"starts": entry.starts} if entry.starts else {})
    return record != remembered or table_of(verdict.address).compact(entry.config) != live.compact


def _guard_differs(inputs: Inputs, verdict: Verdict, entry: Entry) -> bool:
    """What state holds besides configuration: the guard, what it depends on, its name."""
    declared, address = inputs.declared(verdict.address), verdict.address
    guard = declared.lifecycle.prevent_destroy if declared else None
    after = inputs.topology.after.get(address)
    return (
        (guard is not None and guard != entry.prevent_destroy)
        or (sorted(map(str, after)) if after else []) != _recorded_after(inputs, verdict, entry)
        or address in inputs.moved_from
    )  # fmt: skip


def _recorded_after(inputs: Inputs, verdict: Verdict, entry: Entry) -> list[str]:
    """What it depends on as state has it, which may be by names that `moved` blocks have changed since."""
    stored = inputs.state.resources.get(inputs.moved_from.get(verdict.address, verdict.address), entry)
    return stored.depends_on
