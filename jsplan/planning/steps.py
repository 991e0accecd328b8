"""Turn decisions into the calls of a plan. Apply adds nothing to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.checks_consumers import filters_of
from jsplan.documents.plan import Step
from jsplan.documents.step_kinds import RESTORED, VERIFY_OP, Op
from jsplan.planning.contents.steps import draft_closing, draft_contents
from jsplan.planning.decide import (
    REPLACEMENT_INTERRUPTED,
    REPLACEMENT_ROLLED_BACK,
    body_of_new,
    inherited_settings,
    table_of,
)
from jsplan.planning.diff import changed_names
from jsplan.planning.drafts import Draft, Drafts, Key
from jsplan.planning.interest import (
    PLACEHOLDER_ORPHANED,
    add_placeholders,
    find_interest_changes,
    is_placeholder,
)
from jsplan.planning.merge import build_create, build_update
from jsplan.planning.model import (
    Decisions,
    PlanInputs,
    ResourceDecision,
    is_state_only,
    split_contents,
)
from jsplan.planning.order import order_sources, order_steps, partial_update_params
from jsplan.planning.ownership import tag_drafts, with_owner_tag
from jsplan.planning.pauses import PAUSE, changes_pause
from jsplan.planning.replication.checks import draft_replication_checks, order_replication_checks
from jsplan.planning.replication.reattach import adapt_origin_drafts, draft_detach, order_detaching
from jsplan.planning.replication.source_starts import with_source_starts
from jsplan.planning.split_updates import (
    INHERITED_LIMITS,
    RETENTION,
    is_reorganised,
    split_reorganisation,
    split_update,
    streams_with_delayed_limits,
    with_inherited_limits,
)
from jsplan.planning.state_records import (
    build_state_record,
    is_state_outdated,
    previous_address,
    record_entry,
)
from jsplan.planning.transfer.consumers import params, request_with_pause, with_pause
from jsplan.planning.transfer.decisions import RELOCATION_WAITS
from jsplan.planning.transfer.entries import limit_drafts
from jsplan.planning.transfer.steps import (
    draft_release,
    draft_staging_cleanup,
    draft_transfer,
    draft_undo,
    order_relocations,
)


def build_steps(inputs: PlanInputs, decisions: Decisions) -> list[Step]:
    """Return all steps in an order that respects every dependency, numbered from `s1`."""
    drafts: Drafts = {}
    decisions, of_contents = split_contents(decisions)
    contents = {each.key: each for each in draft_contents(inputs, of_contents, decisions)}
    waiting = streams_with_delayed_limits(inputs, decisions)
    for decision in decisions.values():
        if _is_left_alone(inputs, decision):
            continue
        delays = decision.address in waiting
        found = _draft_decision(inputs, decision, decisions, delays_limits=delays)
        for draft in adapt_origin_drafts(decision, found, inputs.state_name(decision.address)):
            drafts[draft.key] = with_source_starts(draft, decision.source_starts)
    order_detaching(decisions, inputs, drafts)
    order_relocations(inputs, decisions, drafts)
    order_sources(inputs, drafts)
    tag_drafts(inputs, drafts)
    checks = list(draft_replication_checks(inputs, decisions))
    order_replication_checks(drafts, checks)
    for draft in [
        *_draft_closing_steps(inputs, {address for address, _ in (*drafts, *contents)}),
        *_draft_consumer_cleanup(inputs, drafts),
        *draft_staging_cleanup(inputs, decisions),
    ]:
        (contents if draft.key[0].is_content else drafts)[draft.key] = draft
    add_placeholders(inputs, find_interest_changes(inputs, decisions), drafts)
    drafts = limit_drafts(inputs, drafts)
    return order_steps(inputs, decisions, drafts, contents)


def _is_left_alone(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    """Check cheaply that the resource needs no call: most of a large plan."""
    return (
        decision.is_untouched
        and decision.relocation is None
        and not is_state_outdated(inputs, decision)
    )


# --- the calls of one resource ----


def _draft_decision(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions, *, delays_limits: bool
) -> Iterable[Draft]:
    if decision.relocation is not None and decision.reason == RELOCATION_WAITS:
        yield draft_release(decision.relocation)
    elif decision.relocation is not None:
        yield from draft_transfer(inputs, decision, _draft_relocated(inputs, decision), {})
        if decision.actions == ["delete", "create"]:
            yield _draft_create(inputs, decision)
    elif decision.replacement is not None:
        consumers = _restored_consumers(inputs, decision, decisions)
        yield from draft_transfer(inputs, decision, _draft_create(inputs, decision), consumers)
    elif decision.reason == REPLACEMENT_ROLLED_BACK:
        begun = inputs.interrupted.streams[decision.address]
        yield draft_undo(inputs, begun, _draft_update(inputs, decision))
    elif decision.restored_with is None and decision.reason != PLACEHOLDER_ORPHANED:
        yield from _draft_actions(inputs, decision, delays_limits=delays_limits)
    elif decision.address in inputs.interrupted.recovered and (
        decision.address.parent in inputs.interrupted.streams
    ):  # it was created by its own step before the stream was whole
        yield _draft_state_step(inputs, decision, "state.update", "record")


def _draft_actions(
    inputs: PlanInputs, decision: ResourceDecision, *, delays_limits: bool
) -> Iterable[Draft]:
    resumes = decision.actions == ["create"] and decision.reason == REPLACEMENT_INTERRUPTED
    match decision.actions:
        case _ if decision.address.kind == "consumer" and (decision.preserves or resumes):
            yield _draft_consumer_replace(inputs, decision)
        case ["create"] if decision.reason == RESTORED:
            from jsplan.planning.restore.obstacles import draft_restored  # noqa: PLC0415 - rare

            yield draft_restored(inputs, decision)
        case ["create"]:
            yield _draft_create(inputs, decision)
        case ["update"]:
            yield from _draft_in_place(inputs, decision, delays_limits=delays_limits)
        case ["delete"]:
            yield _draft_delete(inputs, decision)
        case ["delete", "create"]:
            yield _draft_delete(inputs, decision)
            yield _draft_create(inputs, decision)
        case ["forget"]:
            address, renamed = decision.address, previous_address(inputs, decision.address)
            title = f"forget {address}"
            yield Draft((address, "forget"), "state.forget", title, None, "", None, renamed)
        case _ if decision.adopts and not inputs.options.refresh_only:
            yield _draft_state_step(inputs, decision, "state.import", "import")
        case _ if is_state_outdated(inputs, decision):
            yield _draft_state_step(inputs, decision, "state.update", "record")


def _draft_in_place(
    inputs: PlanInputs, decision: ResourceDecision, *, delays_limits: bool
) -> Iterable[Draft]:
    """Draft the calls that change an object in place. State keeps where its sources continue."""
    if decision.adopts and (decision.sources_to_detach or decision.sources_to_attach):
        yield _draft_state_step(inputs, decision, "state.import", "import")
    if decision.sources_to_detach:
        yield draft_detach(inputs, decision, _object_label(decision))
    if decision.fields or decision.reset is None:
        yield from _draft_updates(inputs, decision, delays_limits=delays_limits)
    yield from _draft_reset(inputs, decision)


def _draft_relocated(inputs: PlanInputs, decision: ResourceDecision) -> Draft:
    """Draft the one call that the relocated object would need without its relocation."""
    if decision.actions == ["update"]:
        return _draft_update(inputs, decision)
    if decision.actions[0] == "delete":
        return _draft_delete(inputs, decision)
    return _draft_create(inputs, decision)


def _draft_closing_steps(inputs: PlanInputs, drafted: set[Address]) -> Iterable[Draft]:
    """Draft the steps of an interrupted apply that nothing in this plan resumes.

    They are no longer pending, and what they deleted is removed from state.
    """
    work = inputs.interrupted
    for address in sorted((work.steps.keys() & inputs.selected) | work.recovered_deletions):
        is_read = inputs.live.is_reachable(address.domain) and address not in inputs.live.unreadable
        if address in drafted or not is_read:
            continue
        if address.is_content:
            yield draft_closing(inputs, address)
            continue
        begun = work.steps.get(address, {})
        if begun.get("check", begun).get("op") == VERIFY_OP and is_state_only(inputs):
            continue
        live, title = inputs.live.get(address), f"record {address} in state"
        fingerprint = live.fingerprint if live else "absent"
        params = partial_update_params(inputs, address)
        yield Draft((address, "settle"), "state.update", title, None, fingerprint, params=params)


def _api_subject(decision: ResourceDecision, verb: str) -> str:
    address = decision.address
    if address.kind == "consumer":
        return f"CONSUMER.{verb}.{address.stream}.{address.consumer}"
    return f"STREAM.{verb}.{address.stream}"


def _object_label(decision: ResourceDecision) -> str:
    address = decision.address
    name = f"{address.consumer} of {address.stream}" if address.kind == "consumer" else address.name
    return f"{address.kind} {name} in {address.domain}"


def _request(
    decision: ResourceDecision, verb: str, config: dict[str, Any], action: str = ""
) -> dict[str, Any]:
    """Return the request to write an object. CONSUMER.CREATE is an upsert unless `action` says."""
    address, payload = decision.address, config
    if address.kind == "consumer":
        payload = {"stream_name": address.stream, "config": config, "action": action}
    return {"api": _api_subject(decision, verb), "payload": payload}


def _draft_create(inputs: PlanInputs, decision: ResourceDecision) -> Draft:
    body, address, after = body_of_new(inputs, decision), decision.address, decision.planned
    op: Op = "consumer.create" if address.kind == "consumer" else "stream.create"
    expect = {name: after.get(name) for name in _verifiable_fields(body, inputs.body(address))}
    config = build_create(table_of(address), body, inputs.level(address))
    if address.parent is not None and inherited_settings(inputs, address).keys() & INHERITED_LIMITS:
        config = with_inherited_limits(config, after)
    first = {"first_seq": decision.continues_at} if decision.continues_at else {}
    return Draft(
        (address, "create"),
        op,
        f"create {_object_label(decision)}",
        _request(decision, "CREATE", config | first, "create"),
        "absent",
        expect | first,
        build_state_record(inputs, decision, "created"),
        taken_subjects=_exclusive_subjects(inputs, address, after),
    )


def _draft_consumer_replace(inputs: PlanInputs, decision: ResourceDecision) -> Draft:
    """Draft the replacement of a consumer as one step: no other step may come in between."""
    address, live, draft = decision.address, decision.live, _draft_create(inputs, decision)
    freed, taken = _exchanged_subjects(inputs, decision)
    return replace(
        draft,
        request=request_with_pause(draft.request, decision),
        key=(address, "update"),
        op="consumer.replace",
        title=f"replace {_object_label(decision)} at {_position_label(decision)}",
        precondition=live.fingerprint if live else "absent",
        params=params(inputs, decision),
        freed_subjects=freed,
        taken_subjects=taken,
    )


def _draft_reset(inputs: PlanInputs, decision: ResourceDecision) -> Iterable[Draft]:
    """Draft the reset of a consumer in place, after its update. Its step records the word."""
    address, live, reset = decision.address, decision.live, decision.reset
    if live is None or reset is None or not reset.in_place:
        return
    record = build_state_record(inputs, decision) | {"position_once": reset.once}
    title = f"set {_object_label(decision)} to {_position_label(decision)}"
    params = {"api_level": inputs.level(address), "reset": reset.to_json()}
    params |= partial_update_params(inputs, address)
    draft = Draft((address, "reset"), "consumer.reset", title, None, live.fingerprint)
    yield replace(draft, record=record, params=params)


def _position_label(decision: ResourceDecision) -> str:
    reset = decision.reset
    return f"sequence {reset.seq:,} ({reset.once})" if reset and reset.seq else "its position"


def _draft_consumer_cleanup(inputs: PlanInputs, drafts: Drafts) -> Iterable[Draft]:
    """Draft the cleanup of interrupted consumer replacements that this plan does not resume."""
    if is_state_only(inputs):
        return
    begun = inputs.interrupted.replacements
    for address in sorted(begun.keys() & inputs.selected):
        update = drafts.get((address, "update"))
        resumed = update is not None and update.op == "consumer.replace"
        if resumed or address.kind != "consumer" or is_placeholder(address):
            continue
        if (address, "reset") not in drafts and inputs.live.is_reachable(address.domain):
            title = (
                f"clean up after the replacement of consumer {address.consumer} "
                f"of {address.stream} in {address.domain}"
            )
            draft = Draft((address, "tidy"), "consumer.cleanup", title, None, "")
            draft.params = {"state_address": begun[address]["address"]}
            draft.depends_on = {key for key in drafts if key[0] == address}
            yield draft


def _restored_consumers(
    inputs: PlanInputs, stream: ResourceDecision, decisions: Decisions
) -> dict[str, Any]:
    """Return how the declared consumers come back with their stream.

    Each is `{address, config, record}`, or None if it does not come back.
    """
    found: dict[str, Any] = {}
    for address in inputs.planned_consumers(decisions, stream.address):
        decision = decisions[address]
        if decision.deleted_with is not None:
            found[address.consumer] = None
            continue
        if decision.restored_with is not None:
            unselected = decision.entry if address not in inputs.selected else None
            record = record_entry(unselected) if unselected else None
            record = record or build_state_record(inputs, decision)
            config = _final_consumer_config(inputs, decision)
        elif decision.live is not None and decision.entry is not None:
            # Its own steps come later, and state has to know it until then.
            config, record = decision.live.raw, record_entry(decision.entry)
        else:
            continue
        found[address.consumer] = {"address": str(address), "config": config, "record": record}
    return found


def _final_consumer_config(inputs: PlanInputs, decision: ResourceDecision) -> dict[str, Any]:
    assert decision.live is not None
    if inputs.declared(decision.address) is None:
        return decision.live.raw  # it left the files, and this plan does not delete it
    body, table, live = inputs.body(decision.address), table_of(decision.address), decision.live
    if decision.preserves:
        created = build_create(table, body, inputs.level(decision.address))
        created = with_inherited_limits(created, decision.planned)
        return with_owner_tag(inputs, with_pause(created, decision))
    updated = build_update(table, live.raw, body, live.compact, decision.after or live.compact)
    return with_owner_tag(inputs, updated)


def _verifiable_fields(body: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a create must result in.

    A mirror in the domain of its origin inherits `mirror_direct` (server_semantics 1.2).
    """
    local = bool(body.get("mirror")) and not body["mirror"].get("external")
    return {
        name: value
        for name, value in body.items()
        if name != "mirror_direct" or name in named or not local
    }


