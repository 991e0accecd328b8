"""A comparison of two streams as text, and what brings lost messages back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jsplan.address import Address
from jsplan.diagnostics import quote_shell
from jsplan.planning.backfill.model import SeqRange, merge_ranges
from jsplan.render.backfill_text import format_range, format_ranges
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.comparison import ComparedPart, ComparedSide, Comparison

_BY: Final = {
    "sequence": "by sequence, subject, headers, payload and time",
    "header": "by the origin that each message names, subject, headers and payload",
}
_ROLES: Final = {"mirror": ", a mirror of it", "source": ", which has it as a source"}
#: Ranges that an entry of a backfill names.
_MAX_SIDES: Final = 20


def render(found: Comparison, console: Console) -> None:
    """Render both sides, the differences, the way back, and the greppable line."""
    lines = Lines()
    _render_side(lines, found.origin, "")
    _render_side(lines, found.copy, _ROLES.get(found.relation, ""))
    lines.add(2, f"compared {format_range(found.first, found.last)} {_BY[found.by]}")
    if found.since:
        lines.add(2, (f"those before were equal at {found.since}, and did not change", "dim"))
    if found.kept:
        lines.add(2, (f"the kept result was not used: {safe(found.kept)}", "warn"))
    lines.add(6, f"{found.equal:,} equal")
    for part in found.parts:
        _render_part(lines, part, found)
    if found.lost:
        lines.blank()
        _render_return(lines, found)
    lines.blank()
    lines.add(0, (_last_line(found), "bad" if found.exit_code else "good"))
    lines.print(console)


def _render_side(lines: Lines, side: ComparedSide, role: str) -> None:
    span = f", {format_range(side.first_seq, side.last_seq)}" if side.messages else ""
    text = f"  {count_text(side.messages, 'message')}{span}{role}"
    lines.add(2, (safe(side.address), "strong"), text)


def _render_part(lines: Lines, part: ComparedPart, found: Comparison) -> None:
    words = {
        "missing": f"only in {safe(found.origin.address)}",
        "extra": f"only in {safe(found.copy.address)}",
        "different": "different",
        "twice": "more than once",
    }
    reason = f" ({safe(part.reason)})" if part.reason else ""
    ranges = f": {format_ranges(part.ranges)}" if part.ranges else ""
    role = "dim" if part.expected else "warn"
    lines.add(6, (f"{part.count:,} {words[part.kind]}", role), f"{ranges}{reason}")


def _render_return(lines: Lines, found: Comparison) -> None:
    """Render how the lost messages come back: by a backfill from the copy, which is kept first."""
    origin, copy = Address.parse(found.origin.address), Address.parse(found.copy.address)
    text = (
        f"{safe(str(origin))} no longer has {count_text(found.lost, 'message')} that "
        f"{safe(str(copy))} has. To bring them back, as new messages at its end:"
    )
    lines.add(0, (text, "bad"))
    if found.backup and not found.beside:
        lines.add(2, "Restore the backup in another domain or account, and copy them from there.")
        return
    number, copy = _render_keeping(lines, found, origin, copy)
    name = f"bring-back-{origin.stream}"
    lines.add(2, f"{number}. Add this to the files:")
    lines.add_command(5, "backfills:")
    lines.add_command(5, f"  - name: {safe(name)}")
    lines.add_command(5, "    from:")
    spans = [SeqRange(*span) for part in found.parts if part.lost for span in part.in_copy]
    ranges = merge_ranges(spans)[:_MAX_SIDES]
    for first, last in ranges:
        side = f"domain: {copy.domain}, stream: {copy.stream}, start_seq: {first}, end_seq: {last}"
        lines.add_command(5, f"      - {{{safe(side)}}}")
    lines.add_command(5, f"    to: {{domain: {origin.domain}, stream: {safe(origin.stream)}}}")
    lines.add(2, f"{number + 1}. See what it copies, and run it:")
    lines.add_command(5, f"jsplan backfill plan {quote_shell(name)}")
    lines.add_command(5, f"jsplan backfill run {quote_shell(name)}")
    if (rest := found.lost - sum(span.size for span in ranges)) > 0:
        back = f"this brings back those of {count_text(len(ranges), 'range')}"
        more = f"{count_text(rest, 'message')} more are lost"
        lines.add(2, (f"{number + 2}. Compare again: {back}. {more}.", "warn"))


def _render_keeping(
    lines: Lines, found: Comparison, origin: Address, copy: Address
) -> tuple[int, Address]:
    """Render how the copy is kept; return the number of the next step, and where it is then."""
    if found.backup:
        beside = Address.parse(found.beside)
        lines.add(2, "1. Restore the backup beside it:")
        command = f"jsplan restore {quote_shell(found.backup)} --target {quote_shell(origin)} \\"
        lines.add_command(5, safe(command))
        subjects = f" --subjects {quote_shell(f'{origin.stream}_SAVED')}"
        more = subjects if origin.kind == "stream" else ""
        lines.add_command(7, safe(f"--as {quote_shell(beside)}{more}"))
        return 2, beside
    if not found.relation:
        return 1, copy
    lines.add(
        2,
        f"1. Keep the copy: remove `{_key(found)}` from the entry of {safe(str(copy))}. "
        "It does not follow its origin then:",
    )
    allowed = quote_shell(f"BREAKS_REPLICATION:{copy}")
    lines.add_command(5, f"jsplan apply --allow-hazard {safe(allowed)}")
    return 2, copy


def _key(found: Comparison) -> str:
    return "mirror" if found.relation == "mirror" else "sources"


def _last_line(found: Comparison) -> str:
    differing = sum(part.count for part in found.parts if not part.expected)
    expected = sum(part.count for part in found.parts) - differing
    text = f"Compared: {found.equal:,} equal, {differing:,} different"
    if expected:
        text += f", {expected:,} only on one side, as configured"
    return f"{text}. {found.seconds:.1f}s"
