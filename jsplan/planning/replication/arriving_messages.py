"""The messages that a plan stores twice or pushes out, along every path."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec.structs import replace

from jsplan.address import STAGING_PREFIX, Address
from jsplan.documents.plan import Hazard, Step
from jsplan.documents.step_kinds import RESTORED
from jsplan.facts.live import get_retention
from jsplan.facts.measurement import FlowCount, FlowRequest
from jsplan.flows.arrivals import ArrivalModel, Change, Count, Effect
from jsplan.flows.graph import Flow, FlowGraph, StreamNode, list_origins
from jsplan.planning.decide import planned_config, table_of
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.model import Hazards
from jsplan.planning.replication.affected_readers import share_connection
from jsplan.planning.replication.closed_streams import list_resumed
from jsplan.planning.replication.impact import continued_sources, copies_again
from jsplan.resources.nested import origin_key
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL, ROLLUP_MIRROR_LEVEL
from jsplan.resources.source_header import source_name
from jsplan.topology.replication_graph import subject_filters
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.planning.model import Decisions, PlanInputs, ResourceDecision
    from jsplan.planning.restore.selection import RestoreTarget


#: The counts of what flows take of their origins, by downstream stream.
Arriving = Mapping[Address, Sequence[FlowCount]]


class PlannedFlows:
    """The streams and flows before and after a plan, and the flows that copy from their start."""

    def __init__(self, inputs: PlanInputs, decisions: Decisions) -> None:
        self._inputs, self._decisions = inputs, decisions
        changes = bool(inputs.backup) or any(
            v.address.parent is None
            and (v.preserves or v.relocation or (v.writes and list_origins(v.after or {})))
            for v in decisions.values()
        )
        named = (inputs.live.objects, decisions, inputs.entries, self._unread_readers())
        # By the real domain: two keys of the files may stand for one.
        self._real = {
            inputs.topology.canonicalize(a): a
            for a in (chain.from_iterable(named) if changes else ())
            if a.parent is None and not a.stream.startswith(STAGING_PREFIX)
        }
        #: The origin of each stream that the plan fills by relocating it, by the target.
        self._filled = {
            inputs.topology.canonicalize(v.address): inputs.topology.canonicalize(
                v.relocation.origin
            )
            for v in (inputs.touched(decisions).values() if changes else ())
            if v.relocation is not None and v.address.is_stream and v.comes_filled and not v.live
        }
        resolve = inputs.topology.routes.resolve_prefix
        reaches = partial(share_connection, inputs)
        self.before = FlowGraph(filter(None, map(self._node_before, self._real)), resolve, reaches)
        self.after = FlowGraph(filter(None, map(self._node_after, self._real)), resolve, reaches)
        #: Streams that are new or lose their messages. What is relocated brings them along.
        self.emptied = frozenset(filter(self._is_emptied, self._real))
        self.worked_off = self._find_worked_off()
        self.fresh = [flow for flow in self._find_fresh() if not self._continues(flow)]
        self._copied_again = {(f.downstream, f.key): f for f in self._find_copied_again()}
        self._awaited = {(f.downstream, f.key): f for f in self._find_awaited()}
        self.fresh += (*self._copied_again.values(), *self._awaited.values())
        known = {(flow.downstream, flow.key) for flow in self.fresh}
        begun_again = [
            (f, most) for f, most in self._find_begun_again() if (f.downstream, f.key) not in known
        ]
        #: How many messages at most these sources of restored streams copy again.
        self._most_again = {(f.downstream, f.key): most for f, most in begun_again}
        self._again = self._most_again.keys() | self._copied_again.keys()
        self._again |= {(f.downstream, f.key) for f in self.fresh if f.downstream in self._filled}
        self.fresh += (flow for flow, _ in begun_again)
        begun = {(flow.downstream, flow.key) for flow in self.fresh}
        resumed = [f for f in self._find_resumed() if (f.downstream, f.key) not in begun]
        self._resumed = frozenset((flow.downstream, flow.key) for flow in resumed)
        self.fresh += resumed

    def decision(self, stream: Address) -> ResourceDecision | None:
        """Return the decision about a stream of the graphs."""
        return self._decisions.get(self._real[stream])

    def _is_emptied(self, stream: Address) -> bool:
        decision = self.decision(stream)
        if decision is None or decision.comes_filled:
            return False
        return decision.loses_content or (decision.live is None and decision.actions == ["create"])

    def _unread_readers(self) -> Iterator[Address]:
        """Yield the streams of offline domains that read a stream of the backup, by the files."""
        for edge in self._inputs.topology.edges if self._inputs.backup else ():
            if not self._inputs.live.is_reachable(edge.downstream.domain):
                yield edge.downstream

    def _node_before(self, stream: Address) -> StreamNode | None:
        live = self._inputs.live.get(self._real[stream])
        if live is not None and not self._is_restored(stream):
            return StreamNode(stream, live.compact, live.state)
        if self._inputs.backup:
            return self._node_of_backup(stream)
        entry = self._inputs.entries.get(self._real[stream])
        if entry is None:
            return None
        if not self._inputs.live.is_reachable(self._real[stream].domain):
            return StreamNode(stream, entry.config, is_read=False)
        decision = self.decision(stream)
        if decision is None or decision.actions != ["create"]:
            return None
        return StreamNode(stream, entry.config)  # another client deleted it

    def _node_of_backup(self, stream: Address) -> StreamNode | None:
        """Return a stream as it was saved, or as the files have it in an offline domain."""
        address = self._real[stream]
        target = self._inputs.backup.get(address)
        if target is not None:
            config = table_of(address).compact(target.config)
            return StreamNode(stream, config, target.saved.before)
        return StreamNode(stream, self._inputs.topology.bodies[address], is_read=False)

    def _find_worked_off(self) -> frozenset[Address]:
        """Return the streams that may have had messages which they have not any more."""
        return frozenset(
            address
            for address, node in self.before.nodes.items()
            if not node.is_read
            or get_retention(node.config) != "limits"
            or (not node.messages and int(node.state.get("last_seq") or 0) > 0)
        )

    def _node_after(self, stream: Address) -> StreamNode | None:
        config = planned_config(self._inputs, self._decisions, self._real[stream])
        live = self._inputs.live.get(self._real[stream])
        if config is None:
            before = self.before.nodes.get(stream)
            return before if before is not None and not before.is_read else None
        if live is None and stream in self._filled:
            live = self._inputs.live.get(self._real[self._filled[stream]])
        return StreamNode(stream, config, live.state if live is not None else {})

    def _find_fresh(self) -> Iterator[Flow]:
        for stream, flows in self.after.flows_into.items():
            decision = self.decision(stream)
            if decision is None or decision.after is None or not decision.writes:
                continue
            known = {(flow.kind, flow.key) for flow in self.before.flows_into.get(stream, ())}
            for flow in flows:
                if flow.kind == "republish":
                    continue  # it begins with what is stored from then on
                is_known = stream not in self.emptied and (flow.kind, flow.key) in known
                if not is_known or self._starts_again(flow):
                    yield flow

    def _find_resumed(self) -> Iterator[Flow]:
        """Yield the flows that bring what their stream may have refused until then."""
        for stream, flows in self.after.flows_into.items():
            decision = self.decision(stream)
            if decision is not None and not decision.is_untouched:
                keys = {origin_key(flow) for flow in list_resumed(self._inputs, decision)}
                yield from (flow for flow in flows if flow.kind != "republish" and flow.key in keys)

    def _find_copied_again(self) -> Iterator[Flow]:
        """Yield the flows from preserved and restored streams that begin again."""
        for origin in filter(self._is_renewed, self._real):
            for flow in self.after.flows_from.get(origin, ()):
                if flow.kind == "source" and self._copies_again(flow):
                    yield flow

    def _find_begun_again(self) -> Iterator[tuple[Flow, int]]:
        """Yield the sources of restored streams whose backup may lack what they copied last.

        With each of them the number of messages that it copies again at most.
        """
        for stream in filter(self._is_restored, self._real):
            target = self._inputs.backup[self._real[stream]]
            most = count_copied_again(target, is_old=self._is_old(stream))
            for flow in self.after.flows_into.get(stream, ()) if most else ():
                if flow.kind == "source" and not flow.config.get("consumer"):
                    yield flow, most

    def _is_restored(self, stream: Address) -> bool:
        decision = self.decision(stream)
        return decision is not None and decision.reason == RESTORED and decision.address.is_stream

    def _find_awaited(self) -> Iterator[Flow]:
        """Yield the flows that waited for a stream, which comes with its messages."""
        begun = {(flow.downstream, flow.key) for flow in self.fresh}
        for target in self._filled:
            known = {(f.downstream, f.key) for f in self.before.flows_from.get(target, ())}
            for flow in self.after.flows_from.get(target, ()):
                key = flow.downstream, flow.key
                if flow.kind != "republish" and key in known and key not in begun:
                    yield flow

    def _copies_again(self, flow: Flow) -> bool:
        """Check whether a source takes its origin, which came back, for another one."""
        reader = self._real[flow.downstream]
        live = self._inputs.live.get(reader)
        if live is not None:
            return copies_again(self._inputs, live, self._real[flow.origin], self._decisions)
        if reader in self._inputs.backup:
            return not self._is_old(flow.downstream)
        return not self.after.nodes[flow.downstream].is_read

    def _is_renewed(self, stream: Address) -> bool:
        """Check whether a stream comes back with its messages, and another `created`."""
        decision = self.decision(stream)
        if decision is None or decision.reason != RESTORED:
            return decision is not None and decision.preserves
        return self._inputs.backup[decision.address].is_renewed

    def _continues(self, flow: Flow) -> bool:
        """Check whether the plan lets a source begin behind what the stream has had of it.

        What it has is known, what it has had only to nats-server 2.15. A stream that is empty has
        nothing any more, wherever its sources began.
        """
        decision, reader = self.decision(flow.downstream), flow.downstream
        assert decision is not None
        if self._comes_back(flow, decision):
            return False
        is_known = reader not in self.worked_off or not self._is_old(reader)
        entry = decision.entry if reader not in self.emptied else None
        starts = continued_sources(entry) if entry is not None else set[str]()
        starts |= decision.relocated_sources.keys() if is_known else set()
        keeps = decision.preserves and flow.kind == "mirror"
        return decision.comes_filled or flow.key in starts or keeps

    def _comes_back(self, flow: Flow, decision: ResourceDecision) -> bool:
        """Check whether the stream had this source before the one that it takes the place of.

        The server continues it behind its own newest message there, whatever its start (measured on
        2.12 to 2.15). Since 2.15 it does not, if the origin has come to its address since.
        """
        moved = decision.relocation
        at = moved.origin if moved is not None and moved.target == decision.address else None
        entry = self._inputs.entries.get(at or decision.address)
        is_other = flow.origin in self._filled and not self._is_old(flow.downstream)
        return (
            flow.key in decision.relocated_sources
            and entry is not None
            and flow.key in entry.left_sources
            and not is_other
        )

    def brings_back(self, effect: Effect) -> bool:
        """Check whether a source that comes back stores messages twice."""
        flows = [arrival.flow for arrival in effect.arrivals]
        return any(
            self._comes_back(flow, decision)
            for flow in flows
            if (decision := self.decision(flow.downstream)) is not None
        )

    def _starts_again(self, flow: Flow) -> bool:
        """Check whether a replaced stream may begin a source again although it is preserved.

        Before nats-server 2.15 it continues behind the newest message that it still has.
        """
        decision, reader = self.decision(flow.downstream), flow.downstream
        if decision is None or not decision.preserves or flow.kind != "source":
            return False
        return reader in self.worked_off and self._is_old(reader)

    def _is_old(self, stream: Address) -> bool:
        """Check whether the server of a stream does not know how far its sources are."""
        return self._inputs.level(self._real[stream]) < ORIGIN_IDENTITY_LEVEL

    def find_unread(self) -> set[Address]:
        """Return the streams that new messages may come from, and that were not read yet."""
        upstream = self.find_upstream({flow.downstream for flow in self.fresh})
        live = self._inputs.live
        return {
            address
            for address in upstream - self.before.nodes.keys() - self.after.nodes.keys()
            if address not in live.requested and live.is_reachable(address.domain)
        }

    def find_upstream(self, streams: Collection[Address]) -> set[Address]:
        """Return every stream that their messages come from, before the plan or after it."""
        return self.before.find_upstream(streams) | self.after.find_upstream(streams)

    @property
    def meeting(self) -> set[Address]:
        """The streams of the plan that others may read and new flows bring messages.

        They may read one that is new, too, since servers accept a source that does not exist.
        """
        known = (
            flow.downstream
            for flow in self.fresh
            if flow.downstream in self.before.nodes or self._count(flow, None) != 0
        )
        return {self._inputs.topology.find_declared(stream) for stream in known}

    # --- counts -----------------------------------------------------------------------------------

    def list_counts(self) -> Iterator[FlowRequest]:
        """Request the number of messages that flows take, if all of their origins would do harm."""
        if not self.fresh:
            return
        model = ArrivalModel(self.build_change(None))
        if not any(
            True for find in (model.duplicates, model.pushed_out, model.refused) for _ in find()
        ):
            return
        for flow in filter(self._is_counted, self.fresh):
            again = (flow.downstream, flow.key) in self._again
            yield FlowRequest(
                self._real[flow.downstream],
                flow.key,
                flow.origin,
                subject_filters(flow.config),
                source_name(flow.config),
                recreated=again or flow.downstream in self.emptied,
                start_seq=flow.config.get("opt_start_seq") or 0,
                start_time=flow.config.get("opt_start_time") or "",
                mirror=flow.kind == "mirror" and (flow.downstream, flow.key) in self._resumed,
            )

    def _is_counted(self, flow: Flow) -> bool:
        """Check whether a flow may take fewer messages than its origin has."""
        origin = self.before.nodes.get(flow.origin)
        if origin is None or not origin.messages or flow.origin in self.emptied:
            return False
        if self._real[flow.origin] in self._inputs.backup:
            return False  # it is in the backup
        had = self.before.nodes.get(flow.downstream)
        continues = had is not None and had.messages and flow.downstream not in self.emptied
        is_rest = flow.kind == "source" or (flow.downstream, flow.key) in self._resumed
        return _is_partial(flow) or (is_rest and bool(continues))

    def build_change(self, arriving: Arriving | None) -> Change:
        """Return the change for the model, with the answers to `list_counts`; None: not asked."""
        counts = {(flow.downstream, flow.key): self._count(flow, arriving) for flow in self.fresh}
        return Change(
            self.before,
            self.after,
            self.emptied,
            counts,
            self._find_continued(),
            self.worked_off,
            {k: flow.origin for k, flow in (self._copied_again | self._awaited).items()},
            frozenset(filter(self._refuses_rollups, self.after.nodes)),
            self._resumed,
            frozenset(self._again),
            self._filled,
        )

    def _refuses_rollups(self, stream: Address) -> bool:
        """Check whether the server takes only rollups that are allowed, as far as it answers."""
        level = self._inputs.level(self._real[stream])
        return self.after.nodes[stream].is_read and level < ROLLUP_MIRROR_LEVEL

    def _find_continued(self) -> frozenset[tuple[Address, str]]:
        """Return the flows from mirrors that fill again, under the same sequences.

        Mirrors do not, nor sources before nats-server 2.15, nor those that are attached again.
        """
        found = set[tuple[Address, str]]()
        for origin in self.emptied:
            if not self._mirrors_the_same(origin):
                continue
            before = self.before.flows_from.get(origin, ())
            known = {(flow.downstream, flow.kind, flow.key) for flow in before}
            for flow in self.after.flows_from.get(origin, ()):
                is_known = (flow.downstream, flow.kind, flow.key) in known
                if not is_known or flow.kind == "republish":
                    continue
                reader = self.decision(flow.downstream)
                attached = reader is not None and flow.key in reader.sources_to_attach
                if flow.kind == "mirror" or attached or self._is_old(flow.downstream):
                    found.add((flow.downstream, flow.key))
        return frozenset(found)

    def _mirrors_the_same(self, stream: Address) -> bool:
        """Check whether a stream was a mirror, and becomes one of the same origin."""
        nodes = (self.before.nodes.get(stream), self.after.nodes.get(stream))
        mirrors = [node.config.get("mirror") if node is not None else None for node in nodes]
        keys = {origin_key(mirror) for mirror in mirrors if mirror}
        return all(mirrors) and len(keys) == 1

    def _count(self, flow: Flow, arriving: Arriving | None) -> Count:
        known = (
            self._count_coming(flow, arriving),
            self._most_again.get((flow.downstream, flow.key)),
        )
        return min((count for count in known if count is not None), default=None)

    def _count_coming(self, flow: Flow, arriving: Arriving | None) -> Count:
        for answer in (arriving or {}).get(self._real[flow.downstream], ()):
            if answer.request.name == flow.key:
                return answer.at_most
        origin = self.before.nodes.get(self._filled.get(flow.origin, flow.origin))
        if origin is not None and origin.is_read:
            more = self._copied_since(flow.origin, frozenset())
            return None if more is None else origin.messages + more
        is_empty = self._inputs.live.is_absent(flow.origin) or flow.origin in self.emptied
        return 0 if is_empty else None

    def _copied_since(self, stream: Address, above: frozenset[Address]) -> Count:
        """Return how many messages a restored stream may copy that its backup does not have."""
        found = 0
        for flow in self.after.flows_into.get(stream, ()) if self._is_restored(stream) else ():
            origin = self.before.nodes.get(flow.origin)
            if flow.kind == "republish" or (origin is None and self._count(flow, None) == 0):
                continue
            if origin is None or not origin.is_read or flow.origin in above:
                return None
            if flow.kind == "mirror":
                ends = (int(self.before.nodes[a].state["last_seq"]) for a in (flow.origin, stream))
                found += max(0, next(ends) - next(ends))
            elif (more := self._copied_since(flow.origin, above | {stream})) is not None:
                found += origin.messages + more
            else:
                return None
        return found


def count_copied_again(target: RestoreTarget, *, is_old: bool) -> int:
    """Return how many messages at most each source of a restored stream copies again.

    It begins behind the newest message of it that the stream has, so it copies only what the stream
    has no more. Without one nats-server 2.15 begins from its start, an older one (`is_old`) behind
    the last message that the stream stored (measured).

    A bucket deletes by its history only what the same key has again. Messages that have expired
    since are found before they are deleted (measured on 2.15).
    """
    config, before, after = target.config, target.saved.before, target.saved.after
    writers = len(config.get("sources") or ()) + bool(config.get("subjects"))
    if get_retention(config) == "limits" and before["messages"]:
        names = ["max_age"]
        names += ["max_msgs", "max_bytes"] if config.get("discard", "old") == "old" else []
        names += ["max_msgs_per_subject"] if target.address.kind == "stream" else []
        if writers == 1 or not any(int(config.get(name) or 0) > 0 for name in names):
            return 0
    first, last, kept = (int(after[name]) for name in ("first_seq", "last_seq", "messages"))
    if before != after:  # the archive may be of any time between
        return last
    ends_with_its_own = writers == 1 and kept
    return last - (max(first, 1) - 1 if is_old or ends_with_its_own else 0) - kept


def _is_partial(flow: Flow) -> bool:
    started = flow.config.get("opt_start_seq") or flow.config.get("opt_start_time")
    return bool(started) or ">" not in subject_filters(flow.config)


def planned_flows(inputs: PlanInputs, decisions: Decisions) -> PlannedFlows:
    """Return the flows of a plan, made once for these inputs."""
    return inputs.index(
        "planned streams", (inputs.live.objects, decisions), lambda: PlannedFlows(inputs, decisions)
    )


# --- hazards --------------------------------------------------------------------------------------

Kind = Literal["twice", "pushed out", "refused"]
_COMES_BACK: Final = (
    ". The server continues a source that comes back behind the last message that it brought"
)


def assess_arrivals(
    inputs: PlanInputs, decision: ResourceDecision, decisions: Decisions
) -> Hazards:
    """Yield the hazards of what this change brings to any stream."""
    for kind, effect in _effects(inputs, decisions).get(decision.address, ()):
        model = _model(inputs, decisions)
        assert model is not None, "it has effects"
        found = (" -> ".join(map(str, model.path(arrival))) for arrival in effect.arrivals)
        paths = " and ".join(dict.fromkeys(found))
        describe = {"twice": _twice, "pushed out": _pushed_out, "refused": _refused}[kind]
        hazard = describe(decision, effect, paths)
        if kind == "twice" and planned_flows(inputs, decisions).brings_back(effect):
            hazard = replace(hazard, message=hazard.message + _COMES_BACK)
        yield hazard


def count_arrivals(inputs: PlanInputs, decisions: Decisions, stream: Address) -> Count:
    """Return how many messages at most the plan brings to a stream; None: unknown."""
    real = inputs.topology.canonicalize(stream)
    model = _model(inputs, decisions)
    counts = [arrival.at_most for arrival in model.arrivals(real)] if model is not None else []
    return None if None in counts else sum(count or 0 for count in counts)


def _model(inputs: PlanInputs, decisions: Decisions) -> ArrivalModel | None:
    planned = planned_flows(inputs, decisions)
    if not planned.fresh:
        return None
    return inputs.index(
        "arrival model",
        (inputs.live.objects, decisions),
        lambda: ArrivalModel(planned.build_change(inputs.measured.arriving)),
    )


def bound_arrivals(inputs: PlanInputs, decisions: Decisions, steps: Iterable[Step]) -> None:
    """Write into each step that begins flows how many messages their origins have.

    More of them would do more than the hazards of the plan say.
    """
    planned = planned_flows(inputs, decisions)
    if not planned.fresh or not any(_effects(inputs, decisions).values()):
        return
    origins: dict[Address, list[dict[str, Any]]] = {}
    for flow in planned.fresh:
        origin = planned.before.nodes.get(flow.origin)
        if origin is not None and origin.is_read:
            declared = inputs.topology.find_declared(flow.origin)
            coming = count_arrivals(inputs, decisions, flow.origin)
            if coming is None:
                continue
            bound = {"origin": str(declared), "max_messages": origin.messages + coming}
            origins.setdefault(inputs.topology.find_declared(flow.downstream), []).append(bound)
    for step in steps:
        address = Address.parse(step.address)
        if step.kind.begins_flows and address in origins:
            step.precondition["new_flows"] = origins[address]


def _effects(inputs: PlanInputs, decisions: Decisions) -> dict[Address, list[tuple[Kind, Effect]]]:
    return inputs.index(
        "arrivals", (inputs.live.objects, decisions), lambda: _find_effects(inputs, decisions)
    )


def _find_effects(
    inputs: PlanInputs, decisions: Decisions
) -> dict[Address, list[tuple[Kind, Effect]]]:
    """Return the effects by the stream at which they are reported: its own, or a cause."""
    planned = planned_flows(inputs, decisions)
    found: dict[Address, list[tuple[Kind, Effect]]] = {}
    model, effects = _model(inputs, decisions), list[tuple[Kind, Effect]]()
    if model is not None:
        effects += [("twice", effect) for effect in model.duplicates()]
        effects += [("pushed out", effect) for effect in model.pushed_out()]
        effects += [("refused", effect) for effect in model.refused()]
    for kind, effect in effects:
        own = planned.decision(effect.stream)
        begins = own is not None and own.writes and own.reason != RESTORED
        at = effect.stream if begins else min(effect.causes)
        found.setdefault(inputs.topology.find_declared(at), []).append((kind, effect))
    return found


def _twice(decision: ResourceDecision, effect: Effect, paths: str) -> Hazard:
    where = "" if effect.stream == decision.address else f"{effect.stream} "
    text = (
        f"{where}stores {_up_to(effect)} twice: what {paths} brings it has, has had, "
        "or gets by another path too"
    )
    if decision.reason == RESTORED and effect.stream == decision.address:
        text += ". Its backup may lack the newest message that it copied"
    elif decision.reason == RESTORED:
        text += ". nats-server 2.15 treats a restored origin as a new one"
    found = _hazard("DUPLICATES_MESSAGES", text, effect)
    # Nothing is to be allowed where another client deleted the stream.
    is_lost = decision.reason == "create_because_missing" and effect.stream == decision.address
    return replace(found, blocking=not is_lost)


def _pushed_out(decision: ResourceDecision, effect: Effect, paths: str) -> Hazard:
    where = "" if effect.stream == decision.address else f" of {effect.stream}"
    how = "by its limits, or by rollups among that" if effect.by_rollup else "by its limits"
    text = f"{_up_to(effect)}{where} leave it for what {paths} brings, {how}"
    return _hazard("DELETES_MESSAGES", text, effect)


def _refused(decision: ResourceDecision, effect: Effect, paths: str) -> Hazard:
    name = "it" if effect.stream == decision.address else str(effect.stream)
    text = (
        f"{name} may refuse {_up_to(effect)} of what {paths} brings (discard: new, max_msg_size, "
        "allow_msg_counter, or rollups that it does not allow): the flow stops at the first one, "
        "also for what comes later"
    )
    return _hazard("BREAKS_REPLICATION", text, effect)


def _up_to(effect: Effect) -> str:
    if effect.at_most is None:
        return "messages (the number is not known)"
    return f"up to {count_text(effect.at_most, 'message')}"


def _hazard(code: str, text: str, effect: Effect) -> Hazard:
    causes = [str(arrival.flow.origin) for arrival in effect.arrivals]
    return counted(code, text, effect.at_most, causes=causes)
