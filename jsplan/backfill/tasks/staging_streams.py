"""Staging streams: each attempt writes to its own, which the server copies to the target.

A staging stream is never reused. A **sealed** one takes no more messages, not even those that were
queued before. Only sealing fixes the content of an attempt whose process may still run: after its
subjects were removed, the server still stored 30,000 queued messages.

After the promotion the last sequence and `lag: 0` prove nothing: the server silently drops a
message whose id is in the duplicate window of the target. `target_scan` verifies that all arrived.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from jsplan.address import BACKFILL_PREFIX
from jsplan.backfill.retry import retry_transient
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


# --- their promotion ------------------------------------------------------------------------------


async def require_stream_info(api: DomainApi, stream: str) -> dict[str, Any]:
    """Return STREAM.INFO of the target. Raises ApiError where it does not exist."""
    info = await api.stream_info(stream)
    if info is None:
        raise ApiError(
            f"stream {stream} in domain {api.domain.key} does not exist",
            hint="Apply the workspace first: jsplan apply",
        )
    return info


async def await_stream_info(api: DomainApi, stream: str) -> dict[str, Any]:
    """Return STREAM.INFO, and wait for a domain that does not answer. Raises ApiError."""
    return await retry_transient(api, lambda: require_stream_info(api, stream))


def list_staging_sources(config: dict[str, Any]) -> list[str]:
    """List the staging streams among the sources of a stream."""
    return [
        source["name"]
        for source in config.get("sources") or []
        if source["name"].startswith(STAGING_PREFIX) and not source.get("external")
    ]


async def attach_staging_streams(
    api: DomainApi, stream: str, staged: Sequence[StagingStream]
) -> None:
    """Add staging streams to the sources of the target, in one update. Raises ApiError.

    One update, because the server scans the whole target for each. Staging streams that are
    already sources are skipped. Without a first sequence, a target whose first messages are gone
    would take only what is newer than its last message.
    """
    info = await require_stream_info(api, stream)
    present = list_staging_sources(info["config"])
    if new := [
        {"name": stage.name, "opt_start_seq": 1} for stage in staged if stage.name not in present
    ]:
        await _update_sources(
            api, stream, info["config"], [*(info["config"].get("sources") or []), *new]
        )


def has_delivered(info: dict[str, Any], staging: StagingStream, reached: int) -> bool:
    """Check whether STREAM.INFO says that the target has received a whole staging stream.

    `reached` is the last sequence of it that was seen there: before the first message, a source has
    lag 0 too. Servers since 2.15 report the last sequence as `seq`.
    """
    return any(
        source.get("seq", 0) >= staging.messages
        or (reached > 0 and source.get("lag") == 0 and source.get("active", -1) >= 0)
        for source in info.get("sources") or []
        if source["name"] == staging.name
    )


async def detach_staging_streams(api: DomainApi, stream: str) -> None:
    """Remove staging streams that no longer exist from the sources of the target.

    This includes those of interrupted runs. A run that may still be active owns the others. Raises
    ApiError.
    """
    info = await api.stream_info(stream)
    if info is None or not (names := list_staging_sources(info["config"])):
        return
    deleted = {name for name in names if await api.stream_info(name) is None}
    remaining = [
        source
        for source in info["config"]["sources"]
        if source["name"] not in deleted or source.get("external")
    ]
    if deleted:
        await _update_sources(api, stream, info["config"], remaining)


async def _update_sources(
    api: DomainApi, stream: str, config: dict[str, Any], sources: list[dict[str, Any]]
) -> None:
    wanted = {key: value for key, value in config.items() if key != "sources"} | (
        {"sources": sources} if sources else {}
    )
    await api.request(f"STREAM.UPDATE.{stream}", wanted)
