"""Changes of the consumers of an interest stream, ordered so that no wanted message is lost.

The server deletes a message of an interest stream as soon as no consumer wants it. A message that
a consumer wants after the plan must therefore be wanted after each step:

- A stream becomes an interest stream after its consumers changed. It becomes a limits stream
  before they change.
- Where one consumer releases messages that another will want, a placeholder consumer wants all
  messages meanwhile. After it is deleted, the server deletes the messages that no consumer wants.
  They are measured once for all consumers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

from jsplan.address import STAGING_PREFIX, Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.deletions import ConsumerChange, DeletionRequest, HeldMessages
from jsplan.facts.interest import build_change
from jsplan.facts.live import LiveObject
from jsplan.planning.consumer_count import count_consumers
from jsplan.planning.decide import REPLACEMENT_INTERRUPTED
from jsplan.planning.drafts import Draft, Drafts, Key
from jsplan.planning.field_levels import needs_newer_server, old_server
from jsplan.planning.model import (
    Decisions,
    Findings,
    PlanInputs,
    ResourceDecision,
    is_state_only,
)
from jsplan.resources.consumer import filters_of
from jsplan.resources.server_features import FILTER_UPDATE_LEVEL
from jsplan.resources.stream import max_consumers
from jsplan.subjects import is_covered

#: The reason of an orphaned placeholder that no other change of this plan needs.
PLACEHOLDER_ORPHANED = "delete_because_orphan"
#: Shortest `inactive_threshold` (ns) of a stream under which a placeholder outlives an apply.
MIN_INACTIVE_THRESHOLD = 300 * 10**9

Retention = Literal["is", "becomes", "was"]


class InterestChange(Struct):
    """The changed consumers of one stream, and the retention of the stream meanwhile.

    `is`: an interest stream throughout; `becomes` and `was`: the plan changes its retention from
    or to limits. `consumers` are the changes
    as `facts.measure` takes them. `reporting_consumer` is the consumer whose hazard reports the
    deletions.
    """

    stream: LiveObject
    retention: Retention
    decisions: list[ResourceDecision] = field(default_factory=list)
    consumers: tuple[ConsumerChange, ...] = ()
    reporting_consumer: Address | None = None
    needs_placeholder: bool = False


def placeholder_of(inputs: PlanInputs, stream: Address) -> Address:
    """Return the address of this workspace's placeholder consumer on a stream."""
    owner = f"{inputs.workspace.name}/{inputs.workspace.environment or ''}"
    return Address(
        stream.domain,
        "consumer",
        f"{stream.stream}/{STAGING_PREFIX}{hashlib.sha256(owner.encode()).hexdigest()[:16]}",
    )


def is_placeholder(address: Address) -> bool:
    """Check whether the address is a placeholder consumer, of any workspace."""
    return address.kind == "consumer" and address.consumer.startswith(STAGING_PREFIX)


def find_interest_changes(
    inputs: PlanInputs, decisions: Decisions
) -> dict[Address, InterestChange]:
    """Find the streams whose consumers change while interest matters, by the consumers' parent."""
    found: dict[Address, InterestChange] = {}
    touched = inputs.touched(decisions).items()
    changed = {a: v for a, v in touched if a.parent and _is_changed(decisions, v)}
    for address, decision in sorted(changed.items()):
        parent = address.parent
        assert parent is not None
        if parent not in found:
            stream = inputs.live.get(parent)
            retention = _retention_change(inputs, decisions, parent)
            if stream is None or retention is None:
                continue
            found[parent] = InterestChange(stream, retention)
        found[parent].decisions.append(decision)
    for parent, change in found.items():
        change.consumers = tuple(_consumer_change(inputs, v) for v in change.decisions)
        _decide_placeholder(inputs, parent, change)
    return found


def _is_changed(decisions: Decisions, decision: ResourceDecision) -> bool:
    """Return False also for consumers that are deleted with their stream and not recreated."""
    if decision.actions not in (["update"], ["create"]) and not decision.deletes:
        return False
    stream = decisions.get(decision.deleted_with) if decision.deleted_with is not None else None
    return decision.deleted_with is None or (stream is not None and stream.recreates_consumers)


def _retention_change(
    inputs: PlanInputs, decisions: Decisions, parent: Address
) -> Retention | None:
    """Return the retention of a stream during the plan; None if interest does not matter."""
    stream, live = stream_decision(inputs, decisions, parent), inputs.live.get(parent)
    before = live.compact.get("retention", "limits") if live is not None else "limits"
    begun = stream is not None and stream.address in inputs.interrupted.streams
    if stream is not None and stream.recreates_consumers and not begun:
        return "becomes" if stream.planned.get("retention") == "interest" else None
    if begun or (stream is not None and stream.deletes):
        return None
    updated = stream is not None and stream.actions == ["update"]
    after = stream.planned.get("retention", "limits") if stream and updated else before
    if "interest" not in (before, after):
        return None
    return "is" if before == after else "becomes" if after == "interest" else "was"


