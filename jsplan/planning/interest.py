"""Consumers of interest streams that one plan changes together: what the stream deletes is decided by where all of them end up.

The server deletes a message of an interest stream as soon as no consumer wants it. So no step on the way may leave a message
without a consumer that the plan's end gives it:

- a stream that becomes an interest stream does so after its consumers changed, one that keeps by limits from now on before;
- where one consumer gives up messages and another takes them on, a placeholder consumer that wants everything holds them
  meanwhile. When it leaves, the server deletes what no consumer wants by then, which is measured once for all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jsplan.address import STAGING, Address
from jsplan.diagnostics import Diagnostic
from jsplan.facts.interest import ACKS_ABOVE_FLOOR, ConsumerChange, Snapshot, filters_of
from jsplan.facts.live import LiveObject
from jsplan.facts.question import Question
from jsplan.planning.consumer_count import count_consumers
from jsplan.planning.inputs import Inputs
from jsplan.planning.order import Draft, Drafts
from jsplan.planning.verdict import UNDER_WAY, Verdict
from jsplan.resources.fields import Config
from jsplan.subjects import covered

#: The reason of a placeholder that an interrupted apply left, and that no other change of this plan needs.
LEFT_OVER = "delete_because_orphan"
#: Before 2.11 (level 1) consumers of a stream that keeps by limits now still delete what no consumer wants when they change.
FORGETS_INTEREST = 1
#: The placeholder needs to live as long as a plan takes: a stream whose consumers end sooner (ns) cannot be held by one.
SHORTEST = 300 * 10**9


@dataclass(slots=True)
class Interest:
    """The consumers of one stream that change, and what the stream is meanwhile.

    `is`: an interest stream throughout; `becomes` and `was`: its retention changes from or to limits in the same plan. `consumers` are
    the changes as `facts.measure` takes them, `lead` is the one that states what is deleted. `held`: a placeholder is needed.
    """

    stream: LiveObject
    retention: Literal["is", "becomes", "was"]
    verdicts: list[Verdict] = field(default_factory=list)
    consumers: tuple[ConsumerChange, ...] = ()
    lead: Address | None = None
    held: bool = False


def placeholder_of(inputs: Inputs, stream: Address) -> Address:
    """The placeholder consumer of this workspace on a stream."""
    owner = f"{inputs.workspace.name}/{inputs.workspace.environment or ''}"
    return Address(stream.domain, "consumer", f"{stream.stream}/{STAGING}{hashlib.sha256(owner.encode()).hexdigest()[:16]}")


def is_placeholder(address: Address) -> bool:
    """Check for a placeholder consumer, of any workspace."""
    return address.kind == "consumer" and address.consumer.startswith(STAGING)


def interests(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> dict[Address, Interest]:
    """Streams whose consumers change while their interest matters, by the stream's address as the consumers have it."""
    found: dict[Address, Interest] = {}
    for address, verdict in sorted(verdicts.items()):
        parent = address.parent
        if parent is None or not _changes(verdict) or not _counts(verdicts, verdict):
            continue
        if parent not in found:
            stream, retention = inputs.live.get(parent), _retention(inputs, verdicts, parent)
            if stream is None or retention is None:
                continue
            found[parent] = Interest(stream, retention)
        found[parent].verdicts.append(verdict)
    for parent, one in found.items():
        one.consumers = tuple(_change(inputs, verdict) for verdict in one.verdicts)
        _decide(inputs, parent, one)
    return found


def _counts(verdicts: Mapping[Address, Verdict], verdict: Verdict) -> bool:
    """Leave out consumers that go with their stream."""
    stream = verdicts.get(verdict.follows) if verdict.follows is not None else None
    return verdict.follows is None or (stream is not None and stream.renews)


def _changes(verdict: Verdict) -> bool:
    return verdict.actions == ["update"] or verdict.deletes or verdict.actions == ["create"]


def _retention(inputs: Inputs, verdicts: Mapping[Address, Verdict], parent: Address) -> Literal["is", "becomes", "was"] | None:
    """What a stream that stays is meanwhile; None where interest does not matter."""
    stream, live = stream_verdict(inputs, verdicts, parent), inputs.live.get(parent)
    before = live.compact.get("retention", "limits") if live is not None else "limits"
    if stream is not None and stream.renews and stream.address not in inputs.under_way:
        return "becomes" if (stream.after or {}).get("retention") == "interest" else None
    if stream is not None and (stream.deletes or stream.address in inputs.under_way):
        return None
    after = (stream.after or {}).get("retention", "limits") if stream is not None and stream.actions == ["update"] else before
    if "interest" not in (before, after):
        return None
    return "is" if before == after else "becomes" if after == "interest" else "was"


