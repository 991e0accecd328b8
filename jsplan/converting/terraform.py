"""`terraform show -json` of a state or a saved plan: what the jetstream provider has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from jsplan.address import Kind
from jsplan.codegen.value_format import escape_references
from jsplan.config.node import Node, without_keys
from jsplan.converting.connections import join_server_urls, use_variable
from jsplan.converting.field_map import FieldMap, settle_consumer
from jsplan.converting.model import (
    DEFAULT_CONNECTION,
    NO_OWNER,
    Conversion,
    ConvertedResource,
    NoteWriter,
    Owner,
)
from jsplan.resources import TABLES

SHOW_HINT: Final = "Give what this prints: terraform show -json > tf.json"
#: The major versions of the format, whose versions 0.x are those before Terraform 1.1.
_FORMATS: Final = ("0", "1")
_ENTRY: Final = "jetstream_kv_entry"
#: Each type, with our kind and the attributes that name it.
_TYPES: Final[Mapping[str, tuple[Kind, tuple[str, ...]]]] = {
    "jetstream_stream": ("stream", ("name",)),
    "jetstream_consumer": ("consumer", ("stream_id", "durable_name")),
    "jetstream_kv_bucket": ("kv", ("name",)),
    "jetstream_obj_bucket": ("object_store", ("name",)),
    _ENTRY: ("kv", ("bucket", "key", "value")),
}
_PLACEMENT: Final = {
    "replicas": "num_replicas", "placement_cluster": "placement.cluster",
    "placement_tags": "placement.tags",
}  # fmt: skip
_BUCKET: Final = {"name": "bucket", "max_bucket_size": "max_bytes", **_PLACEMENT}
_FIELDS: Final = FieldMap(
    {
        "stream": {
            "allow_atomic_publish": "allow_atomic", "source": "sources",
            "max_ack_pending": "consumer_limits.max_ack_pending",
            "inactive_threshold": "consumer_limits.inactive_threshold",
            "republish_source": "republish.src", "republish_destination": "republish.dest",
            "republish_headers_only": "republish.headers_only", **_PLACEMENT,
        },
        "consumer": {
            "delivery_subject": "deliver_subject", "delivery_group": "deliver_group",
            "max_delivery": "max_deliver", "ratelimit": "rate_limit_bps",
            "replicas": "num_replicas", "heartbeat": "idle_heartbeat", "memory": "mem_storage",
            "stream_sequence": "opt_start_seq", "start_time": "opt_start_time",
        },
        "kv": _BUCKET,
        "object_store": _BUCKET,
        "stream_source": {
            "start_seq": "opt_start_seq", "start_time": "opt_start_time",
            "subject_transform": "subject_transforms",
        },
        "subject_transform": {"source": "src", "destination": "dest"},
    },
    in_seconds=True,
)  # fmt: skip
_STARTS: Final = ("all", "last", "new", "last_per_subject")
#: Attributes that are read otherwise, or belong to Terraform.
_SKIPPED: Final = ("id", "ack", "stream_id", *(f"deliver_{start}" for start in _STARTS))


class _Instance(Struct, frozen=True):
    """One instance of a resource. `changes` are the attributes that an apply finds out."""

    node: Node
    owner: Owner
    changes: Node | None

    @property
    def label(self) -> str:
        """Its address in Terraform."""
        return _text(self.node, "address") or self.type

    @property
    def type(self) -> str:
        """Its type in Terraform."""
        return _text(self.node, "type")

    def without_hidden(self, needed: tuple[str, ...], notes: NoteWriter) -> Node | None:
        """Return the values that may be written; None if one of the needed is not among them."""
        values = self.node.get("values") or Node(self.node.place, {})
        marks = {
            "it is sensitive": self.node.get("sensitive_values"),
            "it is known only after an apply": self.changes,
        }
        hidden = {
            key: why
            for why, marked in marks.items()
            if marked is not None and isinstance(marked.value, dict)
            for key, mark in marked.value.items()
            if key not in _SKIPPED and _has_true(mark)
        }
        if isinstance(values.value, dict):
            values = without_keys(values, hidden)
        lacking = [
            word
            for word in needed
            if not isinstance(found := values.get_value(word), str)
            or (not found and word != "value")
        ]
        if lacking:
            why = hidden.get(lacking[0], "it has no value")
            summary = f"{self.label} is not carried over: it needs `{lacking[0]}`, and {why}"
            notes.not_converted(self.node, summary, "Write it by hand.")
            return None
        for key, why in hidden.items():
            summary = f"{self.label}: {key} is not carried over: {why}"
            notes.not_converted(
                self.node, summary, "Write it by hand, as ${env.X} if it is secret."
            )
        return values


def convert_terraform(node: Node, out: Conversion) -> None:
    """Add every resource of the jetstream provider in the document."""
    notes, version = out.general_notes, node.get_value("format_version")
    if isinstance(node.get_value("version"), int):
        notes.unreadable(node, "this is a state file, which Terraform alone reads", SHOW_HINT)
    elif version is None:
        notes.not_converted(node, "not what terraform show -json prints: left out", SHOW_HINT)
    elif str(version).partition(".")[0] not in _FORMATS:
        what = f"format_version {version} is newer than this release of jsplan"
        notes.unreadable(node, what, "Upgrade jsplan.")
    elif not (instances := list(_list_instances(node, out))):
        detail = "Give the state or the plan that has its resources."
        notes.not_converted(node, "has nothing of the jetstream provider", detail)
    else:
        entries = _read_entries(instances, out)
        for one in instances:
            if one.type != _ENTRY:
                _convert_instance(one, entries, out)
        for (_, bucket), found in entries.items():
            what = f"bucket {bucket} is not in this file: {', '.join(found)} is not carried over"
            notes.not_converted(node, what, "Declare the bucket with these `entries:`.")


def _has_true(mark: Node) -> bool:
    value = mark.value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is True or any(map(_has_true, parts))


# --- modules and providers ------------------------------------------------------------------------


def _list_instances(node: Node, out: Conversion) -> Iterator[_Instance]:
    configuration = node.get("configuration")
    providers = _get(configuration, "provider_config")
    owners = {
        key: _convert_provider(provider, out)
        for key, provider in (providers.value.items() if _is_mapping(providers) else ())
        if _text(provider, "name") == "jetstream"
    }
    changes = {
        _text(one, "address"): _get(one, "change", "after_unknown")
        for one in _items(node, "resource_changes")
    }
    values = node.get("values") or node.get("planned_values")
    modules = [(_get(values, "root_module"), _get(configuration, "root_module"))]
    for module, declared in modules:
        keys = {
            (_text(one, "type"), _text(one, "name")): _text(one, "provider_config_key")
            for one in _items(declared, "resources")
        }
        for one in _items(module, "resources"):
            if _text(one, "type") in _TYPES and _text(one, "mode") != "data":
                key = keys.get((_text(one, "type"), _text(one, "name")), "")
                changed = changes.get(_text(one, "address"))
                yield _Instance(one, owners.get(key, NO_OWNER), changed)
            elif _text(one, "type").startswith("jetstream_"):
                what = f"{_text(one, 'address')} is not carried over"
                out.general_notes.not_converted(one, what, "jsplan has no such thing.")
        for child in _items(module, "child_modules"):
            name = re.sub(r"\[.*\]$", "", _text(child, "address")).rpartition(".")[2]
            modules.append((child, _get(declared, "module_calls", name, "module")))


def _is_mapping(node: Node | None) -> bool:
    return node is not None and isinstance(node.value, dict)


def _get(node: Node | None, *keys: str) -> Any:
    for key in keys:
        node = node.get(key) if node is not None else None
    return node


def _items(node: Node | None, key: str) -> list[Node]:
    found = node.get_value(key) if node is not None else None
    return found if isinstance(found, list) else []


def _text(node: Node, key: str) -> str:
    found = node.get_value(key)
    return found if isinstance(found, str) else ""


def _convert_provider(provider: Node, out: Conversion) -> Owner:
    """Add a connection under the provider's alias. A variable has no value here."""
    notes, given = out.general_notes, provider.get("expressions")
    name = _text(provider, "alias") or DEFAULT_CONNECTION
    found = out.connections.setdefault(name, {})

    def constant(node: Node | None) -> str:
        value = _get(node, "constant_value")
        return str(value.value) if value is not None and value.value else ""

    servers = _get(given, "servers")
    if url := constant(servers):
        found["url"] = join_server_urls([url], servers, notes)
    elif servers is not None:
        what = f"connection {name}: its servers are a variable, and not carried over"
        notes.info(servers, what, "Write `url:`, or set NATS_URL.")
    for word, ours in (("credentials", "creds"), ("nkey", "nkey")):
        if path := constant(_get(given, word)):
            found[ours] = path
    for word in ("user", "password", "token"):
        if (secret := _get(given, word)) is not None and not found.keys() & {"creds", "nkey"}:
            use_variable(found, name, word, secret, notes)
    if (data := _get(given, "credential_data")) is not None:
        what = f"connection {name}: credential_data is not carried over"
        notes.not_converted(data, what, "Save the credentials and write `creds: FILE`.")
    for block in _items(given, "tls"):
        files = {word: constant(block.get(f"{word}_file")) for word in ("ca", "cert", "key")}
        found["tls"] = {word: path for word, path in files.items() if path}
    return Owner(name)


