"""History that a source leaves out, since it begins later than its origin does. Pure.

Apply copies it once the source is there, or leaves it (`--no-backfill`); either way it is decided on then, and state keeps that. What an
apply did not come to, or could not ask about, is listed again until it is done or declined.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from jsplan.address import Address
from jsplan.backfill.choosing import SAYS_WHERE_FROM, unfit, unreadable
from jsplan.backfill.estimating import estimate
from jsplan.backfill.records import SKIPPED, Leg, Record, between_two, kept
from jsplan.documents.plan import Deferred
from jsplan.planning.backfills import Range, between, is_made_anew, past_legs
from jsplan.resources.nested import origin_key
from jsplan.units import stamp

if TYPE_CHECKING:
    from jsplan.facts.live import LiveObject
    from jsplan.planning.inputs import Inputs
    from jsplan.planning.verdict import Verdict

#: What is decided: it is copied, or nobody wants it.
_DECIDED: Final = ("done", SKIPPED)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A source that begins later than at the first message, and whose history nobody has decided on. `new`: the plan adds it."""

    verdict: Verdict
    source: dict[str, Any]
    origin: Address
    record: Record | None
    new: bool

    @property
    def target(self) -> Address:
        return self.verdict.address

    @property
    def key(self) -> str:
        return origin_key(self.source)

    @property
    def leg(self) -> Leg | None:
        """What an earlier plan has pinned of it."""
        legs = self.record.origins if self.record is not None and not self.new else ()
        return next((leg for leg in legs if leg.source == self.key and leg.status not in _DECIDED), None)


