"""Tables of the keys of a workspace file, and the one reader that walks mappings by them.

A row is all that is known of a key: what reads its value, what an editor accepts for it
(`workspace_schema`), and what the reference page says of it. Rules between keys are code of the
section, after the reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from jsplan import units
from jsplan.address import Kind
from jsplan.config import parsing
from jsplan.config.file_paths import is_file_content, resolve_file_path
from jsplan.config.findings import Findings
from jsplan.config.interpolate import Scope, interpolate
from jsplan.config.node import Node, make_mapping
from jsplan.config.schema_parts import Schema, list_of, map_of, or_reference, ref, texts
from jsplan.diagnostics import did_you_mean

#: The values of a mapping by key, of every key of its table.
Values = dict[str, Any]


class Reading(Struct, frozen=True):
    """The surroundings of a reading.

    `environ` has the HOME of paths that begin with `~`. Relative paths are below `base`, by default
    the folder of the file that names them. `domains` are the names that a key may give.
    """

    findings: Findings
    environ: Mapping[str, str] = field(default_factory=dict)
    base: Path | None = None
    domains: Collection[str] = ()


#: Reports what is wrong with a value of the right type.
Check = Callable[[Any, Node, Reading], None]


class ValueType(Struct, frozen=True):
    """A type of values: its word on pages, its reader, and the schema for editors.

    `read` takes the node, the words for it in findings, and the surroundings. It reports what is
    wrong, and returns None then. A null counts as a key left out, unless `refuses_null`.
    `sections` are the tables of the mappings in it.
    """

    word: str
    read: Callable[[Node, str, Reading], Any]
    schema: Schema
    sections: tuple[Section, ...] = ()
    refuses_null: bool = False


class Key(Struct, frozen=True, eq=False):
    """One row of a table.

    `doc` may have links, relative to the reference pages. `default` is the value of a key that is
    left out. A required key that is left out is a finding, with `missing` as its advice. `check`
    reports what is wrong with a value of the right type. `label` is that of the section, or another
    one for this key.
    """

    name: str
    type: ValueType
    doc: str
    required: bool = False
    missing: str = ""
    default: Any = None
    check: Check | None = None
    label: str = ""

    @property
    def shown_default(self) -> Any:
        """The default as a file would have it."""
        if self.type.word == "duration" and self.default is not None:
            return units.format_duration(self.default)
        return self.default


class Section(Struct, frozen=True, eq=False, dict=True):
    """The table of one mapping.

    `id` is its name in the schema and on the page, `what` its name in findings. `hints` say what to
    write in place of keys that others use, `advice` in place of any other key. `label` is how
    findings name a key, with `what` as `{what}`. Of `one_of`, an editor wants one at least. Beside
    the keys, the mapping has the fields of the kinds `fields`, but not those of `without`:
    `body` reads them by the field tables. `nullable`: null is as good as the mapping left out.
    """

    id: str
    what: str
    keys: tuple[Key, ...]
    hints: Mapping[str, str] = field(default_factory=dict)
    label: str = "`{key}`"
    one_of: tuple[str, ...] = ()
    advice: str = ""
    fields: tuple[Kind, ...] = ()
    without: tuple[str, ...] = ()
    nullable: bool = False

    @cached_property
    def by_name(self) -> Mapping[str, Key]:
        """Rows by name."""
        return {key.name: key for key in self.keys}

    def read(self, node: Node, reading: Reading, what: str = "") -> Values | None:
        """Return the values of a mapping; None for anything else, which is reported.

        `what` is the name of this one in findings. Unknown keys, wrong types and required keys that
        are left out are reported.
        """
        what = what or self.what
        if not self._check_keys(node, reading, what):
            return None
        return self._read_values(node, reading, what)

    def read_layers(self, layers: Collection[Node], reading: Reading) -> tuple[Node, Values] | None:
        """Return one mapping of several, and its values. A key of a later layer replaces others.

        It is None if no layer has a known key.
        """
        found: dict[str, Node] = {}
        for node in layers:
            if node.value is not None and self._check_keys(node, reading, self.what):
                found |= {key: item for key, item in node.value.items() if key in self.by_name}
        if not found:
            return None
        merged = make_mapping(next(iter(layers)).place, found, {})
        return merged, self._read_values(merged, reading, self.what)

    def _check_keys(self, node: Node, reading: Reading, what: str) -> bool:
        return parsing.check_mapping(node, what, self.by_name, reading.findings, self._hint)

    @cached_property
    def _defaults(self) -> Values:
        return {key.name: key.default for key in self.keys}

    @cached_property
    def _required(self) -> tuple[Key, ...]:
        return tuple(key for key in self.keys if key.required)

    @cached_property
    def _labels(self) -> Mapping[str, str]:
        return {key.name: (key.label or self.label).replace("{key}", key.name) for key in self.keys}

    def _read_values(self, node: Node, reading: Reading, what: str) -> Values:
        found, values = self._defaults.copy(), node.value
        for key in self._required:
            reading.findings.missing(node, key.name, what, key.missing)
        for key in self.keys:
            item = values.get(key.name)
            if item is None or (item.value is None and not key.type.refuses_null):
                continue
            label = self._labels[key.name].replace("{what}", what)
            value = key.type.read(item, label, reading)
            if value is not None:
                found[key.name] = value
                if key.check is not None:
                    key.check(value, item, reading)
        return found

    def _hint(self, key: str) -> str:
        return self.hints.get(key, self.advice)

    def read_all(
        self, listed: Node | None, label: str, reading: Reading, scope: Scope
    ) -> Iterator[tuple[Node, Values]]:
        """Yield each mapping of a list with its values, references resolved.

        `label` is the name of the list in findings.
        """
        for written in parsing.read_list(listed, label, reading.findings):
            node = interpolate(written, scope, reading.findings)
            if (values := self.read(node, reading)) is not None:
                yield node, values


def name_check(pattern: re.Pattern[str], what: str) -> Check:
    """Return the check of a name of `what`, which has letters, digits, - and _."""

    def check(name: str, node: Node, reading: Reading) -> None:
        if not pattern.fullmatch(name):
            text = f'"{name}" is not a name for {what}'
            reading.findings.error("JS131", node, text, "Use letters, digits, - and _.")

    return check


def key_check(pattern: re.Pattern[str], text: str) -> Check:
    """Return the check of a public key. `pattern` begins with its letter, `text` is the finding."""

    def check(key: str, node: Node, reading: Reading) -> None:
        if not pattern.fullmatch(key):
            hint = f"Write the key that begins with {pattern.pattern[0]}."
            reading.findings.error("JS130", node, text, hint)

    return check


# --- types ----------------------------------------------------------------------------------------

Parser = Callable[[Node | None, str, Findings], Any]


def plain(word: str, read: Parser, schema: Schema) -> ValueType:
    """Return a type whose reader needs nothing but the findings."""
    return ValueType(word, lambda node, label, reading: read(node, label, reading.findings), schema)


def parsed(
    word: str,
    parse: Callable[[object], Any],
    schema: Schema,
    detail: str = "Correct the value.",
) -> ValueType:
    """Return a type of values that `parse` reads; its ValueError becomes a finding."""
    return plain(
        word,
        lambda node, label, findings: parsing.read_parsed(node, label, parse, findings, detail),
        schema,
    )


def choice(*values: str) -> ValueType:
    """Return the type of one of a few words."""
    return plain(
        ", ".join(f"`{value}`" for value in values),
        lambda node, label, findings: parsing.read_choice(node, label, values, findings),
        or_reference({"enum": list(values)}),
    )


def mapping(section: Section) -> ValueType:
    """Return the type of a mapping with a table of its own."""
    return ValueType(
        "mapping",
        lambda node, _, reading: section.read(node, reading),
        ref(section.id),
        (section,),
        refuses_null=not section.nullable,
    )


def list_of_mappings(section: Section) -> ValueType:
    """Return the type of a list of mappings; its value is a list of their values."""

    def read(node: Node, label: str, reading: Reading) -> list[Values]:
        items = parsing.read_list(node, label, reading.findings)
        found = (section.read(item, reading) for item in items)
        return [values for values in found if values is not None]

    return ValueType("list of mappings", read, list_of(ref(section.id)), (section,))


def written(word: str, schema: Schema, *sections: Section) -> ValueType:
    """Return a type whose value is the node as written, for code of the section to read."""
    return ValueType(word, lambda node, *_: node, schema, sections)


def written_map(section: Section, word: str = "mapping by name") -> ValueType:
    """Return the type of mappings by name, as written."""
    return written(word, map_of(ref(section.id)), section)


def written_list(section: Section) -> ValueType:
    """Return the type of a list of mappings, as written."""
    return written("list", list_of(ref(section.id)), section)


def _read_context(node: Node, label: str, reading: Reading) -> str | None:
    if is_file_content(node, label, reading.findings):
        return None
    return parsing.read_text(node, label, reading.findings)


def _read_file(node: Node, label: str, reading: Reading) -> Path | None:
    return resolve_file_path(node, label, reading.environ, reading.findings, reading.base)


def _read_domain(node: Node, label: str, reading: Reading) -> str | None:
    name, known = parsing.read_text(node, label, reading.findings), reading.domains
    if name is not None and name not in known:
        hint = f"Declare it under `domains:`.{did_you_mean(name, known)}"
        reading.findings.error("JS122", node, f'there is no domain "{name}"', hint)
    return name


def _parse_time(value: object) -> str:
    if isinstance(value, dict | list):
        raise ValueError("a time is text such as 2026-01-31T12:00:00Z")
    return units.normalize_time(value)


_TEXT: Final[Schema] = ref("text")
TEXT: Final = plain("text", parsing.read_text, _TEXT)
TEXTS: Final = plain("text, or a list of it", parsing.read_texts, texts())
FLAG: Final = plain("true or false", parsing.read_flag, ref("flag"))
DATE: Final = plain("day", parsing.read_date, ref("date"))
ADDRESS: Final = plain("address", parsing.read_address, ref("address"))
DURATION: Final = parsed("duration", units.parse_duration, ref("duration_or_reference"))
TIME: Final = parsed("time", _parse_time, or_reference(ref("time")))
#: A path as written; a path that is absolute; text that may be one.
PATH: Final = plain("path", parsing.read_path, _TEXT)
FILE: Final = ValueType("path", _read_file, _TEXT)
CONTEXT: Final = ValueType("name or path", _read_context, _TEXT)
#: The name of a domain of the workspace.
DOMAIN: Final = ValueType("domain", _read_domain, _TEXT)
