"""`terraform show -json` of a state or a saved plan: what the jetstream provider has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from jsplan.address import Kind
from jsplan.codegen.layout import escape_references
from jsplan.config.node import Node, make_mapping
from jsplan.converting.field_map import (
    STARTS,
    FieldMap,
    join_server_urls,
    settle_consumer,
    use_variable,
)
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
_ENTRY: Final = ("bucket", "key", "value")
#: The path of a file, and neither a seed nor credentials.
_PATH: Final = re.compile(r"[^\n]*[./][^\n]*")
#: Each type, with our kind and the attributes that name it.
_TYPES: Final[Mapping[str, tuple[Kind, tuple[str, ...]]]] = {
    "jetstream_stream": ("stream", ("name",)),
    "jetstream_consumer": ("consumer", ("stream_id", "durable_name")),
    "jetstream_kv_bucket": ("kv", ("name",)),
    "jetstream_obj_bucket": ("object_store", ("name",)),
    "jetstream_kv_entry": ("kv", _ENTRY),
}
_BUCKET: Final = {"name": "bucket", "max_bucket_size": "max_bytes"}
_FIELDS: Final = FieldMap(
    {
        "stream": {
            "allow_atomic_publish": "allow_atomic", "source": "sources",
            "max_ack_pending": "consumer_limits.max_ack_pending",
            "inactive_threshold": "consumer_limits.inactive_threshold",
            "republish_source": "republish.src", "republish_destination": "republish.dest",
            "republish_headers_only": "republish.headers_only",
        },
        "consumer": {
            "delivery_subject": "deliver_subject", "delivery_group": "deliver_group",
            "max_delivery": "max_deliver", "ratelimit": "rate_limit_bps",
            "heartbeat": "idle_heartbeat", "memory": "mem_storage",
            "stream_sequence": "opt_start_seq", "start_time": "opt_start_time",
        },
        "kv": _BUCKET,
        "object_store": _BUCKET,
        "stream_source": {
            "start_seq": "opt_start_seq", "start_time": "opt_start_time",
            "subject_transform": "subject_transforms",
        },
    },
    in_seconds=True,
)  # fmt: skip
_POLICIES: Final = ("all", "last", "new", "last_per_subject")
#: Attributes that are read otherwise, or belong to Terraform.
_SKIPPED: Final = ("id", "ack", "stream_id", *(f"deliver_{start}" for start in _POLICIES))


#: The entries of each bucket: values by key.
_Entries = dict[tuple[Owner, str], dict[str, str]]


class _Instance(Struct, frozen=True):
    """One instance of a resource. `changes` are the attributes that an apply finds out."""

    node: Node
    owner: Owner
    changes: Node | None

    def read_values(self, needed: tuple[str, ...], notes: NoteWriter) -> Node | None:
        """Return the values that may be written; None if one of the needed is not among them."""
        values = self.node.get("values")
        label = _text(self.node, "address") or _text(self.node, "type")
        hidden = dict.fromkeys(_marked(self.changes), "it is known only after an apply")
        hidden |= dict.fromkeys(_marked(self.node.get("sensitive_values")), "it is sensitive")
        known = {key: item for key, item in _mapping(values).items() if key not in hidden}
        read = make_mapping(self.node.place, known, values.keys if values is not None else {})
        for word in needed:
            if not _text(read, word) and (word, read.get_value(word)) != ("value", ""):
                why = hidden.get(word, "it has no value")
                what = f"{label} is not carried over: it needs `{word}`, and {why}"
                notes.not_converted(self.node, what, "Write it by hand.")
                return None
        for key, why in hidden.items():
            what = f"{label}: {key} is not carried over: {why}"
            notes.not_converted(self.node, what, "Write it by hand, as ${env.X} if it is secret.")
        return read


def convert_terraform(node: Node, out: Conversion) -> None:
    """Add every resource of the jetstream provider in the document."""
    notes, version, entries = out.general_notes, node.get_value("format_version"), _Entries()
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
        for one in instances:
            _convert_instance(one, entries, out)
        _attach_entries(node, entries, out)


# --- modules and providers ------------------------------------------------------------------------


def _list_instances(node: Node, out: Conversion) -> Iterator[_Instance]:
    configuration = node.get("configuration")
    providers = _mapping(_get(configuration, "provider_config"))
    owners = {
        key: _convert_provider(provider, out)
        for key, provider in providers.items()
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
            if _text(one, "type").startswith("jetstream_") and _text(one, "mode") != "data":
                key = keys.get((_text(one, "type"), _text(one, "name")), "")
                changed = changes.get(_text(one, "address"))
                yield _Instance(one, owners.get(key, NO_OWNER), changed)
        for child in _items(module, "child_modules"):
            name = re.sub(r"\[.*\]$", "", _text(child, "address")).rpartition(".")[2]
            modules.append((child, _get(declared, "module_calls", name, "module")))


def _convert_provider(provider: Node, out: Conversion) -> Owner:
    """Add a connection under the provider's alias. A variable has no value here."""
    notes, given = out.general_notes, provider.get("expressions")
    name = _text(provider, "alias") or DEFAULT_CONNECTION
    found = out.connections.setdefault(name, {})
    servers = _get(given, "servers")
    if url := _text(servers, "constant_value"):
        found["url"] = join_server_urls([url], servers, notes)
    elif servers is not None:
        what = f"connection {name}: its servers are a variable, and not carried over"
        notes.info(servers, what, "Write `url:`, or set NATS_URL.")
    for word, ours in (("credentials", "creds"), ("nkey", "nkey"), ("credential_data", "creds")):
        if (login := _get(given, word)) is None:
            continue
        path = _text(login, "constant_value")
        if word != "credential_data" and _PATH.fullmatch(path):
            found[ours] = path
        else:
            what = f"connection {name}: {word} is not carried over"
            notes.not_converted(login, what, f"Save it in a file, and write `{ours}: FILE`.")
    for word in ("user", "password", "token"):
        if (secret := _get(given, word)) is not None and not found.keys() & {"creds", "nkey"}:
            use_variable(found, name, word, secret, notes)
    for block in _items(given, "tls"):
        files = [(word, block.get(f"{word}_file")) for word in ("ca", "cert", "key")]
        paths = {word: _text(given, "constant_value") for word, given in files}
        found["tls"] = {word: path for word, path in paths.items() if path}
    return Owner(name)


