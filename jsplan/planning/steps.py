"""Turns decided resources into calls. The executor adds nothing to what is written here; who waits for whom is left to `order`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from jsplan.address import Address
from jsplan.config.checks_consumers import filters_of
from jsplan.documents.plan import VERIFY_OP, Op, Step
from jsplan.planning.decide import (
    REPLACEMENT_INTERRUPTED,
    REPLACEMENT_ROLLED_BACK,
    UNTOUCHED,
    ResourceDecision,
    table_of,
)
from jsplan.planning.interest import (
    PLACEHOLDER_ORPHANED,
    add_placeholders,
    find_interest_changes,
    is_placeholder,
)
from jsplan.planning.merge import build_create, build_update
from jsplan.planning.model import PlanInputs
from jsplan.planning.order import Draft, Drafts, order_steps, partial_update_params
from jsplan.planning.ownership import tag_drafts, with_owner_tag
from jsplan.planning.pauses import PAUSE, changes_pause
from jsplan.planning.preserve.consumers import params, replacement_fields
from jsplan.planning.preserve.stream_steps import (
    draft_replacement,
    draft_rollback,
    draft_staging_cleanup,
)
from jsplan.planning.replication.checks import draft_replication_checks, is_state_only
from jsplan.planning.replication.checks import order_replication_checks as put_looks_in_order
from jsplan.planning.replication.detached_sources import closing_record
from jsplan.planning.replication.impact import effective_starts
from jsplan.planning.replication.reattach import adapt_origin_drafts, draft_detach, order_detaching
from jsplan.planning.source_cycles import order_sources
from jsplan.planning.split_updates import (
    RETENTION,
    is_reorganised,
    split_reorganisation,
    split_update,
    streams_with_delayed_limits,
    with_inherited_limits,
)
from jsplan.state.document import Entry


def build_steps(inputs: PlanInputs, verdicts: dict[Address, ResourceDecision]) -> list[Step]:
    """All steps of the plan in an order that respects every dependency, numbered from `s1` on."""
    drafts: Drafts = {}
    waiting = streams_with_delayed_limits(inputs, verdicts)
    for verdict in verdicts.values():
        found = _draft_decision(inputs, verdict, verdicts, delays_limits=verdict.address in waiting)
        for draft in adapt_origin_drafts(
            verdict, found, str(inputs.moved_from.get(verdict.address, verdict.address))
        ):
            drafts[draft.key] = draft
    order_detaching(verdicts, inputs, drafts)
    order_sources(inputs, verdicts, drafts)
    tag_drafts(inputs, drafts)
    looks = list(draft_replication_checks(inputs, verdicts))
    put_looks_in_order(drafts, looks)
    for draft in [
        *_draft_closing_steps(inputs, drafts),
        *_draft_consumer_cleanup(inputs, drafts),
        *draft_staging_cleanup(inputs, verdicts),
    ]:
        drafts[draft.key] = draft
    add_placeholders(inputs, find_interest_changes(inputs, verdicts), drafts)
    return order_steps(inputs, verdicts, drafts)


# --- the calls of one resource -------------------------------------------------------------------------------


def _draft_decision(
    inputs: PlanInputs,
    verdict: ResourceDecision,
    verdicts: Mapping[Address, ResourceDecision],
    *,
    delays_limits: bool,
) -> Iterable[Draft]:
    if verdict.address.kind != "consumer" and verdict.preserves:
        yield from draft_replacement(
            inputs,
            verdict,
            _draft_create(inputs, verdict, "absent"),
            _restored_consumers(inputs, verdict, verdicts),
        )
    elif verdict.reason == REPLACEMENT_ROLLED_BACK:
        yield from draft_rollback(
            inputs,
            verdict,
            _draft_update(inputs, verdict),
            _restored_consumers(inputs, verdict, verdicts),
        )
    elif verdict.restored_with is None and verdict.reason != PLACEHOLDER_ORPHANED:
        yield from _draft_actions(inputs, verdict, delays_limits=delays_limits)


def _draft_actions(
    inputs: PlanInputs, verdict: ResourceDecision, *, delays_limits: bool
) -> Iterable[Draft]:
    match verdict.actions:
        case ["create"] if (
            verdict.reason == REPLACEMENT_INTERRUPTED and verdict.address.kind == "consumer"
        ):
            yield _draft_consumer_replace(inputs, verdict)
        case ["create", "delete"] if verdict.address.kind == "consumer":
            yield _draft_consumer_replace(inputs, verdict)
        case ["create"]:
            yield _draft_create(inputs, verdict, "absent")
        case ["update"]:
            yield from _draft_detach(inputs, verdict)
            yield from _draft_updates(inputs, verdict, delays_limits=delays_limits)
        case ["delete"]:
            yield _draft_delete(inputs, verdict)
        case ["delete", "create"]:
            yield _draft_delete(inputs, verdict)
            yield _draft_create(inputs, verdict, "absent")
        case ["forget"]:
            renamed = _previous_address(inputs, verdict.address)
            yield Draft(
                (verdict.address, "forget"),
                "state.forget",
                f"forget {verdict.address}",
                None,
                "",
                None,
                renamed,
            )
        case _ if verdict.adopts and not inputs.request.refresh_only:
            yield _draft_state_step(inputs, verdict, "state.import", "adopt")
        case _ if _is_state_outdated(inputs, verdict):
            yield _draft_state_step(inputs, verdict, "state.update", "record")


def _draft_detach(inputs: PlanInputs, verdict: ResourceDecision) -> Iterable[Draft]:
    """The call before an update that takes sources out, where any are."""
    if verdict.sources_to_detach:
        recorded = str(inputs.moved_from.get(verdict.address, verdict.address))
        yield draft_detach(
            verdict,
            _object_label(verdict),
            recorded,
            inputs.detached_sources.get(verdict.address, set()),
        )


def _draft_closing_steps(inputs: PlanInputs, drafts: Drafts) -> Iterable[Draft]:
    """Steps of a dead apply that nothing in this plan takes up: no longer pending, and what they deleted is no longer in state."""
    taken_up = {address for address, _ in drafts}
    for address in sorted(
        (inputs.unfinished_steps.keys() & inputs.selected) | inputs.recovered_deletions
    ):
        if (
            address in taken_up
            or not inputs.live.is_reachable(address.domain)
            or address in inputs.live.unreadable
        ):
            continue
        if inputs.unfinished_steps.get(address, {}).get("op") == VERIFY_OP and is_state_only(
            inputs
        ):
            continue
        live = inputs.live.get(address)
        fingerprint = live.fingerprint if live else "absent"
        yield Draft(
            (address, "settle"),
            "state.update",
            f"record {address} in state",
            None,
            fingerprint,
            params=partial_update_params(inputs, address),
        )


def _api_subject(verdict: ResourceDecision, verb: str) -> str:
    address = verdict.address
    if address.kind == "consumer":
        return f"CONSUMER.{verb}.{address.stream}.{address.consumer}"
    return f"STREAM.{verb}.{address.stream}"


def _object_label(verdict: ResourceDecision) -> str:
    address = verdict.address
    name = f"{address.consumer} of {address.stream}" if address.kind == "consumer" else address.name
    return f"{address.kind} {name} in {address.domain}"


def _request_payload(
    verdict: ResourceDecision, config: dict[str, Any], action: str
) -> dict[str, Any]:
    """CONSUMER.CREATE is an upsert unless `action` says otherwise."""
    if verdict.address.kind == "consumer":
        return {"stream_name": verdict.address.stream, "config": config, "action": action}
    return config


def _draft_create(inputs: PlanInputs, verdict: ResourceDecision, precondition: str) -> Draft:
    body, address = inputs.creation_body(verdict.address), verdict.address
    op: Op = "consumer.create" if address.kind == "consumer" else "stream.create"
    expect = {
        name: (verdict.after or {}).get(name)
        for name in _verifiable_fields(body, inputs.body(address))
    }
    payload = _request_payload(
        verdict, build_create(table_of(address), body, inputs.level(address)), "create"
    )
    return Draft(
        (address, "create"),
        op,
        f"create {_object_label(verdict)}",
        {"api": _api_subject(verdict, "CREATE"), "payload": payload},
        precondition,
        expect,
        _state_record(inputs, verdict, "created"),
        taken_subjects=_exclusive_subjects(inputs, address, verdict.after or {}),
    )


def _draft_consumer_replace(inputs: PlanInputs, verdict: ResourceDecision) -> Draft:
    """A consumer made anew where the old one stood: one step, since nothing else may come between its requests."""
    address, live, draft = verdict.address, verdict.live, _draft_create(inputs, verdict, "absent")
    before, after = (
        _exclusive_subjects(inputs, address, live.compact if live else {}),
        _exclusive_subjects(inputs, address, verdict.after or {}),
    )
    return replace(
        draft,
        key=(address, "update"),
        op="consumer.replace",
        title=f"replace {_object_label(verdict)} at its position",
        precondition=live.fingerprint if live else "absent",
        params=params(inputs, verdict),
        freed_subjects=[s for s in before if s not in after],
        taken_subjects=[s for s in after if s not in before],
    )


def _draft_consumer_cleanup(inputs: PlanInputs, drafts: Drafts) -> Iterable[Draft]:
    """Replacements of consumers that an apply began and that this plan does not take up: what stood in for them goes."""
    if inputs.request.refresh_only or inputs.request.imports:
        return
    for address in sorted(
        a
        for a in inputs.replacement_records
        if a.kind == "consumer" and not is_placeholder(a) and a in inputs.selected
    ):
        if (address, "update") in drafts and drafts[address, "update"].op == "consumer.replace":
            continue
        if inputs.live.is_reachable(address.domain):
            recorded = {"state_address": inputs.replacement_records[address]["address"]}
            title = f"clean up after the replacement of consumer {address.consumer} of {address.stream} in {address.domain}"
            yield Draft(
                (address, "tidy"),
                "consumer.cleanup",
                title,
                None,
                "",
                depends_on={key for key in drafts if key[0] == address},
                params=recorded,
            )


def _restored_consumers(
    inputs: PlanInputs, stream: ResourceDecision, verdicts: Mapping[Address, ResourceDecision]
) -> dict[str, Any]:
    """How the consumers that the files name come back with their stream: `{address, config, record}`, None where they do not."""
    found: dict[str, Any] = {}
    for address, verdict in verdicts.items():
        if address.parent != stream.address:
            continue
        if verdict.deleted_with is not None:
            found[address.consumer] = None
        elif verdict.restored_with is not None:
            left_out = verdict.entry if address not in inputs.selected else None
            record = (
                _recorded_entry(left_out)
                if left_out
                else _state_record(
                    inputs, verdict, "imported" if verdict.adopts else _provenance(verdict)
                )
            )
            found[address.consumer] = {
                "address": str(address),
                "config": _final_consumer_config(inputs, verdict),
                "record": record,
            }
    return found


def _recorded_entry(entry: Entry) -> dict[str, Any]:
    """What state has of a consumer that the plan leaves out, and that is made anew all the same: only its `created` changes."""
    record = {
        "declared": entry.declared,
        "origin": entry.origin,
        "depends_on": entry.depends_on,
        "prevent_destroy": entry.prevent_destroy,
    }
    return record | ({"starts": entry.starts} if entry.starts else {})


def _final_consumer_config(inputs: PlanInputs, verdict: ResourceDecision) -> dict[str, Any]:
    assert verdict.live is not None
    body, table, live = inputs.body(verdict.address), table_of(verdict.address), verdict.live
    if verdict.preserves:
        return with_owner_tag(
            inputs,
            with_inherited_limits(
                build_create(table, body, inputs.level(verdict.address)), verdict.after or {}
            ),
        )
    return with_owner_tag(
        inputs, build_update(table, live.raw, body, live.compact, verdict.after or live.compact)
    )


def _verifiable_fields(body: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """What a create must leave behind. A mirror beside its origin takes over whether it answers reads (server_semantics 1.2)."""
    local = bool(body.get("mirror")) and not body["mirror"].get("external")
    return {
        name: value
        for name, value in body.items()
        if name != "mirror_direct" or name in named or not local
    }


def _draft_updates(
    inputs: PlanInputs, verdict: ResourceDecision, *, delays_limits: bool
) -> Iterable[Draft]:
    """The update, in the parts that it takes, and the call that alone moves a consumer's pause."""
    assert verdict.live is not None
    assert verdict.after is not None
    pauses, until = changes_pause(verdict.live.compact, verdict.after), verdict.after.get(PAUSE)
    part = split_reorganisation(verdict, inputs.body(verdict.address))
    if part is not None:
        title, payload, expect = part
        yield Draft(
            (verdict.address, "first"),
            "stream.update",
            f"update {_object_label(verdict)}: {title}",
            {"api": _api_subject(verdict, "UPDATE"), "payload": payload},
            verdict.live.fingerprint,
            expect,
            stable_stream=verdict.address,
            params=partial_update_params(inputs, verdict.address),
        )
    if not pauses or len(verdict.fields) > 1:
        as_paused = {PAUSE: verdict.live.compact[PAUSE]} if PAUSE in verdict.live.compact else {}
        rest = {name: value for name, value in verdict.after.items() if name != PAUSE}
        yield from _draft_split_update(
            inputs, replace(verdict, after=rest | as_paused), delays_limits=delays_limits
        )
    if pauses:
        title = (
            f"pause {_object_label(verdict)} until {until}"
            if until
            else f"resume {_object_label(verdict)}"
        )
        yield Draft(
            (verdict.address, "pause"),
            "consumer.pause",
            title,
            {"api": _api_subject(verdict, "PAUSE"), "payload": {PAUSE: until} if until else None},
            verdict.live.fingerprint,
            {PAUSE: until},
            _state_record(inputs, verdict, "imported" if verdict.adopts else _provenance(verdict)),
        )


