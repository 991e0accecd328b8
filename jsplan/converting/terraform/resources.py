"""Resources of the jetstream provider as ours, wherever they were read: HCL gives what was written, JSON and state what is there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jsplan.address import Kind
from jsplan.config.node import Node, Place
from jsplan.converting.model import NOBODY, Conversion, Owner, Resource, Teller
from jsplan.converting.terraform import provider_words as words
from jsplan.converting.words import BadValue, Words, convert, flag, seconds, text, texts, whole

KINDS: Final[Mapping[str, tuple[Kind, Words, tuple[str, ...]]]] = {
    "jetstream_stream": ("stream", words.STREAM, words.STREAM_ELSEWHERE),
    "jetstream_consumer": ("consumer", words.CONSUMER, words.CONSUMER_ELSEWHERE),
    "jetstream_kv_bucket": ("kv", words.KV, words.BUCKET_ELSEWHERE),
    "jetstream_obj_bucket": ("object_store", words.OBJECT_STORE, words.BUCKET_ELSEWHERE),
}
LEFT_OUT: Final = {
    "jetstream_kv_entry": "Values are data: put them with a client. jsplan keeps buckets, not what is in them.",
    "jetstream_stream_template": "Servers have had no stream templates since 2.14: write the streams that it made.",
}
_SHOW: Final = "`terraform show -json` has all values: give that file instead."
_STREAM_ID: Final = re.compile(r"JETSTREAM_STREAM_(.+)")
_BEGINS: Final = {"deliver_all": "all", "deliver_last": "last", "deliver_new": "new", "deliver_last_per_subject": "last_per_subject"}


@dataclass(frozen=True, slots=True)
class Block:
    """One instance of a resource. `label` is how Terraform calls it; `written`: the attributes are those of the files, so that
    the provider's defaults stand for what is not there.
    """

    type: str
    label: str
    node: Node
    written: bool
    owner: Owner = NOBODY
    settings: Mapping[str, Any] = field(default_factory=dict)


def convert_block(block: Block, out: Conversion) -> None:
    """Add the resource of one block, with its notes."""
    if block.type in LEFT_OUT:
        left_out(block.type, block.label, block.node, out)
        return
    kind, table, elsewhere = KINDS[block.type]
    name = _name(block, kind)
    if name is None:
        wanted = "`stream_id` and `durable_name`" if kind == "consumer" else "`name`"
        out.general.lost(block.node, f"{block.label} is not carried over: it has no {wanted} that is known here", _SHOW)
        return
    tell = out.teller(kind, name, block.owner)
    try:
        config = convert(block.node, table, tell, elsewhere=(*elsewhere, *words.META), defaults=block.written)
        _MORE[kind](block, config, tell)
        _placement(block, config, tell)
    except BadValue as error:
        tell.unreadable(block.node, f"{block.label}: {error}", "Correct the value, or take it out.")
        return
    if block.written:
        _say_defaults(block, kind, config, tell)
    out.resources.append(
        Resource(kind, name, config, block.node.place, block.owner, words=kind in ("kv", "object_store"), settings=block.settings)
    )


def left_out(kind: str, label: str, place: Node | Place, out: Conversion) -> None:
    """Say that jsplan has no such resource, and nothing about its attributes."""
    out.general.lost(place, f"{label} is not carried over", LEFT_OUT[kind])


def _name(block: Block, kind: Kind) -> str | None:
    """The name; None where it is not there, or is no text."""
    try:
        return _named(block, kind)
    except BadValue:
        return None


def _named(block: Block, kind: Kind) -> str | None:
    if kind != "consumer":
        return _text(block.node, "name")
    stream, own = _text(block.node, "stream_id"), _text(block.node, "durable_name")
    if not stream or not own:
        return None
    found = _STREAM_ID.fullmatch(stream)
    return f"{found[1] if found else stream}/{own}"


def _say_defaults(block: Block, kind: Kind, config: Mapping[str, Any], tell: Teller) -> None:
    named = {word.field: name for name, word in KINDS[block.type][1].items()}
    for name, (shown, server) in words.DIFFERENT[kind].items():
        if name in config and block.node.get(named.get(name, name)) is None:
            tell.differs(block.node, f"{shown} is the provider's default; the server's is {server}", "It is written out, as it was made.")


# --- streams --------------------------------------------------------------------------------------------------


def _stream(block: Block, config: dict[str, Any], tell: Teller) -> None:
    node = block.node
    ack = node.get("ack")
    if ack is not None and ack.value is not None and not flag(ack):
        config["no_ack"] = True
    age = config.get("max_age") or 0
    if block.written and node.get("duplicate_window") is None and 0 < age < config["duplicate_window"]:
        del config["duplicate_window"]
        tell.knows(node, "the provider's duplicate window of 2m is longer than max_age", "It is left out; the server takes max_age then.")
    if mirror := _blocks(node, "mirror"):
        config["mirror"] = _origin(mirror[0], tell)
    if sources := _blocks(node, "source"):
        config["sources"] = [_origin(one, tell) for one in sources]
    if transform := _blocks(node, "subject_transform"):
        config["subject_transform"] = convert(transform[0], words.TRANSFORM, tell)
    _republish(node, config)
    limits = {name: node.get(name) for name in ("max_ack_pending", "inactive_threshold")}
    found = {
        name: (seconds if name == "inactive_threshold" else whole)(one) for name, one in limits.items() if one is not None and one.value
    }
    if found:
        config["consumer_limits"] = found


def _republish(node: Node, config: dict[str, Any]) -> None:
    destination = _text(node, "republish_destination")
    if destination:
        only = node.get("republish_headers_only")
        config["republish"] = {"src": _text(node, "republish_source") or ">", "dest": destination}
        if only is not None and only.value is not None and flag(only):
            config["republish"]["headers_only"] = True


def _origin(node: Node, tell: Teller) -> dict[str, Any]:
    out = convert(node, words.ORIGIN, tell, elsewhere=words.ORIGIN_ELSEWHERE)
    if external := _blocks(node, "external"):
        found = convert(external[0], words.EXTERNAL, tell)
        if found:
            out["external"] = {"api": ""} | found
    if transforms := _blocks(node, "subject_transform"):
        out["subject_transforms"] = [convert(one, words.TRANSFORM, tell) for one in transforms]
    return out


def _placement(block: Block, config: dict[str, Any], tell: Teller) -> None:
    cluster, tags = _text(block.node, "placement_cluster"), block.node.get("placement_tags")
    if cluster:
        config["placement"] = {"cluster": cluster} | ({"tags": texts(tags)} if tags is not None and tags.value else {})
    elif tags is not None and tags.value:
        tell.lost(
            tags,
            "placement_tags without placement_cluster: the provider does not send them",
            "Write `placement: {tags: […]}` if they are meant.",
        )


# --- consumers ------------------------------------------------------------------------------------------------


def _consumer(block: Block, config: dict[str, Any], tell: Teller) -> None:
    node = block.node
    config["name"] = config.get("durable_name")
    sample = node.get("sample_freq")
    if block.written or (sample is not None and sample.value is not None):
        config["sample_freq"] = f"{whole(sample) if sample is not None and sample.value is not None else 0}%"
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
    _begin(node, config, tell)


def _begin(node: Node, config: dict[str, Any], tell: Teller) -> None:
    """Where a consumer begins is one of six attributes."""
    sequence, time = node.get("stream_sequence"), _text(node, "start_time")
    chosen = [policy for word, policy in _BEGINS.items() if (found := node.get(word)) is not None and found.value and flag(found)]
    if chosen:
        config["deliver_policy"] = chosen[0]
    elif sequence is not None and sequence.value:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": whole(sequence)}
    elif time:
        config |= {"deliver_policy": "by_start_time", "opt_start_time": time}
    else:
        tell.knows(node, "nothing says where it begins: taken as deliver_all", "The provider wants exactly one of its six attributes.")


def _nothing(block: Block, config: dict[str, Any], tell: Teller) -> None:
    """Buckets are all in their table."""


_MORE: Final = {"stream": _stream, "consumer": _consumer, "kv": _nothing, "object_store": _nothing}


def _text(node: Node, key: str) -> str | None:
    found = node.get(key)
    return text(found) if found is not None and found.value not in (None, "") else None


def _blocks(node: Node, key: str) -> list[Node]:
    """Blocks come as a list; an attribute that is an object counts as one."""
    found = node.get(key)
    if found is None or not found.value:
        return []
    return found.value if isinstance(found.value, list) else [found]
