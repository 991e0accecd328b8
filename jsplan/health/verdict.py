"""Judges one flow by the looks that were taken at it, the first one first. Pure.

A flow that is behind and moves is healthy, however far behind it is. That one does not move is not known from one look, nor from two
that are close together: until enough time is over a verdict is not `settled`. What the servers
show is in the decision "Does it follow?".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.looks import Look
from jsplan.health import causes
from jsplan.units import SECOND

#: ns without a heartbeat, of which there is one per second, after which one asks further.
QUIET: Final = 3 * SECOND
#: ns of silence after which a server itself takes the consumer for lost (measured: it makes a new one after 10 s).
LONG: Final = 10 * SECOND
#: Seconds, and looks, for which a flow must not have moved; a loaded machine takes its looks more slowly, and so gives it more time.
PATIENCE, LOOKS = 5.0, 4
#: The same for one that hears of its origin all the while: a busy server may be slow, and it is not silent.
MORE_PATIENCE: Final = 8.0
#: Seconds after which a copy that never heard of its origin is not just being set up.
GROWN: Final = 30.0
#: `err_code` of a copy that waits for flow control, since 2.15.
FLOW_CONTROL: Final = 10228


@dataclass(frozen=True, slots=True)
class Verdict:
    """`healthy` None: nobody can tell. `cause` is a sentence, empty where all is well. `settled`: another look would not change it."""

    healthy: bool | None
    cause: str = ""
    settled: bool = True


_WELL: Final = Verdict(True)
_OPEN: Final = Verdict(None, settled=False)


def judge(flow: Flow, looks: Sequence[Look], *, glance: bool = False) -> Verdict:
    """What is known after these looks. A `glance` takes two in a row and says only what these prove; it may stay open."""
    last = looks[-1]
    if last.unread:
        return _by_silence_alone(flow, looks, glance=glance)
    if last.origin is None:
        return Verdict(False, causes.origin_missing(flow))
    if (found := _recreated(flow, looks)) is not None:
        return found
    behind = _behind(flow, last)
    if behind is False:
        found = _quiet(flow, looks, glance=glance) if _silent(last) else _WELL
    elif moved(looks) or _believed(last):
        found = _WELL
    else:
        found = _stuck(flow, looks, glance=glance)
    return Verdict(False, causes.draining(flow)) if found.healthy and last.origin.workqueue and not flow.consumer else found


def agrees(flow: Flow, look: Look) -> bool:
    """Whether one look shows that the copy has everything, as far as sequences tell. Without them what its server says has to do."""
    origin = look.origin
    if look.unread or origin is None or _recreated(flow, [look]) is not None or (origin.workqueue and not flow.consumer):
        return False
    if look.position is None:
        return _believed(look) and not look.searched and not look.error
    return look.position == origin.last or origin.messages == 0


def _believed(look: Look) -> bool:
    """Whether what its server says has to do: nobody knows the position, something was heard, nothing is pending.

    Where the origin is younger than the copy that may be a consumer that waits behind the end of a new origin: then one searches first.
    """
    younger = look.origin is not None and look.origin.created > look.created
    return look.position is None and look.lag == 0 and not _silent(look) and (look.searched or not younger)


def moved(looks: Sequence[Look]) -> bool:
    """Whether the copy got on between the first look and the last, or has what the origin had at the first one."""
    first, last = looks[0], looks[-1]
    if last is first:
        return False
    if first.position is not None and last.position is not None:
        return last.position > first.position or (first.origin is not None and last.position >= first.origin.last)
    return last.stored > first.stored or last.lag < first.lag


def _silent(look: Look) -> bool:
    return look.active < 0 or look.active >= QUIET


def _behind(flow: Flow, look: Look) -> bool | None:
    """Whether a message waits for the copy; None where that is not known (yet)."""
    assert look.origin is not None
    if look.origin.messages == 0:
        return False
    if look.position is None:
        return None
    return False if max(look.position, flow.start - 1) >= look.origin.last else look.waiting


def _recreated(flow: Flow, looks: Sequence[Look]) -> Verdict | None:
    """A copy that is beyond its origin, or holds under one sequence what the origin does not.

    The two are read side by side, so that a copy may seem a little ahead: the origin of a later look has to be behind an earlier copy.
    """
    last = looks[-1]
    assert last.origin is not None
    if flow.kind == "mirror" and _mixed(flow, last):
        return Verdict(False, causes.recreated(flow))
    position = max((look.position or 0 for look in looks[:-1]), default=0)
    beyond = last.origin.last < position and position >= flow.start and (last.position or 0) > last.origin.last
    if beyond:
        return Verdict(False, causes.recreated(flow))
    return _OPEN if (last.position or 0) > max(last.origin.last, flow.start - 1) else None


def _mixed(flow: Flow, look: Look) -> bool:
    """A mirror with more messages than its sequences have room for (2.10 to 2.12 count back), or with another first message."""
    assert look.origin is not None
    if look.messages > look.stored - look.first + 1:
        return True
    both = flow.whole and look.messages and look.origin.messages and look.first == look.origin.first
    return bool(both) and look.first_ts != look.origin.first_ts


def _by_silence_alone(flow: Flow, looks: Sequence[Look], *, glance: bool) -> Verdict:
    """The origin cannot be read: what the copy's server says is all there is."""
    last = looks[-1]
    if flow.origin is not None:
        return Verdict(None, causes.unread(last.unread))
    if not _silent(last) and last.lag == 0:
        return _WELL
    if last.answers is False and last.active < 0:
        return Verdict(False, causes.domain_unknown(flow)) if len(looks) > 1 or glance else _OPEN
    if not _proven(looks, glance=glance):
        return _WELL if moved(looks) else _OPEN
    return Verdict(False, causes.link_down(flow)) if _silent(last) else Verdict(None, causes.unread(last.unread))


