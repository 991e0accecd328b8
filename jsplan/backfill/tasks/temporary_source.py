"""Temporary source of a target: the server copies an origin through it. Metadata marks it.

One update adds source and metadata together, and one removes them. After any interruption the
target therefore says whether the source was active.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsplan.address import BACKFILL_SOURCE
from jsplan.jetstream import DomainApi
from jsplan.resources.nested import origin_key

#: Metadata key of the entry and the origin that the source belongs to.
OWNER_KEY: Final = f"{BACKFILL_SOURCE}.entry"

Config = Mapping[str, Any]


def read_owner(config: Config) -> str | None:
    """Return the owner of the temporary source of a target; None if it has none."""
    owner = (config.get("metadata") or {}).get(OWNER_KEY)
    return str(owner) if owner is not None else None


def find_temporary_source(config: Config) -> dict[str, Any] | None:
    """Return the temporary source of a target, as the server shows it."""
    key = (config.get("metadata") or {}).get(BACKFILL_SOURCE)
    return next(
        (source for source in config.get("sources") or () if origin_key(source) == key), None
    )


async def attach_source(api: DomainApi, config: Config, source: dict[str, Any], owner: str) -> None:
    """Add the source to the target. `config` is its current configuration. Raises ApiError."""
    mark = {BACKFILL_SOURCE: origin_key(source), OWNER_KEY: owner}
    wanted = {
        **config,
        "sources": [*(config.get("sources") or ()), source],
        "metadata": (config.get("metadata") or {}) | mark,
    }
    await api.request(f"STREAM.UPDATE.{config['name']}", wanted)


async def detach_source(api: DomainApi, config: Config) -> None:
    """Remove the source and its metadata, if they exist. Raises ApiError."""
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
