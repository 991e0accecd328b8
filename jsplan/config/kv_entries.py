"""`entries:` and `entries_from:` of a KV bucket: keys that the files own, with values."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address, Kind
from jsplan.config import lifecycle, parsing
from jsplan.config.files import WorkspaceFiles
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.model import DeclaredResource, Lifecycle, PrunedPrefix
from jsplan.config.node import Node, Place, children, make_mapping, source_range, to_plain
from jsplan.config.read import read_bytes
from jsplan.config.secret_fields import mark_secret
from jsplan.config.sections import Reading, Section
from jsplan.config.tables.resources import KV_FOLDER, KV_VALUE
from jsplan.disk import is_file, is_folder
from jsplan.resources.contents import CONTENTS
from jsplan.resources.kv_entry import (
    MAX_PAYLOAD,
    TTL,
    TTL_HEADER_SIZE,
    VALUE,
    WRITE_HEADERS,
    digest_value,
)
from jsplan.units import SECOND

#: The files of one `entries_from`, and the bytes of all files of a workspace.
MAX_FILES: Final = 20_000
MAX_BYTES: Final = 256 << 20
_EMPTY: Final = 'Write "" for an empty value, or remove the key.'


class KvEntryReader(Struct):
    """Collects the entries of all buckets in `declared`, and the prefixes to prune in `pruned`.

    `secrets` is the scope with the environment: values may come from there.
    """

    files: WorkspaceFiles
    secrets: Scope | None = None
    declared: dict[Address, DeclaredResource] = field(default_factory=dict)
    pruned: list[PrunedPrefix] = field(default_factory=list)
    _read_files: dict[Path, bytes | None] = field(default_factory=dict)
    _bytes: int = 0
    kind: ClassVar[Kind] = "kv_entry"
    #: The keys of an element that this reader reads: what is inline, and folders.
    keys: ClassVar[tuple[str, ...]] = ("entries", "entries_from")
    #: The table of a folder whose files are entries.
    folder: ClassVar[Section] = KV_FOLDER
    #: What separates the folders of a path in a key.
    separator: ClassVar[str] = "."

    def read_scoped(self, bucket: DeclaredResource, node: Node, scope: Scope) -> None:
        """Read the keys of `keys` of one bucket in one domain."""
        if self.secrets is not None:
            environ, unset = self.secrets.environ, self.secrets.allow_unset
            scope = replace(scope, environ=environ, allow_unset=unset)
        values = {key: node.value[key] for key in self.keys if key in node.value}
        own = make_mapping(node.place, values, node.keys)
        self._read(bucket, interpolate(own, scope, self.files.findings))

    def _read(self, bucket: DeclaredResource, node: Node) -> None:
        """Read the keys of `keys` of one bucket, whose references are resolved."""
        findings = self.files.findings
        inline = self.keys[0]
        if bucket.body.get("mirror") and any(node.is_given(key) for key in self.keys):
            text = f"{bucket.address} mirrors another bucket, which alone takes writes"
            hint = f"Declare the {inline} where its origin is declared."
            findings.error("JS138", node, text, hint, str(bucket.address))
            return
        if bucket.body.get("sealed") and any(node.is_given(key) for key in self.keys):
            text = f"{bucket.address} is sealed, and takes no writes"
            hint = f"Remove the {inline}, or `sealed`."
            findings.error("JS138", node, text, hint, str(bucket.address))
            return
        entries = node.get(inline)
        for key, item in parsing.read_mapping(entries, f"`{inline}`", findings):
            assert entries is not None
            self._read_entry(bucket, key, item, entries.key_place(key))
        for folders in self.keys[1:]:
            source = node.get(folders)
            if source is not None and isinstance(source.value, dict):
                self._read_folder(bucket, source)
            else:
                for item in parsing.read_list(source, f"`{folders}`", findings):
                    self._read_folder(bucket, item)
        self._warn_about_ttl(bucket, node)

    def _warn_about_ttl(self, bucket: DeclaredResource, node: Node) -> None:
        if bucket.body.get("ttl") and any(node.is_given(key) for key in self.keys):
            self.files.findings.warning(
                "JS138",
                bucket.ranges.get("ttl", bucket.range),
                f"the ttl of {bucket.address} deletes its {self.keys[0]}; "
                "each apply writes them again",
                f"Keep the {self.keys[0]} in a bucket without `ttl`.",
                str(bucket.address),
            )

    # --- one value --------------------------------------------------------------------------------

    def _read_entry(self, bucket: DeclaredResource, key: str, node: Node, at: Place) -> None:
        findings, settings, value = self.files.findings, Lifecycle(), node
        sensitive, fields = False, dict[str, Any]()
        file: Node | None = None
        path: Path | None = None
        if isinstance(node.value, dict) and node.value.keys() & {"value", "file"}:
            values = KV_VALUE.read(node, Reading(findings), f"entry {key}")
            if values is None:
                return
            settings = self._read_lifecycle(values["lifecycle"])
            sensitive, ttl = values["sensitive"], values["ttl"]
            if ttl:
                self._check_ttl(bucket, key, ttl, node.value[TTL])
                fields[TTL] = ttl
            if node.is_given("value") and node.is_given("file"):
                findings.error(
                    "JS138", node, f"entry {key} has both `value` and `file`", "Keep one."
                )
                return
            file, path = node.get("file"), values["file"]
            if file is not None and file.value is None and not node.is_given("value"):
                findings.error("JS104", node, f"entry {key} has no value", _EMPTY)
                return
            value = node.value.get("value") or node.value["file"]
        if (found := self._read_content(key, value, file, path)) is not None:
            hidden = sensitive or found[1]
            self._declare(bucket, key, found[0], at, settings, sensitive=hidden, fields=fields)

    def _read_content(
        self, key: str, value: Node, file: Node | None, path: Path | None
    ) -> tuple[bytes | None, bool] | None:
        """Return a value or that of its file, and whether plans may not show it.

        The value itself is None where it needs an environment variable that is not set. The whole
        is None after a finding.
        """
        if file is not None and file.value is not None:
            content = self._read_file(path, file.place) if path is not None else None
            if content is None or path is None:
                return None
            return content, file.secret or not self.files.shown.may_show(path)
        if value.unknown:
            return None, True
        encoded = self._encode(key, value)
        return None if encoded is None else (encoded, is_secret(value))

    def _check_ttl(self, bucket: DeclaredResource, key: str, ttl: int, node: Node) -> None:
        """Check the `ttl` (ns) of an entry. Its bucket must let messages have one."""
        findings = self.files.findings
        if ttl % SECOND or ttl < 0:
            findings.error(
                "JS138", node, f"`ttl` of entry {key} is not a number of seconds", "Round it."
            )
        if not (bucket.body.get("limit_marker_ttl") or bucket.body.get("allow_msg_ttl")):
            text = f"entry {key} has a `ttl`, which its bucket refuses"
            hint = "Give the bucket a `limit_marker_ttl`. Needs nats-server 2.11."
            findings.error("JS138", node, text, hint, str(bucket.address))

    def _read_lifecycle(self, node: Node | None) -> Lifecycle:
        return lifecycle.read_lifecycle(
            (node,) if node is not None else (),
            CONTENTS[self.kind].table.by_name,
            self.files.findings,
        )

    def _encode(self, key: str, node: Node) -> bytes | None:
        """Return text and numbers as they are written, and anything else as compact JSON."""
        findings, value = self.files.findings, node.value
        if value is None:
            findings.error("JS104", node, f"entry {key} has no value", _EMPTY)
            return None
        try:
            if isinstance(value, dict | list):
                return json.dumps(
                    to_plain(node), ensure_ascii=False, allow_nan=False, separators=(",", ":")
                ).encode()
            text = value if isinstance(value, str) else node.raw
            return (str(value).lower() if text is None else text).encode()
        except ValueError:
            summary = f"entry {key} cannot be stored: it is no text and no JSON"
            hint = "Put the value into a file, and name it with `file:`."
            findings.error("JS130", node, summary, hint)
            return None

    def _read_file(self, path: Path, at: Place) -> bytes | None:
        """Read a file once, for all domains, within the limit of bytes of all files."""
        if path not in self._read_files and self._bytes <= MAX_BYTES:
            source = self.files.source_of(path)
            found = read_bytes(source, self.files.findings, at, self.files.root)
            self._read_files[path] = found
            self._bytes += len(found or b"")
            if self._bytes > MAX_BYTES:
                text = f"the files of entries have more than {MAX_BYTES >> 20} MiB in all"
                hint = "Buckets are for small values. Split the workspace, or use an object store."
                self.files.findings.error("JS148", at, text, hint)
        return self._read_files.get(path)

    # --- a folder ---------------------------------------------------------------------------------

    def _read_folder(self, bucket: DeclaredResource, node: Node) -> None:
        findings = self.files.findings
        values = self.folder.read(node, Reading(findings))
        if values is None:
            return
        folder, prefix = values["dir"], self._read_prefix(node)
        settings = self._read_lifecycle(values["lifecycle"])
        if folder is not None and not is_folder(folder):
            shown = self.files.source_of(folder).shown
            findings.error(
                "JS100", node.get("dir"), f"{shown} is not a folder", "Correct the path."
            )
            return
        if folder is None or prefix is None:
            return
        if values["prune"]:
            self.pruned.append(PrunedPrefix(bucket.address, prefix, source_range(node.place)))
        files = list_files(folder)
        if len(files) > MAX_FILES:
            shown = self.files.source_of(folder).shown
            text = f"{shown} has more than {MAX_FILES:,} files"
            findings.error("JS148", node.get("dir"), text, "Name a folder that has only values.")
            return
        for path in files:
            key = prefix + self.separator.join(path.relative_to(folder).parts)
            hidden = values.get("sensitive", False)
            self._read_folder_file(bucket, key, path, node.place, settings, sensitive=hidden)

    def _read_folder_file(
        self,
        bucket: DeclaredResource,
        key: str,
        path: Path,
        at: Place,
        settings: Lifecycle,
        *,
        sensitive: bool,
    ) -> None:
        content = self._read_file(path, at)
        if content is not None:
            hidden = sensitive or not self.files.shown.may_show(path)
            self._declare(bucket, key, content, at, settings, sensitive=hidden)

    def _read_prefix(self, node: Node) -> str | None:
        found = node.get("prefix")
        if found is None or found.value in (None, ""):
            return ""
        prefix = parsing.read_text(found, "`prefix`", self.files.findings)
        if prefix is not None and not (
            prefix.endswith(self.separator) and CONTENTS[self.kind].is_name(prefix[:-1])
        ):
            text = f'"{prefix}" is not a prefix of {self.keys[0]}'
            hint = f"It ends with {self.separator} as in app{self.separator}, and has no wildcards."
            self.files.findings.error("JS131", found, text, hint)
            return None
        return prefix

    # --- all of them ------------------------------------------------------------------------------

    def _declare(
        self,
        bucket: DeclaredResource,
        key: str,
        content: bytes | None,
        at: Place,
        settings: Lifecycle,
        *,
        sensitive: bool,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        findings, where = self.files.findings, source_range(at)
        address = self._claim(bucket, key, at)
        if address is None:
            return
        extra = TTL_HEADER_SIZE if fields else 0
        if content is not None and (problem := _size_problem(bucket, len(content) + extra)):
            findings.error("JS138", at, f"{address} {problem}", "Store less.", str(address))
        body: dict[str, Any] = {VALUE: digest_value(content) if content is not None else None}
        body |= fields or {}
        self.declared[address] = DeclaredResource(
            address,
            body,
            where,
            {VALUE: where},
            settings,
            content=content,
            sensitive=sensitive,
        )

    #: What a name may consist of.
    name_hint: ClassVar[str] = (
        "Use letters, digits and - _ = / .; no dot begins or ends it or follows another."
    )

    def _claim(self, bucket: DeclaredResource, key: str, at: Place) -> Address | None:
        """Return the address of a name, or None for a bad one, and one that is declared already."""
        findings = self.files.findings
        address = Address(bucket.address.domain, self.kind, f"{bucket.address.name}/{key}")
        if not CONTENTS[self.kind].is_name(key):
            text = f'"{key}" is not a name of {self.keys[0]}'
            findings.error("JS131", at, text, self.name_hint, str(bucket.address))
            return None
        if (first := self.declared.get(address)) is not None:
            findings.declared_twice(at, str(address), first.range, str(address))
            return None
        return address


def _size_problem(bucket: DeclaredResource, size: int) -> str:
    """Explain why no server stores a value of this size (bytes); empty if one may."""
    most = bucket.body.get("max_value_size") or -1
    if 0 < most < size + WRITE_HEADERS:
        return (
            f"has {size:,} bytes; the bucket takes {most:,}, of which a conditional write needs "
            f"{WRITE_HEADERS} for headers"
        )
    if size + WRITE_HEADERS > MAX_PAYLOAD:
        return f"has {size:,} bytes; no server takes more than {MAX_PAYLOAD:,} in a message"
    return ""


def is_secret(node: Node) -> bool:
    """Check whether a value or a part of it came from `${env.X}`; no message may show it then."""
    if node.secret:
        mark_secret(node)
    return any([node.secret, *map(is_secret, children(node))])


def list_files(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted; hidden files and folders are left out.

    It stops soon after `MAX_FILES`. Folders that are links are not followed.
    """
    found: list[Path] = []
    for name, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        found += [Path(name, each) for each in files if not each.startswith(".")]
        if len(found) > MAX_FILES:
            break
    return sorted(path for path in found if is_file(path))
