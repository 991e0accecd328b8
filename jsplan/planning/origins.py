"""Origins as they are live, with the equivalent names in the files, and findings about them.

An `external` that reaches the same origin is the same origin, whatever its delivery prefix: a
mirror is never replaced for a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.facts.live import Live
from jsplan.flows.graph import list_origins
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_api, origin_key
from jsplan.subjects import overlaps
from jsplan.topology import Edge, Topology
from jsplan.topology.replication_graph import map_subjects, subject_mappings

#: The most levels of origins that are searched for subjects.
MAX_DEPTH = 8


def with_live_externals(
    body: Mapping[str, Any], address: Address, topology: Topology, live: Live
) -> dict[str, Any]:
    """Return the body with the live `external` of each origin that is live.

    A new origin gets the delivery prefix of its imports row.
    """
    out = dict(body)
    if "mirror" not in out and "sources" not in out:
        return out  # most of a large plan
    mirror, sources = out.get("mirror") or {}, out.get("sources") or []
    if not any(origin.get("external") for origin in (mirror, *sources)):
        return out
    raw = there.raw if (there := live.get(address)) is not None else {}
    if mirror:
        theirs = [raw["mirror"]] if raw.get("mirror") else []
        out["mirror"] = _with_live_external(mirror, theirs, address, topology)
    if sources:
        known: dict[str, list[Config]] = {}
        for source in raw.get("sources") or ():
            known.setdefault(_key_without_external(source), []).append(source)
        out["sources"] = [
            _with_live_external(one, known.get(_key_without_external(one), ()), address, topology)
            for one in sources
        ]
    return out


def _key_without_external(origin: Config) -> str:
    """Return the same key for sources that take the same subjects of a stream of that name."""
    return origin_key({name: value for name, value in origin.items() if name != "external"})


def _with_live_external(
    origin: Config, theirs: Iterable[Config], address: Address, topology: Topology
) -> Config:
    external = origin.get("external")
    named = (one for one in theirs if one.get("name") == origin.get("name"))
    same = (t for t in named if _is_same_external(external, t.get("external"), address, topology))
    live = next(same, None)
    if live is None:
        deliver = topology.delivery_prefixes.get(address, {}).get(origin_key(origin))
        if not (external and deliver):
            return origin
        return origin | {"external": {**external, "deliver": deliver}}
    external_now = live.get("external")
    if external and external.get("deliver"):
        external_now = {**(external_now or {}), "deliver": external["deliver"]}
    rest = {name: value for name, value in origin.items() if name != "external"}
    return rest | ({"external": external_now} if external_now else {})


def _is_same_external(
    external: Config | None, theirs: Config | None, address: Address, topology: Topology
) -> bool:
    """Check whether two `external` reach one JetStream.

    An `external` with the API prefix of the own domain does not: the server accepts it and copies
    nothing.
    """
    ours, live = (e.get("api") if e else None for e in (external, theirs))
    if ours == live:
        return True
    ours_key, live_key = (
        topology.routes.resolve_prefix(address.domain, api) for api in (ours, live)
    )
    return ours_key is not None and ours_key == live_key and None not in (ours, live)


# --- findings ----


def check_origins(
    edges: list[Edge],
    topology: Topology,
    live: Live,
    after: Mapping[Address, Config | None],
    source_ranges: Mapping[Address, SourceRange],
) -> Iterator[Diagnostic]:
    """Warn about the origins of streams that this plan creates or changes.

    The server accepts all of it. `after` has the configuration that each decided stream will have,
    None for a deleted one. `source_ranges` has the streams to check, with their lines.
    """
    known = _PlannedStreams(topology, live, after)
    for edge in edges:
        if edge.downstream not in source_ranges or not live.is_reachable(edge.origin.domain):
            continue
        place = source_ranges[edge.downstream]
        for code, text, detail in _find_problems(edge, known):
            yield Diagnostic("warning", code, text, detail, str(edge.downstream), place)


def note_unchecked_imports(
    topology: Topology, live: Live, places: Mapping[Address, SourceRange]
) -> Iterator[Diagnostic]:
    """Note each new flow over an import: only trying it shows whether the accounts permit it."""
    for edge in topology.edges:
        api = origin_api(edge.config)
        if edge.downstream not in places or not api:
            continue
        now = live.get(edge.downstream)
        known = {origin_key(one) for _, one in list_origins(now.raw if now is not None else {})}
        is_new = origin_key(dict(edge.config)) not in known
        if is_new and topology.routes.is_imported(edge.downstream.domain, api):
            text = f"reads {edge.origin} in another account; exports and imports are not checked"
            detail = "Try them: jsplan access --check."
            place = places[edge.downstream]
            yield Diagnostic("info", "JS478", text, detail, str(edge.downstream), place)


def _find_problems(edge: Edge, streams: _PlannedStreams) -> Iterator[tuple[str, str, str]]:
    origin = edge.origin
    if streams.config(origin) is None:
        # That this plan deletes it has a hazard of its own.
        if origin not in streams.after and origin not in streams.live.unreadable:
            text = f"its origin {origin} does not exist and is not planned. "
            text += "Nothing is copied until it exists"
            yield "JS452", text, "Declare the stream, or correct the name or the domain."
        return
    subjects, filters = streams.subjects(origin), [src for src, _ in subject_mappings(edge.config)]
    if subjects and not any(overlaps(src, one) for src in filters for one in subjects):
        wanted, stored = ", ".join(filters), ", ".join(subjects[:5])
        text = f"nothing of {origin} passes the filter {wanted}: it stores {stored}"
        yield "JS453", text, "Correct the filter, or leave it out."


class _PlannedStreams:
    """The streams as they will be: decided ones, otherwise live ones."""

    def __init__(
        self, topology: Topology, live: Live, after: Mapping[Address, Config | None]
    ) -> None:
        self.live, self.after = live, after
        self._edges: dict[Address, list[Edge]] = {}
        for edge in topology.edges:
            self._edges.setdefault(edge.downstream, []).append(edge)

    def config(self, address: Address) -> Config | None:
        """Return the compact configuration that a stream will have; None for a missing one."""
        if address in self.after:
            return self.after[address]
        found = self.live.get(address)
        return found.compact if found is not None else None

    def subjects(self, address: Address, depth: int = MAX_DEPTH) -> list[str]:
        """Return the patterns of the subjects that a stream may store; empty where unknown."""
        config = self.config(address)
        if config is None or config.get("subject_transform") or not depth:
            return []
        own = list(config.get("subjects") or [])
        edges = self._edges.get(address, [])
        if len(edges) < len(config.get("sources") or ()) + bool(config.get("mirror")):
            return []
        for edge in edges:
            upstream = self.subjects(edge.origin, depth - 1)
            if not upstream:
                return []
            own += map_subjects(upstream, edge.config)
        return own
