"""Promote a sealed staging stream: the server copies it through a source of the target.

The last sequence and `lag: 0` prove nothing: the server silently drops a message whose id is in
the duplicate window of the target. `target_scan` verifies that every message arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jsplan.backfill.retry import retry_transient
from jsplan.backfill.tasks.staging_streams import STAGING_PREFIX, StagingStream
from jsplan.errors import ApiError
from jsplan.jetstream import DomainApi


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
