"""Decide each resource by comparing desired, live and last applied of one address."""

from __future__ import annotations

from msgspec.structs import replace

from jsplan.address import Address, is_parked, matches_any
from jsplan.diagnostics import Diagnostic
from jsplan.documents.step_kinds import RESET_BY_POSITION, RESET_IN_PLACE
from jsplan.facts.live import LiveObject, account_limits, get_retention
from jsplan.planning import pauses
from jsplan.planning.diff import differing_fields, field_changes, with_bucket_names
from jsplan.planning.merge import (
    expected_new,
    expected_update,
    is_within_limits,
    may_exceed_limits,
    without_ignored,
)
from jsplan.planning.model import UNTOUCHED, Decisions, Overrides, PlanInputs, ResourceDecision
from jsplan.planning.replication.impact import without_replacement_starts
from jsplan.planning.revision import Revision
from jsplan.planning.transfer.consumer_position import START_FIELDS, with_start_sequence
from jsplan.planning.transfer.consumers import (
    is_update_purging,
    preserve_position,
    replacement_fields,
)
from jsplan.planning.transfer.methods import (
    exceeds_max_consumers,
    plan_replacement,
    recreates_consumers,
    tightens_consumer_limits,
)
from jsplan.planning.transfer.positions import find_reset, is_reset_pending, start_of_new
from jsplan.resources import CONSUMER
from jsplan.resources.buckets import BACKING_TABLES
from jsplan.resources.contents import CONTENTS
from jsplan.resources.fields import Config, Table
from jsplan.state.document import Entry

#: The reason of a resource whose replacement was interrupted.
REPLACEMENT_INTERRUPTED = "replacement_interrupted"
#: The reason of a stream that is restored because the files no longer ask for its replacement.
REPLACEMENT_ROLLED_BACK = "replacement_rolled_back"


def table_of(address: Address) -> Table:
    """Return the field table of the server object of an address."""
    if address.is_content:
        return CONTENTS[address.kind].table
    return CONSUMER if address.kind == "consumer" else BACKING_TABLES[address.kind]


def planned_config(inputs: PlanInputs, decisions: Decisions, address: Address) -> Config | None:
    """Return the compact configuration of an object after the plan; None if it has none."""
    decision, live = decisions.get(address), inputs.live.get(address)
    if decision is not None and decision.actions[-1] != "forget":
        return None if decision.is_gone else decision.after
    return live.compact if live else None


def decide(inputs: PlanInputs, address: Address) -> ResourceDecision:
    """Compare desired, live and last applied of one address in a reachable domain."""
    decision = _decide(inputs, address)
    return (
        _decide_interrupted(inputs, decision) if address in inputs.interrupted.streams else decision
    )


def _decide(inputs: PlanInputs, address: Address) -> ResourceDecision:
    live, entry = inputs.live.get(address), inputs.entries.get(address)
    ours = entry is not None and live is not None and entry.created == live.created
    if inputs.options.refresh_only:
        return _decide_refresh(inputs, address, live, entry, ours=ours)
    if inputs.declared(address) is None:
        return _decide_undeclared(inputs, address, live, entry, ours=ours)
    if live is None:
        return _decide_missing(inputs, address, entry)
    return _decide_existing(inputs, address, live, entry, ours=ours)


def _decide_refresh(
    inputs: PlanInputs,
    address: Address,
    live: LiveObject | None,
    entry: Entry | None,
    *,
    ours: bool,
) -> ResourceDecision:
    interrupted = address in inputs.interrupted.replacements
    if not interrupted and entry is not None and not ours:
        return ResourceDecision(address, ["forget"], "forget_because_missing", None, entry)
    reason = REPLACEMENT_INTERRUPTED if interrupted else "refresh_only"
    after = live.compact if live else None
    return ResourceDecision(address, ["no-op"], reason, live, entry, after)


