"""Staging streams: what an attempt writes to before anything reaches the target. Each attempt has one of its own, that is never used again.

A stream that was **sealed** takes nothing any more, not even what was queued before: only then is it known what an attempt that
may still live has written (taking its subjects away is not enough: 30,000 queued messages were stored after that answer).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from typing import Any, Final

from jsplan.address import BACKFILL_PREFIX
from jsplan.errors import ApiError, RefusedError, ServerRefusedError
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import STREAM_NOT_FOUND

STAGING_PREFIX: Final = BACKFILL_PREFIX
#: Metadata: which entry of which workspace it belongs to, and of which origin.
ENTRY_KEY, ORIGIN_KEY, FINGERPRINT_KEY = (
    "jsplan.backfill",
    "jsplan.backfill.origin",
    "jsplan.backfill.hash",
)
#: How the subjects begin that staging streams take. Nobody else listens there, in no domain.
INGEST_PREFIX: Final = "jsplan.ingest."
SUBJECTS_OVERLAP: Final = 10065
_MIN_DUPLICATE_WINDOW: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class SequenceIdentity:
    """What a staging stream is made with, so that it can say which message of the origin one is: `first_seq` is its first sequence."""

    origin_hash: str
    first_seq: int


def hash_origin(domain: str, stream: str, created: str) -> str:
    """An origin in the name of a staging stream: that very stream, not another one of its name."""
    return hashlib.sha256(f"{domain}/{stream}/{created}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class StagingStream:
    """A staging stream as it is now. `fingerprint` says for which text of its entry it was made, and for which stream of the origin's name.

    `base_seq` is the sequence before its first one. `keeps_sequences`: messages in it that do not say where they are from have the sequence that they
    had there (`job.keeps_sequences`).
    """

    name: str
    entry: str
    origin: str
    fingerprint: str
    created: str
    messages: int
    bytes: int
    sealed: bool
    base_seq: int = 0
    keeps_sequences: bool = False

    @property
    def ingest_prefix(self) -> str:
        """The subjects that it takes begin so; with the dot."""
        return f"{INGEST_PREFIX}{self.name.removeprefix(STAGING_PREFIX)}."


def _parse_staging_stream(info: dict[str, Any]) -> StagingStream:
    config, state = info["config"], info["state"]
    said = config.get("metadata") or {}
    return StagingStream(
        config["name"],
        said.get(ENTRY_KEY, ""),
        said.get(ORIGIN_KEY, ""),
        said.get(FINGERPRINT_KEY, ""),
        info["created"],
        state["messages"],
        state["bytes"],
        bool(config.get("sealed")),
        int(config.get("first_seq") or 1) - 1,
        "_" in config["name"].removeprefix(STAGING_PREFIX),
    )


async def create(
    api: DomainApi,
    entry: str,
    origin: str,
    fingerprint: str,
    target_config: dict[str, Any],
    identity: SequenceIdentity | None = None,
) -> StagingStream:
    """Make one beside the target `like`: as many replicas in the same place, since the copy lives as long as the target does.

    Raises RefusedError where a stream there takes every subject, and ServerRefusedError.
    """
    ident = os.urandom(9).hex() + (f"_{identity.origin_hash}" if identity is not None else "")
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
    if identity is not None:
        config["first_seq"] = identity.first_seq
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
        f"{stream} stores every subject, so it would store each message that is copied",
        hint=f"Narrow its subjects so that {INGEST_PREFIX}> is not among them.",
    )


async def find(api: DomainApi, entry: str | None = None) -> list[StagingStream]:
    """Those of an entry, or all that there are, the oldest first. Raises ApiError."""
    names = [name for name in await api.stream_names() if name.startswith(STAGING_PREFIX)]
    infos = [info for name in names if (info := await api.stream_info(name)) is not None]
    found = [
        stage
        for stage in map(_parse_staging_stream, infos)
        if entry is None or stage.entry == entry
    ]
    return sorted(found, key=lambda stage: (stage.created, stage.name))


async def refresh(api: DomainApi, stage: StagingStream) -> StagingStream:
    """The stage as it is now. Raises ApiError where it is gone."""
    info = await api.stream_info(stage.name)
    if info is None:
        raise ApiError(f"staging stream {stage.name} is gone", hint="Run the backfill again.")
    return _parse_staging_stream(info)


async def seal(api: DomainApi, stage: StagingStream) -> StagingStream:
    """Let it take nothing any more, whoever still writes. Raises ApiError."""
    info = await api.stream_info(stage.name)
    if info is not None and not info["config"].get("sealed"):
        await api.request(f"STREAM.UPDATE.{stage.name}", info["config"] | {"sealed": True})
    return await refresh(api, stage)


async def remove(api: DomainApi, stage: StagingStream) -> None:
    """Delete it; one that is gone already is no error. Raises ServerRefusedError."""
    try:
        await api.request(f"STREAM.DELETE.{stage.name}")
    except ServerRefusedError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise


async def require_exclusive_subject(apis: dict[str, DomainApi], stage: StagingStream) -> None:
    """Raise RefusedError where another stream would store what is published to the stage: one that takes every subject."""
    for key, api in apis.items():
        with contextlib.suppress(ApiError):
            found = await api.request("STREAM.NAMES", {"subject": f"{stage.ingest_prefix}x"})
            if others := [name for name in found.get("streams") or [] if name != stage.name]:
                raise _build_overlap_error(f"stream {others[0]} in domain {key}")
