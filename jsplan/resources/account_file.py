"""Accounts in files of the servers' configuration: the lines of words as text, and back.

The block of an account includes its file. The permissions of an application are a variable in it,
for the operator of the servers to give to a user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Final

from jsplan.resources.account import EXPORTS, IMPORTS, ROLES, ExportWords, ImportWords
from jsplan.resources.fields import Config

#: Bytes of a file at most.
MAX_BYTES: Final = 1 << 20
_VERBS: Final = ("publish", "subscribe")
_USED: Final = "# Servers refuse a variable that nothing uses. The next list replaces this one."
_TEXT: Final = r'"(?:[^"\\]|\\.)*"'
_EXPORT: Final = re.compile(
    rf"{{(service|stream): ({_TEXT})(, response_type: stream)?"
    r"(?:, account_token_position: (\d+))?(?:, accounts: \[(.*)\])?}"
)
_IMPORT: Final = re.compile(
    rf"{{(service|stream): {{account: (.*), subject: ({_TEXT})}}(?:, to: ({_TEXT}))?}}"
)
_APP: Final = re.compile(r"(\S+)_permissions = \{")
_ALLOWED: Final = re.compile(r"(publish|subscribe): \{allow: \[")


def header_of(account: str, workspace: str) -> str:
    """Return the line by which jsplan knows its files."""
    return f"# jsplan writes this file: account {account} of workspace {workspace}. Do not edit it."


def variable_of(app: str) -> str:
    """Return the variable with the permissions of an application: no other key has such a name."""
    return f"{app}_permissions"


def render_file(config: Config, header: str) -> str:
    """Return the whole file of an account. Its lists may be empty: they are all that there is."""
    roles: dict[str, list[str]] = {}
    for line in config.get(ROLES) or ():
        roles.setdefault(line.split(" ", 1)[0], []).append(line)
    exports = {ExportWords.parse(each): "" for each in config.get(EXPORTS) or ()}
    imports = {ImportWords.parse(each): "" for each in config.get(IMPORTS) or ()}
    used = ", ".join(f"${variable_of(app)}" for app in roles)
    parts = [
        f"{header}\n# accounts {{ {config['name']} {{ include ./{config['name']}.conf … }} }}\n",
        *(render_permissions(app, dict.fromkeys(lines, "")) for app, lines in roles.items()),
        f"{_USED}\n{EXPORTS}: [{used}]\n",
        render_exports(exports),
        render_imports(imports),
    ]
    return "".join(parts)


def render_exports(exports: Mapping[ExportWords, str]) -> str:
    """Return the list of exports, each with a remark. Those of one subject are one element."""
    groups: dict[tuple[str, str], list[ExportWords]] = {}
    for each in exports:
        groups.setdefault((each.kind, each.subject), []).append(each)
    return _render_list(EXPORTS, ((_render_export(g), exports[g[0]]) for g in groups.values()))


def render_imports(imports: Mapping[ImportWords, str]) -> str:
    """Return the list of imports, each with a remark."""
    return _render_list(IMPORTS, ((_render_import(each), why) for each, why in imports.items()))


def _render_list(name: str, rows: Iterable[tuple[str, str]]) -> str:
    return "".join([f"{name}: [\n", *(f"    {row}{_remark(why)}\n" for row, why in rows), "]\n"])


def render_permissions(app: str, lines: Mapping[str, str]) -> str:
    """Return a variable with the permissions in these lines of a role, each with a remark.

    It is for `permissions:` of the user.
    """
    allowed: dict[str, list[str]] = {verb: [] for verb in _VERBS}
    for line, why in lines.items():
        _, _, verb, subject = line.split(" ", 3)
        allowed[verb].append(f"    {_quote(subject)}{_remark(why)}\n")
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
    if name.replace("_", "").replace("-", "").isalnum() and name[:1].isalpha():
        return name
    return _quote(name)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- from text ------------------------------------------------------------------------------------


def parse_file(text: str) -> Config:
    """Return what a file has of the table but the name. Raises ValueError for anything else."""
    lines = dict(_list_lines(text))
    found: Config = {EXPORTS: [], IMPORTS: [], ROLES: []}
    app = verb = ""
    for line in lines.values():
        if match := _EXPORT.fullmatch(line):
            kind, subject, many, token, importers = match.groups()
            for each in importers.split(", ") if importers else [None]:
                words = (_word(subject), bool(many), token, each and _word(each))
                found[EXPORTS].append(ExportWords(kind, *words).line)
        elif match := _IMPORT.fullmatch(line):
            kind, owner, subject, local = match.groups()
            taken = ImportWords(kind, _word(subject), _word(owner), _word(local or subject))
            found[IMPORTS].append(taken.line)
        elif match := _APP.fullmatch(line):
            app = match[1]
        elif match := _ALLOWED.fullmatch(line):
            verb = match[1]
        elif line.startswith('"') and app and verb:
            found[ROLES].append(f"{app} may {verb} {_read_text(line)}")
    written = dict(_list_lines(render_file({"name": "", **found}, "")))
    for number, other in zip_longest(lines, written.values()):
        if lines.get(number) != other:
            where = f"line {number}" if number else "its end"
            raise ValueError(f"is not as jsplan writes it at {where}")
    return {name: rows for name, rows in found.items() if rows}


def _list_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, without indentation, but no comment and no empty line."""
    for number, line in enumerate(text.split("\n"), 1):
        if (bare := line.strip()) and not bare.startswith("#"):
            yield number, bare


def _read_text(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        raise ValueError(f"has {text} where jsplan writes a text") from None


def _word(text: str) -> str:
    """Return a name or a quoted text, which must be one word."""
    word = _read_text(text) if text.startswith('"') else text
    if word.split() != [word]:
        raise ValueError(f"has {text} where jsplan writes one word")
    return word
