"""The plan as a page for people; resources that do not change are only counted. Paragraphs are `resource_text`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan import units
from jsplan.render import collapse, diagnostics_text, resource_text, summary
from jsplan.render.lines import Lines
from jsplan.render.resource_text import actions_of
from jsplan.render.safe import quoted, safe

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.plan import Plan, ResourceChange

#: What costs most stands nearest to the summary, where the eye ends.
_ORDER = (("forget",), ("no-op",), ("create",), ("update",), ("create", "delete"), ("delete", "create"), ("delete",))
#: Addresses listed of deferred resources per reason, unless everything is wanted.
_SHOWN = 5


def render(plan: Plan, console: Console, *, verbose: bool = False) -> None:
    """Print the whole plan, the greppable summary last. `verbose` writes out what is alike."""
    drift = relevant_drift(plan)
    _outside(drift, console)
    changing = _changing(plan)
    _intro(plan, bool(changing or plan.backfills), console)
    _resources(changing, console, verbose=verbose)
    _backfills(plan).print(console)
    _deferred(plan, verbose=verbose).print(console)
    diagnostics_text.render(plan.diagnostics, console, after=True)
    _permissions(plan).print(console)
    _summary(plan).print(console)


def relevant_drift(plan: Plan) -> list[ResourceChange]:
    """Drift of what this plan touches; everything with --refresh-only, which is about nothing else."""
    touched = {r.address for r in plan.resource_changes if actions_of(r) != ("no-op",)}
    return [r for r in plan.resource_drift if plan.mode == "refresh-only" or r.address in touched]


def _changing(plan: Plan) -> list[ResourceChange]:
    changed = [r for r in plan.resource_changes if r.change.importing or r.previous_address or actions_of(r) != ("no-op",)]
    rank = {actions: number for number, actions in enumerate(_ORDER)}
    return sorted(changed, key=lambda r: (rank.get(actions_of(r), 0), r.address))


def _outside(drift: list[ResourceChange], console: Console) -> None:
    if not drift:
        return
    lines = Lines()
    lines.add(0, ("Changed outside of jsplan", "strong"), " since the last apply:")
    lines.blank()
    for resource in drift:
        drifted(lines, resource)
    lines.print(console)


def drifted(lines: Lines, resource: ResourceChange) -> None:
    """One element of `resource_drift` and an empty line after it."""
    grade = f" ({resource.severity})" if resource.severity else ""
    if resource.change.after is None:
        lines.add(0, ("  - ", "delete"), (safe(resource.address), "strong"), f" is gone{grade}")
    else:
        lines.add(0, ("  ~ ", "update"), (safe(resource.address), "strong"), f" was changed{grade}")
        for change in resource.change.fields:
            resource_text.field_change(lines, resource.type, change)
    lines.blank()


def _intro(plan: Plan, anything: bool, console: Console) -> None:
    lines = Lines()
    limited = bool(plan.targets or plan.options.get("excludes"))
    if anything:
        where = f"workspace {safe(plan.workspace)}" + (f", environment {safe(plan.environment)}" if plan.environment else "")
        what = _what(plan, limited=limited)
        lines.add(0, (f"{what} ", "strong"), f"({where}):")
    if shaped := _planned_with(plan):
        lines.add(0, (f"Planned with {shaped}", "dim"))
    if limited:
        lines.add(0, ("This plan is limited by --target or --exclude: it does not show everything that differs.", "warn"))
    if len(lines):
        lines.blank()
    lines.print(console)


def _what(plan: Plan, *, limited: bool) -> str:
    if plan.mode != "destroy":
        return "jsplan will do the following"
    return "jsplan will destroy the following" if limited else "jsplan will destroy everything that it manages"


def _planned_with(plan: Plan) -> str:
    """The options that shaped the plan, as they are written."""
    options: dict[str, Any] = plan.options
    words = [f"--target {safe(str(t))}" for t in plan.targets]
    words += [f"--exclude {safe(str(e))}" for e in options.get("excludes") or ()]
    words += [f"--replace {safe(str(r))}" for r in options.get("replace") or ()]
    words += [f"--allow-hazard {safe(h)}" for h in plan.allowed_hazards]
    words += ["--refresh-only"] if plan.mode == "refresh-only" else []
    words += ["--adopt"] if options.get("adopt") else []
    words += [f"--safe-below {options['safe_below']}"] if options.get("safe_below") else []
    return " ".join(words)


def _resources(changing: list[ResourceChange], console: Console, *, verbose: bool) -> None:
    made = [(r, resource_text.render(r)) for r in changing]
    parts = [(lines, []) for _, lines in made] if verbose else list(collapse.groups(made))
    for lines, others in parts:
        if others:
            _and_others(lines, others)
        lines.blank()
        lines.print(console)


def _and_others(lines: Lines, others: list[ResourceChange]) -> None:
    """Say for whom else the paragraph speaks, each under the name of its own domain."""
    names = safe(collapse.compressed([r.domain for r in others]))
    lines.add(resource_text.BODY, (f"and the same {summary.count(len(others), 'time')} more, for {names}", "strong"))


def _backfills(plan: Plan) -> Lines:
    lines = Lines()
    for job in plan.backfills:
        amount = [summary.count(job["messages"], "message")] if job.get("messages") is not None else []
        amount += [units.format_bytes(job["bytes"])] if job.get("bytes") is not None else []
        ends = f"{_end(job.get('from'))} -> {_end(job.get('to'))}"
        lines.add(0, ("  > ", "import"), (f"backfill {safe(str(job['name']))}", "strong"), f" {ends} [{', '.join(amount)}]")
        if job.get("reason"):
            lines.add(resource_text.BODY, (safe(str(job["reason"])), "dim"))
        lines.blank()
    return lines


def _end(end: Any) -> str:
    if isinstance(end, list):
        return ", ".join(_end(item) for item in end)
    if isinstance(end, dict) and "stream" in end:
        return safe(f"{end.get('domain', '?')}/stream/{end['stream']}")
    return safe(str(end["parquet"])) if isinstance(end, dict) and "parquet" in end else quoted(end)


def _deferred(plan: Plan, *, verbose: bool) -> Lines:
    """Why what is left for later, a few addresses of each."""
    lines, reasons = Lines(), dict[str, list[str]]()
    for item in plan.deferred:
        reasons.setdefault(item.reason, []).append(item.address)
    for reason, addresses in reasons.items():
        lines.add(0, ("Left for later: ", "warn"), safe(reason))
        shown = addresses if verbose else addresses[:_SHOWN]
        for address in shown:
            lines.add(4, safe(address))
        if len(shown) < len(addresses):
            lines.add(4, (f"and {len(addresses) - len(shown):,} more", "dim"))
        lines.blank()
    return lines


def _permissions(plan: Plan) -> Lines:
    """All flags that are still missing in one place, ready to be copied."""
    lines = Lines()
    flags = dict.fromkeys(h.flag for r in plan.resource_changes for h in r.hazards if h.blocking and not h.allowed)
    if flags:
        lines.add(0, ("Not allowed yet.", "bad"), " Apply will refuse without:")
        for flag in flags:
            lines.add(4, safe(flag))
        lines.blank()
    return lines


def _summary(plan: Plan) -> Lines:
    lines = Lines()
    if plan.errored:
        lines.add(0, ("The plan has errors; nothing can be applied.", "bad"))
    if plan.has_changes or _changing(plan):
        lines.add(0, (summary.plan_line(plan), "strong"))
    elif not plan.errored:
        lines.add(0, (summary.nothing_line(plan), "good"))
    if plan.steps and all(step.op == "state.update" for step in plan.steps):
        lines.add(0, ("Nothing is sent to a server: only jsplan's own record is brought up to date.", "dim"))
    if line := summary.deferred_line(d.address for d in plan.deferred):
        lines.add(0, line)
    return lines
