"""Parses the content of creds and nkey files."""

from __future__ import annotations

import re
from typing import Final

_JWT: Final = re.compile(rb"BEGIN NATS USER JWT-+\s+(\S+)")
_SEED: Final = re.compile(rb"BEGIN USER NKEY SEED-+\s+(\S+)")
_SEED_LINE: Final = re.compile(rb"^\s*(SU\S*)\s*$", re.MULTILINE)


def parse_creds(content: bytes) -> tuple[str, str]:
    """Return the user JWT and the seed. Raises ValueError, which says what is missing."""
    jwt, seed = _JWT.search(content), _SEED.search(content)
    if jwt is None or seed is None:
        raise ValueError("holds no user JWT with its seed")
    return jwt[1].decode(errors="replace"), seed[1].decode(errors="replace")


def parse_seed(content: bytes) -> str:
    """Return the seed of a user: a line of its own. Raises ValueError."""
    seed = _SEED_LINE.search(content)
    if seed is None:
        raise ValueError("holds no seed of a user")
    return seed[1].decode(errors="replace")
