"""Assesses one flow by its samples, oldest first. Pure.

A flow that lags and makes progress is healthy, whatever its lag. A stall is not proven by one
sample, nor by two that are close together: until enough time has passed an assessment is not
`is_conclusive`. The decision "Detect stalled replication by comparing both ends" has the facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from jsplan.facts.replication.flows import Flow
from jsplan.facts.replication.samples import ReplicationSample
from jsplan.health import causes
from jsplan.resources.error_codes import FLOW_CONTROL_WAIT
from jsplan.units import SECOND, parse_instant, parse_moment

#: ns without a heartbeat, of which there is one per second, before a flow counts as silent.
SILENT_AFTER: Final = 3 * SECOND
#: ns of silence after which a server considers the consumer lost (measured: it recreates it).
CONSUMER_LOST_AFTER: Final = 10 * SECOND
#: Seconds and samples without progress that prove a stall; samples of a loaded machine are slower.
STALLED_AFTER, MIN_SAMPLES = 5.0, 4
#: The same for a flow with recent heartbeats: a busy server may be slow, and it is not silent.
STALLED_AFTER_IF_HEARD: Final = 8.0
#: Seconds for the setup of a downstream stream that never received a heartbeat.
SETUP_TIME: Final = 30.0


class Assessment(Struct, frozen=True):
    """The health of one flow: `healthy` is None if unknown, `cause` is empty if healthy.

    `is_conclusive` is True if another sample cannot change it.
    """

    healthy: bool | None
    cause: str = ""
    is_conclusive: bool = True


_HEALTHY: Final = Assessment(True)
_INCONCLUSIVE: Final = Assessment(None, is_conclusive=False)


def assess(flow: Flow, samples: Sequence[ReplicationSample], *, quick: bool = False) -> Assessment:
    """Assess a flow by its samples. `quick` takes two in a row, and may be inconclusive."""
    last = samples[-1]
    if last.unread:
        return _assess_unreadable_origin(flow, samples, quick=quick)
    if last.origin is None:
        return Assessment(False, causes.origin_missing(flow))
    if (found := _detect_recreated_origin(flow, samples)) is not None:
        return found
    behind = _is_behind(flow, last)
    if behind is False:
        found = _assess_idle(flow, samples, quick=quick) if _is_silent(last) else _HEALTHY
    elif has_progressed(samples) or _is_reported_in_sync(last):
        found = _HEALTHY
    else:
        found = _assess_stalled(flow, samples, quick=quick)
    if found.healthy and last.origin.workqueue and not flow.consumer:
        return Assessment(False, causes.draining_workqueue(flow))
    return found


def is_in_sync(flow: Flow, sample: ReplicationSample) -> bool:
    """Return True if one sample proves that the downstream has everything.

    Without sequences it relies on what the downstream's server reports.
    """
    origin = sample.origin
    if (
        sample.unread
        or origin is None
        or _detect_recreated_origin(flow, [sample]) is not None
        or (origin.workqueue and not flow.consumer)
    ):
        return False
    if sample.position is None:
        return _is_reported_in_sync(sample) and not sample.searched and not sample.error
    return sample.position == origin.last or origin.messages == 0


def _is_reported_in_sync(sample: ReplicationSample) -> bool:
    """Return True if the server's report has to do: no position, recent heartbeat, no lag.

    If the origin is younger than the downstream, its consumer may wait beyond the end of a new
    origin. Then the origin must have been searched.
    """
    younger = sample.origin is not None and sample.origin.created > sample.created
    return (
        sample.position is None
        and sample.lag == 0
        and not _is_silent(sample)
        and (sample.searched or not younger)
    )


def has_progressed(samples: Sequence[ReplicationSample]) -> bool:
    """Return True if the downstream made progress, or has what the origin had at first."""
    first, last = samples[0], samples[-1]
    if last is first:
        return False
    if first.position is not None and last.position is not None:
        return last.position > first.position or (
            first.origin is not None and last.position >= first.origin.last
        )
    return last.stored > first.stored or last.lag < first.lag


def _is_silent(sample: ReplicationSample) -> bool:
    return sample.active < 0 or sample.active >= SILENT_AFTER


def _is_behind(flow: Flow, sample: ReplicationSample) -> bool | None:
    """Return True if a message is pending; None where that is not known (yet)."""
    assert sample.origin is not None
    if sample.origin.messages == 0:
        return False
    if sample.position is None:
        return None
    return False if max(sample.position, flow.start - 1) >= sample.origin.last else sample.waiting


def _detect_recreated_origin(flow: Flow, samples: Sequence[ReplicationSample]) -> Assessment | None:
    """Detect a downstream beyond its origin, or with other messages under the same sequences.

    Both are read at once, so a downstream may seem a little ahead: the origin of a later sample has
    to be behind an earlier downstream.
    """
    last = samples[-1]
    assert last.origin is not None
    if flow.kind == "mirror":
        is_same = _begins_with_origin(flow, last)
        # Before 2.14 a mirror counts back to the end of its origin, within 10 s. It has the newer
        # messages until others get their sequences.
        counted_back = last.messages > last.stored - last.first + 1
        if is_same and counted_back:
            return Assessment(False, causes.origin_went_back(flow))
        if is_same is False or counted_back:
            return Assessment(False, causes.origin_recreated(flow, copies_again=False))
    position = max((sample.position or 0 for sample in samples[:-1]), default=0)
    beyond = (
        last.origin.last < position
        and position >= flow.start
        and (last.position or 0) > last.origin.last
    )
    if beyond and _is_same_stream(flow, last):
        return Assessment(False, causes.origin_went_back(flow))
    if beyond:
        # INFO has the position of a source since 2.15. With a start it stays behind that.
        again = flow.kind == "source" and not last.searched and flow.start == 1
        return Assessment(False, causes.origin_recreated(flow, copies_again=again))
    return _INCONCLUSIVE if (last.position or 0) > max(last.origin.last, flow.start - 1) else None


def _is_same_stream(flow: Flow, sample: ReplicationSample) -> bool:
    """Return True if the origin was there when the last message of its mirror was stored.

    A mirror keeps the times of its origin. What it has of a deleted stream is older than the new
    one.
    """
    assert sample.origin is not None
    return (
        flow.kind == "mirror"
        and bool(sample.messages and sample.last_ts and sample.origin.created)
        and parse_instant(sample.last_ts) > parse_instant(sample.origin.created)
    )


def _begins_with_origin(flow: Flow, sample: ReplicationSample) -> bool | None:
    """Return whether mirror and origin begin with the same message; None if that is not known."""
    assert sample.origin is not None
    stored = sample.messages and sample.origin.messages
    if not (flow.is_unfiltered and stored and sample.first == sample.origin.first):
        return None
    return sample.first_ts == sample.origin.first_ts


def _assess_unreadable_origin(
    flow: Flow, samples: Sequence[ReplicationSample], *, quick: bool
) -> Assessment:
    """Assess a flow whose origin cannot be read, by the report of the downstream's server."""
    last = samples[-1]
    if flow.origin is not None:
        return Assessment(None, causes.origin_unreadable(last.unread))
    if not _is_silent(last) and last.lag == 0:
        # Nothing has come yet, and whether it should have cannot be read.
        unknown = Assessment(None, causes.origin_unreadable(last.unread))
        return _HEALTHY if last.stored else unknown
    if last.answers is False and last.active < 0:
        if len(samples) > 1 or quick:
            return Assessment(False, causes.domain_unknown(flow))
        return _INCONCLUSIVE
    if not _is_proven(samples, quick=quick):
        return _HEALTHY if has_progressed(samples) else _INCONCLUSIVE
    if _is_silent(last):
        return Assessment(False, causes.link_down(flow))
    return Assessment(None, causes.origin_unreadable(last.unread))


