"""The progress of a relocation, from what state recorded and what is on the servers.

At every moment the origin is complete until the target is activated, and the target from then on.
So the servers alone decide where an interrupted relocation continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.diagnostics import SourceRange
from jsplan.facts.live import LiveObject
from jsplan.planning.preserve.staging import (
    belongs_to_replacement,
    is_quiesced,
    replacement_id,
)

#: The ways out of an interrupted relocation.
INTERRUPTED_HINT: Final = (
    "To finish it: jsplan apply. To go back: put the old declaration back into the files, without "
    "the `relocate` entry, and run jsplan apply."
)
#: What a mirror that heard of its origin in the last so many ns says about its lag is true.
RECENT: Final = 10_000_000_000
#: What a relocation that has begun is at, for documents.
PHASES: Final = ("copying", "prepared", "cut-over", "activated")
#: The key of a record in `replacements` that makes it that of a relocation: the origin.
RELOCATES: Final = "relocates"


class Relocation(Struct, frozen=True):
    """A stream that moves from `origin` to `target`.

    `range` is the entry in the files; None if only state knows the relocation. `record` is that of
    an interrupted one, else empty. `origin_now` and `target_now` are the streams as they are now.
    `next_step` is `mirror`, `rest`, `delete`, or `clear` where only the record is left. `conflict`
    explains why an interrupted one cannot be resumed. `strategy` is `mirror` or `snapshot`, and
    `why` says why no mirror copies it. `is_target_offline`: only the origin was read.
    """

    origin: Address
    target: Address
    range: SourceRange | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    origin_now: LiveObject | None = None
    target_now: LiveObject | None = None
    next_step: str = "mirror"
    conflict: str = ""
    is_target_offline: bool = False
    strategy: str = "mirror"
    why: str = ""

    @property
    def id(self) -> str:
        """The id of the relocation: another one for each `created` of the origin."""
        if self.record:
            return str(self.record["id"])
        assert self.origin_now is not None
        return replacement_id(self.origin, self.origin_now.created)

    @property
    def is_snapshot(self) -> bool:
        """Check whether everything is copied in the cut-over, by a snapshot."""
        known = self.record.get("strategy", "mirror") if self.record else self.strategy
        return known == "snapshot"

    @property
    def is_activated(self) -> bool:
        """Check whether the target is complete and has its subjects."""
        return self.next_step in ("delete", "clear")

    @property
    def is_origin_lost(self) -> bool:
        """Check whether another client deleted the origin after the target was activated."""
        return self.next_step == "clear"

    @property
    def is_quiesced(self) -> bool:
        """Check whether the origin has no subjects now."""
        return self.origin_now is not None and is_quiesced(self.origin, self.origin_now, self.id)

    @property
    def must_release(self) -> bool:
        """Check whether publishers wait for a target that is offline and was not activated."""
        return (
            self.is_target_offline
            and not self.conflict
            and self.is_before_activation
            and self.is_quiesced
        )

    @property
    def is_before_activation(self) -> bool:
        """Check by the record whether the call that activates the target was not sent yet."""
        return bool(self.record) and self.record["phase"] not in ("activating", "activated")

    def with_origin_alone(self, origin: LiveObject | None) -> Relocation:
        """Return it with its current origin, where only that can be read and is the same."""
        if origin is None or not self.record or origin.created != self.record["old"]["created"]:
            return self
        return replace(self, origin_now=origin, is_target_offline=True)

    @property
    def hint(self) -> str:
        """The way to end an interrupted relocation."""
        if self.must_release:
            return (
                f"jsplan apply gives {self.origin} its subjects back. The relocation continues "
                f"when {self.target.domain} answers again."
            )
        if self.is_target_offline:
            return f"When {self.target.domain} answers again: jsplan apply."
        if self.is_origin_lost:
            return f"{self._describe_comparison()} To finish the relocation: jsplan apply."
        return "To finish it: jsplan apply." if self.is_activated else INTERRUPTED_HINT

    @property
    def is_prepared(self) -> bool:
        """Check whether the copy follows the origin, after it was compared (`--stage prepare`)."""
        copy = self.target_now
        return (
            bool(self.record.get("prepared"))
            and self.next_step == "mirror"
            and not (self.conflict or self.is_quiesced)
            and copy is not None
            and bool(copy.raw.get("mirror"))
        )

    @property
    def lag(self) -> int:
        """The messages that the origin has received and the copy has not.

        The difference of the sequences counts deleted ones at the end too. What the server says is
        exact, and old where the mirror has not heard of its origin.
        """
        last = [
            int(side.state.get("last_seq") or 0) if side is not None else 0
            for side in (self.origin_now, self.target_now)
        ]
        behind = max(0, last[0] - last[1])
        flow = self.target_now.flows[0] if self.target_now and self.target_now.flows else {}
        heard = flow.get("active")
        if isinstance(heard, int) and 0 <= heard < RECENT:
            return min(behind, int(flow.get("lag") or 0))
        return behind

    @property
    def previous_origin(self) -> LiveObject | None:
        """The origin without the relocation, with the messages that it has now."""
        now = self.origin_now
        if now is None or not self.record or self.is_activated or self.conflict:
            return None
        return LiveObject(
            self.origin,
            self.record["old"]["config"] if self.is_quiesced else now.raw,
            now.created,
            now.state,
            now.server,
            actual_fingerprint=now.fingerprint,
        )

    @property
    def phase(self) -> str:
        """The progress in one word: one of `PHASES`."""
        if self.is_activated:
            return "activated"
        if self.is_quiesced:
            return "cut-over"
        return "prepared" if self.is_prepared else "copying"

    @property
    def rejected_subjects(self) -> list[str]:
        """The subjects whose publishers are rejected meanwhile."""
        waits = self.is_quiesced and not self.is_activated
        return list(self.record["old"]["config"].get("subjects") or ()) if waits else []

    @property
    def summary(self) -> str:
        """The state of an interrupted relocation in words: rejected publishes first."""
        if self.is_origin_lost:
            return (
                f"{self.origin} was deleted or recreated outside jsplan after its messages had "
                f"moved to {self.target}"
            )
        if self.is_activated:
            return f"the relocation of {self.origin} was interrupted after its messages had moved"
        messages = f"Its messages are in {self.origin}"
        if self.is_target_offline:
            messages = f"{self.target.domain} is offline. {messages}"
            messages += "" if self.is_before_activation else f", or in {self.target}"
        subjects = self.record["old"]["config"].get("subjects") or ()
        if self.is_quiesced:
            return (
                f"publishes to {', '.join(subjects)} are rejected, because the relocation of "
                f"{self.origin} was interrupted. {messages}"
            )
        return f"the relocation of {self.origin} was interrupted. {messages}"

    def _describe_comparison(self) -> str:
        """Say what of the target was compared with an origin that is gone now."""
        last, compared = int(self.record["last_seq"]), int(self.record.get("compared") or 0)
        until = int(self.record.get("compared_from") or last + 1) - 1
        text = "All of them were compared before."
        if compared < min(until, last):
            text = (
                f"{self.target} had as many messages as its origin. Those of sequence "
                f"{compared + 1:,} to {until:,} were not compared by content."
            )
        if self.record["old"]["config"].get("retention") == "workqueue":
            text += (
                " What workers finished there after the copy, and before their consumer moved, is "
                "delivered again."
            )
        ours = self.target_now.state if self.target_now is not None else {}
        if int(ours.get("last_seq") or 0) < last:
            text += f" Since then the server of {self.target} lost messages."
        return text


def list_unfinished(relocations: Iterable[Relocation]) -> list[dict[str, Any]]:
    """List the interrupted relocations for documents, but those that are prepared on purpose.

    One of which nothing could be read is left out.
    """
    return [
        {
            "address": str(found.origin),
            "rejected": found.rejected_subjects,
            "summary": found.summary,
            "detail": found.hint,
        }
        for found in sorted(relocations, key=lambda found: found.origin)
        if found.record
        and not found.is_prepared
        and (found.origin_now is not None or found.target_now is not None)
    ]


def list_relocations(relocations: Iterable[Relocation]) -> list[dict[str, Any]]:
    """List the relocations that have begun and are not finished, for documents."""
    return [
        {
            "from": str(found.origin),
            "to": str(found.target),
            "phase": found.phase,
            "prepared": found.record.get("prepared"),
            "lag": found.lag,
            "last_message": _last_message(found.target_now),
        }
        for found in sorted(relocations, key=lambda found: found.target)
        if found.record
    ]


def _last_message(copy: LiveObject | None) -> str | None:
    """Return the time of the newest message of a copy; None if it has none."""
    state = copy.state if copy is not None else {}
    return str(state["last_ts"]) if state.get("messages") and state.get("last_ts") else None


def determine_progress(
    relocation: Relocation, origin: LiveObject | None, target: LiveObject | None
) -> Relocation:
    """Determine the progress of a relocation from both streams as they are now."""
    found = replace(relocation, origin_now=origin, target_now=target)
    record = relocation.record
    if not record:
        return found
    ours = target is not None and belongs_to_replacement(target.raw, record["id"])
    activated = (
        target is not None
        and not ours
        and target.created == record.get("target_created")
        and record["phase"] in ("activating", "activated")
    )
    if origin is None or origin.created != record["old"]["created"]:
        if activated:
            return replace(found, next_step="clear")
        return replace(
            found, conflict=f"{relocation.origin} was deleted or recreated outside jsplan"
        )
    if activated:
        return replace(found, next_step="delete")
    if target is not None and not ours:
        return replace(
            found, conflict=f"{relocation.target} was created or changed outside jsplan meanwhile"
        )
    if origin.raw.get("sealed"):
        return replace(found, next_step="rest")
    if (target is not None or found.is_snapshot) and found.is_quiesced:
        return replace(found, next_step="rest")
    return found
