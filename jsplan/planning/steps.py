"""Turns decided resources into calls. The executor adds nothing to what is written here; who waits for whom is left to `order`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jsplan.address import Address
from jsplan.documents.plan import Op, Step
from jsplan.planning.compound import first_part, reorganises
from jsplan.planning.inputs import Inputs
from jsplan.planning.merge import as_created, patched
from jsplan.planning.order import Draft, Drafts, in_order
from jsplan.planning.pauses import PAUSE, differs
from jsplan.planning.verdict import UNTOUCHED, Verdict, table_of
from jsplan.state.document import Entry


def build_steps(inputs: Inputs, verdicts: dict[Address, Verdict]) -> list[Step]:
    """All steps of the plan in an order that respects every dependency, numbered from `s1` on."""
    drafts: Drafts = {}
    for verdict in verdicts.values():
        for draft in _drafts(inputs, verdict):
            drafts[draft.key] = draft
    for draft in _settled(inputs, drafts):
        drafts[draft.key] = draft
    return in_order(inputs, verdicts, drafts)


# --- the calls of one resource -------------------------------------------------------------------------------


def _drafts(inputs: Inputs, verdict: Verdict) -> Iterable[Draft]:
    match verdict.actions:
        case ["create"]:
            yield _create(inputs, verdict, "absent")
        case ["update"]:
            yield from _updates(inputs, verdict)
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


def _settled(inputs: Inputs, drafts: Drafts) -> Iterable[Draft]:
    """Steps of a dead apply that left nothing behind and that nothing in this plan takes up: no longer pending."""
    taken_up = {address for address, _ in drafts}
    for address in sorted(inputs.pending.keys() & inputs.selected):
        if address in taken_up or not inputs.live.reachable(address.domain) or address in inputs.live.broken:
            continue
        live = inputs.live.get(address)
        yield Draft((address, "settle"), "state.update", f"settle {address}", None, live.fingerprint if live else "absent")


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
        precondition, expect, _record(inputs, verdict, "created"), takes=(verdict.after or {}).get("subjects", []),
    )  # fmt: skip


def _certain(body: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """What a create must leave behind. A mirror beside its origin takes over whether it answers reads (server_semantics 1.2)."""
    local = bool(body.get("mirror")) and not body["mirror"].get("external")
    return {name: value for name, value in body.items() if name != "mirror_direct" or name in named or not local}


def _updates(inputs: Inputs, verdict: Verdict) -> Iterable[Draft]:
    """The update, and the call that alone moves a consumer's pause."""
    assert verdict.live is not None
    assert verdict.after is not None
    pauses, until = differs(verdict.live.compact, verdict.after), verdict.after.get(PAUSE)
    part = first_part(verdict, inputs.body(verdict.address))
    if part is not None:
        title, payload, expect = part
        yield Draft(
            (verdict.address, "first"), "stream.update", f"update {_what(verdict)}: {title}",
            {"api": _api(verdict, "UPDATE"), "payload": payload}, verdict.live.fingerprint, expect, settles=verdict.address,
        )  # fmt: skip
    if not pauses or len(verdict.fields) > 1:
        as_paused = {PAUSE: verdict.live.compact[PAUSE]} if PAUSE in verdict.live.compact else {}
        rest = {name: value for name, value in verdict.after.items() if name != PAUSE}
        yield _update(inputs, replace(verdict, after=rest | as_paused))
    if pauses:
        title = f"pause {_what(verdict)} until {until}" if until else f"resume {_what(verdict)}"
        yield Draft(
            (verdict.address, "pause"), "consumer.pause", title,
            {"api": _api(verdict, "PAUSE"), "payload": {PAUSE: until} if until else None},
            verdict.live.fingerprint, {PAUSE: until}, _record(inputs, verdict, "imported" if verdict.adopts else _origin(verdict)),
        )  # fmt: skip


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
    before, after = live.compact.get("subjects", []), verdict.after.get("subjects", [])
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
    subjects = [] if address.kind == "consumer" else live.compact.get("subjects", [])
    renamed = _renamed(inputs, address)
    if verdict.follows is not None:
        title = f"forget {_what(verdict)}, which goes with its stream"
        return Draft((address, "delete"), "state.forget", title, None, live.fingerprint, None, renamed)
    op: Op = "consumer.delete" if address.kind == "consumer" else "stream.delete"
    request = {"api": _api(verdict, "DELETE"), "payload": None}
    return Draft((address, "delete"), op, f"delete {_what(verdict)}", request, live.fingerprint, None, renamed, frees=subjects)


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
    return record | (_renamed(inputs, address) or {})


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
    if verdict.address in inputs.recovered:
        return True
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
    }
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
