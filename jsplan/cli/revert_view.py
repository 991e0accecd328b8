"""Output and question of `revert`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.cli.views import print_plan

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.cli.output import Output
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan


def planned_result(output: Output, plan: Plan) -> None:
    """Print a plan that is not applied now."""
    verbose = bool(output.settings.verbose)
    output.result(plan.to_json, lambda console: print_plan(plan, console, verbose=verbose))


def revert_result(output: Output, plan: Plan, result: ApplyResult, *, shown: bool) -> int:
    """Print the result of a revert; return its exit code."""

    def text(console: Console) -> None:
        from jsplan.render import apply_text, revert_text

        if not shown:
            print_plan(plan, console, verbose=bool(output.settings.verbose))
        if plan.has_changes:
            console.print()
            apply_text.render(result, console, revert_text.summary_line(plan, result))

    output.result(result.to_json, text)
    return int(result.exit_code)
