"""Origins as they are live, where the files mean the same by another name, and what is odd about them. Pure.

An `external` that reaches the same origin is the same origin, whatever its delivery prefix: a mirror is never replaced
for a prefix (contract, section 2). What reaches what is known to `topology`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.facts.live import Live
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.subjects import overlaps
from jsplan.topology import Edge, Topology
from jsplan.topology.replication_graph import map_subjects, subject_mappings

#: Streams behind streams that are looked at for their subjects.
MAX_DEPTH = 8


def with_live_externals(
    body: Mapping[str, Any], address: Address, topology: Topology, live: Live
) -> dict[str, Any]:
    """The body with each origin reached as it is live, if it is; a new one gets the delivery prefix of its imports row."""
    out = dict(body)
    if not any(
        origin.get("external") for origin in (out.get("mirror") or {}, *(out.get("sources") or ()))
    ):
        return out
    raw = there.raw if (there := live.get(address)) is not None else {}
    if out.get("mirror"):
        out["mirror"] = _with_live_external(
            out["mirror"], [raw["mirror"]] if raw.get("mirror") else [], address, topology
        )
    if out.get("sources"):
        out["sources"] = [
            _with_live_external(
                origin, _same_subject_sources(origin, raw.get("sources") or []), address, topology
            )
            for origin in out["sources"]
        ]
    return out


def _same_subject_sources(origin: Config, theirs: list[Config]) -> list[Config]:
    """Live sources that take the same subjects of a stream of that name: what else tells sources apart is how they are reached."""
    return [
        other for other in theirs if _key_without_external(other) == _key_without_external(origin)
    ]


def _key_without_external(origin: Config) -> str:
    return origin_key({name: value for name, value in origin.items() if name != "external"})


def _with_live_external(
    origin: Config, theirs: list[Config], address: Address, topology: Topology
) -> Config:
    external = origin.get("external")
    live = next(
        (
            t
            for t in theirs
            if t.get("name") == origin.get("name")
            and _is_same_external(external, t.get("external"), address, topology)
        ),
        None,
    )
    if live is None:
        deliver = topology.delivery_prefixes.get(address, {}).get(origin_key(origin))
        return (
            origin | {"external": {**external, "deliver": deliver}}
            if external and deliver
            else origin
        )
    kept = live.get("external")
    if external and external.get("deliver"):
        kept = {**(kept or {}), "deliver": external["deliver"]}
    rest = {name: value for name, value in origin.items() if name != "external"}
    return rest | ({"external": kept} if kept else {})


def _is_same_external(
    external: Config | None, theirs: Config | None, address: Address, topology: Topology
) -> bool:
    """Whether two ways reach one JetStream. The name of the own one leads nowhere: the server takes it and copies nothing."""
    ours, live = (e.get("api") if e else None for e in (external, theirs))
    if ours == live:
        return True
    one, other = (topology.routes.resolve_prefix(address.domain, api) for api in (ours, live))
    return one is not None and one == other and None not in (ours, live)


# --- findings ------------------------------------------------------------------------------------------------


def check_origins(
    edges: list[Edge],
    topology: Topology,
    live: Live,
    after: Mapping[Address, Config | None],
    source_ranges: Mapping[Address, SourceRange],
) -> Iterator[Diagnostic]:
    """What is odd about the origins of streams that this plan makes or changes. The server accepts all of it, so these are warnings.

    `after` has what each decided stream will be, None for one that goes; `places` the streams to look at, with their lines.
    """
    known = _PlannedStreams(topology, live, after)
    for edge in edges:
        if edge.downstream not in source_ranges or not live.is_reachable(edge.origin.domain):
            continue
        found = _find_problem(edge, known)
        if found is not None:
            code, text, detail = found
            yield Diagnostic(
                "warning", code, text, detail, str(edge.downstream), source_ranges[edge.downstream]
            )


def _find_problem(edge: Edge, streams: _PlannedStreams) -> tuple[str, str, str] | None:
    if edge.origin not in streams.after and edge.origin in streams.live.unreadable:
        return None
    if streams.config(edge.origin) is None:
        if edge.origin in streams.after:
            return None  # it goes in this plan, which is a hazard of its own
        text = f"its origin {edge.origin} does not exist and is not planned: nothing is copied until it does"
        return "JS452", text, "Declare the stream, or correct the name or the domain."
    subjects = streams.subjects(edge.origin)
    if not subjects or any(
        overlaps(src, subject) for src, _ in subject_mappings(edge.config) for subject in subjects
    ):
        return None
    wanted = ", ".join(src for src, _ in subject_mappings(edge.config))
    text = (
        f"nothing of {edge.origin} passes the filter {wanted}: it stores {', '.join(subjects[:5])}"
    )
    return "JS453", text, "Correct the filter, or leave it out."


class _PlannedStreams:
    """The streams as they will be: decided ones, else as they are live."""

    def __init__(
        self, topology: Topology, live: Live, after: Mapping[Address, Config | None]
    ) -> None:
        self.live, self.after = live, after
        self._edges: dict[Address, list[Edge]] = {}
        for edge in topology.edges:
            self._edges.setdefault(edge.downstream, []).append(edge)

    def config(self, address: Address) -> Config | None:
        """The compact configuration that a stream will have; None for one that is not there."""
        if address in self.after:
            return self.after[address]
        found = self.live.get(address)
        return found.compact if found is not None else None

    def subjects(self, address: Address, depth: int = MAX_DEPTH) -> list[str]:
        """What a stream may store, as patterns; nothing where that is not known."""
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
