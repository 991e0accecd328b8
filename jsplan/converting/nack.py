"""NACK's custom resources: Stream, Consumer, KeyValue, ObjectStore and Account, also as `kubectl get -o yaml` prints them.

Their words and defaults are in `nack_words`; finding the files is left to `workflows.converting`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from jsplan.address import Kind
from jsplan.config.findings import Findings
from jsplan.config.node import Node, Source
from jsplan.config.read import parse
from jsplan.converting import nack_words as words
from jsplan.converting.model import MAIN, Conversion, Owner, Resource, Teller
from jsplan.converting.nack_accounts import account, missing_accounts, own_connection
from jsplan.converting.words import BadValue, Words, convert, flag, members

GROUP: Final = "jetstream.nats.io/"
_MARK: Final = re.compile(r"---\s*(#.*)?$")
_KINDS: Final[dict[str, tuple[Kind, Words, tuple[str, ...]]]] = {
    "Stream": ("stream", words.STREAM, words.STREAM_ELSEWHERE),
    "Consumer": ("consumer", words.CONSUMER, words.CONSUMER_ELSEWHERE),
    "KeyValue": ("kv", words.KEY_VALUE, words.KEY_VALUE_ELSEWHERE),
    "ObjectStore": ("object_store", words.OBJECT_STORE, words.OBJECT_STORE_ELSEWHERE),
}
_NAMED_BY: Final = {"stream": "name", "kv": "bucket", "object_store": "bucket"}


def documents(source: Source, data: bytes, findings: Findings) -> Iterator[Node]:
    """Each document of a YAML stream, with the lines of the whole file; `---` at the start of a line parts them."""
    lines = data.decode("utf-8-sig", "replace").split("\n")
    starts = [number for number, line in enumerate(lines) if _MARK.match(line)]
    for begin, end in zip([-1, *starts], [*starts, len(lines)], strict=True):
        text = "\n" * (begin + 1) + "\n".join(lines[begin + 1 : end])
        if text.strip():
            found = parse(source, text.encode(), findings)
            if found is not None:
                yield from _items(found)


def _items(node: Node) -> Iterator[Node]:
    """The members of a `List`, or the document itself."""
    items = node.get("items")
    if items is not None and isinstance(items.value, list) and str(_value(node, "kind")).endswith("List"):
        yield from items.value
    else:
        yield node


def convert_nack(found: Sequence[Node], *, control_loop: bool | None = None) -> Conversion:
    """All custom resources of the documents. `control_loop`: how the controller runs; None guesses it from what is there."""
    out = Conversion()
    ours = [node for node in found if isinstance(node.value, dict) and str(_value(node, "apiVersion")).startswith(GROUP)]
    loop = _runs_a_loop(ours) if control_loop is None else control_loop
    for node in ours:
        kind = _value(node, "kind")
        spec = node.get("spec")
        if spec is None or not isinstance(spec.value, dict):
            out.general.unreadable(node, f"{kind} has no `spec`", "Give the whole resource, as kubectl has it.")
        elif kind == "Account":
            _account(node, spec, out)
        elif kind in _KINDS:
            _read(_Reader(out, node, spec, *_KINDS[str(kind)], told=control_loop is not None, loop=loop))
        else:
            out.general.lost(node, f"{kind} {_called(node)} is not carried over", _OTHERS.get(str(kind), "jsplan has no such thing."))
    missing_accounts(out)
    return out


def _account(node: Node, spec: Node, out: Conversion) -> None:
    try:
        account(node, spec, out)
    except BadValue as error:
        out.general.unreadable(spec, f"{_called(node)}: {error}", "Correct the value, or take it out.")


def _read(reader: _Reader) -> None:
    try:
        reader.read()
    except BadValue as error:
        reader.out.general.unreadable(reader.spec, f"{_called(reader.node)}: {error}", "Correct the value, or take it out.")


_OTHERS: Final = {"StreamTemplate": "Servers have had no stream templates since 2.14: write the streams that it made."}


def _runs_a_loop(nodes: Sequence[Node]) -> bool:
    """Buckets exist in control-loop mode only, and so do its finalizers and the state that it keeps in annotations."""

    def marked(node: Node) -> bool:
        meta = node.get("metadata")
        finalizers, annotations = (meta.get("finalizers"), meta.get("annotations")) if meta else (None, None)
        ends = [str(item.value) for item in finalizers.value or ()] if finalizers and isinstance(finalizers.value, list) else []
        keys = list(annotations.value) if annotations and isinstance(annotations.value, dict) else []
        return any(end.endswith(".nats.io/finalizer") for end in ends) or any("nats.io/" in key and "state" in key for key in keys)

    return any(_value(node, "kind") in ("KeyValue", "ObjectStore") or marked(node) for node in nodes)


def _value(node: Node, key: str) -> Any:
    found = node.get(key)
    return found.value if found is not None else None


def _called(node: Node) -> str:
    meta = node.get("metadata")
    return str(_value(meta, "name")) if meta is not None else "without a name"


@dataclass(slots=True)
class _Reader:
    """Reads one custom resource into a conversion."""

    out: Conversion
    node: Node
    spec: Node
    kind: Kind
    words: Words
    elsewhere: tuple[str, ...]
    told: bool
    loop: bool

    def read(self) -> None:
        """Add the resource, with its notes."""
        name = self._name()
        owner = Owner(str(_value(self.spec, "account") or MAIN), _value(self.spec, "jsDomain") or None)
        if name is None:
            return
        tell = self.out.teller(self.kind, name, owner)
        own_connection(self.spec, owner.connection, self.out, tell)
        config = convert(self.spec, self.words, tell, elsewhere=(*self.elsewhere, *words.CONNECTION, *words.GUARDS))
        config |= self._nested(tell)
        {"stream": self._stream, "consumer": self._consumer}.get(self.kind, lambda _, __: None)(config, tell)
        made = Resource(self.kind, name, config, self.node.place, owner, words=self.kind in ("kv", "object_store"))
        self.out.resources.append(replace(made, settings=self._guards(tell)))

    def _name(self) -> str | None:
        if self.kind == "consumer":
            stream, own = _value(self.spec, "streamName"), _value(self.spec, "durableName") or _value(self.spec, "name")
            if stream and own:
                return f"{stream}/{own}"
            what = "`streamName`" if own else "`durableName` or `name`"
        else:
            own = _value(self.spec, _NAMED_BY[self.kind])
            if own:
                return str(own)
            what = f"`{_NAMED_BY[self.kind]}`"
        self.out.general.unreadable(self.spec, f"{_called(self.node)} has no {what}", "The controller needs it too.")
        return None

    # --- what several words say ------------------------------------------------------------------------------

    def _nested(self, tell: Teller) -> dict[str, Any]:
        tables = {
            "placement": words.PLACEMENT, "republish": words.REPUBLISH, "subjectTransform": words.TRANSFORM, "consumerLimits": words.LIMITS,
        }  # fmt: skip
        names = {"subjectTransform": "subject_transform", "consumerLimits": "consumer_limits"}
        out: dict[str, Any] = {}
        for word in self.elsewhere:
            node = self.spec.get(word)
            if node is None or not node.value:
                continue
            if word == "sources":
                out["sources"] = [_origin(item, tell) for item in members(node)]
            elif word == "mirror":
                out["mirror"] = _origin(node, tell)
            elif word in tables:
                out[names.get(word, word)] = convert(node, tables[word], tell)
        return out

    def _stream(self, config: dict[str, Any], tell: Teller) -> None:
        if _value(self.spec, "storage") is None:
            tell.differs(self.node, "storage: memory is NACK's default; the server's is file", "It is written out, as the stream has it.")
        if "max_age" not in config:
            self._age(config, tell)
        if config.get("discard_new_per_subject"):
            config["discard"] = "new"

    def _age(self, config: dict[str, Any], tell: Teller) -> None:
        """The library that the control loop uses begins with a year; the other mode sends the empty `maxAge` as it is."""
        how = "" if self.told else " (--control-loop and --no-control-loop say how your controller runs)"
        if self.loop:
            config["max_age"] = words.CONTROL_LOOP_AGE
            tell.differs(
                self.node,
                "max_age: 1y is what NACK's control loop makes of no `maxAge`; the server keeps for ever",
                f"It is written out{how}.",
            )
        elif not self.told:
            tell.knows(
                self.node, "no `maxAge`: unlimited in NACK's default mode, one year with its control loop", f"It is left unlimited{how}."
            )

    def _consumer(self, config: dict[str, Any], tell: Teller) -> None:
        config.setdefault("name", config.get("durable_name"))
        if config.get("backoff"):
            config.pop("ack_wait", None)
        elif _value(self.spec, "ackWait") is None:
            acked = config["ack_policy"] != "none"
            server = "the server's is 30s" if acked else "the server has none without acknowledgements"
            effect = "Every message is delivered again at once; you will want another." if acked else "It has no effect there."
            tell.differs(self.node, f"ack_wait: 1ns is NACK's default; {server}", f"It is written out, as the consumer has it. {effect}")
        if len(config.get("filter_subjects") or ()) == 1:
            config["filter_subject"] = config.pop("filter_subjects")[0]
        if config.get("priority_policy") in ("pinned", "pinned_client"):
            config["priority_policy"] = "pinned_client"
            config.setdefault("priority_timeout", 300_000_000_000)

    def _guards(self, tell: Teller) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        prevent = {word: self.spec.get(word) for word in words.GUARDS}
        if prevent["preventDelete"] is not None and flag(prevent["preventDelete"]):
            settings = {"lifecycle": {"prevent_destroy": True}}
        frozen = prevent["preventUpdate"]
        if frozen is not None and flag(frozen):
            tell.lost(frozen, "preventUpdate is not carried over", "Name what may differ in `lifecycle: {ignore_changes: […]}`.")
        return settings


def _origin(node: Node, tell: Teller) -> dict[str, Any]:
    out = convert(node, words.ORIGIN, tell, elsewhere=words.ORIGIN_ELSEWHERE)
    given = out.get("consumer")
    if isinstance(given, dict):
        out["consumer"] = {"name": given.get("name"), "deliver_subject": given.get("deliverSubject")}
    transforms = node.get("subjectTransforms")
    if transforms is not None and transforms.value:
        out["subject_transforms"] = [convert(item, words.TRANSFORM, tell) for item in members(transforms)]
    api, deliver = (_value(node, word) for word in ("externalApiPrefix", "externalDeliverPrefix"))
    if api or deliver:
        out["external"] = {"api": api or ""} | ({"deliver": deliver} if deliver else {})
    return out
