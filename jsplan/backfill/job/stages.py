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

from jsplan.address import BACKFILL
from jsplan.errors import ApiError, RefusedError, ServerRefusedError
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import STREAM_NOT_FOUND

PREFIX: Final = BACKFILL
#: Metadata: which entry of which workspace it belongs to, and of which origin.
ENTRY, ORIGIN, TEXT = "jsplan.backfill", "jsplan.backfill.origin", "jsplan.backfill.hash"
#: How the subjects begin that staging streams take. Nobody else listens there, in no domain.
INGEST: Final = "jsplan.ingest."
SUBJECTS_OVERLAP: Final = 10065
_SHORTEST_WINDOW: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class Numbering:
    """What a staging stream is made with, so that it can say which message of the origin one is: `first` is its first sequence."""

    mark: str
    first: int


def mark_of(domain: str, stream: str, created: str) -> str:
    """An origin in the name of a staging stream: that very stream, not another one of its name."""
    return hashlib.sha256(f"{domain}/{stream}/{created}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Stage:
    """A staging stream as it is now. `text` says for which text of its entry it was made, and for which stream of the origin's name.

    `base` is the sequence before its first one. `numbered`: messages in it that do not say where they are from have the sequence that they
    had there (`job.numbered`).
    """

    name: str
    entry: str
    origin: str
    text: str
    created: str
    messages: int
    bytes: int
    sealed: bool
    base: int = 0
    numbered: bool = False

    @property
    def ingest(self) -> str:
        """The subjects that it takes begin so; with the dot."""
        return f"{INGEST}{self.name.removeprefix(PREFIX)}."


def _stage(info: dict[str, Any]) -> Stage:
    config, state = info["config"], info["state"]
    said = config.get("metadata") or {}
    return Stage(
        config["name"], said.get(ENTRY, ""), said.get(ORIGIN, ""), said.get(TEXT, ""), info["created"], state["messages"], state["bytes"],
        bool(config.get("sealed")), int(config.get("first_seq") or 1) - 1, "_" in config["name"].removeprefix(PREFIX),
    )  # fmt: skip


async def create(api: DomainApi, entry: str, origin: str, text: str, like: dict[str, Any], numbering: Numbering | None = None) -> Stage:
    """Make one beside the target `like`: as many replicas in the same place, since the copy lives as long as the target does.

    Raises RefusedError where a stream there takes every subject, and ServerRefusedError.
    """
    ident = os.urandom(9).hex() + (f"_{numbering.mark}" if numbering is not None else "")
    ingest = f"{INGEST}{ident}.>"
    config: dict[str, Any] = {
        "name": PREFIX + ident, "subjects": [ingest], "subject_transform": {"src": ingest, "dest": ">"}, "storage": "file",
        "retention": "limits", "discard": "new", "num_replicas": like.get("num_replicas", 1), "duplicate_window": _SHORTEST_WINDOW,
        "description": f"jsplan backfill of {origin}", "metadata": {ENTRY: entry, ORIGIN: origin, TEXT: text},
    }  # fmt: skip
    if numbering is not None:
        config["first_seq"] = numbering.first
    if like.get("placement"):
        config["placement"] = like["placement"]
    try:
        return _stage(await api.request(f"STREAM.CREATE.{config['name']}", config))
    except ServerRefusedError as error:
        if error.err_code == SUBJECTS_OVERLAP:
            raise _captured(f"a stream in domain {api.domain.key}") from None
        raise


def _captured(stream: str) -> RefusedError:
    return RefusedError(
        f"{stream} stores every subject, so it would store each message that is copied",
        hint=f"Narrow its subjects so that {INGEST}> is not among them.",
    )


async def find(api: DomainApi, entry: str | None = None) -> list[Stage]:
    """Those of an entry, or all that there are, the oldest first. Raises ApiError."""
    names = [name for name in await api.stream_names() if name.startswith(PREFIX)]
    infos = [info for name in names if (info := await api.stream_info(name)) is not None]
    found = [stage for stage in map(_stage, infos) if entry is None or stage.entry == entry]
    return sorted(found, key=lambda stage: (stage.created, stage.name))


async def refresh(api: DomainApi, stage: Stage) -> Stage:
    """The stage as it is now. Raises ApiError where it is gone."""
    info = await api.stream_info(stage.name)
    if info is None:
        raise ApiError(f"staging stream {stage.name} is gone", hint="Run the backfill again.")
    return _stage(info)


async def seal(api: DomainApi, stage: Stage) -> Stage:
    """Let it take nothing any more, whoever still writes. Raises ApiError."""
    info = await api.stream_info(stage.name)
    if info is not None and not info["config"].get("sealed"):
        await api.request(f"STREAM.UPDATE.{stage.name}", info["config"] | {"sealed": True})
    return await refresh(api, stage)


async def remove(api: DomainApi, stage: Stage) -> None:
    """Delete it; one that is gone already is no error. Raises ServerRefusedError."""
    try:
        await api.request(f"STREAM.DELETE.{stage.name}")
    except ServerRefusedError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise


async def nobody_else_listens(apis: dict[str, DomainApi], stage: Stage) -> None:
    """Raise RefusedError where another stream would store what is published to the stage: one that takes every subject."""
    for key, api in apis.items():
        with contextlib.suppress(ApiError):
            found = await api.request("STREAM.NAMES", {"subject": f"{stage.ingest}x"})
            if others := [name for name in found.get("streams") or [] if name != stage.name]:
                raise _captured(f"stream {others[0]} in domain {key}")
