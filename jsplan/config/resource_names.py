"""Names of resources: how an entry gives them, and which are not allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from jsplan.address import STAGING_PREFIX, Address, Kind
from jsplan.config import parsing
from jsplan.config.files import NAME_KEYS
from jsplan.config.findings import Findings, is_placeholder
from jsplan.config.node import Node

_STREAM_NAME: Final = re.compile(r"[^.*>\s/\\]{1,255}")
_BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,240}")


def read_stream_name(entry: Node, findings: Findings) -> str | None:
    """Read the stream of a consumer that is declared outside of it; None after a finding."""
    name = parsing.read_required_text(entry, "stream", "a consumer outside of a stream", findings)
    if name is not None and not _STREAM_NAME.fullmatch(name):
        _report_bad_name(entry.value["stream"], name, findings)
        return None
    return name


def _report_bad_name(node: Node, name: str, findings: Findings) -> None:
    hint = "A name has no dots, blanks, wildcards or slashes, and at most 255 characters."
    findings.error("JS131", node, f'"{name}" is not a name', hint)


def read_name(kind: Kind, entry: Node, findings: Findings) -> Node | None:
    """Read the name of an entry; None after a finding."""
    key = NAME_KEYS[kind]
    node = entry.get(key)
    if kind == "consumer" and (node is None or node.value is None):
        node = entry.get("durable_name")
    if node is None or node.value is None:
        what = kind.replace("_", " ")
        findings.missing(entry, key, f"{'an' if what[0] == 'o' else 'a'} {what}")
        return None
    if not isinstance(node.value, str):
        text = f"{key} must be text, not the number {node.raw}"
        findings.error("JS130", node, text, f'Put it in quotes: "{node.raw}".')
        return None
    pattern = _BUCKET_NAME if key == "bucket" else _STREAM_NAME
    if not pattern.fullmatch(node.value):
        if key == "bucket":
            text = f'"{node.value}" is not a name for a bucket'
            findings.error("JS131", node, text, "Use letters, digits, - and _.")
        else:
            _report_bad_name(node, node.value, findings)
        return None
    return node


def is_name_allowed(kind: Kind, name: str, node: Node, findings: Findings) -> bool:
    """Return True if an entry may have the name: it belongs to no bucket, server or jsplan."""
    if kind == "stream" and name.startswith(("KV_", "OBJ_")):
        section, bucket = (
            ("kv", name[3:]) if name.startswith("KV_") else ("object_stores", name[4:])
        )
        text = f"{name} is the stream of a bucket"
        findings.error("JS132", node, text, f"Declare it under `{section}:` with bucket: {bucket}.")
        return False
    reserved = (
        ("$MQTT_", STAGING_PREFIX)
        if kind == "stream"
        else ("JS_SRC_", "JS_MIRROR_", STAGING_PREFIX)
        if kind == "consumer"
        else ()
    )
    if reserved and name.startswith(reserved):
        text = f"{name} belongs to {'jsplan' if name.startswith(STAGING_PREFIX) else 'the server'}"
        hint = "Its owner creates and removes it. Choose another name."
        findings.error("JS133", node, text, hint)
        return False
    return True


def may_be_declared(wanted: str, declared: Iterable[Address], own: Address | None = None) -> bool:
    """Check whether a resource whose domain or name has a finding may be the one that is wanted."""
    kind = wanted.split("/")[1:2]
    return any(a != own and [a.kind] == kind and is_placeholder(str(a)) for a in declared)


def set_consumer_names(
    parsed: dict[str, Any], entry: Node, name: Node, findings: Findings, *, from_file: bool
) -> None:
    """Derive `durable_name` from `name` and the other way round.

    A null `durable_name` needs a threshold.
    """
    parsed["name"] = name.value
    if is_placeholder(name.value):
        return
    durable = parsed.get("durable_name")
    if durable is not None and durable != name.value:
        at = entry.get("durable_name") or name
        text = f'the consumer has two names, "{name.value}" and "{durable}" (10017)'
        findings.error("JS134", at, text, "Keep one; the other follows.")
    elif from_file:
        return
    elif "durable_name" not in parsed:
        parsed["durable_name"] = name.value
    elif durable is None and not parsed.get("inactive_threshold"):
        detail = (
            "Add inactive_threshold: 1h (deleted after so long without a client),"
            " or remove `durable_name: null`."
        )
        text = f"consumer {name.value} may expire, and has no inactive_threshold"
        findings.error("JS134", entry.get("durable_name") or name, text, detail)
