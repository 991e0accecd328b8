"""Effects of a stream on others: its readers, those through a consumer, and of republishes.

An origin that drains or expires its messages takes them from its readers. A source that reads
through a consumer copies what that has not delivered. A stream that stores what another one
republishes may get nothing of it after a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.documents.plan import Hazard
from jsplan.flows.graph import stores_republished
from jsplan.planning.decide import planned_config
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.replication.checks import find_readers
from jsplan.planning.replication.impact import (
    begins_to_queue,
    leaves_markers_sooner,
    origin_of,
    republishes_less,
)
from jsplan.resources.consumer import filters_of
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import Decisions, Hazards, PlanInputs, ResourceDecision
    from jsplan.resources.fields import Config


def assess_drained(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Hazards:
    """Yield the hazard of a stream that begins to delete what existing readers copy of it.

    That is a work queue. What an interest stream deletes is measured.
    """
    live = decision.live
    if live is None or not live.state.get("messages") or decision.loses_content:
        return
    if not decision.writes or not begins_to_queue(live.compact, decision.after):
        return
    readers = sorted({flow[0] for flow in find_readers(inputs, decisions, decision.address)})
    if readers:
        count, names = int(live.state["messages"]), [str(reader) for reader in readers]
        text = (
            f"{', '.join(names)} may take up to {count_text(count, 'message')} out of it: "
            "a work queue loses what is copied"
        )
        yield counted("DELETES_MESSAGES", text, count, causes=names)


def assess_left_behind(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions, deleted: Iterable[Hazard]
) -> Hazards:
    """Yield the hazard of readers that have not copied all that a limit deletes of their origin."""
    counts = [hazard.messages for hazard in deleted if hazard.code == "DELETES_MESSAGES"]
    if not counts or decision.actions != ["update"] or not decision.address.is_stream:
        return
    found: dict[str, int | None] = {}
    total = None if None in counts else _sum(counts)
    for reader, kind, flow in find_readers(inputs, decisions, decision.address):
        live = inputs.live.get(reader)
        if live is None:
            found[f"{reader} does not answer"] = total
        elif _is_behind(live, flow):
            most = _most_uncopied(decision, total, live if kind == "mirror" else None)
            if most != 0:
                found[f"{reader} is behind"] = most
    if found:
        total = None if None in found.values() else _sum(found.values())
        some = "messages" if total is None else f"up to {count_text(total, 'message')}"
        text = f"{some} are deleted before they are copied: {', '.join(found)}"
        causes = [reason.partition(" ")[0] for reason in found]
        yield counted("BREAKS_REPLICATION", text, total, causes=causes)


def _sum(counts: Iterable[int | None]) -> int:
    return sum(count or 0 for count in counts)


def _is_behind(reader: LiveObject, flow: Config) -> bool:
    """Check whether a mirror or source lags. The number that servers report may be too low."""
    return any(one.get("lag") for one in reader.flows if one.get("name") == flow["name"])


def _most_uncopied(
    decision: ResourceDecision, deleted: int | None, mirror: LiveObject | None
) -> int | None:
    """Return how many of the deleted messages a reader lacks at most.

    A mirror lacks the newest ones, and limits delete the oldest first, but that of each subject.
    """
    assert decision.live is not None
    if mirror is None:
        return deleted
    now, copied = decision.live.state, int(mirror.state.get("last_seq") or 0)
    lacks = min(int(now["messages"]), max(0, int(now["last_seq"]) - copied))
    if deleted is None or any(one.path == "max_msgs_per_subject" for one in decision.fields):
        return lacks
    return max(0, lacks + deleted - int(now["messages"]))


def assess_markers(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Hazards:
    """Yield the hazard of streams that keep longer what a stream will let expire.

    Its markers come to them, too, and replace what they have of these subjects.
    """
    if not decision.address.is_stream or not leaves_markers_sooner(decision):
        return
    age, pending = int(decision.planned["max_age"]), [decision.address]
    found: dict[Address, int | None] = {}
    seen = {decision.address}
    while pending:
        for reader, _, _ in find_readers(inputs, decisions, pending.pop()):
            if reader in seen:
                continue
            seen.add(reader)
            pending.append(reader)
            live, has = inputs.live.get(reader), None
            config = planned_config(inputs, decisions, reader) or {}
            if live is not None:
                has = int(live.state.get("messages") or 0)
            elif reader in inputs.entries:  # it does not answer
                config = inputs.entries[reader].config
            history = int(config.get("max_msgs_per_subject") or 0)
            obeys = config.get("allow_rollup_hdrs") or history > 0
            if has != 0 and obeys and not 0 < int(config.get("max_age") or 0) <= age:
                found[reader] = has
    if found:
        known, names = [n for n in found.values() if n is not None], sorted(map(str, found))
        total = sum(known) if len(known) == len(found) else None
        many = "messages (the number is not known)"
        text = (
            f"{', '.join(names)} may lose "
            f"{many if total is None else 'up to ' + count_text(total, 'message')}: the markers of "
            "expired subjects are copied, and replace what is kept there"
        )
        yield counted("DELETES_MESSAGES", text, total, causes=names)


def assess_read_through(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Yield the hazard of streams that read their origin through this consumer.

    They copy nothing without it, and only what its filters take.
    """
    parent, live = decision.address.parent, decision.live
    if decision.address.kind != "consumer" or parent is None or live is None:
        return
    filters = [sorted(filters_of(config)) for config in (live.compact, decision.planned)]
    if not decision.deletes and filters[0] == filters[1]:
        return
    readers = sorted(
        str(reader)
        for reader, _, flow in find_readers(inputs, decisions, parent)
        if (flow.get("consumer") or {}).get("name") == decision.address.consumer
    )
    if readers:
        verb = "reads" if len(readers) == 1 else "read"
        text = f"{', '.join(readers)} {verb} {parent} through this consumer"
        yield Hazard("BREAKS_REPLICATION", text, causes=readers)


