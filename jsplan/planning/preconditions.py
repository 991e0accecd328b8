"""Preconditions of steps beside fingerprints: what must not have grown or changed.

The retention of a stream decides which messages are deleted with a consumer. Apply accounts for
what the plan itself changes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from jsplan.address import Address
from jsplan.documents.plan import Step
from jsplan.documents.step_kinds import VERIFY_OP
from jsplan.facts.live import LiveObject, get_retention, is_durable
from jsplan.flows.graph import ReaderIndex
from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
from jsplan.planning.replication.arriving_messages import planned_flows
from jsplan.planning.replication.impact import matters_to_readers
from jsplan.planning.split_updates import stream_of
from jsplan.planning.unmanaged import reader_domains
from jsplan.resources.fields import Config


def bound_deletions(inputs: PlanInputs, decisions: Decisions, steps: Iterable[Step]) -> None:
    """Set `max_deleted` of each deletion: messages, or unfinished messages of a consumer.

    The apply compares it with the current count. What an update deletes it counts again instead
    (`applying.recheck_deletions`). `max_consumers` is of a stream that needs no permission because
    it has none.
    """
    safe_below = inputs.options.safe_below
    for step in steps:
        decision = decisions.get(Address.parse(step.address))
        live = decision.live if decision is not None else None
        if decision is None or live is None or "fingerprint" not in step.precondition:
            continue
        messages, deletes_stream = live.messages_at_risk, step.op == "stream.delete"
        if deletes_stream or (step.op == "consumer.delete" and decision.actions == ["delete"]):
            step.precondition["max_deleted"] = max(messages + messages // 10, safe_below)
        if deletes_stream and messages <= safe_below and not live.state.get("consumer_count"):
            step.precondition["max_consumers"] = 0


def expect_streams(inputs: PlanInputs, decisions: Decisions, steps: Iterable[Step]) -> None:
    """Write the stream as it was read into the precondition of each consumer's step.

    Not where the plan creates the stream, or changes it under another name of its domain: apply
    would not recognise it.
    """
    for step in steps:
        address = Address.parse(step.address)
        if step.op == "transfer.quiesce":
            step.precondition["consumers"] = _durable_consumers(inputs, step.target_address)
        if address.parent is None or step.request is None:
            continue
        planned = decisions.get(stream_of(inputs, decisions, address))
        live = inputs.live.get(address.parent) or (planned.live if planned is not None else None)
        if planned is not None and _is_recreated(inputs, planned, address.parent):
            continue
        if live is not None:
            expected = {"created": live.created, "retention": get_retention(live.compact)}
            step.precondition["parent"] = expected


def expect_readers(inputs: PlanInputs, decisions: Decisions, steps: Sequence[Step]) -> None:
    """Write into the first step that changes what readers get which streams read it, by domain.

    Over any number of hops, before the plan or after it. Those of domains that could not be listed
    are not known. `related` has the configurations that were judged.
    """
    found: dict[Address, Step] = {}
    begins = planned_flows(inputs, decisions).meeting
    for step in steps:
        decision = decisions.get(Address.parse(step.address))
        if decision is not None and _changes_readers(step, decision, begins):
            found.setdefault(step.target_address, step)
    if not found:
        return
    read = reader_domains(inputs, decisions) - inputs.live.unlisted.keys()
    listed = [domain for domain in sorted(read) if inputs.workspace.domains[domain].is_own]
    readers = ReaderIndex(_list_configs(inputs, decisions, listed))
    others, written = _list_others(inputs, steps, listed), set[Address]()
    for stream, step in found.items():
        real = inputs.topology.canonicalize(stream)
        reading = readers.find(real)
        known: dict[str, list[str]] = {domain: [] for domain in listed}
        for reader in sorted(reading):
            known.setdefault(reader.domain, []).append(reader.stream)
        step.precondition["readers"] = {domain: known[domain] for domain in listed}
        if stream in begins:
            # What many steps need is in the first: all are checked before any write.
            reading |= planned_flows(inputs, decisions).find_upstream({real, *reading}) - written
            written |= reading
        if related := sorted(others.keys() & reading):
            step.precondition["related"] = {str(a): others[a].flows_fingerprint for a in related}


def _list_others(
    inputs: PlanInputs, steps: Iterable[Step], domains: Iterable[str]
) -> dict[Address, LiveObject]:
    """Return each stream of these domains that no step changes."""
    changed = {
        inputs.topology.canonicalize(Address.of_stream(a.domain, a.stream))
        for step in steps
        for a in _changed_by(step)
    }
    return {
        one.address: one
        for domain in domains
        for one in inputs.live.streams(domain)
        if one.address not in changed
    }


def _changed_by(step: Step) -> Iterator[Address]:
    """Yield the streams whose configuration a step may change, and what belongs to them."""
    if step.op != VERIFY_OP and step.kind.on in ("stream", "any"):
        yield step.target_address
        yield Address.parse(step.address)
        params = step.params or {}
        yield from (Address.parse(params[side]) for side in ("from", "to") if side in params)


def _changes_readers(step: Step, decision: ResourceDecision, begins: Container[Address]) -> bool:
    """Check whether a step takes or restores a stream, or changes what its readers get.

    Where it is recreated, the step that deletes it comes before.
    """
    if step.op in ("transfer.quiesce", "stream.restore") or (
        step.kind.on == "stream" and step.kind.does == "delete"
    ):
        return True
    return step.kind.begins_flows and (matters_to_readers(decision) or decision.address in begins)


def _list_configs(
    inputs: PlanInputs, decisions: Decisions, domains: Iterable[str]
) -> Iterator[tuple[Address, Config]]:
    """Yield every stream on its server, and those of the plan after it.

    The target of a relocation reads its origin meanwhile.
    """
    for domain in domains:
        yield from ((one.address, one.raw) for one in inputs.live.streams(domain))
    for address, decision in inputs.touched(decisions).items():
        stream = inputs.topology.canonicalize(address)
        if address.is_stream and decision.after is not None:
            yield stream, decision.after
        if address.is_stream and decision.relocation is not None:
            target = inputs.topology.canonicalize(decision.relocation.target)
            yield target, {"mirror": {"name": decision.relocation.origin.stream}}


def _durable_consumers(inputs: PlanInputs, stream: Address) -> dict[str, str]:
    """Return by name the `created` of the durable consumers of a stream that is replaced.

    They decide which messages stay, and whether the new stream may have its limits.
    """
    consumers = {found.address.consumer: found for found in inputs.consumers_of(stream)}
    return {name: one.created for name, one in consumers.items() if is_durable(name, one.raw)}


def _is_recreated(inputs: PlanInputs, stream: ResourceDecision, name: Address) -> bool:
    renamed = stream.address != name and stream.actions != ["no-op"]
    return stream.replaces or stream.address in inputs.interrupted.streams or renamed
