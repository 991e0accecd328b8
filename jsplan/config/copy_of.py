"""`copy_of:` and `config_file:`: another configuration as the base of a resource.

`copy_of` works as `nats stream copy` does. The base is everything that the files say about the
other stream, except its name, subjects, consumers and settings such as guards.

`config_file` is a configuration, alone or in a document of the nats CLI: `info --json` and
{stream_name, config}. Its text is taken literally: `${…}` works in the files of the workspace only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from jsplan.address import Address, Kind, is_glob
from jsplan.config import parsing
from jsplan.config.file_paths import resolve_file_path
from jsplan.config.files import WorkspaceFiles
from jsplan.config.findings import Findings
from jsplan.config.model import DeclaredResource
from jsplan.config.node import FieldPlaces, Node, Place, count_values, from_plain, make_mapping
from jsplan.config.resource_names import may_be_declared
from jsplan.diagnostics import did_you_mean
from jsplan.resources import STREAM, TABLES, buckets

Layers = tuple[Node, ...]
#: The fields that say where the messages of a stream come from. A copy needs one of its own.
_INPUT_FIELDS = ("subjects", "mirror", "sources")
#: Names that the entry gives; those in the file name the object that it was exported from.
_NAME_KEYS: Final[dict[Kind, tuple[str, ...]]] = {
    "stream": ("name",), "consumer": ("name", "durable_name"), "kv": ("bucket", "name"),
    "object_store": ("bucket", "name"),
}  # fmt: skip


class _CopyEntry(Struct):
    target: Address
    entry: Node
    finish: Callable[[Layers], None]

    @property
    def copy_of_node(self) -> Node:
        """The value of `copy_of`."""
        node: Node = self.entry.value["copy_of"]
        return node


class CopyOfResolver:
    """Streams that wait for their bases, which may be anywhere in the files."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._waiting: dict[Address, _CopyEntry] = {}

    def add(self, address: Address, entry: Node, finish: Callable[[Layers], None]) -> bool:
        """Add the entry and return True if it is a copy.

        `finish` is called with the layers of its base, once all streams are declared.
        """
        node = entry.get("copy_of")
        target = self._read_target(node) if node is not None and node.value is not None else None
        if target is not None and entry.get("config_file") is not None:
            text = f"{address} has two bases, `copy_of` and `config_file`"
            self._findings.error("JS146", entry.value["copy_of"], text, "Keep one.", str(address))
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
            hint = "Write the address of one stream, as in hub/stream/ORDERS."
            self._findings.error("JS146", node, f"`copy_of`: {error}", hint)
            return None
        if address.kind != "stream" or is_glob(text):
            hint = "Write the address of a stream that is declared."
            self._findings.error("JS146", node, f'`copy_of`: "{text}" is not one stream', hint)
            return None
        return address

    def resolve(self, declared: Mapping[Address, DeclaredResource]) -> None:
        """Finish every copy, each after its base.

        A chain of copies is followed without recursion: it may be long.
        """
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
            for number, current in enumerate(reversed(chain)):
                copy = self._waiting.pop(current)
                copy.finish(
                    ()
                    if circle and not number
                    else tuple(self._base_layers(current, copy, declared))
                )

    def _report_cycle(self, chain: tuple[Address, ...], copy: _CopyEntry) -> None:
        named = " → ".join(map(str, (*chain[chain.index(copy.target) :], copy.target)))
        text = f"`copy_of` forms a cycle: {named}"
        hint = "Write the whole configuration in one of them, without `copy_of`."
        self._findings.error("JS146", copy.copy_of_node, text, hint, str(chain[-1]))

    def _base_layers(
        self, address: Address, copy: _CopyEntry, declared: Mapping[Address, DeclaredResource]
    ) -> Iterator[Node]:
        base = declared.get(copy.target)
        if base is None and may_be_declared(str(copy.target), declared, address):
            return
        if base is None:
            known = [str(other) for other in declared if other.kind == "stream"]
            detail = (
                f"A copy needs a stream that is declared.{did_you_mean(str(copy.target), known)}"
            )
            text = f"`copy_of` names {copy.target}, which is in no file"
            self._findings.error("JS146", copy.copy_of_node, text, detail, str(address))
            return
        if base.body.get("subjects") and not any(key in copy.entry.value for key in _INPUT_FIELDS):
            text = f"a copy of {copy.target} needs `subjects` of its own"
            hint = (
                "Everything else is inherited; one subject is stored by one stream."
                " Add `subjects:`, or a `mirror:` of it."
            )
            self._findings.error("JS146", copy.copy_of_node, text, hint, str(address))
        places = base.ranges
        taken = (
            [_inherited_layer(layer, copy.target.domain, address.domain) for layer in places.layers]
            if isinstance(places, FieldPlaces)
            else []
        )
        if taken and self._findings.allow_values(sum(map(count_values, taken)), copy.copy_of_node):
            yield _merge_layers(taken)


def _merge_layers(layers: list[Node]) -> Node:
    """Merge the layers into one, so that a chain of copies does not collect layers."""
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
    """Return what a copy inherits of one layer of its base.

    An origin in the domain of the base gets its domain if the copy is in another domain.
    """
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


def read_config_file(kind: Kind, node: Node, name: Node, files: WorkspaceFiles) -> Node | None:
    """Read the configuration that `node` names, under the entry's name; None after a finding.

    A durable consumer stays durable, and one without `durable_name` stays without.
    """
    path = resolve_file_path(node, "`config_file`", {}, files.findings)
    if path is None:
        return None
    document = files.parse_file(path, node.place)
    if document is None:
        if files.is_empty(path):
            hint = "Write the configuration into it, or remove `config_file`."
            files.findings.error("JS135", node, f"{node.value} is empty", hint)
        return None
    config = document.get("config") or document
    if not isinstance(config.value, dict):
        hint = "It is a mapping, an `info --json` document, or {stream_name, config}."
        files.findings.error("JS135", config, f"{node.value} holds no configuration", hint)
        return None
    known = (
        *TABLES[kind].by_name,
        *_NAME_KEYS[kind],
        *(STREAM.by_name if buckets.is_bucket(kind) else ()),
    )
    if files.findings.no_known_keys(
        "JS135", config, f"no key of {node.value} is a field of a {kind.replace('_', ' ')}", known
    ):
        return None
    values = {key: value for key, value in config.value.items() if key not in _NAME_KEYS[kind]}
    durable = config.get("durable_name")
    if kind == "consumer" and durable is not None and durable.value:
        values["durable_name"] = name
    return _to_bucket_fields(kind, make_mapping(config.place, values, config.keys))


def _to_bucket_fields(kind: Kind, config: Node) -> Node:
    """Return the configuration of a bucket's stream in the field names of the bucket."""
    if not buckets.is_bucket(kind):
        return config
    values = {buckets.alias_of(kind, key): node for key, node in config.value.items()}
    keys = {buckets.alias_of(kind, key): place for key, place in config.keys.items()}
    compression = values.get("compression")
    if compression is not None and compression.value in ("none", "s2"):
        values["compression"] = from_plain(compression.value == "s2", compression.place)
    return make_mapping(config.place, values, keys)