def _draft_updates(
    inputs: PlanInputs, decision: ResourceDecision, *, delays_limits: bool
) -> Iterable[Draft]:
    """Draft the parts of an update, and the call that changes a consumer's pause."""
    assert decision.live is not None
    assert decision.after is not None
    pauses, until = changes_pause(decision.live.compact, decision.after), decision.after.get(PAUSE)
    part = split_reorganisation(decision, inputs.body(decision.address))
    if part is not None:
        title, config, expect = part
        yield Draft(
            (decision.address, "first"),
            "stream.update",
            f"update {_object_label(decision)}: {title}",
            _request(decision, "UPDATE", config),
            decision.live.fingerprint,
            expect,
            stable_stream=decision.address,
            params=partial_update_params(inputs, decision.address),
        )
    if not pauses or len(decision.fields) > 1:
        as_paused = {PAUSE: decision.live.compact[PAUSE]} if PAUSE in decision.live.compact else {}
        rest = {name: value for name, value in decision.after.items() if name != PAUSE}
        yield from _draft_split_update(
            inputs, replace(decision, after=rest | as_paused), delays_limits=delays_limits
        )
    if pauses:
        label = _object_label(decision)
        yield Draft(
            (decision.address, "pause"),
            "consumer.pause",
            f"pause {label} until {until}" if until else f"resume {label}",
            {"api": _api_subject(decision, "PAUSE"), "payload": {PAUSE: until} if until else None},
            decision.live.fingerprint,
            {PAUSE: until},
            build_state_record(inputs, decision),
        )


