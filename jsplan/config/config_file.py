"""`config_file:`: a configuration, alone or in a document of the nats CLI.

Documents are those of `info --json` and {stream_name, config}. The text is taken literally:
`${…}` works in the files of the workspace only.
"""

from __future__ import annotations

from typing import Final

from jsplan.address import Kind
from jsplan.config.file_paths import resolve_file_path
from jsplan.config.files import WorkspaceFiles
from jsplan.config.node import Node, from_plain, make_mapping
from jsplan.resources import STREAM, TABLES, buckets

#: Names that the entry gives; those in the file name the object that it was exported from.
_NAME_KEYS: Final[dict[Kind, tuple[str, ...]]] = {
    "stream": ("name",), "consumer": ("name", "durable_name"), "kv": ("bucket", "name"),
    "object_store": ("bucket", "name"),
}  # fmt: skip


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
            files.findings.error(
                "JS135",
                node,
                f"{node.value} is empty",
                "Write the configuration into it, or remove `config_file`.",
            )
        return None
    config = document.get("config") or document
    if not isinstance(config.value, dict):
        files.findings.error(
            "JS135",
            config,
            f"{node.value} holds no configuration",
            "It is a mapping, an `info --json` document, or {stream_name, config}.",
        )
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
