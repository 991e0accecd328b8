"""NACK's custom resources: Stream, Consumer, KeyValue, ObjectStore and Account.

Also as `kubectl get -o yaml` prints them. Their keys and defaults are in `nack_fields`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Kind
from jsplan.config.findings import Findings
from jsplan.config.node import Node, Source
from jsplan.config.read import parse_document
from jsplan.converting import nack_fields
from jsplan.converting.field_map import BadValue, FieldMap, convert_fields, flag, read_items
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

GROUP: Final = "jetstream.nats.io/"
_DOCUMENT_SEPARATOR: Final = re.compile(r"---\s*(#.*)?$")
_KINDS: Final[dict[str, tuple[Kind, FieldMap, tuple[str, ...]]]] = {
    "Stream": ("stream", nack_fields.STREAM, nack_fields.STREAM_SPECIAL_KEYS),
    "Consumer": ("consumer", nack_fields.CONSUMER, nack_fields.CONSUMER_SPECIAL_KEYS),
    "KeyValue": ("kv", nack_fields.KEY_VALUE, nack_fields.KEY_VALUE_SPECIAL_KEYS),
    "ObjectStore": (
        "object_store",
        nack_fields.OBJECT_STORE,
        nack_fields.OBJECT_STORE_SPECIAL_KEYS,
    ),
}
_NAME_FIELD: Final = {"stream": "name", "kv": "bucket", "object_store": "bucket"}


def split_documents(source: Source, data: bytes, findings: Findings) -> Iterator[Node]:
    """Yield each document of a YAML stream, with the lines of the whole file.

    A line that begins with `---` separates documents.
    """
    lines = data.decode("utf-8-sig", "replace").split("\n")
    starts = [number for number, line in enumerate(lines) if _DOCUMENT_SEPARATOR.match(line)]
    for begin, end in zip([-1, *starts], [*starts, len(lines)], strict=True):
        text = "\n".join(lines[begin + 1 : end])
        if text.strip():
            part = replace(source, lines_before=begin + 1)
            found = parse_document(part, text.encode(), findings)
            if found is not None:
                yield from _list_items(found)


def _list_items(node: Node) -> Iterator[Node]:
    """Yield the members of a `List`, or the document itself."""
    items = node.get("items")
    if (
        items is not None
        and isinstance(items.value, list)
        and str(node.get_value("kind")).endswith("List")
    ):
        yield from items.value
    else:
        yield node


def convert_nack(found: Sequence[Node], *, control_loop: bool | None = None) -> Conversion:
    """Convert all custom resources of the documents.

    `control_loop` is the mode of the controller; None guesses it from the resources.
    """
    out = Conversion()
    ours = [
        node
        for node in found
        if isinstance(node.value, dict) and str(node.get_value("apiVersion")).startswith(GROUP)
    ]
    loop = _uses_control_loop(ours) if control_loop is None else control_loop
    for node in ours:
        kind = node.get_value("kind")
        spec = node.get("spec")
        if spec is None or not isinstance(spec.value, dict):
            out.general_notes.unreadable(
                node, f"{kind} has no `spec`", "Give the whole resource, as kubectl has it."
            )
        elif kind == "Account":
            _read_account(node, spec, out)
        elif kind in _KINDS:
            _read_resource(
                _ResourceReader(
                    out,
                    node,
                    spec,
                    *_KINDS[str(kind)],
                    is_mode_given=control_loop is not None,
                    control_loop=loop,
                )
            )
        else:
            out.general_notes.not_converted(
                node,
                f"{kind} {_resource_name(node)} is not carried over",
                _UNSUPPORTED_KINDS.get(str(kind), "jsplan has no such thing."),
            )
    add_missing_accounts(out)
    return out


def _read_account(node: Node, spec: Node, out: Conversion) -> None:
    try:
        convert_account(node, spec, out)
    except BadValue as error:
        out.general_notes.unreadable(
            spec, f"{_resource_name(node)}: {error}", "Correct the value, or take it out."
        )


def _read_resource(reader: _ResourceReader) -> None:
    try:
        reader.read()
    except BadValue as error:
        reader.out.general_notes.unreadable(
            reader.spec,
            f"{_resource_name(reader.node)}: {error}",
            "Correct the value, or take it out.",
        )


_UNSUPPORTED_KINDS: Final = {
    "StreamTemplate": "Servers have no stream templates since 2.14: write the streams that it made."
}


def _uses_control_loop(nodes: Sequence[Node]) -> bool:
    """Guess the mode: buckets, finalizers and annotations exist in control-loop mode only."""

    def marked(node: Node) -> bool:
        meta = node.get("metadata")
        finalizers, annotations = (
            (meta.get("finalizers"), meta.get("annotations")) if meta else (None, None)
        )
        ends = (
            [str(item.value) for item in finalizers.value or ()]
            if finalizers and isinstance(finalizers.value, list)
            else []
        )
        keys = (
            list(annotations.value) if annotations and isinstance(annotations.value, dict) else []
        )
        return any(end.endswith(".nats.io/finalizer") for end in ends) or any(
            "nats.io/" in key and "state" in key for key in keys
        )

    return any(
        node.get_value("kind") in ("KeyValue", "ObjectStore") or marked(node) for node in nodes
    )


def _resource_name(node: Node) -> str:
    meta = node.get("metadata")
    return str(meta.get_value("name")) if meta is not None else "without a name"


class _ResourceReader(Struct):
    """Reads one custom resource into a conversion."""

    out: Conversion
    node: Node
    spec: Node
    kind: Kind
    field_map: FieldMap
    special_keys: tuple[str, ...]
    is_mode_given: bool
    control_loop: bool

    def read(self) -> None:
        """Add the resource, with its notes."""
        name = self._read_name()
        owner = Owner(
            str(self.spec.get_value("account") or DEFAULT_CONNECTION),
            self.spec.get_value("jsDomain") or None,
        )
        if name is None:
            return
        notes = self.out.notes_about(self.kind, name, owner)
        read_inline_connection(self.spec, owner.connection, self.out, notes)
        config = convert_fields(
            self.spec,
            self.field_map,
            notes,
            special_keys=(
                *self.special_keys,
                *nack_fields.CONNECTION_KEYS,
                *nack_fields.GUARD_KEYS,
            ),
        )
        config |= self._read_nested(notes)
        {"stream": self._read_stream, "consumer": self._read_consumer}.get(
            self.kind, lambda _, __: None
        )(config, notes)
        resource = ConvertedResource(
            self.kind,
            name,
            config,
            self.node.place,
            owner,
            has_bucket_fields=self.kind in ("kv", "object_store"),
        )
        self.out.resources.append(replace(resource, settings=self._read_guards(notes)))

    def _read_name(self) -> str | None:
        if self.kind == "consumer":
            stream, own = (
                self.spec.get_value("streamName"),
                self.spec.get_value("durableName") or self.spec.get_value("name"),
            )
            if stream and own:
                return f"{stream}/{own}"
            what = "`streamName`" if own else "`durableName` or `name`"
        else:
            own = self.spec.get_value(_NAME_FIELD[self.kind])
            if own:
                return str(own)
            what = f"`{_NAME_FIELD[self.kind]}`"
        self.out.general_notes.unreadable(
            self.spec, f"{_resource_name(self.node)} has no {what}", "The controller needs it too."
        )
        return None

    # --- keys that map to several fields ----------------------------------------------------------

    def _read_nested(self, notes: NoteWriter) -> dict[str, Any]:
        tables = {
            "placement": nack_fields.PLACEMENT,
            "republish": nack_fields.REPUBLISH,
            "subjectTransform": nack_fields.TRANSFORM,
            "consumerLimits": nack_fields.LIMITS,
        }
        names = {"subjectTransform": "subject_transform", "consumerLimits": "consumer_limits"}
        out: dict[str, Any] = {}
        for word in self.special_keys:
            node = self.spec.get(word)
            if node is None or not node.value:
                continue
            if word == "sources":
                out["sources"] = [_read_origin(item, notes) for item in read_items(node)]
            elif word == "mirror":
                out["mirror"] = _read_origin(node, notes)
            elif word in tables:
                out[names.get(word, word)] = convert_fields(node, tables[word], notes)
        return out

    def _read_stream(self, config: dict[str, Any], notes: NoteWriter) -> None:
        if self.spec.get_value("storage") is None:
            notes.different_default(
                self.node,
                "storage: memory is NACK's default; the server's is file",
                "It is written out, because the stream has it.",
            )
        if "max_age" not in config:
            self._set_max_age(config, notes)
        if config.get("discard_new_per_subject"):
            config["discard"] = "new"

    def _set_max_age(self, config: dict[str, Any], notes: NoteWriter) -> None:
        """Set `max_age`: the library of the control loop uses a year, the other mode sends none."""
        how = (
            ""
            if self.is_mode_given
            else " (--control-loop and --no-control-loop say how your controller runs)"
        )
        if self.control_loop:
            config["max_age"] = nack_fields.CONTROL_LOOP_AGE
            notes.different_default(
                self.node,
                "max_age: 1y is what NACK's control loop makes of no `maxAge`;"
                " the server's default is no limit",
                f"It is written out{how}.",
            )
        elif not self.is_mode_given:
            notes.info(
                self.node,
                "no `maxAge`: unlimited in NACK's default mode, one year with its control loop",
                f"It is left unlimited{how}.",
            )

    def _read_consumer(self, config: dict[str, Any], notes: NoteWriter) -> None:
        config.setdefault("name", config.get("durable_name"))
        if config.get("backoff"):
            config.pop("ack_wait", None)
        elif self.spec.get_value("ackWait") is None:
            acked = config["ack_policy"] != "none"
            server = (
                "the server's is 30s" if acked else "the server has none without acknowledgements"
            )
            effect = (
                "Every message is delivered again at once; you will want another."
                if acked
                else "It has no effect there."
            )
            notes.different_default(
                self.node,
                f"ack_wait: 1ns is NACK's default; {server}",
                f"It is written out, because the consumer has it. {effect}",
            )
        if len(config.get("filter_subjects") or ()) == 1:
            config["filter_subject"] = config.pop("filter_subjects")[0]
        if config.get("priority_policy") in ("pinned", "pinned_client"):
            config["priority_policy"] = "pinned_client"
            config.setdefault("priority_timeout", 300_000_000_000)

    def _read_guards(self, notes: NoteWriter) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        prevent = {word: self.spec.get(word) for word in nack_fields.GUARD_KEYS}
        if prevent["preventDelete"] is not None and flag(prevent["preventDelete"]):
            settings = {"lifecycle": {"prevent_destroy": True}}
        guard = prevent["preventUpdate"]
        if guard is not None and flag(guard):
            notes.not_converted(
                guard,
                "preventUpdate is not carried over",
                "Name what may differ in `lifecycle: {ignore_changes: […]}`.",
            )
        return settings


def _read_origin(node: Node, notes: NoteWriter) -> dict[str, Any]:
    out = convert_fields(
        node, nack_fields.ORIGIN, notes, special_keys=nack_fields.ORIGIN_SPECIAL_KEYS
    )
    given = out.get("consumer")
    if isinstance(given, dict):
        out["consumer"] = {
            "name": given.get("name"),
            "deliver_subject": given.get("deliverSubject"),
        }
    transforms = node.get("subjectTransforms")
    if transforms is not None and transforms.value:
        out["subject_transforms"] = [
            convert_fields(item, nack_fields.TRANSFORM, notes) for item in read_items(transforms)
        ]
    api, deliver = (node.get_value(word) for word in ("externalApiPrefix", "externalDeliverPrefix"))
    if api or deliver:
        out["external"] = {"api": api or ""} | ({"deliver": deliver} if deliver else {})
    return out