def _proven(looks: Sequence[Look], *, glance: bool, patience: float = PATIENCE) -> bool:
    """Whether these looks are enough to say that something does not happen."""
    first, last = looks[0], looks[-1]
    long = len(looks) > 1 and all(look.active >= LONG for look in (looks[-2], last))
    return long or (not glance and len(looks) >= LOOKS and last.at - first.at >= patience)


def _heard(looks: Sequence[Look]) -> bool:
    """Whether the copy heard of its origin between the first look and the last."""
    first, last = looks[0], looks[-1]
    return 0 <= last.active < (last.at - first.at) * SECOND


def _quiet(flow: Flow, looks: Sequence[Look], *, glance: bool) -> Verdict:
    """Nothing waits, and nothing is heard."""
    last = looks[-1]
    if _heard(looks):
        return _WELL
    if last.answers is True and not flow.imported:
        return _WELL  # it is being set up again: nothing is missing, and the way is open
    if not _proven(looks, glance=glance):
        return _OPEN
    return _cut_off(flow, looks)


def _stuck(flow: Flow, looks: Sequence[Look], *, glance: bool) -> Verdict:
    """Something waits, as far as is known, and it has not moved."""
    last = looks[-1]
    if len(looks) < 2:
        return _OPEN
    if last.error.get("err_code") == FLOW_CONTROL and not _silent(last) and last.waiting:
        return Verdict(False, causes.stalled(flow))
    if last.waiting is None and last.lag == 0 and not _silent(last):
        return _WELL  # whether anything waits cannot be asked, and the server says that nothing does
    if last.lag and not _silent(last):
        enough = _proven(looks, glance=glance, patience=PATIENCE if flow.imported else MORE_PATIENCE)
        return Verdict(False, causes.stalled(flow)) if enough else _OPEN
    if glance and last.active < 0:
        never = flow.imported and last.position == 0 and last.waiting and age(last) >= GROWN
        return Verdict(False, causes.export_missing(flow, last)) if never else _OPEN
    if not _proven(looks, glance=glance) or (glance and not last.waiting):
        return _OPEN
    return _cut_off(flow, looks)


def _cut_off(flow: Flow, looks: Sequence[Look]) -> Verdict:
    last = looks[-1]
    if last.answers is False and last.apart:
        return Verdict(False, causes.link_down(flow))
    if flow.imported:
        worked = bool(last.position) and last.apart and last.answers is None
        return Verdict(False, causes.link_down(flow) if worked else causes.export_missing(flow, _silence(looks)))
    return Verdict(False, causes.stopped(last)) if last.waiting is not False else _WELL


def _silence(looks: Sequence[Look]) -> Look:
    """The last look, with the server's own count of silence where that began anew: each new consumer counts from its making."""
    return replace(looks[-1], active=max(look.active for look in looks))


def age(look: Look, now: datetime | None = None) -> float:
    """Seconds since the copy was made."""
    return ((now or datetime.now(UTC)) - datetime.fromisoformat(look.created)).total_seconds()
