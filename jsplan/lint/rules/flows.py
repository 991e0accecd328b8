"""Rules about messages that arrive twice or go in circles."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.address import Address
from jsplan.flows.feeds import Feed
from jsplan.lint.rule import rule
from jsplan.lint.view import DisjointSets, Hit, LintItem, View
from jsplan.subjects import SubjectTree, overlaps
from jsplan.topology import Edge
from jsplan.topology.replication_graph import republish_mapping

# --- JS201: one publish that two streams store, because their domains share messages ---

#: The keys of KV buckets stay in their domain (measured); those of object stores do not.
_LOCAL_KINDS = ("kv",)


@rule(
    "JS201",
    "warning",
    why=(
        "Domains of one account that are joined by leafnodes share its subjects. If streams of"
        " two domains store the same subject, each of them stores every publish while the link is"
        " up. That doubles the messages, and the publisher sees only the first of two"
        " acknowledgements. Keys of KV buckets stay in their domain; the chunks of object stores"
        " do not."
    ),
    fix=(
        "Give each domain subjects of its own, such as sales.${domain}.>, or store the subject in"
        " one domain and mirror it in the other. If the leafnode denies the subject, ignore this"
        " with that reason."
    ),
)
def stored_twice(view: View) -> Iterator[Hit]:
    """One finding for all streams that share subjects, at the first of them."""
    wanted = {item.address for item in view.streams()}
    for streams, subjects in _overlapping_streams(view):
        known = sorted(item.address for item in streams)
        first = next((a for a in known if a in wanted), None)
        if first is not None:
            others = [a for a in known if a != first]
            shown = ", ".join(map(str, others[:3])) + (
                f" and {len(others) - 3} more" if len(others) > 3 else ""
            )
            which = ", ".join(f'"{subject}"' for subject in subjects[:3])
            text = (
                f"{which}: also stored by {shown};"
                " leafnodes forward the messages, so each is stored twice"
            )
            yield Hit(first, text, "subjects", also=tuple(others))


def _overlapping_streams(view: View) -> Iterator[tuple[list[LintItem], list[str]]]:
    """Yield streams of several domains whose subjects overlap, and these subjects."""
    by_subject: dict[tuple[str, str], list[LintItem]] = {}
    for item in _multi_domain_streams(view):
        group = view.connected_domains.group_of(item.address.domain)
        for subject in item.config.get("subjects", ()):
            by_subject.setdefault((group, subject), []).append(item)
    trees: dict[str, SubjectTree[str]] = {}
    for group, subject in by_subject:
        trees.setdefault(group, SubjectTree()).add(subject, subject)
    together: DisjointSets[tuple[str, str]] = DisjointSets()
    meeting: dict[tuple[str, str], None] = {}
    for (group, subject), here in by_subject.items():
        for other in trees[group].find_overlapping(subject):
            if len(_domains(view, [*here, *by_subject[group, other]])) > 1:
                together.union((group, subject), (group, other))
                meeting |= {(group, subject): None, (group, other): None}
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key in meeting:
        found.setdefault(together.find(key), []).append(key)
    for keys in found.values():
        streams = {item.address: item for key in keys for item in by_subject[key]}
        yield list(streams.values()), [subject for _, subject in keys]


def _multi_domain_streams(view: View) -> list[LintItem]:
    """Return the streams in groups of more than one domain: only those need a comparison."""
    groups: dict[str, set[str]] = {}
    for domain in {item.address.domain for item in view.all_streams.values()}:
        groups.setdefault(view.connected_domains.group_of(domain), set()).add(
            view.topology.routes.canonicalize(domain)
        )
    joined = {
        key
        for key in view.workspace.domains
        if len(groups.get(view.connected_domains.group_of(key), ())) > 1
    }
    return [
        item
        for item in view.all_streams.values()
        if item.address.domain in joined and item.address.kind not in _LOCAL_KINDS
    ]


def _domains(view: View, items: list[LintItem]) -> set[str]:
    def real(address: Address) -> str:
        return view.topology.canonicalize(address).domain

    return {real(item.address) for item in items}


# --- JS202: one message that reaches a stream twice ---
# It comes by the stream's own subjects and a source, or by two sources.


@rule(
    "JS202",
    "warning",
    why=(
        "A stream may store a subject and also source a stream that stores it, in a domain that"
        " shares messages. It then has each message twice: once as published and once as copied."
        " The same happens to a stream that sources another stream and a stream downstream of it."
        " Inside one domain the server refuses such a circle (10052); it does not check across"
        " domains."
    ),
    fix="Remove one of the paths, or give them filters that do not overlap.",
)
def two_paths(view: View) -> Iterator[Hit]:
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
            yield item.hit(
                f'"{straight.published}" comes by the stream\'s own subjects'
                f" and again from {straight.root}",
                "sources",
            )
        elif twice is not None:
            one, other, feed = twice
            names = f"{one} twice" if one == other else f"{one} and {other}"
            yield item.hit(f'"{feed.published}" of {feed.root} comes by {names}', "sources")


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


# --- JS203: streams that store what the other republishes, in a circle ---


@rule(
    "JS203",
    "warning",
    why=(
        "The server refuses a stream that stores what it republishes itself. It does not check"
        " two streams: one message became hundreds in a second, until the server stopped them."
    ),
    fix="Let one of the streams republish under a subject that no stream stores.",
)
def republish_circle(view: View) -> Iterator[Hit]:
    """Every circle once, at the first of its streams."""
    onward = _republish_targets(view)
    wanted = {item.address for item in view.streams()}
    reported: set[frozenset[Address]] = set()
    for start in sorted(onward.keys() & wanted):
        ring = _find_cycle(start, onward)
        if ring and frozenset(ring) not in reported:
            reported.add(frozenset(ring))
            chain = " republishes to ".join(map(str, [*ring, start]))
            yield Hit(start, f"{chain}: each message circulates", "republish", also=tuple(ring))


def _republish_targets(view: View) -> dict[Address, list[Address]]:
    """Return the streams that each stream republishes to and that republish themselves."""
    loud = [item for item in view.all_streams.values() if item.config.get("republish")]
    trees: dict[str, SubjectTree[LintItem]] = {}
    for item in loud:
        tree = trees.setdefault(view.connected_domains.group_of(item.address.domain), SubjectTree())
        for subject in item.config.get("subjects", ()):
            tree.add(subject, item)
    found: dict[Address, list[Address]] = {}
    for item in loud:
        _, dest = republish_mapping(item.config["republish"])
        tree = trees[view.connected_domains.group_of(item.address.domain)]
        heard = {
            other.address
            for other in tree.find_overlapping(dest)
            if other is not item and overlaps(dest, republish_mapping(other.config["republish"])[0])
        }
        found[item.address] = sorted(heard)
    return found


def _find_cycle(start: Address, onward: dict[Address, list[Address]]) -> list[Address]:
    """Return a path from the stream back to itself."""
    pending, seen = [[start]], {start}
    while pending:
        path = pending.pop()
        for other in onward.get(path[-1], ()):
            if other == start:
                return path
            if other not in seen:
                seen.add(other)
                pending.append([*path, other])
    return []


# --- JS204: a stream that stores the deliveries to another stream ---


@rule(
    "JS204",
    "warning",
    why=(
        "The server delivers messages to a mirror or source in another account on ordinary"
        " subjects below its delivery prefix. A stream that stores these subjects has every"
        " copied message once more, with the server's own headers, and heartbeats."
    ),
    fix="Narrow the stream's subjects, or use a delivery prefix that no stream stores.",
)
def delivery_stored(view: View) -> Iterator[Hit]:
    """Streams whose subjects overlap with a delivery prefix of a domain that shares messages."""
    trees: dict[str, SubjectTree[tuple[str, Edge]]] = {}
    for edge in view.topology.edges:
        if prefix := view.topology.delivery_prefix(edge):
            trees.setdefault(
                view.connected_domains.group_of(edge.downstream.domain), SubjectTree()
            ).add(f"{prefix}.>", (prefix, edge))
    if not trees:
        return
    for item in view.streams():
        tree = trees.get(view.connected_domains.group_of(item.address.domain))
        for subject in item.config.get("subjects", ()) if tree is not None else ():
            assert tree is not None
            caught = next((found for found in tree.find_overlapping(subject)), None)
            if caught is not None:
                text = (
                    f'"{subject}" stores what is delivered to {caught[1].downstream} on {caught[0]}'
                )
                yield item.hit(text, "subjects", also=(caught[1].downstream,))