# --- resources ------------------------------------------------------------------------------------


def _convert_instance(one: _Instance, entries: _Entries, out: Conversion) -> None:
    kind_of = _TYPES.get(_text(one.node, "type"))
    if kind_of is None:
        what = f"{_text(one.node, 'address')} is not carried over"
        out.general_notes.not_converted(one.node, what, "jsplan has no such thing.")
        return
    kind, needed = kind_of
    values = one.read_values(needed, out.general_notes)
    if values is None:
        return
    names = [_text(values, word) for word in needed]
    if needed == _ENTRY:
        entries.setdefault((one.owner, names[0]), {})[names[1]] = escape_references(names[2])
        return
    names[0] = names[0].removeprefix("JETSTREAM_STREAM_") if kind == "consumer" else names[0]
    name = "/".join(names)
    notes = out.notes_about(kind, name, one.owner)
    config = _FIELDS.read(TABLES[kind], values, notes, _SKIPPED)
    if kind == "consumer":
        _settle_consumer(values, config)
    if values.get_value("ack") is False:
        config["no_ack"] = True
    placement = config.get("placement")
    if placement is not None and not placement.get("cluster"):
        del config["placement"]
        what = "placement_tags without placement_cluster: the provider does not send them"
        place = values.key_place("placement_tags")
        notes.not_converted(place, what, "Write `placement: {tags: […]}` if they are needed.")
    out.resources.append(ConvertedResource(kind, name, config, one.node.place, one.owner))


def _settle_consumer(values: Node, config: dict[str, Any]) -> None:
    """Leave out what the provider does not send; one of six attributes is the start."""
    settle_consumer(config)
    config["name"] = config.get("durable_name")
    config.setdefault("sample_freq", "0%")
    config.pop("max_waiting" if config.get("deliver_subject") else "deliver_group", None)
    if config.get("ack_policy") == "none":
        config.pop("max_ack_pending", None)
    starts = [each for each in _POLICIES if values.get_value(f"deliver_{each}") is True]
    starts += [policy for name, policy in STARTS.items() if name in config]
    config["deliver_policy"] = starts[0] if starts else "all"


def _attach_entries(node: Node, entries: _Entries, out: Conversion) -> None:
    """Add the entries to their buckets. Values are written in plain text."""
    for one in out.resources:
        found = entries.pop((one.owner, one.name), None) if one.kind == "kv" else None
        if found is not None:
            one.settings["entries"] = found
            what = "the values of its entries are written in plain text"
            advice = "Write ${env.X} in place of a secret, and set that variable."
            out.notes_about("kv", one.name, one.owner).info(one.place, what, advice)
    for (_, bucket), found in entries.items():
        what = f"bucket {bucket} is not in this file: {', '.join(found)} is not carried over"
        out.general_notes.not_converted(node, what, "Declare it with these `entries:`.")


# --- values ---------------------------------------------------------------------------------------


def _mapping(node: Node | None) -> Mapping[str, Node]:
    return node.value if node is not None and isinstance(node.value, dict) else {}


def _get(node: Node | None, *keys: str) -> Any:
    for key in keys:
        node = node.get(key) if node is not None else None
    return node


def _items(node: Node | None, key: str) -> list[Node]:
    found = _get(node, key)
    return found.value if found is not None and isinstance(found.value, list) else []


def _text(node: Node | None, key: str) -> str:
    found = _get(node, key)
    return found.value if found is not None and isinstance(found.value, str) else ""


def _marked(marks: Node | None) -> list[str]:
    found = _mapping(marks).items()
    return [key for key, mark in found if key != "id" and _has_true(mark)]


def _has_true(mark: Node) -> bool:
    value = mark.value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is True or any(map(_has_true, parts))