def stream_verdict(inputs: Inputs, verdicts: Mapping[Address, Verdict], parent: Address) -> Verdict | None:
    """The verdict about a consumer's stream, which may be declared by another way to the domain."""
    if parent not in verdicts and parent.domain in inputs.workspace.domains:
        parent = inputs.topology.called(parent)
    return verdicts.get(parent)


def _decide(inputs: Inputs, parent: Address, one: Interest) -> None:
    giving = [v for v in one.verdicts if _gives_up(v, inputs.level(parent))]
    taking = [v for v in one.verdicts if _takes_on(v)]
    if one.retention == "was" and inputs.level(parent) < FORGETS_INTEREST and giving:
        one.held, one.lead = True, giving[0].address
    if one.retention != "is":
        return
    left = inputs.live.get(placeholder_of(inputs, parent)) is not None
    one.held = left or any(v is not w or v.replaces for v in giving for w in taking)
    if giving or one.held:
        leaving = [v for v in giving if v.loses] or giving or one.verdicts
        one.lead = leaving[0].address


def _gives_up(verdict: Verdict, level: int) -> bool:
    """Whether the server may look for messages that no consumer wants."""
    if verdict.deletes or verdict.reason == UNDER_WAY:
        return True
    if verdict.actions != ["update"] or verdict.live is None or verdict.after is None:
        return False
    return looks(verdict.live.compact, verdict.after, level)


def looks(before: Config, after: Config, level: int) -> bool:
    """Check whether a server looks for messages that no consumer wants at this update. Before 2.12 (level 2) it does at every one."""
    return level < ACKS_ABOVE_FLOOR or sorted(filters_of(before)) != sorted(filters_of(after))


def _takes_on(verdict: Verdict) -> bool:
    """Whether the consumer may want messages that it did not want before."""
    if verdict.actions[-1] == "create" or verdict.replaces:
        return True
    if verdict.actions != ["update"] or verdict.live is None or verdict.after is None:
        return False
    before, after = filters_of(verdict.live.compact), filters_of(verdict.after)
    return bool(before) and (not after or any(not covered(subject, before) for subject in after))


def _change(inputs: Inputs, verdict: Verdict) -> ConsumerChange:
    name, after = verdict.address.consumer, verdict.after
    if after is None or verdict.goes:
        return ConsumerChange(name, "gone")
    filters = filters_of(after)
    if verdict.actions == ["update"] and verdict.brought is None:
        return ConsumerChange(name, "same", filters)
    policy, first = str(after.get("deliver_policy", "all")), int(after.get("opt_start_seq") or 0)
    position = (inputs.replacements.get(verdict.address) or {}).get("position")
    if verdict.live is None and position:  # what an interrupted apply deleted continues where it was
        policy, first = "by_start_sequence", int(position)
    if (verdict.preserves or verdict.brought is not None) and verdict.live is not None:
        return ConsumerChange(name, "floor", filters, policy, first)
    return ConsumerChange(name, "start", filters, policy, first)


# --- what is asked, and what is refused --------------------------------------------------------------------------


def question(inputs: Inputs, parent: Address, one: Interest) -> Question | None:
    """What the stream deletes once all of its consumers have changed; None where nothing can go."""
    if one.lead is None or one.retention == "was" or not one.stream.state.get("messages"):
        return None
    return Question(
        one.lead, one.stream.address, interest="is", consumers=one.consumers, placeholder=one.held, since=_since(inputs, parent)
    )


def _since(inputs: Inputs, stream: Address) -> Snapshot | None:
    record = inputs.replacements.get(placeholder_of(inputs, stream))
    return snapshot(record) if record is not None else None


def snapshot(record: Mapping[str, Any]) -> Snapshot:
    """What state keeps of a stream since its placeholder was made."""
    return Snapshot(record["last_seq"], {name: (a, b, c) for name, (a, b, c) in record["consumers"].items()})


