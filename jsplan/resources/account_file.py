"""Accounts in files of the servers' configuration: the lines of words as text, and back.

The block of an account includes its file. The permissions of an application are a variable in it,
for the operator of the servers to give to a user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from jsplan.resources.account import (
    EXPORTS,
    IMPORTS,
    ROLES,
    ExportWords,
    ImportWords,
    role_lines,
)
from jsplan.resources.fields import Config

_SUFFIX: Final = "_permissions"
_VERBS: Final = ("publish", "subscribe")
#: Bytes of a file at most.
MAX_BYTES: Final = 1 << 20
_USED: Final = (
    "# Used here, since servers refuse a variable that nothing uses. The next list replaces it."
)
_LEXEME: Final = re.compile(
    r"""\s+|\#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<sign>[\[\]{},:=])"""
    r"""|(?P<word>[^\s\[\]{},:="'\#]+)|(?P<wrong>.)"""
)


def header_of(account: str, workspace: str) -> str:
    """Return the line by which jsplan knows its files."""
    return f"# jsplan writes this file: account {account} of workspace {workspace}. Do not edit it."


def variable_of(app: str) -> str:
    """Return the variable with the permissions of an application: no other key has such a name."""
    return f"{app}{_SUFFIX}"


def render_file(config: Config, header: str) -> str:
    """Return the whole file of an account."""
    roles: dict[str, list[str]] = {}
    for line in config.get(ROLES) or ():
        roles.setdefault(line.split(" ", 1)[0], []).append(line)
    exports = render_exports({ExportWords.parse(each): "" for each in config.get(EXPORTS) or ()})
    imports = render_imports({ImportWords.parse(each): "" for each in config.get(IMPORTS) or ()})
    used = ", ".join(f"${variable_of(app)}" for app in roles)
    parts = [
        f"{header}\n# accounts {{ {config['name']} {{ include ./{config['name']}.conf … }} }}\n",
        *(render_permissions(app, lines) for app, lines in roles.items()),
        f"{_USED}\n{EXPORTS}: [{used}]\n" if roles else "",
        exports or (f"{EXPORTS}: []\n" if roles else ""),
        imports,
    ]
    return "".join(parts)


def render_exports(exports: Mapping[ExportWords, str]) -> str:
    """Return the list of exports, each with a remark; empty if there are none.

    Those of one subject are one element.
    """
    groups: dict[tuple[str, str], list[ExportWords]] = {}
    for each in exports:
        groups.setdefault((each.kind, each.subject), []).append(each)
    rows = [(_render_export(group), exports[group[0]]) for group in groups.values()]
    return _render_list(EXPORTS, rows)


def render_imports(imports: Mapping[ImportWords, str]) -> str:
    """Return the list of imports, each with a remark; empty if there are none."""
    return _render_list(IMPORTS, [(_render_import(each), why) for each, why in imports.items()])


def _render_list(name: str, rows: Iterable[tuple[str, str]]) -> str:
    shown = [f"    {row}{_remark(why)}\n" for row, why in rows]
    return "".join([f"{name}: [\n", *shown, "]\n"]) if shown else ""