def _decide_undeclared(
    inputs: PlanInputs,
    address: Address,
    live: LiveObject | None,
    entry: Entry | None,
    *,
    ours: bool,
) -> ResourceDecision:
    if entry is None:
        return ResourceDecision(address, ["no-op"], "not_managed", live)
    if inputs.workspace.forgets(address):
        return ResourceDecision(address, ["forget"], "forget_because_removed_block", live, entry)
    if live is None:
        return ResourceDecision(address, ["forget"], "forget_because_missing", None, entry)
    if not ours:
        text = (
            f"{address} was recreated outside jsplan ({live.created}). "
            "The object that this workspace created no longer exists"
        )
        hint = "jsplan forgets it and does not delete it."
        found = [Diagnostic("warning", "JS411", text, hint, str(address))]
        reason = "forget_because_recreated_elsewhere"
        return ResourceDecision(address, ["forget"], reason, live, entry, diagnostics=found)
    reason = "delete_because_destroy" if inputs.options.destroy else "delete_because_not_in_files"
    return ResourceDecision(address, ["delete"], reason, live, entry)


def _decide_missing(inputs: PlanInputs, address: Address, entry: Entry | None) -> ResourceDecision:
    if inputs.options.imports:
        return _decide_missing_import(inputs, address)
    reason = "create_because_missing" if entry is not None else "create_because_new"
    if address in inputs.interrupted.replacements:
        reason = REPLACEMENT_INTERRUPTED
    decision = ResourceDecision(address, ["create"], reason, None, entry)
    if reason != REPLACEMENT_INTERRUPTED:
        decision = replace(decision, reset=find_reset(inputs, address, None, entry))
    after = _expected_new(inputs, address, body_of_new(inputs, decision))
    decision = replace(decision, after=after)
    if reason == REPLACEMENT_INTERRUPTED and address.kind == "consumer":
        return preserve_position(inputs, decision)
    return decision


def _expected_new(inputs: PlanInputs, address: Address, body: Config) -> Config:
    """Return the compact configuration that a create of this body gives."""
    inherited = inherited_settings(inputs, address)
    return expected_new(table_of(address), body, inputs.level(address), inherited)


def body_of_new(inputs: PlanInputs, decision: ResourceDecision) -> Config:
    """Return the body of an object to create. A new consumer starts at its `position`."""
    body = inputs.creation_body(decision.address)
    reset = decision.reset if decision.live is None else None
    start = start_of_new(inputs, decision.address, body, reset)
    return with_start_sequence(start, body) if start is not None else body


def _decide_missing_import(inputs: PlanInputs, address: Address) -> ResourceDecision:
    """Report an error if a literal address does not exist. A glob may match nothing."""
    text, detail = "does not exist on the server", "Create it with: jsplan apply"
    error = Diagnostic("error", "JS420", text, detail, str(address))
    found = [error] if str(address) in inputs.options.imports else []
    return ResourceDecision(address, ["no-op"], "absent", diagnostics=found)


def inherited_settings(inputs: PlanInputs, address: Address) -> Config:
    """Return settings from other objects: consumer limits, or a local mirror's `mirror_direct`."""
    if address.is_content:
        return {}
    if address.parent is None:
        return _inherited_mirror_direct(inputs, address)
    most = account_max_ack_pending(inputs, address)
    of_account = {"account_max_ack_pending": most} if most > 0 else {}
    return _consumer_limits(inputs, address.parent) | of_account


def account_max_ack_pending(inputs: PlanInputs, consumer: Address) -> int:
    """Return the account's `max_ack_pending` for the consumer's tier; 0 or less is no limit."""
    facts, parent = inputs.live.domains.get(consumer.domain), consumer.parent
    if facts is None or parent is None:
        return 0
    bodies, live = inputs.topology.bodies, inputs.live.get(parent)
    known = (bodies.get(consumer), bodies.get(parent), live.compact if live else None)
    replicas = next((n for one in known if one and (n := one.get("num_replicas"))), 1)
    return int(account_limits(facts.info, int(replicas)).get("max_ack_pending") or 0)


