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
from jsplan.topology.flows import pairs
from jsplan.topology.reach import Reach


@dataclass(frozen=True, slots=True)
class Flow:
    """`copy` is a mirror of, or sources, a stream called `name` behind the API prefix `api` (None: its own JetStream).

    `origin` is that stream, None where no domain of the workspace has the prefix. `key` tells sources of one copy apart. `config` is the
    mirror or source as its server has it; `imported` says that the prefix, or what is delivered, comes from another account.
    """

    copy: Address
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
        return [src for src, _ in pairs(self.config)]

    @property
    def whole(self) -> bool:
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


def flows_of(copies: Iterable[LiveObject], reach: Reach) -> list[Flow]:
    """Every mirror and source of these streams, in their order."""
    return [flow for copy in copies if copy.address.kind != "consumer" for flow in _of_copy(copy, reach)]


def _of_copy(copy: LiveObject, reach: Reach) -> Iterable[Flow]:
    configured = [("mirror", copy.raw["mirror"])] if copy.raw.get("mirror") else []
    configured += [("source", source) for source in copy.raw.get("sources") or ()]
    for kind, config in configured:
        external = config.get("external") or {}
        api, own = external.get("api"), copy.address.domain
        domain = reach.leads_to(own, api)
        origin = Address.of_stream(domain, config["name"]) if domain is not None else None
        imported = api is not None and (bool(external.get("deliver")) or reach.is_imported(own, api))
        yield Flow(copy.address, kind, config["name"], api, origin_key(config), origin, imported, config)