def stream_decision(
    inputs: PlanInputs, decisions: Decisions, parent: Address
) -> ResourceDecision | None:
    """Return the decision about a consumer's stream, also if declared under another domain key."""
    return decisions.get(parent) or decisions.get(inputs.topology.find_declared(parent))


def _decide_placeholder(inputs: PlanInputs, parent: Address, change: InterestChange) -> None:
    level = inputs.level(parent)
    releasing = [v for v in change.decisions if _may_release_messages(v, level)]
    if change.retention != "is":
        return
    wanting = [v for v in change.decisions if _may_want_more(v)]
    exists = inputs.live.get(placeholder_of(inputs, parent)) is not None
    change.needs_placeholder = exists or any(
        v is not w or v.replaces for v in releasing for w in wanting
    )
    if releasing or change.needs_placeholder:
        losing = [v for v in releasing if v.loses_content] or releasing or change.decisions
        change.reporting_consumer = losing[0].address


def _may_release_messages(decision: ResourceDecision, level: int) -> bool:
    """Check whether this change may make the server delete messages that no consumer wants."""
    if decision.deletes or decision.reason == REPLACEMENT_INTERRUPTED:
        return True
    if decision.actions != ["update"] or decision.live is None or decision.after is None:
        return False
    before, after = (sorted(filters_of(one)) for one in (decision.before, decision.planned))
    return level < FILTER_UPDATE_LEVEL or before != after  # before 2.12 each update does


def _may_want_more(decision: ResourceDecision) -> bool:
    """Check whether the consumer may want messages that it did not want before."""
    if decision.actions[-1] == "create" or decision.replaces:
        return True
    if decision.actions != ["update"] or decision.live is None or decision.after is None:
        return False
    before, after = filters_of(decision.live.compact), filters_of(decision.after)
    return bool(before) and (not after or any(not is_covered(subject, before) for subject in after))


def _consumer_change(inputs: PlanInputs, decision: ResourceDecision) -> ConsumerChange:
    name, after = decision.address.consumer, decision.after
    if after is None or decision.is_gone:
        return ConsumerChange(name, "gone")
    if decision.actions == ["update"] and decision.restored_with is None:
        return build_change(name, "same", after)
    if (decision.preserves or decision.restored_with is not None) and decision.live is not None:
        return build_change(name, "floor", after)
    # A consumer that an interrupted apply deleted resumes at its recorded position.
    record = inputs.interrupted.replacements.get(decision.address) or {}
    deleted = decision.live is None
    return build_change(name, "start", after, record.get("position") if deleted else None)


# --- measurements and errors ---


def unwanted_measurement(
    inputs: PlanInputs, parent: Address, change: InterestChange
) -> DeletionRequest | None:
    """Request the deletions after all consumers have changed; None if none are possible."""
    if change.reporting_consumer is None or change.retention != "is":
        return None
    return DeletionRequest(
        interest="is",
        was_interest=True,
        consumers=change.consumers,
        held=_held_messages(inputs, parent),
    )


def _held_messages(inputs: PlanInputs, stream: Address) -> HeldMessages | None:
    """Return what state has of the placeholder of a stream that an interrupted apply created."""
    record = inputs.interrupted.replacements.get(placeholder_of(inputs, stream))
    if record is None:
        return None
    return HeldMessages(record["at_most"], tuple(record["consumers"]))


