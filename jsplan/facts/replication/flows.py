"""The flows that there are: each mirror and source as it is configured on its server, with the stream that it leads to. Pure.

Not what the files ask for: a copy follows what its server was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.resources.nested import origin_key
from jsplan.topology import Topology
from jsplan.topology.replication_graph import subject_mappings


@dataclass(frozen=True, slots=True)
class Flow:
    """`downstream` is a mirror of, or sources, a stream called `name` behind the API prefix `api` (None: its own JetStream).

    `origin` is that stream, None where no domain of the workspace has the prefix. `key` tells sources of one copy apart. `config` is the
    mirror or source as its server has it; `imported` says that the prefix, or what is delivered, comes from another account.
    """

    downstream: Address
    kind: str
    name: str
    api: str | None
    key: str
    origin: Address | None
    imported: bool = False
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)

    @property
    def source(self) -> str:
        """The origin as people know it: its address, or its name and prefix."""
        return str(self.origin) if self.origin is not None else f"{self.name}@{self.api}"

    @property
    def filters(self) -> list[str]:
        """The subjects that it takes."""
        return [src for src, _ in subject_mappings(self.config)]

    @property
    def is_unfiltered(self) -> bool:
        """Whether it takes every message."""
        return self.filters == [">"]

    @property
    def start(self) -> int:
        """The first sequence that it takes."""
        return int(self.config.get("opt_start_seq") or 1)

    @property
    def consumer(self) -> str:
        """The origin's consumer that it names, if it names one."""
        return str((self.config.get("consumer") or {}).get("name") or "")


#: Which stream the files mean by a name behind a prefix, in the copy that is named first.
DeclaredOrigins = Mapping[tuple[Address, str, str | None], Address]


def list_flows(copies: Iterable[LiveObject], topology: Topology) -> list[Flow]:
    """Every mirror and source of these streams, in their order."""
    meant = {
        (
            topology.canonicalize(e.downstream),
            e.config["name"],
            _api_prefix(e.config),
        ): topology.canonicalize(e.origin)
        for e in topology.edges
    }
    return [
        flow
        for copy in copies
        if copy.address.kind != "consumer"
        for flow in _flows_into(copy, topology, meant)
    ]


def _flows_into(copy: LiveObject, topology: Topology, meant: DeclaredOrigins) -> Iterable[Flow]:
    configured = [("mirror", copy.raw["mirror"])] if copy.raw.get("mirror") else []
    configured += [("source", source) for source in copy.raw.get("sources") or ()]
    for kind, config in configured:
        api, own = _api_prefix(config), copy.address.domain
        domain = topology.routes.resolve_prefix(own, api)
        said = meant.get(
            (topology.canonicalize(copy.address), config["name"], api)
        )  # where one prefix is several domains, only the files know
        origin = Address.of_stream(domain, config["name"]) if domain is not None else said
        imported = api is not None and (
            bool(config["external"].get("deliver")) or topology.routes.is_imported(own, api)
        )
        yield Flow(
            copy.address, kind, config["name"], api, origin_key(config), origin, imported, config
        )


def _api_prefix(config: Mapping[str, Any]) -> str | None:
    api: str | None = (config.get("external") or {}).get("api")
    return api
