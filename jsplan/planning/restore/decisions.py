"""Decisions and steps of a restore: created with the saved content, or left alone. Pure.

A backup is never restored over an existing object. An object that is equal to the saved one stays.
State decides nothing: it may know objects that are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jsplan.address import Address
from jsplan.documents.plan_types import RESTORED
from jsplan.planning.decide import table_of
from jsplan.planning.drafts import Draft
from jsplan.planning.model import ResourceDecision
from jsplan.planning.state_records import build_state_record

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs
    from jsplan.planning.restore.selection import RestoreTarget

#: The reasons of objects that exist: equal to the saved one, or not.
AS_SAVED: Final = "is_as_it_was_saved"
IN_THE_WAY: Final = "is_in_the_way"


def decide_restored(inputs: PlanInputs) -> dict[Address, ResourceDecision]:
    """Decide each stream of `inputs.backup` in a reachable domain, with its consumers."""
    found: dict[Address, ResourceDecision] = {}
    for target in inputs.backup.values():
        stream, live = target.address, inputs.live.get(target.address)
        if not inputs.live.is_reachable(stream.domain):
            continue
        reason = AS_SAVED if live is not None and _is_as_saved(live, target) else IN_THE_WAY
        is_absent = live is None and stream not in inputs.live.unreadable
        for address, config in target.configs.items():
            if is_absent:
                after = table_of(address).compact(config)
                found[address] = ResourceDecision(address, ["create"], RESTORED, after=after)
            elif (known := inputs.live.get(address)) is not None:
                after = known.compact
                found[address] = ResourceDecision(address, ["no-op"], reason, known, after=after)
    return {address: found[address] for address in sorted(found)}


def _is_as_saved(live: LiveObject, target: RestoreTarget) -> bool:
    """Check whether it exists as it was saved: an earlier restore of the same backup made it."""
    if live.compact != table_of(target.address).compact(target.config):
        return False
    now, was = live.state, target.saved.before
    # The first sequence is then one more than the last, or missing.
    empty = was["messages"] == 0
    return all(
        now.get(name) == was.get(name) or (empty and name == "first_seq")
        for name in ("messages", "first_seq", "last_seq")
    )


def draft_restored(inputs: PlanInputs, decision: ResourceDecision) -> Draft:
    """Draft the restore of a stream, or the check of a consumer, which comes with its stream.

    Streams do not wait for each other: each has what it needs of its origin.
    """
    address, parent = decision.address, decision.address.parent
    record = build_state_record(inputs, decision, "created")
    if parent is not None:
        title = f"verify consumer {address.consumer} of {address.stream} in {address.domain}"
        draft = Draft((address, "verify"), "consumer.verify", title, None, "", record=record)
        draft.depends_on.add((parent, "restore"))
        return draft
    target, after = inputs.backup[address], decision.after or {}
    return Draft(
        (address, "restore"),
        "stream.restore",
        f"restore {address.kind} {address.name} in {address.domain}",
        {
            "api": f"STREAM.RESTORE.{address.stream}",
            "payload": {"config": target.config, "state": target.saved.before},
        },
        "absent",
        {name: value for name, value in after.items() if name != "mirror_direct"},
        record,
    )