def _consumer_limits(inputs: PlanInputs, stream: Address) -> Config:
    """Return the `consumer_limits` of the stream after the plan."""
    live = inputs.live.get(stream)
    declared = stream in inputs.topology.bodies and not inputs.options.destroy
    if declared and "consumer_limits" in inputs.topology.bodies[stream]:
        return inputs.topology.bodies[stream]["consumer_limits"] or {}
    limits: Config = (live.compact.get("consumer_limits") or {}) if live else {}
    if limits and declared:
        limits = (decide(inputs, stream).after or {}).get("consumer_limits") or {}
    return limits


def _inherited_mirror_direct(inputs: PlanInputs, address: Address) -> Config:
    """Return the `allow_direct` of a local origin; empty if it is in another domain or missing."""
    mirror = inputs.topology.bodies.get(address, {}).get("mirror") or {}
    if not mirror or mirror.get("external"):
        return {}
    origin = Address.of_stream(address.domain, mirror["name"])
    live = inputs.live.get(origin)
    declared = origin in inputs.topology.bodies and not inputs.options.destroy
    if not declared and live is None:
        return {}
    body: Config = {"allow_direct": live.compact.get("allow_direct")} if live else {}
    body |= inputs.creation_body(origin) if live is None else {}
    body |= inputs.body(origin) if declared else {}
    return {"mirror_direct": bool(body.get("allow_direct"))}


def _decide_existing(
    inputs: PlanInputs, address: Address, live: LiveObject, entry: Entry | None, *, ours: bool
) -> ResourceDecision:
    """Decide a declared live resource: no-op, update, replacement or import."""
    set_by_replacement = (
        replacement_fields(address, entry, inputs.declared_fields(address)) if ours else frozenset()
    )
    if (
        ours
        and entry is not None
        and _is_untouched(inputs, live, entry, set_by_replacement)
        and not _is_replace_forced(inputs, address)
        and not is_reset_pending(inputs, address, entry)
    ):
        return ResourceDecision(address, ["no-op"], UNTOUCHED, live, entry, live.compact)
    table, body, level = table_of(address), inputs.body(address), inputs.level(address)
    last = (table.compact(entry.config), entry.declared) if ours and entry is not None else None
    declared = inputs.declared(address)
    ignore = declared.lifecycle.ignore_changes if declared else ()
    target = expected_update(
        table,
        body,
        live.compact,
        live.raw,
        last,
        level=level,
        inherited=inherited_settings(inputs, address),
        ignore=set_by_replacement.union(ignore),
    )
    if address.kind == "consumer" and pauses.PAUSE not in ignore:
        is_left = pauses.is_left_held(inputs, live)
        target = pauses.with_effective_pause(
            target, body, live.compact, last, inputs.now, is_left=is_left
        )
    after, ignored = without_ignored(table, live.compact, target, level)
    ignored = without_replacement_starts(
        ignored, entry if ours else None, inputs.declared_fields(address)
    )
    fields = field_changes(table, live.compact, after, level)
    decision = ResourceDecision(
        address, ["no-op"], "equal_now", live, entry, after, fields, ignored, adopts=not ours
    )
    return _choose_actions(inputs, decision)


def _is_replace_forced(inputs: PlanInputs, address: Address) -> bool:
    """Check whether the object is to be replaced. A content is not: it is written again."""
    return address in inputs.interrupted.unready or (
        not address.is_content and matches_any(inputs.options.replace, address)
    )


def _is_untouched(
    inputs: PlanInputs, live: LiveObject, entry: Entry, replacement_fields: frozenset[str]
) -> bool:
    """Check cheaply that live equals last applied, and that the files did not change.

    `replacement_fields` are fields that a replacement set to another value than the files.
    """
    named = inputs.declared_fields(live.address)
    if live.config != entry.config or named != entry.declared:
        return False
    if is_parked(live.raw.get("filter_subject")):
        return False  # a killed apply left it
    if differing_fields(
        table_of(live.address),
        live.compact,
        {name: value for name, value in named.items() if name not in replacement_fields}
        if replacement_fields
        else named,
    ):
        return False
    return (
        live.address.kind != "consumer"
        or not may_exceed_limits(live.compact)
        or is_within_limits(live.compact, inherited_settings(inputs, live.address))
    )


