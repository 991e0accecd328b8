"""A document of the fuzzers: named parts, most of them files. Kept as JSON, so that a found one can be read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Parts by name. A name that begins with `$` is no file but something that the target knows, such as the command line.
Document = dict[str, bytes]


def text_of(content: bytes) -> str:
    """The bytes as text; what is no UTF-8 becomes lone surrogates."""
    return content.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The reverse of `text_of`; other lone surrogates are kept as they are written in WTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def dump(document: Document) -> str:
    """The document as it is kept."""
    return (
        json.dumps({name: text_of(content) for name, content in document.items()}, indent=1) + "\n"
    )


def load(path: Path) -> Document:
    """A document that was kept."""
    return {name: bytes_of(text) for name, text in json.loads(path.read_text("utf-8")).items()}


def size(document: Document) -> int:
    """Bytes of all parts together."""
    return sum(map(len, document.values()))