def render_permissions(
    app: str, lines: Iterable[str], remarks: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return a variable with the permissions of an application, for `permissions:` of its user."""
    allowed: dict[str, list[str]] = {verb: [] for verb in _VERBS}
    for line in lines:
        _, _, verb, subject = line.split(" ", 3)
        why = _remark(remarks.get(line, ""))
        allowed[verb].append(f"    {_quote(subject)}{why}\n")
    blocks = [
        # A server takes an empty list for everything.
        f"  {verb}: {{allow: [\n{''.join(rows)}  ]}}\n" if rows else f'  {verb}: {{deny: ">"}}\n'
        for verb, rows in allowed.items()
    ]
    return f"{variable_of(app)} = {{\n{''.join(blocks)}}}\n"


def _render_export(group: list[ExportWords]) -> str:
    kind, subject, many, token, _ = group[0]
    parts = [f"{kind}: {_quote(subject)}"]
    parts += ["response_type: stream"] if many else []
    parts += [f"account_token_position: {token}"] if token else []
    importers = [_quote_if_needed(each.importer) for each in group if each.importer is not None]
    parts += [f"accounts: [{', '.join(importers)}]"] if importers else []
    return "{" + ", ".join(parts) + "}"


def _render_import(taken: ImportWords) -> str:
    renamed = f", to: {_quote(taken.local)}" if taken.local != taken.subject else ""
    origin = f"account: {_quote_if_needed(taken.owner)}, subject: {_quote(taken.subject)}"
    return f"{{{taken.kind}: {{{origin}}}{renamed}}}"


def _remark(text: str) -> str:
    return f"  # {text}" if text else ""


def _quote_if_needed(name: str) -> str:
    """Quote a name that the server's configuration could read as a number or a variable."""
    return (
        name
        if name.replace("_", "").replace("-", "").isalnum() and name[:1].isalpha()
        else _quote(name)
    )


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- from text ------------------------------------------------------------------------------------


def parse_file(text: str) -> Config:
    """Return what a file has of the table but the name. Raises ValueError for anything else."""
    rows = _read_map(_read_lexemes(text), end="")
    found: Config = {
        EXPORTS: [line for row in _list_rows(rows, EXPORTS) for line in _export_lines(row)],
        IMPORTS: [_import_line(row) for row in _list_rows(rows, IMPORTS)],
        ROLES: [line for key, value in rows.items() for line in _role_lines(key, value)],
    }
    found = {name: lines for name, lines in found.items() if lines}
    again = _read_map(_read_lexemes(render_file({"name": "", **found}, "")), end="")
    for key in rows.keys() | again.keys():
        if _sorted(rows.get(key) or []) != _sorted(again.get(key) or []):
            raise ValueError(f"has something in `{key}` that jsplan does not write")
    return found


def _read_lexemes(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of the text as signs, words and texts, and at last an empty sign."""
    for match in _LEXEME.finditer(text):
        if match.lastgroup == "wrong":
            line = text.count("\n", 0, match.start()) + 1
            raise ValueError(f"cannot be read at line {line}")
        if match.lastgroup is not None:
            part = match[0]
            yield match.lastgroup, json.loads(part) if match.lastgroup == "text" else part
    yield "sign", ""


def _read_map(lexemes: Iterator[tuple[str, str]], end: str) -> dict[str, Any]:
    """Read pairs up to the sign `end`. Of two with one key the later one counts."""
    found: dict[str, Any] = {}
    for kind, key in lexemes:
        if (kind, key) == ("sign", end):
            return found
        if (kind, key) == ("sign", ","):
            continue
        lexeme = next(lexemes)
        if lexeme in (("sign", ":"), ("sign", "=")):
            lexeme = next(lexemes)
        if kind == "sign":
            break
        found[key] = _read_value(lexeme, lexemes)
    raise ValueError("cannot be read: a bracket is missing")


def _read_value(lexeme: tuple[str, str], lexemes: Iterator[tuple[str, str]]) -> Any:
    match lexeme:
        case ("sign", "{"):
            return _read_map(lexemes, "}")
        case ("sign", "["):
            found: list[Any] = []
            while (each := next(lexemes)) != ("sign", "]"):
                found += [_read_value(each, lexemes)] if each != ("sign", ",") else []
            return found
        case ("sign", sign):
            raise ValueError(f"cannot be read at {sign or 'its end'}")
    return lexeme[1]


def _sorted(value: Any) -> str:
    """Return a value without the order of what is in it."""
    if isinstance(value, dict):
        return str(sorted((key, _sorted(each)) for key, each in value.items()))
    return str(sorted(map(_sorted, value)) if isinstance(value, list) else value)


def _list_rows(rows: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = rows.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _export_lines(row: Mapping[str, Any]) -> Iterator[str]:
    kind = "service" if "service" in row else "stream"
    token, many = row.get("account_token_position"), row.get("response_type") == "stream"
    for importer in row.get("accounts") or [None]:
        yield ExportWords(kind, str(row.get(kind)), many, token, importer).line


def _import_line(row: Mapping[str, Any]) -> str:
    kind = "service" if "service" in row else "stream"
    taken = row.get(kind)
    origin = taken if isinstance(taken, dict) else {}
    subject, owner = str(origin.get("subject")), str(origin.get("account"))
    return ImportWords(kind, subject, owner, str(row.get("to") or subject)).line


def _role_lines(key: str, value: Any) -> Iterator[str]:
    allowed = [
        [each for each in block.get("allow") or () if isinstance(each, str)]
        for verb in _VERBS
        for block in [value.get(verb) if isinstance(value, dict) else None]
        if isinstance(block, dict) and isinstance(block.get("allow") or [], list)
    ]
    if key.endswith(_SUFFIX) and len(allowed) == len(_VERBS):
        yield from role_lines(key.removesuffix(_SUFFIX), None, *allowed)
