"""Judges one flow by the looks that were taken at it, the first one first. Pure.

A flow that is behind and moves is healthy, however far behind it is. That one does not move is not known from one look, nor from two
that are close together: until enough time is over a verdict is not `is_conclusive`. What the servers
show is in the decision "Does it follow?".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.samples import ReplicationSample
from jsplan.health import causes
from jsplan.units import SECOND

#: ns without a heartbeat, of which there is one per second, after which one asks further.
SILENT_AFTER: Final = 3 * SECOND
#: ns of silence after which a server itself takes the consumer for lost (measured: it makes a new one after 10 s).
CONSUMER_LOST_AFTER: Final = 10 * SECOND
#: Seconds, and looks, for which a flow must not have moved; a loaded machine takes its looks more slowly, and so gives it more time.
STALLED_AFTER, MIN_SAMPLES = 5.0, 4
#: The same for one that hears of its origin all the while: a busy server may be slow, and it is not silent.
STALLED_AFTER_IF_HEARD: Final = 8.0
#: Seconds after which a copy that never heard of its origin is not just being set up.
SETUP_TIME: Final = 30.0
#: `err_code` of a copy that waits for flow control, since 2.15.
FLOW_CONTROL_WAIT: Final = 10228


@dataclass(frozen=True, slots=True)
class Assessment:
    """`healthy` None: nobody can tell. `cause` is a sentence, empty where all is well. `is_conclusive`: another look would not change it."""

    healthy: bool | None
    cause: str = ""
    is_conclusive: bool = True


_HEALTHY: Final = Assessment(True)
_INCONCLUSIVE: Final = Assessment(None, is_conclusive=False)


def assess(flow: Flow, samples: Sequence[ReplicationSample], *, quick: bool = False) -> Assessment:
    """What is known after these looks. A `glance` takes two in a row and says only what these prove; it may stay open."""
    last = samples[-1]
    if last.unread:
        return _assess_unreadable_origin(flow, samples, glance=quick)
    if last.origin is None:
        return Assessment(False, causes.origin_missing(flow))
    if (found := _detect_recreated_origin(flow, samples)) is not None:
        return found
    behind = _is_behind(flow, last)
    if behind is False:
        found = _assess_idle(flow, samples, glance=quick) if _is_silent(last) else _HEALTHY
    elif has_progressed(samples) or _is_reported_in_sync(last):
        found = _HEALTHY
    else:
        found = _assess_stalled(flow, samples, glance=quick)
    return (
        Assessment(False, causes.draining_workqueue(flow))
        if found.healthy and last.origin.workqueue and not flow.consumer
        else found
    )


def is_in_sync(flow: Flow, look: ReplicationSample) -> bool:
    """Whether one look shows that the copy has everything, as far as sequences tell. Without them what its server says has to do."""
    origin = look.origin
    if (
        look.unread
        or origin is None
        or _detect_recreated_origin(flow, [look]) is not None
        or (origin.workqueue and not flow.consumer)
    ):
        return False
    if look.position is None:
        return _is_reported_in_sync(look) and not look.searched and not look.error
    return look.position == origin.last or origin.messages == 0


def _is_reported_in_sync(look: ReplicationSample) -> bool:
    """Whether what its server says has to do: nobody knows the position, something was heard, nothing is pending.

    Where the origin is younger than the copy that may be a consumer that waits behind the end of a new origin: then one searches first.
    """
    younger = look.origin is not None and look.origin.created > look.created
    return (
        look.position is None
        and look.lag == 0
        and not _is_silent(look)
        and (look.searched or not younger)
    )


def has_progressed(looks: Sequence[ReplicationSample]) -> bool:
    """Whether the copy got on between the first look and the last, or has what the origin had at the first one."""
    first, last = looks[0], looks[-1]
    if last is first:
        return False
    if first.position is not None and last.position is not None:
        return last.position > first.position or (
            first.origin is not None and last.position >= first.origin.last
        )
    return last.stored > first.stored or last.lag < first.lag


def _is_silent(look: ReplicationSample) -> bool:
    return look.active < 0 or look.active >= SILENT_AFTER


def _is_behind(flow: Flow, look: ReplicationSample) -> bool | None:
    """Whether a message waits for the copy; None where that is not known (yet)."""
    assert look.origin is not None
    if look.origin.messages == 0:
        return False
    if look.position is None:
        return None
    return False if max(look.position, flow.start - 1) >= look.origin.last else look.waiting


def _detect_recreated_origin(flow: Flow, looks: Sequence[ReplicationSample]) -> Assessment | None:
    """A copy that is beyond its origin, or holds under one sequence what the origin does not.

    The two are read side by side, so that a copy may seem a little ahead: the origin of a later look has to be behind an earlier copy.
    """
    last = looks[-1]
    assert last.origin is not None
    if flow.kind == "mirror" and _has_mixed_messages(flow, last):
        return Assessment(False, causes.origin_recreated(flow))
    position = max((look.position or 0 for look in looks[:-1]), default=0)
    beyond = (
        last.origin.last < position
        and position >= flow.start
        and (last.position or 0) > last.origin.last
    )
    if beyond:
        return Assessment(False, causes.origin_recreated(flow))
    return _INCONCLUSIVE if (last.position or 0) > max(last.origin.last, flow.start - 1) else None


def _has_mixed_messages(flow: Flow, look: ReplicationSample) -> bool:
    """A mirror with more messages than its sequences have room for (2.10 to 2.12 count back), or with another first message."""
    assert look.origin is not None
    if look.messages > look.stored - look.first + 1:
        return True
    both = (
        flow.is_unfiltered
        and look.messages
        and look.origin.messages
        and look.first == look.origin.first
    )
    return bool(both) and look.first_ts != look.origin.first_ts


def _assess_unreadable_origin(
    flow: Flow, looks: Sequence[ReplicationSample], *, glance: bool
) -> Assessment:
    """The origin cannot be read: what the copy's server says is all there is."""
    last = looks[-1]
    if flow.origin is not None:
        return Assessment(None, causes.origin_unreadable(last.unread))
    if not _is_silent(last) and last.lag == 0:
        return _HEALTHY
    if last.answers is False and last.active < 0:
        return (
            Assessment(False, causes.domain_unknown(flow))
            if len(looks) > 1 or glance
            else _INCONCLUSIVE
        )
    if not _is_proven(looks, glance=glance):
        return _HEALTHY if has_progressed(looks) else _INCONCLUSIVE
    return (
        Assessment(False, causes.link_down(flow))
        if _is_silent(last)
        else Assessment(None, causes.origin_unreadable(last.unread))
    )