def check_placeholders(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Yield an error for each stream that needs a placeholder but does not accept one."""
    totals: dict[Address, int] | None = None
    for parent, change in find_interest_changes(inputs, decisions).items():
        is_there = inputs.live.get(placeholder_of(inputs, parent)) is not None
        if not change.needs_placeholder or change.reporting_consumer is None or is_there:
            continue
        totals = totals or {
            count.stream: count.total for count in count_consumers(inputs, decisions)
        }
        names = ", ".join(v.address.consumer for v in change.decisions)
        if (old := old_server(inputs, parent)) is not None:
            what = f"changing consumers of an interest stream at once ({names})"
            yield needs_newer_server(
                change.reporting_consumer, what, old, "Or change them one plan after another.", None
            )
            continue
        found = _no_consumer_capacity(
            inputs, decisions, parent, change, totals.get(parent, 0)
        ) or _threshold_too_short(change)
        if found is not None:
            text = f"consumers of stream {parent.stream} cannot be changed ({names}): {found[0]}"
            detail = (
                f"Without it, messages that the changed consumers want would be deleted. {found[1]}"
            )
            yield Diagnostic("error", "JS303", text, detail, str(change.reporting_consumer))


def _no_consumer_capacity(
    inputs: PlanInputs,
    decisions: Decisions,
    parent: Address,
    change: InterestChange,
    final_count: int,
) -> tuple[str, str] | None:
    """Return text and hint if the stream has no place for a placeholder, now or after the plan."""
    stream = stream_decision(inputs, decisions, parent)
    updated = stream is not None and stream.actions == ["update"]
    after = stream.planned if stream and updated else change.stream.compact
    limits = [max_consumers(config) for config in (change.stream.compact, after)]
    most = max(limits)
    there = int(change.stream.state.get("consumer_count") or 0)
    if 0 in limits or max(there, final_count) < most:
        return None
    has = f"has {there}" if there >= most else f"will have {final_count}"
    text = (
        "they need a placeholder consumer meanwhile, and the stream "
        f"{has} of at most {most} consumers (max_consumers)"
    )
    detail = "Raise max_consumers by one first, or delete consumers in a plan of their own first."
    return text, detail


def _threshold_too_short(change: InterestChange) -> tuple[str, str] | None:
    limit = int((change.stream.compact.get("consumer_limits") or {}).get("inactive_threshold") or 0)
    if not 0 < limit < MIN_INACTIVE_THRESHOLD:
        return None
    text = (
        "they need a placeholder consumer meanwhile, which consumer_limits.inactive_threshold "
        f"may delete after {limit / 10**9:g} s"
    )
    detail = (
        "Raise inactive_threshold to 5m or more first, "
        "or delete consumers in a plan of their own first."
    )
    return text, detail


# --- orphans and steps ---


def orphaned_placeholders(inputs: PlanInputs, decisions: Decisions) -> Iterable[ResourceDecision]:
    """Yield a deletion for each placeholder that an interrupted apply left."""
    for address in _left_placeholders(inputs):
        live = inputs.live.get(address)
        at = Address.of_stream(address.domain, address.stream)
        stream = stream_decision(inputs, decisions, at)
        if live is not None and (stream is None or not stream.deletes):
            yield ResourceDecision(address, ["delete"], PLACEHOLDER_ORPHANED, live)


def _left_placeholders(inputs: PlanInputs) -> list[Address]:
    """Return the selected placeholders that an apply created and did not delete."""
    known = inputs.interrupted.replacements
    wanted = () if is_state_only(inputs) else known
    return sorted(a for a in wanted if is_placeholder(a) and a in inputs.selected)


def add_placeholders(
    inputs: PlanInputs, found: Mapping[Address, InterestChange], drafts: Drafts
) -> None:
    """Add steps that create and delete placeholders around the steps of the consumers.

    The steps of the consumers follow an update of the stream from interest to limits.
    """
    for parent, change in found.items():
        stream = change.stream.address
        changing = [
            draft
            for draft in drafts.values()
            if draft.key[0].parent == parent and draft.request is not None
        ]
        update = drafts.get((stream, "update"))
        if change.retention == "was" and update is not None:
            for draft in changing:
                draft.depends_on.add(update.key)
        if change.needs_placeholder and change.reporting_consumer is not None:
            _add_placeholder(inputs, parent, change.reporting_consumer, changing, drafts)
    released = {draft.object_address for draft in drafts.values() if draft.key[1] == "release"}
    for address in _left_placeholders(inputs):
        if inputs.live.is_reachable(address.domain) and address not in released:
            draft = _draft_release(address, address)
            drafts[draft.key] = draft


def _add_placeholder(
    inputs: PlanInputs, parent: Address, lead: Address, changing: list[Draft], drafts: Drafts
) -> None:
    address, where = placeholder_of(inputs, parent), f"stream {parent.stream} in {parent.domain}"
    release = _draft_release(lead, address)
    if changing:
        text = (
            "jsplan: holds the messages of this stream while its consumers change; "
            "jsplan apply removes it"
        )
        name = address.consumer
        config = {"name": name, "durable_name": name, "ack_policy": "explicit", "description": text}
        hold = Draft(
            (lead, "hold"),
            "consumer.create_placeholder",
            f"create a placeholder consumer on {where} while its consumers change",
            {
                "api": f"CONSUMER.CREATE.{parent.stream}.{address.consumer}",
                "payload": {"stream_name": parent.stream, "config": config, "action": ""},
            },
            "",
            object_address=address,
        )
        stream = inputs.topology.find_declared(parent)
        before: set[Key] = {(stream, "first"), (stream, "update")}
        hold.depends_on |= before & drafts.keys()
        hold.soft_dependencies |= hold.depends_on
        if (update := drafts.get((stream, "update"))) is not None:
            hold.stable_stream = update.stable_stream
        for draft in changing:
            draft.depends_on.add(hold.key)
        release.depends_on |= {draft.key for draft in changing}
        if (last := drafts.get((stream, "last"))) is not None:
            last.depends_on.add(release.key)  # it may turn to interest, or allow fewer consumers
        drafts[hold.key] = hold
    drafts[release.key] = release


def _draft_release(lead: Address, placeholder: Address) -> Draft:
    return Draft(
        (lead, "release"),
        "consumer.delete_placeholder",
        f"delete the placeholder consumer of stream {placeholder.stream} in {placeholder.domain}",
        {"api": f"CONSUMER.DELETE.{placeholder.stream}.{placeholder.consumer}", "payload": None},
        "",
        object_address=placeholder,
    )
