"""`config_file:`: a bare configuration, an `info --json` document of the nats CLI, or {stream_name, config}.

Its text is taken literally: `${…}` is for the files of the workspace.
"""

from __future__ import annotations

from typing import Final

from jsplan.address import Kind
from jsplan.config.connections import file_path
from jsplan.config.files import Files
from jsplan.config.node import Node, mapping, node_of
from jsplan.resources import STREAM, TABLES, buckets

#: Names that the entry gives; those in the file are for where it came from.
_NAMES: Final[dict[Kind, tuple[str, ...]]] = {
    "stream": ("name",), "consumer": ("name", "durable_name"), "kv": ("bucket", "name"), "object_store": ("bucket", "name"),
}  # fmt: skip


def read(kind: Kind, node: Node, name: Node, files: Files) -> Node | None:
    """The configuration in the file that `node` names, under the entry's name; None after a finding.

    A durable consumer stays durable, and one without `durable_name` stays without.
    """
    path = file_path(node, "`config_file`", {}, files.findings)
    if path is None:
        return None
    document = files.parsed(path, node.place)
    if document is None:
        if files.was_empty(path):
            files.findings.error("JS135", node, f"{node.value} is empty", "Write the configuration into it, or remove `config_file`.")
        return None
    config = document.get("config") or document
    if not isinstance(config.value, dict):
        files.findings.error(
            "JS135", config, f"{node.value} holds no configuration", "It is a mapping, an `info --json` document, or {stream_name, config}."
        )
        return None
    known = (*TABLES[kind].by_name, *_NAMES[kind], *(STREAM.by_name if buckets.is_bucket(kind) else ()))
    if files.findings.no_known_key("JS135", config, f"no key of {node.value} is a field of a {kind.replace('_', ' ')}", known):
        return None
    values = {key: value for key, value in config.value.items() if key not in _NAMES[kind]}
    durable = config.get("durable_name")
    if kind == "consumer" and durable is not None and durable.value:
        values["durable_name"] = name
    return _in_words(kind, mapping(config.place, values, config.keys))


def _in_words(kind: Kind, config: Node) -> Node:
    """The configuration of a bucket's stream in the bucket's words, as the rest of the grammar takes it."""
    if not buckets.is_bucket(kind):
        return config
    values = {buckets.word_of(kind, key): node for key, node in config.value.items()}
    keys = {buckets.word_of(kind, key): place for key, place in config.keys.items()}
    compression = values.get("compression")
    if compression is not None and compression.value in ("none", "s2"):
        values["compression"] = node_of(compression.value == "s2", compression.place)
    return mapping(config.place, values, keys)
