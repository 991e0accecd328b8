"""What becomes of one resource: the three-way comparison of one address. Cost and order are left to others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jsplan.address import Address, matches
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import Action, FieldChange
from jsplan.facts.live import LiveObject, account_limits, get_retention
from jsplan.planning import pauses
from jsplan.planning.bucket_aliases import with_bucket_names
from jsplan.planning.diff import differing_fields, field_changes
from jsplan.planning.merge import expected_new, expected_update, is_within_limits, without_ignored
from jsplan.planning.model import PlanInputs
from jsplan.planning.preserve.consumers import (
    is_update_purging,
    preserve_position,
    replacement_fields,
)
from jsplan.planning.preserve.methods import recreates_consumers, tightens_consumer_limits
from jsplan.planning.replication.impact import without_replacement_starts
from jsplan.resources import CONSUMER
from jsplan.resources.buckets import BACKING_TABLES
from jsplan.resources.fields import Config, Table
from jsplan.state.document import Entry

#: The reason of a resource that is as state has it and as the files have it: nothing more needs to be compared.
UNTOUCHED = "equal"
#: That of a resource whose replacement an apply began and did not end.
REPLACEMENT_INTERRUPTED = "replacement_interrupted"
#: That of a stream whose replacement was begun, and that the files want as it was.
REPLACEMENT_ROLLED_BACK = "replacement_rolled_back"


@dataclass(slots=True)
class ResourceDecision:
    """One resource, decided. `after` is the compact configuration it should end with, None when it goes.

    `ignored` are changes the server would take and not carry out. `deleted_with` is the stream whose replacement or
    deletion takes this consumer with it, `restored_with` the one whose replacement brings it back as it shall be. `adopts` says that
    the live object was not ours until now. `recreates_consumers`: of a stream that is replaced with its messages, each consumer is made as it shall
    be, at its ack floor. `unknown` are fields of `after` that are only known when it is carried out. `sources_to_detach`
    are sources that are taken out before what they read is made anew, `sources_to_attach` those that are put back where they left.
    """

    address: Address
    actions: list[Action]
    reason: str
    live: LiveObject | None = None
    entry: Entry | None = None
    after: Config | None = None
    fields: list[FieldChange] = field(default_factory=list)
    ignored: list[FieldChange] = field(default_factory=list)
    adopts: bool = False
    deleted_with: Address | None = None
    restored_with: Address | None = None
    unknown: list[str] = field(default_factory=list)
    recreates_consumers: bool = False
    sources_to_detach: set[str] = field(default_factory=set)
    sources_to_attach: set[str] = field(default_factory=set)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    @property
    def replaces(self) -> bool:
        """Whether the object is deleted and made again, with what it holds or without."""
        return len(self.actions) == 2

    @property
    def preserves(self) -> bool:
        """Whether a replacement carries over what the object holds."""
        return self.actions == ["create", "delete"]

    @property
    def loses_content(self) -> bool:
        """Whether what the live object holds goes with it."""
        return self.deletes and not self.preserves

    @property
    def is_removed(self) -> bool:
        """Whether nothing is there, or nothing is ours, in the end."""
        return self.actions[-1] in ("delete", "forget") and not self.preserves

    @property
    def writes(self) -> bool:
        """Whether something that is made or changed is there in the end."""
        return self.actions[-1] in ("create", "update") or self.preserves

    @property
    def deletes(self) -> bool:
        """Whether the live object goes away."""
        return "delete" in self.actions


def table_of(address: Address) -> Table:
    """The field table of what lies on the server behind an address."""
    return CONSUMER if address.kind == "consumer" else BACKING_TABLES[address.kind]


def planned_config(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision], address: Address
) -> Config | None:
    """The compact configuration an object will have, None when it is not there then."""
    verdict, live = verdicts.get(address), inputs.live.get(address)
    if verdict is not None:
        return None if verdict.is_removed else verdict.after
    return live.compact if live else None


def decide(inputs: PlanInputs, address: Address) -> ResourceDecision:
    """Compare desired, live and last applied of one address in a reachable domain."""
    verdict = _decide(inputs, address)
    return _decide_interrupted(inputs, verdict) if address in inputs.interrupted else verdict


def _decide(inputs: PlanInputs, address: Address) -> ResourceDecision:
    live, entry, declared = (
        inputs.live.get(address),
        inputs.entries.get(address),
        inputs.declared(address),
    )
    ours = entry is not None and live is not None and entry.created == live.created
    if inputs.request.refresh_only:
        return _decide_refresh(
            address, live, entry, ours=ours, interrupted=address in inputs.replacement_records
        )
    if declared is None:
        return _decide_undeclared(inputs, address, live, entry, ours=ours)
    if live is None:
        return _decide_missing(inputs, address, entry)
    return _decide_existing(inputs, address, live, entry, ours=ours)


def _decide_refresh(
    address: Address, live: LiveObject | None, entry: Entry | None, *, ours: bool, interrupted: bool
) -> ResourceDecision:
    if interrupted:
        return ResourceDecision(
            address, ["no-op"], REPLACEMENT_INTERRUPTED, live, entry, live.compact if live else None
        )
    if entry is not None and (live is None or not ours):
        return ResourceDecision(address, ["forget"], "forget_because_missing", None, entry)
    return ResourceDecision(
        address, ["no-op"], "refresh_only", live, entry, live.compact if live else None
    )


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
    removed = next((r for r in inputs.workspace.removed if matches(r.address, address)), None)
    if removed is not None and not removed.destroy:
        return ResourceDecision(address, ["forget"], "forget_because_removed_block", live, entry)
    if live is None:
        return ResourceDecision(address, ["forget"], "forget_because_missing", None, entry)
    if not ours:
        text = f"{address} was made again by somebody else ({live.created}); what this workspace created is gone"
        found = Diagnostic("warning", "JS411", text, "It is forgotten, not deleted.", str(address))
        return ResourceDecision(
            address,
            ["forget"],
            "forget_because_recreated_elsewhere",
            live,
            entry,
            diagnostics=[found],
        )
    reason = "delete_because_destroy" if inputs.request.destroy else "delete_because_not_in_files"
    return ResourceDecision(address, ["delete"], reason, live, entry)


def _decide_missing(inputs: PlanInputs, address: Address, entry: Entry | None) -> ResourceDecision:
    if inputs.request.imports:
        return _decide_missing_import(inputs, address)
    after = expected_new(
        table_of(address),
        inputs.creation_body(address),
        inputs.level(address),
        inherited_settings(inputs, address),
    )
    reason = "create_because_missing" if entry is not None else "create_because_new"
    if address in inputs.replacement_records:
        reason = REPLACEMENT_INTERRUPTED
    verdict = ResourceDecision(address, ["create"], reason, None, entry, after)
    if reason == REPLACEMENT_INTERRUPTED and address.kind == "consumer":
        preserve_position(inputs, verdict)
    return verdict


def _decide_missing_import(inputs: PlanInputs, address: Address) -> ResourceDecision:
    """A glob takes what is there; an address that somebody wrote out must be there."""
    verdict = ResourceDecision(address, ["no-op"], "absent")
    if str(address) in inputs.request.imports:
        verdict.diagnostics.append(
            Diagnostic(
                "error",
                "JS420",
                "does not exist on the server",
                "Create it with: jsplan apply",
                str(address),
            )
        )
    return verdict


def inherited_settings(inputs: PlanInputs, address: Address) -> Config:
    """What the server takes from elsewhere: a consumer's limits from its stream, a local mirror's `mirror_direct`."""
    parent = address.parent
    return (
        _inherited_mirror_direct(inputs, address)
        if parent is None
        else _consumer_limits(inputs, parent) | _account_limits(inputs, address)
    )


def _account_limits(inputs: PlanInputs, address: Address) -> Config:
    """The most unacknowledged messages that the account lets a consumer have, where it says so."""
    most = account_max_ack_pending(inputs, address)
    return {"account_max_ack_pending": most} if most > 0 else {}


def account_max_ack_pending(inputs: PlanInputs, consumer: Address) -> int:
    """What the account allows of a consumer with so many copies; 0 or less is no limit."""
    facts, parent = inputs.live.domains.get(consumer.domain), consumer.parent
    if facts is None or parent is None:
        return 0
    live, body = inputs.live.get(parent), inputs.topology.bodies.get(parent, {})
    of_stream = (
        body.get("num_replicas") or (live.compact.get("num_replicas") if live else None) or 1
    )
    return int(
        account_limits(
            facts.info, inputs.topology.bodies.get(consumer, {}).get("num_replicas") or of_stream
        ).get("max_ack_pending")
        or 0
    )


def _consumer_limits(inputs: PlanInputs, stream: Address) -> Config:
    """The `consumer_limits` that consumers of the stream will live under."""
    live, declared = (
        inputs.live.get(stream),
        stream in inputs.topology.bodies and not inputs.request.destroy,
    )
    if declared and "consumer_limits" in inputs.topology.bodies[stream]:
        return inputs.topology.bodies[stream]["consumer_limits"] or {}
    limits: Config = (live.compact.get("consumer_limits") or {}) if live else {}
    if limits and declared:
        limits = (decide(inputs, stream).after or {}).get("consumer_limits") or {}
    return limits


def _inherited_mirror_direct(inputs: PlanInputs, address: Address) -> Config:
    """Empty where the mirror decides itself: its origin is elsewhere, or is not there."""
    mirror = inputs.topology.bodies.get(address, {}).get("mirror") or {}
    if not mirror or mirror.get("external"):
        return {}
    origin = Address.of_stream(address.domain, mirror["name"])
    live, declared = (
        inputs.live.get(origin),
        origin in inputs.topology.bodies and not inputs.request.destroy,
    )
    if not declared and live is None:
        return {}
    body = ({} if live else inputs.creation_body(origin)) | (
        inputs.body(origin) if declared else {}
    )
    said = (
        body["allow_direct"]
        if "allow_direct" in body
        else live and live.compact.get("allow_direct")
    )
    return {"mirror_direct": bool(said)}


def _decide_existing(
    inputs: PlanInputs, address: Address, live: LiveObject, entry: Entry | None, *, ours: bool
) -> ResourceDecision:
    """Declared and on the server: nothing, an update, a replacement, and perhaps an import with it."""
    mine = (
        replacement_fields(address, entry, inputs.declared_fields(address)) if ours else frozenset()
    )
    if (
        ours
        and entry is not None
        and _is_untouched(inputs, live, entry, mine)
        and not _is_replace_forced(inputs, address)
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
        ignore=mine.union(ignore),
    )
    if address.kind == "consumer" and pauses.PAUSE not in ignore:
        target = pauses.with_effective_pause(target, body, live.compact, last, inputs.request.now)
    after, ignored = without_ignored(table, live.compact, target, level)
    ignored = without_replacement_starts(
        ignored, entry if ours else None, inputs.declared_fields(address)
    )
    fields = field_changes(table, live.compact, after, level)
    verdict = ResourceDecision(
        address, ["no-op"], "equal_now", live, entry, after, fields, ignored, adopts=not ours
    )
    return _choose_actions(inputs, verdict)


def _would_delete_messages(inputs: PlanInputs, verdict: ResourceDecision) -> bool:
    """Whether an update in place would delete messages that a replacement keeps."""
    after, live = verdict.after, verdict.live
    return (
        live is not None
        and after is not None
        and verdict.address.kind == "consumer"
        and is_update_purging(inputs, live, after)
    )


def _is_replace_forced(inputs: PlanInputs, address: Address) -> bool:
    return address in inputs.unready_replacements or any(
        matches(glob, address) for glob in inputs.request.replace
    )


def _is_untouched(
    inputs: PlanInputs, live: LiveObject, entry: Entry, replacement_fields: frozenset[str]
) -> bool:
    """The cheap way to see that nothing differs: live as recorded and as named, and the files as recorded.

    What is `mine` a replacement put there in place of what the files say.
    """
    named = inputs.declared_fields(live.address)
    if live.config != entry.config or named != entry.declared:
        return False
    if differing_fields(
        table_of(live.address),
        live.compact,
        {name: value for name, value in named.items() if name not in replacement_fields}
        if replacement_fields
        else named,
    ):
        return False
    return live.address.parent is None or is_within_limits(
        live.compact, inherited_settings(inputs, live.address)
    )


def _choose_actions(inputs: PlanInputs, verdict: ResourceDecision) -> ResourceDecision:
    if verdict.adopts and inputs.request.imports:
        return _decide_import(inputs, verdict)
    forced = _is_replace_forced(inputs, verdict.address)
    if _would_delete_messages(inputs, verdict):
        verdict.fields = [
            replace(c, effect="replace") if c.path.startswith("filter_subject") else c
            for c in verdict.fields
        ]
    if forced or any(change.effect == "replace" for change in verdict.fields):
        verdict.reason = "replace_by_request" if forced else "replace_because_cannot_update"
        if verdict.address in inputs.unready_replacements:
            verdict.reason = REPLACEMENT_INTERRUPTED
        verdict.actions = ["delete", "create"]
        verdict.after = expected_new(
            table_of(verdict.address),
            inputs.creation_body(verdict.address),
            inputs.level(verdict.address),
            inherited_settings(inputs, verdict.address),
        )
        if inputs.on_replace(verdict.address) == "preserve":
            verdict.actions = ["create", "delete"]
            if verdict.address.kind == "consumer":
                preserve_position(inputs, verdict)
    elif verdict.fields:
        verdict.actions, verdict.reason = ["update"], _update_reason(verdict)
    elif verdict.adopts:
        verdict.reason = "import_because_equal"
    return verdict


def _decide_interrupted(inputs: PlanInputs, verdict: ResourceDecision) -> ResourceDecision:
    """What becomes of a stream whose replacement was begun: it goes on, or gives back what it took; whatever the files say by now."""
    address, found = verdict.address, inputs.interrupted[verdict.address]
    if inputs.request.refresh_only or found.next_step == "clear":
        return verdict
    if found.conflict or inputs.declared(address) is None:
        what = found.conflict or "it is in no file any more, or all is to be destroyed"
        detail = (
            found.detail
            if found.conflict
            else "Put it back into the files and run: jsplan apply. Then it can go."
        )
        error = Diagnostic(
            "error",
            "JS424",
            f"{found.summary}. It cannot be finished: {what}",
            detail,
            str(address),
        )
        return replace(
            verdict,
            actions=["no-op"],
            reason=REPLACEMENT_INTERRUPTED,
            fields=[],
            adopts=False,
            diagnostics=[error],
        )
    told = Diagnostic("warning", "JS424", found.summary, found.detail, str(address))
    if found.can_roll_back and not verdict.replaces:
        return replace(
            verdict,
            actions=["update"],
            reason=REPLACEMENT_ROLLED_BACK,
            adopts=False,
            diagnostics=[told],
        )
    after = expected_new(
        table_of(address),
        inputs.creation_body(address),
        inputs.level(address),
        inherited_settings(inputs, address),
    )
    return replace(
        verdict,
        actions=["create", "delete"],
        reason=REPLACEMENT_INTERRUPTED,
        after=after,
        ignored=[],
        adopts=False,
        diagnostics=[told],
    )


def _decide_import(inputs: PlanInputs, verdict: ResourceDecision) -> ResourceDecision:
    """Taken into state as it is, without a write; what differs from the files is for the next plan."""
    verdict.reason = "import_by_request" if verdict.fields else "import_because_equal"
    if verdict.fields and not inputs.request.adopt:
        paths = ", ".join(
            change.path for change in with_bucket_names(verdict.address, verdict.fields)
        )
        detail = "To take it over as it is, and see the difference as a change in the next plan: --adopt."
        verdict.diagnostics.append(
            Diagnostic(
                "error", "JS302", f"differs from the files ({paths})", detail, str(verdict.address)
            )
        )
    return verdict


def _update_reason(verdict: ResourceDecision) -> str:
    if verdict.adopts:
        return "import_and_update"
    drifted = (
        verdict.entry is not None
        and verdict.live is not None
        and table_of(verdict.address).compact(verdict.entry.config) != verdict.live.compact
    )
    return "update_because_drifted" if drifted else "update_because_config_changed"


def decide_dependent_consumers(
    inputs: PlanInputs, verdicts: dict[Address, ResourceDecision]
) -> None:
    """Deleting a stream takes its consumers along: theirs is no step of its own, in place."""
    changing = {
        v.address.parent
        for v in verdicts.values()
        if v.address.parent is not None and v.actions != ["no-op"]
    }
    for address, verdict in verdicts.items():
        if verdict.preserves and verdict.live is not None and address.kind != "consumer":
            after = verdict.after or {}
            changes = address in changing and (
                get_retention(after) == "interest"
                or tightens_consumer_limits(verdict.live.compact, after)
            )
            verdict.recreates_consumers = changes or recreates_consumers(
                verdict.live.compact, after, inputs.level(address)
            )
    for address, verdict in verdicts.items():
        parent = verdicts.get(address.parent) if address.parent else None
        if parent is None or not parent.deletes or verdict.live is None:
            continue
        if parent.preserves:
            verdicts[address] = _decide_restored_consumer(inputs, parent, verdict)
            continue
        if verdict.deletes and not verdict.preserves:
            verdicts[address] = replace(verdict, deleted_with=parent.address)
        elif verdict.after is not None and verdict.actions != ["create"]:
            after = expected_new(
                CONSUMER,
                inputs.body(address),
                inputs.level(address),
                inherited_settings(inputs, address),
            )
            verdicts[address] = replace(
                verdict,
                actions=["delete", "create"],
                reason="replace_with_stream",
                after=after,
                deleted_with=parent.address,
                unknown=[],
            )


def _decide_restored_consumer(
    inputs: PlanInputs, stream: ResourceDecision, verdict: ResourceDecision
) -> ResourceDecision:
    """A consumer of a stream that keeps its messages. One that is made anew for it can be what it shall be at once."""
    assert stream.live is not None
    if verdict.address not in inputs.selected and verdict.live is not None and not verdict.adopts:
        kept = replace(
            verdict,
            actions=["no-op"],
            reason="not_targeted",
            fields=[],
            ignored=[],
            after=verdict.live.compact,
            diagnostics=[],
        )
        return replace(kept, restored_with=stream.address)
    if verdict.actions == ["no-op"] or (
        stream.recreates_consumers and (verdict.actions == ["update"] or verdict.preserves)
    ):
        return replace(verdict, restored_with=stream.address)
    return (
        replace(verdict, deleted_with=stream.address)
        if stream.recreates_consumers and verdict.deletes
        else verdict
    )
