"""What a stream that is made anew means for those that copy it: where it has to begin, and what its sources go on with.

Measured on five servers. Up to 2.14 a copy goes on behind the last sequence that it took, whatever stands there now: of an origin
that begins at 1 again it misses as many messages as it has. Since 2.15 it knows that the origin is another one, and copies all
of it again: what was carried over comes twice. So an origin that loses its messages goes on counting where the old one ended, which
is right for every copy, mirrors and other people's included; and sources since 2.15 are taken out before and put back after, at
the sequence behind the last one that they took. (Left in, they notice the new origin too, some twenty seconds later.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic
from jsplan.documents.plan import FieldChange, Hazard
from jsplan.facts.duplicates import MAX_SEARCHED
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs
    from jsplan.state.document import Entry

#: The API level (2.15) whose servers tell one origin from another of the same name.
ORIGIN_IDENTITY_LEVEL: Final = 5
#: The reason of a stream whose only change is that a source of it is taken out and put back.
ORIGIN_REPLACED: Final = "update_because_origin_is_replaced"


def managed_downstream(inputs: PlanInputs, origin: Address) -> set[Address]:
    """The streams of the workspace that mirror or source it, by the files or as they were last applied."""
    recorded = {
        a
        for a, entry in inputs.entries.items()
        if a.kind != "consumer" and str(origin) in entry.depends_on
    }
    return {edge.downstream for edge in inputs.topology.edges if edge.origin == origin} | recorded


def unplanned_downstream(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> dict[Address, Address]:
    """Copies of streams that go, as far as they are not planned and were not read yet; each with such an origin."""
    going = [
        v.address
        for v in verdicts.values()
        if v.address.kind != "consumer" and v.deletes and v.live is not None
    ]
    declared = inputs.workspace.domains
    pairs = {
        copy: origin
        for origin in going
        for copy in managed_downstream(inputs, origin)
        if copy.domain in declared
    }
    known = (
        verdicts.keys()
        | inputs.live.objects.keys()
        | inputs.live.unreadable.keys()
        | inputs.selected
    )
    return {copy: origin for copy, origin in pairs.items() if copy not in known}


def can_continue_sequence(inputs: PlanInputs, verdict: ResourceDecision) -> bool:
    """Whether the new stream, which is empty, may begin behind the last sequence of the old one: it does where somebody copies it.

    Not where the files say where it begins, and not a mirror, which has its origin's sequences.
    """
    after = verdict.after or {}
    if (
        verdict.actions != ["delete", "create"]
        or verdict.address.kind == "consumer"
        or after.get("mirror")
    ):
        return False
    return "first_seq" not in inputs.body(verdict.address) and "first_seq" not in verdict.unknown


def continue_sequence(verdict: ResourceDecision) -> None:
    """Let the new stream begin behind the old one. How far that has come is known when it is deleted."""
    assert verdict.live is not None
    assert verdict.after is not None
    verdict.after = verdict.after | {"first_seq": int(verdict.live.state.get("last_seq") or 0) + 1}
    verdict.unknown = [*verdict.unknown, "first_seq"]


def plan_downstream(inputs: PlanInputs, verdicts: dict[Address, ResourceDecision]) -> None:
    """Complete what was decided: where replaced origins begin, and which sources are taken out for them and put back."""
    for address, verdict in list(verdicts.items()):
        if can_continue_sequence(inputs, verdict) and managed_downstream(inputs, address):
            continue_sequence(verdict)
        first = inputs.replacement_records.get(address, {}).get("first_seq")
        if (
            first is not None
            and verdict.live is None
            and verdict.after is not None
            and "first_seq" not in inputs.body(address)
        ):
            verdict.after, verdict.unknown = (
                verdict.after | {"first_seq": int(first)},
                ["first_seq"],
            )
        if address.kind != "consumer" and (verdict.preserves or "first_seq" in verdict.unknown):
            for copy in sorted(managed_downstream(inputs, address) & verdicts.keys()):
                _plan_detach(inputs, verdicts[copy], address)
                _refuse_joint_replacement(inputs, verdicts[copy], verdict)
    for verdict in verdicts.values():
        _plan_attach(inputs, verdict)
        if verdict.actions == ["update"] and verdict.entry is not None:
            verdict.sources_to_attach |= _unattached_sources(verdict, verdict.entry)


def _plan_detach(inputs: PlanInputs, downstream: ResourceDecision, origin: Address) -> None:
    """A stream goes on without the sources that lead to the origin until that is whole again."""
    live, after = downstream.live, downstream.after
    if (
        live is None
        or after is None
        or downstream.actions not in (["no-op"], ["update"])
        or inputs.level(downstream.address) < ORIGIN_IDENTITY_LEVEL
    ):
        return
    downstream.sources_to_attach |= _resumable_new_sources(inputs, downstream, origin)
    staying = {origin_key(source) for source in after.get("sources") or ()}
    keys = {
        origin_key(s)
        for s in live.compact.get("sources") or ()
        if reads_origin(inputs, downstream.address, s, origin)
    } & staying
    if not keys:
        return
    downstream.sources_to_detach |= keys - inputs.detached_sources.get(downstream.address, set())
    _attach_sources(downstream, keys)


def _refuse_joint_replacement(
    inputs: PlanInputs, downstream: ResourceDecision, origin: ResourceDecision
) -> None:
    """An aggregate and its origin, both with their messages in one plan: the copy would get all of the origin again (measured on 2.15).

    Also two that copy each other. One after the other each is taken care of.
    """
    if (
        not (downstream.preserves and origin.preserves)
        or inputs.level(downstream.address) < ORIGIN_IDENTITY_LEVEL
        or downstream.address in inputs.interrupted
    ):
        return
    sources = (downstream.after or {}).get("sources") or ()
    if downstream.address == origin.address or not any(
        reads_origin(inputs, downstream.address, source, origin.address) for source in sources
    ):
        return
    declared = inputs.declared(downstream.address)
    text = f"must be replaced in the same plan as its source {origin.address}, and would copy all of that again"
    detail = "Change one of the two in the files, apply, then change the other: its sources are then taken out and put back where they were."
    found = Diagnostic(
        "error",
        "JS303",
        text,
        detail,
        str(downstream.address),
        declared.range if declared else None,
    )
    downstream.diagnostics = [*downstream.diagnostics, found]


def _plan_attach(inputs: PlanInputs, verdict: ResourceDecision) -> None:
    """A stream whose sources an apply took out, and that it did not come to put back: that is all that is left to do for it."""
    out = inputs.detached_sources.get(verdict.address, set())
    keys = out & {origin_key(source) for source in (verdict.after or {}).get("sources") or ()}
    if not keys or inputs.request.refresh_only or verdict.actions not in (["no-op"], ["update"]):
        return
    names = source_names(keys)
    text = f"is in the middle of a replacement: {names} was taken out of it, and not put back yet"
    told_so = Diagnostic(
        "warning", "JS424", text, "An apply puts it back where it left.", str(verdict.address)
    )
    verdict.diagnostics = [*verdict.diagnostics, told_so]
    _attach_sources(verdict, keys)


def _attach_sources(downstream: ResourceDecision, keys: set[str]) -> None:
    """Where sources begin when they are put back is known then."""
    shown = [
        FieldChange(f'sources["{key}"].opt_start_seq', None, None, "in_place")
        for key in sorted(keys - downstream.sources_to_attach)
    ]
    downstream.sources_to_attach |= keys
    downstream.fields = [*downstream.fields, *shown]
    downstream.unknown = [
        *downstream.unknown,
        *([] if "sources" in downstream.unknown else ["sources"]),
    ]
    if downstream.actions == ["no-op"]:
        downstream.actions, downstream.reason = ["update"], ORIGIN_REPLACED


def source_names(keys: Iterable[str]) -> str:
    """The names of the streams behind the keys of sources."""
    return " and ".join(sorted({key.split("@")[0].split("#")[0].split("!")[0] for key in keys}))


def _resumable_new_sources(
    inputs: PlanInputs, downstream: ResourceDecision, origin: Address
) -> set[str]:
    """Sources that the copy gets in the same plan, and of which it may hold messages from earlier: they go on behind those.

    Where the files say where they begin, that holds.
    """
    if downstream.live is None or not downstream.live.state.get("messages"):
        return set()
    there = {origin_key(source) for source in downstream.live.compact.get("sources") or ()}
    new = [
        s
        for s in (downstream.after or {}).get("sources") or ()
        if reads_origin(inputs, downstream.address, s, origin) and origin_key(s) not in there
    ]
    return {
        origin_key(s) for s in new if not s.get("opt_start_seq") and not s.get("opt_start_time")
    }


def reads_origin(inputs: PlanInputs, downstream: Address, source: Config, origin: Address) -> bool:
    """Whether a mirror or source of `copy` reads `origin`, by its name and by where its way leads."""
    if source["name"] != origin.stream:
        return False
    reach = inputs.topology.routes
    return reach.resolve_prefix(
        downstream.domain, (source.get("external") or {}).get("api")
    ) == reach.canonicalize(origin.domain)


def _unattached_sources(verdict: ResourceDecision, entry: Entry) -> set[str]:
    """Sources that an apply took out and did not put back."""
    assert verdict.live is not None
    there = {origin_key(source) for source in verdict.live.compact.get("sources") or ()}
    wanted = {origin_key(source) for source in (verdict.after or {}).get("sources") or ()}
    return (wanted - there) & entry.starts.keys()


def downstream_domains(
    inputs: PlanInputs, verdicts: Mapping[Address, ResourceDecision]
) -> set[str]:
    """Where somebody may copy a stream that is made anew: who does is named, and looked at when it is there again."""
    if not any(
        verdict.replaces and verdict.live is not None and verdict.address.kind != "consumer"
        for verdict in verdicts.values()
    ):
        return set()
    return {key for key, facts in inputs.live.domains.items() if facts.reachable}


def _preserves_messages(verdict: ResourceDecision) -> bool:
    return verdict.preserves and verdict.address.kind != "consumer" and verdict.live is not None


def assess_attached_sources(
    inputs: PlanInputs, verdict: ResourceDecision, verdicts: Mapping[Address, ResourceDecision]
) -> Iterable[Hazard]:
    """Who sources a stream that keeps its messages and is not taken out for it: not ours, left out of this plan, or away."""
    if (
        not _preserves_messages(verdict)
        or verdict.live is None
        or not verdict.live.state.get("messages")
    ):
        return
    origin, count = verdict.address, int(verdict.live.state["messages"])
    left_in = {
        live.address
        for live in inputs.live.objects.values()
        if _copies_origin_again(inputs, live, origin, verdicts)
    }
    left_in |= {
        copy
        for copy in managed_downstream(inputs, origin)
        if not inputs.live.is_reachable(copy.domain) and _is_sourced_by(inputs, copy, origin)
    }
    if left_in:
        names = [str(copy) for copy in sorted(left_in)]
        who = f"{', '.join(names)} {'copies' if len(names) == 1 else 'copy'}"
        yield Hazard(
            "DUPLICATES_MESSAGES",
            f"{who} up to {count:,} messages again: to nats-server 2.15 the new stream is another origin",
            messages=count * len(names),
            exact=False,
            at_least=0,
            at_most=count * len(names),
            causes=names,
        )


def _copies_origin_again(
    inputs: PlanInputs,
    downstream: LiveObject,
    origin: Address,
    verdicts: Mapping[Address, ResourceDecision],
) -> bool:
    keys = {
        origin_key(s)
        for s in downstream.compact.get("sources") or ()
        if reads_origin(inputs, downstream.address, s, origin)
    }
    if (
        downstream.address.kind == "consumer"
        or inputs.level(downstream.address) < ORIGIN_IDENTITY_LEVEL
    ):
        return False
    planned = verdicts.get(downstream.address)
    if planned is None:
        return bool(keys)
    if (
        not planned.deletes
        and int(downstream.state.get("messages") or 0) > MAX_SEARCHED
        and _resumable_new_sources(inputs, planned, origin)
    ):
        return True  # too many to be sure that the last of that source is found
    staying = {origin_key(source) for source in (planned.after or {}).get("sources") or ()}
    return not planned.deletes and bool(
        (keys & staying)
        - planned.sources_to_detach
        - inputs.detached_sources.get(downstream.address, set())
    )


def _is_sourced_by(inputs: PlanInputs, downstream: Address, origin: Address) -> bool:
    return any(
        edge.kind == "source" and (edge.downstream, edge.origin) == (downstream, origin)
        for edge in inputs.topology.edges
    )


def merge_duplicate_hazards(hazards: list[Hazard]) -> list[Hazard]:
    """One `DUPLICATES_MESSAGES` of a resource, where consumers and copies both get something again."""
    twice = [hazard for hazard in hazards if hazard.code == "DUPLICATES_MESSAGES"]
    if len(twice) < 2:
        return hazards
    first, *others = twice
    for other in others:
        first.message += f"; {other.message}"
        first.at_least = _lower_bound(first) + _lower_bound(other)
        first.messages = first.at_most = (first.messages or 0) + (other.messages or 0)
        first.exact, first.causes = False, [*first.causes, *other.causes]
    return [hazard for hazard in hazards if hazard is first or hazard not in others]


def _lower_bound(hazard: Hazard) -> int:
    return (hazard.messages if hazard.exact else hazard.at_least) or 0


def effective_starts(
    verdict: ResourceDecision, entry: Entry, named: Mapping[str, Any]
) -> dict[str, int]:
    """Which of the sequences where sources were put back still stand in place of what the files say."""
    if verdict.live is None or verdict.replaces or verdict.address.kind == "consumer":
        return {}
    before, now = _declared_starts(entry.declared), _declared_starts(named)
    return {
        key: start
        for key, start in entry.starts.items()
        if key in now and now[key] == before.get(key, now[key])
    }


def _declared_starts(named: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Where each source starts by the files."""
    return {
        origin_key(s): (s.get("opt_start_seq"), s.get("opt_start_time"))
        for s in named.get("sources") or ()
    }


def without_replacement_starts(
    ignored: list[FieldChange], entry: Entry | None, named: Mapping[str, Any]
) -> list[FieldChange]:
    """The changes that the server would ignore, without the starts that a replacement put there."""
    if entry is None or not entry.starts or not named.get("sources"):
        return ignored
    before, now = _declared_starts(entry.declared), _declared_starts(named)
    ours = tuple(
        f'sources["{key}"].opt_start_' for key in entry.starts if now.get(key) == before.get(key)
    )
    return [change for change in ignored if not (ours and change.path.startswith(ours))]
