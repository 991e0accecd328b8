"""Messages that consumers are given again when they continue at their position elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jsplan.address import Address
from jsplan.facts.consumer_position import max_redelivered, position_of
from jsplan.facts.live import get_retention
from jsplan.planning.hazard_numbers import counted
from jsplan.planning.model import Hazards
from jsplan.units import count_text

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.model import PlanInputs
    from jsplan.planning.restore.selection import RestoreTarget


def assess_redelivery(
    inputs: PlanInputs,
    stream: LiveObject,
    consumers: Iterable[LiveObject],
    *,
    with_pending: bool = True,
    with_finished: bool = True,
) -> Hazards:
    """Yield the hazard of redelivery for consumers of a stream that continue elsewhere.

    That are the messages that workers have now (`with_pending`), and those that are acknowledged
    above the floor (`with_finished`). A work queue has none of the latter any more.
    """
    finished = with_finished and get_retention(stream.compact) != "workqueue"
    pending, above, names = 0, 0, list[str]()
    for consumer in consumers:
        config, state = consumer.compact, consumer.state
        position = position_of(config, state, inputs.level(stream.address))
        out = int(state.get("num_ack_pending") or 0) if with_pending else 0
        most = max_redelivered(config, state, stream.state, position) if finished else 0
        pending, above = pending + out, above + most
        names += [consumer.address.consumer] if out or most else []
    if not names:
        return
    parts = [f"{pending:,} that workers have now"] if pending else []
    parts += [f"{above:,} acknowledged out of order"] if above else []
    text = (
        f"up to {count_text(pending + above, 'message')} of {', '.join(names)} may be delivered "
        f"again: {' and '.join(parts)}"
    )
    yield counted("DUPLICATES_MESSAGES", text, pending + above, causes=names, as_of=stream.as_of)


def assess_restored(target: RestoreTarget, address: Address) -> Hazards:
    """Yield the hazard of a restored consumer of which the archive has only the ack floor.

    That is what was acknowledged above the floor.
    """
    consumer = target.consumers[address]
    was, floor = consumer.before, int(consumer.before["ack_floor"]["stream_seq"])
    above = max_redelivered(consumer.config, was, target.saved.before, floor + 1)
    if target.saved.resets_to_ack_floor(consumer) and above:
        text = (
            f"up to {above:,} messages that it had acknowledged are delivered again: "
            "it may have been saved at its ack floor"
        )
        yield counted("DUPLICATES_MESSAGES", text, above)
