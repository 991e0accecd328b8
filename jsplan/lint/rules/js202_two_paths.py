"""JS202: one message that reaches a stream twice.

It comes by the stream's own subjects and a source, or by two sources.
"""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.address import Address
from jsplan.flows.feeds import Feed
from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import overlaps


def check(view: View) -> Iterator[Hit]:
    """Streams with sources, each path compared with the others."""
    for item in view.streams():
        flows = view.flows.flows_into.get(view.topology.canonicalize(item.address), ())
        if not flows or not item.config.get("sources"):
            continue
        by_root: dict[Address, list[tuple[Address, Feed]]] = {}
        for flow in sorted(flows, key=lambda flow: flow.origin):
            for feed in view.feeds.over(flow):
                by_root.setdefault(feed.root, []).append((flow.origin, feed))
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


def _is_stored_directly(view: View, address: Address, own: list[str], feed: Feed) -> bool:
    """Check whether a message of the root is also stored here when it is published."""
    shared = (
        feed.root.domain in view.workspace.domains
        and view.connected_domains.shares_interest(address.domain, feed.root.domain)
        and feed.root.kind != "kv"
    )
    return (
        shared
        and feed.root != view.topology.canonicalize(address)
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