# --- resources ------------------------------------------------------------------------------------


def _convert_instance(
    one: _Instance, entries: dict[tuple[Owner, str], dict[str, str]], out: Conversion
) -> None:
    kind, needed = _TYPES[one.type]
    values = one.without_hidden(needed, out.general_notes)
    if values is None:
        return
    name = "/".join(values.value[word].value for word in needed).removeprefix("JETSTREAM_STREAM_")
    notes = out.notes_about(kind, name, one.owner)
    config = _FIELDS.read(TABLES[kind], values, notes, _SKIPPED)
    if kind == "consumer":
        _settle(values, config, notes)
    if values.get_value("ack") is False:
        config["no_ack"] = True
    if "placement" in config and not config["placement"].get("cluster"):
        del config["placement"]
        what = "placement_tags without placement_cluster: the provider does not send them"
        notes.not_converted(
            values.key_place("placement_tags"),
            what,
            "Write `placement: {tags: […]}` if they are needed.",
        )
    is_bucket = kind in ("kv", "object_store")
    own = entries.pop((one.owner, name), None) if kind == "kv" else None
    if own is not None:
        what = "the values of its entries are written in plain text"
        notes.info(one.node, what, "Write ${env.X} in place of a secret, and set that variable.")
    settings = {"entries": own} if own is not None else {}
    out.resources.append(
        ConvertedResource(kind, name, config, one.node.place, one.owner, is_bucket, settings)
    )