def _is_proven(
    looks: Sequence[ReplicationSample], *, glance: bool, patience: float = STALLED_AFTER
) -> bool:
    """Whether these looks are enough to say that something does not happen."""
    first, last = looks[0], looks[-1]
    long = len(looks) > 1 and all(look.active >= CONSUMER_LOST_AFTER for look in (looks[-2], last))
    return long or (not glance and len(looks) >= MIN_SAMPLES and last.at - first.at >= patience)


def _has_heard_origin(looks: Sequence[ReplicationSample]) -> bool:
    """Whether the copy heard of its origin between the first look and the last."""
    first, last = looks[0], looks[-1]
    return 0 <= last.active < (last.at - first.at) * SECOND


def _assess_idle(flow: Flow, looks: Sequence[ReplicationSample], *, glance: bool) -> Assessment:
    """Nothing waits, and nothing is heard."""
    last = looks[-1]
    if _has_heard_origin(looks):
        return _HEALTHY
    if last.answers is True and not flow.imported:
        return _HEALTHY  # it is being set up again: nothing is missing, and the way is open
    if not _is_proven(looks, glance=glance):
        return _INCONCLUSIVE
    return _assess_disconnected(flow, looks)


def _assess_stalled(flow: Flow, looks: Sequence[ReplicationSample], *, glance: bool) -> Assessment:
    """Something waits, as far as is known, and it has not moved."""
    last = looks[-1]
    if len(looks) < 2:
        return _INCONCLUSIVE
    if last.error.get("err_code") == FLOW_CONTROL_WAIT and not _is_silent(last) and last.waiting:
        return Assessment(False, causes.flow_control_stalled(flow))
    if last.waiting is None and last.lag == 0 and not _is_silent(last):
        return _HEALTHY  # whether anything waits cannot be asked, and the server says that nothing does
    if last.lag and not _is_silent(last):
        enough = _is_proven(
            looks,
            glance=glance,
            patience=STALLED_AFTER if flow.imported else STALLED_AFTER_IF_HEARD,
        )
        return Assessment(False, causes.flow_control_stalled(flow)) if enough else _INCONCLUSIVE
    if glance and last.active < 0:
        never = (
            flow.imported
            and last.position == 0
            and last.waiting
            and downstream_age(last) >= SETUP_TIME
        )
        return Assessment(False, causes.export_missing(flow, last)) if never else _INCONCLUSIVE
    if not _is_proven(looks, glance=glance) or (glance and not last.waiting):
        return _INCONCLUSIVE
    return _assess_disconnected(flow, looks)


def _assess_disconnected(flow: Flow, looks: Sequence[ReplicationSample]) -> Assessment:
    last = looks[-1]
    if last.answers is False and last.apart:
        return Assessment(False, causes.link_down(flow))
    if flow.imported:
        worked = bool(last.position) and last.apart and last.answers is None
        return Assessment(
            False,
            causes.link_down(flow)
            if worked
            else causes.export_missing(flow, _with_longest_silence(looks)),
        )
    return Assessment(False, causes.stopped(last)) if last.waiting is not False else _HEALTHY


def _with_longest_silence(looks: Sequence[ReplicationSample]) -> ReplicationSample:
    """The last look, with the server's own count of silence where that began anew: each new consumer counts from its making."""
    return replace(looks[-1], active=max(look.active for look in looks))


def downstream_age(look: ReplicationSample, now: datetime | None = None) -> float:
    """Seconds since the copy was made."""
    return ((now or datetime.now(UTC)) - datetime.fromisoformat(look.created)).total_seconds()
