"""The messages that come over a flow, traced back to the streams that stored them first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jsplan.address import Address
from jsplan.flows.graph import Flow, FlowGraph
from jsplan.subjects import SubjectTree, intersect, overlaps
from jsplan.topology.replication_graph import subject_mappings

#: The most feeds of one stream that are kept apart. Beyond it every subject may be among them.
MAX_FEEDS = 2_000


class Feed(NamedTuple):
    """Messages that `root` stored first: `published` is their subject then, `stored_as` here."""

    root: Address
    published: str
    stored_as: str


class Feeds:
    """The feeds of the streams of one graph.

    `kept`: the feeds of messages that streams already have, whatever they read now.
    """

    def __init__(
        self, graph: FlowGraph, kept: Mapping[Address, Iterable[Feed]] | None = None
    ) -> None:
        self._graph, self._kept = graph, kept or {}
        self._found: dict[Address, list[Feed]] = {}
        for stream in graph.in_order():
            self._found[stream] = self._find(stream)
        for stream in graph.on_circles():  # what comes all the way around
            self._found[stream] = self._find(stream)

    def into(self, stream: Address) -> list[Feed]:
        """Return the feeds of a stream: its own subjects, and those of its mirror or sources.

        A stream that was not read, or that has neither, may have messages of any subject.
        """
        return self._found.get(stream) or [Feed(stream, ">", ">")]

    def beside(self, flow: Flow) -> list[Feed]:
        """Return the feeds of the stream of a flow that do not come over it."""
        return self._find(flow.downstream, without=flow.key)

    def _find(self, stream: Address, without: str | None = None) -> list[Feed]:
        node = self._graph.nodes.get(stream)
        flows = self._graph.flows_into.get(stream, ())
        own = (node.config.get("subjects") or ()) if node is not None else ()
        found = [Feed(stream, subject, subject) for subject in own]
        for flow in flows:
            if flow.key != without:
                found += self.over(flow)
        return _shorten((*found, *self._kept.get(stream, ())))

    def over(self, flow: Flow) -> list[Feed]:
        """Return the feeds that come over one flow."""
        return take(flow, self.into(flow.origin))


def take(flow: Flow, feeds: Iterable[Feed]) -> list[Feed]:
    """Return what a flow takes of the feeds of its origin, as its stream stores it."""
    found = []
    for feed in feeds:
        for src, dest in subject_mappings(flow.config):
            passed = intersect(feed.stored_as, src)
            if passed is not None:
                same = feed.stored_as == feed.published
                found.append(
                    Feed(
                        feed.root,
                        passed if same else feed.published,
                        passed if dest == src else dest,
                    )
                )
    return _shorten(found)


def _shorten(feeds: Iterable[Feed]) -> list[Feed]:
    found = list(dict.fromkeys(feeds))
    if len(found) <= MAX_FEEDS:
        return found
    return [Feed(root, ">", ">") for root in dict.fromkeys(feed.root for feed in found)]


class FeedIndex:
    """Feeds that others are compared with, by root and by subject."""

    def __init__(self, feeds: Iterable[Feed] = ()) -> None:
        self._by_root: dict[Address, list[str]] = {}
        self._subjects: SubjectTree[str] = SubjectTree()
        for feed in feeds:
            self._by_root.setdefault(feed.root, []).append(feed.published)
            self._subjects.add(feed.stored_as, feed.stored_as)

    def shares_messages(self, feeds: Iterable[Feed]) -> bool:
        """Check whether one message may be in both."""
        return any(
            overlaps(feed.published, other)
            for feed in feeds
            for other in self._by_root.get(feed.root, ())
        )

    def shares_subjects(self, feeds: Iterable[Feed]) -> bool:
        """Check whether both may have messages under one subject."""
        return any(True for feed in feeds for _ in self._subjects.find_overlapping(feed.stored_as))