def _draft_split_update(
    inputs: PlanInputs, verdict: ResourceDecision, *, delays_limits: bool
) -> Iterable[Draft]:
    """The update; for limits of a stream that wait for its consumers, a second one."""
    now, last, waiting = split_update(verdict, delays_limits=delays_limits)
    if now is not None:
        draft = _draft_update(inputs, now)
        yield (
            draft
            if last is None
            else replace(draft, record=None, params=partial_update_params(inputs, verdict.address))
        )
    if last is not None:
        final = _draft_update(inputs, last)
        what = (
            "retention interest, now that its consumers are in place"
            if RETENTION in waiting
            else "tighten its limits for consumers"
        )
        final = replace(final, key=(verdict.address, "last"), title=f"{final.title}: {what}")
        yield (
            final
            if now is None
            else replace(final, expect=waiting, freed_subjects=[], taken_subjects=[])
        )


def _draft_update(inputs: PlanInputs, verdict: ResourceDecision) -> Draft:
    assert verdict.live is not None
    assert verdict.after is not None
    address, body, live = verdict.address, inputs.body(verdict.address), verdict.live
    op: Op = "consumer.update" if address.kind == "consumer" else "stream.update"
    payload = build_update(table_of(address), live.raw, body, live.compact, verdict.after)
    changed = {
        n
        for n in live.compact.keys() | verdict.after.keys()
        if live.compact.get(n) != verdict.after.get(n)
    }
    declared = inputs.declared(address)
    kept = declared.lifecycle.ignore_changes if declared else ()
    expect = {
        name: verdict.after.get(name) for name in sorted(changed | body.keys()) if name not in kept
    }
    before, after = (
        _exclusive_subjects(inputs, address, live.compact),
        _exclusive_subjects(inputs, address, verdict.after),
    )
    return Draft(
        (address, "update"),
        op,
        f"update {_object_label(verdict)}",
        {
            "api": _api_subject(verdict, "CREATE" if op == "consumer.update" else "UPDATE"),
            "payload": _request_payload(verdict, payload, "update"),
        },
        live.fingerprint,
        expect,
        _state_record(inputs, verdict, "imported" if verdict.adopts else _provenance(verdict)),
        freed_subjects=[s for s in before if s not in after],
        taken_subjects=[s for s in after if s not in before],
        stable_stream=address
        if op == "stream.update" and is_reorganised(live.compact, verdict.after)
        else None,
    )


