"""Finds and reads the files of a workspace and merges them into one document.

Every byte that was read is remembered for the hash.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from jsplan.address import Kind
from jsplan.config import excerpts, parsing
from jsplan.config.file_paths import ShownFiles
from jsplan.config.findings import Findings
from jsplan.config.node import Node, Place, Source, make_mapping, source_range
from jsplan.config.read import parse_document, read_bytes
from jsplan.config.tables.workspace import WORKSPACE
from jsplan.diagnostics import did_you_mean
from jsplan.disk import is_file, is_folder

MAIN_FILE: Final = "jsplan.yaml"
DEFAULT_INCLUDES: Final = ("*.jsplan.yaml", "*.jsplan.json")
#: The levels of a section that may come from several files; 0: the section is in one file only.
_MERGE_DEPTH: Final = {
    "vars": 1, "environments": 3, "connections": 1, "domains": 1, "defaults": 2, "drift": 1,
    "lint": 1, "backend": 0, "ownership": 0, "account_files": 0,
}  # fmt: skip
#: The section of a file for each kind, and the key of a name in it.
SECTIONS: Final[dict[Kind, str]] = {
    "stream": "streams",
    "consumer": "consumers",
    "kv": "kv",
    "object_store": "object_stores",
}
NAME_KEYS: Final[dict[Kind, str]] = {
    "stream": "name",
    "consumer": "name",
    "kv": "bucket",
    "object_store": "bucket",
}
_MAIN_ONLY_KEYS: Final = ("jsplan", "workspace", "include")
TOP_LEVEL_KEYS: Final = tuple(WORKSPACE.by_name)
_KEY_ALIASES: Final = {
    "variables": "vars",
    "stream": "streams",
    "buckets": "kv",
    "kvs": "kv",
    "kv_buckets": "kv",
    "objects": "object_stores",
    "version": "jsplan",
}


class WorkspaceFiles:
    """The files of one workspace. `read` has the bytes of each by its name in findings."""

    def __init__(self, root: Path, findings: Findings) -> None:
        self.root = root
        self.findings = findings
        self.shown = ShownFiles(root)
        self.read: dict[str, bytes] = {}
        excerpts.forget_all()
        self._parsed: dict[Path, Node | None] = {}
        self._empty: set[Path] = set()

    def source_of(self, path: Path) -> Source:
        """Return the file as findings show it: relative to the workspace."""
        try:
            shown = os.path.relpath(path, self.root)
        except ValueError:  # another drive
            shown = str(path)
        return Source.of(path, shown)

    def parse_file(
        self, path: Path, at: Place | None = None, *, named_by_user: bool = False
    ) -> Node | None:
        """Return the file's document, read once; None when it is empty or after a finding.

        A file that the user names may be a pipe, and a link to anywhere; one that a workspace names
        may not. No message has quoted it. Before a caller quotes keys or values it checks that the
        file is of the expected kind: messages end up on pull requests.
        """
        if path not in self._parsed:
            source = self.source_of(path)
            root = None if named_by_user else self.root
            data = read_bytes(source, self.findings, at, root)
            if data is not None:
                self.read[source.shown] = data
            before = len(self.findings)
            self._parsed[path] = (
                parse_document(source, data, self.findings) if data is not None else None
            )
            if data is not None and self._parsed[path] is None and len(self.findings) == before:
                self._empty.add(path)
        return self._parsed[path]

    def is_empty(self, path: Path) -> bool:
        """Check whether the file was read, was valid, and had no content."""
        return path in self._empty

    def load_document(self) -> Node | None:
        """Return the main file and its includes as one mapping; None if it is unusable."""
        path = self.root / MAIN_FILE
        if not is_file(path) and not is_folder(path):
            problem = (
                f"there is no {MAIN_FILE} in {self.root}"
                if is_folder(self.root)
                else f"{self.root} is not a folder"
            )
            hint = "Go to the workspace's folder, name it with -C, or make one with `jsplan init`."
            self.findings.error("JS100", None, problem, hint)
            return None
        main = self.parse_file(path, named_by_user=True)
        if main is None:
            if self.is_empty(path):
                text = f"{MAIN_FILE} is empty"
                hint = "Begin it with `jsplan: 1` and `workspace: NAME`."
                self.findings.error("JS102", (self.source_of(path), 0, 0), text, hint)
            return None
        if not self._is_workspace(main, MAIN_FILE):
            return None
        return self._merge_files(main, self._read_includes(main))

    def _read_includes(self, main: Node) -> list[Node]:
        out = []
        for path in self._find_includes(main):
            node = self.parse_file(path)
            if node is None and self.is_empty(path):
                text = f"{self.source_of(path).shown} is empty"
                hint = "Remove it, or write something into it."
                self.findings.warning("JS102", (self.source_of(path), 0, 0), text, hint)
            elif node is not None and self._is_workspace(node, self.source_of(path).shown):
                out.append(node)
        return out

    def _is_workspace(self, node: Node, shown: str) -> bool:
        """Check whether a document is part of a workspace: at least one of its keys is known.

        Otherwise nothing of it is quoted.
        """
        if not isinstance(node.value, dict):
            self.findings.wrong_type(node, shown, "a mapping")
            return False
        known = (
            *TOP_LEVEL_KEYS,
            *_KEY_ALIASES,
            *(key for key in node.value if key.startswith("x-")),
        )
        if self.findings.no_known_keys(
            "JS105", node, f"no key of {shown} is one of a workspace", known
        ):
            return False
        excerpts.remember(shown, self.read[shown], node)
        return True

    def _find_includes(self, main: Node) -> list[Path]:
        """Return the included files, each once, sorted by name, without the main file."""
        include = main.get("include")
        found: dict[Path, None] = {}
        if include is None:
            for pattern in DEFAULT_INCLUDES:
                found |= dict.fromkeys(find_matches(self.root, pattern) or ())
        elif isinstance(include.value, str):
            self._add_include(include, found)
        else:
            for node in parsing.read_list(include, "`include`", self.findings):
                self._add_include(node, found)
        main_path = (self.root / MAIN_FILE).resolve()
        unique = {
            path.resolve(): path
            for path in sorted(found, reverse=True)
            if path.resolve() != main_path
        }
        return sorted(unique.values())

    def _add_include(self, node: Node, found: dict[Path, None]) -> None:
        pattern = parsing.read_text(node, "an element of `include`", self.findings)
        if pattern is None:
            return
        if "\0" in pattern:
            self.findings.error(
                "JS109", node, "the path holds a NUL character", "Correct the path."
            )
        elif glob.has_magic(pattern):
            paths = find_matches(self.root, pattern)
            if paths is None:
                text = f'"{pattern}" searches too much outside of the workspace'
                hint = "There use no ** and at most one folder with a wildcard, as in ../*/a.yaml."
                self.findings.error("JS109", node, text, hint)
            elif not paths:
                text = f'"{pattern}" matches no file'
                self.findings.warning("JS109", node, text, "Paths are relative to jsplan.yaml.")
            found |= dict.fromkeys(paths or ())
        elif is_file(self.root / pattern):
            found[Path(os.path.normpath(self.root / pattern))] = None
        else:
            hint = "Paths are relative to jsplan.yaml; patterns such as streams/*.yaml work too."
            self.findings.error("JS109", node, f'there is no file "{pattern}"', hint)

    def _merge_files(self, main: Node, others: list[Node]) -> Node:
        document = make_mapping(main.place, {}, {})
        for node in (main, *others):
            for key, value in node.value.items():
                if self._is_known_key(node, key, is_main=node is main):
                    self._merge(document, key, node.key_place(key), value, _MERGE_DEPTH.get(key, 0))
        return document

    def _is_known_key(self, node: Node, key: str, *, is_main: bool) -> bool:
        if key.startswith("x-"):
            return False
        if key not in TOP_LEVEL_KEYS:
            hint = (
                f'Did you mean "{_KEY_ALIASES[key]}"?'
                if key in _KEY_ALIASES
                else did_you_mean(key, TOP_LEVEL_KEYS).strip()
            )
            parsing.report_unknown_key(
                node, key, "a workspace", TOP_LEVEL_KEYS, self.findings, hint
            )
            return False
        if key in _MAIN_ONLY_KEYS and not is_main:
            if key != "jsplan":
                text = f"`{key}` is allowed in {MAIN_FILE} only"
                detail = "Remove it from the included file."
                self.findings.error("JS105", node.key_place(key), text, detail)
            return False
        return True

    def _merge(self, into: Node, key: str, place: Place, value: Node, depth: int) -> None:
        """Put `value` under `key`. An existing value is merged `depth` levels down.

        Below that, a second value is a finding.
        """
        existing = into.value.get(key)
        if existing is None or existing.value is None:
            into.value[key] = value
            into.keys[key] = place
        elif isinstance(existing.value, list) and isinstance(value.value, list):
            into.value[key] = Node(existing.place, [*existing.value, *value.value])
            into.value[key].dynamic = existing.dynamic or value.dynamic
        elif depth > 0 and isinstance(existing.value, dict) and isinstance(value.value, dict):
            merged = make_mapping(existing.place, existing.value, existing.keys)
            for name, item in value.value.items():
                self._merge(merged, name, value.key_place(name), item, depth - 1)
            merged.dynamic = existing.dynamic or value.dynamic
            into.value[key] = merged
        elif value.value is not None:
            first = source_range(into.key_place(key))
            self.findings.declared_twice(place, f'"{key}"', first)


def overlay(base: Node | None, over: Node, depth: int) -> Node:
    """Overlay `over` on `base` key by key, `depth` levels down; below that `over` replaces."""
    if (
        base is None
        or depth == 0
        or not isinstance(base.value, dict)
        or not isinstance(over.value, dict)
    ):
        return over
    values: dict[str, Any] = dict(base.value)
    keys = dict(base.keys)
    for key, value in over.value.items():
        values[key] = overlay(values.get(key), value, depth - 1)
        keys[key] = over.key_place(key)
    return make_mapping(base.place, values, keys)


def find_matches(root: Path, pattern: str) -> list[Path] | None:
    """Return the files that a pattern matches, sorted; None for an endless search.

    Outside of the workspace `**` and more than one folder with a wildcard could lead through the
    whole machine. No wildcard matches a link to a folder, or a hidden name.
    """
    parts = Path(pattern).parts
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    folder, rest = Path(os.path.normpath(root.joinpath(*parts[:fixed]))), parts[fixed:]
    is_inside = folder.is_relative_to(os.path.normpath(root)) and ".." not in rest
    folders = sum(map(glob.has_magic, rest[:-1]))
    if not is_inside and ("**" in rest or folders > 1):
        return None
    return sorted({Path(os.path.normpath(path)) for path in _match(folder, rest)})


def _match(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    part, *rest = parts
    if not glob.has_magic(part):
        names = [part]
    else:
        try:
            names = [entry.name for entry in os.scandir(folder)]
        except OSError:  # no folder, or none of ours
            return
    for name in names:
        path = folder / name
        if part == "**":
            if not name.startswith(".") and path.is_dir() and not path.is_symlink():
                yield from _match(path, parts)
        elif part != name and (name.startswith(".") or not fnmatch.fnmatchcase(name, part)):
            continue
        elif not rest:
            if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a path that is too long
                yield path
        elif part == name or not path.is_symlink():
            yield from _match(path, rest)
    if part == "**" and rest:
        yield from _match(folder, rest)
