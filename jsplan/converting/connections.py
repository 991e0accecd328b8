"""Servers of another tool as the URL of a connection; the part before `@` is never written."""

from __future__ import annotations

from collections.abc import Sequence

from jsplan.config.node import Node
from jsplan.converting.model import NoteWriter
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