def findings(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> Iterable[Diagnostic]:
    """Streams that take no placeholder although they need one."""
    totals: dict[Address, int] | None = None
    for parent, one in interests(inputs, verdicts).items():
        if not one.held or one.lead is None or inputs.live.get(placeholder_of(inputs, parent)) is not None:
            continue
        totals = totals or {count.stream: count.total for count in count_consumers(inputs, verdicts)}
        found = _no_room(inputs, verdicts, parent, one, totals.get(parent, 0)) or _too_short(one)
        if found is not None:
            names = ", ".join(v.address.consumer for v in one.verdicts)
            text = f"consumers of interest stream {parent.stream} cannot be changed together ({names}): {found[0]}"
            detail = f"Without it messages would be deleted that the changed consumers want. {found[1]}"
            yield Diagnostic("error", "JS303", text, detail, str(one.lead))


def _no_room(inputs: Inputs, verdicts: Mapping[Address, Verdict], parent: Address, one: Interest, ends: int) -> tuple[str, str] | None:
    """Check that the placeholder has a place beside the consumers that are there, and beside those that the plan `ends` with."""
    stream = stream_verdict(inputs, verdicts, parent)
    after = stream.after if stream is not None and stream.actions == ["update"] and stream.after is not None else one.stream.compact
    most = max(_most_consumers(one.stream.compact), _most_consumers(after))
    there = int(one.stream.state.get("consumer_count") or 0)
    if max(there, ends) < most:
        return None
    has = f"has {there}" if there >= most else f"will have {ends}"
    text = f"they need a placeholder consumer meanwhile, and the stream {has} of at most {most:.0f} consumers (max_consumers)"
    return text, "Raise max_consumers by one first, or delete consumers in a plan of their own first."


def _most_consumers(stream: Config) -> float:
    most = int(stream.get("max_consumers", -1))
    return most if most >= 0 else float("inf")


def _too_short(one: Interest) -> tuple[str, str] | None:
    limit = int((one.stream.compact.get("consumer_limits") or {}).get("inactive_threshold") or 0)
    if not 0 < limit < SHORTEST:
        return None
    text = f"they need a placeholder consumer meanwhile, which consumer_limits.inactive_threshold may delete after {limit / 10**9:g} s"
    return text, "Raise inactive_threshold to 5m or more first, or delete consumers in a plan of their own first."


# --- leftovers and steps -----------------------------------------------------------------------------------------


def left_over(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> Iterable[Verdict]:
    """Placeholders that an interrupted apply left, and that go."""
    if inputs.request.refresh_only or inputs.request.imports:
        return
    for address in sorted(a for a in inputs.replacements if is_placeholder(a) and a in inputs.selected and inputs.live.get(a) is not None):
        stream = stream_verdict(inputs, verdicts, Address.of_stream(address.domain, address.stream))
        if stream is None or not stream.deletes:
            yield Verdict(address, ["delete"], LEFT_OVER, inputs.live.get(address))


def add_placeholders(inputs: Inputs, found: Mapping[Address, Interest], drafts: Drafts) -> None:
    """Add the steps that make and remove placeholders around those of the consumers, which follow a change from interest to limits."""
    for parent, one in found.items():
        stream = one.stream.address
        changing = [draft for draft in drafts.values() if draft.key[0].parent == parent and draft.request is not None]
        if one.retention == "was" and (stream, "update") in drafts:
            for draft in changing:
                draft.after.add((stream, "update"))
        if one.held and one.lead is not None:
            _hold(inputs, parent, one.lead, changing, drafts)
    taken_up = {draft.touches for draft in drafts.values() if draft.key[1] == "release"}
    for address in () if inputs.request.refresh_only or inputs.request.imports else sorted(inputs.replacements):
        if is_placeholder(address) and address in inputs.selected and inputs.live.reachable(address.domain) and address not in taken_up:
            draft = _release(address, address)
            drafts[draft.key] = draft


def _hold(inputs: Inputs, parent: Address, lead: Address, changing: list[Draft], drafts: Drafts) -> None:
    address, where = placeholder_of(inputs, parent), f"stream {parent.stream} in {parent.domain}"
    release = _release(lead, address)
    if changing:
        text = "jsplan: holds the messages of this interest stream while its consumers change; jsplan apply removes it"
        config = {"name": address.consumer, "durable_name": address.consumer, "ack_policy": "explicit", "description": text}
        hold = Draft(
            (lead, "hold"), "consumer.create_placeholder", f"create a placeholder consumer on {where} while its consumers change",
            {"api": f"CONSUMER.CREATE.{parent.stream}.{address.consumer}",
             "payload": {"stream_name": parent.stream, "config": config, "action": ""}},
            "", touches=address, params={"placeholder": inputs.replacements[address]} if address in inputs.replacements else None,
        )  # fmt: skip
        stream = inputs.topology.called(parent) if parent.domain in inputs.workspace.domains else parent
        hold.after |= {key for kind in ("first", "update") if (key := (stream, kind)) in drafts}
        hold.soft |= hold.after
        for draft in changing:
            draft.after.add(hold.key)
        release.after |= {draft.key for draft in changing}
        drafts[hold.key] = hold
    drafts[release.key] = release


def _release(lead: Address, placeholder: Address) -> Draft:
    return Draft(
        (lead, "release"), "consumer.delete_placeholder",
        f"delete the placeholder consumer of stream {placeholder.stream} in {placeholder.domain}",
        {"api": f"CONSUMER.DELETE.{placeholder.stream}.{placeholder.consumer}", "payload": None}, "", touches=placeholder,
    )  # fmt: skip