def left_out(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> list[dict[str, Any]]:
    """The elements of the plan's `backfills` that no entry declares. With `runs` false they are only told of."""
    found: list[dict[str, Any]] = []
    cuts = sorted(_cuts(inputs, verdicts), key=lambda cut: (str(cut.target), str(cut.origin), _against(inputs, cut)))
    for (_, _, against), some in groupby(cuts, key=lambda cut: (cut.target, cut.origin, _against(inputs, cut))):
        found += _elements(inputs, verdicts, [cut for cut in some if cut.new or not against], against)
    return found


def _elements(inputs: Inputs, verdicts: Mapping[Address, Verdict], cuts: Sequence[_Cut], against: str) -> Iterable[dict[str, Any]]:
    """Of one origin and one target."""
    live = inputs.live.get(cuts[0].origin) if cuts else None
    if live is None:
        if any(cut.new and _is_away(inputs, cut) and not against for cut in cuts):
            yield _waiting(inputs, cuts)
        return
    spans = [(cut, _span(inputs, verdicts, cut, live)) for cut in cuts]
    if left := [(cut, span) for cut, span in spans if span is not None]:
        yield _element(inputs, left, live, against)
    if looked := [cut for cut, span in spans if span is None and not cut.new]:
        yield _nothing(looked)


def left_out_and_away(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> list[Deferred]:
    """Origins in domains that are away, of which nobody can tell what sources leave out."""
    away = [cut for cut in _cuts(inputs, verdicts) if _is_away(inputs, cut) and not _against(inputs, cut)]
    pairs = dict.fromkeys((cut.origin, cut.target) for cut in away)
    words = "history that a source of {} leaves out waits: {}"
    return [Deferred(str(origin), words.format(target, inputs.live.domains[origin.domain].absence)) for origin, target in pairs]


def left_out_places(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> set[tuple[Address, str]]:
    """The times of which a plan wants to know where in their stream they are."""
    return {(cut.origin, time) for cut in _cuts(inputs, verdicts) if cut.leg is None and (time := cut.source.get("opt_start_time"))}


def command(origin: Address, target: Address) -> str:
    """What brings it."""
    return f"jsplan backfill run --from {shlex.quote(str(origin))} --to {shlex.quote(str(target))}"


# --- which sources ----------------------------------------------------------------------------------------------------


def _cuts(inputs: Inputs, verdicts: Mapping[Address, Verdict]) -> Iterator[_Cut]:
    if inputs.request.destroy or inputs.request.refresh_only or inputs.request.imports:
        return
    known = {name.partition(">")[2] for name in inputs.state.backfills}
    for address, verdict in verdicts.items():
        changes = verdict.actions in (["create"], ["update"])
        stays = verdict.actions == ["no-op"] and verdict.live is not None and str(address) in known
        if address.kind == "stream" and address in inputs.workspace.resources and (changes or stays):
            yield from _of(inputs, verdict)


def _of(inputs: Inputs, verdict: Verdict) -> Iterable[_Cut]:
    there = {origin_key(source) for source in (verdict.live.raw.get("sources") or () if verdict.live else ())}
    out = verdict.rejoins | inputs.taken_out.get(verdict.address, set())  # these go on where they were
    for source in inputs.body(verdict.address).get("sources") or ():
        later = int(source.get("opt_start_seq") or 0) > 1 or source.get("opt_start_time")
        domain = inputs.topology.reach.leads_to(verdict.address.domain, (source.get("external") or {}).get("api")) if later else None
        if domain is None or (key := origin_key(source)) in out:
            continue
        origin = Address.of_stream(domain, source["name"])
        cut = _Cut(verdict, source, origin, kept(inputs.state.backfills, between_two(origin, verdict.address)), key not in there)
        if _is_open(inputs, cut) and not _is_declared(inputs, origin, verdict.address):
            yield cut


def _is_open(inputs: Inputs, cut: _Cut) -> bool:
    """Whether somebody has to decide on it: it is new, or an apply that added it did not come to it."""
    live, legs = inputs.live.get(cut.origin), [leg for leg in (cut.record.origins if cut.record else ()) if leg.source == cut.key]
    unread = [one for one in (cut.record.unmeasured if cut.record else ()) if one["source"] == cut.key]
    if cut.new:
        return True
    same = [leg for leg in legs if live is None or leg.created == live.created]
    return any(leg.status not in _DECIDED for leg in same) or any(one["status"] != SKIPPED for one in unread)


def _is_declared(inputs: Inputs, origin: Address, target: Address) -> bool:
    """Whether an entry brings it, or has brought it."""
    entries = [entry for entry in inputs.workspace.backfills.values() if str(entry.target) == str(target)]
    real = inputs.topology.real
    sides = [side for entry in entries for side in entry.origins if side.parquet is None]
    return any(real(Address.of_stream(side.domain, side.stream)) == real(origin) for side in sides)


def _is_away(inputs: Inputs, cut: _Cut) -> bool:
    return not inputs.live.reachable(cut.origin.domain)


def _against(inputs: Inputs, cut: _Cut) -> str:
    """Why apply does not copy it; empty where it does."""
    live = inputs.live.get(cut.origin)
    if live is not None and (why := unreadable(live.raw)):
        return f"it cannot be copied: {why}"
    renamed = [one for one in cut.source.get("subject_transforms") or () if one.get("dest") and one["dest"] != (one.get("src") or ">")]
    if renamed:
        return "the source changes subjects, and a copy of that would not: make an entry of `backfills:` with `subject_transform`"
    why, _ = unfit(cut.verdict.after or (cut.verdict.live.raw if cut.verdict.live else {}))
    return f"it cannot be copied: {cut.target} {why}" if why else ""


# --- how much ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """What one source leaves out: up to where, and what of it is to be copied. Both None: where a time is nobody could say."""

    end: int | None
    range: Range | None


def _span(inputs: Inputs, verdicts: Mapping[Address, Verdict], cut: _Cut, live: LiveObject) -> _Span | None:
    """None where nothing is left out."""
    if (leg := cut.leg) is not None:
        return _Span(leg.last, Range(leg.first, leg.last, leg.created))
    start, time = cut.source.get("opt_start_seq"), str(cut.source.get("opt_start_time") or "")
    start = start or inputs.places.get((cut.origin, time))
    if start is None:
        return _Span(None, None) if live.state.get("messages") else None
    last = min(int(start) - 1, int(live.state["last_seq"]))
    if time > stamp(inputs.request.now) and last == live.state["last_seq"]:
        return None  # it has not begun, and nobody can tell yet how much it will leave out
    verdict = verdicts.get(cut.origin)
    first = _behind(cut, live, max(1, int(live.state["first_seq"])))
    if between(live, first, last)[0] == 0 or (verdict is not None and verdict.loses):
        return None
    return _Span(last, None if is_made_anew(inputs, verdicts, cut.origin) else Range(first, last, live.created))


def _behind(cut: _Cut, live: LiveObject, first: int) -> int:
    """The first sequence that no copy before has brought into the target."""
    target = cut.verdict.live
    same = [leg for leg in (cut.record.origins if cut.record else ()) if leg.status == "done" and leg.created == live.created]
    for leg in sorted(same, key=lambda leg: leg.first):
        same_messages = not leg.filters or leg.source == cut.key
        if target is not None and leg.target_created == target.created and same_messages and leg.first <= first <= leg.last:
            first = leg.last + 1
    return first


# --- in words ---------------------------------------------------------------------------------------------------------


def _element(inputs: Inputs, spans: Sequence[tuple[_Cut, _Span]], live: LiveObject, against: str) -> dict[str, Any]:
    cut, ranges = spans[0][0], [_counted(span, live) for _, span in spans]
    known = [found for found in ranges if found is not None]
    messages, size = (sum(one) for one in zip((0, 0), *known, strict=True)) if len(known) == len(ranges) else (None, None)
    guess = None
    if messages is not None and size is not None:
        pair = {(cut.origin.domain, cut.target.domain)}
        guess = estimate("spark", messages, size, None, pair, past_legs(inputs.state)).to_json()
    common = _common([one for one, _ in spans])
    if unreadable(live.raw):
        del common["command"]
    return common | {
        "from": [_side(one, span) for one, span in spans], "messages": messages, "bytes": size, "estimate": guess,
        "reason": f"{_reason(one for one, _ in spans)}; {against or SAYS_WHERE_FROM}", "runs": not against,
    }  # fmt: skip


def _counted(span: _Span, live: LiveObject) -> tuple[int, int] | None:
    if span.end is None:
        return None
    return between(live, span.range.first if span.range is not None else 1, span.end)


def _waiting(inputs: Inputs, cuts: Sequence[_Cut]) -> dict[str, Any]:
    """Keep, of sources whose origin is offline, that they are to be looked at."""
    ends = [_Span(int(cut.source["opt_start_seq"]) - 1 if cut.source.get("opt_start_seq") else None, None) for cut in cuts]
    return _common(cuts) | {
        "from": [_side(cut, end) for cut, end in zip(cuts, ends, strict=True)], "messages": None, "bytes": None, "estimate": None,
        "reason": _reason(cuts), "runs": False, "waits": inputs.live.domains[cuts[0].origin.domain].absence,
    }  # fmt: skip


def _nothing(cuts: Sequence[_Cut]) -> dict[str, Any]:
    """What is told of sources that somebody had to look at, and that leave nothing out: an apply takes note of it."""
    return _common(cuts) | {
        "from": [{"domain": cut.origin.domain, "stream": cut.origin.stream, "source": cut.key} for cut in cuts],
        "messages": 0, "bytes": 0, "estimate": None, "reason": "its source leaves nothing out", "runs": False,
    }  # fmt: skip


def _common(cuts: Sequence[_Cut]) -> dict[str, Any]:
    origin, target, live = cuts[0].origin, cuts[0].target, cuts[0].verdict.live
    return {
        "name": between_two(origin, target).name, "strategy": "spark", "declared": False, "command": command(origin, target),
        "to": {"domain": target.domain, "stream": target.stream} | ({"created": live.created} if live is not None else {}),
    }  # fmt: skip


def _side(cut: _Cut, span: _Span) -> dict[str, Any]:
    """One source's part of the origin. `before` is a time: nobody could say yet which sequence that is."""
    side: dict[str, Any] = {"domain": cut.origin.domain, "stream": cut.origin.stream, "source": cut.key}
    side |= {"end_seq": span.end} if span.end is not None else {"before": cut.source["opt_start_time"]}
    side |= {"filter_subjects": filters} if (filters := _filters(cut)) else {}
    return side | ({"range": span.range._asdict()} if span.range is not None else {})


def _filters(cut: _Cut) -> list[str]:
    transforms = [str(one.get("src") or ">") for one in cut.source.get("subject_transforms") or ()]
    found = transforms or [str(cut.source.get("filter_subject") or ">")]
    return [] if ">" in found else found


def _reason(cuts: Iterable[_Cut]) -> str:
    every = list(cuts)
    source = "its new source" if all(cut.new for cut in every) else "its source"
    starts = sorted({_begins(cut.source) for cut in every})
    return f"{source} begins at {' and '.join(starts)} and leaves out what is before"


def _begins(source: Mapping[str, Any]) -> str:
    return f"sequence {int(source['opt_start_seq']):,}" if source.get("opt_start_seq") else str(source["opt_start_time"])
