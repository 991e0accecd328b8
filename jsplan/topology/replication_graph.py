"""Flows from streams to their downstream: subjects, transforms and circles. Pure.

The server looks for circles only inside one JetStream (10052). Through `external` it accepts them,
and then one message is copied without end: 27,000 copies in four seconds were measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jsplan.address import Address
from jsplan.config.model import DeclaredResource
from jsplan.diagnostics import Diagnostic
from jsplan.subjects import intersect, is_covered, overlaps

#: Streams visited before the search for circles gives up; real workspaces need a few per circle.
MAX_VISITS: Final = 20_000
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}|\$\d+")


@dataclass(frozen=True, slots=True)
class Edge:
    """`downstream` mirrors or sources `origin`; both are streams or buckets.

    `kind` is `mirror` or `source`. `config` is the mirror or the source in the server's terms,
    without a computed delivery prefix.
    """

    origin: Address
    downstream: Address
    kind: str
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def is_local(self) -> bool:
        """True if both are in one JetStream, as the server sees it."""
        return not self.config.get("external")


def subject_mappings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the subjects that a mirror or source copies, each with its stored subject.

    Both are patterns.
    """
    transforms = config.get("subject_transforms") or [{"src": config.get("filter_subject")}]
    return [_subject_mapping(t.get("src") or ">", t.get("dest") or "") for t in transforms]


def republish_mapping(republish: Mapping[str, Any]) -> tuple[str, str]:
    """Return the subjects that a stream republishes, and under which ones. Both are patterns."""
    return _subject_mapping(republish.get("src") or ">", republish.get("dest") or "")


