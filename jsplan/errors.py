"""The exception tree, and the exit code of each class.

JsplanError                      1
├── ConfigError                  1   the files are wrong; carries every diagnostic
├── PlanError                    1   the files are right but cannot be planned against live
├── ConnectError                 1   no connection, or another server answers
├── ApiError                     1   a JetStream API request was refused or was not answered
│   ├── NoRespondersError        1   no responder: no such domain, or the link to it is down
│   ├── ApiTimeoutError          1   a responder exists but did not answer
│   ├── ConnectionLostError      1   the connection ended before the answer
│   ├── NotPermittedError        1   the user may not publish this request
│   └── ServerRefusedError       1   the server answered with an error (`err_code`)
├── StateError                   1   the state cannot be read, is foreign, or cannot be written
│   ├── StateLockedError         5   another process works on this state
│   └── LeaseLostError           1   the lock expired or was removed while this process worked
├── RefusedError                 3   a hazard that is not allowed, prevent_destroy, --adopt needed
├── NotApprovedError             1   the user did not answer `yes`
├── StalePlanError               4   something that the plan touches has changed since
├── PartialApplyError            6   applied in part; state says exactly how far
├── UsageError                  64   the command line is wrong
├── InterruptedByUser          130   Ctrl-C, after the running calls finished
├── NotAvailableError            1   a requirement is not installed, or not in this release
└── SandboxError                 1   an embedded nats-server could not be started
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

from jsplan.secrets import conceal
from jsplan.units import count_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jsplan.diagnostics import Diagnostic


class ExitCode(IntEnum):
    """The exit codes."""

    OK = 0
    ERROR = 1
    CHANGES = 2
    REFUSED = 3
    STALE = 4
    LOCKED = 5
    PARTIAL = 6
    USAGE = 64
    INTERRUPTED = 130


#: Where several codes apply to one command, the first of these wins.
PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.PARTIAL,
    ExitCode.LOCKED,
    ExitCode.STALE,
    ExitCode.ERROR,
    ExitCode.REFUSED,
    ExitCode.CHANGES,
    ExitCode.USAGE,
    ExitCode.OK,
)


class JsplanError(Exception):
    """Base of everything that jsplan raises on purpose: what happened, where, and what to do.

    `str(error)` is one line that says what happened and where; `hint` says what to do about it.
    Neither shows values that came from `${env.X}`.
    """

    exit_code: ExitCode = ExitCode.ERROR

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(conceal(message))
        self.hint = conceal(hint) if hint else hint

    @property
    def full_text(self) -> str:
        """Return what happened and what to do about it as one text."""
        return f"{self}. {self.hint}" if self.hint else str(self)


class DiagnosticsError(JsplanError):
    """Carries all findings at once; `diagnostics` is sorted by file and line of each place."""

    def __init__(self, diagnostics: Sequence[Diagnostic], message: str | None = None) -> None:
        errors = [d for d in diagnostics if d.severity == "error"]
        super().__init__(message or f"{count_text(len(errors), 'error')}")
        self.diagnostics = tuple(diagnostics)

    @property
    def full_text(self) -> str:
        """Return the errors, one a line, each with its place and what to do about it."""
        found = [d for d in self.diagnostics if d.severity == "error"]
        lines = [
            f"{d.range or d.address or d.code}: {d.summary}. {d.detail}".strip() for d in found
        ]
        return "\n".join([f"{self}:", *lines])


class ConfigError(DiagnosticsError):
    """The workspace files are wrong."""


class PlanError(DiagnosticsError):
    """The files are right, but cannot be planned against live."""


class ConnectError(JsplanError):
    """A connection could not be made, or another server than the expected one answered.

    `is_offline`: the server does not answer at the moment. Otherwise the settings are wrong, and
    waiting does not help. `is_refused`: it refused the credentials.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        is_offline: bool = False,
        is_refused: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.is_offline, self.is_refused = is_offline, is_refused


class ApiError(JsplanError):
    """A JetStream API request to one domain failed."""


class NoRespondersError(ApiError):
    """No responder for the API prefix: no such domain, or the leafnode link to it is down."""


class ApiTimeoutError(ApiError):
    """A responder exists but did not answer: a suspended peer, or a half-open link."""


class ConnectionLostError(ApiError):
    """The connection ended before the answer came; the request may or may not have arrived."""


#: The errors of a request to an offline domain.
OFFLINE_ERRORS = (NoRespondersError, ApiTimeoutError, ConnectionLostError)


class NotPermittedError(ApiError):
    """The server does not let this user publish the request; nothing was executed."""


class ServerRefusedError(ApiError):
    """The server answered with an error.

    `err_code` identifies it; `code` resembles an HTTP status and does not.
    """

    def __init__(
        self, message: str, *, code: int, err_code: int, description: str, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.err_code = err_code
        self.description = description

    @classmethod
    def of(cls, message: str, error: Mapping[str, Any]) -> Self:
        """Build the exception from the `error` of an answer; `message` says what was asked."""
        code, err_code = int(error.get("code", 0)), int(error.get("err_code", 0))
        return cls(
            message,
            code=code,
            err_code=err_code,
            description=str(error.get("description", "no description")),
        )


class StateError(JsplanError):
    """The state cannot be read, belongs to something else, or cannot be written."""


class StateLockedError(StateError):
    """Another process holds the lock of this state."""

    exit_code = ExitCode.LOCKED


class LeaseLostError(StateError):
    """The lock expired or was removed while this process worked: no more writes are allowed."""


class RefusedError(JsplanError):
    """Apply stopped before any change: a hazard, `prevent_destroy`, or `--adopt` is needed.

    `beside_plan` is the message for a terminal that shows the plan with each reason in full.
    """

    exit_code = ExitCode.REFUSED

    def __init__(self, message: str, *, hint: str | None = None, beside_plan: str = "") -> None:
        super().__init__(message, hint=hint)
        self.beside_plan = conceal(beside_plan)


class NotApprovedError(JsplanError):
    """The plan was shown and not approved, or there was no terminal to ask on."""


class StalePlanError(JsplanError):
    """Something that the saved plan touches has changed, or the plan was applied before."""

    exit_code = ExitCode.STALE


class PartialApplyError(JsplanError):
    """Some steps are done, some are not; state says exactly which."""

    exit_code = ExitCode.PARTIAL


class UsageError(JsplanError):
    """The command line is wrong."""

    exit_code = ExitCode.USAGE


class InterruptedByUser(JsplanError):
    """Ctrl-C: the running calls finished, state was saved, the lock was released."""

    exit_code = ExitCode.INTERRUPTED


class NotAvailableError(JsplanError):
    """A requirement (Java, a library) is not installed, or this release does not support it."""


class SandboxError(JsplanError):
    """An embedded nats-server could not be found or started."""


def combine_exit_codes(codes: Sequence[ExitCode]) -> ExitCode:
    """Return the exit code of a command to which several apply."""
    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)
