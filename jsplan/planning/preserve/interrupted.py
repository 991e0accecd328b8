"""Interrupted replacements of streams: the step to resume with, and the resource meanwhile.

What state recorded and what is on the servers must agree. Otherwise the streams were changed
outside jsplan, and nothing is guessed. Until it is finished the resource counts as it was before,
so that everything is decided as for the first plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from jsplan.address import Address
from jsplan.diagnostics import quote_shell
from jsplan.documents.state_parts import PHASES
from jsplan.facts.live import LiveObject
from jsplan.planning.bucket_aliases import nouns_of
from jsplan.planning.preserve.staging import (
    belongs_to_replacement,
)
from jsplan.subjects import is_covered

#: The ways out of an interrupted replacement.
FINISH_HINT: Final = (
    "To finish it: jsplan apply. To go back: put the old configuration back into the "
    "files, and run jsplan apply."
)
#: The hint for streams that were changed outside jsplan meanwhile.
INSPECT_HINT: Final = (
    "Look at both streams. To plan with what is there, which deletes nothing: jsplan state rm"
)


class InterruptedReplacement(Struct, frozen=True):
    """One interrupted replacement: the next step, the current stream and its staging stream.

    `conflict` explains why it cannot be resumed. `next_step` is the key of a step in
    `stream_steps.STEP_ORDER`.
    """

    record: dict[str, Any]
    current: LiveObject | None
    staging: LiveObject | None
    next_step: str = "probe"
    conflict: str = ""

    @property
    def has_old_stream(self) -> bool:
        """Check whether the old stream still exists, so that nothing needs to be resumed."""
        return self.current is not None and self.current.created == self.record["old"]["created"]

    @property
    def is_lost(self) -> bool:
        """Check whether neither the stream nor its staging stream exists."""
        return bool(self.conflict) and self.current is None and self.staging is None

    def describe_loss(self) -> str:
        """Describe a domain that came back empty in the middle of the replacement."""
        address = Address.parse(self.record["address"])
        return (
            f"it came back empty in the middle of the replacement of {address}, whose messages are "
            "in no stream that jsplan knows. To create again, empty, what it had: jsplan apply "
            f"--reinstalled {address.domain}"
        )

    @property
    def messages_location(self) -> str:
        """The location of the messages, in words."""
        location = str(self.record["staging"])
        if self.conflict:
            return location if self.staging is not None else "no stream that jsplan knows"
        if self.has_old_stream:
            return f"the old stream{f' and in {location}' if self.has_moved_messages else ''}"
        return (
            location
            if self.next_step in ("refill", "recompare")
            else f"the new stream and in {location}"
        )

    @property
    def rejected_subjects(self) -> list[str]:
        """The subjects whose publishers are rejected meanwhile; none of a sealed stream."""
        old = self.record["old"]["config"]
        taken = self.current.raw.get("subjects") or [] if self.current is not None else []
        return (
            []
            if old.get("sealed")
            else [s for s in old.get("subjects") or [] if not is_covered(s, taken)]
        )

    @property
    def summary(self) -> str:
        """The problem in words: the rejected publishes first, then the location of the messages."""
        address = Address.parse(self.record["address"])
        name, nouns = address.name, nouns_of(address)
        safe = f"Its {nouns.content} are in {self.messages_location}"
        if self.rejected_subjects:
            rejected = f"publishes to {', '.join(self.rejected_subjects)}"
            if nouns.object != "stream":
                rejected = f"writes to the {nouns.object}"
            return (
                f"{name} is down: {rejected} are rejected, "
                f"because its replacement was interrupted. {safe}"
            )
        return f"the replacement of {name} was interrupted. {safe}"

    @property
    def detail(self) -> str:
        """The command that finishes it."""
        if self.is_lost:
            domain = Address.parse(self.record["address"]).domain
            return f"To create it again, empty: jsplan apply --reinstalled {domain}"
        if self.conflict:
            return f"{INSPECT_HINT} {quote_shell(self.record['address'])}"
        return FINISH_HINT

    @property
    def can_roll_back(self) -> bool:
        """Check whether the old stream still has everything. A stopped mirror is one no longer."""
        return (
            self.has_old_stream
            and not self.has_moved_messages
            and not self.record["old"]["config"].get("mirror")
        )

    @property
    def has_moved_messages(self) -> bool:
        """Check whether copying consumed messages of the old stream, as of a work queue."""
        if not self.has_old_stream or self.current is None or self.staging is None:
            return False
        consumed = (
            self.current.compact.get("retention") == "workqueue"
            and self.record["method"] != "snapshot"
        )
        return bool(consumed and self.staging.state.get("messages"))

    def to_json(self, address: Address) -> dict[str, Any]:
        """Return the element of `list_interrupted` in the documents of apply, drift and status."""
        return {
            "address": str(address),
            "rejected": self.rejected_subjects,
            "summary": self.summary,
            "detail": self.detail,
        }

    def fingerprint_of(self, address: Address) -> str:
        """Return the fingerprint that the first step must find under the address it changes."""
        found = self.staging if str(address) == self.record["staging"] else self.current
        return found.fingerprint if found is not None else "absent"


def list_interrupted(found: Mapping[Address, InterruptedReplacement]) -> list[dict[str, Any]]:
    """List the unfinished ones for documents; one that only left its staging stream is finished."""
    shown = {
        address: replacement
        for address, replacement in found.items()
        if replacement.next_step != "clear"
    }
    return [
        replacement.to_json(address)
        for address, replacement in sorted(
            shown.items(), key=lambda item: (not item[1].rejected_subjects, item[0])
        )
    ]


def determine_progress(
    address: Address, record: dict[str, Any], current: LiveObject | None, staging: LiveObject | None
) -> InterruptedReplacement:
    """Determine the progress of a replacement from the current stream and its staging stream."""
    done = PHASES.index(record.get("phase", "started"))
    complete = done >= PHASES.index("compared")
    ours = staging is not None and belongs_to_replacement(staging.raw, record["id"])
    if staging is not None and not ours:
        return InterruptedReplacement(
            record,
            current,
            staging,
            conflict=f"{record['staging']} is not the staging stream that jsplan created",
        )
    if current is not None and current.created == record["old"]["created"]:
        return InterruptedReplacement(record, current, staging)
    if record.get("phase") == "activated":
        return InterruptedReplacement(record, current, staging, "clear")
    if staging is None or not complete:
        staging_state = (
            f"and {record['staging']} is not complete"
            if staging is not None
            else f"and {record['staging']} is gone too"
        )
        return InterruptedReplacement(
            record,
            current,
            staging,
            conflict=(
                "the old stream was deleted outside jsplan before its copy was compared, "
                f"{staging_state}"
            ),
        )
    if current is None:
        return InterruptedReplacement(record, current, staging, "refill")
    if belongs_to_replacement(current.raw, record["id"]):
        return InterruptedReplacement(
            record, current, staging, _next_in_new_stream(record, current)
        )
    if current.created == record.get("new_created"):
        return InterruptedReplacement(record, current, staging, "update")
    return InterruptedReplacement(
        record,
        current,
        staging,
        conflict=(
            f"a stream {address.stream} was created outside jsplan meanwhile; "
            f"its messages are in {record['staging']}"
        ),
    )


def _next_in_new_stream(record: Mapping[str, Any], current: LiveObject) -> str:
    """Return the next step in the new stream.

    A work queue loses what its consumers have finished after it was compared; do not compare it
    again.
    """
    done = PHASES.index(record.get("phase", "started"))
    if done < PHASES.index("refilled") or current.created != record.get("new_created"):
        return "refill"
    return {"refilled": "recompare", "recompared": "resume"}.get(PHASES[done], "update")