def subject_filters(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the subjects that a mirror or source copies, as patterns."""
    return tuple(src for src, _ in subject_mappings(config))


def _subject_mapping(src: str, dest: str) -> tuple[str, str]:
    """Map one transform; one that only filters keeps the names, as `dest` ">" does."""
    return (
        src,
        src
        if dest in ("", ">")
        else ".".join("*" if _PLACEHOLDER.search(part) else part for part in dest.split(".")),
    )


def apply_transform(subjects: Iterable[str], transform: Mapping[str, Any] | None) -> list[str]:
    """Return the stored subjects after the stream's own transform; others stay unchanged."""
    if not transform:
        return list(subjects)
    found = []
    for subject in subjects:
        (src, dest), *_ = subject_mappings({"subject_transforms": [transform]})
        if intersect(subject, src) is not None:
            found.append(dest)
        if not is_covered(subject, [src]):
            found.append(subject)
    return found


def map_subjects(patterns: Iterable[str], config: Mapping[str, Any]) -> list[str]:
    """Map subjects through a mirror or source, to patterns that are at least as wide."""
    found: dict[str, None] = {}
    for pattern in patterns:
        for src, dest in subject_mappings(config):
            passed = intersect(pattern, src)
            if passed is not None:
                found[passed if dest == src else dest] = None
    return list(found)


def is_unfiltered(config: Mapping[str, Any]) -> bool:
    """Check whether everything passes, unchanged."""
    return subject_mappings(config) == [(">", ">")]


def find_circles(
    edges: Sequence[Edge], declared: Mapping[Address, DeclaredResource]
) -> list[Diagnostic]:
    """Return a finding for each circle of flows.

    Circles that the server refuses, that copy nothing, or that copy without end are errors.
    """
    inner = _edges_on_circles(edges)
    found: dict[frozenset[Address], Diagnostic] = {}
    for ring in _find_mirror_circles(inner):
        text = f"{_describe_circle(ring)}: mirrors of each other never receive a message"
        found[_circle_members(ring)] = _build_diagnostic(
            "error", "JS406", text, "Let one of them be a stream with subjects.", ring, declared
        )
    for edge in sorted(inner, key=lambda e: (e.downstream, e.origin)):
        ring = _find_endless_circle(edge, inner)
        if ring and _circle_members(ring) not in found:
            found[_circle_members(ring)] = _diagnose_circle(ring, declared)
    for ring in _find_refused_pairs(inner, declared):
        if _circle_members(ring) not in found:
            found[_circle_members(ring)] = _refused_circle(ring, declared)
    return list(found.values())


def _find_refused_pairs(
    edges: Sequence[Edge], declared: Mapping[Address, DeclaredResource]
) -> Iterator[list[Edge]]:
    """Yield two streams of one JetStream that copy each other: the server looks at no transform.

    It takes a source for harmless whose filter meets no subject of the stream itself (measured).
    """
    refused = {
        (edge.downstream, edge.origin): edge
        for edge in edges
        if edge.is_local and _reads_own_subjects(edge, declared)
    }
    for (downstream, origin), edge in sorted(refused.items()):
        back = refused.get((origin, downstream))
        if back is not None and downstream < origin:
            yield [edge, back]


def _reads_own_subjects(edge: Edge, declared: Mapping[Address, DeclaredResource]) -> bool:
    wanted, stream = edge.config.get("filter_subject"), declared.get(edge.downstream)
    subjects = (stream.body.get("subjects") or ()) if stream is not None else ()
    return edge.kind == "mirror" or not wanted or any(overlaps(s, wanted) for s in subjects)


def _diagnose_circle(ring: list[Edge], declared: Mapping[Address, DeclaredResource]) -> Diagnostic:
    plain = not any(edge.config.get("subject_transforms") for edge in ring)
    if all(edge.is_local for edge in ring) and plain:
        return _refused_circle(ring, declared)
    guarded = any(
        declared[a].body.get("duplicate_window") for a in _circle_members(ring) if a in declared
    )
    if all(is_unfiltered(edge.config) for edge in ring) and not guarded:
        text = f"{_describe_circle(ring)}: each message would be copied without end"
        detail = (
            "The server does not check this across domains."
            " Take out one source, or give the sources filters that do not overlap."
        )
        return _build_diagnostic("error", "JS407", text, detail, ring, declared)
    text = f"{_describe_circle(ring)}: messages may be copied without end"
    detail = (
        "The server does not check this across domains."
        " Give the sources filters that do not overlap."
        " A duplicate_window only stops messages with a Nats-Msg-Id."
    )
    return _build_diagnostic("warning", "JS408", text, detail, ring, declared)


def _refused_circle(ring: list[Edge], declared: Mapping[Address, DeclaredResource]) -> Diagnostic:
    text = (
        f"{_describe_circle(ring)}: streams that copy from each other are a circle,"
        " which the server refuses (10052)"
    )
    detail = "Take out one source, or give the sources filters that do not overlap."
    return _build_diagnostic("error", "JS407", text, detail, ring, declared)


def _build_diagnostic(
    severity: Any,
    code: str,
    text: str,
    detail: str,
    ring: list[Edge],
    declared: Mapping[Address, DeclaredResource],
) -> Diagnostic:
    first = ring[0].downstream
    place = declared[first].ranges.get(
        f"{ring[0].kind}s" if ring[0].kind == "source" else "mirror", declared[first].range
    )
    return Diagnostic(severity, code, text, detail, str(first), place)


def _describe_circle(ring: Sequence[Edge]) -> str:
    return " copies ".join(str(a) for a in (ring[0].downstream, *(e.origin for e in ring)))


def _circle_members(ring: Iterable[Edge]) -> frozenset[Address]:
    return frozenset(edge.downstream for edge in ring)


def _edges_on_circles(edges: Sequence[Edge]) -> list[Edge]:
    """Remove streams without origins or downstream repeatedly, and return the remaining edges."""
    remaining = list(edges)
    while True:
        downstream, origins = {e.downstream for e in remaining}, {e.origin for e in remaining}
        inner = [e for e in remaining if e.origin in downstream and e.downstream in origins]
        if len(inner) == len(remaining):
            return inner
        remaining = inner


def _find_mirror_circles(edges: Sequence[Edge]) -> Iterator[list[Edge]]:
    mirrors = {edge.downstream: edge for edge in edges if edge.kind == "mirror"}
    seen: set[Address] = set()
    for start in sorted(mirrors):
        ring: list[Edge] = []
        at = start
        while at in mirrors and at not in seen:
            seen.add(at)
            ring.append(mirrors[at])
            at = mirrors[at].origin
        begin = next((index for index, edge in enumerate(ring) if edge.downstream == at), None)
        if begin is not None:
            yield ring[begin:]


def _find_endless_circle(start: Edge, edges: Sequence[Edge]) -> list[Edge]:
    """Return a path from `start` back to itself through which some subject passes.

    Each edge copies what the next one stores.
    """
    onward: dict[Address, list[Edge]] = {}
    for edge in edges:
        onward.setdefault(edge.origin, []).append(edge)
    pending: list[tuple[list[Edge], list[str]]] = [([start], map_subjects([">"], start.config))]
    visits = 0
    while pending and visits < MAX_VISITS:
        path, subjects = pending.pop()
        visits += 1
        for edge in onward.get(path[-1].downstream, ()):
            passed = map_subjects(subjects, edge.config)
            if not passed:
                continue
            if edge == start:
                return path[::-1]
            if edge.downstream not in _circle_members(path):
                pending.append(([*path, edge], passed))
    return []
