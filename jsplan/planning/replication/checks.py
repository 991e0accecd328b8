"""Checks that the downstream streams of a recreated stream replicate from the new one.

Servers take ten seconds and more until they copy from the new stream (measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jsplan.address import STAGING_PREFIX, Address
from jsplan.diagnostics import Diagnostic, quote_shell
from jsplan.documents.step_kinds import VERIFY_OP
from jsplan.flows.graph import list_origins
from jsplan.planning.drafts import Draft, Drafts, Key
from jsplan.planning.model import Findings, Overrides, is_state_only
from jsplan.planning.replication.impact import (
    can_continue_sequence,
    continue_sequence,
    flows_from,
    managed_downstream,
    origin_of,
    planned_origins,
)
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL
from jsplan.topology.replication_graph import subject_filters

if TYPE_CHECKING:
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
    from jsplan.planning.replication.impact import Flow


def replaced_streams(decisions: Decisions) -> Iterator[ResourceDecision]:
    """Yield the streams that are replaced, and those whose replacement is resumed."""
    for address, decision in decisions.items():
        if address.is_stream and (
            decision.replaces or (decision.live is None and "first_seq" in decision.unknown)
        ):
            yield decision


def draft_replication_checks(inputs: PlanInputs, decisions: Decisions) -> Iterable[Draft]:
    """Draft a check for each downstream stream, and those that an earlier apply did not run."""
    wanted: dict[Address, dict[str, dict[str, Any]]] = {}
    for decision in replaced_streams(decisions):
        for downstream, kind, source in find_downstream(inputs, decisions, decision.address):
            flow: dict[str, Any] = {
                "origin": str(decision.address),
                "kind": kind,
                "config": source,
                # a recreated origin is copied from its first message
                "from_start": kind == "source"
                and inputs.level(downstream) >= ORIGIN_IDENTITY_LEVEL,
            }
            wanted.setdefault(downstream, {})[f"{flow['origin']} {origin_key(source)}"] = flow
    for downstream, flow in _unfinished_checks(inputs, decisions):
        name = f"{flow['origin']} {origin_key(flow['config'])}"
        wanted.setdefault(downstream, {}).setdefault(name, flow)
    for downstream, flows in sorted(wanted.items()):
        yield _draft_check(inputs, downstream, list(flows.values()))


def _unfinished_checks(
    inputs: PlanInputs, decisions: Decisions
) -> Iterator[tuple[Address, dict[str, Any]]]:
    """Yield the checks that an earlier apply did not finish, if the flow still exists."""
    names = {str(old): str(new) for new, old in inputs.moved_from.items()}
    lost = {str(a) for a, replacement in inputs.interrupted.streams.items() if replacement.is_lost}
    for address, begun in inputs.interrupted.steps.items() if not is_state_only(inputs) else ():
        recorded, is_live = begun.get("check", begun), inputs.live.get(address) is not None
        if recorded.get("op") != VERIFY_OP or not is_live or address not in inputs.selected:
            continue
        copied = {origin_key(source) for _, source in planned_origins(inputs, decisions, address)}
        for flow in recorded["params"]["flows"]:
            origin = names.get(flow["origin"], flow["origin"])
            is_known = Address.parse(origin).domain in inputs.workspace.domains
            if origin_key(flow["config"]) in copied and origin not in lost and is_known:
                yield address, flow | {"origin": origin}


def continue_sequence_for_unmanaged(inputs: PlanInputs, decisions: Decisions) -> Overrides:
    """Continue the sequence of replaced streams that only unmanaged streams read.

    Those would otherwise wait, or lose messages.
    """
    return {
        decision.address: continue_sequence(decision)
        for decision in replaced_streams(decisions)
        if can_continue_sequence(inputs, decision)
        and any(True for _ in find_downstream(inputs, decisions, decision.address))
    }


def order_replication_checks(drafts: Drafts, checks: Iterable[Draft]) -> None:
    """Add the checks: each waits for its origins and for all other steps of its stream."""
    by_address: dict[Address, set[Key]] = {}
    for key in drafts:
        by_address.setdefault(key[0], set()).add(key)
    for check in checks:
        check.depends_on |= by_address.get(check.key[0], set())
        for flow in (check.params or {})["flows"]:
            recreated = by_address.get(Address.parse(flow["origin"]), set())
            check.depends_on |= {key for key in recreated if key[1] in ("create", "update")}
        drafts[check.key] = check


def find_downstream(inputs: PlanInputs, decisions: Decisions, origin: Address) -> Iterator[Flow]:
    """Yield the streams that read the origin when the plan is executed, each with its flow.

    Unmanaged streams are included if they were read.
    """
    for flow in flows_from(inputs, decisions, origin):
        address, planned = flow[0], decisions.get(flow[0])
        if (
            address.domain in inputs.workspace.domains
            and not address.stream.startswith(STAGING_PREFIX)
            # Otherwise the files declare it under another domain key.
            and inputs.topology.find_declared(address) == address
            and (planned is None or planned.actions != ["delete"])
        ):
            yield flow


def find_readers(inputs: PlanInputs, decisions: Decisions, origin: Address) -> Iterator[Flow]:
    """Yield what `find_downstream` does, and the readers in domains that do not answer.

    Those have the flows that were last applied, and are in no `inputs.live`.
    """
    yield from find_downstream(inputs, decisions, origin)
    real = inputs.topology.canonicalize(origin)
    for address in sorted(inputs.recorded_downstream(origin)):
        entry = inputs.entries.get(address)
        if entry is not None and not inputs.live.is_reachable(address.domain):
            for kind, flow in list_origins(entry.config):
                found = origin_of(inputs, address, flow)
                if found is not None and inputs.topology.canonicalize(found) == real:
                    yield address, kind, flow


def check_stuck_mirrors(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Refuse to recreate a stream that would end before its mirrors.

    A mirror copies nothing until its origin passes its own last sequence, and a mirror cannot begin
    at a higher one (`first_seq` is refused with `mirror`). So no apply would finish.
    """
    for address, decision in decisions.items():
        is_new = address.is_stream and decision.actions in (["create"], ["delete", "create"])
        if not is_new or decision.preserves or decision.comes_filled:
            continue
        last, why = _planned_end(inputs, decision)
        for downstream, kind, _ in find_downstream(inputs, decisions, address) if why else ():
            copy, planned = inputs.live.get(downstream), decisions.get(downstream)
            if kind != "mirror" or copy is None or (planned is not None and planned.deletes):
                continue
            before = decision.live.state if decision.live is not None else {}
            has = max(int(state.get("last_seq") or 0) for state in (copy.state, before))
            if has > last:
                text = (
                    f"{downstream} mirrors it up to sequence {has:,}; {why}. "
                    f"{downstream} would copy nothing until that is passed"
                )
                detail = (
                    f"Replace {downstream} in the same plan: jsplan apply --replace "
                    f"{quote_shell(downstream)}. Or remove it first."
                )
                yield inputs.finding("error", "JS483", text, detail, address)


