"""Resources of the jetstream provider as resources of jsplan, from any source.

HCL has what was written, JSON and state have every value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from jsplan.address import Kind
from jsplan.config.node import Node, Place
from jsplan.converting.field_map import (
    BadValue,
    FieldMap,
    convert_fields,
    flag,
    integer,
    seconds,
    text,
    texts,
)
from jsplan.converting.model import NO_OWNER, Conversion, ConvertedResource, NoteWriter, Owner
from jsplan.converting.terraform import provider_fields

RESOURCE_TYPES: Final[Mapping[str, tuple[Kind, FieldMap, tuple[str, ...]]]] = {
    "jetstream_stream": ("stream", provider_fields.STREAM, provider_fields.STREAM_SPECIAL_KEYS),
    "jetstream_consumer": (
        "consumer",
        provider_fields.CONSUMER,
        provider_fields.CONSUMER_SPECIAL_KEYS,
    ),
    "jetstream_kv_bucket": ("kv", provider_fields.KV, provider_fields.BUCKET_SPECIAL_KEYS),
    "jetstream_obj_bucket": (
        "object_store",
        provider_fields.OBJECT_STORE,
        provider_fields.BUCKET_SPECIAL_KEYS,
    ),
}
UNSUPPORTED_TYPES: Final = {
    "jetstream_stream_template": (
        "Servers have no stream templates since 2.14: write the streams that it made."
    ),
}
SHOW_HINT: Final = "Give the output of `terraform show -json` instead: it has all values."
_STREAM_ID: Final = re.compile(r"JETSTREAM_STREAM_(.+)")
_DELIVER_POLICIES: Final = {
    "deliver_all": "all",
    "deliver_last": "last",
    "deliver_new": "new",
    "deliver_last_per_subject": "last_per_subject",
}


class ResourceInstance(Struct, frozen=True):
    """One instance of a resource. `label` is its name in Terraform.

    `is_source`: the attributes are those of the files, so that missing ones have the provider's
    default.
    """

    type: str
    label: str
    node: Node
    is_source: bool
    owner: Owner = NO_OWNER
    settings: Mapping[str, Any] = field(default_factory=dict)


def convert_instance(block: ResourceInstance, out: Conversion) -> None:
    """Add the resource of one block, with its notes."""
    if block.type in UNSUPPORTED_TYPES:
        report_unsupported(block.type, block.label, block.node, out)
        return
    kind, table, elsewhere = RESOURCE_TYPES[block.type]
    name = _read_name(block, kind)
    if name is None:
        wanted = "`stream_id` and `durable_name`" if kind == "consumer" else "`name`"
        out.general_notes.not_converted(
            block.node,
            f"{block.label} is not carried over: the value of {wanted} is unknown",
            SHOW_HINT,
        )
        return
    notes = out.notes_about(kind, name, block.owner)
    try:
        config = convert_fields(
            block.node,
            table,
            notes,
            special_keys=(*elsewhere, *provider_fields.META_ARGUMENTS),
            defaults=block.is_source,
        )
        _CONVERTERS[kind](block, config, notes)
        _convert_placement(block, config, notes)
    except BadValue as error:
        notes.unreadable(
            block.node, f"{block.label}: {error}", "Correct the value, or take it out."
        )
        return
    if block.is_source:
        _report_defaults(block, kind, config, notes)
    out.resources.append(
        ConvertedResource(
            kind,
            name,
            config,
            block.node.place,
            block.owner,
            has_bucket_fields=kind in ("kv", "object_store"),
            settings=block.settings,
        )
    )


def report_unsupported(kind: str, label: str, place: Node | Place, out: Conversion) -> None:
    """Note that jsplan has no such resource, and nothing about its attributes."""
    out.general_notes.not_converted(place, f"{label} is not carried over", UNSUPPORTED_TYPES[kind])


def _read_name(block: ResourceInstance, kind: Kind) -> str | None:
    """Return the name; None if it is missing or not text."""
    try:
        return _resource_name(block, kind)
    except BadValue:
        return None


def _resource_name(block: ResourceInstance, kind: Kind) -> str | None:
    if kind != "consumer":
        return _read_text(block.node, "name")
    stream, own = _read_text(block.node, "stream_id"), _read_text(block.node, "durable_name")
    if not stream or not own:
        return None
    found = _STREAM_ID.fullmatch(stream)
    return f"{found[1] if found else stream}/{own}"


def _report_defaults(
    block: ResourceInstance, kind: Kind, config: Mapping[str, Any], notes: NoteWriter
) -> None:
    named = {word.field: name for name, word in RESOURCE_TYPES[block.type][1].items()}
    for name, (shown, server) in provider_fields.DIFFERENT_DEFAULTS[kind].items():
        if name in config and block.node.get(named.get(name, name)) is None:
            notes.different_default(
                block.node,
                f"{shown} is the provider's default; the server's is {server}",
                "It is written out, because the object was made with it.",
            )


# --- streams --------------------------------------------------------------------------------------


def _convert_stream(block: ResourceInstance, config: dict[str, Any], notes: NoteWriter) -> None:
    node = block.node
    ack = node.get("ack")
    if ack is not None and ack.value is not None and not flag(ack):
        config["no_ack"] = True
    age = config.get("max_age") or 0
    if (
        block.is_source
        and node.get("duplicate_window") is None
        and 0 < age < config["duplicate_window"]
    ):
        del config["duplicate_window"]
        notes.info(
            node,
            "the provider's duplicate window of 2m is longer than max_age",
            "It is left out; the server then uses max_age.",
        )
    if mirror := _nested_blocks(node, "mirror"):
        config["mirror"] = _convert_origin(mirror[0], notes)
    if sources := _nested_blocks(node, "source"):
        config["sources"] = [_convert_origin(one, notes) for one in sources]
    if transform := _nested_blocks(node, "subject_transform"):
        config["subject_transform"] = convert_fields(transform[0], provider_fields.TRANSFORM, notes)
    _convert_republish(node, config)
    limits = {name: node.get(name) for name in ("max_ack_pending", "inactive_threshold")}
    found = {
        name: (seconds if name == "inactive_threshold" else integer)(one)
        for name, one in limits.items()
        if one is not None and one.value
    }
    if found:
        config["consumer_limits"] = found


def _convert_republish(node: Node, config: dict[str, Any]) -> None:
    destination = _read_text(node, "republish_destination")
    if destination:
        only = node.get("republish_headers_only")
        config["republish"] = {
            "src": _read_text(node, "republish_source") or ">",
            "dest": destination,
        }
        if only is not None and only.value is not None and flag(only):
            config["republish"]["headers_only"] = True


def _convert_origin(node: Node, notes: NoteWriter) -> dict[str, Any]:
    out = convert_fields(
        node, provider_fields.ORIGIN, notes, special_keys=provider_fields.ORIGIN_SPECIAL_KEYS
    )
    if external := _nested_blocks(node, "external"):
        found = convert_fields(external[0], provider_fields.EXTERNAL, notes)
        if found:
            out["external"] = {"api": ""} | found
    if transforms := _nested_blocks(node, "subject_transform"):
        out["subject_transforms"] = [
            convert_fields(one, provider_fields.TRANSFORM, notes) for one in transforms
        ]
    return out


def _convert_placement(block: ResourceInstance, config: dict[str, Any], notes: NoteWriter) -> None:
    cluster, tags = _read_text(block.node, "placement_cluster"), block.node.get("placement_tags")
    if cluster:
        config["placement"] = {"cluster": cluster} | (
            {"tags": texts(tags)} if tags is not None and tags.value else {}
        )
    elif tags is not None and tags.value:
        notes.not_converted(
            tags,
            "placement_tags without placement_cluster: the provider does not send them",
            "Write `placement: {tags: […]}` if they are needed.",
        )


# --- consumers ------------------------------------------------------------------------------------


def _convert_consumer(block: ResourceInstance, config: dict[str, Any], notes: NoteWriter) -> None:
    node = block.node
    config["name"] = config.get("durable_name")
    sample = node.get("sample_freq")
    if block.is_source or (sample is not None and sample.value is not None):
        config["sample_freq"] = (
            f"{integer(sample) if sample is not None and sample.value is not None else 0}%"
        )
    if len(config.get("filter_subjects") or ()) == 1:
        config["filter_subject"] = config.pop("filter_subjects")[0]
    if config.get("deliver_subject"):
        config.pop("max_waiting", None)
    else:
        config.pop("deliver_group", None)
    if config.get("ack_policy") == "none" and node.get("max_ack_pending") is None:
        config.pop("max_ack_pending", None)
    if config.get("backoff"):
        config.pop("ack_wait", None)
    _set_deliver_policy(node, config, notes)


def _set_deliver_policy(node: Node, config: dict[str, Any], notes: NoteWriter) -> None:
    """Set the start of a consumer, which is one of six attributes."""
    sequence, time = node.get("stream_sequence"), _read_text(node, "start_time")
    chosen = [
        policy
        for word, policy in _DELIVER_POLICIES.items()
        if (found := node.get(word)) is not None and found.value and flag(found)
    ]
    if chosen:
        config["deliver_policy"] = chosen[0]
    elif sequence is not None and sequence.value:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": integer(sequence)}
    elif time:
        config |= {"deliver_policy": "by_start_time", "opt_start_time": time}
    else:
        notes.info(
            node,
            "no attribute says where it starts: deliver_all is assumed",
            "The provider requires exactly one of its six attributes.",
        )


def _convert_bucket(block: ResourceInstance, config: dict[str, Any], notes: NoteWriter) -> None:
    """Convert a bucket: its table has all attributes."""


_CONVERTERS: Final = {
    "stream": _convert_stream,
    "consumer": _convert_consumer,
    "kv": _convert_bucket,
    "object_store": _convert_bucket,
}


def _read_text(node: Node, key: str) -> str | None:
    found = node.get(key)
    return text(found) if found is not None and found.value not in (None, "") else None


def _nested_blocks(node: Node, key: str) -> list[Node]:
    """Return the blocks as a list; an attribute that is an object counts as one."""
    found = node.get(key)
    if found is None or not found.value:
        return []
    return found.value if isinstance(found.value, list) else [found]
