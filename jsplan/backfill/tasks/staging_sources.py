"""Brings a sealed staging stream into the target: the server itself copies, by a source that is there only meanwhile.

Its last sequence and `lag: 0` prove nothing: a message whose id lies in the target's window is dropped in silence. Whether everything
arrived is what reading the target says (`reading.follow`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jsplan.backfill.tasks.staging_streams import STAGING_PREFIX, StagingStream
from jsplan.errors import ApiError
from jsplan.jetstream import DomainApi


async def require_stream_info(api: DomainApi, stream: str) -> dict[str, Any]:
    """STREAM.INFO of the target. Raises ApiError where there is none."""
    info = await api.stream_info(stream)
    if info is None:
        raise ApiError(
            f"stream {stream} in domain {api.domain.key} does not exist",
            hint="Apply the workspace first: jsplan apply",
        )
    return info


def list_staging_sources(config: dict[str, Any]) -> list[str]:
    """The staging streams that a stream has as sources."""
    return [
        source["name"]
        for source in config.get("sources") or []
        if source["name"].startswith(STAGING_PREFIX) and not source.get("external")
    ]


async def fetch_next_sequence(api: DomainApi, stream: str) -> int:
    """From which sequence on what comes next is stored. Raises ApiError."""
    return int((await require_stream_info(api, stream))["state"]["last_seq"]) + 1


async def attach_staging_streams(
    api: DomainApi, stream: str, staged: Sequence[StagingStream]
) -> None:
    """Let the target take what stages have, in one step: with each the server looks through all that the target has. Done already is no
    error. Raises ApiError.
    """
    info = await require_stream_info(api, stream)
    there = list_staging_sources(info["config"])
    if new := [{"name": stage.name} for stage in staged if stage.name not in there]:
        await _update_sources(
            api, stream, info["config"], [*(info["config"].get("sources") or []), *new]
        )


async def detach_staging_streams(api: DomainApi, stream: str) -> None:
    """Take every staging stream that is not there any more out of the target's sources, our own and of who died before this.

    Those that are there belong to somebody who may still be at work. Raises ApiError.
    """
    info = await api.stream_info(stream)
    if info is None or not (ours := list_staging_sources(info["config"])):
        return
    gone = {name for name in ours if await api.stream_info(name) is None}
    left = [
        source
        for source in info["config"]["sources"]
        if source["name"] not in gone or source.get("external")
    ]
    if gone:
        await _update_sources(api, stream, info["config"], left)


async def _update_sources(
    api: DomainApi, stream: str, config: dict[str, Any], sources: list[dict[str, Any]]
) -> None:
    wanted = {key: value for key, value in config.items() if key != "sources"} | (
        {"sources": sources} if sources else {}
    )
    await api.request(f"STREAM.UPDATE.{stream}", wanted)
