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

from jsplan.address import BACKFILL_FILLING, PARKING
from jsplan.backfill.job.ways import Way
from jsplan.backfill.records import Leg
from jsplan.backfill.wire import read
from jsplan.backfill.wire.asking import from_text
from jsplan.backfill.wire.reading import Range
from jsplan.errors import ApiError, ApiTimeoutError, JsplanError, ServerRefusedError
from jsplan.facts.live import is_being_filled
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import NO_MESSAGE
from jsplan.jetstream.snapshots import restore, snapshot
from jsplan.workflows.backfill.freeze import Ends

BY_SNAPSHOT: Final = "snapshot and restore"
#: So many messages are compared one by one, from the whole length of the stream; what a server says of all of them is compared besides.
SAMPLE: Final = 500
#: What of a configuration comes last: who is listened to, who else fills the stream, and what lets messages go.
_LAST: Final = (
    "subjects", "sources", "republish", "max_age", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size", "discard",
    "discard_new_per_subject", "allow_msg_ttl", "subject_delete_marker_ttl", "deny_delete", "deny_purge",
)  # fmt: skip
_SAME: Final = ("messages", "first_seq", "last_seq", "first_ts", "last_ts", "num_deleted", "num_subjects")


@dataclass(frozen=True, slots=True)
class Filling:
    """Makes one target. `config` is what it is to be created with, `whose` names the entry and its workspace on the servers;
    `may_write` raises where the lock is not ours any more, `moved` is told how many bytes have gone out.
    """

    leg: Leg
    ends: Ends
    config: dict[str, Any]
    whose: str
    may_write: Callable[[], object]
    moved: Callable[[int], None]

    async def run(self) -> None:
        """Restore, compare, open. Raises JsplanError and ApiError; what is left then is nothing, or marked as unfinished."""
        await self._cleared()
        before = await _state(self.ends.origin, self.leg.origin_address.stream)
        self.may_write()
        async with snapshot(self.ends.origin, self.leg.origin_address.stream, consumers=False) as taken:
            await restore(self.ends.target, self._closed(), taken.state, taken.chunks, on_progress=self.moved)
        after = await _state(self.ends.origin, self.leg.origin_address.stream)
        self._require_equal(before, after, await _state(self.ends.target, self.leg.target_address.stream))
        await require_same_messages(self.leg, self.ends)
        self.may_write()
        await self.ends.target.request(f"STREAM.UPDATE.{self.config['name']}", self.config)

    async def _cleared(self) -> None:
        """Take away what an attempt left that died. Raises JsplanError for what is somebody else's."""
        left = await self.ends.target.stream_info(str(self.config["name"]))
        if left is None:
            return
        whose = str((left["config"].get("metadata") or {}).get(BACKFILL_FILLING, ""))
        if not is_being_filled(left["config"]) or whose != self.whose:
            theirs = f": {whose} fills it" if whose else ""
            raise JsplanError(f"{self.leg.target} exists already{theirs}", hint="Plan again and look.")
        self.may_write()
        await self.ends.target.request(f"STREAM.DELETE.{self.config['name']}")

    def _closed(self) -> dict[str, Any]:
        """As it will be, but listening to nobody and keeping everything."""
        closed = {name: value for name, value in self.config.items() if name not in _LAST}
        metadata = (self.config.get("metadata") or {}) | {BACKFILL_FILLING: self.whose}
        return closed | {"subjects": [f"{PARKING}{self.config['name']}"], "metadata": metadata}

    def _require_equal(self, before: Mapping[str, Any], after: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """What came is what the origin had; where it moved meanwhile, something between."""
        still = all(before.get(name) == after.get(name) for name in _SAME)
        wrong = [name for name in _SAME if before.get(name) != found.get(name)] if still else []
        if not still and not before["last_seq"] <= found["last_seq"] <= after["last_seq"]:
            wrong = ["last_seq"]
        if wrong:
            told = ", ".join(f"{name} {found.get(name)} instead of {before.get(name)}" for name in wrong)
            raise JsplanError(f"{self.leg.target} was made from a snapshot of {self.leg.origin} and has {told}", hint="Run it again.")


async def _state(api: DomainApi, stream: str) -> dict[str, Any]:
    info = await api.stream_info(stream)
    if info is None:
        raise ApiError(f"stream {stream} in domain {api.domain.key} is gone")
    return dict(info["state"])


async def require_same_messages(leg: Leg, ends: Ends) -> None:
    """Raise JsplanError unless the target has at sequences of the whole range what the origin has there, times included."""
    places = sampled(leg.first, leg.last)
    origin, target = leg.origin_address.stream, leg.target_address.stream
    here = await asyncio.gather(*(_message(ends.origin, ends.source_way, origin, seq) for seq in places))
    there = await asyncio.gather(*(_message(ends.target, ends.target_way, target, seq) for seq in places))
    wrong = next((seq for seq, one, other in zip(places, here, there, strict=True) if one is not None and one != other), None)
    if wrong is not None:
        raise JsplanError(
            f"{leg.target} is not what a snapshot of {leg.origin} gives: message {wrong:,} differs",
            hint=f"Is it another stream? Delete {leg.target} to have it created again.",
        )


def sampled(first: int, last: int) -> list[int]:
    """Sequences from the whole of a range, the first and the last among them; all of a short one."""
    size = last - first + 1
    return list(range(first, last + 1)) if size <= SAMPLE else [first + (size - 1) * n // (SAMPLE - 1) for n in range(SAMPLE)]


#: Sequence, time (ns), subject, header block and payload.
_Message = tuple[int, int, bytes, bytes, bytes]


async def _message(api: DomainApi, way: Way, stream: str, seq: int) -> _Message | None:
    """A message as the server has it; None where there is none."""
    try:
        told = (await api.request(f"STREAM.MSG.GET.{stream}", {"seq": seq}))["message"]
    except ApiTimeoutError:  # it may be larger than what a link takes in one answer
        return await asyncio.to_thread(_delivered, way, stream, seq)
    except ServerRefusedError as error:
        if error.err_code == NO_MESSAGE:
            return None
        raise
    headers, data = (base64.b64decode(told.get(part) or "") for part in ("hdrs", "data"))
    return int(told["seq"]), from_text(told["time"]), told["subject"].encode(), headers, data


def _delivered(way: Way, stream: str, seq: int) -> _Message | None:
    with contextlib.closing(read(way.open, Range(way.api_prefix, stream, seq, seq))) as batches:
        return next((tuple(column[0].as_py() for column in rows) for rows in batches), None)