def _settle(values: Node, config: dict[str, Any], notes: NoteWriter) -> None:
    """Leave out what the provider does not send; one of six attributes is the start."""
    settle_consumer(config)
    config["name"] = config.get("durable_name")
    config.setdefault("sample_freq", "0%")
    config.pop("max_waiting" if config.get("deliver_subject") else "deliver_group", None)
    if config.get("ack_policy") == "none":
        config.pop("max_ack_pending", None)
    start = next((each for each in _STARTS if values.get_value(f"deliver_{each}") is True), None)
    if start is not None:
        config["deliver_policy"] = start
    elif "opt_start_seq" in config:
        config["deliver_policy"] = "by_start_sequence"
    elif "opt_start_time" in config:
        config["deliver_policy"] = "by_start_time"
    else:
        what = "no attribute says where it starts: deliver_all is assumed"
        notes.info(values, what, "The provider requires exactly one of its six attributes.")


def _read_entries(
    instances: list[_Instance], out: Conversion
) -> dict[tuple[Owner, str], dict[str, str]]:
    """Return the entries of each bucket: values by key."""
    found: dict[tuple[Owner, str], dict[str, str]] = {}
    for one in instances:
        needed = _TYPES[_ENTRY][1]
        values = one.without_hidden(needed, out.general_notes) if one.type == _ENTRY else None
        if values is not None:
            bucket, key, value = (values.value[word].value for word in needed)
            found.setdefault((one.owner, bucket), {})[key] = escape_references(value)
    return found
