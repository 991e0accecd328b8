"""The graph as one SVG file without external resources.

Domains are frames, streams are cards with subjects and consumers. Colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from jsplan.documents.graph import Graph, Link
from jsplan.render.escape import safe, safe_html
from jsplan.render.graph_fold import fold_graph
from jsplan.render.graph_layout import (
    BAR,
    HEAD,
    LINE,
    PAD,
    SMALL,
    STYLE,
    Box,
    Card,
    Layout,
    arrange,
    text_width,
    truncate_middle,
)

MARGIN: Final = 24.0
#: Each fate: its sign, and the colours of its bar and its label.
ACTION_STYLES: Final = {
    "create": ("+ create", "#2da44e", "#116329"),
    "update": ("~ update", "#d4a72c", "#7d4e00"),
    "delete": ("− delete", "#cf222e", "#a40e26"),
    "replace": ("± replace", "#bf3989", "#99286e"),
    "import": ("↓ import", "#1b7c83", "#0e5358"),
    "forget": ("· forget", "#57606a", "#424a53"),
    "deferred": ("… deferred", "#8c959f", "#57606a"),
}
_KINDS: Final = {
    "stream": ("", "#0969da"),
    "kv": ("KV", "#8250df"),
    "object_store": ("objects", "#bc4c00"),
    "outside": ("", "#8c959f"),
}
_UNCHANGED_COLOR: Final = "#8c959f"
_CSS: Final = """
text { font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial,
  sans-serif; fill: #1f2328; }
.mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  fill: #57606a; }
.dim { fill: #6e7781; } .label { fill: #57606a; } .domain { font-weight: 600; fill: #424a53; }
.name { font-weight: 600; }
.frame { fill: #f6f8fa; stroke: #d0d7de; } .card { fill: #ffffff; stroke: #afb8c1; }
.outside { stroke-dasharray: 4 3; }
.flow { fill: none; stroke-width: 1.6; } .source { stroke-dasharray: 6 3; }
.halo { fill: #ffffff; fill-opacity: 0.88; }
""".strip()


def render(graph: Graph) -> str:
    """Return the text of the file."""
    graph = fold_graph(graph)
    layout = arrange(graph)
    legend = list(_legend(graph))
    title = safe(f"{graph.title}: planned changes" if graph.planned else graph.title)
    needed = sum(text_width(entry.text, SMALL) + 52 for entry in legend)
    width = max(layout.width, needed, text_width(title, 16, bold=True)) + 2 * MARGIN
    top, below = MARGIN + 30, _bypass_height(graph, layout)
    height = top + layout.height + below + (44 if legend else 12) + MARGIN / 2
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">{safe_html(title)}</title>',
        f'<desc id="desc">{safe_html(_alt_text(graph))}</desc>',
        f"<style>{_CSS}</style>",
        f"<defs>{''.join(_markers())}</defs>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(MARGIN, MARGIN + 10, title, 16, "name"),
        f'<g transform="translate({MARGIN:.0f} {top:.0f})">',
        *_render_frames(graph, layout),
        *_render_flows(graph, layout),
        *(_card(layout.cards[n.id], layout.boxes[n.id]) for n in graph.nodes),
        "</g>",
        *_render_legend(legend, top + layout.height + below + 30),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _alt_text(graph: Graph) -> str:
    """Describe the picture in words, for screen readers."""
    streams = sum(node.count for node in graph.nodes)
    flows = sum(link.count for link in graph.links)
    return (
        f"{streams} streams and buckets in {sum(c.count for c in graph.domain_groups)} domains, "
        f"{flows} mirrors and sources."
    )


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    role: str,
    *,
    whole: str = "",
    color: str = "",
    anchor: str = "",
) -> str:
    style = (f' fill="{color}" style="fill:{color}"' if color else "") + (
        f' text-anchor="{anchor}"' if anchor else ""
    )
    hint = f"<title>{safe_html(whole)}</title>" if whole and whole != text else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" class="{role}"{style} '
        f'xml:space="preserve">{safe_html(text)}{hint}</text>'
    )


# --- domains and cards ----------------------------------------------------------------------------


def _render_frames(graph: Graph, layout: Layout) -> Iterator[str]:
    for cluster in graph.domain_groups:
        box = layout.clusters[cluster.key]
        yield (
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
            f'height="{box.height:.1f}" rx="8" class="frame"/>'
        )
        if cluster.count > 1:  # hint at the frames behind it
            yield (
                f'<path d="M{box.x + 8:.1f} {box.y - 4:.1f} H{box.right - 2:.1f} q6 0 6 6 '
                f'V{box.bottom - 8:.1f}" '
                'fill="none" stroke="#d0d7de" stroke-width="2"/>'
            )
        title = f"{cluster.title}  ×{cluster.count:,}" if cluster.count > 1 else cluster.title
        limit = box.width - 24
        yield _text(
            box.x + 12,
            box.y + HEAD - 7,
            truncate_middle(title, limit, 12, bold=True),
            12,
            "domain",
            whole=title,
        )


def _card(card: Card, box: Box) -> str:
    node = card.node
    badge, color = _KINDS[node.kind]
    if node.action:
        badge, color, _ = ACTION_STYLES[node.action]
    outside = " outside" if node.kind == "outside" or node.action == "deferred" else ""
    clip = (
        f"M{box.x + BAR:.1f} {box.y:.1f} h-1 a4 4 0 0 0 -4 4 v{box.height - 8:.1f} a4 4 0 0 0 4 "
        "4 h1 z"
    )
    parts = [
        f'<g id="{safe_html(node.id)}">',
        (
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
            f'height="{box.height:.1f}" rx="4" class="card{outside}"/>'
        ),
        f'<path d="{clip}" fill="{color}"/>',
    ]
    y = box.y + PAD + 8
    for row in card.rows:
        size, mono, _ = STYLE[row.role]
        role = "mono" if mono else {"name": "name", "facts": "dim", "more": "dim"}.get(row.role, "")
        words = ACTION_STYLES[row.action][2] if row.action else ""
        text = (
            f"{ACTION_STYLES[row.action][0][0]} {row.text.removeprefix('▸ ')}"
            if row.action
            else row.text
        )
        parts.append(
            _text(
                box.x + BAR + PAD,
                y,
                text,
                size,
                role,
                whole=row.full_text if row.full_text != row.text else "",
                color=words,
            )
        )
        y += LINE
    if badge:
        tone = ACTION_STYLES[node.action][2] if node.action else color
        parts.append(
            _text(box.right - PAD, box.y + PAD + 8, badge, SMALL, "", color=tone, anchor="end")
        )
    return "".join(parts) + "</g>"


# --- flows ----------------------------------------------------------------------------------------


def _markers() -> Iterator[str]:
    for name, color in _colors().items():
        yield (
            f'<marker id="to-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{color}"/></marker>'
        )


def _colors() -> dict[str, str]:
    return {"": _UNCHANGED_COLOR} | {fate: color for fate, (_, color, _) in ACTION_STYLES.items()}


def _render_flows(graph: Graph, layout: Layout) -> Iterator[str]:
    """Yield all lines, then all labels, so that no line crosses a label."""
    labels = []
    ports, track = _ports(graph, layout), 0
    for link in graph.links:
        start, end = ports[id(link)]
        around = _passes_domains(link, layout)
        track += around
        if around:
            sides = layout.side(link.origin, start.side), layout.side(link.downstream, end.side)
            way, at = _bypass_curve(start, end, sides, layout.height + 10 + 14 * track)
        else:
            way, at = _curve(start, end)
        color = _colors()[link.action or ""]
        shown = f"{link.count:,} flows" if link.count > 1 else ""
        yield (
            f'<path d="{way}" class="flow {link.kind}" stroke="{color}" '
            f'marker-end="url(#to-{link.action or ""})">'
            f"<title>{safe_html(_describe_link(link))}</title></path>"
        )
        words = " · ".join(word for word in (link.label, shown) if word)
        if words:
            labels.append(_label(*at, words, abs(end.x - start.x) - 24))
    yield from labels


def _describe_link(link: Link) -> str:
    return (
        f"{link.downstream} {'mirrors' if link.kind == 'mirror' else 'sources'} {link.origin}"
        + (f" ({link.label})" if link.label else "")
    )


Point = tuple[float, float]


class Port(NamedTuple):
    """The end of a line at a card, and its direction (1 is right)."""

    x: float
    y: float
    side: int


def _ports(graph: Graph, layout: Layout) -> dict[int, tuple[Port, Port]]:
    """Return both ends of each line, spread over the sides of its cards.

    They are in the order of the other ends.
    """
    wanted: dict[tuple[str, int], list[tuple[float, int, bool]]] = {}
    sides: dict[int, tuple[int, int]] = {}
    for link in graph.links:
        one, other = layout.boxes[link.origin], layout.boxes[link.downstream]
        sides[id(link)] = (
            (1, -1) if one.right <= other.x else (-1, 1) if other.right <= one.x else (1, 1)
        )
        wanted.setdefault((link.origin, sides[id(link)][0]), []).append(
            (other.middle, id(link), True)
        )
        wanted.setdefault((link.downstream, sides[id(link)][1]), []).append(
            (one.middle, id(link), False)
        )
    found: dict[tuple[int, bool], Port] = {}
    for (node, side), ends in wanted.items():
        box = layout.boxes[node]
        for number, (_, link_id, first) in enumerate(sorted(ends)):
            y = box.y + box.height * (number + 1) / (len(ends) + 1)
            found[link_id, first] = Port(box.right if side > 0 else box.x, y, side)
    return {id(link): (found[id(link), True], found[id(link), False]) for link in graph.links}


def _curve(start: Port, end: Port) -> tuple[str, Point]:
    """Return a line that leaves and arrives horizontally."""
    pull = max(36.0, abs(end.x - start.x) / 2) if start.side != end.side else 48.0
    a, b = start.x + start.side * pull, end.x + end.side * pull
    middle = (start.x + 3 * a + 3 * b + end.x) / 8, (start.y + end.y) / 2
    return (
        (
            f"M{start.x:.1f} {start.y:.1f} C{a:.1f} {start.y:.1f} {b:.1f} {end.y:.1f} "
            f"{end.x:.1f} {end.y:.1f}"
        ),
        middle,
    )


def _passes_domains(link: Link, layout: Layout) -> bool:
    """Return True if there are columns of domains between the two ends."""
    return abs(layout.column[link.origin] - layout.column[link.downstream]) > 1


def _bypass_curve(
    start: Port, end: Port, sides: tuple[float, float], y: float
) -> tuple[str, Point]:
    """Return a line below everything, for flows that pass unrelated domains.

    It turns beyond the `sides` of its columns.
    """
    out = 14 + y % 56  # parallel lines do not overlap
    a, b = sides[0] + start.side * out, sides[1] + end.side * out
    turn = 8 if b > a else -8
    down = (
        f"M{start.x:.1f} {start.y:.1f} H{a - start.side * 8:.1f} Q{a:.1f} {start.y:.1f} {a:.1f} "
        f"{start.y + 8:.1f} V{y - 8:.1f}"
    )
    along = (
        f"Q{a:.1f} {y:.1f} {a + turn:.1f} {y:.1f} H{b - turn:.1f} Q{b:.1f} {y:.1f} {b:.1f} "
        f"{y - 8:.1f}"
    )
    up = f"V{end.y + 8:.1f} Q{b:.1f} {end.y:.1f} {b - end.side * 8:.1f} {end.y:.1f} H{end.x:.1f}"
    return f"{down} {along} {up}", ((a + b) / 2, y)


def _bypass_height(graph: Graph, layout: Layout) -> float:
    tracks = sum(_passes_domains(link, layout) for link in graph.links)
    return 14.0 * tracks + 14 if tracks else 0.0


def _label(x: float, y: float, words: str, limit: float) -> str:
    shown = truncate_middle(words, max(60.0, min(limit, 220.0)), SMALL, mono=True)
    wide = text_width(shown, SMALL, mono=True) + 6
    halo = (
        f'<rect x="{x - wide / 2:.1f}" y="{y - 8:.1f}" width="{wide:.1f}" height="14" rx="3" '
        'class="halo"/>'
    )
    return halo + _text(x, y + 3, shown, SMALL, "mono label", whole=words, anchor="middle")


# --- legend ---------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    text: str
    color: str
    kind: str


def _legend(graph: Graph) -> Iterator[_Entry]:
    """Yield the legend of the kinds and fates that occur."""
    for kind in ("mirror", "source"):
        if any(link.kind == kind for link in graph.links):
            yield _Entry(kind, _UNCHANGED_COLOR, kind)
    for kind, word in (("stream", "stream"), ("kv", "KV bucket"), ("object_store", "object store")):
        if not graph.planned and any(node.kind == kind for node in graph.nodes):
            yield _Entry(word, _KINDS[kind][1], "bar")
    if any(node.consumers for node in graph.nodes):
        yield _Entry("▸ consumer", "", "")
    used = {node.action for node in graph.nodes} | {link.action for link in graph.links}
    used |= {reader.action for node in graph.nodes for reader in node.consumers}
    for fate, (sign, color, _) in ACTION_STYLES.items():
        if fate in used:
            yield _Entry(sign, color, "bar")


def _render_legend(legend: Iterable[_Entry], y: float) -> Iterator[str]:
    x = MARGIN
    for entry in legend:
        if entry.kind in ("mirror", "source"):
            yield (
                f'<path d="M{x:.1f} {y - 4:.1f} h24" class="flow {entry.kind}" '
                f'stroke="{entry.color}" marker-end="url(#to-)"/>'
            )
            x += 30
        elif entry.kind:
            yield (
                f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="5" height="11" rx="1" '
                f'fill="{entry.color}"/>'
            )
            x += 10
        yield _text(x, y, entry.text, SMALL, "dim")
        x += text_width(entry.text, SMALL) + 22