def _provenance(verdict: ResourceDecision) -> str:
    return verdict.entry.origin if verdict.entry else "created"


def _draft_delete(inputs: PlanInputs, verdict: ResourceDecision) -> Draft:
    assert verdict.live is not None
    address, live = verdict.address, verdict.live
    subjects, renamed = (
        _exclusive_subjects(inputs, address, live.compact),
        _previous_address(inputs, address),
    )
    if verdict.deleted_with is not None:
        title = f"forget {_object_label(verdict)}, which goes with its stream"
        return Draft(
            (address, "delete"), "state.forget", title, None, live.fingerprint, None, renamed
        )
    op: Op = "consumer.delete" if address.kind == "consumer" else "stream.delete"
    request = {"api": _api_subject(verdict, "DELETE"), "payload": None}
    return Draft(
        (address, "delete"),
        op,
        f"delete {_object_label(verdict)}",
        request,
        live.fingerprint,
        None,
        renamed,
        freed_subjects=subjects,
    )


def _exclusive_subjects(inputs: PlanInputs, address: Address, config: dict[str, Any]) -> list[str]:
    """What nobody else may have at the same time: a stream's subjects, the filters of a consumer of a work queue."""
    if address.parent is None:
        subjects: list[str] = config.get("subjects", [])
        return subjects
    stream = inputs.live.get(address.parent)
    if stream is None or stream.compact.get("retention") != "workqueue":
        return []
    return filters_of(config)