def _choose_actions(inputs: PlanInputs, decision: ResourceDecision) -> ResourceDecision:
    if decision.adopts and inputs.options.imports:
        return _decide_import(inputs, decision)
    forced = _is_replace_forced(inputs, decision.address)
    reset = find_reset(inputs, decision.address, decision.live, decision.entry)
    decision = replace(decision, reset=reset)
    if decision.address.kind == "consumer" and is_update_purging(inputs, decision):
        fields = [
            replace(c, effect="replace") if c.path.startswith("filter_subject") else c
            for c in decision.fields
        ]
        decision = replace(decision, fields=fields)
    replaces = forced or any(change.effect == "replace" for change in decision.fields)
    if reset is not None and replaces:
        reset = replace(reset, in_place=False)
        decision = replace(decision, reset=reset)
    if replaces or (reset is not None and not reset.in_place):
        return _replace_object(inputs, decision, forced=forced)
    if reset is not None:
        return replace(decision, actions=["update"], reason=RESET_IN_PLACE)
    if decision.fields:
        return replace(decision, actions=["update"], reason=_update_reason(decision))
    return replace(decision, reason="import_because_equal") if decision.adopts else decision


def _replace_object(
    inputs: PlanInputs, decision: ResourceDecision, *, forced: bool
) -> ResourceDecision:
    """Decide that an object is deleted and created again, with its content where it is kept."""
    address, resets = decision.address, decision.reset is not None
    reason = "replace_by_request" if forced else "replace_because_cannot_update"
    reason = RESET_BY_POSITION if resets else reason
    if address in inputs.interrupted.unready:
        reason = REPLACEMENT_INTERRUPTED
    keeps = resets or inputs.on_replace(address) == "preserve"
    after = _expected_new(inputs, address, inputs.creation_body(address))
    decision = replace(
        decision,
        actions=["create", "delete"] if keeps else ["delete", "create"],
        reason=reason,
        after=after,
    )
    if keeps and address.kind == "consumer":
        return preserve_position(inputs, _with_fields_of_reset(inputs, decision))
    return decision


def _with_fields_of_reset(inputs: PlanInputs, decision: ResourceDecision) -> ResourceDecision:
    """Show the undeclared fields that a consumer loses when it is recreated only for a reset."""
    if decision.reset is None or decision.live is None or decision.after is None:
        return decision
    known = {change.path for change in decision.fields} | {pauses.PAUSE, *START_FIELDS}
    level, table = inputs.level(decision.address), table_of(decision.address)
    changes = field_changes(table, decision.live.compact, decision.after, level)
    more = [change for change in changes if change.path not in known]
    return replace(decision, fields=[*decision.fields, *more])


def _decide_interrupted(inputs: PlanInputs, decision: ResourceDecision) -> ResourceDecision:
    """Resume or roll back the interrupted replacement of a stream."""
    address, interrupted = decision.address, inputs.interrupted.streams[decision.address]
    if inputs.options.refresh_only or interrupted.next_step in ("clear", "recompare"):
        return decision
    if interrupted.conflict or inputs.declared(address) is None:
        what = interrupted.conflict or (
            "the plan destroys all resources"
            if inputs.options.destroy
            else "the stream was removed from the files"
        )
        detail = (
            interrupted.detail
            if interrupted.conflict
            else "Put the stream into the files and finish the replacement: jsplan apply. "
            "Then delete it."
        )
        text = f"{interrupted.summary}. It cannot be finished: {what}"
        error = Diagnostic("error", "JS424", text, detail, str(address))
        decision = replace(decision, actions=["no-op"], fields=[], diagnostics=[error])
        return replace(decision, reason=REPLACEMENT_INTERRUPTED, adopts=False)
    warning = Diagnostic("warning", "JS424", interrupted.summary, interrupted.detail, str(address))
    decision = replace(decision, adopts=False, diagnostics=[warning])
    if interrupted.can_go_back and not decision.replaces:
        return replace(decision, actions=["update"], reason=REPLACEMENT_ROLLED_BACK)
    after = _expected_new(inputs, address, inputs.creation_body(address))
    decision = replace(decision, actions=["create", "delete"], after=after, ignored=[])
    return replace(decision, reason=REPLACEMENT_INTERRUPTED)


