"""Streams and the mirrors and sources between them, at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.resources.fields import Config
from jsplan.resources.nested import origin_key
from jsplan.subjects import overlaps
from jsplan.topology.replication_graph import republish_mapping

FlowKind = Literal["mirror", "source", "republish"]
#: Returns the domain that an API prefix leads to from a domain; None if the files know none.
ResolvePrefix = Callable[[str, str | None], str | None]
#: Checks whether what is published in one domain may reach the streams of another.
Reaches = Callable[[str, str], bool]


class Flow(Struct, frozen=True):
    """A mirror or source of `downstream`, in the server's terms, or a republish that it stores.

    `origin` has the API prefix in place of its domain where no domain of the files is known for it.
    """

    origin: Address
    downstream: Address
    kind: FlowKind
    config: Config

    @property
    def key(self) -> str:
        """The key of the source within its stream."""
        key = origin_key(self.config)
        return f"republish {key}" if self.kind == "republish" else key


class StreamNode(Struct, frozen=True):
    """A stream: its compact configuration, and its `state` as INFO has it; empty for a new one.

    One of a domain that does not answer is not read: it has what was last applied to it.
    """

    address: Address
    config: Config
    state: Mapping[str, Any] = field(default_factory=dict)
    is_read: bool = True

    @property
    def messages(self) -> int:
        """The messages that it has."""
        return int(self.state.get("messages") or 0)


class FlowGraph:
    """The streams by address, and the flows by both ends.

    With `reaches`, also to the streams that store what another one republishes.
    """

    def __init__(
        self, nodes: Iterable[StreamNode], resolve: ResolvePrefix, reaches: Reaches | None = None
    ) -> None:
        self.nodes = {node.address: node for node in nodes}
        self.flows_into: dict[Address, list[Flow]] = {}
        self.flows_from: dict[Address, list[Flow]] = {}
        for node in self.nodes.values():
            republished = self._read_republished(node, reaches) if reaches is not None else ()
            for flow in (*_read_flows(node, resolve), *republished):
                self.flows_into.setdefault(flow.downstream, []).append(flow)
                self.flows_from.setdefault(flow.origin, []).append(flow)

    def _read_republished(self, node: StreamNode, reaches: Reaches) -> Iterable[Flow]:
        """Yield the flows to the streams that store what this one republishes."""
        if not (republish := node.config.get("republish")):
            return
        transform = {"src": republish.get("src") or ">", "dest": republish["dest"]}
        config = {"name": node.address.stream, "subject_transforms": [transform]}
        for other in self.nodes.values():
            if (
                other is not node
                and stores_republished(other.config, node.config)
                and reaches(node.address.domain, other.address.domain)
            ):
                yield Flow(node.address, other.address, "republish", config)

    def in_order(self) -> list[Address]:
        """Return all streams and origins, each after its origins; the last are those on circles."""
        found, circles = self._sorted
        return [*found, *circles]

    def on_circles(self) -> list[Address]:
        """Return the streams on circles, and those that read them."""
        return self._sorted[1]

    @cached_property
    def _sorted(self) -> tuple[list[Address], list[Address]]:
        waiting = {stream: len(flows) for stream, flows in self.flows_into.items()}
        found = [a for a in dict.fromkeys((*self.nodes, *self.flows_from)) if a not in waiting]
        for stream in found:  # grows meanwhile
            for flow in self.flows_from.get(stream, ()):
                waiting[flow.downstream] -= 1
                if not waiting[flow.downstream]:
                    del waiting[flow.downstream]
                    found.append(flow.downstream)
        return found, list(waiting)

    def find_upstream(self, streams: Iterable[Address]) -> set[Address]:
        """Return every stream that their messages may come from, they included."""
        pending = list(streams)
        seen = set(pending)
        while pending:
            for flow in self.flows_into.get(pending.pop(), ()):
                if flow.origin not in seen:
                    seen.add(flow.origin)
                    pending.append(flow.origin)
        return seen


def list_origins(config: Config) -> list[tuple[FlowKind, Config]]:
    """Return the mirror or the sources of a stream, each with its kind."""
    if mirror := config.get("mirror"):
        return [("mirror", mirror)]
    return [("source", source) for source in config.get("sources") or ()]


def stores_republished(config: Config, origin: Config) -> bool:
    """Check whether a stream stores what another one republishes."""
    if not (republish := origin.get("republish")):
        return False
    _, dest = republish_mapping(republish)
    return any(overlaps(dest, subject) for subject in config.get("subjects") or ())


class ReaderIndex:
    """Streams by the names of what they read. One may have several configurations."""

    def __init__(self, configs: Iterable[tuple[Address, Config]]) -> None:
        self._configs: dict[Address, list[Config]] = {}
        self._by_origin: dict[str, list[Address]] = {}
        for address, config in configs:
            self._configs.setdefault(address, []).append(config)
            for name in {origin["name"] for _, origin in list_origins(config)}:
                self._by_origin.setdefault(name, []).append(address)

    def find(self, stream: Address) -> set[Address]:
        """Return the streams that read this one, or one of its name, over any number of hops."""
        found, pending = set[Address](), [stream]
        while pending:
            new = self._find_direct(pending.pop()) - found
            found |= new
            pending += new
        return found - {stream}

    def _find_direct(self, stream: Address) -> set[Address]:
        found = set(self._by_origin.get(stream.stream, ()))
        for config in self._configs.get(stream, ()):
            if config.get("republish"):
                every = self._configs.items()
                found |= {
                    a for a, known in every if any(stores_republished(c, config) for c in known)
                }
        return found


def _read_flows(node: StreamNode, resolve: ResolvePrefix) -> Iterable[Flow]:
    for kind, config in list_origins(node.config):
        api = (config.get("external") or {}).get("api")
        domain = resolve(node.address.domain, api) or str(api)
        yield Flow(Address.of_stream(domain, config["name"]), node.address, kind, config)
