"""Approval of a plan: print it and ask for the word `yes`."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jsplan.cli.views import apply_result, print_plan
from jsplan.errors import InterruptedByUser, NotApprovedError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from jsplan.cli.output import Output
    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan


def ask_and_apply(
    output: Output,
    run: Callable[[Approval], tuple[Plan, ApplyResult]],
    question: str,
    save: str = "",
    *,
    auto_approve: bool,
    no_input: bool,
    kind: type[Approval] | None = None,
    show: Callable[..., int] = apply_result,
) -> int:
    """Run a workflow that plans, asks and applies; show its result, and return the exit code.

    `question` and `save` are for the approval, of `kind`.
    """
    approval = (kind or Approval)(
        output, auto_approve=auto_approve, no_input=no_input, question=question, save=save
    )
    with approval.interruptible() as approve:
        plan, result = run(approve)
    return show(output, plan, result, shown=approval.shown)


class Approval:
    """The `Approve` of one command.

    `question` is the question, `shown` says whether the plan was printed. With JSON on stdout, the
    plan is printed on stderr. `save` is the command that saves the plan instead, if there is one.
    """

    def __init__(
        self,
        output: Output,
        *,
        auto_approve: bool,
        no_input: bool,
        question: str,
        save: str = "",
    ) -> None:
        self._output = output
        self._auto = auto_approve
        self._can_ask = not no_input and sys.stdin.isatty() and sys.stderr.isatty()
        self._question, self._save = question, save
        self._wake: int | None = None
        self._asking = False
        self.shown = False

    def __call__(self, plan: Plan) -> None:
        """Raise NotApprovedError unless the answer is `yes` or `--auto-approve` was given.

        Raise RefusedError for a plan that the workflow would refuse next. A refused plan that was
        printed explains each reason, so the message beside it only names them.
        """
        from jsplan.planning.refusals import explain_refusals, list_refusals, name_refusals

        self._output.progress.stop()
        refusals = list_refusals(plan)
        printed = self._show(plan, refused=bool(refusals))
        if refusals:
            named = name_refusals(refusals) if printed else ""
            raise RefusedError(explain_refusals(refusals), beside_plan=named)
        if not self._auto:
            self._ask()

    def _show(self, plan: Plan, *, refused: bool) -> bool:
        """Print the plan where its reader can see it; return whether there is such a place."""
        if not self._output.settings.json:
            self.print(plan, self._output.out, refused=refused)
            self.shown = True
        elif self._can_ask and not self._auto:
            self.print(plan, self._output.err, refused=refused)
        else:
            return False
        return True

    def print(self, plan: Plan, console: Console, *, refused: bool) -> None:
        """Print the plan. The flags that a refused plan needs are in the error that follows it."""
        verbose = bool(self._output.settings.verbose)
        print_plan(plan, console, verbose=verbose, missing_flags=not refused)

    def _ask(self) -> None:
        if not self._can_ask:
            raise NotApprovedError(
                "this plan needs approval, and nothing can be asked here (no terminal, or "
                "--no-input); nothing was changed",
                hint="Pass --auto-approve (-y): an answer through a pipe does not count"
                + (f". Or save the plan with {self._save} and apply that." if self._save else "."),
            )
        sys.stderr.write(f"\n{self._question}\n  Only the word yes approves: ")
        sys.stderr.flush()
        if self._answer() != "yes":
            raise NotApprovedError("not approved; nothing was changed")
        sys.stderr.write("\n")

    def _answer(self) -> str:
        """Return one line from the terminal; raise InterruptedByUser on Ctrl-C."""
        self._asking = True
        try:
            wake = [] if self._wake is None else [self._wake]
            readable, _, _ = select.select([sys.stdin, *wake], [], [])
        finally:
            self._asking = False
        if sys.stdin not in readable:
            sys.stderr.write("\n")
            raise InterruptedByUser("interrupted; nothing was changed")
        line = sys.stdin.readline()
        if not line.endswith("\n"):
            sys.stderr.write("\n")
        return line.strip()

    @contextmanager
    def interruptible(self) -> Iterator[Approval]:
        """Let Ctrl-C end the question at once.

        The workflow asks from a thread of its own, which no signal reaches.
        """
        if (
            not self._can_ask
            or self._auto
            or threading.current_thread() is not threading.main_thread()
        ):
            yield self
            return
        self._wake, write = os.pipe()

        def interrupted(number: int, frame: Any) -> None:
            if self._asking:
                os.write(write, b"!")
            else:
                signal.default_int_handler(number, frame)

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)
            os.close(write)
            os.close(self._wake)
