"""Parses the servers' advisories: what changed, and who did it. Pure.

`STREAM.*` and `CONSUMER.*` advisories name the object that was created, changed or deleted, but not
the client. The update of a consumer has no advisory: only the audit of the API
(`$JS.EVENT.ADVISORY.API`) reports it, and only the audit names the client. Behind a leafnode it
names the link, not the client (facts, section 7).
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson
from msgspec import Struct

from jsplan.documents.alert import Actor
from jsplan.resources.nested import NAME

SUBJECTS: Final = (
    "$JS.EVENT.ADVISORY.STREAM.>",
    "$JS.EVENT.ADVISORY.CONSUMER.>",
    "$JS.EVENT.ADVISORY.API",
)
_NAME: Final = re.compile(NAME)
_AUDIT: Final = "$JS.EVENT.ADVISORY.API"
_API: Final = "$JS.API."
_AUDITED_REQUEST: Final = b'"subject":"$JS.API.'
#: Verbs that change a stream or consumer, after `$JS.API.`.
_STREAM_VERBS: Final = ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.RESTORE")
_CONSUMER_VERBS: Final = (
    "CONSUMER.CREATE",
    "CONSUMER.DELETE",
    "CONSUMER.PAUSE",
    "CONSUMER.RESET",
    "CONSUMER.UNPIN",
)
_CHANGING_VERBS: Final = tuple(
    verb.encode() for verb in (*_STREAM_VERBS, *_CONSUMER_VERBS, "CONSUMER.DURABLE.CREATE")
)
#: Kinds of stream and consumer advisories that are not about configuration.
_IGNORED_ADVISORIES: Final = (
    "LEADER_ELECTED",
    "QUORUM_LOST",
    "SNAPSHOT_CREATE",
    "SNAPSHOT_COMPLETE",
    "RESTORE_CREATE",
    "BATCH_ABANDONED",
)


class AdvisoryEvent(Struct, frozen=True):
    """A stream or consumer that may have changed. `js_domain` is empty for a server without."""

    js_domain: str
    stream: str
    consumer: str = ""
    actor: Actor | None = None


def parse_advisory(subject: str, data: bytes) -> AdvisoryEvent | None:
    """Parse an advisory. None if nothing changed, such as for an audit of reads or refusals."""
    if subject == _AUDIT:
        at = data.find(_AUDITED_REQUEST)
        return (
            _parse_audit(data)
            if at >= 0 and data.startswith(_CHANGING_VERBS, at + len(_AUDITED_REQUEST))
            else None
        )
    words = subject.split(".")
    if len(words) < 6 or words[4] in _IGNORED_ADVISORIES:
        return None
    document = _parse_object(data)
    return _build_event(document, document.get("stream"), document.get("consumer") or "", None)


def _build_event(
    document: dict[str, Any], stream: object, consumer: object, actor: Actor | None
) -> AdvisoryEvent | None:
    """Build the event. None for invalid names: other clients may publish on these subjects."""
    named = (stream, consumer) if consumer else (stream,)
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in named):
        return None
    return AdvisoryEvent(str(document.get("domain") or ""), str(stream), str(consumer), actor)


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _parse_audit(data: bytes) -> AdvisoryEvent | None:
    document = _parse_object(data)
    tokens = str(document.get("subject", "")).removeprefix(_API).split(".")
    if tokens[1:2] == ["DURABLE"]:
        del tokens[1]
    answer = _parse_object(str(document.get("response") or "").encode())
    if len(tokens) < 3 or "error" in answer:
        return None
    consumer = ""
    if tokens[0] == "CONSUMER":
        consumer = tokens[3] if len(tokens) > 3 else str(answer.get("name") or "")
        if not consumer:
            return None
    client = document.get("client")
    return _build_event(
        document, tokens[2], consumer, _parse_actor(client if isinstance(client, dict) else {})
    )


def _parse_actor(client: dict[str, Any]) -> Actor:
    user, name, host, account = (
        str(client.get(key) or "") for key in ("user", "name", "host", "acc")
    )
    return Actor(user, name, host, account, client.get("kind") == "Leafnode")
