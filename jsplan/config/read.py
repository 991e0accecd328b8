"""Reads YAML 1.2 and JSON into nodes that know their place, on libyaml's events.

It touches nothing but the file system. No message quotes the text: a workspace may name a file
that is not its own.
"""

from __future__ import annotations

import errno
import math
import re
from pathlib import Path
from typing import Any, Final

import yaml

from jsplan.config.findings import Findings
from jsplan.config.node import Node, Place, Source, children, source_range
from jsplan.disk import MEGABYTE, exists, is_folder, read_regular

try:
    from yaml._yaml import CParser as Parser
except ImportError:  # a PyYAML without libyaml: the same events, about ten times slower
    from yaml import Loader as Parser  # type: ignore[assignment]

#: The nodes per file that aliases may repeat: enough for anchors, not for a "billion laughs".
MAX_REPEATED = 500_000
MAX_DEPTH = 64
#: Sixty thousand lines are about 3 MiB.
MAX_BYTES = 64 * MEGABYTE
_CORE = "tag:yaml.org,2002:"
_SURROGATES = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_QUOTING = (
    "A plain value cannot begin with * & ! > | % @ ` and, inside [ ] or { },"
    ' cannot hold any of [ ] { } and ",".'
    ' Put it in quotes, as in ["*.new"], ">" or "${var.x}".'
)


class _ReadError(Exception):
    """This file cannot be read further."""

    def __init__(self, code: str, place: Place, summary: str, detail: str) -> None:
        super().__init__(summary)
        self.code, self.place, self.summary, self.detail = code, place, summary, detail


def read_bytes(
    source: Source,
    findings: Findings,
    at: Place | None = None,
    root: Path | None = None,
) -> bytes | None:
    """Return the bytes of the file, or None after a finding; `at` is the place that names it.

    `root` is the folder of the workspace that names it, None if the user does: then it may be a
    pipe, and a link to anywhere.
    """
    try:
        return read_regular(source.path, MAX_BYTES, pipe=root is None, root=root)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        text = f"cannot read {source.shown}: {reason}"
        findings.error("JS100", at or (source, 0, 0), text, _file_hint(source.path, error))
    return None


def _file_hint(path: Path, error: OSError) -> str:
    if is_folder(path):
        return "It is a folder; name a file."
    if error.errno in (errno.EINVAL, errno.EFBIG):
        return "Name a file of the workspace."
    if exists(path):
        return "Check its permissions."
    return "Check the path; in a file, it is relative to that file."


def parse_document(source: Source, data: bytes, findings: Findings) -> Node | None:
    """Return the one document in `data`; None when it is empty or after a finding."""
    try:
        return _NodeBuilder(source, _decode_text(source, data), findings).build()
    except _ReadError as error:
        findings.error(error.code, error.place, error.summary, error.detail)
        return None


