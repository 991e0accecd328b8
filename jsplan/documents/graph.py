"""The graph of a workspace or a plan, from which all pictures are drawn."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct, field

FORMAT: Final = "1.0"
#: The action of a plan; empty without a plan, and for an unchanged object.
PlannedAction = Literal["", "create", "update", "delete", "replace", "import", "forget", "deferred"]


class ConsumerNode(Struct, frozen=True):
    """A consumer, drawn with its stream. `summary` has its filters and its ack policy."""

    name: str
    summary: str
    action: PlannedAction = ""

    def to_json(self) -> dict[str, Any]:
        """The element of `consumers`."""
        return {"name": self.name, "summary": self.summary, "action": self.action or None}


class Node(Struct, frozen=True):
    """A stream, bucket or object store; `outside` is a stream outside the workspace.

    `summary` has its limits in a few words. `id` is its address. Several nodes that are drawn as
    one have `${…}` in the id for the part that differs; `count` is their number.
    """

    id: str
    domain: str
    kind: Literal["stream", "kv", "object_store", "outside"]
    name: str
    subjects: tuple[str, ...] = ()
    summary: str = ""
    consumers: tuple[ConsumerNode, ...] = ()
    action: PlannedAction = ""
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """The element of `nodes`."""
        return {
            "id": self.id,
            "domain": self.domain,
            "kind": self.kind,
            "name": self.name,
            "subjects": list(self.subjects),
            "summary": self.summary,
            "consumers": [consumer.to_json() for consumer in self.consumers],
            "action": self.action or None,
            "count": self.count,
        }


class Link(Struct, frozen=True):
    """A flow of messages from node `origin` to node `downstream`.

    `label` is the filter. `count` is the number of flows that are drawn as one.
    """

    origin: str
    downstream: str
    kind: Literal["mirror", "source"]
    label: str = ""
    action: PlannedAction = ""
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """The element of `links`."""
        return {
            "origin": self.origin,
            "downstream": self.downstream,
            "kind": self.kind,
            "label": self.label,
            "action": self.action or None,
            "count": self.count,
        }


class DomainGroup(Struct, frozen=True):
    """A domain, or several that are alike: `title` is `store-{001..200}` for two hundred."""

    key: str
    title: str
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """The element of `domains`."""
        return {"key": self.key, "title": self.title, "count": self.count}


class Graph(Struct):
    """The whole graph. `planned` is true if it shows the actions of a plan."""

    title: str
    planned: bool = False
    domain_groups: list[DomainGroup] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT,
            "kind": "graph",
            "title": self.title,
            "planned": self.planned,
            "domains": [group.to_json() for group in self.domain_groups],
            "nodes": [node.to_json() for node in self.nodes],
            "links": [link.to_json() for link in self.links],
        }
