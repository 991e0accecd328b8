"""Preconditions of steps beside fingerprints: what must not have grown or changed.

The retention of a stream decides which messages are deleted with a consumer. Apply accounts for
what the plan itself changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.address import Address
from jsplan.documents.plan import Step
from jsplan.facts.live import get_retention, is_durable
from jsplan.flows.graph import ReaderIndex
from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
from jsplan.planning.replication.impact import downstream_domains
from jsplan.planning.split_updates import stream_of


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


def expect_readers(inputs: PlanInputs, decisions: Decisions, steps: Iterable[Step]) -> None:
    """Write into each step that deletes or replaces a stream which streams read it, by domain.

    Those of domains that could not be listed are not known.
    """
    ending = [step for step in steps if step.op in ("stream.delete", "transfer.quiesce")]
    if not ending:
        return
    live, domains = inputs.live, inputs.workspace.domains
    read = downstream_domains(inputs, decisions) - live.unlisted.keys()
    listed = [domain for domain in sorted(read) if domains[domain].is_own]
    readers = ReaderIndex({one.address: one.raw for d in listed for one in live.streams(d)})
    for step in ending:
        origin = live.get(step.target_address)
        if origin is None or Address.parse(step.address) not in decisions:
            continue
        known: dict[str, list[str]] = {domain: [] for domain in listed}
        for reader in sorted(readers.find(origin.raw)):
            known[reader.domain].append(reader.stream)
        step.precondition["readers"] = known


def _durable_consumers(inputs: PlanInputs, stream: Address) -> dict[str, str]:
    """Return by name the `created` of the durable consumers of a stream that is replaced.

    They decide which messages stay, and whether the new stream may have its limits.
    """
    consumers = {found.address.consumer: found for found in inputs.consumers_of(stream)}
    return {name: one.created for name, one in consumers.items() if is_durable(name, one.raw)}


def _is_recreated(inputs: PlanInputs, stream: ResourceDecision, name: Address) -> bool:
    renamed = stream.address != name and stream.actions != ["no-op"]
    return stream.replaces or stream.address in inputs.interrupted.streams or renamed
