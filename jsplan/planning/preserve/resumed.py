"""Replacements of streams that an apply began and did not end: where to go on, and what they stand for meanwhile.

What state recorded and what lies on the servers must agree; where they do not, somebody else was there, and nothing is guessed.
Meanwhile the resource counts as it was before, so that everything is decided as it was for the first plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.diagnostics import shell_word
from jsplan.facts.live import LiveObject
from jsplan.planning.merge import as_created
from jsplan.planning.preserve.standins import bare, marked, needs_new
from jsplan.planning.preserve.ways import way_of
from jsplan.resources.buckets import CARRYING
from jsplan.subjects import covered

if TYPE_CHECKING:
    from jsplan.planning.inputs import Inputs

#: What to do where somebody else was there meanwhile.
LOOK: Final = "Look at both streams. To plan with what is there, which deletes nothing: jsplan state rm"
#: What state says of how far it came: the last of these that is done. From `compared` on the stand-in has everything.
PHASES: Final = (
    "started", "quiesced", "consumers_paused", "copied", "compared", "old_deleted", "refilled", "recompared", "consumers_resumed",
    "activated",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One replacement under way: the step to go on with, what has the stream's name now, and its stand-in.

    `broken` says in words why it cannot go on; `begin` is the key of a step in `streams.ORDER`.
    """

    record: dict[str, Any]
    now: LiveObject | None
    stand_in: LiveObject | None
    begin: str = "probe"
    broken: str = ""

    @property
    def old_is_there(self) -> bool:
        """Whether the old stream was not deleted yet, so that nothing needs to go on."""
        return self.now is not None and self.now.created == self.record["old"]["created"]

    @property
    def where(self) -> str:
        """Where the messages are, in words."""
        place = str(self.record["staging"])
        if self.broken:
            return place if self.stand_in is not None else "no stream that jsplan knows"
        if self.old_is_there:
            return f"the old stream{f' and in {place}' if self.only_copy else ''}"
        return place if self.begin in ("refill", "recompare") else f"the new stream and in {place}"

    @property
    def rejected(self) -> list[str]:
        """The subjects on which publishers are rejected for as long as it is not finished. A sealed stream took no messages before."""
        old = self.record["old"]["config"]
        taken = self.now.raw.get("subjects") or [] if self.now is not None else []
        return [] if old.get("sealed") else [s for s in old.get("subjects") or [] if not covered(s, taken)]

    @property
    def summary(self) -> str:
        """What is the matter, in words: first that publishers are rejected, then where the messages are."""
        name, safe = Address.parse(self.record["address"]).name, f"Its messages are in {self.where}"
        if self.rejected:
            return f"{name} is down: publishes to {', '.join(self.rejected)} are rejected, because its replacement was interrupted. {safe}"
        return f"the replacement of {name} was interrupted. {safe}"

    @property
    def detail(self) -> str:
        """What ends it."""
        if self.broken:
            return f"{LOOK} {shell_word(self.record['address'])}"
        return "To finish it: jsplan apply. To go back: put the old configuration back into the files, and run jsplan apply."

    @property
    def can_be_given_up(self) -> bool:
        """Whether the old stream still has everything. A mirror that was stopped is none any more."""
        return self.old_is_there and not self.only_copy and not self.record["old"]["config"].get("mirror")

    @property
    def only_copy(self) -> bool:
        """Whether messages are in the stand-in that the old stream has no more: copying a work queue consumes it."""
        if not self.old_is_there or self.now is None or self.stand_in is None:
            return False
        consumed = self.now.compact.get("retention") == "workqueue" and self.record["method"] != "snapshot"
        return bool(consumed and self.stand_in.state.get("messages"))

    def to_json(self, address: Address) -> dict[str, Any]:
        """The element of `interrupted` in the documents of apply, drift and status."""
        return {"address": str(address), "rejected": self.rejected, "summary": self.summary, "detail": self.detail}

    def fingerprint_of(self, address: Address) -> str:
        """What the first step must find under the address that it touches."""
        found = self.stand_in if str(address) == self.record["staging"] else self.now
        return found.fingerprint if found is not None else "absent"


def stand_ins(inputs: Inputs) -> set[Address]:
    """The streams that must be read to know how far the replacements came."""
    return {Address.parse(r["staging"]) for a, r in inputs.replacements.items() if a.kind != "consumer" and "staging" in r}