def _draft_split_update(
    inputs: PlanInputs, decision: ResourceDecision, *, delays_limits: bool
) -> Iterable[Draft]:
    """Draft the update, and a second one for limits that wait for the consumers of the stream."""
    now, last, waiting = split_update(decision, delays_limits=delays_limits)
    if now is not None:
        draft = _draft_update(inputs, now)
        if last is not None:
            params = partial_update_params(inputs, decision.address)
            draft = replace(draft, record=None, params=params)
        yield draft
    if last is not None:
        final = _draft_update(inputs, last)
        change = (
            "retention interest, now that its consumers are in place"
            if RETENTION in waiting
            else "tighten its limits for consumers"
        )
        final = replace(final, key=(decision.address, "last"), title=f"{final.title}: {change}")
        if now is not None:
            final = replace(final, expect=waiting, freed_subjects=[], taken_subjects=[])
        yield final


def _draft_update(inputs: PlanInputs, decision: ResourceDecision) -> Draft:
    assert decision.live is not None
    assert decision.after is not None
    address, body, live = decision.address, inputs.body(decision.address), decision.live
    op: Op = "consumer.update" if address.kind == "consumer" else "stream.update"
    config = build_update(table_of(address), live.raw, body, live.compact, decision.after)
    declared = inputs.declared(address)
    named = {*changed_names(live.compact, decision.after), *body}
    named -= {*declared.lifecycle.ignore_changes} if declared else set()
    freed, taken = _exchanged_subjects(inputs, decision)
    busy = op == "stream.update" and is_reorganised(live.compact, decision.after)
    return Draft(
        (address, "update"),
        op,
        f"update {_object_label(decision)}",
        _request(decision, "CREATE" if op == "consumer.update" else "UPDATE", config, "update"),
        live.fingerprint,
        {name: decision.after.get(name) for name in sorted(named)},
        build_state_record(inputs, decision),
        freed_subjects=freed,
        taken_subjects=taken,
        stable_stream=address if busy else None,
    )


