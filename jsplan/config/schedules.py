"""`schedules:` of a stream: messages that make the server publish others."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from jsplan.address import Kind
from jsplan.config import parsing
from jsplan.config.connections import resolve_file_path
from jsplan.config.kv_entries import KvEntryReader, is_secret
from jsplan.config.model import DeclaredResource
from jsplan.config.node import Node, Place
from jsplan.resources.message_schedule import (
    CRON,
    EVERY,
    RESULT_TTL,
    SCHEDULE,
    TARGET,
    TIME_ZONE,
    WHEN,
    check_cron,
    is_schedule_subject,
)
from jsplan.subjects import is_covered
from jsplan.units import SECOND

SCHEDULE_KEYS: Final = ("schedules",)
#: The fields that the files may have.
SCHEDULE_FIELDS: Final = (*WHEN, TARGET, TIME_ZONE, RESULT_TTL)
_KEYS: Final = (*SCHEDULE_FIELDS, "payload", "file", "sensitive", "lifecycle")
#: What servers keep in a header, and an address can name.
_SUBJECT_RULE: Final = "It has no blank, none of / * ? and >, and no control character."


class ScheduleReader(KvEntryReader):
    """Collects the schedules of all streams."""

    kind: ClassVar[Kind] = "schedule"
    keys: ClassVar[tuple[str, ...]] = SCHEDULE_KEYS
    name_hint: ClassVar[str] = f"It is a subject of the stream. {_SUBJECT_RULE}"

    def is_name(self, name: str) -> bool:
        """Check whether it is the subject of one schedule."""
        return is_schedule_subject(name)

    def _warn_about_ttl(self, bucket: DeclaredResource, node: Node) -> None:
        """Give no warning: a stream that deletes its messages by age says so itself."""

    def _read_entry(self, bucket: DeclaredResource, key: str, node: Node, at: Place) -> None:
        findings, what = self.files.findings, f"schedule {key}"
        if not isinstance(node.value, dict):
            findings.wrong_type(node, what, "a mapping")
            return
        if not parsing.check_mapping(node, what, _KEYS, findings):
            return
        fields = self._read_fields(node)
        if fields is None:
            return
        problem, hint = _find_problem(bucket, key, fields)
        if problem:
            findings.error("JS138", node, f"{what} {problem}", hint, str(bucket.address))
            return
        found = self._read_payload(key, node)
        if found is None:
            return
        content, hidden = found
        sensitive = bool(parsing.read_flag(node.get("sensitive"), "`sensitive`", findings))
        self._declare(
            bucket,
            key,
            content,
            at,
            self._read_lifecycle(node),
            sensitive=sensitive or hidden,
            fields=fields,
        )

    def _read_payload(self, key: str, node: Node) -> tuple[bytes | None, bool] | None:
        """Read the payload and whether plans may not show it; None after a finding.

        The payload itself is None where it needs an environment variable that is not set.
        """
        payload, file = node.get("payload"), node.get("file")
        if file is not None and file.value is not None:
            path = resolve_file_path(file, "`file`", {}, self.files.findings)
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

    def _read_fields(self, node: Node) -> dict[str, Any] | None:
        """Read the fields of a schedule in API units; None after a finding."""
        found: dict[str, Any] = {}
        for name in SCHEDULE_FIELDS:
            item = node.get(name)
            if item is None or item.value is None:
                continue
            try:
                found[name] = SCHEDULE.by_name[name].parse(item.value)
            except ValueError as error:
                self.files.findings.error("JS130", item, f"`{name}`: {error}", "Correct it.")
                return None
        if CRON in found:
            found[CRON] = " ".join(found[CRON].split())
        return found


def _find_problem(
    stream: DeclaredResource, subject: str, fields: dict[str, Any]
) -> tuple[str, str]:
    """Return why no server takes a schedule, and what to do; empty if one may."""
    given = [name for name in WHEN if name in fields]
    target, subjects = fields.get(TARGET), stream.body.get("subjects")
    stored = (stream.address.name,) if subjects is None else subjects
    missing = next((name for name in (subject, target) if not is_covered(name or "", stored)), None)
    if len(given) != 1:
        return "needs one of `at`, `every` and `cron`", "Write exactly one of them."
    if not stream.body.get("allow_msg_schedules"):
        return "is refused by its stream", "Give the stream `allow_msg_schedules: true`."
    if not target or not is_schedule_subject(target) or target == subject:
        return "has no `target`", f"Write another subject of the stream. {_SUBJECT_RULE}"
    if missing is not None:
        return f"uses {missing}, which its stream does not store", "Add it to `subjects`."
    if any(fields.get(name, 0) % SECOND for name in (EVERY, RESULT_TTL)):
        return "has an interval or a `ttl` that is not a number of seconds", "Round it."
    if fields.get(RESULT_TTL) and not stream.body.get("allow_msg_ttl"):
        return "has a `ttl`, which its stream refuses", "Give the stream `allow_msg_ttl: true`."
    if TIME_ZONE in fields and CRON not in fields:
        return "has a `time_zone` without `cron`", "Remove it."
    if CRON in fields and (why := check_cron(fields[CRON], fields.get(TIME_ZONE, ""))):
        return f"cannot be kept: {why}", "Write second minute hour day month weekday."
    return "", ""
