"""The relation of two streams, and by what their messages are matched. Pure."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from jsplan.config.model import Backfill, Workspace
from jsplan.diagnostics import quote_shell
from jsplan.errors import RefusedError
from jsplan.facts.live import LiveObject
from jsplan.resources.source_header import source_name
from jsplan.topology.replication_graph import subject_filters, subject_mappings
from jsplan.topology.routes import DomainRoutes


class Relation(Struct, frozen=True):
    """An origin and its copy.

    `role` is how the copy is configured now (empty: not as a copy of it). `names` are those of the
    origin in `Nats-Stream-Source`, and `tag` is its name in `Jsplan-Origin`. `filters` are the
    subjects that the source copies, `start` its first sequence. `renames`: the copy may have other
    subjects.
    """

    origin: LiveObject
    copy: LiveObject
    role: Literal["mirror", "source", "backup", ""] = ""
    names: frozenset[str] = frozenset()
    tag: str = ""
    filters: tuple[str, ...] = ()
    start: int = 1
    renames: bool = False

    @property
    def by(self) -> Literal["sequence", "header"]:
        """A mirror keeps sequences; what a source or a backfill copied names its origin."""
        return "header" if self.role == "source" or self.tag else "sequence"


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
        f"{domain.js_domain or domain.key}/{origin.address.stream}",
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
