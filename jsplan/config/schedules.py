"""`schedules:` of a stream: messages that make the server publish others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

from jsplan.address import Kind
from jsplan.config.findings import is_placeholder
from jsplan.config.kv_entries import KvEntryReader, is_secret
from jsplan.config.model import DeclaredResource
from jsplan.config.node import Node, Place
from jsplan.config.sections import Reading
from jsplan.config.tables.resources import MESSAGE_SCHEDULE, SCHEDULE_FIELDS
from jsplan.resources.message_schedule import (
    CRON,
    EVERY,
    RESULT_TTL,
    TARGET,
    TIME_ZONE,
    WHEN,
    check_cron,
    is_schedule_subject,
)
from jsplan.subjects import is_covered
from jsplan.units import SECOND

#: What servers keep in a header, and an address can name.
_SUBJECT_RULE: Final = "It has no blank, none of / * ? and >, and no control character."


class ScheduleReader(KvEntryReader):
    """Collects the schedules of all streams."""

    kind: ClassVar[Kind] = "schedule"
    keys: ClassVar[tuple[str, ...]] = ("schedules",)
    name_hint: ClassVar[str] = f"It is a subject of the stream. {_SUBJECT_RULE}"

    def _warn_about_ttl(self, bucket: DeclaredResource, node: Node) -> None:
        """Give no warning: a stream that deletes its messages by age says so itself."""

    def _read_entry(self, bucket: DeclaredResource, key: str, node: Node, at: Place) -> None:
        findings, what = self.files.findings, f"schedule {key}"
        if not isinstance(node.value, dict):
            findings.wrong_type(node, what, "a mapping")
            return
        values = MESSAGE_SCHEDULE.read(node, Reading(findings), what)
        if values is None:
            return
        fields = {name: values[name] for name in SCHEDULE_FIELDS if values[name] is not None}
        if CRON in fields:
            fields[CRON] = " ".join(fields[CRON].split())
        for problem, hint in _find_problems(bucket, key, fields, node):
            if not findings.is_misspelt(node, *WHEN, TARGET):
                findings.error("JS138", node, f"{what} {problem}", hint, str(bucket.address))
        content, hidden = self._read_payload(key, node, values["file"]) or (b"", False)
        settings, sensitive = self._read_lifecycle(values["lifecycle"]), values["sensitive"]
        self._declare(
            bucket, key, content, at, settings, sensitive=sensitive or hidden, fields=fields
        )

    def _read_payload(
        self, key: str, node: Node, path: Path | None
    ) -> tuple[bytes | None, bool] | None:
        """Read the payload and whether plans may not show it; None after a finding.

        The payload itself is None where it needs an environment variable that is not set.
        """
        payload, file = node.get("payload"), node.get("file")
        if file is not None and file.value is not None:
            content = self._read_file(path, file.place) if path is not None else None
            if content is None or path is None:
                return None
            return content, file.secret or not self.files.shown.may_show(path)
        if payload is None or payload.value is None:
            return b"", False
        if payload.unknown:
            return None, True
        encoded = self._encode(key, payload)
        return None if encoded is None else (encoded, is_secret(payload))


def _find_problems(
    stream: DeclaredResource, subject: str, fields: dict[str, Any], node: Node
) -> Iterator[tuple[str, str]]:
    """Yield why no server takes a schedule, and what to do."""
    target, subjects = fields.get(TARGET), stream.body.get("subjects")
    stored = (stream.address.name,) if subjects is None else subjects
    if sum(node.is_given(name) for name in WHEN) != 1:
        yield "needs one of `at`, `every` and `cron`", "Write exactly one of them."
    if not stream.body.get("allow_msg_schedules"):
        yield "is refused by its stream", "Give the stream `allow_msg_schedules: true`."
    for name in (subject, target) if not any(map(is_placeholder, stored)) else ():
        if name and not is_covered(name, stored):
            yield f"uses {name}, which its stream does not store", "Add it to `subjects`."
    if (TARGET in fields or not node.is_given(TARGET)) and (
        not target or not is_schedule_subject(target) or target == subject
    ):
        what = "no" if not target else "a wrong"
        yield f"has {what} `target`", f"Write another subject of the stream. {_SUBJECT_RULE}"
    if any(fields.get(name, 0) % SECOND for name in (EVERY, RESULT_TTL)):
        yield "has an interval or a `ttl` that is not a number of seconds", "Round it."
    if fields.get(RESULT_TTL) and not stream.body.get("allow_msg_ttl"):
        yield "has a `ttl`, which its stream refuses", "Give the stream `allow_msg_ttl: true`."
    if TIME_ZONE in fields and not node.is_given(CRON):
        yield "has a `time_zone` without `cron`", "Remove it."
    if CRON in fields and (why := check_cron(fields[CRON], fields.get(TIME_ZONE, ""))):
        yield f"cannot be kept: {why}", "Write second minute hour day month weekday."
