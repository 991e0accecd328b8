"""A source of its own that a target has while the server itself copies an origin into it; told from everybody else's by metadata.

The source and the mark come in one update and go in one: however a run ended, the target says whether it was at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsplan.address import BACKFILL_SOURCE
from jsplan.jetstream import DomainApi
from jsplan.resources.nested import origin_key

#: The metadata key that says of which entry, and of which stream of its origin, the source is.
OWNER_KEY: Final = f"{BACKFILL_SOURCE}.entry"

Config = Mapping[str, Any]


def read_owner(config: Config) -> str | None:
    """Whose source a target has; None: nobody's."""
    found = (config.get("metadata") or {}).get(OWNER_KEY)
    return str(found) if found is not None else None


def find_temporary_source(config: Config) -> dict[str, Any] | None:
    """The source that a backfill has in a target, as the server shows it."""
    key = (config.get("metadata") or {}).get(BACKFILL_SOURCE)
    return next(
        (source for source in config.get("sources") or () if origin_key(source) == key), None
    )


async def attach_source(api: DomainApi, config: Config, source: dict[str, Any], owner: str) -> None:
    """Let the target source an origin. `config` is the target's as it is now. Raises ApiError."""
    mark = {BACKFILL_SOURCE: origin_key(source), OWNER_KEY: owner}
    wanted = {
        **config,
        "sources": [*(config.get("sources") or ()), source],
        "metadata": (config.get("metadata") or {}) | mark,
    }
    await api.request(f"STREAM.UPDATE.{config['name']}", wanted)


async def detach_source(api: DomainApi, config: Config) -> None:
    """Take the source and the mark out again; done already is no error. Raises ApiError."""
    if read_owner(config) is None:
        return
    own = find_temporary_source(config)
    sources = [source for source in config.get("sources") or () if source != own]
    metadata = {
        name: value
        for name, value in config["metadata"].items()
        if name not in (BACKFILL_SOURCE, OWNER_KEY)
    }
    wanted = {name: value for name, value in config.items() if name not in ("sources", "metadata")}
    wanted |= ({"sources": sources} if sources else {}) | (
        {"metadata": metadata} if metadata else {}
    )
    await api.request(f"STREAM.UPDATE.{config['name']}", wanted)