def _planned_end(inputs: PlanInputs, decision: ResourceDecision) -> tuple[int, str]:
    """Return the last sequence of a new stream, and why it is that.

    Empty where it continues, or where its origin does not answer.
    """
    mirror, first = decision.planned.get("mirror"), inputs.body(decision.address).get("first_seq")
    if not mirror:
        return int(first or 1) - 1, f"the new stream is to begin at {first:,}" if first else ""
    known = decision.before or (decision.entry.config if decision.entry is not None else {})
    if subject_filters(mirror) not in ((">",), subject_filters(known.get("mirror") or {})):
        return 0, "with another filter it may end before that"
    edges = inputs.topology.edges_into(decision.address)
    read = [edge.origin for edge in edges if edge.kind == "mirror"]
    if not all(inputs.live.is_reachable(origin.domain) for origin in read):
        return 0, ""
    origins = map(inputs.live.get, read)
    last = max((int(o.state.get("last_seq") or 0) for o in origins if o is not None), default=0)
    return last, f"the stream that it is to mirror is at {last:,}"


def _draft_check(inputs: PlanInputs, downstream: Address, flows: list[dict[str, Any]]) -> Draft:
    origins = list(dict.fromkeys(flow["origin"] for flow in flows))
    names = " and ".join(
        f"{origin.kind} {origin.name} in {origin.domain}" for origin in map(Address.parse, origins)
    )
    title = (
        f"check that {downstream.kind} {downstream.name} in {downstream.domain} "
        f"follows {names} again"
    )
    managed = downstream in inputs.entries or inputs.declared(downstream) is not None
    found = {"flows": flows, "managed": managed}
    return Draft((downstream, "verify"), VERIFY_OP, title, None, "", params=found)


def check_unverified_downstream(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Note the downstream streams without a check, and warn about those that are offline."""
    for downstream, flow in _unfinished_checks(inputs, decisions):
        text = f"is not verified to follow {flow['origin']} since that was recreated"
        yield Diagnostic("info", "JS426", text, "An apply checks it again.", str(downstream))
    for decision in replaced_streams(decisions):
        offline = sorted(
            c
            for c in managed_downstream(inputs, decision.address)
            if c.domain in inputs.live.domains and not inputs.live.is_reachable(c.domain)
        )
        if offline:
            many = f" and {len(offline) - 5:,} more" if len(offline) > 5 else ""
            names = f"{', '.join(map(str, offline[:5]))}{many}"
            text = f"whether {names} will follow the new stream is not verified: offline"
            detail = "When they answer again, jsplan drift shows whether they do."
            yield inputs.finding("warning", "JS426", text, detail, decision.address)
