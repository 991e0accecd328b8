"""Replacements of streams that an apply began and did not end: where to go on, and what they stand for meanwhile.

What state recorded and what lies on the servers must agree; where they do not, somebody else was there, and nothing is guessed.
Meanwhile the resource counts as it was before, so that everything is decided as it was for the first plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.planning.preserve.standins import marked

if TYPE_CHECKING:
    from jsplan.planning.inputs import Inputs

#: What state says of how far it came: the last of these that is done. From `compared` on the stand-in has everything.
PHASES: Final = ("begun", "stopped", "held", "copied", "compared", "retired", "refilled", "recompared", "resumed", "returned")


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One replacement under way: the step to go on with, what has the stream's name now, and its stand-in.

    `broken` says in words why it cannot go on; `begin` is the key of a step in `streams.ORDER`.
    """

    record: dict[str, Any]
    now: LiveObject | None
    stand_in: LiveObject | None
    begin: str = "stop"
    broken: str = ""

    @property
    def old_is_there(self) -> bool:
        """Whether the old stream was not deleted yet, so that nothing needs to go on."""
        return self.now is not None and self.now.created == self.record["old"]["created"]

    @property
    def where(self) -> str:
        """Where the messages are, in words."""
        place = str(self.record["stand_in"])
        if self.old_is_there:
            return f"the old stream, which takes no new ones{f', and in {place}' if self.only_copy else ''}"
        return place if self.begin in ("refill", "recompare") else f"the new stream, which takes none yet, and in {place}"

    @property
    def can_be_given_up(self) -> bool:
        """Whether the old stream still has everything. A mirror that was stopped is none any more."""
        return self.old_is_there and not self.only_copy and not self.record["old"]["config"].get("mirror")

    @property
    def only_copy(self) -> bool:
        """Whether messages are in the stand-in that the old stream has no more: copying a work queue consumes it."""
        if not self.old_is_there or self.now is None or self.stand_in is None:
            return False
        consumed = self.now.compact.get("retention") == "workqueue" and self.record["way"] != "archive"
        return bool(consumed and self.stand_in.state.get("messages"))

    def fingerprint_of(self, address: Address) -> str:
        """What the first step must find under the address that it touches."""
        found = self.stand_in if str(address) == self.record["stand_in"] else self.now
        return found.fingerprint if found is not None else "absent"


def stand_ins(inputs: Inputs) -> set[Address]:
    """The streams that must be read to know how far the replacements came."""
    return {Address.parse(r["stand_in"]) for a, r in inputs.replacements.items() if a.kind != "consumer" and "stand_in" in r}


def take_up(inputs: Inputs) -> None:
    """Find out how far each replacement came, and let its resources count as they were. `inputs.live` must cover the stand-ins."""
    for address, record in inputs.replacements.items():
        if "stand_in" not in record or not inputs.live.reachable(address.domain):
            continue
        found = _found(inputs, address, record)
        inputs.under_way[address] = found
        if found.begin != "clear":
            _as_it_was(inputs, address, found)


def _found(inputs: Inputs, address: Address, record: dict[str, Any]) -> UnderWay:
    now, stand = inputs.live.get(address), inputs.live.get(Address.parse(record["stand_in"]))
    done = PHASES.index(record.get("phase", "begun"))
    complete = done >= PHASES.index("compared")
    ours = stand is not None and marked(stand.raw, record["id"])
    if stand is not None and not ours:
        return UnderWay(record, now, stand, broken=f"{record['stand_in']} is not the stream that jsplan made to hold its messages")
    if now is not None and now.created == record["old"]["created"]:
        return UnderWay(record, now, stand)
    if record.get("phase") == "returned":
        return UnderWay(record, now, stand, "clear")
    if stand is None or not complete:
        kept = f"and {record['stand_in']} is not complete" if stand is not None else f"and {record['stand_in']} is gone too"
        return UnderWay(record, now, stand, broken=f"the old stream was deleted by somebody else before its copy was compared, {kept}")
    if now is None:
        return UnderWay(record, now, stand, "refill")
    if marked(now.raw, record["id"]):
        filled = done >= PHASES.index("refilled") and now.created == record.get("made")
        return UnderWay(record, now, stand, "recompare" if filled and done < PHASES.index("resumed") else "update" if filled else "refill")
    if now.created == record.get("made"):
        return UnderWay(record, now, stand, "update")
    return UnderWay(
        record, now, stand, broken=f"somebody else made a stream {address.stream} meanwhile; its messages are in {record['stand_in']}"
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
