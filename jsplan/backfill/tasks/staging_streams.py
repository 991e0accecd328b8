"""Staging streams: each attempt writes to its own before anything reaches the target.

A staging stream is never reused. A **sealed** one takes no more messages, not even those that were
queued before. Only sealing fixes the content of an attempt whose process may still run: after its
subjects were removed, the server still stored 30,000 queued messages.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

from msgspec import Struct

from jsplan.address import BACKFILL_PREFIX
from jsplan.errors import ApiError, RefusedError, ServerRefusedError
from jsplan.jetstream import DomainApi
from jsplan.resources.error_codes import STREAM_NOT_FOUND, SUBJECTS_OVERLAP

STAGING_PREFIX: Final = BACKFILL_PREFIX
#: Metadata of a staging stream: its entry and workspace, its origin, and its fingerprint.
ENTRY_KEY, ORIGIN_KEY, FINGERPRINT_KEY = (
    "jsplan.backfill",
    "jsplan.backfill.origin",
    "jsplan.backfill.hash",
)
#: Prefix of the subjects of staging streams. No other stream may take them, in any domain.
INGEST_PREFIX: Final = "jsplan.ingest."
_MIN_DUPLICATE_WINDOW: Final = 100_000_000


class StagingStream(Struct, frozen=True):
    """Current state of a staging stream.

    It holds a prefix of the partition that its attempt writes: the messages of the partition up to
    some place, in order, without a gap. `fingerprint` identifies the text of the entry and the
    origins that it was created for.
    """

    name: str
    entry: str
    origin: str
    fingerprint: str
    created: str
    messages: int
    bytes: int

    @property
    def ingest_prefix(self) -> str:
        """Prefix of the subjects that it takes, with the dot."""
        return f"{INGEST_PREFIX}{self.name.removeprefix(STAGING_PREFIX)}."


def _parse_staging_stream(info: dict[str, Any]) -> StagingStream:
    config, state = info["config"], info["state"]
    metadata = config.get("metadata") or {}
    return StagingStream(
        config["name"],
        metadata.get(ENTRY_KEY, ""),
        metadata.get(ORIGIN_KEY, ""),
        metadata.get(FINGERPRINT_KEY, ""),
        info["created"],
        state["messages"],
        state["bytes"],
    )


async def create(
    api: DomainApi,
    entry: str,
    origin: str,
    fingerprint: str,
    target_config: dict[str, Any],
) -> StagingStream:
    """Create a staging stream next to the target, with the same replicas and placement.

    Raises RefusedError where a stream in the domain takes every subject, and ServerRefusedError.
    """
    ident = os.urandom(9).hex()
    ingest = f"{INGEST_PREFIX}{ident}.>"
    config: dict[str, Any] = {
        "name": STAGING_PREFIX + ident,
        "subjects": [ingest],
        "subject_transform": {"src": ingest, "dest": ">"},
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": target_config.get("num_replicas", 1),
        "duplicate_window": _MIN_DUPLICATE_WINDOW,
        "description": f"jsplan backfill of {origin}",
        "metadata": {ENTRY_KEY: entry, ORIGIN_KEY: origin, FINGERPRINT_KEY: fingerprint},
    }
    if target_config.get("placement"):
        config["placement"] = target_config["placement"]
    try:
        return _parse_staging_stream(await api.request(f"STREAM.CREATE.{config['name']}", config))
    except ServerRefusedError as error:
        if error.err_code == SUBJECTS_OVERLAP:
            raise _build_overlap_error(f"a stream in domain {api.domain.key}") from None
        raise


def _build_overlap_error(stream: str) -> RefusedError:
    return RefusedError(
        f"{stream} stores every subject, so it would store each copied message",
        hint=f"Narrow its subjects so that they exclude {INGEST_PREFIX}>.",
    )


async def find(api: DomainApi, entry: str) -> list[StagingStream]:
    """Return the staging streams of an entry, oldest first. Raises ApiError."""
    names = [name for name in await api.stream_names() if name.startswith(STAGING_PREFIX)]
    infos = [info for name in names if (info := await api.stream_info(name)) is not None]
    found = [staging for staging in map(_parse_staging_stream, infos) if staging.entry == entry]
    return sorted(found, key=lambda staging: (staging.created, staging.name))


async def refresh(api: DomainApi, staging_stream: StagingStream) -> StagingStream:
    """Read the staging stream again. Raises ApiError where it no longer exists."""
    info = await api.stream_info(staging_stream.name)
    if info is None:
        raise ApiError(
            f"staging stream {staging_stream.name} no longer exists", hint="Run the backfill again."
        )
    return _parse_staging_stream(info)


async def seal(api: DomainApi, staging_stream: StagingStream) -> StagingStream:
    """Seal the staging stream, so that no writer can add messages. Raises ApiError."""
    info = await api.stream_info(staging_stream.name)
    if info is not None and not info["config"].get("sealed"):
        await api.request(f"STREAM.UPDATE.{staging_stream.name}", info["config"] | {"sealed": True})
    return await refresh(api, staging_stream)


async def remove(api: DomainApi, staging_stream: StagingStream) -> None:
    """Delete the staging stream, if it exists. Raises ServerRefusedError."""
    try:
        await api.request(f"STREAM.DELETE.{staging_stream.name}")
    except ServerRefusedError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise


async def require_exclusive_subject(api: DomainApi, staging_stream: StagingStream) -> None:
    """Raise RefusedError where another stream takes the subjects of a staging stream.

    Such a stream takes every subject.
    """
    asked = {"subject": f"{staging_stream.ingest_prefix}x"}
    with contextlib.suppress(ApiError):
        found = (await api.request("STREAM.NAMES", asked)).get("streams") or []
        if others := [name for name in found if name != staging_stream.name]:
            raise _build_overlap_error(f"stream {others[0]} in domain {api.domain.key}")