def _is_proven(
    samples: Sequence[ReplicationSample], *, quick: bool, patience: float = STALLED_AFTER
) -> bool:
    """Return True if the samples prove that something does not happen."""
    first, last = samples[0], samples[-1]
    long = len(samples) > 1 and all(
        sample.active >= CONSUMER_LOST_AFTER for sample in (samples[-2], last)
    )
    return long or (not quick and len(samples) >= MIN_SAMPLES and last.at - first.at >= patience)


def _has_heard_origin(samples: Sequence[ReplicationSample]) -> bool:
    """Return True if the downstream received a heartbeat between the first and last sample."""
    first, last = samples[0], samples[-1]
    return 0 <= last.active < (last.at - first.at) * SECOND


def _assess_idle(flow: Flow, samples: Sequence[ReplicationSample], *, quick: bool) -> Assessment:
    """Assess a flow where nothing is pending and no heartbeat arrives."""
    last = samples[-1]
    if _has_heard_origin(samples):
        return _HEALTHY
    if last.answers is True and not flow.imported:
        return _HEALTHY  # it is set up again: nothing is missing, and the origin answers
    if not _is_proven(samples, quick=quick):
        return _INCONCLUSIVE
    return _assess_disconnected(flow, samples)


def _assess_stalled(flow: Flow, samples: Sequence[ReplicationSample], *, quick: bool) -> Assessment:
    """Assess a flow that is behind, as far as known, and made no progress."""
    last = samples[-1]
    if len(samples) < 2:
        return _INCONCLUSIVE
    if last.error.get("err_code") == FLOW_CONTROL_WAIT and not _is_silent(last) and last.waiting:
        return Assessment(False, causes.flow_control_stalled(flow))
    if (refusal := _find_refusal(flow, last)) is not None:
        enough = _is_proven(samples, quick=quick) or (quick and _keeps_messages(last))
        return refusal if enough else _INCONCLUSIVE
    if last.waiting is None and last.lag == 0 and not _is_silent(last):
        return _HEALTHY  # the pending messages cannot be counted, and the server reports none
    if last.lag and not _is_silent(last):
        enough = _is_proven(
            samples,
            quick=quick,
            patience=STALLED_AFTER if flow.imported else STALLED_AFTER_IF_HEARD,
        )
        return Assessment(False, causes.flow_control_stalled(flow)) if enough else _INCONCLUSIVE
    if quick and last.active < 0:
        never = (
            flow.imported
            and last.position == 0
            and last.waiting
            and downstream_age(last) >= SETUP_TIME
        )
        return Assessment(False, causes.export_missing(flow, last)) if never else _INCONCLUSIVE
    if not _is_proven(samples, quick=quick) or (quick and not last.waiting):
        return _INCONCLUSIVE
    return _assess_disconnected(flow, samples)


