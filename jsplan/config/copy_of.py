"""`copy_of:` of a stream: another one's configuration as the base, as `nats stream copy` takes it.

The base is everything that the files say of the other stream but its name, its subjects and its consumers; guards and the like are
each stream's own. Putting the layers together is left to `declare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from jsplan.address import Address, is_glob
from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.model import DeclaredResource
from jsplan.config.node import FieldPlaces, Node, Place, count_values, make_mapping
from jsplan.diagnostics import did_you_mean
from jsplan.resources import STREAM

Layers = tuple[Node, ...]
#: Each of these says where a stream's messages come from: one of them has to be the copy's own.
_INPUT_FIELDS = ("subjects", "mirror", "sources")


@dataclass(slots=True)
class _CopyEntry:
    target: Address
    entry: Node
    finish: Callable[[Layers], None]

    @property
    def copy_of_node(self) -> Node:
        """The `copy_of` itself."""
        node: Node = self.entry.value["copy_of"]
        return node


class CopyOfResolver:
    """The streams that wait for their bases, which may stand anywhere in the files."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._waiting: dict[Address, _CopyEntry] = {}

    def add(self, address: Address, entry: Node, finish: Callable[[Layers], None]) -> bool:
        """Whether the entry is a copy; `finish` is then called with the layers of its base, once all streams are declared."""
        node = entry.get("copy_of")
        target = self._read_target(node) if node is not None and node.value is not None else None
        if target is not None and entry.get("config_file") is not None:
            self._findings.error(
                "JS146",
                entry.value["copy_of"],
                f"{address} has two bases, `copy_of` and `config_file`",
                "Keep one.",
                str(address),
            )
            return False
        if target is not None:
            self._waiting[address] = _CopyEntry(target, entry, finish)
        return target is not None

    def _read_target(self, node: Node) -> Address | None:
        text = parsing.read_text(node, "`copy_of`", self._findings)
        if text is None:
            return None
        try:
            address = Address.parse(text)
        except ValueError as error:
            self._findings.error(
                "JS146",
                node,
                f"`copy_of`: {error}",
                "Write the address of one stream, as in hub/stream/ORDERS.",
            )
            return None
        if address.kind != "stream" or is_glob(text):
            self._findings.error(
                "JS146",
                node,
                f'`copy_of`: "{text}" is not one stream',
                "Write the address of a stream that is declared.",
            )
            return None
        return address

    def resolve(self, declared: Mapping[Address, DeclaredResource]) -> None:
        """Finish every copy, each after its base. A chain of copies is followed without recursion: it may be long."""
        while self._waiting:
            chain: dict[Address, None] = {}
            address = next(iter(self._waiting))
            while address in self._waiting and address not in chain:
                chain[address] = None
                address = self._waiting[address].target
            circle = address in chain
            if circle:
                last = next(reversed(chain))
                self._report_cycle((*chain,), self._waiting[last])
            for number, one in enumerate(reversed(chain)):
                copy = self._waiting.pop(one)
                copy.finish(
                    () if circle and not number else tuple(self._base_layers(one, copy, declared))
                )

    def _report_cycle(self, way: tuple[Address, ...], copy: _CopyEntry) -> None:
        named = " is a copy of ".join(map(str, (*way[way.index(copy.target) :], copy.target)))
        self._findings.error(
            "JS146",
            copy.copy_of_node,
            f"a circle of copies: {named}",
            "Say in one of them what it is.",
            str(way[-1]),
        )

    def _base_layers(
        self, address: Address, copy: _CopyEntry, declared: Mapping[Address, DeclaredResource]
    ) -> Iterator[Node]:
        base = declared.get(copy.target)
        if base is None:
            known = [str(other) for other in declared if other.kind == "stream"]
            detail = (
                f"A copy needs a stream that is declared.{did_you_mean(str(copy.target), known)}"
            )
            self._findings.error(
                "JS146",
                copy.copy_of_node,
                f"`copy_of` names {copy.target}, which is in no file",
                detail,
                str(address),
            )
            return
        if base.body.get("subjects") and not any(key in copy.entry.value for key in _INPUT_FIELDS):
            self._findings.error(
                "JS146",
                copy.copy_of_node,
                f"a copy of {copy.target} needs `subjects` of its own",
                "Everything else is taken over; one subject is stored by one stream. Add `subjects:`, or a `mirror:` of it.",
                str(address),
            )
        places = base.ranges
        taken = (
            [_inherited_layer(layer, copy.target.domain, address.domain) for layer in places.layers]
            if isinstance(places, FieldPlaces)
            else []
        )
        if taken and self._findings.allow_values(sum(map(count_values, taken)), copy.copy_of_node):
            yield _merge_layers(taken)


def _merge_layers(layers: list[Node]) -> Node:
    """The layers as one, so that a copy of a copy of a copy has no more of them than the first."""
    values: dict[str, Node] = {}
    keys: dict[str, Place] = {}
    for layer in layers:
        for key, node in layer.value.items():
            before = values.get(key)
            if (
                key == "x_raw"
                and before is not None
                and isinstance(before.value, dict)
                and isinstance(node.value, dict)
            ):
                values[key] = make_mapping(
                    node.place, before.value | node.value, before.keys | node.keys
                )
            else:
                values[key] = node
            keys[key] = layer.key_place(key)
    return make_mapping(layers[-1].place, values, keys)


def _inherited_layer(layer: Node, base_domain: str, own_domain: str) -> Node:
    """What a copy takes of one layer of its base. An origin beside the base is named by its domain where the copy is elsewhere."""
    values = {
        key: node
        for key, node in layer.value.items()
        if key == "x_raw" or (key in STREAM.by_name and key not in ("name", "subjects"))
    }
    if base_domain != own_domain:
        for key in ("mirror", "sources"):
            if key in values:
                values[key] = _set_origin_domain(values[key], base_domain)
    return make_mapping(layer.place, values, {key: layer.key_place(key) for key in values})


def _set_origin_domain(node: Node, domain: str) -> Node:
    if isinstance(node.value, list):
        return Node(node.place, [_set_origin_domain(item, domain) for item in node.value])
    if (
        not isinstance(node.value, dict)
        or node.get("domain") is not None
        or node.get("external") is not None
    ):
        return node
    return make_mapping(
        node.place, node.value | {"domain": Node(node.place, domain, domain)}, node.keys
    )
