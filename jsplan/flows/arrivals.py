"""The messages that come to each stream because of a change, beyond those that flow anyway.

A source that is new to the server copies from its start; so does every flow into a stream that is
created or recreated, and on nats-server 2.15 a source whose origin was recreated. A flow whose
messages its stream refused before brings what it has not copied. What arrives in a
stream flows on to those that read it. All numbers are upper bounds (None: unknown), 0 where nothing
comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.flows.feeds import Feed, FeedIndex, Feeds, take
from jsplan.flows.graph import Flow, FlowGraph, StreamNode
from jsplan.flows.refusals import count_without_place, limit_of, may_have_larger

Count = int | None


class Change(Struct, frozen=True):
    """The streams before and after a plan.

    `emptied`: streams that lose their messages, or are new. `fresh`: the flows that copy from their
    start, by downstream stream and key, and the messages that this brings of what their origin has
    now. `continued`: the flows from a recreated mirror that continue at their sequence, so that
    they do not take again what fills the mirror again. `worked_off`: streams that have had more
    messages than they have, since consumers finish them, or they were purged. `causes`: the changed
    streams for the fresh flows into streams that do not change. `refuse_rollups`: streams whose
    servers refuse rollups unless they are allowed. `resumed`: those of the fresh flows that
    continue behind what they have brought, since their stream does not refuse it any more. `again`:
    those that bring what they have brought before. `filled`: streams that come with the messages of
    another one, by that.
    """

    before: FlowGraph
    after: FlowGraph
    emptied: frozenset[Address]
    fresh: Mapping[tuple[Address, str], Count] = field(default_factory=dict)
    continued: frozenset[tuple[Address, str]] = frozenset()
    worked_off: frozenset[Address] = frozenset()
    causes: Mapping[tuple[Address, str], Address] = field(default_factory=dict)
    refuse_rollups: frozenset[Address] = frozenset()
    resumed: frozenset[tuple[Address, str]] = frozenset()
    again: frozenset[tuple[Address, str]] = frozenset()
    filled: Mapping[Address, Address] = field(default_factory=dict)


class Arrival(Struct, frozen=True):
    """Messages that come over a flow, of these feeds.

    `causes` are the streams whose change brings them. `is_rest`: it has brought none of them.
    """

    flow: Flow
    at_most: Count
    feeds: tuple[Feed, ...]
    causes: frozenset[Address]
    is_rest: bool = False


class Effect(Struct, frozen=True):
    """An effect of arrivals in a stream: how many messages at most (None: unknown).

    `arrivals` are those that do it. `by_rollup`: some of them may be rollups.
    """

    stream: Address
    at_most: Count
    arrivals: tuple[Arrival, ...]
    by_rollup: bool = False

    @property
    def causes(self) -> frozenset[Address]:
        """The streams whose change does it."""
        return frozenset().union(*(arrival.causes for arrival in self.arrivals))


class ArrivalModel:
    """The arrivals of one change, and their effects."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._before = before = Feeds(change.before)
        kept = {a: before.into(a) for a, n in change.before.nodes.items() if n.messages}
        kept |= {target: before.into(origin) for target, origin in change.filled.items()}
        self._after = Feeds(
            change.after, {a: feeds for a, feeds in kept.items() if a not in change.emptied}
        )
        self._found: dict[Address, list[Arrival]] = {}
        for stream in (*change.after.in_order(), *change.after.on_circles()):
            flows = change.after.flows_into.get(stream, ())
            found = [self._arrive(flow) for flow in flows]
            self._found[stream] = [arrival for arrival in found if arrival.at_most != 0]

    def arrivals(self, stream: Address) -> list[Arrival]:
        """Return what comes to a stream, without empty arrivals."""
        return self._found.get(stream, [])

    def path(self, arrival: Arrival) -> list[Address]:
        """Return the streams that messages come by, the first one first, without the target."""
        found = [arrival.flow.origin]
        while onward := [a for a in self.arrivals(found[0]) if a.flow.origin not in found]:
            found.insert(0, onward[0].flow.origin)
        return found

    def _arrive(self, flow: Flow) -> Arrival:
        onward = self.arrivals(flow.origin)
        if (flow.downstream, flow.key) in self._change.continued:
            mirrored = self._change.after.flows_into[flow.origin]
            onward = [arrival for up in mirrored for arrival in self.arrivals(up.origin)]
        taken = [(arrival, take(flow, arrival.feeds)) for arrival in onward]
        onward = [arrival for arrival, feeds in taken if feeds]
        feeds = [feed for _, feeds in taken for feed in feeds]
        counts = [arrival.at_most for arrival in onward]
        causes = frozenset[Address]().union(*(arrival.causes for arrival in onward))
        fresh = (flow.downstream, flow.key)
        is_rest = all(arrival.is_rest for arrival in onward)
        if fresh in self._change.fresh:
            is_rest = is_rest and fresh in self._change.resumed
            has = 0 if flow.origin in self._change.emptied else self._change.fresh[fresh]
            counts.append(has)
            if has != 0 or not onward:
                feeds = self._after.over(flow)
                causes |= {self._change.causes.get(fresh, flow.downstream)}
        return Arrival(flow, _add(counts), tuple(dict.fromkeys(feeds)), causes, is_rest)

    # --- effects ----------------------------------------------------------------------------------

    def duplicates(self) -> Iterator[Effect]:
        """Yield for each stream what it stores twice: it has it, or gets it by another flow too.

        What an origin stores twice arrives twice.
        """
        twice: dict[Address, Count] = {}
        for stream in self._change.after.in_order():
            found = self._duplicates_in(stream, twice)
            if found is not None:
                twice[stream] = found.at_most
                yield found

    def _duplicates_in(self, stream: Address, twice: Mapping[Address, Count]) -> Effect | None:
        arrivals, kept = self.arrivals(stream), self._kept(stream)
        had = stream in self._change.worked_off
        has = kept is not None and kept.messages > 0
        here = FeedIndex(self._before.into(stream) if had or has else ())
        by_root: dict[Address, list[tuple[Arrival, FeedIndex]]] = {}
        doubled: list[Arrival] = []
        counts: list[Count] = []
        for arrival in arrivals:
            feeds = arrival.feeds
            roots = {feed.root for feed in feeds}
            most: list[Count] = []
            again = (stream, arrival.flow.key) in self._change.again
            if again or self._beside(arrival, here).shares_messages(feeds):
                most.append(
                    arrival.at_most
                    if had or again or kept is None
                    else _least(arrival.at_most, kept.messages)
                )
            earlier = {id(one[0]): one for root in roots for one in by_root.get(root, ())}
            most += [
                _least(arrival.at_most, other.at_most)
                for other, index in earlier.values()
                if index.shares_messages(feeds)
            ]
            inherited = twice.get(arrival.flow.origin, 0)
            if most or inherited != 0:
                doubled.append(arrival)
                counts.append(_least(arrival.at_most, _add([*most, inherited])))
            own = FeedIndex(feeds)
            for root in roots:
                by_root.setdefault(root, []).append((arrival, own))
        total = _add(counts)
        return Effect(stream, total, tuple(doubled)) if total != 0 else None

    def _beside(self, arrival: Arrival, here: FeedIndex) -> FeedIndex:
        """Return what of `here`, the feeds of a stream, may be in an arrival."""
        return FeedIndex(self._before.beside(arrival.flow)) if arrival.is_rest else here

    def pushed_out(self) -> Iterator[Effect]:
        """Yield for each stream what its limits, and rollups, delete of it for what arrives."""
        for stream in self._change.after.nodes:
            kept, arrivals = self._kept(stream), self.arrivals(stream)
            if kept is None or (kept.is_read and not kept.messages) or not arrivals:
                continue
            limits = self._change.after.nodes[stream].config
            coming = _add(arrival.at_most for arrival in arrivals)
            rolled_up = self._rolled_up(kept, limits, arrivals)
            if kept.is_read:
                most = _least(kept.messages, self._exceeding(kept, limits, coming, arrivals))
                most = _most(most, _least(kept.messages, rolled_up))
            else:
                most = coming if any(limit_of(limits, name) for name in _LIMITS) else 0
                most = None if limit_of(limits, "max_bytes") or rolled_up != 0 else most
            if most != 0:
                yield Effect(stream, most, tuple(arrivals), by_rollup=rolled_up != 0)

    def refused(self) -> Iterator[Effect]:
        """Yield for each stream what it refuses: there the flow stops.

        What it has refused already does not count.
        """
        for stream, node in self._change.after.nodes.items():
            every, limits, resumed = self.arrivals(stream), node.config, self._change.resumed
            arrivals = [a for a in every if not (a.is_rest and (stream, a.flow.key) in resumed)]
            if not arrivals:
                continue
            coming = _add(arrival.at_most for arrival in every)
            found = [_add(a.at_most for a in arrivals if self._may_not_fit(a, limits))]
            if stream in self._change.refuse_rollups and not limits.get("allow_rollup_hdrs"):
                known = (a for a in arrivals if self._may_roll_up(a, unknown=False))
                found.append(_add(arrival.at_most for arrival in known))
            kept = self._kept(stream)
            if kept is not None and not kept.is_read:
                found.append(coming if limits.get("discard", "old") == "new" else 0)
            else:
                state, size = kept.state if kept is not None else {}, self._bytes_of(every)
                found.append(count_without_place(limits, state, coming, size))
            total = _least(_add(arrival.at_most for arrival in arrivals), _most(*found))
            if total != 0:
                yield Effect(stream, total, tuple(arrivals))

    def _may_not_fit(self, arrival: Arrival, limits: Mapping[str, Any]) -> bool:
        """Check whether a stream may refuse a message of an arrival by itself.

        It is larger than those that the stream takes, or no counter where all are (measured on 2.12
        and 2.15). What the header of a source adds is left out.
        """
        origin = self._change.after.nodes.get(arrival.flow.origin)
        size = limit_of(limits, "max_msg_size")
        if origin is not None and size and may_have_larger(origin, size):
            return True
        roots = [self._change.after.nodes.get(feed.root) for feed in arrival.feeds]
        known = [root.config for root in roots if root is not None]
        return bool(limits.get("allow_msg_counter")) and not all(
            config.get("allow_msg_counter") for config in known
        )

    def _exceeding(
        self, kept: StreamNode, limits: Mapping[str, Any], coming: Count, arrivals: list[Arrival]
    ) -> Count:
        """Return how many messages come beyond the limits."""
        found: list[Count] = [0]
        if limits.get("discard", "old") == "old":
            if most := limit_of(limits, "max_msgs"):
                found.append(None if coming is None else max(0, kept.messages + coming - most))
            if size := limit_of(limits, "max_bytes"):
                more, has = self._bytes_of(arrivals), int(kept.state.get("bytes") or 0)
                found.append(kept.messages if more is None or has + more > size else 0)
        if limit_of(limits, "max_msgs_per_subject"):
            here = FeedIndex(self._before.into(kept.address))
            found.append(_add(a.at_most for a in arrivals if here.shares_subjects(a.feeds)))
        return _most(*found)

    def _rolled_up(
        self, kept: StreamNode, limits: Mapping[str, Any], arrivals: Iterable[Arrival]
    ) -> Count:
        """Return how many messages the rollups among the arrivals may delete; None: any number.

        A stream that allows rollups does what they say, also for those that a source brings: one
        deletes the messages of its subject, or all of the stream. Clients of buckets know only the
        former.
        """
        rollups = [arrival for arrival in arrivals if self._may_roll_up(arrival)]
        if not limits.get("allow_rollup_hdrs") or not rollups:
            return 0
        if kept.address.kind == "stream":
            return None
        here = FeedIndex(self._before.into(kept.address))
        coming = _add(a.at_most for a in rollups if here.shares_subjects(a.feeds))
        history = limit_of(limits, "max_msgs_per_subject")
        return coming * history if coming == 0 or (coming and history) else None

    def _may_roll_up(self, arrival: Arrival, *, unknown: bool = True) -> bool:
        """Check whether a stream that stored these messages first accepts rollups.

        `unknown` is the answer for one whose configuration is not known.
        """
        graphs = (self._change.before, self._change.after)
        roots = [[graph.nodes.get(feed.root) for graph in graphs] for feed in arrival.feeds]
        return any(
            any(node.config.get("allow_rollup_hdrs") for node in found if node)
            if any(found)
            else unknown
            for found in roots
        )

    def _bytes_of(self, arrivals: list[Arrival]) -> Count:
        """Return the bytes of all streams that the arrivals come from, and what flows add.

        Sources and republishes add headers, which name the origin and the subject there. A
        transform may make the subject longer.
        """
        coming = _add(arrival.at_most for arrival in arrivals)
        if coming is None:
            return None
        after, flows = self._change.after, [arrival.flow for arrival in arrivals]
        upstream = after.find_upstream(flow.origin for flow in flows)
        filled = self._change.filled
        nodes = (self._change.before.nodes.get(filled.get(a, a)) for a in upstream)
        size = sum(int(node.state.get("bytes") or 0) for node in nodes if node is not None)
        flows += [flow for address in upstream for flow in after.flows_into.get(address, ())]
        adding = [f for f in flows if f.kind != "mirror" or f.config.get("subject_transforms")]
        if not adding:
            return size
        each = sum(_HEADER_BYTES + 2 * len(f.key) + len(f.origin.stream) for f in adding)
        return size + coming * each + min(size, coming * _LONGEST_SUBJECT)

    def _kept(self, stream: Address) -> StreamNode | None:
        """Return a stream as it was, if it keeps its messages."""
        return None if stream in self._change.emptied else self._change.before.nodes.get(stream)


#: The limits beyond which a stream deletes its oldest messages.
_LIMITS = ("max_msgs", "max_bytes", "max_msgs_per_subject")
#: The most bytes that a source or republish adds without names and subjects, and of a subject.
_HEADER_BYTES = 200
_LONGEST_SUBJECT = 1_024


def _add(counts: Iterable[Count]) -> Count:
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def _most(*counts: Count) -> Count:
    return None if None in counts else max(count for count in counts if count is not None)


def _least(*counts: Count) -> Count:
    known = [count for count in counts if count is not None]
    return min(known) if known else None
