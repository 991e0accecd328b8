"""Streams and consumers that an interrupted apply left, without a record of it in state."""

from __future__ import annotations

from jsplan.address import PARKING_PREFIX, STAGING_PREFIX, Address
from jsplan.planning.crash_recovery import staging_streams
from jsplan.planning.interruptions import INTERRUPTED
from jsplan.planning.model import Decisions, Findings, PlanInputs, ResourceDecision
from jsplan.planning.transfer.configs import REPLACES_KEY, is_transferred
from jsplan.units import count_text

#: What finds the staging streams that have the messages of a stream alone.
STAGED_SUBJECTS = f"{PARKING_PREFIX}>"
_DETAIL = (
    "Put back the state that was written last, with jsplan state push. Then jsplan apply resumes "
    "it. To begin without these messages, delete that stream first."
)
_KEPT = "Delete it by hand, once nothing of it is missing in the stream itself."


def may_lack_record(decision: ResourceDecision) -> bool:
    """Check whether state does not know the stream that is there, or that a plan creates."""
    is_new = decision.live is None or decision.adopts
    return decision.address.is_stream and decision.after is not None and is_new


def check_lost_records(inputs: PlanInputs, decisions: Decisions) -> Findings:
    """Yield a finding for a stream of which a staging stream has messages that no record names.

    It is an error where the stream is not there, or is not complete yet.
    """
    known = staging_streams(inputs)
    for staging, live in inputs.live.objects.items():
        if not staging.stream.startswith(STAGING_PREFIX) or staging in known:
            continue
        origin = (live.raw.get("metadata") or {}).get(REPLACES_KEY)
        messages = int(live.state.get("messages") or 0)
        if not (origin and messages):
            continue
        # Another workspace may have another name for the domain.
        old = Address.parse(origin)
        replaced = Address(staging.domain, old.kind, old.name)
        decision = decisions.get(replaced)
        if decision is None or not may_lack_record(decision):
            continue
        text = (
            f"{staging} has {count_text(messages, 'message')} of it: an apply was interrupted "
            "while it replaced the stream, and state has no record of that"
        )
        whole = decision.live is not None and not is_transferred(decision.live.raw)
        if whole:
            yield inputs.finding("warning", INTERRUPTED, text, _KEPT, replaced)
        else:
            yield inputs.finding("error", INTERRUPTED, text, _DETAIL, replaced)
