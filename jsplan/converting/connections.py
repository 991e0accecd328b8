"""Settings of another tool as those of a connection; a secret becomes a variable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jsplan.config.node import Node
from jsplan.converting.model import DEFAULT_CONNECTION, NoteWriter
from jsplan.secrets import redact_url


def join_server_urls(given: Sequence[str], at: Node, notes: NoteWriter) -> str:
    """Join the servers to one URL without users and passwords; a note says which were removed."""
    urls = [part.strip() for text in given for part in text.split(",") if part.strip()]
    whole = [url if "://" in url else f"nats://{url}" for url in urls]
    bare = [redact_url(url) for url in whole]
    if bare != whole:
        notes.warning(
            at,
            "user and password in a URL are not carried over",
            "Write `user:` and `password: ${env.X}` into the connection.",
        )
    return ",".join(bare)


def use_variable(
    connection: dict[str, Any], name: str, word: str, at: Node, notes: NoteWriter
) -> None:
    """Read a secret of the connection from the environment, and note the name of the variable."""
    prefix = "NATS" if name == DEFAULT_CONNECTION else re.sub(r"\W", "_", name).upper()
    variable = f"{prefix}_{word.upper()}"
    connection[word] = f"${{env.{variable}}}"
    notes.info(at, f"connection {name}: its {word} is not carried over", f"Set {variable}.")
