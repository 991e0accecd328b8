"""NACK's custom resources: Stream, Consumer, KeyValue, ObjectStore and Account.

Also as `kubectl get -o yaml` prints them: `jetstream.nats.io/v1beta2` and v1beta1, from docs/api.md
and deploy/crds.yml of nats-io/nack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from jsplan.address import Kind
from jsplan.config.findings import Findings
from jsplan.config.node import Node, Source
from jsplan.config.read import parse_document
from jsplan.converting.field_map import FieldMap, settle_consumer
from jsplan.converting.model import (
    DEFAULT_CONNECTION,
    Conversion,
    ConvertedResource,
    NoteWriter,
    Owner,
)
from jsplan.converting.nack_accounts import (
    add_missing_accounts,
    convert_account,
    read_inline_connection,
)
from jsplan.resources import TABLES
from jsplan.units import DURATIONS

GROUP: Final = "jetstream.nats.io/"
_DOCUMENT_SEPARATOR: Final = re.compile(r"---\s*(#.*)?$")
_KINDS: Final[dict[str, Kind]] = {
    "Stream": "stream", "Consumer": "consumer", "KeyValue": "kv", "ObjectStore": "object_store",
}  # fmt: skip
_FIELDS: Final = FieldMap(
    {
        "stream": {
            "replicas": "num_replicas", "discardPerSubject": "discard_new_per_subject",
            "allowRollup": "allow_rollup_hdrs", "firstSequence": "first_seq",
            "allowAtomicPublish": "allow_atomic",
        },
        "consumer": {
            "maxRequestBatch": "max_batch", "maxRequestExpires": "max_expires",
            "maxRequestMaxBytes": "max_bytes", "heartbeatInterval": "idle_heartbeat",
            "replicas": "num_replicas", "pinnedTtl": "priority_timeout",
        },
        "kv": {"replicas": "num_replicas"},
        "object_store": {"replicas": "num_replicas"},
        "stream_source": {
            "externalApiPrefix": "external.api", "externalDeliverPrefix": "external.deliver",
        },
        "subject_transform": {"source": "src"},
        "republish": {"source": "src", "destination": "dest"},
    },
    {"pinned": "pinned_client"},
)  # fmt: skip
#: The connection, the permissions of the controller, and the stream of a consumer.
_SKIPPED: Final = (
    "account", "creds", "nkey", "servers", "tls", "tlsFirst", "jsDomain", "preventDelete",
    "preventUpdate", "streamName",
)  # fmt: skip
_CORRECT: Final = "Correct it where it comes from."


def split_documents(source: Source, data: bytes, findings: Findings) -> Iterator[Node]:
    """Yield each document of a YAML stream, with the lines of the whole file.

    A line that begins with `---` separates documents.
    """
    lines = data.decode("utf-8-sig", "replace").split("\n")
    starts = [number for number, line in enumerate(lines) if _DOCUMENT_SEPARATOR.match(line)]
    for begin, end in zip([-1, *starts], [*starts, len(lines)], strict=True):
        text = "\n".join(lines[begin + 1 : end])
        part = replace(source, lines_before=begin + 1)
        found = parse_document(part, text.encode(), findings) if text.strip() else None
        items = found.get_value("items") if found is not None else None
        if isinstance(items, list):  # a `List`
            yield from items
        elif found is not None:
            yield found


def convert_nack(
    found: Sequence[Node], out: Conversion, *, control_loop: bool | None = None
) -> None:
    """Add all custom resources of the documents.

    `control_loop` is the mode of the controller; None guesses it from the resources.
    """
    ours = [node for node in found if str(node.get_value("apiVersion")).startswith(GROUP)]
    has_loop = any(map(_is_of_control_loop, ours))
    for node in ours:
        kind, spec = str(node.get_value("kind")), node.get("spec")
        if spec is None or not isinstance(spec.value, dict):
            out.general_notes.unreadable(node, f"{kind} has no `spec`", _CORRECT)
        elif kind == "Account":
            convert_account(node, spec, out)
        elif kind in _KINDS:
            _convert_resource(node, spec, _KINDS[kind], control_loop, out, has_loop=has_loop)
        else:
            out.general_notes.not_converted(
                node,
                f"{kind} {_label(node)} is not carried over",
                "jsplan has no such thing. Of a template, convert the streams that it made.",
            )
    add_missing_accounts(out)


def _is_of_control_loop(node: Node) -> bool:
    """Guess the mode: buckets, finalizers and annotations exist in control-loop mode only."""
    meta = node.get("metadata") or node
    finalizers, annotations = meta.get_value("finalizers"), meta.get_value("annotations")
    ends = finalizers if isinstance(finalizers, list) else []
    keys = annotations if isinstance(annotations, dict) else {}
    return (
        node.get_value("kind") in ("KeyValue", "ObjectStore")
        or any(str(end.value).endswith(".nats.io/finalizer") for end in ends)
        or any("nats.io/" in key and "state" in key for key in keys)
    )


def _label(node: Node) -> str:
    meta = node.get("metadata")
    return str(meta.get_value("name")) if meta is not None else "without a name"


def _convert_resource(
    node: Node,
    spec: Node,
    kind: Kind,
    control_loop: bool | None,
    out: Conversion,
    *,
    has_loop: bool,
) -> None:
    """Add one resource, with its notes."""
    own = "name" if kind == "stream" else "durableName" if kind == "consumer" else "bucket"
    names = [
        spec.get_value(own) or spec.get_value("name") if kind == "consumer" else spec.get_value(own)
    ]
    if kind == "consumer":
        names.insert(0, spec.get_value("streamName"))
    if not all(isinstance(name, str | int) and name for name in names):
        lacking = "streamName" if names[-1] else own
        out.general_notes.unreadable(spec, f"{_label(node)} has no `{lacking}`", _CORRECT)
        return
    owner = Owner(
        str(spec.get_value("account") or DEFAULT_CONNECTION),
        str(spec.get_value("jsDomain") or "") or None,
    )
    name = "/".join(map(str, names))
    notes = out.notes_about(kind, name, owner)
    read_inline_connection(spec, owner.connection, out, notes)
    config = _FIELDS.read(TABLES[kind], spec, notes, _SKIPPED)
    if kind == "stream":
        _settle_stream(node, config, notes)
        if "max_age" not in config:
            _settle_max_age(node, config, notes, control_loop, has_loop=has_loop)
    elif kind == "consumer":
        _settle_consumer(node, config, notes)
    guarded = spec.get_value("preventDelete") is True
    settings = {"lifecycle": {"prevent_destroy": True}} if guarded else {}
    if spec.get_value("preventUpdate") is True:
        notes.not_converted(
            spec.value["preventUpdate"],
            "preventUpdate is not carried over",
            "Name what may differ in `lifecycle: {ignore_changes: […]}`.",
        )
    is_bucket = kind in ("kv", "object_store")
    out.resources.append(
        ConvertedResource(kind, name, config, node.place, owner, is_bucket, settings)
    )


# --- defaults of the CRDs, the controller and its client ------------------------------------------


def _settle_stream(node: Node, config: dict[str, Any], notes: NoteWriter) -> None:
    if "storage" not in config:
        config["storage"] = "memory"
        notes.different_default(
            node,
            "storage: memory is NACK's default; the server's is file",
            "It is written out, because the stream has it.",
        )
    if config.get("discard_new_per_subject"):
        config["discard"] = "new"


def _settle_max_age(
    node: Node, config: dict[str, Any], notes: NoteWriter, given: bool | None, *, has_loop: bool
) -> None:
    """Set `max_age`: the client of the control loop makes it a year, the other mode sends none."""
    how = " (--control-loop and --no-control-loop say how your controller runs)"
    if given or (given is None and has_loop):
        config["max_age"] = DURATIONS["y"]
        notes.different_default(
            node,
            "max_age: 1y is what NACK's control loop makes of no `maxAge`;"
            " the server's default is no limit",
            f"It is written out{'' if given else how}.",
        )
    elif given is None:
        notes.info(
            node,
            "no `maxAge`: unlimited in NACK's default mode, one year with its control loop",
            f"It is left unlimited{how}.",
        )


def _settle_consumer(node: Node, config: dict[str, Any], notes: NoteWriter) -> None:
    config.setdefault("name", config.get("durable_name"))
    policy = config.setdefault("ack_policy", "none")
    settle_consumer(config)
    if "backoff" not in config and "ack_wait" not in config:
        config["ack_wait"] = 1
        server, effect = (
            (
                "the server has none without acknowledgements",
                "It has no effect there.",
            )
            if policy == "none"
            else (
                "the server's is 30s",
                "Every message is delivered again at once; you will want another.",
            )
        )
        notes.different_default(
            node,
            f"ack_wait: 1ns is NACK's default; {server}",
            f"It is written out, because the consumer has it. {effect}",
        )
    if config.get("priority_policy") == "pinned_client":
        config.setdefault("priority_timeout", 5 * DURATIONS["m"])
