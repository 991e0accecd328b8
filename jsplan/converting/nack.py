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
from jsplan.config.node import Node, Source, to_plain
from jsplan.config.read import parse_document
from jsplan.converting.field_map import FieldMap, join_server_urls, settle_consumer, use_variable
from jsplan.converting.model import (
    DEFAULT_CONNECTION,
    Conversion,
    ConvertedResource,
    NoteWriter,
    Owner,
)
from jsplan.resources import TABLES
from jsplan.units import DURATIONS

GROUP: Final = "jetstream.nats.io/"
_DOCUMENT_SEPARATOR: Final = re.compile(r"---\s*(#.*)?$")
#: Each kind, with ours and the keys that name it.
_KINDS: Final[dict[str, tuple[Kind, tuple[str, ...]]]] = {
    "Stream": ("stream", ("name",)), "Consumer": ("consumer", ("streamName", "durableName")),
    "KeyValue": ("kv", ("bucket",)), "ObjectStore": ("object_store", ("bucket",)),
}  # fmt: skip
#: What exists in control-loop mode only: finalizers and annotations.
_SIGN: Final = re.compile(r"nats\.io/(finalizer|[\w.-]*state)")
_FIELDS: Final = FieldMap(
    {
        "stream": {
            "discardPerSubject": "discard_new_per_subject", "firstSequence": "first_seq",
            "allowRollup": "allow_rollup_hdrs", "allowAtomicPublish": "allow_atomic",
        },
        "consumer": {
            "maxRequestBatch": "max_batch", "maxRequestExpires": "max_expires",
            "maxRequestMaxBytes": "max_bytes", "heartbeatInterval": "idle_heartbeat",
            "pinnedTtl": "priority_timeout",
        },
        "stream_source": {
            "externalApiPrefix": "external.api", "externalDeliverPrefix": "external.deliver",
        },
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
    has_loop = any(map(_is_of_control_loop, ours)) or None
    loop = control_loop if control_loop is not None else has_loop
    for node in ours:
        kind, spec = str(node.get_value("kind")), node.get("spec")
        if spec is None or not isinstance(spec.value, dict):
            out.general_notes.unreadable(node, f"{kind} has no `spec`", _CORRECT)
        elif kind == "Account":
            convert_account(node, spec, out)
        elif kind in _KINDS:
            _convert_resource(node, spec, loop, out)
        else:
            advice = "jsplan has no such thing. Of a template, convert the streams that it made."
            what = f"{kind} {_label(node)} is not carried over"
            out.general_notes.not_converted(node, what, advice)
    add_missing_accounts(out)


def _is_of_control_loop(node: Node) -> bool:
    meta = node.get("metadata")
    is_bucket = node.get_value("kind") in ("KeyValue", "ObjectStore")
    return is_bucket or (meta is not None and _SIGN.search(str(to_plain(meta))) is not None)


def _label(node: Node) -> str:
    meta = node.get("metadata")
    return str(meta.get_value("name")) if meta is not None else "without a name"


def _convert_resource(node: Node, spec: Node, loop: bool | None, out: Conversion) -> None:
    """Add one resource, with its notes."""
    kind, words = _KINDS[str(node.get_value("kind"))]
    names = {word: spec.get_value(word) for word in words}
    if "durableName" in names:
        names["durableName"] = names["durableName"] or spec.get_value("name")
    for word, value in names.items():
        if not value or not isinstance(value, str | int):
            out.general_notes.unreadable(spec, f"{_label(node)} has no `{word}`", _CORRECT)
            return
    name = "/".join(map(str, names.values()))
    account, js_domain = (str(spec.get_value(word) or "") for word in ("account", "jsDomain"))
    owner = Owner(account or DEFAULT_CONNECTION, js_domain or None)
    notes = out.notes_about(kind, name, owner)
    read_inline_connection(spec, owner.connection, out, notes)
    config = _FIELDS.read(TABLES[kind], spec, notes, _SKIPPED)
    if kind == "stream":
        _settle_stream(node, config, notes, loop)
    elif kind == "consumer":
        _settle_consumer(node, config, notes)
    settings: dict[str, Any] = {}
    if spec.get_value("preventDelete") is True:
        settings["lifecycle"] = {"prevent_destroy": True}
    if spec.get_value("preventUpdate") is True:
        advice = "Name what may differ in `lifecycle: {ignore_changes: […]}`."
        notes.not_converted(
            spec.value["preventUpdate"], "preventUpdate is not carried over", advice
        )
    out.resources.append(ConvertedResource(kind, name, config, node.place, owner, settings))


# --- defaults of the CRDs, the controller and its client ------------------------------------------


def _settle_stream(
    node: Node, config: dict[str, Any], notes: NoteWriter, loop: bool | None
) -> None:
    """Set what the controller sends; the client of the control loop makes no `maxAge` a year."""
    if "storage" not in config:
        config["storage"] = "memory"
        what = "storage: memory is NACK's default; the server's is file"
        notes.different_default(node, what, "It is written out, because the stream has it.")
    if config.get("discard_new_per_subject"):
        config["discard"] = "new"
    how = "--control-loop and --no-control-loop say how your controller runs."
    if "max_age" not in config and loop:
        config["max_age"] = DURATIONS["y"]
        what = (
            "max_age: 1y is what NACK's control loop makes of no `maxAge`; the server has no limit"
        )
        notes.different_default(node, what, f"It is written out. {how}")
    elif "max_age" not in config and loop is None:
        what = "no `maxAge`: unlimited in NACK's default mode, one year with its control loop"
        notes.info(node, what, f"It is left unlimited. {how}")


def _settle_consumer(node: Node, config: dict[str, Any], notes: NoteWriter) -> None:
    config.setdefault("name", config.get("durable_name"))
    config.setdefault("ack_policy", "none")
    settle_consumer(config)
    if "backoff" not in config and "ack_wait" not in config:
        config["ack_wait"] = 1
        what = "ack_wait: 1ns is NACK's default; the server's is 30s"
        effect = "Every message is delivered again at once; you will want another."
        if config["ack_policy"] == "none":
            what = "ack_wait: 1ns is NACK's default; the server has none without acknowledgements"
            effect = "It has no effect there."
        advice = f"It is written out, because the consumer has it. {effect}"
        notes.different_default(node, what, advice)
    if config.get("priority_policy") == "pinned_client":
        config.setdefault("priority_timeout", 5 * DURATIONS["m"])


# --- accounts and connection keys; secrets stay where they are ------------------------------------

#: Files of secrets: the key of an account, the key below it that names the file, and the tail.
_FILES = (("creds", "file", "creds"), ("nkey", "seed", "nk"))


def convert_account(node: Node, spec: Node, out: Conversion) -> None:
    """Add a connection under the account's name. Files and variables replace its secrets."""
    name = _read_text(node.get("metadata"), "name") or _read_text(spec, "name")
    notes = out.general_notes
    if not name:
        notes.unreadable(node, "Account has no name", "Give it a `metadata.name`.")
        return
    found = out.connections.setdefault(name, {}) | _read_url(spec, notes)
    for word, file, tail in _FILES:
        if (secret := spec.get(word)) is not None:
            found[word] = f"./{_read_text(secret, file) or f'{name}.{tail}'}"
            _note_secret(name, word, found[word], secret, notes)
    if (user := spec.get("user")) is not None:
        use_variable(found, name, "user", user, notes)
        use_variable(found, name, "password", user, notes)
    if (token := spec.get("token")) is not None:
        use_variable(found, name, "token", token, notes)
    if (tls := spec.get("tls")) is not None:
        words = [word for word in ("ca", "cert", "key") if tls.get(word) is not None]
        files: dict[str, Any] = {word: f"./{_read_text(tls, word)}" for word in words}
        _note_secret(name, "tls", ", ".join(files.values()), tls, notes)
        found["tls"] = files | ({"handshake_first": True} if _read_text(spec, "tlsFirst") else {})
    out.connections[name] = found


def _note_secret(name: str, word: str, files: str, at: Node, notes: NoteWriter) -> None:
    what = f"account {name}: its {word} is a secret in Kubernetes"
    notes.info(at, what, f"Save it beside the workspace: {files}")


def _read_text(node: Node | None, key: str) -> str:
    found = node.get(key) if node is not None else None
    return str(found.value) if found is not None and found.value else ""


def _read_url(spec: Node, notes: NoteWriter) -> dict[str, Any]:
    urls = spec.get("servers")
    if urls is None or not urls.value:
        return {}
    items = urls.value if isinstance(urls.value, list) else [urls]
    return {"url": join_server_urls([str(item.value) for item in items], urls, notes)}


def read_inline_connection(spec: Node, name: str, out: Conversion, notes: NoteWriter) -> None:
    """Read servers and files that a resource names itself; the first such resource wins."""
    given = _read_url(spec, notes)
    given |= {word: found for word in ("creds", "nkey") if (found := _read_text(spec, word))}
    tls = spec.get("tls")
    if tls is not None and tls.value:
        authorities = tls.get_value("rootCas")
        words = (("cert", "clientCert"), ("key", "clientKey"))
        files = {ours: found for ours, word in words if (found := _read_text(tls, word))}
        if isinstance(authorities, list) and authorities:
            files["ca"] = str(authorities[0].value)
        given["tls"] = files
    known = out.connections.setdefault(name, {})
    for word, value in given.items():
        if known.setdefault(word, value) != value:
            what = f"its {word} is not that of connection {name}"
            advice = "Declare a connection and a domain of its own."
            notes.not_converted(spec.key_place(word), what, advice)


def add_missing_accounts(out: Conversion) -> None:
    """Add a connection for every account that a resource names; note those without an Account."""
    for name in dict.fromkeys(resource.owner.connection for resource in out.resources):
        if not out.connections.setdefault(name, {}) and name != DEFAULT_CONNECTION:
            what = f"connection {name}: its Account was not given"
            out.general_notes.info(None, what, "Write its `url` and credentials.")
