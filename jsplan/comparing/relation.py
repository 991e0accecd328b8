"""The relation of two streams: how messages are matched, and why they differ. Pure.

Reasons are given as far as configurations and ends of streams show them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final, Literal

from msgspec import Struct

from jsplan.config.model import Backfill, Workspace
from jsplan.diagnostics import quote_shell
from jsplan.documents.comparison import ComparedPart, PartKind
from jsplan.errors import RefusedError
from jsplan.facts.compare_streams import Comparison, Sequences
from jsplan.facts.live import LiveObject
from jsplan.planning.backfill.model import SeqRange, merge_ranges
from jsplan.resources.source_header import source_name
from jsplan.topology.replication_graph import subject_filters, subject_mappings
from jsplan.topology.routes import DomainRoutes

#: Ranges that a part lists.
MAX_RANGES: Final = 1000
#: Fields with which a server deletes messages, and how a reason names them.
_LIMITS: Final = ("max_age", "max_msgs", "max_bytes")
_INTERIOR: Final = ("max_msgs_per_subject", "allow_msg_ttl", "allow_rollup_hdrs")


class Relation(Struct, frozen=True):
    """An origin and its copy.

    `role` is how the copy is configured now (empty: not as a copy of it). `names` are those of the
    origin in `Nats-Stream-Source`, and `tags` are those in `Jsplan-Origin`, now and before it was
    moved. `filters` are the subjects that the source copies, `start` its first sequence. `renames`:
    the copy may have other subjects.
    """

    origin: LiveObject
    copy: LiveObject
    role: Literal["mirror", "source", "backup", ""] = ""
    names: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    filters: tuple[str, ...] = ()
    start: int = 1
    renames: bool = False

    @property
    def by(self) -> Literal["sequence", "header"]:
        """A mirror keeps sequences; what a source or a backfill copied names its origin."""
        return "header" if self.role == "source" or self.tags else "sequence"


def relate(
    workspace: Workspace, routes: DomainRoutes, first: LiveObject, second: LiveObject
) -> Relation:
    """Return which of two streams is the copy: the second where neither is.

    Raises RefusedError for a backfill that changes messages or leaves some out.
    """
    for origin, copy in ((first, second), (second, first)):
        mirror = copy.raw.get("mirror")
        if mirror and routes.reads_origin(copy.address, mirror, origin.address):
            return Relation(origin, copy, "mirror")
    for origin, copy in ((first, second), (second, first)):
        sources = [
            source
            for source in copy.raw.get("sources") or ()
            if routes.reads_origin(copy.address, source, origin.address)
        ]
        backfills = _backfills(workspace, origin, copy)
        if sources or backfills:
            _require_plain(backfills)
            return _by_header(workspace, routes, origin, copy, sources, backfills)
    return Relation(first, second)


def _by_header(
    workspace: Workspace,
    routes: DomainRoutes,
    origin: LiveObject,
    copy: LiveObject,
    sources: list[dict[str, Any]],
    backfills: list[Backfill],
) -> Relation:
    """Return a relation by header. The tag of a backfill counts without an entry too."""
    names = {source_name(source).stream for source in sources}
    domain = workspace.domains[routes.canonicalize(origin.address.domain)]
    complete = any(not (source.get("opt_start_seq") or 0) > 1 for source in sources)
    filters = tuple(f for source in sources for f in subject_filters(source))
    renamed = any(src != dest for s in sources for src, dest in subject_mappings(s))
    return Relation(
        origin,
        copy,
        "source" if sources else "",
        frozenset(names),
        frozenset({f"{domain.js_domain or domain.key}/{origin.address.stream}"}),
        () if backfills else filters,
        1 if complete or backfills else min(int(s["opt_start_seq"]) for s in sources),
        renamed or bool(copy.raw.get("subject_transform")),
    )


def _backfills(workspace: Workspace, origin: LiveObject, copy: LiveObject) -> list[Backfill]:
    """Return the entries of `backfills:` that copy one stream into the other."""
    wanted, into = str(origin.address), str(copy.address)
    return [
        entry
        for entry in workspace.backfills.values()
        if str(entry.target) == into and wanted in map(str, entry.origins)
    ]


def _require_plain(backfills: list[Backfill]) -> None:
    """Raise RefusedError for an entry that changes messages or leaves some out."""
    for entry in backfills:
        changes = entry.where or entry.transform or entry.subject_transform or entry.mode == "exact"
        if changes or any(side.filters for side in entry.origins):
            raise RefusedError(
                f"backfill {entry.name} changes messages or leaves some out, so that both streams "
                "differ",
                hint=f"Compare them with it: jsplan backfill verify {quote_shell(entry.name)}",
            )


def deletes_oldest(stream: LiveObject) -> str:
    """Return the fields by which a stream deletes its oldest messages; empty for none."""
    config = stream.compact
    found = [name for name in _LIMITS if int(config.get(name) or 0) > 0]
    return " and ".join(found) or _deletes_any(stream)


def _deletes_any(stream: LiveObject) -> str:
    """Return the fields by which a stream deletes messages in its middle; empty for none."""
    config = stream.compact
    retention = config.get("retention", "limits")
    found = [f"retention: {retention}"] if retention != "limits" else []
    found += [name for name in _INTERIOR if int(config.get(name) or 0) > 0]
    return " and ".join(found)


def explain(relation: Relation, found: Comparison, *, forked: bool) -> list[ComparedPart]:
    """Return the differences, those of one reason together.

    `forked`: the origin went back, and those that differ are newer than the copy.
    """
    origin = relation.origin.address
    newer = f"{origin} went back, and has received new messages at the lost sequences"
    ends = _ends(relation)
    whys: dict[PartKind, Callable[[int], tuple[bool, str]]] = {
        "missing": lambda seq: _why_missing(relation, seq),
        "extra": lambda seq: _why_extra(relation, seq),
        "different": lambda _: (False, newer if forked else ""),
        "twice": lambda _: (False, "the copy has them more than once"),
    }
    parts: list[ComparedPart] = []
    for kind, why in whys.items():
        sequences: Sequences = getattr(found, kind)
        spans = [part for span in sequences.ranges for part in _split(SeqRange(*span), ends)]
        for (expected, reason), group in groupby(spans, key=lambda span: why(span.first)):
            ranges = list(group)
            lost = not expected and (kind == "extra" or (kind == "different" and forked))
            in_copy = _places(found, ranges) if lost else []
            count = sum(span.size for span in ranges)
            parts.append(
                ComparedPart(kind, count, _listed(ranges), reason, expected, lost, _listed(in_copy))
            )
        if sequences.omitted:
            reason = "in more ranges than are listed"
            parts.append(ComparedPart(kind, sequences.omitted, [], reason))
    return parts


def _ends(relation: Relation) -> list[int]:
    """Return the sequences at which the reason for a difference may change, in order."""
    found = {relation.start}
    for side in (relation.origin, relation.copy):
        first, last = (int(side.state.get(name) or 0) for name in ("first_seq", "last_seq"))
        found |= {first, last + 1}
    return sorted(found)


def _split(span: SeqRange, ends: Iterable[int]) -> Iterator[SeqRange]:
    """Split a range before each of the sequences that are in it."""
    first = span.first
    for end in ends:
        if first < end <= span.last:
            yield SeqRange(first, end - 1)
            first = end
    yield SeqRange(first, span.last)


def _places(found: Comparison, spans: list[SeqRange]) -> list[SeqRange]:
    """Return the ranges in the copy, which has other sequences where it names its origin."""
    if not found.places:
        return spans
    placed, lasts = [], [last for _, last, _ in found.places]
    for span in spans:
        begins, ends = bisect_left(lasts, span.first), bisect_left(lasts, span.last) + 1
        for first, last, place in found.places[begins:ends]:
            begin, end = max(span.first, first), min(span.last, last)
            placed.append(SeqRange(place + begin - first, place + end - first))
    return merge_ranges(span for span in placed if span.size > 0)


def _listed(spans: list[SeqRange]) -> list[list[int]]:
    return [[*span] for span in spans[:MAX_RANGES]]


def _why_missing(relation: Relation, seq: int) -> tuple[bool, str]:
    """Say why the copy lacks a message: whether that is expected, and the reason."""
    copy = relation.copy
    if relation.by == "sequence":
        first, last = (int(copy.state.get(name) or 0) for name in ("first_seq", "last_seq"))
        if seq > last and relation.role == "mirror":
            return False, f"{copy.address} has not copied them yet"
        if seq > last and relation.role == "backup":
            return True, f"the backup ends at {last:,}"
        if seq < first and (why := deletes_oldest(copy)):
            return True, f"{copy.address} has deleted them by {why}"
    elif seq < relation.start:
        return True, f"the source begins at sequence {relation.start:,}"
    elif why := deletes_oldest(copy):
        return True, f"{copy.address} may have deleted them by {why}"
    if why := _deletes_any(copy):
        return True, f"{copy.address} may have deleted them by {why}"
    return False, ""


def _why_extra(relation: Relation, seq: int) -> tuple[bool, str]:
    """Say why the origin lacks a message that the copy has."""
    origin = relation.origin
    first, last = (int(origin.state.get(name) or 0) for name in ("first_seq", "last_seq"))
    if seq > last:
        return False, f"{origin.address} ends at {last:,}: it went back"
    if seq < first and (why := deletes_oldest(origin)):
        return True, f"{origin.address} has deleted them by {why}"
    if why := _deletes_any(origin):
        return True, f"{origin.address} may have deleted them by {why}"
    return False, f"{origin.address} has lost them, or a client has deleted them there"
