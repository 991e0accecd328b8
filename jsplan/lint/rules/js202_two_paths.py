"""JS202: one message that reaches a stream twice.

It comes by the stream's own subjects and a source, or by two sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jsplan.address import Address
from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import intersect, overlaps
from jsplan.topology import Edge
from jsplan.topology.replication_graph import subject_mappings


class Feed(NamedTuple):
    """Subjects that `root` stores itself and that a stream receives.

    `published` is the original subject, `stored_as` the subject in this stream.
    """

    root: Address
    published: str
    stored_as: str


def check(view: View) -> Iterator[Hit]:
    """Streams with sources, each path compared with the others."""
    for item in view.streams():
        edges = view.origins.get(item.address, []) if item.config.get("sources") else []
        if not edges:
            continue
        by_root: dict[Address, list[tuple[Address, Feed]]] = {}
        for edge in edges:
            for feed in _trace_feeds(view, edge, frozenset([item.address])):
                by_root.setdefault(feed.root, []).append((edge.origin, feed))
        twice = _find_duplicate(by_root)
        own = item.config.get("subjects", ())
        straight = next(
            (
                f
                for feeds in by_root.values()
                for _, f in feeds
                if _is_stored_directly(view, item.address, own, f)
            ),
            None,
        )
        if straight is not None:
            yield Hit(
                item.address,
                f'"{straight.published}" comes by the stream\'s own subjects'
                f" and again from {straight.root}",
                "sources",
            )
        elif twice is not None:
            one, other, feed = twice
            names = f"{one} twice" if one == other else f"{one} and {other}"
            yield Hit(
                item.address, f'"{feed.published}" of {feed.root} comes by {names}', "sources"
            )


def _trace_feeds(view: View, edge: Edge, seen: frozenset[Address]) -> Iterator[Feed]:
    """Yield what comes over one edge, traced back to the streams that first stored it."""
    origin = view.all_streams.get(edge.origin)
    if origin is None or edge.origin in seen:
        return
    before = [Feed(edge.origin, s, s) for s in origin.config.get("subjects", ())]
    for further in view.origins.get(edge.origin, []):
        before += _trace_feeds(view, further, seen | {edge.origin})
    for feed in before:
        for src, dest in subject_mappings(edge.config):
            passed = intersect(feed.stored_as, src)
            if passed is not None:
                yield Feed(
                    feed.root,
                    passed if feed.stored_as == feed.published else feed.published,
                    passed if dest == src else dest,
                )


def _is_stored_directly(view: View, address: Address, own: list[str], feed: Feed) -> bool:
    """Check whether a message of the root is also stored here when it is published."""
    shared = (
        view.connected_domains.shares_interest(address.domain, feed.root.domain)
        and feed.root.kind != "kv"
    )
    return (
        shared
        and feed.root != address
        and any(overlaps(subject, feed.published) for subject in own)
    )


def _find_duplicate(
    by_root: dict[Address, list[tuple[Address, Feed]]],
) -> tuple[Address, Address, Feed] | None:
    for feeds in by_root.values():
        for index, (origin, feed) in enumerate(feeds):
            for other, second in feeds[index + 1 :]:
                if overlaps(feed.published, second.published):
                    return origin, other, feed
    return None


RULE = Rule(
    "JS202",
    "warning",
    check,
    why=(
        "A stream may store a subject and also source a stream that stores it, in a domain that"
        " shares messages. It then has each message twice: once as published and once as copied."
        " The same happens to a stream that sources another stream and a stream downstream of it."
        " Inside one domain the server refuses such a circle (10052); it does not check across"
        " domains."
    ),
    fix="Remove one of the paths, or give them filters that do not overlap.",
)
