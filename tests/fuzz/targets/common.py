"""Parts of several targets: recorded seeds, and a small workspace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.fuzz.documents import Document, load

SEEDS: Final = Path(__file__).parent.parent / "seeds"
#: Two domains over one connection, and a stream.
WORKSPACE: Final[dict[str, Any]] = {
    "jsplan": 1,
    "workspace": "w",
    "connections": {"main": {"url": "nats://127.0.0.1:4222", "user": "acc", "password": "acc"}},
    "domains": {"hub": {"connection": "main"}, "leaf": {"connection": "main"}},
    "defaults": {"domain": "hub"},
    "streams": [
        {"name": "A", "subjects": ["A.*"], "consumers": [{"name": "C", "ack_policy": "explicit"}]}
    ],
}


def recorded_seeds(*names: str) -> list[Document]:
    """Load documents that `tests.fuzz.record` made."""
    return [load(SEEDS / f"{name}.json") for name in names]


def files_document(**parts: Any) -> Document:
    """Return a document of files.

    Values other than bytes are written as JSON. `__` in a name stands for the dot of its ending.
    """
    return {
        name.replace("__", "."): content
        if isinstance(content, bytes)
        else json.dumps(content, indent=1).encode()
        for name, content in parts.items()
    }


def with_commands(document: Document, *commands: str) -> list[Document]:
    """Return the document once per command line."""
    return [document | {"$": command.encode()} for command in commands]
