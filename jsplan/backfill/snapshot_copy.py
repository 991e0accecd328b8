"""The strategy `snapshot`: creates the target from a snapshot, with its sequences and times.

Until it is complete and verified, the target has parked subjects and is marked as incomplete in its
metadata. An incomplete target counts as absent, and the next run creates it again. A target that an
apply made from a snapshot before it ended is recognised by its content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from jsplan.address import BACKFILL_INCOMPLETE, PARKING_PREFIX
from jsplan.backfill.compare_rows import compare_rows
from jsplan.backfill.endpoints import Endpoints, require_same_stream
from jsplan.backfill.origin_reader import CopyOrigin, StreamReader
from jsplan.backfill.run_context import RunContext
from jsplan.backfill.seq_ranges import count_sequences, intersect
from jsplan.backfill.tasks.staging_streams import await_stream_info, require_stream_info
from jsplan.diagnostics import quote_shell
from jsplan.documents.backfill import OriginResult
from jsplan.errors import JsplanError
from jsplan.facts.compare_streams import IncomparableError, compare_streams
from jsplan.facts.live import is_backfill_incomplete
from jsplan.identity import KnownObject
from jsplan.jetstream.snapshots import open_snapshot, repeat_restore, restore_stream
from jsplan.planning.backfill.model import MAX_LISTED_RANGES, OriginState
from jsplan.resources.server_features import read_level

SNAPSHOT_PATH: Final = "snapshot and restore"
#: Settings that are applied last: they add or remove messages.
_DEFERRED_SETTINGS: Final = (
    "subjects", "sources", "republish", "max_age", "max_msgs", "max_bytes",
    "max_msgs_per_subject", "max_msg_size", "discard", "discard_new_per_subject", "allow_msg_ttl",
    "subject_delete_marker_ttl", "deny_delete", "deny_purge",
)  # fmt: skip
_COMPARED_STATE: Final = (
    *("messages", "first_seq", "last_seq", "first_ts", "last_ts"),
    *("num_deleted", "num_subjects"),
)


class SnapshotRestore(Struct, frozen=True):
    """Creates one target with `config`.

    `owner` names the entry and its workspace on the servers. `may_write` raises if the lock is
    lost. `on_progress` gets the bytes that were sent.
    """

    origin_state: OriginState
    endpoints: Endpoints
    config: dict[str, Any]
    owner: str
    may_write: Callable[[], object]
    on_progress: Callable[[int], None]

    async def run(self) -> None:
        """Restore, verify and activate. Raises JsplanError and ApiError.

        After an error the target is absent or marked as incomplete.
        """
        await self._remove_unfinished()
        stream = self.origin_state.origin_address.stream
        before = await require_stream_info(self.endpoints.origin, stream)
        known = require_same_stream(
            self.origin_state.origin, KnownObject(self.origin_state.created, ""), before
        )
        await repeat_restore(self.endpoints.target, self._transfer)
        after = await require_stream_info(self.endpoints.origin, stream)
        require_same_stream(self.origin_state.origin, known, after)
        restored = await require_stream_info(
            self.endpoints.target, self.origin_state.target_address.stream
        )
        self._require_equal_state(before["state"], after["state"], restored["state"])
        await require_same_messages(self.origin_state, self.endpoints)
        self.may_write()
        await self.endpoints.target.request(f"STREAM.UPDATE.{self.config['name']}", self.config)

    async def _transfer(self) -> None:
        """Restore a snapshot while it is taken."""
        self.may_write()
        async with open_snapshot(
            self.endpoints.origin, self.origin_state.origin_address.stream, consumers=False
        ) as snapshot:
            await restore_stream(
                self.endpoints.target,
                self._build_parked_config(),
                snapshot.state,
                snapshot.chunks,
                on_progress=self.on_progress,
            )

    async def _remove_unfinished(self) -> None:
        """Delete an incomplete target of this entry. Raises JsplanError for any other stream."""
        existing = await self.endpoints.target.stream_info(str(self.config["name"]))
        if existing is None:
            return
        owner = str((existing["config"].get("metadata") or {}).get(BACKFILL_INCOMPLETE, ""))
        if not is_backfill_incomplete(existing["config"]) or owner != self.owner:
            target = self.origin_state.target
            if owner:
                workspace, _, entry = owner.rpartition("/")
                raise JsplanError(
                    f"backfill {entry} of workspace {workspace} is already restoring {target} from "
                    "a snapshot",
                    hint="Wait for it, or finish it in that workspace: jsplan backfill run "
                    f"{quote_shell(entry)}",
                )
            raise JsplanError(f"{target} exists already", hint="Plan again and review the plan.")
        self.may_write()
        await self.endpoints.target.request(f"STREAM.DELETE.{self.config['name']}")

    def _build_parked_config(self) -> dict[str, Any]:
        """Build the configuration with parked subjects, without settings that remove messages."""
        parked = {
            name: value for name, value in self.config.items() if name not in _DEFERRED_SETTINGS
        }
        metadata = (self.config.get("metadata") or {}) | {BACKFILL_INCOMPLETE: self.owner}
        return parked | {
            "subjects": [f"{PARKING_PREFIX}{self.config['name']}"],
            "metadata": metadata,
        }

    def _require_equal_state(
        self, before: Mapping[str, Any], after: Mapping[str, Any], restored: Mapping[str, Any]
    ) -> None:
        """Compare the state with the origin; if that changed meanwhile, check the bounds.

        The first sequence of a stream that never had a message is 0, and 1 once it is restored.
        """
        before = {**before, "first_seq": max(1, before["first_seq"])}
        after = {**after, "first_seq": max(1, after["first_seq"])}
        unchanged = all(before.get(name) == after.get(name) for name in _COMPARED_STATE)
        different = [name for name in _COMPARED_STATE if before.get(name) != restored.get(name)]
        if not unchanged:
            is_between = before["last_seq"] <= restored["last_seq"] <= after["last_seq"]
            different = [] if is_between else ["last_seq"]
        if different:
            reported = ", ".join(
                f"{name} {restored.get(name)} instead of {before.get(name)}" for name in different
            )
            raise JsplanError(
                f"{self.origin_state.target} was created from a snapshot of "
                f"{self.origin_state.origin} and has {reported}",
                hint="Run it again.",
            )


async def require_same_messages(origin_state: OriginState, endpoints: Endpoints) -> None:
    """Raise JsplanError unless the target has each message of the pinned range that is there.

    Raises ApiError too. Messages that only the target has were deleted from the origin since.
    """
    info = await require_stream_info(endpoints.origin, origin_state.origin_address.stream)
    if info["config"].get("retention", "limits") == "limits":
        found = await asyncio.to_thread(
            compare_rows,
            (endpoints.source_endpoint, origin_state.origin_address.stream),
            (endpoints.target_endpoint, origin_state.target_address.stream),
            origin_state.seq_range,
        )
        firsts = (found.missing.first, found.different.first)
        different = min((seq for seq in firsts if seq is not None), default=None)
    else:  # its consumers would lose messages to one more, or the server refuses that
        different = await _find_difference_by_pages(origin_state, endpoints, info)
    if different is not None:
        raise JsplanError(
            f"{origin_state.target} does not equal a snapshot of {origin_state.origin}: "
            f"message {different:,} differs",
            hint=f"Is it another stream? Delete {origin_state.target} to have it created again.",
        )


async def _find_difference_by_pages(
    origin_state: OriginState, endpoints: Endpoints, info: Mapping[str, Any]
) -> int | None:
    """Return the first message of the origin that the target lacks or has otherwise, or None."""
    target = await require_stream_info(endpoints.target, origin_state.target_address.stream)
    origin, copy = [
        (api, found, read_level(await api.request("INFO")))
        for api, found in ((endpoints.origin, info), (endpoints.target, target))
    ]
    try:
        found = await compare_streams(origin, copy, origin_state.first, origin_state.last)
    except IncomparableError as error:
        raise JsplanError(
            f"{origin_state.origin} has {error}",
            hint="Set allow_direct: true there and apply, or say `strategy: spark`.",
        ) from None
    stream = origin_state.origin_address.stream
    for seq in found.missing:  # workers may have finished it since
        if await endpoints.origin.get_message(stream, {"seq": seq}) is not None:
            return seq
    return found.different.first


async def is_made_from_snapshot(
    context: RunContext, origin: CopyOrigin, result: OriginResult
) -> bool:
    """Verify the target of an origin whose strategy is `snapshot`, and fill in its result.

    Returns False, with a warning, if Spark has to copy something.
    """
    state, endpoints = origin.state, origin.endpoints
    if state.strategy != "snapshot" or state.status == "done":
        return False
    if not state.target_created:
        info = await await_stream_info(endpoints.target, state.target_address.stream)
        state.target_created = info["created"]
    try:
        await require_same_messages(state, endpoints)
    except JsplanError as error:
        context.observer.warn(f"{error}. Spark copies the pending messages")
        return False
    result.gaps, result.gap_messages = await find_snapshot_gaps(state, endpoints)
    result.verified, result.attempts, result.path = True, 1, SNAPSHOT_PATH
    return True


async def find_snapshot_gaps(
    state: OriginState, endpoints: Endpoints
) -> tuple[list[list[int]], int]:
    """Find the gaps of the range at the origin: ranges and their count. Raises ApiError."""
    if state.seq_range.size <= 0:
        return [], 0
    gone = intersect([state.seq_range], await StreamReader(state, endpoints).find_gone())
    return [list(span) for span in gone[:MAX_LISTED_RANGES]], count_sequences(gone)