def _previous_address(inputs: PlanInputs, address: Address) -> dict[str, Any] | None:
    """What state still calls it, when a `moved` block renamed it."""
    old = inputs.moved_from.get(address)
    return {"previous_address": str(old)} if old else None


def _draft_state_step(inputs: PlanInputs, verdict: ResourceDecision, op: Op, verb: str) -> Draft:
    """A step that writes nothing to a server, only what state remembers."""
    assert verdict.live is not None
    record = _state_record(
        inputs, verdict, "imported" if op == "state.import" else _provenance(verdict)
    )
    return Draft(
        (verdict.address, "state"),
        op,
        f"{verb} {_object_label(verdict)}",
        None,
        verdict.live.fingerprint,
        None,
        record,
    )


def _state_record(inputs: PlanInputs, verdict: ResourceDecision, provenance: str) -> dict[str, Any]:
    """What state will remember; the executor adds the configuration and `created` as read back."""
    address, declared, entry = verdict.address, inputs.declared(verdict.address), verdict.entry
    guard = declared.lifecycle.prevent_destroy if declared else None
    if inputs.request.refresh_only and entry is not None:
        fields, after = _declared_with_drift(verdict, entry), entry.depends_on
    else:
        fields = _recorded_fields(inputs, verdict)
        after = sorted(str(a) for a in inputs.topology.dependencies.get(address, ()))
    record: dict[str, Any] = {
        "declared": fields,
        "origin": provenance,
        "depends_on": after,
        "prevent_destroy": guard if guard is not None else bool(entry and entry.prevent_destroy),
    }
    if (
        entry is not None
        and entry.starts
        and _has_replacement_starts(verdict, entry, record["declared"])
    ):
        record["starts"] = entry.starts
    elif entry is not None and (starts := effective_starts(verdict, entry, record["declared"])):
        record["starts"] = starts
    return record | (_previous_address(inputs, address) or {}) | closing_record(inputs, address)