def _find_refusal(flow: Flow, sample: ReplicationSample) -> Assessment | None:
    """Return the assessment of a flow that waits for a stream which refuses its next message."""
    if not sample.waiting or (sample.answers is False and _is_silent(sample)):
        return None
    cause = causes.refused(flow, sample)
    return Assessment(False, cause) if cause else None


def _keeps_messages(sample: ReplicationSample) -> bool:
    """Return True if no consumer of the downstream stream makes place by what it finishes."""
    return bool(sample.config.get("retention", "limits") == "limits")


def _assess_disconnected(flow: Flow, samples: Sequence[ReplicationSample]) -> Assessment:
    last = samples[-1]
    if last.answers is False and last.apart:
        return Assessment(False, causes.link_down(flow))
    if flow.imported:
        worked = bool(last.position) and last.apart and last.answers is None
        return Assessment(
            False,
            causes.link_down(flow)
            if worked
            else causes.export_missing(flow, _with_longest_silence(samples)),
        )
    return Assessment(False, causes.stopped(last)) if last.waiting is not False else _HEALTHY


def _with_longest_silence(samples: Sequence[ReplicationSample]) -> ReplicationSample:
    """Return the last sample with the longest silence: a recreated consumer counts from zero."""
    return replace(samples[-1], active=max(sample.active for sample in samples))


def downstream_age(sample: ReplicationSample, now: datetime | None = None) -> float:
    """Return the seconds since the downstream stream was created."""
    return ((now or datetime.now(UTC)) - parse_moment(sample.created)).total_seconds()


def build_replication_element(
    flow: Flow, assessment: Assessment, sample: ReplicationSample | None
) -> dict[str, Any]:
    """Build `{from, to, kind, healthy, cause, origin_last_seq, last_seq, lag, active}`.

    `last_seq` is the origin's last sequence that the downstream received. `lag` is the difference,
    with a filter an upper bound. `active` is ns since the last heartbeat. Null: unknown, or never.
    """
    origin = sample.origin if sample is not None else None
    position = sample.position if sample is not None else None
    return {
        "from": flow.source,
        "to": str(flow.downstream),
        "kind": flow.kind,
        "healthy": assessment.healthy,
        "cause": assessment.cause or None,
        "origin_last_seq": origin.last if origin is not None else None,
        "last_seq": position,
        "lag": _compute_lag(flow, sample),
        "active": sample.active if sample is not None and sample.active >= 0 else None,
    }


def _compute_lag(flow: Flow, sample: ReplicationSample | None) -> int | None:
    """Return how many messages the downstream may still have to receive, None if unknown."""
    if sample is None or sample.origin is None:
        return None
    if sample.position is None:
        return sample.lag
    if sample.waiting is False or sample.origin.messages == 0:
        return 0
    after = max(sample.position, flow.start - 1, sample.origin.first - 1)
    return max(0, sample.origin.last - after)
