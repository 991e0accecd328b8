"""`objects:` and `objects_from:` of an object store: files that its objects have as content."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar, Final

from msgspec import field

from jsplan.address import Kind
from jsplan.config.kv_entries import KvEntryReader
from jsplan.config.model import ContentFile, DeclaredResource, Lifecycle
from jsplan.config.node import Node, Place, source_range
from jsplan.config.sections import Reading, Section
from jsplan.config.tables.resources import OBJECT_FOLDER, STORED_OBJECT
from jsplan.disk import MEGABYTE, open_regular
from jsplan.resources.kv_entry import VALUE

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
            findings.error(
                "JS148",
                at,
                f"the files of objects have more than {MAX_BYTES >> 30} GiB in all",
                "Each plan reads all of them. Split the workspace.",
            )
            return None
        return f"sha256:{digest.hexdigest()}", size
