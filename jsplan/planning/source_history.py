"""History that a source leaves out because it begins later than its origin.

Apply copies it once the source exists, or skips it (`--no-backfill`). State records that decision.
What an apply did not reach, or could not ask about, is listed again until it is copied or skipped.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.backfill.estimate import estimate_copy
from jsplan.backfill.model import (
    SKIPPED,
    BackfillState,
    OriginState,
    find_stored_state,
    make_ad_hoc_entry,
)
from jsplan.backfill.strategy import TAGGED_REASON, find_read_obstacle, find_target_problem
from jsplan.documents.plan import Deferred
from jsplan.planning.backfills import PlannedRange, estimate_between, is_recreated, list_past_copies
from jsplan.resources.nested import origin_key
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.decide import ResourceDecision
    from jsplan.planning.model import PlanInputs

#: Decided: copied, or skipped.
_DECIDED: Final = ("done", SKIPPED)


@dataclass(frozen=True, slots=True)
class _LateSource:
    """A source that begins after the first message, and whose history is undecided.

    `is_new`: the plan adds it.
    """

    decision: ResourceDecision
    source: dict[str, Any]
    origin: Address
    record: BackfillState | None
    is_new: bool

    @property
    def target(self) -> Address:
        return self.decision.address

    @property
    def key(self) -> str:
        return origin_key(self.source)

    @property
    def pinned_origin(self) -> OriginState | None:
        """The part of the history that an earlier plan has pinned."""
        origins = self.record.origins if self.record is not None and not self.is_new else ()
        return next(
            (
                origin
                for origin in origins
                if origin.source == self.key and origin.status not in _DECIDED
            ),
            None,
        )


def list_source_history(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> list[dict[str, Any]]:
    """List the elements of the plan's `backfills` without an entry; some do not run (`runs`)."""
    found: list[dict[str, Any]] = []
    cuts = sorted(
        _late_sources(inputs, decisions),
        key=lambda cut: (str(cut.target), str(cut.origin), _backfill_obstacle(inputs, cut)),
    )
    for (_, _, against), some in groupby(
        cuts, key=lambda cut: (cut.target, cut.origin, _backfill_obstacle(inputs, cut))
    ):
        found += _history_elements(
            inputs, decisions, [cut for cut in some if cut.is_new or not against], against
        )
    return found


def _history_elements(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    sources: Sequence[_LateSource],
    obstacle: str,
) -> Iterable[dict[str, Any]]:
    """Yield the elements of one origin and one target."""
    live = inputs.live.get(sources[0].origin) if sources else None
    if live is None:
        if any(cut.is_new and _is_offline(inputs, cut) and not obstacle for cut in sources):
            yield _deferred_element(inputs, sources)
        return
    spans = [(cut, _history_range(inputs, decisions, cut, live)) for cut in sources]
    if left := [(cut, span) for cut, span in spans if span is not None]:
        yield _build_element(inputs, left, live, obstacle)
    if looked := [cut for cut, span in spans if span is None and not cut.is_new]:
        yield _covered_element(looked)


