"""Layered layout of a graph: columns in which most flows go from left to right.

Turn the flows that lead back, assign columns, order each column by connections, then place
everything. It is done twice: for the domains, and for the streams inside each. All measures are in
px. Text cannot be measured here: widths come from a table of common sans-serif letters and are a
little too wide.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from msgspec import Struct, field

from jsplan.documents.graph import DomainGroup, Graph, Link, Node

#: Sizes of text in px.
NAME, TEXT, SMALL = 13.0, 11.0, 10.0
LINE, PAD, BAR = 15.0, 10.0, 5.0
MAX_WIDTH: Final = 340.0
#: Subjects and consumers that are listed on one card.
MAX_SUBJECTS: Final = 8
_NARROW, _WIDE = "fijlrtI.,:;'|!()[]{}·-", "mwMW@%"
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
GAP, COLUMN, INNER, HEAD, SIDE = 14.0, 130.0, 70.0, 28.0, 14.0


class Box(Struct, frozen=True):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right side."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower side."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """Half its height, where flows begin and end."""
        return self.y + self.height / 2


class Layout(Struct):
    """The position of everything.

    `column` is that of a node's domain. `cards` are by the id of their node.
    """

    width: float = 0.0
    height: float = 0.0
    clusters: dict[str, Box] = field(default_factory=dict)
    boxes: dict[str, Box] = field(default_factory=dict)
    cards: dict[str, Card] = field(default_factory=dict)
    column: dict[str, int] = field(default_factory=dict)

    def side(self, node: str, right: int) -> float:
        """Return the outer right (1) or left (-1) side of all domains in the column of a node.

        Lines have space beyond it.
        """
        column = [box for other, box in self._frames if self.column[other] == self.column[node]]
        return max(box.right for box in column) if right > 0 else min(box.x for box in column)

    @property
    def _frames(self) -> list[tuple[str, Box]]:
        return [(node, self.clusters[self.cards[node].node.domain]) for node in self.boxes]


def arrange(graph: Graph) -> Layout:
    """Compute the layout of a folded graph."""
    out = Layout(cards={node.id: build_card(node) for node in graph.nodes})
    domain = {node.id: node.domain for node in graph.nodes}
    flows = sorted(
        graph.links, key=lambda link: (link.kind != "source", -link.count)
    )  # what is collected goes to the right
    between = [(domain[link.origin], domain[link.downstream]) for link in flows]
    columns = assign_columns([cluster.key for cluster in graph.domain_groups], between)
    out.column = {
        node.id: n for n, keys in enumerate(columns) for node in graph.nodes if node.domain in keys
    }
    inner = {c.key: _card_columns(c, out, domain, graph.links) for c in graph.domain_groups}
    x = 0.0
    for keys in columns:
        y, widest = 0.0, 0.0
        for key in _order(keys, graph, out.boxes, domain):
            size = _place_domain(key, inner[key], x, y, graph, out)
            y, widest = y + size.height + 2 * GAP, max(widest, size.width)
        x += widest + COLUMN
    out.width = max((box.right for box in out.clusters.values()), default=0.0)
    out.height = max((box.bottom for box in out.clusters.values()), default=0.0)
    _center_columns(columns, out, graph)
    return out


def assign_columns(keys: Sequence[K], edges: Iterable[tuple[K, K]]) -> list[list[K]]:
    """Assign the keys to columns: origins before their targets, as far as cycles allow.

    Each column keeps the order of `keys`. Of a cycle, the flow that comes last in `edges` is
    turned.
    """
    forward = [edge for edge in dict.fromkeys(edges) if edge[0] != edge[1]]
    depth = _depths(keys, forward)
    if depth is None:
        depth = _depths(keys, _without_cycles(forward))
    assert depth is not None
    columns: list[list[K]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for key in keys:
        columns[depth[key]].append(key)
    return columns


def _depths(keys: Sequence[K], edges: Iterable[tuple[K, K]]) -> dict[K, int] | None:
    """Return the length of the longest path to each key; None if there is a cycle."""
    onward: dict[K, list[K]] = {key: [] for key in keys}
    waits = dict.fromkeys(keys, 0)
    for origin, copy in edges:
        onward[origin].append(copy)
        waits[copy] += 1
    depth, ready = dict.fromkeys(keys, 0), [key for key in keys if not waits[key]]
    done = 0
    while ready:
        key = ready.pop()
        done += 1
        for other in onward[key]:
            depth[other] = max(depth[other], depth[key] + 1)
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return depth if done == len(depth) else None


def _without_cycles(edges: Iterable[tuple[K, K]]) -> list[tuple[K, K]]:
    """Return the edges in their order, without those that close a cycle."""
    onward: dict[K, list[K]] = {}
    acyclic = []
    for origin, copy in edges:
        if not _is_reachable(copy, origin, onward):
            onward.setdefault(origin, []).append(copy)
            acyclic.append((origin, copy))
    return acyclic


def _is_reachable(start: K, to: K, onward: Mapping[K, list[K]]) -> bool:
    todo, seen = [start], {start}
    while todo:
        key = todo.pop()
        if key == to:
            return True
        fresh = [other for other in onward.get(key, ()) if other not in seen]
        seen.update(fresh)
        todo += fresh
    return False


# --- inside a domain ------------------------------------------------------------------------------


def _card_columns(
    cluster: DomainGroup, out: Layout, domain: Mapping[str, str], links: Sequence[Link]
) -> list[list[str]]:
    """Return the columns of the cards of a domain.

    Unconnected cards go below, where there is most space.
    """
    own = [node for node in out.cards if domain[node] == cluster.key]
    inside = [
        (link.origin, link.downstream)
        for link in links
        if domain[link.origin] == domain[link.downstream] == cluster.key
    ]
    paired = {end for edge in inside for end in edge}
    columns = assign_columns([node for node in own if node in paired], inside) or [[]]
    beyond = _outward_sides(cluster, out, domain, links)
    for node in own:
        if node in beyond and node not in paired:
            columns[-1 if beyond[node] > 0 else 0].append(node)
    loose = [node for node in own if node not in paired and node not in beyond]
    while len(loose) > 6 * len(columns):
        columns.append([])
    heights = [sum(out.cards[node].height + GAP for node in column) for column in columns]
    early = {node for column in columns[:-1] for node in column}
    crossed = any(
        link.origin in early and out.column[link.downstream] > out.column[link.origin]
        for link in links
    )
    heights = [
        height + (10 * COLUMN if crossed and number else 0) for number, height in enumerate(heights)
    ]
    for node in loose:
        lowest = min(range(len(columns)), key=heights.__getitem__)
        columns[lowest].append(node)
        heights[lowest] += out.cards[node].height + GAP
    return columns


def _outward_sides(
    cluster: DomainGroup, out: Layout, domain: Mapping[str, str], links: Sequence[Link]
) -> dict[str, int]:
    """Return the side of nodes that are connected with other domains: above zero is right."""
    found: dict[str, int] = {}
    for one, other in _both_ways(links):
        if domain[one] == cluster.key != domain[other]:
            found[one] = found.get(one, 0) + (1 if out.column[other] > out.column[one] else -1)
    return found


def _place_domain(
    key: str, columns: Sequence[Sequence[str]], x: float, y: float, graph: Graph, out: Layout
) -> Box:
    """Place each card of a domain, and size the domain."""
    left, tallest = x + SIDE, 0.0
    for number, column in enumerate(columns):
        top = y + HEAD + 4
        wide = max((out.cards[node].width for node in column), default=0.0)
        for node in _order(column, graph, out.boxes, {node: node for node in column}):
            size = out.cards[node]
            out.boxes[node] = Box(left, top, wide, size.height)
            top += size.height + GAP
        tallest = max(tallest, top - y - GAP + SIDE)
        left += wide + _column_gap(columns[number : number + 2], graph)
    title = next(cluster.title for cluster in graph.domain_groups if cluster.key == key)
    out.clusters[key] = Box(
        x, y, max(left - x - GAP + SIDE, len(title) * 8.5 + 2 * SIDE), max(tallest, HEAD + 2 * SIDE)
    )
    return out.clusters[key]


def _column_gap(columns: Sequence[Sequence[str]], graph: Graph) -> float:
    """Return the gap between two columns of cards, for lines and their labels."""
    if len(columns) < 2:
        return GAP
    ends = tuple(set(column) for column in columns)
    between = [
        link for link in graph.links if link.origin in ends[0] and link.downstream in ends[1]
    ]
    return (COLUMN if any(link.label for link in between) else INNER) if between else GAP


# --- order ----------------------------------------------------------------------------------------


def _order(
    keys: Sequence[str], graph: Graph, placed: Mapping[str, Box], key_of: Mapping[str, str]
) -> list[str]:
    """Order nodes, or their domains, by the height of the neighbours that are placed already.

    `key_of` has the key of each node.
    """
    around: dict[str, list[float]] = {key: [] for key in keys}
    for one, other in _both_ways(graph.links):
        if key_of.get(one) in around and other in placed:
            around[key_of[one]].append(placed[other].middle)
    return sorted(
        keys, key=lambda key: sum(around[key]) / len(around[key]) if around[key] else math.inf
    )


def _both_ways(links: Iterable[Link]) -> Iterator[tuple[str, str]]:
    """Yield the ends of each link, seen from either."""
    for link in links:
        yield link.origin, link.downstream
        yield link.downstream, link.origin


def _center_columns(columns: Sequence[Sequence[str]], out: Layout, graph: Graph) -> None:
    """Move each column of domains to the vertical middle of the picture."""
    domain = {node.id: node.domain for node in graph.nodes}
    for keys in columns:
        tall = max((out.clusters[key].bottom for key in keys), default=0.0)
        down = (out.height - tall) / 2
        for key in keys:
            out.clusters[key] = _shift(out.clusters[key], down)
        for node, box in out.boxes.items():
            if domain[node] in keys:
                out.boxes[node] = _shift(box, down)


def _shift(box: Box, down: float) -> Box:
    return Box(box.x, box.y + down, box.width, box.height)


class Row(Struct, frozen=True):
    """One line of a card: the text as it fits, the full text, and its role."""

    text: str
    full_text: str
    role: str
    action: str = ""


class Card(Struct, frozen=True):
    """A node with its lines, in px."""

    node: Node
    rows: tuple[Row, ...]
    width: float
    height: float


@lru_cache(maxsize=8192)
def text_width(text: str, size: float, *, mono: bool = False, bold: bool = False) -> float:
    """Estimate the width of a text in px; fixed-width letters are exact."""
    total = 0.0
    for letter in text:
        if unicodedata.east_asian_width(letter) in "WF":
            total += 1.05
        elif mono:
            total += 0.61
        elif letter in _NARROW:
            total += 0.4
        elif letter in _WIDE:
            total += 0.95
        else:
            total += 0.7 if letter.isupper() else 0.62
    return total * size * (1.14 if bold else 1.0)


def truncate_middle(
    text: str, limit: float, size: float, *, mono: bool = False, bold: bool = False
) -> str:
    """Return the text, cut in its middle if it is wider than `limit`.

    Both ends of a subject matter.
    """
    if text_width(text, size, mono=mono, bold=bold) <= limit:
        return text
    keep = len(text)
    while keep > 2:
        keep -= 1
        shown = f"{text[: keep - keep // 2]}…{text[len(text) - keep // 2 :]}"
        if text_width(shown, size, mono=mono, bold=bold) <= limit:
            return shown
    return "…"


#: Size, fixed width and weight of each role.
STYLE: Final = {
    "name": (NAME, False, True), "subject": (TEXT, True, False), "facts": (SMALL, False, False),
    "reader": (TEXT, False, False),
    "more": (SMALL, False, False),
}  # fmt: skip


def build_card(node: Node) -> Card:
    """Return the card of a node: name, subjects, facts, consumers."""
    wanted = [("name", node.name, "")]
    subjects, more = _visible(node.subjects)
    wanted += [("subject", subject, "") for subject in subjects]
    wanted += [("more", f"and {more} more subjects", "")] if more else []
    wanted += [("facts", node.summary, "")] if node.summary else []
    readers, more = _visible(node.consumers)
    wanted += [
        ("reader", f"▸ {r.name}" + (f"  {r.summary}" if r.summary else ""), r.action or "")
        for r in readers
    ]
    wanted += [("more", f"and {more} more consumers", "")] if more else []
    limit = MAX_WIDTH - 2 * PAD - BAR
    badge = 74.0 if node.action or node.kind != "stream" else 0.0
    rows = []
    for role, text, fate in wanted:
        size, mono, bold = STYLE[role]
        rows.append(
            Row(
                truncate_middle(
                    text, limit - (badge if role == "name" else 0), size, mono=mono, bold=bold
                ),
                text,
                role,
                fate,
            )
        )
    needed = max(_row_width(row) + (badge if row.role == "name" else 0) for row in rows)
    return Card(
        node, tuple(rows), max(110.0, needed + 2 * PAD + BAR), len(rows) * LINE + 2 * PAD - 4
    )


def _visible(items: tuple[T, ...]) -> tuple[tuple[T, ...], int]:
    """Return what a card lists, and how many it only counts: never one."""
    shown = items if len(items) <= MAX_SUBJECTS + 1 else items[:MAX_SUBJECTS]
    return shown, len(items) - len(shown)


def _row_width(row: Row) -> float:
    size, mono, bold = STYLE[row.role]
    return text_width(row.text, size, mono=mono, bold=bold)
