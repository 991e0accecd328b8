"""The values of `vars`: default, JSPLAN_VAR_x, --var-file, --var, in the default's type.

A later one overrides an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jsplan.config import parsing
from jsplan.config.files import WorkspaceFiles
from jsplan.config.findings import Findings
from jsplan.config.model import LoadOptions
from jsplan.config.node import Node, Place, Source, describe_node, type_name
from jsplan.config.read import OUT_OF_RANGE, parse_document, resolve
from jsplan.diagnostics import did_you_mean

PREFIX: Final = "JSPLAN_VAR_"
#: How to write a list or a mapping. The default is not shown: it may hold a value to conceal.
_YAML_HELP: Final[dict[type, str]] = {
    list: "Write it as YAML, such as [a, b].",
    dict: "Write it as YAML, such as {a: 1, b: 2}.",
}
_NAMES: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


def resolve_variables(
    section: Node | None, options: LoadOptions, files: WorkspaceFiles
) -> dict[str, Node]:
    """Return every variable with its value; one without a value is reported and null."""
    findings = files.findings
    defaults = dict(parsing.read_mapping(section, "`vars`", findings))
    for name, node in defaults.items():
        if node.dynamic:
            hint = "Defaults are plain values; use ${…} where the variable is used."
            findings.error("JS113", node, f"the default of `{name}` refers to something", hint)
    values = dict(defaults)
    for name, given, what in _given_values(defaults, options, files):
        values[name] = _convert_type(
            given, defaults[name], f"variable {name} (from {what})", findings
        )
    missing = [
        name for name, node in defaults.items() if node.value is None and values[name] is node
    ]
    for name in missing:
        hint = f"Pass --var {name}=VALUE, --var-file, or set {PREFIX}{name}."
        findings.error("JS114", defaults[name], f"variable {name} has no value", hint)
        # No text either: its users are not wrong because of it.
        values[name] = Node(defaults[name].place, None, None)
    return values


def _given_values(
    defaults: Mapping[str, Node], options: LoadOptions, files: WorkspaceFiles
) -> list[tuple[str, Node, str]]:
    """Return the values from outside the files, the strongest last."""
    out = [
        (name, _text_node(PREFIX + name, options.environ[PREFIX + name]), PREFIX + name)
        for name in defaults
        if PREFIX + name in options.environ
    ]
    for path in options.var_files:
        out += _read_var_file(path, defaults, files)
    for text in options.variables:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals:
            files.findings.error(
                "JS115", None, f'--var "{text}" has no value', "Write it as --var name=value."
            )
        elif name not in defaults:
            _report_unknown(name, None, f"--var {name}", defaults, files.findings)
        else:
            out.append((name, _text_node("--var", value), "--var"))
    return out


def _read_var_file(
    path: Path, defaults: Mapping[str, Node], files: WorkspaceFiles
) -> list[tuple[str, Node, str]]:
    node = files.parse_file(path.absolute(), named_by_user=True)
    out = []
    if node is not None and not isinstance(node.value, dict):
        files.findings.wrong_type(node, path.name, "a mapping")
        return []
    if node is not None and files.findings.no_known_keys(
        "JS115", node, f"no key of {path.name} is a variable of the workspace", defaults
    ):
        return []
    for name, value in parsing.read_mapping(node, f"the variables in {path.name}", files.findings):
        if name in defaults:
            out.append((name, value, path.name))
        else:
            assert node is not None
            _report_unknown(
                name, node.key_place(name), f"variable {name}", defaults, files.findings
            )
    return out


def _report_unknown(
    name: str, place: Place | None, shown: str, defaults: Mapping[str, Node], findings: Findings
) -> None:
    guess = did_you_mean(name, defaults)
    text = f"{shown}: the workspace has no variable of this name"
    findings.error(
        "JS115", place, text, guess.strip() or f"Add `{name}: ~` to `vars:`, or remove it."
    )


def _text_node(shown: str, value: str) -> Node:
    return Node((Source(Path(), shown), 0, 0), value, value)


def _convert_type(given: Node, default: Node, what: str, findings: Findings) -> Node:
    """Return the value in the type of the default.

    Text from outside is read as YAML unless that type is text.
    """
    wanted = type(default.value)
    from_outside = not given.place[0].path.name
    if wanted is type(None):
        return _parse_untyped(given, findings) if from_outside else given
    if isinstance(given.value, wanted) and not (wanted is int and isinstance(given.value, bool)):
        return given
    if wanted is str and given.raw is not None and given.value is not None:
        return Node(given.place, given.raw, given.raw)
    read = _parse_untyped(given, findings) if isinstance(given.value, str) else given
    value: Any = read.value
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return read
    if isinstance(value, wanted) and not (wanted is int and isinstance(value, bool)):
        return read
    place = None if from_outside else given.place
    findings.error(
        "JS116",
        place,
        f"{what} must be {_NAMES[wanted]},"
        f" not {type_name(given) if from_outside else describe_node(given)}",
        f"Its default is {default.raw}." if default.raw is not None else _YAML_HELP[wanted],
    )
    return default


def _parse_untyped(given: Node, findings: Findings) -> Node:
    """Read text as a YAML value: 3 is a number, "3" is text, [a, b] is a list."""
    text = str(given.value)
    if text[:1] in ("[", "{", '"', "'"):
        return parse_document(given.place[0], text.encode(), findings) or given
    value = resolve(text)
    return given if value is OUT_OF_RANGE or value is None else Node(given.place, value, text)
