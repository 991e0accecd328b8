"""The progress of a transfer, from what state recorded and what is on the servers.

At every moment one stream is complete: the origin until the target is activated or the origin of a
replacement is deleted, the staging stream until then, and the target afterwards. So the servers and
the phase alone decide where an interrupted transfer continues. Where they do not agree the streams
were changed outside jsplan, and nothing is guessed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.diagnostics import SourceRange, quote_shell
from jsplan.documents.state_parts import is_before
from jsplan.documents.step_kinds import TransferMethod
from jsplan.facts.live import LiveObject
from jsplan.planning.drafts import Part
from jsplan.planning.transfer.configs import belongs_to_replacement, is_quiesced, replacement_id
from jsplan.resources.buckets import nouns_of
from jsplan.subjects import is_covered

#: The ways out of what was interrupted.
FINISH_HINT: Final = (
    "To finish it: jsplan apply. To go back: put the old configuration back into the "
    "files, and run jsplan apply."
)
RELOCATION_HINT: Final = (
    "To finish it: jsplan apply. To go back: put the old declaration back into the files, without "
    "the `relocate` entry, and run jsplan apply."
)
#: The hint for streams that were changed outside jsplan meanwhile.
INSPECT_HINT: Final = (
    "Look at both streams. To plan with what is there, which deletes nothing: jsplan state rm"
)
#: What a mirror that heard of its origin in the last so many ns says about its lag is true.
RECENT: Final = 10_000_000_000
#: What a relocation that has begun is at, for documents.
PHASES: Final = ("copying", "prepared", "cut-over", "activated")


def is_transfer(record: Mapping[str, Any]) -> bool:
    """Check whether a record in `replacements` is that of a stream that keeps its messages."""
    return "origin" in record


class Transfer(Struct, frozen=True):
    """A stream that moves from `origin` to `target`. One that is replaced has the same address.

    `range` is the entry in the files; None if only state knows it. `record` is that of one that has
    begun, else empty. `origin_now`, `target_now` and `staging_now` are the streams as they are now;
    where both have one address the origin is the old stream, and None once that is gone.
    `next_step` is the part of a step, `delete`, or `end` where only the record is left. `conflict`
    explains why it cannot be resumed. `method` copies the first hop, and `why` says why no mirror
    does. `places_consumers`: the consumers of a replaced stream are created at their positions, and
    do not come with a snapshot. `promotes`: the target is a managed mirror of the origin already,
    which becomes the stream. `is_target_offline`: only the origin was read.
    """

    origin: Address
    target: Address
    range: SourceRange | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    origin_now: LiveObject | None = None
    target_now: LiveObject | None = None
    staging_now: LiveObject | None = None
    next_step: Part | Literal["delete", "end"] = "probe"
    conflict: str = ""
    is_target_offline: bool = False
    method: TransferMethod = "mirror"
    why: str = ""
    places_consumers: bool = True
    promotes: bool = False

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Transfer:
        """Return the transfer of a record in state, before anything is read."""
        origin, target = (Address.parse(record[side]) for side in ("origin", "address"))
        promotes = bool(record.get("promotes"))
        return cls(origin, target, record=record, method=record["method"], promotes=promotes)

    @property
    def is_relocation(self) -> bool:
        """Check whether the stream gets another address."""
        return self.origin != self.target

    @property
    def id(self) -> str:
        """The id of the transfer: another one for each `created` of the origin."""
        if self.record:
            return str(self.record["id"])
        assert self.origin_now is not None
        return replacement_id(self.origin, self.origin_now.created)

    @property
    def staging(self) -> Address | None:
        """The staging stream of a replacement that has begun."""
        found = self.record.get("staging")
        if found is None:
            return None
        return Address.of_stream(self.target.domain, Address.parse(found).stream)

    @property
    def old_config(self) -> Mapping[str, Any]:
        """The configuration of the origin when the transfer began."""
        found: Mapping[str, Any] = self.record["old"]["config"]
        return found

    # --- how far it is ---------------------------------------------------------------------------

    @property
    def is_activated(self) -> bool:
        """Check whether the target is complete and has its subjects."""
        return self.next_step in ("delete", "recompare", "clear", "end")

    @property
    def is_origin_lost(self) -> bool:
        """Check whether another client deleted the origin of a relocation after its activation."""
        return self.next_step == "end"

    @property
    def has_origin(self) -> bool:
        """Check whether the origin still exists."""
        return self.origin_now is not None

    @property
    def is_lost(self) -> bool:
        """Check whether no stream of an unfinished replacement exists any more."""
        there = (self.origin_now, self.target_now, self.staging_now)
        return bool(self.conflict) and not self.is_relocation and there == (None, None, None)

    @property
    def is_quiesced(self) -> bool:
        """Check whether the origin has no subjects now."""
        return self.origin_now is not None and is_quiesced(self.origin, self.origin_now, self.id)

    @property
    def must_release(self) -> bool:
        """Check whether publishers wait for a target that is offline and was not activated."""
        waits = self.is_target_offline and not self.conflict and self.is_before_activation
        return waits and self.is_quiesced

    @property
    def is_before_activation(self) -> bool:
        """Check by the record whether the call that activates the target was not sent yet."""
        return bool(self.record) and is_before(self.record["phase"], "activating")

    @property
    def has_moved_messages(self) -> bool:
        """Check whether copying consumed messages of the origin, as of a work queue."""
        return (
            self.has_origin
            and self.old_config.get("retention") == "workqueue"
            and self.record["method"] == "drain"
            and self.staging_now is not None
            and bool(self.staging_now.state.get("messages"))
        )

    @property
    def can_go_back(self) -> bool:
        """Check whether the old stream still has everything. A stopped mirror is one no longer."""
        return self.has_origin and not self.has_moved_messages and not self.old_config.get("mirror")

    @property
    def is_prepared(self) -> bool:
        """Check whether the copy follows the origin, after it was compared (`--stage prepare`)."""
        copies = self.target_now is not None and bool(self.target_now.raw.get("mirror"))
        was_compared = self.is_relocation and bool(self.record.get("prepared"))
        is_cut_over = bool(self.conflict) or self.next_step != "mirror" or self.is_quiesced
        return copies and was_compared and not is_cut_over

    @property
    def phase(self) -> str:
        """The progress in one word: one of `PHASES`."""
        if self.is_activated:
            return "activated"
        if self.is_quiesced:
            return "cut-over"
        return "prepared" if self.is_prepared else "copying"

    @property
    def lag(self) -> int:
        """The messages that the origin has received and the copy has not.

        The difference of the sequences counts deleted ones at the end too. What the server says is
        exact, and old where the mirror has not heard of its origin.
        """
        behind = max(0, _last_seq(self.origin_now) - _last_seq(self.target_now))
        flow = self.target_now.flows[0] if self.target_now and self.target_now.flows else {}
        heard = flow.get("active")
        if isinstance(heard, int) and 0 <= heard < RECENT:
            return min(behind, int(flow.get("lag") or 0))
        return behind

    def with_origin_alone(self, origin: LiveObject | None) -> Transfer:
        """Return it with its current origin, where only that can be read and is the same."""
        if origin is None or not self.record or origin.created != self.record["old"]["created"]:
            return self
        return replace(self, origin_now=origin, is_target_offline=True)

    # --- the view before it ----------------------------------------------------------------------

    @property
    def previous(self) -> LiveObject | None:
        """The origin as it was before, with the messages that there are now.

        None where the target is activated already, or nothing is known.
        """
        if not self.record or self.is_activated or (self.conflict and self.is_relocation):
            return None
        now, old = self.origin_now, self.record["old"]
        if self.is_relocation and now is None:
            return None
        is_as_before = now is not None and self.is_relocation and not self.is_quiesced
        config = now.raw if now is not None and is_as_before else dict(self.old_config)
        counted, shown = now or self.staging_now or self.target_now, now or self.target_now
        state = counted.state if counted is not None else old.get("state", {})
        server = shown.server if shown is not None else {}
        found = LiveObject(self.origin, config, old["created"], state, server)
        return dataclasses.replace(found, actual_fingerprint=now.fingerprint if now else "")

    def fingerprint_of(self, address: Address) -> str:
        """Return the fingerprint that the first step must find under the address it changes."""
        if self.is_relocation:
            found = self.target_now
        elif address == self.staging:
            found = self.staging_now
        else:
            found = self.origin_now or self.target_now
        return found.fingerprint if found is not None else "absent"

    # --- in words --------------------------------------------------------------------------------

    @property
    def rejected_subjects(self) -> list[str]:
        """The subjects whose publishers are rejected meanwhile; none of a sealed stream."""
        takes = self.is_activated or (self.is_relocation and not self.is_quiesced)
        if takes or self.old_config.get("sealed"):
            return []
        current = self.origin_now or self.target_now
        taken = current.raw.get("subjects") or [] if current is not None else []
        return [s for s in self.old_config.get("subjects") or [] if not is_covered(s, taken)]

    @property
    def summary(self) -> str:
        """The interruption in words: rejected publishes first, then the place of the messages."""
        name = str(self.origin) if self.is_relocation else self.origin.name
        noun = "relocation" if self.is_relocation else "replacement"
        if self.is_origin_lost:
            what = "was deleted or recreated outside jsplan after its messages had moved to"
            return f"{name} {what} {self.target}"
        if self.is_activated and self.is_relocation:
            return f"the relocation of {name} was interrupted after its messages had moved"
        nouns = nouns_of(self.origin)
        safe = f"Its {nouns.content} are in {self.messages_location}"
        if self.is_target_offline:
            safe = f"{self.target.domain} is offline. {safe}"
        if not self.rejected_subjects:
            return f"the {noun} of {name} was interrupted. {safe}"
        rejected = f"publishes to {', '.join(self.rejected_subjects)}"
        if nouns.object != "stream":
            rejected = f"writes to the {nouns.object}"
        return (
            f"{name} is down: {rejected} are rejected, because its {noun} was interrupted. {safe}"
        )

    @property
    def messages_location(self) -> str:
        """The stream that has the messages, in words."""
        if self.is_relocation:
            may = self.is_target_offline and not self.is_before_activation
            return f"{self.origin}, or in {self.target}" if may else str(self.origin)
        location = str(self.staging)
        if self.conflict:
            return location if self.staging_now is not None else "no stream that jsplan knows"
        if self.has_origin:
            return f"the old stream{f' and in {location}' if self.has_moved_messages else ''}"
        is_new = self.next_step not in ("refill", "match")
        return f"the new stream and in {location}" if is_new else location

    @property
    def detail(self) -> str:
        """The way to end it: the command, and where that is possible the way back."""
        if self.is_lost:
            return f"To create it again, empty: jsplan apply --reinstalled {self.target.domain}"
        if self.conflict and not self.is_relocation:
            return f"{INSPECT_HINT} {quote_shell(str(self.target))}"
        if self.must_release:
            return (
                f"jsplan apply gives {self.origin} its subjects back. The relocation continues "
                f"when {self.target.domain} answers again."
            )
        if self.is_target_offline:
            return f"When {self.target.domain} answers again: jsplan apply."
        if self.is_origin_lost:
            return f"{self._describe_comparison()} To finish the relocation: jsplan apply."
        if self.is_activated:
            return "To finish it: jsplan apply."
        return RELOCATION_HINT if self.is_relocation else FINISH_HINT

    def describe_loss(self) -> str:
        """Describe a domain that came back empty in the middle of a replacement."""
        return (
            f"it came back empty in the middle of the replacement of {self.target}, whose messages "
            "are in no stream that jsplan knows. To create again, empty, what it had: jsplan apply "
            f"--reinstalled {self.target.domain}"
        )

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
        if self.old_config.get("retention") == "workqueue":
            text += (
                " What workers finished there after the copy, and before their consumer moved, is "
                "delivered again."
            )
        if _last_seq(self.target_now) < last:
            text += f" Since then the server of {self.target} lost messages."
        return text


# --- for documents -------------------------------------------------------------------------------


def list_unfinished(transfers: Iterable[Transfer]) -> list[dict[str, Any]]:
    """List the interrupted transfers for documents, but those that are prepared on purpose.

    One of which nothing could be read is left out, and so is one that only left its staging stream.
    """
    found = []
    for one in sorted(transfers, key=lambda transfer: transfer.origin):
        is_read = not one.is_relocation or one.origin_now or one.target_now
        left = one.next_step not in ("clear", "recompare") and not one.is_prepared
        if one.record and left and is_read:
            item = {"address": str(one.origin), "rejected": one.rejected_subjects}
            found.append(item | {"summary": one.summary, "detail": one.detail})
    return sorted(found, key=lambda item: not item["rejected"])


def list_relocations(transfers: Iterable[Transfer]) -> list[dict[str, Any]]:
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
        for found in sorted(transfers, key=lambda found: found.target)
        if found.record and found.is_relocation
    ]


def _last_seq(stream: LiveObject | None) -> int:
    return int(stream.state.get("last_seq") or 0) if stream is not None else 0


def _last_message(copy: LiveObject | None) -> str | None:
    """Return the time of the newest message of a copy; None if it has none."""
    state = copy.state if copy is not None else {}
    return str(state["last_ts"]) if state.get("messages") and state.get("last_ts") else None


# --- where it continues --------------------------------------------------------------------------


def determine_progress(
    transfer: Transfer,
    origin: LiveObject | None,
    target: LiveObject | None,
    staging: LiveObject | None = None,
) -> Transfer:
    """Determine the progress of a transfer from its streams as they are now.

    `origin` and `target` of a replacement are the same stream: the one that has the name now.
    """
    record = transfer.record
    if transfer.is_relocation:
        return _relocation_progress(replace(transfer, origin_now=origin, target_now=target))
    is_old = target is not None and (not record or target.created == record["old"]["created"])
    old, new = (target, None) if is_old else (None, target)
    found = replace(transfer, origin_now=old, target_now=new, staging_now=staging)
    return _replacement_progress(found)


def _relocation_progress(found: Transfer) -> Transfer:
    record, origin, target = found.record, found.origin_now, found.target_now
    if not record:
        return replace(found, next_step="mirror")
    ours = target is not None and belongs_to_replacement(target.raw, record["id"])
    is_named = target is not None and target.created == record.get("target_created")
    activated = is_named and not ours and not found.is_before_activation
    if origin is None or origin.created != record["old"]["created"]:
        if activated:
            return replace(found, next_step="end")
        conflict = f"{found.origin} was deleted or recreated outside jsplan"
        return replace(found, next_step="mirror", conflict=conflict)
    if activated:
        return replace(found, next_step="delete")
    if target is not None and not ours:
        conflict = f"{found.target} was created or changed outside jsplan meanwhile"
        return replace(found, next_step="mirror", conflict=conflict)
    has_copy = target is not None or found.method == "snapshot"
    if origin.raw.get("sealed") or (has_copy and found.is_quiesced):
        return replace(found, next_step="rest")
    return replace(found, next_step="mirror")


def _replacement_progress(found: Transfer) -> Transfer:
    record, target, staging = found.record, found.target_now, found.staging_now
    if not record or found.has_origin:
        return replace(found, next_step="probe", conflict=_foreign_staging(found))
    if conflict := _foreign_staging(found):
        return replace(found, conflict=conflict)
    is_named = target is not None and target.created == record.get("target_created")
    ours = target is not None and belongs_to_replacement(target.raw, record["id"])
    was_sent = record["phase"] == "activating" and is_named and not ours
    if record["phase"] == "activated" or was_sent:
        is_compared = int(record.get("compared") or 0) >= int(record.get("last_seq") or 0)
        return replace(found, next_step="clear" if is_compared or not staging else "recompare")
    if staging is None or is_before(record["phase"], "compared"):
        left = "is not complete" if staging is not None else "is gone too"
        conflict = "the old stream was deleted outside jsplan before its copy was compared"
        return replace(found, conflict=f"{conflict}, and {record['staging']} {left}")
    if target is None:
        return replace(found, next_step="refill")
    if ours:
        return replace(found, next_step=_next_in_new_stream(record, target))
    conflict = f"a stream {found.target.stream} was created outside jsplan meanwhile"
    return replace(found, conflict=f"{conflict}; its messages are in {record['staging']}")


def _foreign_staging(found: Transfer) -> str:
    """Describe a stream under the name of the staging stream that is not ours; empty if it is."""
    staging = found.staging_now
    if staging is None or belongs_to_replacement(staging.raw, found.record["id"]):
        return ""
    return f"{staging.address} is not the staging stream that jsplan created"


def _next_in_new_stream(record: Mapping[str, Any], target: LiveObject) -> Part:
    """Return the next step in the new stream.

    A work queue loses what its consumers have finished after it was compared; do not compare it
    again.
    """
    phase = record["phase"]
    if is_before(phase, "refilled") or target.created != record.get("target_created"):
        return "refill"
    following: dict[str, Part] = {"refilled": "match", "recompared": "resume"}
    return following.get(phase, "update")
