"""Head and tail of the plan of a revert: the reverted apply, and the next plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.render import summary
from jsplan.render.escape import safe
from jsplan.render.lines import Lines

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan


def print_head(plan: Plan, console: Console) -> None:
    """Print which entry of the history is reverted, if the plan is a revert."""
    if lines := reverted_entry(plan):
        lines.blank()
        lines.print(console)


def reverted_entry(plan: Plan) -> Lines:
    """Return the line about the reverted entry; no line for any other plan."""
    lines = Lines()
    if (entry := plan.options.get("revert")) is not None:
        lines.add(
            0,
            ("Reverting ", "strong"),
            (safe(f"{entry['operation']} {entry['id']}"), "strong"),
            safe(f" of {entry['who']}@{entry['host']}, {entry['at']}:"),
        )
    return lines


def print_tail(plan: Plan, console: Console) -> None:
    """Print what the next plan after the revert would be, with the current files."""
    next_plan(plan).print(console)


def next_plan(plan: Plan) -> Lines:
    """Return the line about the next plan; no line for any other plan."""
    lines = Lines()
    if (entry := plan.options.get("revert")) is None:
        return lines
    if following := entry["next"]:
        lines.add(
            0,
            ("The files still contain the change. ", "warn"),
            f"The next plan would be: {_counts(following)}.",
        )
    elif plan.has_changes:
        lines.add(0, "The files already match: the next plan shows nothing of this.")
    return lines


def summary_line(plan: Plan, result: ApplyResult) -> str | None:
    """Return the last line of a successful revert, with what is left to do."""
    if result.exit_code:
        return None
    done = summary.apply_line(result)
    return (
        f"{done} Now change the files as it says above, or the next apply does it again."
        if plan.options["revert"]["next"]
        else done
    )


def _counts(following: dict[str, int]) -> str:
    words = {
        kind: following.get(kind, 0)
        for kind in ("import", "add", "change", "replace", "destroy", "forget")
    }
    return ", ".join(
        f"{number} to {kind}"
        for kind, number in words.items()
        if number or kind in ("add", "change", "destroy")
    )