def _decode_text(source: Source, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        place = (source, before.count("\n"), len(before) - before.rfind("\n") - 1)
        raise _ReadError(
            "JS100", place, f"{source.shown} is not UTF-8", "Save the file as UTF-8."
        ) from None
    if source.path.suffix == ".json":  # YAML has no surrogate pairs
        text = _SURROGATES.sub(
            lambda pair: (
                pair[0]
                .encode()
                .decode("unicode_escape")
                .encode("utf-16", "surrogatepass")
                .decode("utf-16")
            ),
            text,
        )
    return text


class _NodeBuilder:
    """Turns the events of one document into nodes."""

    __slots__ = ("anchors", "dynamic", "findings", "next", "repeated", "sizes", "source", "text")

    def __init__(self, source: Source, text: str, findings: Findings) -> None:
        self.source, self.text, self.findings = source, text, findings
        self.anchors: dict[str, Node] = {}
        self.sizes: dict[int, tuple[int, int]] = {}
        self.repeated = 0
        self.dynamic = 0

    def build(self) -> Node | None:
        try:
            self.next = Parser(self.text).get_event
            return self._build_document()
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except (yaml.YAMLError, UnicodeError):  # reader errors: characters that YAML does not allow
            raise self._character_error() from None

    def _build_document(self) -> Node | None:
        self.next()  # the stream begins
        if type(self.next()) is yaml.StreamEndEvent:
            return None
        root = self._build_node(self.next(), 0)
        self.next()  # the document ends
        extra: Any = self.next()
        if type(extra) is not yaml.StreamEndEvent:
            place = (self.source, extra.start_mark.line, extra.start_mark.column)
            raise _ReadError(
                "JS101",
                place,
                "a second YAML document begins here",
                "Put it into a file of its own.",
            )
        return None if root.value is None else root

    def _build_node(self, event: Any, depth: int) -> Node:
        kind = type(event)
        mark = event.start_mark
        place = (self.source, mark.line, mark.column)
        if kind is yaml.ScalarEvent:
            node = self._build_scalar(event, place)
        elif kind is yaml.AliasEvent:
            return self._resolve_alias(event.anchor, place, depth)
        else:
            if depth > MAX_DEPTH:
                raise self._depth_error(place)
            before = self.dynamic
            node = (
                self._build_mapping(place, depth)
                if kind is yaml.MappingStartEvent
                else self._build_sequence(place, depth)
            )
            node.dynamic = self.dynamic != before
            if event.tag is not None:
                self._check_tag(event, place, "map" if kind is yaml.MappingStartEvent else "seq")
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _build_scalar(self, event: Any, place: Place) -> Node:
        raw = event.value
        if event.implicit[0]:
            value = resolve(raw)
            if value is OUT_OF_RANGE:
                hint = "Numbers have at most 64 bits; put text in quotes."
                self.findings.error("JS104", place, "the number is too large", hint)
                value = None
        else:
            value = raw if event.tag is None else self._resolve_tag(event.tag, raw, place)
        node = Node(place, value, raw)
        if "${" in raw:
            node.dynamic = True
            self.dynamic += 1
        return node

    def _resolve_tag(self, tag: str, raw: str, place: Place) -> Any:
        if tag in ("!", f"{_CORE}str"):
            return raw
        value = resolve(raw)
        names = {
            f"{_CORE}int": int,
            f"{_CORE}float": (int, float),
            f"{_CORE}bool": bool,
            f"{_CORE}null": type(None),
        }
        if tag in names and isinstance(value, names[tag]):  # type: ignore[arg-type]
            return value
        self._refuse_tag(place)
        return raw

    def _check_tag(self, event: Any, place: Place, core: str) -> None:
        if event.tag not in ("!", _CORE + core):
            self._refuse_tag(place)

    def _refuse_tag(self, place: Place) -> None:
        text = "YAML tags are not supported"
        self.findings.error("JS101", place, text, 'If !name is text, put it in quotes: "!name".')

    def _build_sequence(self, place: Place, depth: int) -> Node:
        items = []
        event = self.next()
        while type(event) is not yaml.SequenceEndEvent:
            items.append(self._build_node(event, depth + 1))
            event = self.next()
        return Node(place, items)

    def _build_mapping(self, place: Place, depth: int) -> Node:
        node = Node(place, {})
        values: dict[str, Node] = node.value
        keys: dict[str, Place] = {}
        node.keys = keys
        merged: list[Node] = []
        event: Any = self.next()
        while type(event) is not yaml.MappingEndEvent:
            if type(event) is not yaml.ScalarEvent:
                event = self._key_alias(event)
            key, mark = event.value, event.start_mark
            key_place = (self.source, mark.line, mark.column)
            if event.anchor is not None:
                self.anchors[event.anchor] = Node(key_place, key, key)
            value = self._build_node(self.next(), depth + 1)
            if key == "<<" and event.implicit[0]:
                merged.append(value)
            elif key in values:
                self._report_duplicate_key(key_place, keys[key])
            else:
                values[key], keys[key] = value, key_place
                if "${" in key:
                    self.dynamic += 1
            event = self.next()
        for other in merged:
            self._merge(node, other)
        return node

    def _key_alias(self, event: Any) -> Any:
        target = self.anchors.get(str(event.anchor)) if type(event) is yaml.AliasEvent else None
        mark = event.start_mark
        if target is None or target.raw is None:
            raise _ReadError(
                "JS101",
                (self.source, mark.line, mark.column),
                "a key must be text",
                "Write `key: value`. A template ({{ … }}) must be rendered first.",
            )
        return yaml.ScalarEvent(None, None, (False, True), target.raw, mark, mark)

    def _report_duplicate_key(self, place: Place, first: Place) -> None:
        text = "a key is written twice"
        self.findings.error("JS103", place, text, f"It is also at {source_range(first)}; keep one.")

    def _merge(self, node: Node, other: Node) -> None:
        """Apply `<<`: the mapping's own keys win, then the first of several."""
        for base in other.value if isinstance(other.value, list) else [other]:
            if not isinstance(base.value, dict):
                hint = "Write `<<: *name` with the anchor of a mapping."
                self.findings.error("JS101", base.place, "`<<` merges mappings only", hint)
                continue
            for key, value in base.value.items():
                if key not in node.value:
                    node.value[key], node.keys[key] = value, base.keys[key]

    @staticmethod
    def _depth_error(place: Place) -> _ReadError:
        return _ReadError(
            "JS101",
            place,
            f"nested deeper than {MAX_DEPTH} levels",
            "No configuration is that deep; check the brackets.",
        )

    def _resolve_alias(self, name: str, place: Place, depth: int) -> Node:
        node = self.anchors.get(name)
        if node is None:
            raise _ReadError(
                "JS101",
                place,
                "the alias refers to no anchor before it",
                "Write &name at the value that *name means."
                ' If it is text, put it in quotes: "*name".',
            )
        size, height = self._measure(node)
        if depth + height > MAX_DEPTH + 1:
            raise self._depth_error(place)
        self.repeated += size
        if self.repeated > MAX_REPEATED:
            raise _ReadError(
                "JS101",
                place,
                "aliases repeat too much of this file",
                f"They may repeat {MAX_REPEATED} values in all.",
            )
        self.findings.allow_values(size, place)
        self.dynamic += node.dynamic
        return node

    def _measure(self, node: Node) -> tuple[int, int]:
        """Count the nodes with all aliases expanded, and their levels; results are cached."""
        known = self.sizes.get(id(node))
        if known is None:
            found = [self._measure(child) for child in children(node)]
            level = 1 if isinstance(node.value, dict | list) else 0
            known = (
                1 + sum(size for size, _ in found),
                level + max((height for _, height in found), default=0),
            )
            self.sizes[id(node)] = known
        return known

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> _ReadError:
        mark = error.problem_mark or error.context_mark
        if mark and error.context_mark and mark.line > self.text.rstrip().count("\n"):
            mark = (
                error.context_mark
            )  # the file ended inside of something; report where that begins
        line, column = (mark.line, mark.column) if mark else (0, 0)
        end = self.text.rstrip()
        if line > end.count("\n"):
            line, column = end.count("\n"), len(end) - end.rfind("\n") - 1
        text = self._line_text(line)
        problem = error.problem or "it cannot be read"
        return _ReadError(
            "JS101",
            (self.source, line, column),
            f"broken YAML: {problem}",
            _yaml_hint(text, column, problem, error.context),
        )

    def _line_text(self, number: int) -> str:
        lines = self.text.split("\n", number + 1)
        return lines[number] if number < len(lines) else ""

    def _character_error(self) -> _ReadError:
        found = _UNPRINTABLE.search(self.text)
        before = self.text[: found.start()] if found else ""
        place = (self.source, before.count("\n"), len(before) - before.rfind("\n") - 1)
        shown = f"the character U+{ord(found[0]):04X}" if found else "a character"
        return _ReadError(
            "JS101",
            place,
            f"broken YAML: {shown} is not allowed",
            "Remove it, or write it as an escape inside double quotes.",
        )


def _yaml_hint(line: str, column: int, problem: str, context: str | None) -> str:
    if "\t" in line[: column + 1]:
        return "YAML does not allow tabs for indentation; use spaces."
    if "mapping values are not allowed" in problem:
        return (
            'There are two ": " on this line, or the line above is indented less than it seems.'
            ' Put text that holds ": " in quotes.'
        )
    if "cannot start any token" in problem or "alias" in (context or "") or "${" in line:
        return _QUOTING
    if "flow" in (context or ""):
        return f"A comma or a closing bracket is missing: it was found {context}."
    if "did not find expected" in problem or "could not find expected" in problem:
        return "Check the indentation of this line and of the one above."
    if context:
        return f"It was found {context}; check this line and the one above."
    return "Check this line and the one above."


# --- plain scalars --------------------------------------------------------------------------------

#: The result of `resolve` for a number that no JetStream field and no JSON document can hold.
OUT_OF_RANGE: Final = object()
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_FIRST = frozenset("0123456789+-.~nNtTfF")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def resolve(text: str) -> Any:
    """Return None, bool, int, float or the text; OUT_OF_RANGE beyond 64 bits, for .inf and .nan."""
    if not text:
        return None
    if text[0] not in _FIRST:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return _check_bounds(int(text)) if len(text) < 24 else OUT_OF_RANGE
    if _OTHER_BASE.fullmatch(text):
        return _check_bounds(int(text, 0)) if len(text) < 28 else OUT_OF_RANGE
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else OUT_OF_RANGE
    return OUT_OF_RANGE if _NO_NUMBER.fullmatch(text) else text


def _check_bounds(number: int) -> Any:
    return number if -(2**63) <= number < 2**64 else OUT_OF_RANGE
