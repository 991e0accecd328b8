"""The input of rules: every stream and consumer with its predicted configuration.

Built from the files and the graph. With live it also has unmanaged streams. Domains over one
connection share messages: they are in one account whose servers are joined, by leafnodes or as one.
A message published in one reaches all of them, unless a leafnode denies the subject, which no file
of the workspace says. An import joins nothing but what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import Struct

from jsplan.flows.feeds import Feeds
from jsplan.flows.graph import FlowGraph, StreamNode
from jsplan.resources import CONSUMER, STREAM
from jsplan.resources.buckets import client_defaults
from jsplan.resources.fields import Config
from jsplan.resources.server_features import NEWEST_LEVEL
from jsplan.topology.replication_graph import apply_transform, map_subjects
from jsplan.topology.routes import is_import

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.config.model import DeclaredResource, Workspace
    from jsplan.facts.live import DomainFacts, LiveObject
    from jsplan.topology import Edge, Topology


T = TypeVar("T")


class Hit(NamedTuple):
    """One finding of a rule: `field` is the stream's or consumer's, for its place in the files.

    `detail` says what to do if the rule's own `fix` is too general. `also` are other addresses
    whose files may ignore it.
    """

    address: Address
    text: str
    field: str = ""
    detail: str = ""
    also: tuple[Address, ...] = ()


class LintItem(Struct, frozen=True):
    """One stream, bucket or consumer.

    `declared_fields` are those of the files, by the stream's names; empty for unmanaged ones.
    `config` is what the server will have: compact, with derived fields filled in.
    """

    address: Address
    declared_fields: Mapping[str, Any]
    config: Config
    declared: DeclaredResource | None = None

    def hit(
        self, text: str, field: str = "", detail: str = "", also: tuple[Address, ...] = ()
    ) -> Hit:
        """Return a finding about it."""
        return Hit(self.address, text, field, detail, also)

    @property
    def retention(self) -> str:
        """The retention of a stream."""
        return str(self.config.get("retention", "limits"))

    @property
    def workers(self) -> str:
        """The group or groups of workers that share a consumer, unless one of them is pinned."""
        if self.config.get("priority_policy") == "pinned_client":
            return ""
        groups = ", ".join(self.config.get("priority_groups", ()))
        return str(self.config.get("deliver_group") or groups)

    @property
    def replicas(self) -> int:
        """The replicas of a stream in its cluster."""
        return int(self.config.get("num_replicas", 1))

    @property
    def filters(self) -> list[str]:
        """The filters of a consumer; none is every subject."""
        one = self.config.get("filter_subject")
        return [one] if one else list(self.config.get("filter_subjects", ()))


@dataclass
class View:
    """The graph with the configurations.

    `focus` are the addresses to check, None for all that the files declare. `known_configs` are
    compact configurations that planning has computed. `live` are objects of the servers, `domains`
    the facts about these.
    """

    workspace: Workspace
    topology: Topology
    live: Mapping[Address, LiveObject] = field(default_factory=dict)
    domains: Mapping[str, DomainFacts] = field(default_factory=dict)
    known_configs: Mapping[Address, Config] = field(default_factory=dict)
    focus: Collection[Address] | None = None

    # --- items ------------------------------------------------------------------------------------

    def streams(self) -> list[LintItem]:
        """Return the streams and buckets to check."""
        return self._streams

    def consumers(self) -> list[LintItem]:
        """Return the consumers to check."""
        return self._consumers

    @cached_property
    def _streams(self) -> list[LintItem]:
        return [item for item in self.all_streams.values() if self._in_focus(item)]

    @cached_property
    def _consumers(self) -> list[LintItem]:
        return [item for item in self.all_consumers.values() if self._in_focus(item)]

    def _in_focus(self, item: LintItem) -> bool:
        return item.declared is not None and (self.focus is None or item.address in self.focus)

    @cached_property
    def all_streams(self) -> dict[Address, LintItem]:
        """Streams and buckets by address in the files; unmanaged ones as far as they were read."""
        return self._list_items(lambda address: address.is_stream, self._predict_stream)

    @cached_property
    def all_consumers(self) -> dict[Address, LintItem]:
        """Consumers, in the same way."""
        return self._list_items(lambda address: address.kind == "consumer", self._predict_consumer)

    def _list_items(
        self,
        is_wanted: Callable[[Address], bool],
        predict: Callable[[Address, Mapping[str, Any]], Config],
    ) -> dict[Address, LintItem]:
        found: dict[Address, LintItem] = {}
        for address in filter(is_wanted, self.workspace.resources):
            fields, declared = self.topology.bodies[address], self.workspace.resources[address]
            config = self.known_configs.get(address) or predict(address, fields)
            found[address] = LintItem(address, fields, config, declared)
        for address in filter(is_wanted, self.live):
            if self.topology.find_declared(address) not in found:
                found[address] = LintItem(address, {}, self.live[address].compact)
        return found

    @cached_property
    def consumers_by_stream(self) -> dict[Address, list[LintItem]]:
        """The consumers of each stream."""
        found: dict[Address, list[LintItem]] = {}
        for item in self.all_consumers.values():
            parent = item.address.parent
            assert parent is not None
            found.setdefault(self.topology.find_declared(parent), []).append(item)
        return found

    def stream_of(self, consumer: LintItem) -> LintItem | None:
        """Return the stream of a consumer, if known."""
        parent = consumer.address.parent
        assert parent is not None
        return self.all_streams.get(self.topology.find_declared(parent))

    def _predict_stream(self, address: Address, fields: Mapping[str, Any]) -> Config:
        body = {"name": address.stream, **fields}
        config = STREAM.compact(
            {
                name: value
                for name, value in (body | client_defaults(address.kind, body)).items()
                if value is not None
            }
        )
        STREAM.fill_derived(config, self.level(address.domain))
        return config

    def _predict_consumer(self, address: Address, fields: Mapping[str, Any]) -> Config:
        config = CONSUMER.compact(
            {"name": address.consumer}
            | {name: value for name, value in fields.items() if value is not None}
        )
        assert address.parent is not None
        stream = self.all_streams.get(self.topology.find_declared(address.parent))
        config["consumer_limits"] = (
            dict(stream.config.get("consumer_limits") or {}) if stream else {}
        )
        CONSUMER.fill_derived(config, self.level(address.domain))
        return config

    def level(self, domain: str) -> int:
        """Return the API level of a domain; without an answer that of the newest server."""
        facts = self.domains.get(domain)
        return facts.level if facts is not None and facts.reachable else NEWEST_LEVEL

    # --- connections ------------------------------------------------------------------------------

    @cached_property
    def origins(self) -> dict[Address, list[Edge]]:
        """The mirror and the sources of each stream, if the files know the origin."""
        found: dict[Address, list[Edge]] = {}
        for edge in self.topology.edges:
            found.setdefault(edge.downstream, []).append(edge)
        return found

    @cached_property
    def flows(self) -> FlowGraph:
        """All streams, by the key of their real domain, and the flows between them."""
        return FlowGraph(
            (
                StreamNode(self.topology.canonicalize(address), item.config)
                for address, item in self.all_streams.items()
            ),
            self.topology.routes.resolve_prefix,
        )

    @cached_property
    def feeds(self) -> Feeds:
        """The messages that come to each stream, traced back to where they were stored first."""
        return Feeds(self.flows)

    @cached_property
    def connected_domains(self) -> ConnectedDomains:
        """The domains that share messages."""
        return ConnectedDomains(self.workspace, self.topology)

    def stored_subjects(self, address: Address) -> list[str] | None:
        """Return patterns of the subjects that a stream stores; None if an origin is unknown."""
        if address not in self._stored_cache:
            self._stored_cache[address] = None  # the subjects of a circle are unknown
            self._stored_cache[address] = self._find_stored_subjects(address)
        return self._stored_cache[address]

    def _find_stored_subjects(self, address: Address) -> list[str] | None:
        item = self.all_streams.get(address)
        if item is None:
            return None
        config = item.config
        found = apply_transform(config.get("subjects", ()), config.get("subject_transform"))
        edges = self.origins.get(address, [])
        if len(edges) < len(config.get("sources", ())) + bool(config.get("mirror")):
            return None
        for edge in edges:
            theirs = self.stored_subjects(edge.origin)
            if theirs is None:
                return None
            arriving = map_subjects(theirs, edge.config)
            found += [*arriving, *apply_transform(arriving, config.get("subject_transform"))]
        return list(dict.fromkeys(found))

    @cached_property
    def _stored_cache(self) -> dict[Address, list[str] | None]:
        return {}

    @cached_property
    def _clustered_domains(self) -> frozenset[str]:
        return frozenset(
            item.address.domain for item in self.all_streams.values() if item.replicas > 1
        )

    def is_clustered(self, domain: str) -> bool:
        """Check whether a domain is a cluster.

        Its server says so, or another stream there has several replicas. A single server with a
        leafnode connection says its own name.
        """
        facts = self.domains.get(domain)
        if facts is not None and facts.reachable and (name := facts.server.get("name")):
            return facts.server.get("cluster") not in (None, "", name)
        return domain in self._clustered_domains


class DisjointSets(dict[T, T]):
    """Disjoint groups of items."""

    def find(self, one: T) -> T:
        """Return the representative of the group."""
        while (up := self.get(one, one)) != one:
            one = up
        return one

    def union(self, one: T, other: T) -> None:
        """Merge two groups."""
        a, b = self.find(one), self.find(other)
        if a != b:
            self[b] = a


class ConnectedDomains:
    """Groups of domains that share messages."""

    def __init__(self, workspace: Workspace, topology: Topology) -> None:
        self._groups: DisjointSets[str] = DisjointSets()
        self._reach = topology.routes
        first: dict[str, str] = {}
        for key, domain in workspace.domains.items():
            if domain.is_own and not is_import(domain):
                self._groups.union(first.setdefault(domain.connection, key), key)
        for edge in topology.edges:
            api = (edge.config.get("external") or {}).get("api")
            if api and not topology.routes.is_imported(edge.downstream.domain, api):
                self._groups.union(
                    self.group_of(edge.downstream.domain), self.group_of(edge.origin.domain)
                )

    def group_of(self, domain: str) -> str:
        """Return the name of a domain's group."""
        return self._groups.find(self._reach.canonicalize(domain))

    def shares_interest(self, one: str, other: str) -> bool:
        """Check whether a message published in one domain reaches the other."""
        return self.group_of(one) == self.group_of(other)
