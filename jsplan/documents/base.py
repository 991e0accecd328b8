"""Read and write documents as JSON: with sorted keys, and checked for kind and version."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import orjson
from msgspec import Struct, to_builtins

from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import JsplanError
from jsplan.invisible_characters import INVISIBLE_IN_JSON

#: A document of more bytes is refused before it is parsed; 20,000 resources take about 40 MiB.
MAX_BYTES: Final = 512 * MEGABYTE
#: Levels of lists and objects. Configurations have about ten.
MAX_DEPTH: Final = 64


class DocumentError(JsplanError):
    """A document cannot be read: no JSON, another kind, or a format unknown to this release."""


class Document(Struct, kw_only=True, tag_field="kind", tag=""):
    """One document. Its kind is the tag of the class.

    `COMPUTED` are properties that are written like fields, `LOCAL` are fields that are not written.
    """

    FORMAT_VERSION: ClassVar[str] = "1.0"
    COMPUTED: ClassVar[tuple[str, ...]] = ()
    LOCAL: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """The document as plain data."""
        out: dict[str, Any] = plain(self)
        for name in self.LOCAL:
            del out[name]
        computed = {name: plain(getattr(self, name)) for name in self.COMPUTED}
        return {"format_version": self.FORMAT_VERSION} | out | computed


def plain(part: Any) -> Any:
    """Return a part of a document as plain data."""
    return to_builtins(part)


def dumps(document: Any, *, pretty: bool = True) -> bytes:
    """Return JSON with sorted keys, so that equal documents are equal bytes.

    `pretty` indents by two and ends the line. Invisible characters are escaped, so that two names
    that differ look different.
    """
    options = orjson.OPT_SORT_KEYS | (
        orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE if pretty else 0
    )
    data = orjson.dumps(document, option=options)
    if data.isascii() and b"\x7f" not in data:
        return data
    return INVISIBLE_IN_JSON.sub(_escape_character, data.decode()).encode()


def _escape_character(character: re.Match[str]) -> str:
    return json.dumps(character[0])[1:-1] if character[0] != "\x7f" else "\\u007f"


def digest(document: Any) -> str:
    """Return `sha256:<hex>` of the sorted JSON of plain data."""
    return (
        "sha256:" + hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()
    )


def digest_large(document: Mapping[str, Any]) -> str:
    """Return what `digest` returns, without the whole document in memory.

    Iterators stand for lists. Elements of lists are encoded one after the other.
    """
    found = hashlib.sha256()
    for number, name in enumerate(sorted(document)):
        found.update(b"," if number else b"{")
        found.update(orjson.dumps(name) + b":")
        value = document[name]
        if isinstance(value, list | Iterator):
            opening = b"["
            for element in value:
                found.update(opening + orjson.dumps(element, option=orjson.OPT_SORT_KEYS))
                opening = b","
            found.update(b"]" if opening == b"," else b"[]")
        else:
            found.update(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
    found.update(b"}" if document else b"{}")
    return f"sha256:{found.hexdigest()}"


def parse(data: bytes, where: str, hint: str, wrong: str = "is damaged") -> Any:
    """Parse JSON. Raises DocumentError for anything else, and beyond `MAX_DEPTH` levels.

    `wrong` is the problem that the error states for data that is no JSON.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DocumentError(f"{where} {wrong}: {error}", hint=hint) from None
    if is_deeper(document, MAX_DEPTH):
        raise DocumentError(
            f"{where} is damaged: it is nested more than {MAX_DEPTH} levels deep", hint=hint
        )
    return document


_CONTAINERS: Final = frozenset((dict, list))


def is_deeper(document: Any, levels: int) -> bool:
    """Check plain data for more levels of lists and objects, without recursion."""
    level: list[Any] = [[document]]
    for _ in range(levels + 1):
        level = [
            value
            for container in level
            for value in (container.values() if type(container) is dict else container)
            if type(value) in _CONTAINERS
        ]
        if not level:
            return False
    return True


def check_format(raw: Any, kind: str, version: str, where: str) -> dict[str, Any]:
    """Return the document as a mapping.

    Raises DocumentError unless it has this kind and major version.
    """
    if not isinstance(raw, dict) or raw.get("kind") != kind:
        actual = ""
        if isinstance(raw, dict) and isinstance(raw.get("kind"), str):
            actual = f'; its "kind" is {raw["kind"]}'
        raise DocumentError(
            f"{where} is not a jsplan {kind} document{actual}",
            hint=f"Give a file of the kind {kind} that jsplan wrote.",
        )
    theirs = str(raw.get("format_version", ""))
    if theirs.split(".")[0] != version.split(".")[0]:
        raise DocumentError(
            f"{where} has format {theirs or 'unknown'}; "
            f"this jsplan reads {version.split('.')[0]}.x",
            hint="Use the jsplan release that wrote it, or make the document again with this one.",
        )
    return raw


def read_json(path: Path, kind: str) -> Any:
    """Parse a file. Raises DocumentError if it is missing, too large or no JSON."""
    try:
        data = read_regular(path, MAX_BYTES, pipe=True)
    except OSError as error:
        raise DocumentError(
            f"cannot read {kind} file {path}: {error.strerror}", hint="Check the path."
        ) from None
    return parse(
        data,
        str(path),
        f"The file is damaged or is no jsplan {kind}; make it again.",
        f"is not a {kind} file",
    )
