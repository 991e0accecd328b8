"""The exception tree and the exit code of each class; what is printed is left to `cli`.

JsplanError                      1
├── ConfigError                  1   the files are wrong; carries every diagnostic, not only the first
├── PlanError                    1   the files are right but cannot be planned against what is live
├── ConnectError                 1   a connection could not be made, or answers as somebody else
├── ApiError                     1   a JetStream API request was refused or was not answered
│   ├── NoRespondersError        1   nobody listens: no such domain, or the link to it is down
│   ├── ApiTimeoutError          1   interest is there but no answer: frozen peer
│   ├── ConnectionLostError      1   the connection ended before the answer
│   ├── NotPermittedError        1   the user may not publish this request
│   └── ServerRefusedError       1   the server answered with an error (`err_code`)
├── StateError                   1   the state cannot be read, is foreign, or cannot be written
│   ├── StateLockedError         5   somebody else works on this state
│   └── LeaseLostError           1   the lock ran out or was taken away while we worked
├── RefusedError                 3   a hazard that is not allowed, prevent_destroy, --adopt needed
├── ConflictError                3   what a revert would undo was changed since; carries what differs
├── NotApprovedError             1   nobody said `yes`
├── StalePlanError               4   what the plan touches is no longer as it was when planned
├── PartialApplyError            6   applied in part; state says exactly how far
├── UsageError                  64   the command line is wrong
├── InterruptedByUser          130   Ctrl-C, after the calls under way were finished
├── NotAvailableError            1   what it takes is not installed, or not in this release
└── SandboxError                 1   an embedded nats-server could not be started
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

from jsplan.secrets import conceal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jsplan.diagnostics import Diagnostic


class ExitCode(IntEnum):
    """The one table of exit codes (contract, section 3)."""

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

    `str(error)` is one line that says what happened and where; `hint` says what to do about it. Neither shows what
    came from `${env.X}`.
    """

    exit_code: ExitCode = ExitCode.ERROR

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(conceal(message))
        self.hint = conceal(hint) if hint else hint

    @property
    def full_text(self) -> str:
        """What happened and what to do about it, for where both go into one text."""
        return f"{self}. {self.hint}" if self.hint else str(self)


class DiagnosticsError(JsplanError):
    """Carries all findings at once; `diagnostics` is sorted by file and line where it was found there."""

    def __init__(self, diagnostics: Sequence[Diagnostic], message: str | None = None) -> None:
        errors = [d for d in diagnostics if d.severity == "error"]
        super().__init__(message or f"{len(errors)} error{'s' if len(errors) != 1 else ''}")
        self.diagnostics = tuple(diagnostics)


class ConfigError(DiagnosticsError):
    """The workspace files are wrong."""


class PlanError(DiagnosticsError):
    """The files are right, but what they ask for cannot be planned against what is live."""


class ConnectError(JsplanError):
    """A connection could not be made, or the server behind it is not the one that was meant.

    `is_offline`: nobody answers there just now. Otherwise the settings are wrong, and waiting helps nobody.
    """

    def __init__(self, message: str, *, hint: str | None = None, is_offline: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_offline = is_offline


class ApiError(JsplanError):
    """A JetStream API request to one domain failed."""


class NoRespondersError(ApiError):
    """Nobody answers the API prefix: no such domain, or the leafnode link to it is down."""


class ApiTimeoutError(ApiError):
    """Interest is registered but no answer came: a frozen peer, or a half-dead link."""


class ConnectionLostError(ApiError):
    """The connection ended before the answer came; whether the request arrived is not known."""


#: What a domain that is offline ends a request with.
OFFLINE_ERRORS = (NoRespondersError, ApiTimeoutError, ConnectionLostError)


class NotPermittedError(ApiError):
    """The server does not let this user publish the request; nothing was carried out."""


class ServerRefusedError(ApiError):
    """The server answered with an error. `err_code` is the key; `code` resembles HTTP and is not."""

    def __init__(
        self, message: str, *, code: int, err_code: int, description: str, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.err_code = err_code
        self.description = description

    @classmethod
    def of(cls, message: str, error: Mapping[str, Any]) -> Self:
        """The `error` of an answer, under a message that says what was asked."""
        code, err_code = int(error.get("code", 0)), int(error.get("err_code", 0))
        return cls(
            message,
            code=code,
            err_code=err_code,
            description=str(error.get("description", "no description")),
        )


class StateError(JsplanError):
    """The state document cannot be read, belongs to something else, or cannot be written."""


class StateLockedError(StateError):
    """Somebody else holds the lock of this state."""

    exit_code = ExitCode.LOCKED


class LeaseLostError(StateError):
    """The lock ran out or was taken away while this process worked: nothing more may be written."""


class RefusedError(JsplanError):
    """Apply stops before anything is changed: a hazard nobody allowed, `prevent_destroy`, or `--adopt` needed."""

    exit_code = ExitCode.REFUSED


class ConflictError(DiagnosticsError):
    """What should be undone is no longer as it was left: undoing it would undo more than that."""

    exit_code = ExitCode.REFUSED


class NotApprovedError(JsplanError):
    """The plan was shown and not approved, or there was nobody to ask."""


class StalePlanError(JsplanError):
    """Something that the saved plan touches is no longer as it was, or it was applied before."""

    exit_code = ExitCode.STALE


class PartialApplyError(JsplanError):
    """Some steps are done, some are not; state says exactly which."""

    exit_code = ExitCode.PARTIAL


class UsageError(JsplanError):
    """The command line is wrong."""

    exit_code = ExitCode.USAGE


class InterruptedByUser(JsplanError):
    """Ctrl-C: the calls under way were finished, state was saved, the lock was released."""

    exit_code = ExitCode.INTERRUPTED


class NotAvailableError(JsplanError):
    """What it takes is not installed (Java, a library), or this release does not do it."""


class SandboxError(JsplanError):
    """An embedded nats-server could not be found or started."""


def combine_exit_codes(codes: Sequence[ExitCode]) -> ExitCode:
    """The exit code of a command to which several apply."""
    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)