def assess_unfilled(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Yield the hazard of a lost or recreated stream that its sources do not fill again.

    A server begins such a source where the consumer is (measured on 2.14 and 2.15).
    """
    is_lost = decision.reason == "create_because_missing"
    if not decision.address.is_stream or not (is_lost or decision.loses_content):
        return
    for source in decision.planned.get("sources") or ():
        name = (source.get("consumer") or {}).get("name")
        origin = origin_of(inputs, decision.address, source) if name else None
        if origin is None:
            continue
        consumer = Address(origin.domain, "consumer", f"{origin.stream}/{name}")
        stream, reader = inputs.live.get(origin), inputs.live.get(consumer)
        known = [decisions[a] for a in (origin, consumer) if a in decisions]
        if stream is None or any(v.loses_content or v.live is None for v in known):
            continue  # the consumer begins at its start
        pending = int(reader.state.get("num_pending") or 0) if reader is not None else 0
        if most := max(0, int(stream.state.get("messages") or 0) - pending):
            text = (
                f"up to {count_text(most, 'message')} of {origin} do not come again: consumer "
                f"{name} has delivered them. Set its position first"
            )
            yield counted("BREAKS_REPLICATION", text, most, causes=[str(origin)])


def assess_republished(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Yield the hazard of a stream that is deleted or republishes less, as does its successor."""
    live = decision.live
    if live is None or not live.compact.get("republish"):
        return
    after = _plan_successor(inputs, decision, decisions)
    if not republishes_less(live.compact, after):
        return
    readers = [
        str(address)
        for address, config in sorted(_list_streams(inputs, decisions), key=itemgetter(0))
        if address != decision.address
        and share_connection(inputs, address.domain, decision.address.domain)
        and stores_republished(config, live.compact)
    ]
    if readers:
        dest, verb = live.compact["republish"]["dest"], "stores" if len(readers) == 1 else "store"
        text = f"{', '.join(readers)} {verb} what it republishes under {dest}, and will not get all"
        yield Hazard("BREAKS_REPLICATION", text, causes=readers)


def _list_streams(inputs: PlanInputs, decisions: Decisions) -> Iterator[tuple[Address, Config]]:
    """Yield the streams that stay, in domains that do not answer as they were last applied."""
    for address, live in inputs.live.objects.items():
        if address.is_stream and planned_config(inputs, decisions, address) is not None:
            yield address, live.compact
    for address, entry in inputs.entries.items():
        if address.is_stream and not inputs.live.is_reachable(address.domain):
            yield address, entry.config


def _plan_successor(inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions) -> Config:
    """Return what the stream will be, or the target of its relocation in the same account."""
    address: Address = decision.address
    if decision.relocation is not None and decision.deletes:
        address = decision.relocation.target
        if not share_connection(inputs, address.domain, decision.address.domain):
            return {}
    return planned_config(inputs, decisions, address) or {}


def share_connection(inputs: PlanInputs, one: str, other: str) -> bool:
    """Check whether two domains are reached in one account, which shares its subjects."""
    domains = inputs.workspace.domains
    pair = [domains[domain].connection for domain in (one, other) if domain in domains]
    return one == other or (len(pair) == 2 and pair[0] == pair[1])
