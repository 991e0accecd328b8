"""Functions between documents and their views; rich is loaded only if something is drawn."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.console import Console

    from jsplan.cli.output import Output
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.drift import Drift
    from jsplan.documents.plan import Plan

#: Formats of `plan` and `show PLANFILE` besides text and JSON.
PLAN_FORMATS = ("markdown", "html")
#: Formats of `drift` besides text and JSON.
DRIFT_FORMATS = ("markdown", "html", "junit", "github")


def print_plan(
    plan: Plan, console: Console, *, verbose: bool = False, missing_flags: bool = True
) -> None:
    """Print the text view on a console; `missing_flags` lists what an apply would need."""
    from jsplan.render import plan_text

    plan_text.render(plan, console, verbose=verbose, missing_flags=missing_flags)


def plan_result(output: Output, plan: Plan) -> None:
    """Print a plan as the result of a command."""
    from jsplan.render import summary

    plain = summary.NO_CHANGES if summary.is_quiet(plan) else None
    verbose = bool(output.settings.verbose)
    views = {name: partial(plan_view, plan, name, verbose=verbose) for name in PLAN_FORMATS}
    output.result(
        plan.to_json,
        lambda console: print_plan(plan, console, verbose=verbose),
        plain=plain,
        views=views,
    )


def plan_view(plan: Plan, format_: str, *, verbose: bool = False) -> str:
    """Return the plan in one of `PLAN_FORMATS`."""
    from jsplan.render import plan_html, plan_markdown

    render = plan_html.render if format_ == "html" else plan_markdown.render
    return render(plan, verbose=verbose)


def apply_result(output: Output, plan: Plan, result: ApplyResult, *, shown: bool) -> int:
    """Print the result of an apply; return its exit code.

    A plan without changes was not shown for approval: then its view is the whole text.
    """
    from jsplan.render import summary

    def text(console: Console) -> None:
        from jsplan.render import apply_text

        if not shown and not plan.has_changes:
            print_plan(plan, console)
        else:
            if shown:
                console.print()
            line = summary.import_line(result) if plan.options.get("import") else None
            apply_text.render(result, console, line)

    plain = summary.NO_CHANGES if not shown and summary.is_quiet(plan) else None
    output.result(result.to_json, text, plain=plain)
    return int(result.exit_code)


def drift_view(drift: Drift, format_: str, fail_on: Collection[str]) -> str:
    """Return the drift document in one of `DRIFT_FORMATS`."""
    from jsplan.render import drift_ci, drift_html, drift_markdown

    if format_ == "markdown":
        return drift_markdown.render(drift)
    if format_ == "html":
        return drift_html.render(drift)
    if format_ == "junit":
        return drift_ci.render_junit(drift, fail_on)
    return drift_ci.render_github(drift, fail_on)


def drift_result(output: Output, drift: Drift, fail_on: Collection[str]) -> None:
    """Print a drift document as the result of a command."""
    verbose = bool(output.settings.verbose)

    def text(console: Console) -> None:
        from jsplan.render import drift_text

        drift_text.render(drift, console, verbose=verbose)

    output.result(
        drift.to_json,
        text,
        views={name: partial(drift_view, drift, name, fail_on) for name in DRIFT_FORMATS},
    )
