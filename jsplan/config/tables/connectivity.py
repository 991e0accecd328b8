"""`connections:`, `domains:`, `imports:` and `backend:`."""

from __future__ import annotations

import re
from typing import Any, Final

from jsplan import units
from jsplan.config.findings import Findings
from jsplan.config.model import LOCK_TTL
from jsplan.config.node import Node
from jsplan.config.parsing import parse_subject_prefix, read_mapping
from jsplan.config.schema_parts import map_of, ref
from jsplan.config.sections import (
    CONTEXT,
    DOMAIN,
    DURATION,
    FILE,
    FLAG,
    TEXT,
    TEXTS,
    Key,
    Reading,
    Section,
    mapping,
    name_check,
    parsed,
    plain,
)

_BUCKET: Final = re.compile(r"[A-Za-z0-9_-]+")
_CONSUMER: Final = re.compile(r"[^.*>\s/]+/[^.*>\s/]+")
_JS_DOMAIN: Final = re.compile(r"[^.*>\s]+")
_UNDER_DOMAINS: Final = "A domain is declared under `domains:`."


def _parse_timeout(value: object) -> int:
    duration = units.parse_duration(value)
    if duration <= 0:
        raise ValueError("must be greater than 0s")
    if duration > 24 * 3600 * units.SECOND:
        raise ValueError("must not be longer than a day")
    return duration


def _parse_lock_ttl(value: object) -> int:
    duration = units.parse_duration(value)
    if duration < units.SECOND:
        raise ValueError("must be a second or longer")
    return duration


def _check_js_domain(name: str, node: Node, reading: Reading) -> None:
    if not _JS_DOMAIN.fullmatch(name):
        text = f'"{name}" is not a JetStream domain'
        hint = "It is one word without dots, blanks and wildcards."
        reading.findings.error("JS121", node, text, hint)


def _check_consumers(names: list[str], node: Node, reading: Reading) -> None:
    for name in names:
        if not _CONSUMER.fullmatch(name):
            text, hint = f'"{name}" is not STREAM/CONSUMER', "Write it as in ORDERS/NEW."
            reading.findings.error("JS143", node, text, hint)


def _read_variables(node: Node | None, label: str, findings: Findings) -> dict[str, Any]:
    return dict(read_mapping(node, label, findings))


_PREFIX: Final = parsed("subject prefix", parse_subject_prefix, ref("text"))
_VARIABLES: Final = plain("mapping", _read_variables, map_of({}))

TLS: Final = Section("tls", "`tls`", (
    Key("ca", FILE, "The file of the authority that signed the server's."),
    Key("cert", FILE, "The file of the client's certificate."),
    Key("key", FILE, "The file of its key."),
    Key("handshake_first", FLAG, "Begin with TLS, before the server says anything.", default=False),
), label="`tls.{key}`", nullable=True)  # fmt: skip
CONNECTION: Final = Section("connection", "a connection", (
    Key("url", TEXT, "`nats://host:4222` or `tls://…`; several with commas."),
    Key("context", CONTEXT, "A [context of the `nats` CLI](contexts.md), instead of `url`."),
    Key("user", TEXT, "One way to log in, with `password`."),
    Key("password", TEXT, "The password of the user."),
    Key("token", TEXT, "One way to log in."),
    Key("creds", FILE, "A file: one way to log in."),
    Key("nkey", FILE, "A file with a seed: one way to log in."),
    Key("tls", mapping(TLS), "With any key of it, or with one `tls://` URL, nothing is sent unencrypted."),
    Key("inbox_prefix", _PREFIX, "Instead of `_INBOX`."),
    Key("timeout", parsed("duration", _parse_timeout, DURATION.schema), "How long a request may take, 5s if left out."),
    Key("account", TEXT, "The name or public key of the account, for `jsplan access`; a user JWT says it itself."),
    Key("operator_key", FILE, "Of one to the system account: a file with a seed of the operator, for [accounts](#accounts)."),
), {
    "credentials": 'Did you mean "creds"?',
    "servers": 'Did you mean "url"? It takes several, separated by commas.',
    "username": 'Did you mean "user"?',
    "pass": 'Did you mean "password"?',
    "nats_context": 'Did you mean "context"?',
    "domain": "A domain is declared under `domains:`, with `connection:`.",
    "js_domain": _UNDER_DOMAINS,
    "jetstream_domain": _UNDER_DOMAINS,
}, nullable=True)  # fmt: skip
DOMAINS: Final = Section("domain", "a domain", (
    Key("connection", TEXT, "The connection that leads to it. May be left out if there is one.", label="`{key}` of {what}"),
    Key("js_domain", TEXT, "The server's own name of the domain, by default the key. Null: a server without a domain.", check=_check_js_domain),
    Key("api_prefix", _PREFIX, "Instead of `$JS.<js_domain>.API`."),
    Key("labels", TEXTS, "For `label:…`.", default=(), label="`{key}` of {what}"),
    Key("vars", _VARIABLES, "The values of `${domain.x}`.", label="`{key}` of {what}"),
    Key("may_be_offline", DURATION, "So long being offline is no error for `drift`."),
    Key("system", TEXT, "A connection to the system account of its servers, by which drift and status compare replicas.", label="`{key}` of {what}"),
    Key("same_as", TEXT, "The domain that this is, over another connection. Never matched by globs or labels.", label="`{key}` of {what}"),
), {
    "domain": 'Did you mean "js_domain"?',
    "label": 'Did you mean "labels"?',
    "url": "A URL belongs to a connection.",
}, nullable=True)  # fmt: skip
IMPORT: Final = Section("import", "an import", (
    Key("from", DOMAIN, "The domain whose JetStream is reached.", required=True),
    Key("into", DOMAIN, "A domain of the account that reaches it.", required=True),
    Key("api", _PREFIX, "What that account calls the other's API, as in `JS.acc@hub.API`.", required=True, missing='Add `api:`, the prefix under which the importing account sees it, as in "JS.acc@hub.API".'),
    Key("deliver", _PREFIX, "The subject below which mirrors and sources deliver, as `<deliver>.<into>.<stream>`, for sources with the origin."),
    Key("consumers", TEXTS, "`STREAM/CONSUMER` of `from` that clients of that account use.", default=(), check=_check_consumers),
))  # fmt: skip
BACKEND_LOCAL: Final = Section("backend.local", "`backend.local`", (
    Key("path", FILE, "The file, relative to `jsplan.yaml`. By default `state/WORKSPACE.json`, with an environment `state/WORKSPACE.ENV.json`."),
), label="`backend.local.{key}`", nullable=True)  # fmt: skip
BACKEND_KV: Final = Section("backend.kv", "`backend.kv`", (
    Key("domain", DOMAIN, "The domain of the bucket, by default `defaults.domain`, or the only one."),
    Key("bucket", TEXT, "The KV bucket. It is created if missing.", required=True, check=name_check(_BUCKET, "a bucket"), label="`{key}`"),
    Key("lock_ttl", parsed("duration", _parse_lock_ttl, DURATION.schema), "How long a lock outlives its holder.", default=LOCK_TTL),
), label="`backend.kv.{key}`")  # fmt: skip
BACKEND: Final = Section("backend", "`backend`", (
    Key("local", mapping(BACKEND_LOCAL), "In a file."),
    Key("kv", mapping(BACKEND_KV), "In a bucket, with the lock."),
), nullable=True)  # fmt: skip
