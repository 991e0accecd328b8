"""A document of the fuzzers: named parts, most of them files, stored as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Parts by name. A name that begins with `$` is no file but an input of the target, such as the command line.
Document = dict[str, bytes]


def text_of(content: bytes) -> str:
    """Decode bytes; invalid UTF-8 becomes lone surrogates."""
    return content.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Reverse `text_of`; other lone surrogates become WTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def dump(document: Document) -> str:
    """Return the document as JSON."""
    return (
        json.dumps({name: text_of(content) for name, content in document.items()}, indent=1) + "\n"
    )


def load(path: Path) -> Document:
    """Read a document from a file."""
    return {name: bytes_of(text) for name, text in json.loads(path.read_text("utf-8")).items()}


def size(document: Document) -> int:
    """Return the bytes of all parts together."""
    return sum(map(len, document.values()))
