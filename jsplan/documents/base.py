"""Reading and writing the documents as JSON: sorted, typed, checked for their version. Meaning is left to each."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson

from jsplan.errors import JsplanError


class DocumentError(JsplanError):
    """A document cannot be read: not JSON, another kind, or a format this release does not know."""


def dumps(document: Any, *, pretty: bool = True) -> bytes:
    """JSON with sorted keys, so that equal documents are equal bytes; `pretty` indents by two and ends the line."""
    options = orjson.OPT_SORT_KEYS | (orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE if pretty else 0)
    return orjson.dumps(document, option=options)


def digest(document: Any) -> str:
    """`sha256:<hex>` over the sorted JSON of plain data."""
    return "sha256:" + hashlib.sha256(dumps(document, pretty=False)).hexdigest()


def flaw(error: Exception) -> str:
    """What is wrong with a document whose reading ended in this error, in words of the document instead of Python's."""
    if isinstance(error, KeyError):
        return f"the field {error.args[0]} is missing"
    if isinstance(error, TypeError | AttributeError):
        return "a field is missing, or has a value of another type"
    return str(error)


def check_format(raw: Any, kind: str, version: str, where: str) -> dict[str, Any]:
    """The document as a mapping; raises DocumentError unless it is of this kind and major version."""
    if not isinstance(raw, dict) or raw.get("kind") != kind:
        found = f'; its "kind" is {raw["kind"]}' if isinstance(raw, dict) and isinstance(raw.get("kind"), str) else ""
        raise DocumentError(f"{where} is not a jsplan {kind} document{found}", hint=f"Give a file that jsplan wrote as a {kind}.")
    theirs = str(raw.get("format_version", ""))
    if theirs.split(".")[0] != version.split(".")[0]:
        raise DocumentError(
            f"{where} has format {theirs or 'unknown'}; this jsplan reads {version.split('.')[0]}.x",
            hint="Use the jsplan release that wrote it, or make the document again with this one.",
        )
    return raw


def read_json(path: Path, kind: str) -> Any:
    """The parsed file; raises DocumentError when it is missing or no JSON."""
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise DocumentError(f"cannot read {kind} file {path}: {error.strerror}", hint="Check the path.") from None
    except orjson.JSONDecodeError as error:
        raise DocumentError(
            f"{path} is not a {kind} file: {error}", hint=f"The file is damaged or is no jsplan {kind}; make it again."
        ) from None
