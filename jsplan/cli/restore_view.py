"""Output and question of `restore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.cli.approval import Approval

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.cli.output import Output
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan


class RestoreApproval(Approval):
    """An approval that prints what the backup holds before the plan."""

    def print(self, plan: Plan, console: Console, *, refused: bool) -> None:
        """Print what the backup holds, then the plan."""
        from jsplan.render import restore_text

        restore_text.render(plan, console)
        super().print(plan, console, refused=refused)


def restore_result(output: Output, plan: Plan, result: ApplyResult, *, shown: bool) -> int:
    """Print the result of a restore; return its exit code."""

    def text(console: Console) -> None:
        from jsplan.render import apply_text, restore_text

        if not shown:
            restore_text.render(plan, console)
        else:
            console.print()
        apply_text.render(result, console, restore_text.summary_line(plan, result))

    output.result(result.to_json, text)
    return int(result.exit_code)
