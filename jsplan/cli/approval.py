"""Approval of a plan: print it and ask for the word `yes`."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jsplan.cli.views import print_plan
from jsplan.errors import InterruptedByUser, NotApprovedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from jsplan.cli.output import Output
    from jsplan.documents.plan import Plan


class Approval:
    """The `Approve` of one command.

    `question` is the question, `shown` says whether the plan was printed. With JSON on stdout, the
    plan is printed on stderr.
    """

    #: The hint where no question can be asked.
    no_terminal_hint = (
        "Pass --auto-approve (-y) to approve it beforehand, or save it with plan -o FILE and "
        "apply that."
    )

    def __init__(
        self, output: Output, *, auto_approve: bool, no_input: bool, question: str
    ) -> None:
        self._output = output
        self._auto = auto_approve
        self._can_ask = not no_input and sys.stdin.isatty() and sys.stderr.isatty()
        self._question = question
        self._wake: int | None = None
        self._asking = False
        self.shown = False

    def __call__(self, plan: Plan) -> None:
        """Raise NotApprovedError unless the answer is `yes` or `--auto-approve` was given.

        A plan that the workflow refuses next is printed without a question.
        """
        from jsplan.planning.guards import refusal_reasons

        self._output.progress.stop()
        self._show(plan)
        if not self._auto and not refusal_reasons(plan):
            self._ask()

    def _show(self, plan: Plan) -> None:
        verbose = bool(self._output.settings.verbose)
        if not self._output.settings.json:
            self.print(plan, self._output.out, verbose=verbose)
            self.shown = True
        elif self._can_ask and not self._auto:
            self.print(plan, self._output.err, verbose=verbose)

    def print(self, plan: Plan, console: Console, *, verbose: bool) -> None:
        """Print the plan."""
        print_plan(plan, console, verbose=verbose)

    def _ask(self) -> None:
        if not self._can_ask:
            raise NotApprovedError(
                (
                    "this plan needs approval, and nothing can be asked here (no terminal, or "
                    "--no-input); nothing was changed"
                ),
                hint=self.no_terminal_hint,
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
