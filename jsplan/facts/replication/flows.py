"""The flows on the servers: each mirror and source as configured there, with its origin.

Not those of the files: a server follows its own configuration.
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
    """A mirror or source: `downstream` reads stream `name` behind the API prefix `api`.

    `api` None is its own JetStream. `origin` is that stream, None where no domain of the workspace
    has the prefix. `key` distinguishes sources of one stream. `config` is the mirror or source on
    its server. `imported`: the prefix, or the delivery, comes from another account.
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
        """The origin for messages: its address, or its name and prefix."""
        return str(self.origin) if self.origin is not None else f"{self.name}@{self.api}"

    @property
    def filters(self) -> list[str]:
        """The subjects that it copies."""
        return [src for src, _ in subject_mappings(self.config)]

    @property
    def is_unfiltered(self) -> bool:
        """True if it copies every message."""
        return self.filters == [">"]

    @property
    def start(self) -> int:
        """The first sequence that it copies."""
        return int(self.config.get("opt_start_seq") or 1)

    @property
    def consumer(self) -> str:
        """The name of the origin's consumer, if it has one."""
        return str((self.config.get("consumer") or {}).get("name") or "")


#: Origin in the files, by downstream stream, origin name and prefix.
DeclaredOrigins = Mapping[tuple[Address, str, str | None], Address]


def list_flows(streams: Iterable[LiveObject], topology: Topology) -> list[Flow]:
    """List every mirror and source of these streams, in their order."""
    declared = {
        (
            topology.canonicalize(e.downstream),
            e.config["name"],
            _api_prefix(e.config),
        ): topology.canonicalize(e.origin)
        for e in topology.edges
    }
    return [
        flow
        for stream in streams
        if stream.address.kind != "consumer"
        for flow in _flows_into(stream, topology, declared)
    ]


def _flows_into(
    downstream: LiveObject, topology: Topology, declared: DeclaredOrigins
) -> Iterable[Flow]:
    raw = downstream.raw
    configured = [("mirror", raw["mirror"])] if raw.get("mirror") else []
    configured += [("source", source) for source in raw.get("sources") or ()]
    for kind, config in configured:
        api, own = _api_prefix(config), downstream.address.domain
        domain = topology.routes.resolve_prefix(own, api)
        # Where one prefix is several domains, only the files know the origin.
        from_files = declared.get((topology.canonicalize(downstream.address), config["name"], api))
        origin = Address.of_stream(domain, config["name"]) if domain is not None else from_files
        imported = api is not None and (
            bool(config["external"].get("deliver")) or topology.routes.is_imported(own, api)
        )
        yield Flow(
            downstream.address,
            kind,
            config["name"],
            api,
            origin_key(config),
            origin,
            imported,
            config,
        )


def _api_prefix(config: Mapping[str, Any]) -> str | None:
    api: str | None = (config.get("external") or {}).get("api")
    return api