def _draft_delete(inputs: PlanInputs, decision: ResourceDecision) -> Draft:
    assert decision.live is not None
    address, live = decision.address, decision.live
    key: Key = (address, "delete")
    renamed = previous_address(inputs, address)
    if decision.deleted_with is not None:
        title = f"forget {_object_label(decision)}, which goes with its stream"
        return Draft(key, "state.forget", title, None, live.fingerprint, None, renamed)
    op: Op = "consumer.delete" if address.kind == "consumer" else "stream.delete"
    freed = _exclusive_subjects(inputs, address, live.compact)
    request = {"api": _api_subject(decision, "DELETE"), "payload": None}
    title = f"delete {_object_label(decision)}"
    draft = Draft(key, op, title, request, live.fingerprint, None, renamed)
    return replace(draft, freed_subjects=freed)


def _exclusive_subjects(inputs: PlanInputs, address: Address, config: dict[str, Any]) -> list[str]:
    """Return what only one object may have: subjects, or filters of a work queue's consumer."""
    if address.parent is None:
        subjects: list[str] = config.get("subjects", [])
        return subjects
    stream = inputs.live.get(address.parent)
    is_queue = stream is not None and stream.compact.get("retention") == "workqueue"
    return list(filters_of(config)) if is_queue else []


def _exchanged_subjects(
    inputs: PlanInputs, decision: ResourceDecision
) -> tuple[list[str], list[str]]:
    """Return the exclusive subjects that a change frees, and those that it takes."""
    before, after = (
        _exclusive_subjects(inputs, decision.address, config)
        for config in (decision.before, decision.planned)
    )
    return [s for s in before if s not in after], [s for s in after if s not in before]


def _draft_state_step(inputs: PlanInputs, decision: ResourceDecision, op: Op, verb: str) -> Draft:
    """Draft a step that changes only the state."""
    assert decision.live is not None
    title, record = f"{verb} {_object_label(decision)}", build_state_record(inputs, decision)
    found = decision.live.fingerprint
    return Draft((decision.address, "state"), op, title, None, found, None, record)
