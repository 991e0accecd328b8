"""Hazards of restored consumers: messages that are delivered a second time."""

from __future__ import annotations

from collections.abc import Iterable

from jsplan.backup.manifest import SavedConsumer
from jsplan.documents.plan import Hazard
from jsplan.facts.redelivery import max_redelivered
from jsplan.planning.restore.target import RestoreTarget


def assess_redelivery(target: RestoreTarget, consumer: SavedConsumer) -> Iterable[Hazard]:
    """Count what was acknowledged above the ack floor, where the archive has only the floor."""
    was, floor = consumer.before, int(consumer.before["ack_floor"]["stream_seq"])
    above = max_redelivered(consumer.config, was, target.saved.before, floor + 1)
    if target.saved.resets_to_ack_floor(consumer) and above:
        text = (
            f"up to {above:,} messages that it had acknowledged are delivered again: "
            "it may have been saved at its ack floor"
        )
        yield Hazard(
            "DUPLICATES_MESSAGES", text, messages=above, exact=False, at_least=0, at_most=above
        )
