"""`drift:`, `lint:` and `ownership:`."""

from __future__ import annotations

from typing import Final

from jsplan.config.node import Node
from jsplan.config.schema_parts import any_of, list_of, map_of, ref
from jsplan.config.sections import (
    ADDRESS,
    DATE,
    DOMAIN,
    FLAG,
    PATH,
    TEXT,
    TEXTS,
    Key,
    Reading,
    Section,
    choice,
    mapping,
    written,
    written_list,
)


def _check_publishable(subject: str, node: Node, reading: Reading) -> None:
    """Check whether a subject can take notifications: the server's own subjects cannot."""
    if (
        subject.startswith(("$", "_INBOX."))
        or any(token in ("", "*", ">") for token in subject.split("."))
        or " " in subject
    ):
        text = f'nothing can be reported on subject "{subject}"'
        detail = "Use a subject of your own without wildcards, such as ops.drift. Subjects that begin with $ belong to the server."
        reading.findings.error("JS130", node, text, detail)


#: The level of a finding in `lint:`.
LEVEL: Final = choice("ignore", "warning", "error")

MUTE: Final = Section("drift.mute", "a mute", (
    Key("address", ADDRESS, "What is muted: an address, or a glob.", required=True),
    Key("reason", TEXT, "Why.", required=True),
    Key("owner", TEXT, "Who knows about it.", required=True),
    Key("until", DATE, "The last day, as in `2026-12-31`."),
    Key("fields", TEXTS, "Only drift of these fields; without it, all.", default=()),
))  # fmt: skip
WEBHOOK: Final = Section("drift.webhook", "a webhook", (
    Key("url", TEXT, "`https://HOST/PATH`; it is kept secret.", required=True),
    Key("headers", written("mapping", map_of({"type": "string"})), "Headers by name, such as `Authorization`; their values are kept secret."),
    Key("format", choice("chat", "json", "cloudevents"), "`chat` is a text for Slack and others, `json` the whole notification, `cloudevents` that as a CloudEvent.", default="chat"),
))  # fmt: skip
SINK_WEBHOOK: Final = Section("drift.sink.webhook", "a sink", (
    Key("webhook", mapping(WEBHOOK), "Where to POST notifications."),
), one_of=("webhook",))  # fmt: skip
SINK_SUBJECT: Final = Section("drift.sink.subject", "a sink", (
    Key("subject", TEXT, "The subject to publish them on.", required=True, check=_check_publishable),
    Key("domain", DOMAIN, "The domain over whose connection to publish."),
))  # fmt: skip
SINK_FILE: Final = Section("drift.sink.file", "a sink", (
    Key("file", PATH, "The file to append them to, one a line.", required=True),
))  # fmt: skip
#: The tables of sinks by the key that one of them has.
SINKS: Final = {"webhook": SINK_WEBHOOK, "subject": SINK_SUBJECT, "file": SINK_FILE}
_SINKS: Final = written(
    "list", list_of(any_of(*(ref(sink.id) for sink in SINKS.values()))), *SINKS.values()
)
DRIFT: Final = Section("drift", "`drift`", (
    Key("ignore", written("list of addresses", list_of(ref("address"))), "Addresses and globs that are neither drift nor unmanaged."),
    Key("mute", written_list(MUTE), "Known drift that is not reported, until a day."),
    Key("sinks", _SINKS, "Who is [informed of drift](../how-to/drift-watch.md)."),
    Key("watermarks", PATH, "The file in which drift remembers [how far each stream was](../how-to/status.md#lost-messages-missed-messages-pauses)."),
), nullable=True)  # fmt: skip
OWNERSHIP: Final = Section("ownership", "`ownership`", (
    Key("marker", FLAG, "Write an owner into metadata, so that two workspaces cannot fight.", default=False),
), label="`ownership.{key}`", nullable=True)  # fmt: skip