def interrupted(found: Mapping[Address, UnderWay]) -> list[dict[str, Any]]:
    """Those that are not finished, for documents; of one that only left its stand-in behind there is nothing to say."""
    shown = {address: one for address, one in found.items() if one.begin != "clear"}
    return [one.to_json(address) for address, one in sorted(shown.items(), key=lambda item: (not item[1].rejected, item[0]))]


def take_up(inputs: Inputs) -> None:
    """Find out how far each replacement came, and let its resources count as they were. `inputs.live` must cover the stand-ins."""
    for address, record in inputs.replacements.items():
        if "staging" not in record or not inputs.live.reachable(address.domain):
            continue
        found = _found(inputs, address, record)
        inputs.under_way[address] = found
        if found.begin != "clear":
            _as_it_was(inputs, address, found)


def _found(inputs: Inputs, address: Address, record: dict[str, Any]) -> UnderWay:
    found = standing(address, record, inputs.live.get(address), inputs.live.get(Address.parse(record["staging"])))
    if found.begin in ("recompare", "update") and found.now is not None and inputs.declared(address) is not None:
        return replace(found, begin="refill") if _for_other_files(inputs, address, found) else found
    return found


def _for_other_files(inputs: Inputs, address: Address, found: UnderWay) -> bool:
    """Whether the new stream was made for files that said something else, and cannot become what they say now: it is filled once more."""
    assert found.now is not None
    level, old = inputs.level(address), LiveObject(address, found.record["old"]["config"], found.record["old"]["created"], {})
    creation = as_created(CARRYING[address.kind], inputs.creation(address), level)
    wanted = bare(address, old, creation, mirrors=way_of(level) == "snapshot")
    return marked(found.now.raw, found.record["id"]) and needs_new(found.now.raw, wanted)


def standing(address: Address, record: dict[str, Any], now: LiveObject | None, stand: LiveObject | None) -> UnderWay:
    """How far a replacement came, by what is there under its stream's name and that of its stand-in."""
    done = PHASES.index(record.get("phase", "started"))
    complete = done >= PHASES.index("compared")
    ours = stand is not None and marked(stand.raw, record["id"])
    if stand is not None and not ours:
        return UnderWay(record, now, stand, broken=f"{record['staging']} is not the stream that jsplan made to hold its messages")
    if now is not None and now.created == record["old"]["created"]:
        return UnderWay(record, now, stand)
    if record.get("phase") == "activated":
        return UnderWay(record, now, stand, "clear")
    if stand is None or not complete:
        kept = f"and {record['staging']} is not complete" if stand is not None else f"and {record['staging']} is gone too"
        return UnderWay(record, now, stand, broken=f"the old stream was deleted by somebody else before its copy was compared, {kept}")
    if now is None:
        return UnderWay(record, now, stand, "refill")
    if marked(now.raw, record["id"]):
        filled = done >= PHASES.index("refilled") and now.created == record.get("new_created")
        return UnderWay(
            record, now, stand, "recompare" if filled and done < PHASES.index("consumers_resumed") else "update" if filled else "refill"
        )
    if now.created == record.get("new_created"):
        return UnderWay(record, now, stand, "update")
    return UnderWay(
        record, now, stand, broken=f"somebody else made a stream {address.stream} meanwhile; its messages are in {record['staging']}"
    )


def _as_it_was(inputs: Inputs, address: Address, found: UnderWay) -> None:
    """The stream and its consumers as they were before, with as many messages as there are now."""
    old, counted = found.record["old"], found.stand_in if found.stand_in is not None and not found.old_is_there else found.now
    state = counted.state if counted is not None else old.get("state", {})
    server = found.now.server if found.now is not None else {}
    _put(inputs, LiveObject(address, old["config"], old["created"], state, server))
    for name, consumer in found.record.get("consumers", {}).items():
        there = Address(address.domain, "consumer", f"{address.stream}/{name}")
        _put(inputs, LiveObject(there, consumer["config"], consumer["created"], consumer["state"]))


def _put(inputs: Inputs, before: LiveObject) -> None:
    """In place of what is there now. What state recorded of the new one already was ours, so the old one was."""
    now, entry = inputs.live.get(before.address), inputs.entries.get(before.address)
    if now is not None and entry is not None and entry.created == now.created:
        inputs.entries[before.address] = replace(entry, created=before.created)
    inputs.live.objects[before.address] = before
