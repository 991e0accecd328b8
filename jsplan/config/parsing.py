"""Parsers of small parts: mappings with known keys, text, flags, lists.

Each reports errors and continues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date
from typing import Final, TypeVar
from urllib.parse import urlsplit

from jsplan.address import ADDRESS_KINDS, Address, is_glob
from jsplan.config.findings import Findings
from jsplan.config.node import Node
from jsplan.diagnostics import did_you_mean

T = TypeVar("T")
_CODE = re.compile(r"JS\d{3}")


def read_mapping(node: Node | None, what: str, findings: Findings) -> Iterator[tuple[str, Node]]:
    """Yield the entries of a mapping; a key without a value is an empty one."""
    found: dict[str, Node] = _read_value(node, dict, what, "a mapping", findings) or {}
    return iter(found.items())


def read_list(node: Node | None, what: str, findings: Findings) -> list[Node]:
    """Return the elements of a list; a key without a value is an empty one."""
    return _read_value(node, list, what, "a list", findings) or []


def _read_value(
    node: Node | None, kind: type[T], what: str, expected: str, findings: Findings
) -> T | None:
    """Return a value of this type; None when there is no value, or after a finding."""
    if node is None or node.value is None:
        return None
    if not isinstance(node.value, kind):
        findings.wrong_type(node, what, expected)
        return None
    return node.value


def check_mapping(
    node: Node,
    what: str,
    known: Collection[str],
    findings: Findings,
    hint: Callable[[str], str] | None = None,
) -> bool:
    """Return True for a mapping; report unknown keys, with `hint(key)` or a close word."""
    if not isinstance(node.value, dict):
        findings.wrong_type(node, what, "a mapping")
        return False
    if not node.value.keys() <= set(known):
        for key in node.value:
            if key not in known:
                report_unknown_key(node, key, what, known, findings, hint(key) if hint else "")
    return True


def report_unknown_key(
    node: Node, key: str, what: str, known: Iterable[str], findings: Findings, hint: str = ""
) -> None:
    """Report one unknown key of a mapping."""
    names = sorted(known)
    advice = hint or did_you_mean(key, names).strip()
    text = f'"{key}" is not a key of {what}'
    findings.unknown_key(node, key, text, advice or f"The keys are {', '.join(names)}.")


def read_text(node: Node | None, what: str, findings: Findings) -> str | None:
    """Return text that is not empty; None when there is no value, or after a finding."""
    value = _read_value(node, str, what, "text", findings)
    if value == "":
        findings.error("JS104", node, f"{what} is empty", "Write a value, or remove the key.")
    return value or None


def read_required_text(parent: Node, key: str, what: str, findings: Findings) -> str | None:
    """Return the text under a required key; None after a finding, or if it is unknown."""
    node = parent.get(key)
    if not parent.is_given(key):
        findings.missing(parent, key, what)
        return None
    return read_text(node, f"`{key}`", findings)


def read_path(node: Node | None, what: str, findings: Findings) -> str | None:
    """Return text that can be the name of a file."""
    value = read_text(node, what, findings)
    if value is None or value.isprintable():
        return value
    text = f"{what} has a character that no file's name should have"
    findings.error("JS130", node, text, "Remove tabs, line breaks and the like.")
    return None


def url_problem(value: str, schemes: Collection[str]) -> str:
    """Explain why text is not a URL of one of the schemes; empty if it is one.

    It never repeats what precedes `@` or follows the host.
    """
    scheme, mark, rest = value.partition("://")
    if not mark or scheme not in schemes:
        if mark and scheme.isalnum():
            return f'"{scheme}" is not one of {", ".join(schemes)}'
        return "it has no scheme"
    if any(c.isspace() or not c.isprintable() for c in value):
        return "it has a blank or an invisible character"
    port = re.split("[/?#]", rest)[0].rpartition("@")[2].rpartition("]")[2].partition(":")[2]
    if port and not (port.isascii() and port.isdecimal() and 0 < int(port[:9]) < 65536):
        return f'"{port}" is no port'
    try:
        host = urlsplit(value).hostname
    except ValueError:
        return "its host is no name and no address"
    return "" if host else "it names no host"


def parse_subject_prefix(value: object) -> str:
    """Parse a subject without wildcards, blanks or a dot at its end; raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    prefix = value.removesuffix(".")
    if not prefix or re.search(r"[\s*>]", prefix) or not all(prefix.split(".")):
        raise ValueError(
            f'"{value}" is not a subject prefix; it has no blanks, wildcards or empty parts'
        )
    return prefix


