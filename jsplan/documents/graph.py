"""The graph of a workspace or a plan as data: what the pictures are drawn from, and what `jsplan graph --json` prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

FORMAT: Final = "1.0"
#: What becomes of something: nothing in a graph without a plan, and of what stays.
PlannedAction = Literal["", "create", "update", "delete", "replace", "import", "forget", "deferred"]


@dataclass(frozen=True, slots=True)
class ConsumerNode:
    """A consumer, drawn with its stream. `words` are its filters and how it acknowledges."""

    name: str
    words: str
    fate: PlannedAction = ""

    def to_json(self) -> dict[str, Any]:
        """The element of `consumers`."""
        return {"name": self.name, "summary": self.words, "action": self.fate or None}


@dataclass(frozen=True, slots=True)
class Node:
    """A stream, bucket or object store; `outside` is a stream that the graph is not about. `facts` are its limits in a few words.

    `id` is its address; of several that are drawn as one, that with `${…}` for what differs. `count` is how many they are.
    """

    id: str
    domain: str
    kind: Literal["stream", "kv", "object_store", "outside"]
    name: str
    subjects: tuple[str, ...] = ()
    facts: str = ""
    consumers: tuple[ConsumerNode, ...] = ()
    fate: PlannedAction = ""
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """The element of `nodes`."""
        return {
            "id": self.id,
            "domain": self.domain,
            "kind": self.kind,
            "name": self.name,
            "subjects": list(self.subjects),
            "summary": self.facts,
            "consumers": [reader.to_json() for reader in self.consumers],
            "action": self.fate or None,
            "count": self.count,
        }


@dataclass(frozen=True, slots=True)
class Link:
    """Messages flow from node `origin` to node `downstream`. `label` is the filter; `count` how many flows are drawn as one."""

    origin: str
    copy: str
    kind: Literal["mirror", "source"]
    label: str = ""
    fate: PlannedAction = ""
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """The element of `links`."""
        return {
            "origin": self.origin,
            "downstream": self.copy,
            "kind": self.kind,
            "label": self.label,
            "action": self.fate or None,
            "count": self.count,
        }


@dataclass(frozen=True, slots=True)
class DomainGroup:
    """A domain, or several that are alike: `title` is `store-{001..200}` for two hundred."""

    key: str
    title: str
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """The element of `domains`."""
        return {"key": self.key, "title": self.title, "count": self.count}


@dataclass(slots=True)
class Graph:
    """The whole picture. `planned` says that it shows what a plan would do."""

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
            "domains": [cluster.to_json() for cluster in self.domain_groups],
            "nodes": [node.to_json() for node in self.nodes],
            "links": [link.to_json() for link in self.links],
        }
