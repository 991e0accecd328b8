"""Small glue between documents and their views, so that rich loads only when there is something to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.cli.output import Output
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan


def print_plan(plan: Plan, console: Console, *, verbose: bool = False) -> None:
    """The text view on a console."""
    from jsplan.render import plan_text

    plan_text.render(plan, console, verbose=verbose)


def plan_result(output: Output, plan: Plan) -> None:
    """A plan as the result of a command."""
    from jsplan.render import summary

    plain = summary.NO_CHANGES if summary.is_quiet(plan) else None
    verbose = bool(output.settings.verbose)
    output.result(plan.to_json, lambda console: print_plan(plan, console, verbose=verbose), plain=plain)


def apply_result(output: Output, plan: Plan, result: ApplyResult, *, shown: bool) -> int:
    """How an apply ended, as the result of a command; returns its exit code.

    A plan without changes was never shown for approval: then its view is the whole text.
    """

    def text(console: Console) -> None:
        from jsplan.render import apply_text

        if not shown and not plan.has_changes:
            print_plan(plan, console)
        else:
            if shown:
                console.print()
            apply_text.render(result, console)

    from jsplan.render import summary

    plain = summary.NO_CHANGES if not shown and summary.is_quiet(plan) else None
    output.result(result.to_json, text, plain=plain)
    return int(result.exit_code)
