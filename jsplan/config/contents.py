"""Readers of entries, objects and schedules, after their buckets and streams are resolved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import Struct, field

from jsplan.address import Address, Kind
from jsplan.config.files import WorkspaceFiles
from jsplan.config.findings import Findings, is_placeholder
from jsplan.config.interpolate import Scope
from jsplan.config.kv_entries import KvEntryReader
from jsplan.config.model import ContentFile, DeclaredResource, Domain, Lifecycle, PrunedPrefix
from jsplan.config.node import Node, Place, source_range, without_keys
from jsplan.config.sections import Reading, Section
from jsplan.config.tables.resources import (
    MESSAGE_SCHEDULE,
    OBJECT_FOLDER,
    SCHEDULE_FIELDS,
    STORED_OBJECT,
)
from jsplan.disk import MEGABYTE, open_regular
from jsplan.resources.contents import content_subject
from jsplan.resources.kv_entry import VALUE
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


class ContentReaders(Struct):
    """One reader for each kind of parent. They share what they found.

    `secrets` is the scope with the environment: values and payloads may come from there.
    """

    files: WorkspaceFiles
    secrets: Scope | None
    declared: dict[Address, DeclaredResource] = field(default_factory=dict)
    pruned: list[PrunedPrefix] = field(default_factory=list)
    _readers: dict[Kind, KvEntryReader] = field(default_factory=dict)
    _found: list[tuple[Address, Node, Scope]] = field(default_factory=list)

    def __post_init__(self) -> None:
        files, declared, pruned = self.files, self.declared, self.pruned
        self._readers = {
            "kv": KvEntryReader(files, self.secrets, declared, pruned),
            # Nothing of an object comes from the environment.
            "object_store": ObjectReader(files, None, declared, pruned),
            "stream": ScheduleReader(files, self.secrets, declared, pruned),
        }

    def split(self, kind: Kind, entry: Node) -> Node:
        """Return an element of a section without what a reader reads: itself if there is none."""
        reader = self._readers.get(kind)
        return without_keys(entry, reader.keys) if reader is not None else entry

    def add(self, address: Address, entry: Node, scope: Scope) -> None:
        """Remember what is to be read of an element, once its parent is resolved."""
        self._found.append((address, entry, scope))

    def read(self, parents: Mapping[Address, DeclaredResource]) -> None:
        """Read everything that was added. Parents with an error are left out."""
        for address, entry, scope in self._found:
            if (parent := parents.get(address)) is not None:
                self._readers[address.kind].read_scoped(parent, entry, scope)


def check_linked_parents(
    declared: Mapping[Address, DeclaredResource],
    contents: Iterable[Address],
    domains: Mapping[str, Domain],
    findings: Findings,
) -> None:
    """Refuse objects and schedules where a write would reach no stream, or more than one.

    Servers map KV buckets below the API prefix of a domain, and nothing else: each stream of the
    account with the subject stores the message.
    """
    parents: dict[Address, list[Address]] = {}
    for address in contents:
        if address.kind != "kv_entry" and address.parent is not None:
            parents.setdefault(address.parent, []).append(address)
    for parent, children in sorted(parents.items()):
        if parent.domain not in domains:
            continue  # it has a finding
        own, place = domains[parent.domain], declared[parent].range
        if own.api_prefix != (f"$JS.{own.js_domain}.API" if own.js_domain else "$JS.API"):
            text = f"{parent} is in another account, where no message for it can be published"
            hint = "Declare what it holds in a domain of that account."
            findings.error("JS139", place, text, hint, str(parent))
        subjects = [content_subject(child) for child in children]
        for other, found in declared.items():
            if (
                other.domain != parent.domain
                and other.domain in domains
                and domains[other.domain].connection == own.connection
                and any(is_covered(subject, _subjects_of(found)) for subject in subjects)
            ):
                text = f"{parent} and {other} would store each other's messages"
                hint = "Give them different names or subjects: their domains may be linked."
                findings.error("JS139", place, text, hint, str(parent))
                break


def _subjects_of(declared: DeclaredResource) -> tuple[str, ...]:
    """Return the subjects that a stream or object store takes messages on."""
    address, body = declared.address, declared.body
    if address.kind == "object_store":
        return () if body.get("mirror") else (f"$O.{address.name}.>",)
    if address.kind != "stream" or body.get("mirror"):
        return ()
    subjects = body.get("subjects")
    return tuple(subjects) if subjects else () if body.get("sources") else (address.name,)


# --- objects --------------------------------------------------------------------------------------

#: The bytes of the files of all objects of a workspace: each plan reads all of them.
MAX_BYTES: Final = 16 << 30


class ObjectReader(KvEntryReader):
    """Collects the objects of all object stores. Their files are read in parts, for the digest."""

    _digests: dict[Path, tuple[str, int] | None] = field(default_factory=dict)
    _total: int = 0
    kind: ClassVar[Kind] = "object"
    keys: ClassVar[tuple[str, ...]] = ("objects", "objects_from")
    folder: ClassVar[Section] = OBJECT_FOLDER
    separator: ClassVar[str] = "/"
    name_hint: ClassVar[str] = (
        "Use no * and ?, and no control characters; no slash begins or ends it or follows another."
    )

    def _read_entry(self, bucket: DeclaredResource, key: str, node: Node, at: Place) -> None:
        findings = self.files.findings
        if not isinstance(node.value, dict):
            findings.wrong_type(node, f"object {key}", "a mapping with `file`")
            return
        values = STORED_OBJECT.read(node, Reading(findings), f"object {key}")
        if values is not None and values["file"] is not None:
            settings = self._read_lifecycle(values["lifecycle"])
            self._declare_file(bucket, key, values["file"], at, settings)

    def _read_folder_file(
        self,
        bucket: DeclaredResource,
        key: str,
        path: Path,
        at: Place,
        settings: Lifecycle,
        *,
        sensitive: bool,  # noqa: ARG002 - no plan shows the content of an object
    ) -> None:
        self._declare_file(bucket, key, path, at, settings)

    def _declare_file(
        self, bucket: DeclaredResource, key: str, path: Path, at: Place, settings: Lifecycle
    ) -> None:
        address, found = self._claim(bucket, key, at), self._digest_file(path, at)
        if address is None or found is None:
            return
        digest, size = found
        where = source_range(at)
        file = ContentFile(path, size, self._describe_path(path))
        self.declared[address] = DeclaredResource(
            address, {VALUE: digest}, where, {VALUE: where}, settings, sensitive=True, file=file
        )

    def _describe_path(self, path: Path) -> str:
        outside = not path.resolve().is_relative_to(self.files.shown.root)
        return f"{self.files.source_of(path).shown}{', outside of the workspace' * outside}"

    def _digest_file(self, path: Path, at: Place) -> tuple[str, int] | None:
        """Return digest and bytes of a file, which is read once for all domains."""
        if path not in self._digests:
            self._digests[path] = self._compute_digest(path, at)
        return self._digests[path]

    def _compute_digest(self, path: Path, at: Place) -> tuple[str, int] | None:
        findings, digest, size = self.files.findings, hashlib.sha256(), 0
        shown = self.files.source_of(path).shown
        try:
            with open_regular(path, root=self.files.root) as file:
                while part := file.read(MEGABYTE):
                    digest.update(part)
                    size += len(part)
                    self._total += len(part)
                    if self._total > MAX_BYTES:
                        break
        except OSError as error:
            text = f"cannot read {shown}: {error.strerror}"
            findings.error("JS100", at, text, "Correct the path, or its permissions.")
            return None
        if self._total > MAX_BYTES:
            text = f"the files of objects have more than {MAX_BYTES >> 30} GiB in all"
            findings.error("JS148", at, text, "Each plan reads all of them. Split the workspace.")
            return None
        return f"sha256:{digest.hexdigest()}", size


# --- schedules ------------------------------------------------------------------------------------

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
        payload, file = node.get("payload"), node.get("file")
        content: bytes | None = b""
        hidden = False
        if node.is_given("payload") or node.is_given("file"):
            value = payload or node.value["file"]
            found = self._read_content(key, value, file, values["file"])
            content, hidden = found if found is not None else (content, hidden)
        settings, sensitive = self._read_lifecycle(values["lifecycle"]), values["sensitive"]
        self._declare(
            bucket, key, content, at, settings, sensitive=sensitive or hidden, fields=fields
        )


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