def _decide_import(inputs: PlanInputs, decision: ResourceDecision) -> ResourceDecision:
    """Decide an import: no request is sent, and the next plan shows the differences."""
    reason = "import_by_request" if decision.fields else "import_because_equal"
    decision = replace(decision, reason=reason)
    if decision.fields and not inputs.options.adopt:
        paths = ", ".join(
            change.path for change in with_bucket_names(decision.address, decision.fields)
        )
        detail = "To import it unchanged, and see the difference in the next plan: --adopt."
        text = f"differs from the files ({paths})"
        error = Diagnostic("error", "JS302", text, detail, str(decision.address))
        return replace(decision, diagnostics=[*decision.diagnostics, error])
    return decision


def _update_reason(decision: ResourceDecision) -> str:
    if decision.adopts:
        return "import_and_update"
    known = decision.entry.config if decision.entry is not None else None
    drifted = known is not None and table_of(decision.address).compact(known) != decision.before
    return "update_because_drifted" if drifted else "update_because_config_changed"


def decide_dependent_consumers(inputs: PlanInputs, decisions: Decisions) -> Overrides:
    """Return the decisions about consumers that are deleted with their stream, and about those."""
    revision = Revision(decisions)
    changing = {
        v.address.parent
        for v in decisions.values()
        if v.actions != ["no-op"] and v.address.parent is not None
    }
    for address, decision in decisions.items():
        if decision.preserves and decision.live is not None and address.is_stream:
            after = decision.after or {}
            # A restored work queue deletes what its consumers passed, whatever their filters were.
            changes = address in changing and (
                get_retention(after) in ("interest", "workqueue")
                or tightens_consumer_limits(decision.live.compact, after)
                or exceeds_max_consumers(decision.live, after)
            )
            transfer = plan_replacement(inputs, address, decision.live)
            recreates = changes or recreates_consumers(
                decision.live.compact, after, transfer.method
            )
            transfer = replace(transfer, places_consumers=recreates)
            revision.change(address, replacement=transfer)
    for address, decision in decisions.items():
        if address.parent is None or address.parent not in decisions or decision.live is None:
            continue
        parent = revision[address.parent]
        if not parent.deletes:
            continue
        if parent.preserves:
            revision.overrides[address] = _decide_restored_consumer(inputs, parent, decision)
            continue
        if decision.deletes and not decision.preserves:
            revision.change(address, deleted_with=parent.address)
        elif decision.after is not None and decision.actions != ["create"]:
            after = _expected_new(inputs, address, inputs.body(address))
            revision.change(
                address,
                actions=["delete", "create"],
                reason="replace_with_stream",
                after=after,
                deleted_with=parent.address,
                unknown=[],
            )
    return revision.overrides


def _decide_restored_consumer(
    inputs: PlanInputs, stream: ResourceDecision, decision: ResourceDecision
) -> ResourceDecision:
    """Decide a consumer of a stream whose replacement preserves the messages.

    If the replacement recreates the consumer, it gets its desired configuration at once.
    """
    assert stream.live is not None
    if (
        decision.address not in inputs.selected
        and decision.live is not None
        and not decision.adopts
    ):
        live, entry = decision.live, decision.entry
        return ResourceDecision(
            decision.address,
            ["no-op"],
            "not_targeted",
            live,
            entry,
            live.compact,
            restored_with=stream.address,
        )
    if decision.actions == ["no-op"] or (
        stream.recreates_consumers and (decision.actions == ["update"] or decision.preserves)
    ):
        return replace(decision, restored_with=stream.address)
    return (
        replace(decision, deleted_with=stream.address)
        if stream.recreates_consumers and decision.deletes
        else decision
    )
