"""Preview, result, verification and status of backfills as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan import units
from jsplan.address import BACKFILL_PREFIX
from jsplan.diagnostics import quote_shell
from jsplan.documents.backfill import BOUNDED, COMPARED, DIFFERENCE_KINDS
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.units import count_text, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from jsplan.documents.backfill import (
        BackfillPreview,
        BackfillResult,
        BackfillStatus,
        EntryStatus,
        OriginCheck,
        OriginPreview,
        OriginRange,
        OriginResult,
        Orphan,
        Verification,
    )


#: Ranges that are listed; the rest is counted.
MAX_RANGES = 10
_MEASURED = {
    COMPARED: "compared with what the target has, by headers only",
    BOUNDED: "not compared with what the target has: that needs the extra `spark`",
    "counted": "counted by the origin's server", "unknown": "not known"
}  # fmt: skip


def render_run(result: BackfillResult, console: Console) -> None:
    """Render each origin with its result, then the greppable line."""
    lines = Lines()
    for origin in result.origins:
        _render_origin(lines, origin)
    for one in result.deferred:
        lines.add(2, (safe(one.address), "strong"), ("  deferred: ", "warn"), safe(one.reason))
    if len(lines):
        lines.blank()
    if result.deferred:
        origins = count_text(len(result.deferred), "origin")
        domains = {one.address.partition("/")[0] for one in result.deferred}
        text = f"Deferred: {origins} in {count_text(len(domains), 'domain')}."
        lines.add(0, (text, "warn"))
    lines.add(0, (run_line(result), "warn" if result.gap_messages or result.stopped else "good"))
    if result.stopped:
        lines.add(0, f"The next run resumes it: jsplan backfill run {quote_shell(result.name)}")
    lines.print(console)


def _render_origin(lines: Lines, origin: OriginResult) -> None:
    _add_sides(lines, origin, f"  {format_range(origin.first, origin.last)}")
    if origin.copied:
        rate = origin.copied / origin.seconds if origin.seconds else 0
        how = f", by {safe(origin.path)}" if origin.path else ""
        lines.add(
            6,
            f"copied {count_text(origin.copied, 'message')}, {format_bytes(origin.bytes)}, in "
            f"{origin.seconds:.1f}s ({rate:,.0f}/s){how}",
        )
    else:
        lines.add(6, ("nothing to copy: the target has it, or its own source brings it", "dim"))
    if origin.verified:
        lines.add(6, ("compared with the origin: equal, in order, each once", "good"))
    if origin.attempts > 1:
        lines.add(6, (f"in {origin.attempts} attempts", "dim"))
    if origin.gap_messages:
        count = count_text(origin.gap_messages, "message")
        gone, them = ("was", "it") if origin.gap_messages == 1 else ("were", "they")
        words = f"{count} {gone} gone at the origin before {them} could be copied: "
        lines.add(6, ("gap: ", "warn"), words + format_ranges(origin.gaps))
    if origin.skipped_count:
        seqs = format_ranges([[seq, seq] for seq in origin.skipped])
        count = count_text(origin.skipped_count, "message")
        lines.add(6, ("skipped: ", "warn"), f"{count} too large for the target: {seqs}")


def _add_sides(lines: Lines, origin: OriginRange, words: str) -> None:
    lines.add(2, (safe(origin.origin), "strong"), " -> ", (safe(origin.target), "strong"), words)


def format_range(first: int, last: int) -> str:
    """Return `sequences 1 to 1,000`."""
    return f"sequences {first:,} to {last:,}" if first <= last else "an empty range"


def format_ranges(spans: Sequence[Sequence[int]]) -> str:
    """Return `3, 17 to 20, and 4 more ranges`."""
    shown = [
        f"{first:,}" if first == last else f"{first:,} to {last:,}"
        for first, last in spans[:MAX_RANGES]
    ]
    left = len(spans) - len(shown)
    return ", ".join(shown) + (f", and {count_text(left, 'more range')}" if left else "")


def run_line(result: BackfillResult) -> str:
    """Return `Backfill complete! Messages: 1,000 copied, …`, or that nothing was to copy."""
    skipped = sum(origin.skipped_count for origin in result.origins)
    if result.stopped:
        return f"Backfill stopped, its time is over. Messages: {result.copied:,} copied so far."
    if not (result.copied or skipped or result.gap_messages):
        if result.deferred:
            return "Nothing to copy of the origins that can be reached."
        return "Nothing to copy. The target has the range, or its own sources bring the rest."
    return (
        f"Backfill complete! Messages: {result.copied:,} copied, {result.gap_messages:,} "
        f"missing at the origin, {skipped:,} skipped."
    )


# --- verify ---------------------------------------------------------------------------------------


def render_verification(found: Verification, console: Console) -> None:
    """Render each origin with its differences, then the greppable line."""
    lines = Lines()
    for origin in found.origins:
        _render_check(lines, origin)
    if found.others:
        verb = "comes" if found.others == 1 else "come"
        text = f"{count_text(found.others, 'message')} of the target {verb} from elsewhere"
        lines.add(2, (text, "dim"))
    lines.blank()
    lines.add(0, (verify_line(found), "bad" if found.differences else "good"))
    lines.print(console)


def _render_check(lines: Lines, origin: OriginCheck) -> None:
    counts = origin.counts
    _add_sides(lines, origin, f"  {format_range(origin.first, origin.last)}")
    known = [
        f"{counts[kind]:,} {kind}"
        for kind in ("equal", "repaired", "expired", "skipped")
        if counts[kind] or kind == "equal"
    ]
    lines.add(6, ", ".join(known))
    for one in origin.listed:
        where = [
            f"origin {one.origin_seq:,}" if one.origin_seq else "",
            f"target {one.target_seq:,}" if one.target_seq else "",
        ]
        kind = one.kind.replace("_", " ")
        lines.add(6, (f"{kind:<14}", "bad"), ", ".join(filter(None, where)))
    if (left := origin.differences - len(origin.listed)) > 0:
        lines.add(6, (f"and {left:,} more", "dim"))


def verify_line(found: Verification) -> str:
    """Return `Verified: 997 equal, 1 missing, 1 extra, 1 different.`.

    Parts that are zero are left out, except for the equal ones.
    """
    total = {
        kind: sum(origin.counts[kind] for origin in found.origins)
        for kind in ("equal", *DIFFERENCE_KINDS)
    }
    parts = [
        f"{number:,} {kind.replace('_', ' ')}"
        for kind, number in total.items()
        if number or kind == "equal"
    ]
    return f"Verified: {', '.join(parts)}." + ("" if found.differences else " Both sides agree.")


# --- status ---------------------------------------------------------------------------------------

_STATUS = {
    "new": ("not run yet", "warn"),
    "started": ("started, not finished", "warn"),
    "done": ("done", "good"),
    "changed": ("changed since its last run; the next run pins its range again", "warn"),
    "missing": ("not in the files", "dim"),
}


_NEXT_STEP = {"new": "To run it", "done": "To remove its orphans"}


def render_status(found: BackfillStatus, console: Console) -> None:
    """Render each entry with its range and orphans, the running process, and unknown orphans."""
    lines = Lines()
    if not found.entries:
        lines.add(0, "There are no backfills: none in the files, none in the state.")
    for entry in found.entries:
        _render_entry(lines, entry)
    if found.orphans:
        lines.add(0, ("Orphans of backfills that are in no file and not in this state:", "warn"))
        for left in found.orphans:
            _render_orphan(lines, left)
        lines.add(
            2,
            "Their messages never reached a target. If no other workspace runs these "
            "backfills: nats stream rm NAME",
        )
    for domain, reason in found.offline.items():
        lines.add(0, ("! ", "bad"), f"no answer from domain {safe(domain)}: {safe(reason)}")
    if found.locked is not None:
        who = found.locked
        lines.add(
            0,
            ("Running now: ", "strong"),
            safe(f"{who.operation} by {who.who}@{who.host} (process {who.pid})"),
            safe(f" since {who.since}"),
        )
    lines.print(console)


def _render_entry(lines: Lines, entry: EntryStatus) -> None:
    words, role = _STATUS[entry.status]
    when = f" {entry.done_at}" if entry.status == "done" and entry.done_at else ""
    lines.add(0, (safe(entry.name), "strong"), "  ", (words + when, role))
    for origin in entry.origins:
        lines.add(
            2,
            f"{safe(origin.origin)} -> {safe(origin.target)}  "
            f"{format_range(origin.first, origin.last)}",
        )
        parts = [f"{count_text(origin.copied, 'message')} copied"]
        if origin.gaps:
            parts.append(f"gone before they could be copied: {format_ranges(origin.gaps)}")
        if origin.skipped:
            parts.append(f"too large: {format_ranges([[seq, seq] for seq in origin.skipped])}")
        lines.add(6, ("; ".join(parts), "dim"))
    for left in entry.orphans:
        _render_orphan(lines, left)
    if entry.next:
        lines.add(2, f"{_NEXT_STEP.get(entry.status, 'To resume it')}: {safe(entry.next)}")


def _render_orphan(lines: Lines, orphan: Orphan) -> None:
    holds = (
        f"{count_text(orphan.messages, 'message')}, "
        f"{format_bytes(orphan.bytes)}{', sealed' if orphan.sealed else ''}"
    )
    if not orphan.domain:
        words = f"started in {safe(orphan.stream)} ({holds})"
    elif orphan.stream.startswith(BACKFILL_PREFIX):
        words = f"staging stream {safe(orphan.stream)} in {safe(orphan.domain)} ({holds})"
    elif orphan.source_of:
        words = f"source {safe(orphan.stream)}, by which the server copies"
    else:
        words = (
            f"stream {safe(orphan.stream)} in {safe(orphan.domain)}, made from a snapshot and "
            f"not finished ({holds})"
        )
    lines.add(2, ("orphan: ", "warn"), words)
    for address in orphan.source_of:
        lines.add(13, f"a source of {safe(address)}")


def render(found: BackfillPreview, console: Console) -> None:
    """Render each origin with its pending messages, the strategy, an estimate and the command."""
    lines = Lines()
    words, role = _STATUS[found.status]
    lines.add(0, (safe(found.name), "strong"), "  ", (words, role))
    for origin in found.origins:
        _render_pending(lines, origin, at_most=_say_at_most(found))
    if found.filtered_by and found.messages:
        words = " and ".join(f"`{name}`" for name in found.filtered_by)
        lines.add(2, f"counted before {words}: what that leaves out Spark finds when it copies")
    if found.status != "done":
        lines.add(2, f"by {found.strategy}: {safe(found.reason)}")
        if found.strategy_problem:
            lines.add(2, ("not possible: ", "bad"), safe(found.strategy_problem))
        if found.estimate is not None and found.messages:
            lines.add(
                2,
                f"about {_time(found.estimate.seconds)}, an estimate: {safe(found.estimate.basis)}",
            )
    lines.blank()
    lines.add(0, (summary_line(found), "strong"))
    if found.status != "done" and not found.strategy_problem:
        lines.add(0, f"To copy it: {safe(found.command)}")
    lines.print(console)


def _render_pending(lines: Lines, origin: OriginPreview, *, at_most: str) -> None:
    pinned = ", pinned" if origin.pinned else ""
    words = f"  {format_range(origin.first, origin.last)}{pinned}" if not origin.error else ""
    _add_sides(lines, origin, words)
    if origin.error:
        lines.add(6, ("not measured: ", "bad"), safe(origin.error))
    elif origin.done:
        lines.add(6, ("done. A run copies what is missing by now", "dim"))
    else:
        missing = (
            f"{at_most}{count_text(origin.messages or 0, 'message')} pending, about "
            f"{units.format_bytes(origin.bytes or 0)}"
        )
        lines.add(6, missing, (f" ({_MEASURED[origin.measured]})", "dim"))
    if origin.in_target:
        lines.add(6, f"{count_text(origin.in_target, 'message')} already in the target")
    if origin.gap_messages:
        lines.add(
            6,
            ("gap: ", "warn"),
            f"{count_text(origin.gap_messages, 'message')} of the range no longer at the origin",
        )


def summary_line(found: BackfillPreview) -> str:
    """Return `Backfill: 1,000 messages to copy.`, or that there is nothing to copy."""
    if found.status == "done":
        return "Backfill: done. Nothing to copy."
    at_most = _say_at_most(found)
    if unmeasured := sum(bool(origin.error) for origin in found.origins):
        counted = f"{at_most}{count_text(found.messages, 'message')} to copy of the others"
        rest = f", {counted}" if unmeasured < len(found.origins) else ""
        return f"Backfill: {count_text(unmeasured, 'origin')} not measured{rest}."
    if found.messages:
        return f"Backfill: {at_most}{count_text(found.messages, 'message')} to copy."
    return "Backfill: nothing to copy."


def _say_at_most(found: BackfillPreview) -> str:
    is_bound = found.filtered_by or any(one.measured == BOUNDED for one in found.origins)
    return "at most " if is_bound else ""


def _time(seconds: float) -> str:
    return units.format_duration(max(1, round(seconds)) * units.SECOND)