def deferred_source_history(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> list[Deferred]:
    """List the origins in offline domains, where what sources leave out is unknown."""
    offline = [
        cut
        for cut in _late_sources(inputs, decisions)
        if _is_offline(inputs, cut) and not _backfill_obstacle(inputs, cut)
    ]
    pairs = dict.fromkeys((cut.origin, cut.target) for cut in offline)
    words = "history that a source of {} leaves out waits: {}"
    return [
        Deferred(str(origin), words.format(target, inputs.live.domains[origin.domain].offline_text))
        for origin, target in pairs
    ]


def source_history_times(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> set[tuple[Address, str]]:
    """Return the times whose sequence in their stream the plan needs."""
    return {
        (cut.origin, time)
        for cut in _late_sources(inputs, decisions)
        if cut.pinned_origin is None and (time := cut.source.get("opt_start_time"))
    }


def backfill_command(origin: Address, target: Address) -> str:
    """Return the command that copies the history."""
    return f"jsplan backfill run --from {shlex.quote(str(origin))} --to {shlex.quote(str(target))}"


# --- which sources ----


def _late_sources(
    inputs: PlanInputs, decisions: Mapping[Address, ResourceDecision]
) -> Iterator[_LateSource]:
    if inputs.request.destroy or inputs.request.refresh_only or inputs.request.imports:
        return
    known = {name.partition(">")[2] for name in inputs.state.backfills}
    for address, decision in decisions.items():
        changes = decision.actions in (["create"], ["update"])
        stays = (
            decision.actions == ["no-op"] and decision.live is not None and str(address) in known
        )
        if (
            address.kind == "stream"
            and address in inputs.workspace.resources
            and (changes or stays)
        ):
            yield from _late_sources_of(inputs, decision)


def _late_sources_of(inputs: PlanInputs, decision: ResourceDecision) -> Iterable[_LateSource]:
    existing = {
        origin_key(source)
        for source in (decision.live.raw.get("sources") or () if decision.live else ())
    }
    # These continue where they were.
    excluded = decision.sources_to_attach | inputs.detached_sources.get(decision.address, set())
    for source in inputs.body(decision.address).get("sources") or ():
        later = int(source.get("opt_start_seq") or 0) > 1 or source.get("opt_start_time")
        domain = (
            inputs.topology.routes.resolve_prefix(
                decision.address.domain, (source.get("external") or {}).get("api")
            )
            if later
            else None
        )
        if domain is None or (key := origin_key(source)) in excluded:
            continue
        origin = Address.of_stream(domain, source["name"])
        cut = _LateSource(
            decision,
            source,
            origin,
            find_stored_state(inputs.state.backfills, make_ad_hoc_entry(origin, decision.address)),
            key not in existing,
        )
        if _is_undecided(inputs, cut) and not _has_backfill_entry(inputs, origin, decision.address):
            yield cut


def _is_undecided(inputs: PlanInputs, source: _LateSource) -> bool:
    """Check whether it is undecided: new, or not reached by the apply that added it."""
    live, origins = (
        inputs.live.get(source.origin),
        [
            origin
            for origin in (source.record.origins if source.record else ())
            if origin.source == source.key
        ],
    )
    unread = [
        one
        for one in (source.record.unmeasured if source.record else ())
        if one["source"] == source.key
    ]
    if source.is_new:
        return True
    same = [origin for origin in origins if live is None or origin.created == live.created]
    return any(origin.status not in _DECIDED for origin in same) or any(
        one["status"] != SKIPPED for one in unread
    )


def _has_backfill_entry(inputs: PlanInputs, origin: Address, target: Address) -> bool:
    """Check whether a backfill entry copies it, or has copied it."""
    entries = [
        entry for entry in inputs.workspace.backfills.values() if str(entry.target) == str(target)
    ]
    real = inputs.topology.canonicalize
    sides = [side for entry in entries for side in entry.origins if side.parquet is None]
    return any(real(Address.of_stream(side.domain, side.stream)) == real(origin) for side in sides)


def _is_offline(inputs: PlanInputs, source: _LateSource) -> bool:
    return not inputs.live.is_reachable(source.origin.domain)


def _backfill_obstacle(inputs: PlanInputs, source: _LateSource) -> str:
    """Explain why apply does not copy it; empty if it does."""
    live = inputs.live.get(source.origin)
    if live is not None and (why := find_read_obstacle(live.raw)):
        return f"it cannot be copied: {why}"
    renamed = [
        one
        for one in source.source.get("subject_transforms") or ()
        if one.get("dest") and one["dest"] != (one.get("src") or ">")
    ]
    if renamed:
        return (
            "the source changes subjects, and a copy would not: "
            "declare an entry of `backfills:` with `subject_transform`"
        )
    why, _ = find_target_problem(
        source.decision.after or (source.decision.live.raw if source.decision.live else {})
    )
    return f"it cannot be copied: {source.target} {why}" if why else ""


# --- how much ----


@dataclass(frozen=True, slots=True)
class _HistoryRange:
    """The end of what one source leaves out, and the range to copy.

    Both are None if the sequence of a time is unknown.
    """

    end: int | None
    range: PlannedRange | None


def _history_range(
    inputs: PlanInputs,
    decisions: Mapping[Address, ResourceDecision],
    source: _LateSource,
    live: LiveObject,
) -> _HistoryRange | None:
    """Return the range that a source leaves out, or None if it leaves out nothing."""
    if (origin := source.pinned_origin) is not None:
        return _HistoryRange(origin.last, PlannedRange(origin.first, origin.last, origin.created))
    start, time = source.source.get("opt_start_seq"), str(source.source.get("opt_start_time") or "")
    start = start or inputs.seqs_by_time.get((source.origin, time))
    if start is None:
        return _HistoryRange(None, None) if live.state.get("messages") else None
    last = min(int(start) - 1, int(live.state["last_seq"]))
    if time > format_timestamp(inputs.request.now) and last == live.state["last_seq"]:
        return None  # it has not begun, and how much it will leave out is not known yet
    decision = decisions.get(source.origin)
    first = _first_uncopied(source, live, max(1, int(live.state["first_seq"])))
    if estimate_between(live, first, last)[0] == 0 or (
        decision is not None and decision.loses_content
    ):
        return None
    return _HistoryRange(
        last,
        None
        if is_recreated(inputs, decisions, source.origin)
        else PlannedRange(first, last, live.created),
    )


def _first_uncopied(source: _LateSource, live: LiveObject, first: int) -> int:
    """Return the first sequence that no earlier copy wrote into the target."""
    target = source.decision.live
    same = [
        origin
        for origin in (source.record.origins if source.record else ())
        if origin.status == "done" and origin.created == live.created
    ]
    for origin in sorted(same, key=lambda origin: origin.first):
        same_messages = not origin.filters or origin.source == source.key
        if (
            target is not None
            and origin.target_created == target.created
            and same_messages
            and origin.first <= first <= origin.last
        ):
            first = origin.last + 1
    return first


# --- the elements of the plan ----


def _build_element(
    inputs: PlanInputs,
    spans: Sequence[tuple[_LateSource, _HistoryRange]],
    live: LiveObject,
    obstacle: str,
) -> dict[str, Any]:
    cut, ranges = spans[0][0], [_count_history(span, live) for _, span in spans]
    counted = [count for count in ranges if count is not None]
    messages, size = (
        (sum(one) for one in zip((0, 0), *counted, strict=True))
        if len(counted) == len(ranges)
        else (None, None)
    )
    guess = None
    if messages is not None and size is not None:
        pair = {(cut.origin.domain, cut.target.domain)}
        guess = estimate_copy(
            "spark", messages, size, None, pair, list_past_copies(inputs.state)
        ).to_json()
    common = _common_fields([one for one, _ in spans])
    if find_read_obstacle(live.raw):
        del common["command"]
    return common | {
        "from": [_origin_side(one, span) for one, span in spans],
        "messages": messages,
        "bytes": size,
        "estimate": guess,
        "reason": f"{_describe_reason(one for one, _ in spans)}; {obstacle or TAGGED_REASON}",
        "runs": not obstacle,
    }


def _count_history(span: _HistoryRange, live: LiveObject) -> tuple[int, int] | None:
    if span.end is None:
        return None
    return estimate_between(live, span.range.first if span.range is not None else 1, span.end)


def _deferred_element(inputs: PlanInputs, sources: Sequence[_LateSource]) -> dict[str, Any]:
    """Build the element of sources whose origin is offline. They are checked later."""
    ends = [
        _HistoryRange(
            int(cut.source["opt_start_seq"]) - 1 if cut.source.get("opt_start_seq") else None, None
        )
        for cut in sources
    ]
    return _common_fields(sources) | {
        "from": [_origin_side(cut, end) for cut, end in zip(sources, ends, strict=True)],
        "messages": None,
        "bytes": None,
        "estimate": None,
        "reason": _describe_reason(sources),
        "runs": False,
        "waits": inputs.live.domains[sources[0].origin.domain].offline_text,
    }


def _covered_element(sources: Sequence[_LateSource]) -> dict[str, Any]:
    """Build the element of sources that were checked and leave nothing out; an apply records it."""
    return _common_fields(sources) | {
        "from": [
            {"domain": cut.origin.domain, "stream": cut.origin.stream, "source": cut.key}
            for cut in sources
        ],
        "messages": 0,
        "bytes": 0,
        "estimate": None,
        "reason": "its source leaves nothing out",
        "runs": False,
    }


def _common_fields(sources: Sequence[_LateSource]) -> dict[str, Any]:
    origin, target, live = sources[0].origin, sources[0].target, sources[0].decision.live
    return {
        "name": make_ad_hoc_entry(origin, target).name,
        "strategy": "spark",
        "declared": False,
        "command": backfill_command(origin, target),
        "to": {"domain": target.domain, "stream": target.stream}
        | ({"created": live.created} if live is not None else {}),
    }


def _origin_side(source: _LateSource, span: _HistoryRange) -> dict[str, Any]:
    """Build one source's part of the origin; `before` is a time whose sequence is unknown."""
    side: dict[str, Any] = {
        "domain": source.origin.domain,
        "stream": source.origin.stream,
        "source": source.key,
    }
    side |= (
        {"end_seq": span.end}
        if span.end is not None
        else {"before": source.source["opt_start_time"]}
    )
    side |= {"filter_subjects": filters} if (filters := _source_filters(source)) else {}
    return side | ({"range": span.range._asdict()} if span.range is not None else {})


def _source_filters(source: _LateSource) -> list[str]:
    transforms = [
        str(one.get("src") or ">") for one in source.source.get("subject_transforms") or ()
    ]
    found = transforms or [str(source.source.get("filter_subject") or ">")]
    return [] if ">" in found else found


def _describe_reason(sources: Iterable[_LateSource]) -> str:
    every = list(sources)
    source = "its new source" if all(cut.is_new for cut in every) else "its source"
    starts = sorted({_describe_start(cut.source) for cut in every})
    return f"{source} begins at {' and '.join(starts)} and leaves out what is before"


def _describe_start(source: Mapping[str, Any]) -> str:
    return (
        f"sequence {int(source['opt_start_seq']):,}"
        if source.get("opt_start_seq")
        else str(source["opt_start_time"])
    )