def read_flag(node: Node | None, what: str, findings: Findings) -> bool | None:
    """Return a boolean; None when there is no value, or after a finding."""
    return _read_value(node, bool, what, "true or false", findings)


def read_texts(node: Node | None, what: str, findings: Findings) -> list[str]:
    """Return a list of text; one text alone is a list of one."""
    if node is not None and isinstance(node.value, str):
        return [node.value]
    found = (
        read_text(item, f"an element of {what}", findings)
        for item in read_list(node, what, findings)
    )
    return [item for item in found if item is not None]


def read_parsed(
    node: Node | None,
    what: str,
    parse: Callable[[object], T],
    findings: Findings,
    detail: str = "Correct the value.",
) -> T | None:
    """Return the value as `parse` reads it; its ValueError becomes a finding without secrets."""
    if node is None or node.value is None:
        return None
    try:
        return parse(node.value)
    except ValueError as error:
        reason = "the secret value is not accepted" if node.secret else str(error)
        findings.error("JS130", node, f"{what}: {reason}", detail)
        return None


def read_choice(
    node: Node | None, what: str, values: Collection[str], findings: Findings
) -> str | None:
    """Return one of a few words."""
    value = read_text(node, what, findings)
    if value is None or value in values:
        return value
    hint = f"It can be {', '.join(values)}.{did_you_mean(value, values)}"
    findings.error("JS130", node, f'{what} cannot be "{value}"', hint)
    return None


def read_code(node: Node | None, what: str, findings: Findings) -> str | None:
    """Return a code such as JS201."""
    value = read_text(node, what, findings)
    if value is None or _CODE.fullmatch(value):
        return value
    text = f'"{value}" is not a lint code'
    findings.error("JS140", node, text, "A code is JS and three digits, as in JS201.")
    return None


def read_date(node: Node | None, what: str, findings: Findings) -> str | None:
    """Return a date such as 2026-12-31."""
    value = read_text(node, what, findings)
    if value is None:
        return None
    if not _is_date(value):
        findings.error("JS142", node, f'{what}: "{value}" is not a date', "Write it as 2026-12-31.")
        return None
    return value


def _is_date(value: str) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def read_address(node: Node | None, what: str, findings: Findings) -> str | None:
    """Return an address or a glob over addresses, as text."""
    value = read_text(node, what, findings)
    if value is None:
        return None
    problem = address_problem(value)
    if problem:
        hint = (
            "Write an address such as hub/stream/ORDERS,"
            " or a glob such as hub/stream/* or store-*/**."
        )
        findings.error("JS143", node, f"{what}: {problem}", hint)
        return None
    return value


def address_problem(value: str) -> str:
    """Explain what is wrong with an address or glob; empty if nothing is."""
    if not is_glob(value):
        try:
            Address.parse(value)
        except ValueError as error:
            return str(error)
        return ""
    parts = value.split("/")
    if not all(parts):
        return f'"{value}" has an empty part'
    if "**" in value:
        kind = parts[1] if len(parts) > 1 and "**" not in parts[0] else ""
    elif len(parts) in (3, 4):
        kind = parts[1]
    else:
        return f'"{value}" matches no address; an address is DOMAIN/KIND/NAME'
    if kind and not is_glob(kind) and kind not in ADDRESS_KINDS:
        return f'"{kind}" in "{value}" is not a kind; the kinds are {", ".join(ADDRESS_KINDS)}'
    return ""


# --- places of archives ---------------------------------------------------------------------------

OBJECT_SCHEMES: Final = ("s3", "gs", "az")
PLACE_HINT: Final = (
    "Write a folder, file:///FOLDER, s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH."
)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def archive_url_problem(text: str) -> str:
    """Explain why text cannot be the place of an archive; empty if it can.

    A folder always can. Apart from the scheme, nothing of the text is repeated.
    """
    scheme, is_url, rest = text.partition("://")
    if not is_url:
        return ""
    bucket, _, path = rest.partition("/")
    if scheme == "file":
        return "" if bucket in {"", "localhost"} else "a file:// URL names no other machine"
    if scheme not in OBJECT_SCHEMES:
        return url_problem(f"{scheme}://host", ("file", *OBJECT_SCHEMES))
    if "@" in bucket or ":" in bucket:
        return (
            "it has a user, password or port. The environment has the credentials and the "
            "endpoint of the object store"
        )
    if re.search(r"[?#\s]", rest) or not rest.isprintable():
        return "it has a query, a blank or an invisible character"
    if not _BUCKET.fullmatch(bucket):
        return "it names no bucket"
    if not (path := path.strip("/")):
        return "it names no path in the bucket"
    return "its path has an empty part, . or .." if {"", ".", ".."} & {*path.split("/")} else ""
