"""strategy snapshot: a target that does not exist is made from the origin's snapshot, with the sequences and times that messages had.

Until it is whole and compared it listens to nobody and says by its metadata that it is not finished: then it counts as not there, and
whoever comes next makes it anew.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jsplan.address import BACKFILL_INCOMPLETE, PARKING_PREFIX
from jsplan.backfill.model import OriginState
from jsplan.backfill.pinning import Endpoints
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.errors import ApiError, ApiTimeoutError, JsplanError, ServerRefusedError
from jsplan.facts.live import is_backfill_incomplete
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.jetstream.snapshots import open_snapshot, restore_stream

SNAPSHOT_PATH: Final = "snapshot and restore"
#: So many messages are compared one by one, from the whole length of the stream; what a server says of all of them is compared besides.
SAMPLE_MESSAGES: Final = 500
#: What of a configuration comes last: who is listened to, who else fills the stream, and what lets messages go.
_DEFERRED_SETTINGS: Final = (
    "subjects", "sources", "republish", "max_age", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size", "discard",
    "discard_new_per_subject", "allow_msg_ttl", "subject_delete_marker_ttl", "deny_delete", "deny_purge",
)  # fmt: skip
_COMPARED_STATE: Final = (
    "messages",
    "first_seq",
    "last_seq",
    "first_ts",
    "last_ts",
    "num_deleted",
    "num_subjects",
)


@dataclass(frozen=True, slots=True)
class SnapshotRestore:
    """Makes one target. `config` is what it is to be created with, `owner` names the entry and its workspace on the servers;
    `may_write` raises where the lock is not ours any more, `on_progress` is told how many bytes have gone out.
    """

    origin_state: OriginState
    endpoints: Endpoints
    config: dict[str, Any]
    owner: str
    may_write: Callable[[], object]
    on_progress: Callable[[int], None]

    async def run(self) -> None:
        """Restore, compare, open. Raises JsplanError and ApiError; what is left then is nothing, or marked as unfinished."""
        await self._remove_unfinished()
        before = await _fetch_state(self.endpoints.origin, self.origin_state.origin_address.stream)
        self.may_write()
        async with open_snapshot(
            self.endpoints.origin, self.origin_state.origin_address.stream, consumers=False
        ) as taken:
            await restore_stream(
                self.endpoints.target,
                self._build_parked_config(),
                taken.state,
                taken.chunks,
                on_progress=self.on_progress,
            )
        after = await _fetch_state(self.endpoints.origin, self.origin_state.origin_address.stream)
        self._require_equal_state(
            before,
            after,
            await _fetch_state(self.endpoints.target, self.origin_state.target_address.stream),
        )
        await require_same_messages(self.origin_state, self.endpoints)
        self.may_write()
        await self.endpoints.target.request(f"STREAM.UPDATE.{self.config['name']}", self.config)

    async def _remove_unfinished(self) -> None:
        """Take away what an attempt left that died. Raises JsplanError for what is somebody else's."""
        left = await self.endpoints.target.stream_info(str(self.config["name"]))
        if left is None:
            return
        whose = str((left["config"].get("metadata") or {}).get(BACKFILL_INCOMPLETE, ""))
        if not is_backfill_incomplete(left["config"]) or whose != self.owner:
            theirs = f": {whose} fills it" if whose else ""
            raise JsplanError(
                f"{self.origin_state.target} exists already{theirs}", hint="Plan again and look."
            )
        self.may_write()
        await self.endpoints.target.request(f"STREAM.DELETE.{self.config['name']}")

    def _build_parked_config(self) -> dict[str, Any]:
        """As it will be, but listening to nobody and keeping everything."""
        closed = {
            name: value for name, value in self.config.items() if name not in _DEFERRED_SETTINGS
        }
        metadata = (self.config.get("metadata") or {}) | {BACKFILL_INCOMPLETE: self.owner}
        return closed | {
            "subjects": [f"{PARKING_PREFIX}{self.config['name']}"],
            "metadata": metadata,
        }

    def _require_equal_state(
        self, before: Mapping[str, Any], after: Mapping[str, Any], found: Mapping[str, Any]
    ) -> None:
        """What came is what the origin had; where it moved meanwhile, something between."""
        still = all(before.get(name) == after.get(name) for name in _COMPARED_STATE)
        wrong = (
            [name for name in _COMPARED_STATE if before.get(name) != found.get(name)]
            if still
            else []
        )
        if not still and not before["last_seq"] <= found["last_seq"] <= after["last_seq"]:
            wrong = ["last_seq"]
        if wrong:
            told = ", ".join(
                f"{name} {found.get(name)} instead of {before.get(name)}" for name in wrong
            )
            raise JsplanError(
                f"{self.origin_state.target} was made from a snapshot of {self.origin_state.origin} and has {told}",
                hint="Run it again.",
            )


async def _fetch_state(api: DomainApi, stream: str) -> dict[str, Any]:
    info = await api.stream_info(stream)
    if info is None:
        raise ApiError(f"stream {stream} in domain {api.domain.key} is gone")
    return dict(info["state"])


async def require_same_messages(leg: OriginState, ends: Endpoints) -> None:
    """Raise JsplanError unless the target has at sequences of the whole range what the origin has there, times included."""
    places = sample_sequences(leg.first, leg.last)
    origin, target = leg.origin_address.stream, leg.target_address.stream
    here = await asyncio.gather(
        *(_fetch_message(ends.origin, ends.source_endpoint, origin, seq) for seq in places)
    )
    there = await asyncio.gather(
        *(_fetch_message(ends.target, ends.target_endpoint, target, seq) for seq in places)
    )
    wrong = next(
        (
            seq
            for seq, one, other in zip(places, here, there, strict=True)
            if one is not None and one != other
        ),
        None,
    )
    if wrong is not None:
        raise JsplanError(
            f"{leg.target} is not what a snapshot of {leg.origin} gives: message {wrong:,} differs",
            hint=f"Is it another stream? Delete {leg.target} to have it created again.",
        )


def sample_sequences(first: int, last: int) -> list[int]:
    """Sequences from the whole of a range, the first and the last among them; all of a short one."""
    size = last - first + 1
    return (
        list(range(first, last + 1))
        if size <= SAMPLE_MESSAGES
        else [first + (size - 1) * n // (SAMPLE_MESSAGES - 1) for n in range(SAMPLE_MESSAGES)]
    )


#: Sequence, time (ns), subject, header block and payload.
_Message = tuple[int, int, bytes, bytes, bytes]


async def _fetch_message(
    api: DomainApi, endpoint: Endpoint, stream: str, seq: int
) -> _Message | None:
    """A message as the server has it; None where there is none."""
    try:
        told = (await api.request(f"STREAM.MSG.GET.{stream}", {"seq": seq}))["message"]
    except ApiTimeoutError:  # it may be larger than what a link takes in one answer
        return await asyncio.to_thread(_read_message, endpoint, stream, seq)
    except ServerRefusedError as error:
        if error.err_code == NO_MESSAGE:
            return None
        raise
    headers, data = (base64.b64decode(told.get(part) or "") for part in ("hdrs", "data"))
    return int(told["seq"]), parse_time(told["time"]), told["subject"].encode(), headers, data


def _read_message(endpoint: Endpoint, stream: str, seq: int) -> _Message | None:
    with contextlib.closing(
        read(endpoint.open, ReadRequest(endpoint.api_prefix, stream, seq, seq))
    ) as batches:
        return next((tuple(column[0].as_py() for column in rows) for rows in batches), None)
