"""What rules look at: every stream and consumer with the configuration the server will make of it, and how they are connected.

Built from the files and the graph; with what was read from servers, other people's streams are in it too. Which subjects
a stream stores, and which domains hear each other, is `hearing`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jsplan.lint.hearing import Hearing, stored_by
from jsplan.resources import CONSUMER, STREAM
from jsplan.resources.buckets import made
from jsplan.resources.fields import NEWEST, Config

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.config.model import Declared, Workspace
    from jsplan.facts.live import DomainFacts, LiveObject
    from jsplan.topology import Edge, Topology


@dataclass(frozen=True, slots=True)
class Item:
    """One stream, bucket or consumer. `said` is what the files say of it, in the stream's fields; empty for other people's.

    `config` is what the server will have: compact, with what follows from other settings filled in.
    """

    address: Address
    said: Mapping[str, Any]
    config: Config
    declared: Declared | None = None

    @property
    def retention(self) -> str:
        """Of a stream."""
        return str(self.config.get("retention", "limits"))

    @property
    def copies(self) -> int:
        """Of a stream in its cluster."""
        return int(self.config.get("num_replicas", 1))

    @property
    def filters(self) -> list[str]:
        """Of a consumer; none is every subject."""
        one = self.config.get("filter_subject")
        return [one] if one else list(self.config.get("filter_subjects", ()))


@dataclass
class View:
    """The graph with the configurations. `focus` are the addresses to be advised on, None for all that the files declare.

    `known` are compact configurations that planning has worked out already. `live` are objects of the servers, `domains` what is
    known of these.
    """

    workspace: Workspace
    topology: Topology
    live: Mapping[Address, LiveObject] = field(default_factory=dict)
    domains: Mapping[str, DomainFacts] = field(default_factory=dict)
    known: Mapping[Address, Config] = field(default_factory=dict)
    focus: Collection[Address] | None = None

    # --- who there is ----------------------------------------------------------------------------------------

    def streams(self) -> list[Item]:
        """The streams and buckets to be advised on."""
        return self._streams

    def consumers(self) -> list[Item]:
        """The consumers to be advised on."""
        return self._consumers

    @cached_property
    def _streams(self) -> list[Item]:
        return [item for item in self.all_streams.values() if self._in_focus(item)]

    @cached_property
    def _consumers(self) -> list[Item]:
        return [item for item in self.all_consumers.values() if self._in_focus(item)]

    def _in_focus(self, item: Item) -> bool:
        return item.declared is not None and (self.focus is None or item.address in self.focus)

    @cached_property
    def all_streams(self) -> dict[Address, Item]:
        """Streams and buckets, by how the files call them; other people's as far as they were read."""
        found = {a: self._stream(a) for a in self.workspace.resources if a.kind != "consumer"}
        for address, live in self.live.items():
            if address.kind != "consumer" and self.topology.called(address) not in found:
                found[address] = Item(address, {}, live.compact)
        return found

    @cached_property
    def all_consumers(self) -> dict[Address, Item]:
        """Consumers, the same way."""
        found = {a: self._consumer(a) for a in self.workspace.resources if a.kind == "consumer"}
        for address, live in self.live.items():
            if address.kind == "consumer" and self.topology.called(address) not in found:
                found[address] = Item(address, {}, live.compact)
        return found

    @cached_property
    def consumers_of(self) -> dict[Address, list[Item]]:
        """The consumers of each stream."""
        found: dict[Address, list[Item]] = {}
        for item in self.all_consumers.values():
            parent = item.address.parent
            assert parent is not None
            found.setdefault(self.topology.called(parent), []).append(item)
        return found

    def stream_of(self, consumer: Item) -> Item | None:
        """The stream of a consumer, where it is known."""
        parent = consumer.address.parent
        assert parent is not None
        return self.all_streams.get(self.topology.called(parent))

    def _stream(self, address: Address) -> Item:
        said = self.topology.bodies[address]
        return Item(address, said, self.known.get(address) or self._made_stream(address, said), self.workspace.resources[address])

    def _made_stream(self, address: Address, said: Mapping[str, Any]) -> Config:
        body = {"name": address.stream, **said}
        config = STREAM.compact({name: value for name, value in (body | made(address.kind, body)).items() if value is not None})
        STREAM.settle(config, self.level(address.domain))
        return config

    def _consumer(self, address: Address) -> Item:
        said = self.topology.bodies[address]
        return Item(address, said, self.known.get(address) or self._made_consumer(address, said), self.workspace.resources[address])

    def _made_consumer(self, address: Address, said: Mapping[str, Any]) -> Config:
        config = CONSUMER.compact({"name": address.consumer} | {name: value for name, value in said.items() if value is not None})
        assert address.parent is not None
        stream = self.all_streams.get(self.topology.called(address.parent))
        config["consumer_limits"] = dict(stream.config.get("consumer_limits") or {}) if stream else {}
        CONSUMER.settle(config, self.level(address.domain))
        return config

    def level(self, domain: str) -> int:
        """The API level of a domain: that of the newest server where nobody asked."""
        facts = self.domains.get(domain)
        return facts.level if facts is not None and facts.reachable else NEWEST

    # --- how they are connected ------------------------------------------------------------------------------

    @cached_property
    def origins(self) -> dict[Address, list[Edge]]:
        """The mirror and the sources of each copy, as far as the files know the origin."""
        found: dict[Address, list[Edge]] = {}
        for edge in self.topology.edges:
            found.setdefault(edge.copy, []).append(edge)
        return found

    @cached_property
    def hearing(self) -> Hearing:
        """Which domains hear each other's messages."""
        return Hearing(self.workspace, self.topology)

    def stored(self, address: Address) -> list[str] | None:
        """Patterns of the subjects that a stream holds messages under; None where an origin of it is not known."""
        if address not in self._stored:
            self._stored[address] = None  # what goes round in a circle is not known
            self._stored[address] = stored_by(self, address)
        return self._stored[address]

    @cached_property
    def _stored(self) -> dict[Address, list[str] | None]:
        return {}

    @cached_property
    def _clustered(self) -> frozenset[str]:
        return frozenset(item.address.domain for item in self.all_streams.values() if item.copies > 1)

    def clustered(self, domain: str) -> bool:
        """Whether a domain is a cluster: its server says so, or another stream there has several copies."""
        facts = self.domains.get(domain)
        if facts is not None and facts.reachable and facts.server.get("name"):
            return bool(facts.server.get("cluster"))
        return domain in self._clustered