def _has_replacement_starts(verdict: ResourceDecision, entry: Entry, named: dict[str, Any]) -> bool:
    """Whether what a replacement put in place of the files is still there."""
    return (
        verdict.live is not None
        and not verdict.replaces
        and bool(replacement_fields(verdict.address, entry, named))
    )


def _declared_with_drift(verdict: ResourceDecision, entry: Entry) -> dict[str, Any]:
    """What the files named, with what drifted since as it is live: so the next plan sees that the files differ."""
    table, live = table_of(verdict.address), verdict.live.compact if verdict.live else {}
    before = table.compact(entry.config)
    return {
        name: value if before.get(name) == live.get(name) else live.get(name)
        for name, value in entry.declared.items()
    }


def _recorded_fields(inputs: PlanInputs, verdict: ResourceDecision) -> dict[str, Any]:
    """What the files name. Something imported although it differs counts as named whole, so that the next plan sees it."""
    if verdict.reason == "import_by_request" and verdict.live is not None:
        return verdict.live.compact
    if inputs.declared(verdict.address) is None:
        return {}
    return inputs.declared_fields(verdict.address)


def _is_state_outdated(inputs: PlanInputs, verdict: ResourceDecision) -> bool:
    """Whether state should remember something else although the server is as wanted."""
    entry, live = verdict.entry, verdict.live
    if entry is None or live is None or verdict.reason == "not_managed":
        return False
    if verdict.address in inputs.recovered or verdict.address in inputs.detached_sources:
        return verdict.address in inputs.recovered
    if closing_record(inputs, verdict.address):
        return not inputs.request.refresh_only
    if inputs.request.refresh_only:
        return live.config != entry.config
    if verdict.reason == UNTOUCHED and not _is_lifecycle_outdated(inputs, verdict, entry):
        return False
    record = _state_record(inputs, verdict, entry.origin)
    remembered = {
        "declared": entry.declared,
        "origin": entry.origin,
        "depends_on": _recorded_dependencies(inputs, verdict, entry),
        "prevent_destroy": entry.prevent_destroy,
    } | ({"starts": entry.starts} if entry.starts else {})
    return record != remembered or table_of(verdict.address).compact(entry.config) != live.compact


def _is_lifecycle_outdated(inputs: PlanInputs, verdict: ResourceDecision, entry: Entry) -> bool:
    """What state holds besides configuration: the guard, what it depends on, its name."""
    declared, address = inputs.declared(verdict.address), verdict.address
    guard = declared.lifecycle.prevent_destroy if declared else None
    after = inputs.topology.dependencies.get(address)
    return (
        (guard is not None and guard != entry.prevent_destroy)
        or (sorted(map(str, after)) if after else [])
        != _recorded_dependencies(inputs, verdict, entry)
        or address in inputs.moved_from
    )


def _recorded_dependencies(
    inputs: PlanInputs, verdict: ResourceDecision, entry: Entry
) -> list[str]:
    """What it depends on as state has it, which may be by names that `moved` blocks have changed since."""
    stored = inputs.state.resources.get(
        inputs.moved_from.get(verdict.address, verdict.address), entry
    )
    return stored.depends_on
