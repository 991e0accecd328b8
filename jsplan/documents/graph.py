"""The graph of a workspace or a plan, from which all pictures are drawn."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from jsplan.documents.base import Document
from jsplan.documents.types import Count

#: The action of a plan; None without a plan, and for an unchanged object.
PlannedAction = (
    Literal["create", "update", "delete", "replace", "import", "forget", "deferred"] | None
)


class ConsumerNode(Struct, frozen=True):
    """A consumer, drawn with its stream. `summary` has its filters and its ack policy."""

    name: str
    summary: str
    action: PlannedAction = None


class Node(Struct, frozen=True):
    """A stream, bucket or object store; `outside` is a stream outside the workspace.

    `summary` has its limits in a few words. `id` is its address. Several nodes that are drawn as
    one have `${…}` in the id for the part that differs; `count` is their number. `action` is that
    of the plan.
    """

    id: str
    domain: str
    kind: Literal["stream", "kv", "object_store", "outside"]
    name: str
    subjects: tuple[str, ...] = ()
    summary: str = ""
    consumers: tuple[ConsumerNode, ...] = ()
    action: PlannedAction = None
    count: Count = 1


class Link(Struct, frozen=True):
    """A flow of messages from node `origin` to node `downstream`.

    `label` is the filter. `count` is the number of flows that are drawn as one.
    """

    origin: str
    downstream: str
    kind: Literal["mirror", "source"]
    label: str = ""
    action: PlannedAction = None
    count: Count = 1

    @property
    def shown_kind(self) -> str:
        """Its kind, or the number of flows, with the filter."""
        kind = self.kind if self.count == 1 else f"{self.count} {self.kind}s"
        return f"{kind} {self.label}".rstrip()


class DomainGroup(Struct, frozen=True):
    """A domain, or several that are alike: `title` is `store-{001..200}` for two hundred."""

    key: str
    title: str
    count: Count = 1

    @property
    def shown_title(self) -> str:
        """The title, with the number of domains that it stands for."""
        return f"{self.title} ×{self.count}" if self.count > 1 else self.title


class Graph(Document, tag="graph"):
    """The whole graph. `planned` is true if it shows the actions of a plan."""

    title: str
    planned: bool = False
    domain_groups: list[DomainGroup] = field(default_factory=list, name="domains")
    nodes: list[Node] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
