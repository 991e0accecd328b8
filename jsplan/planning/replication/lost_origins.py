"""Streams that another client deleted while others read them. They continue their sequences.

Their mirrors would wait until they have passed them, and so would their sources, before nats-server
2.15 or where jsplan gave them a start. State knows the last sequence that it saw, a mirror its own,
and a stream with a source the one of the newest message that it has of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jsplan.documents.plan import Hazard
from jsplan.documents.step_kinds import RESTORED
from jsplan.facts.measurement import FlowRequest
from jsplan.planning.model import Hazards, Overrides
from jsplan.planning.replication.impact import Flow, flows_from, managed_downstream, may_lack_newest
from jsplan.planning.replication.removed_sources import uncopied_measurement
from jsplan.planning.revision import Revision
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL

if TYPE_CHECKING:
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision


def list_sourced_positions(inputs: PlanInputs, decisions: Decisions) -> Iterator[FlowRequest]:
    """Request what sources have copied of lost streams, also of those from a backup."""
    for decision in decisions.values():
        restored = flows_from(inputs, {}, decision.address) if decision.reason == RESTORED else ()
        for downstream, kind, source in (*_flows(inputs, decision), *restored):
            if kind == "source" and inputs.live.get(downstream) is not None:
                yield uncopied_measurement(downstream, source, decision.address.domain)


def continue_lost_origins(inputs: PlanInputs, decisions: Decisions) -> Overrides:
    """Let each stream that is gone continue behind all that is known of its sequences."""
    revision = Revision(decisions)
    for address, decision in decisions.items():
        flows = _flows(inputs, decision)
        is_read = bool(flows) or (
            _is_lost(inputs, decision) and managed_downstream(inputs, address)
        )
        if not is_read:
            continue
        known = [decision.entry.last_seq if decision.entry is not None else 0]
        for downstream, kind, source in flows:
            live, key = inputs.live.get(downstream), origin_key(source)
            if kind == "mirror" and live is not None:
                known.append(int(live.state.get("last_seq") or 0))
            elif (entry := inputs.entries.get(downstream)) is not None:
                known.append(entry.starts.get(key, 1) - 1)
            known.append(inputs.measured.sourced.get((downstream, key), 0))
        if last := max(known):
            assert decision.after is not None
            after = decision.after | {"first_seq": last + 1}
            revision.change(address, continues_at=last + 1, after=after)
    return revision.overrides


def assess_unread_readers(inputs: PlanInputs, decision: ResourceDecision) -> Hazards:
    """Yield the hazard of a lost stream with readers of which it is not known how far they were.

    They do not answer, or may have deleted the newest message that they copied. nats-server 2.15
    looks at the origin itself.
    """
    if decision.entry is None or not _is_lost(inputs, decision):
        return
    readers = managed_downstream(inputs, decision.address) & inputs.entries.keys()
    silent = (reader for reader in readers if not inputs.live.is_reachable(reader.domain))
    offline = dict.fromkeys(silent, "does not answer")
    emptied = {
        reader: "may have deleted the newest of it"
        for reader, kind, _ in _flows(inputs, decision)
        if kind == "source"
        and inputs.level(reader) < ORIGIN_IDENTITY_LEVEL
        and (live := inputs.live.get(reader)) is not None
        and int(live.state.get("last_seq") or 0)
        and may_lack_newest(live)
    }
    if reasons := offline | emptied:
        last = int(decision.planned.get("first_seq") or 1) - 1
        why = " and ".join(f"{reader} {reasons[reader]}" for reader in sorted(reasons))
        text = (
            f"{why}: as many messages as it has copied of the lost stream beyond message {last:,}, "
            "it leaves out of the new one. Remove that source, apply, and add it again; "
            "or set a later first_seq"
        )
        causes = [str(reader) for reader in sorted(reasons)]
        yield Hazard("BREAKS_REPLICATION", text, exact=False, at_least=0, causes=causes)


def _flows(inputs: PlanInputs, decision: ResourceDecision) -> list[Flow]:
    return list(flows_from(inputs, {}, decision.address)) if _is_lost(inputs, decision) else []


def _is_lost(inputs: PlanInputs, decision: ResourceDecision) -> bool:
    is_new = decision.actions == ["create"] and decision.after is not None
    if not is_new or not decision.address.is_stream or decision.comes_filled:
        return False
    is_set = "first_seq" in decision.unknown or "first_seq" in inputs.body(decision.address)
    return not is_set and not decision.planned.get("mirror")
