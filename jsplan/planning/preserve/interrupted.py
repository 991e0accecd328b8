"""Replacements of streams that an apply began and did not end: where to go on, and what they stand for meanwhile.

What state recorded and what lies on the servers must agree; where they do not, somebody else was there, and nothing is guessed.
Meanwhile the resource counts as it was before, so that everything is decided as it was for the first plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.diagnostics import quote_shell
from jsplan.facts.live import LiveObject
from jsplan.planning.merge import build_create
from jsplan.planning.preserve.methods import choose_preserve_method
from jsplan.planning.preserve.staging import (
    belongs_to_replacement,
    initial_config,
    needs_recreation,
)
from jsplan.resources.buckets import BACKING_TABLES
from jsplan.subjects import is_covered

if TYPE_CHECKING:
    from jsplan.planning.model import PlanInputs

#: What to do where somebody else was there meanwhile.
INSPECT_HINT: Final = (
    "Look at both streams. To plan with what is there, which deletes nothing: jsplan state rm"
)
#: What state says of how far it came: the last of these that is done. From `compared` on the stand-in has everything.
PHASES: Final = (
    "started", "quiesced", "consumers_paused", "copied", "compared", "old_deleted", "refilled", "recompared", "consumers_resumed",
    "activated",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InterruptedReplacement:
    """One replacement under way: the step to go on with, what has the stream's name now, and its stand-in.

    `conflict` says in words why it cannot go on; `next_step` is the key of a step in `streams.ORDER`.
    """

    record: dict[str, Any]
    current: LiveObject | None
    staging: LiveObject | None
    next_step: str = "probe"
    conflict: str = ""

    @property
    def has_old_stream(self) -> bool:
        """Whether the old stream was not deleted yet, so that nothing needs to go on."""
        return self.current is not None and self.current.created == self.record["old"]["created"]

    @property
    def messages_location(self) -> str:
        """Where the messages are, in words."""
        place = str(self.record["staging"])
        if self.conflict:
            return place if self.staging is not None else "no stream that jsplan knows"
        if self.has_old_stream:
            return f"the old stream{f' and in {place}' if self.has_moved_messages else ''}"
        return (
            place if self.next_step in ("refill", "recompare") else f"the new stream and in {place}"
        )

    @property
    def rejected_subjects(self) -> list[str]:
        """The subjects on which publishers are rejected for as long as it is not finished. A sealed stream took no messages before."""
        old = self.record["old"]["config"]
        taken = self.current.raw.get("subjects") or [] if self.current is not None else []
        return (
            []
            if old.get("sealed")
            else [s for s in old.get("subjects") or [] if not is_covered(s, taken)]
        )

    @property
    def summary(self) -> str:
        """What is the matter, in words: first that publishers are rejected, then where the messages are."""
        name, safe = (
            Address.parse(self.record["address"]).name,
            f"Its messages are in {self.messages_location}",
        )
        if self.rejected_subjects:
            return f"{name} is down: publishes to {', '.join(self.rejected_subjects)} are rejected, because its replacement was interrupted. {safe}"
        return f"the replacement of {name} was interrupted. {safe}"

    @property
    def detail(self) -> str:
        """What ends it."""
        if self.conflict:
            return f"{INSPECT_HINT} {quote_shell(self.record['address'])}"
        return "To finish it: jsplan apply. To go back: put the old configuration back into the files, and run jsplan apply."

    @property
    def can_roll_back(self) -> bool:
        """Whether the old stream still has everything. A mirror that was stopped is none any more."""
        return (
            self.has_old_stream
            and not self.has_moved_messages
            and not self.record["old"]["config"].get("mirror")
        )

    @property
    def has_moved_messages(self) -> bool:
        """Whether messages are in the stand-in that the old stream has no more: copying a work queue consumes it."""
        if not self.has_old_stream or self.current is None or self.staging is None:
            return False
        consumed = (
            self.current.compact.get("retention") == "workqueue"
            and self.record["method"] != "snapshot"
        )
        return bool(consumed and self.staging.state.get("messages"))

    def to_json(self, address: Address) -> dict[str, Any]:
        """The element of `list_interrupted` in the documents of apply, drift and status."""
        return {
            "address": str(address),
            "rejected": self.rejected_subjects,
            "summary": self.summary,
            "detail": self.detail,
        }

    def fingerprint_of(self, address: Address) -> str:
        """What the first step must find under the address that it touches."""
        found = self.staging if str(address) == self.record["staging"] else self.current
        return found.fingerprint if found is not None else "absent"


def staging_streams(inputs: PlanInputs) -> set[Address]:
    """The streams that must be read to know how far the replacements came."""
    return {
        Address.parse(r["staging"])
        for a, r in inputs.replacement_records.items()
        if a.kind != "consumer" and "staging" in r
    }


def list_interrupted(found: Mapping[Address, InterruptedReplacement]) -> list[dict[str, Any]]:
    """Those that are not finished, for documents; of one that only left its stand-in behind there is nothing to say."""
    shown = {address: one for address, one in found.items() if one.next_step != "clear"}
    return [
        one.to_json(address)
        for address, one in sorted(
            shown.items(), key=lambda item: (not item[1].rejected_subjects, item[0])
        )
    ]


def load_interrupted(inputs: PlanInputs) -> None:
    """Find out how far each replacement came, and let its resources count as they were. `inputs.live` must cover the stand-ins."""
    for address, record in inputs.replacement_records.items():
        if "staging" not in record or not inputs.live.is_reachable(address.domain):
            continue
        found = _inspect_replacement(inputs, address, record)
        inputs.interrupted[address] = found
        if found.next_step != "clear":
            _restore_previous_view(inputs, address, found)


def _inspect_replacement(
    inputs: PlanInputs, address: Address, record: dict[str, Any]
) -> InterruptedReplacement:
    found = determine_progress(
        address, record, inputs.live.get(address), inputs.live.get(Address.parse(record["staging"]))
    )
    if (
        found.next_step in ("recompare", "update")
        and found.current is not None
        and inputs.declared(address) is not None
    ):
        return (
            replace(found, next_step="refill") if _needs_refill(inputs, address, found) else found
        )
    return found


def _needs_refill(inputs: PlanInputs, address: Address, found: InterruptedReplacement) -> bool:
    """Whether the new stream was made for files that said something else, and cannot become what they say now: it is filled once more."""
    assert found.current is not None
    level, old = (
        inputs.level(address),
        LiveObject(address, found.record["old"]["config"], found.record["old"]["created"], {}),
    )
    creation = build_create(BACKING_TABLES[address.kind], inputs.creation_body(address), level)
    wanted = initial_config(
        address, old, creation, can_mirror=choose_preserve_method(level) == "snapshot"
    )
    return belongs_to_replacement(found.current.raw, found.record["id"]) and needs_recreation(
        found.current.raw, wanted
    )


def determine_progress(
    address: Address, record: dict[str, Any], current: LiveObject | None, staging: LiveObject | None
) -> InterruptedReplacement:
    """How far a replacement came, by what is there under its stream's name and that of its stand-in."""
    done = PHASES.index(record.get("phase", "started"))
    complete = done >= PHASES.index("compared")
    ours = staging is not None and belongs_to_replacement(staging.raw, record["id"])
    if staging is not None and not ours:
        return InterruptedReplacement(
            record,
            current,
            staging,
            conflict=f"{record['staging']} is not the stream that jsplan made to hold its messages",
        )
    if current is not None and current.created == record["old"]["created"]:
        return InterruptedReplacement(record, current, staging)
    if record.get("phase") == "activated":
        return InterruptedReplacement(record, current, staging, "clear")
    if staging is None or not complete:
        kept = (
            f"and {record['staging']} is not complete"
            if staging is not None
            else f"and {record['staging']} is gone too"
        )
        return InterruptedReplacement(
            record,
            current,
            staging,
            conflict=f"the old stream was deleted by somebody else before its copy was compared, {kept}",
        )
    if current is None:
        return InterruptedReplacement(record, current, staging, "refill")
    if belongs_to_replacement(current.raw, record["id"]):
        filled = done >= PHASES.index("refilled") and current.created == record.get("new_created")
        return InterruptedReplacement(
            record,
            current,
            staging,
            "recompare"
            if filled and done < PHASES.index("consumers_resumed")
            else "update"
            if filled
            else "refill",
        )
    if current.created == record.get("new_created"):
        return InterruptedReplacement(record, current, staging, "update")
    return InterruptedReplacement(
        record,
        current,
        staging,
        conflict=f"somebody else made a stream {address.stream} meanwhile; its messages are in {record['staging']}",
    )


def _restore_previous_view(
    inputs: PlanInputs, address: Address, found: InterruptedReplacement
) -> None:
    """The stream and its consumers as they were before, with as many messages as there are now."""
    old, counted = (
        found.record["old"],
        found.staging if found.staging is not None and not found.has_old_stream else found.current,
    )
    state = counted.state if counted is not None else old.get("state", {})
    server = found.current.server if found.current is not None else {}
    _put_live(inputs, LiveObject(address, old["config"], old["created"], state, server))
    for name, consumer in found.record.get("consumers", {}).items():
        there = Address(address.domain, "consumer", f"{address.stream}/{name}")
        _put_live(
            inputs, LiveObject(there, consumer["config"], consumer["created"], consumer["state"])
        )


def _put_live(inputs: PlanInputs, before: LiveObject) -> None:
    """In place of what is there now. What state recorded of the new one already was ours, so the old one was."""
    now, entry = inputs.live.get(before.address), inputs.entries.get(before.address)
    if now is not None and entry is not None and entry.created == now.created:
        inputs.entries[before.address] = replace(entry, created=before.created)
    inputs.live.objects[before.address] = before
