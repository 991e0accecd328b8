"""Conversion of the end of a command into a message and an exit code."""

from __future__ import annotations

import atexit
import errno
import os
import re
import signal
import sys
import threading
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import click

from jsplan.errors import DiagnosticsError, ExitCode, JsplanError, RefusedError
from jsplan.secrets import conceal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jsplan.cli.settings import Settings

#: A full disk or quota is not a bug of jsplan, wherever it appears.
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def run_to_exit_code(run: Callable[[], object], settings: Settings, args: Sequence[str]) -> int:
    """Run a command, report what it raised, and return the exit code.

    Raises only the SystemExit of shell completion.
    """
    try:
        code = _run_guarded(run, settings, args)
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    return _flush_output(code)


def end_process(code: int) -> NoReturn:
    """End the process with this exit code; the output is flushed.

    Python would first free every object, which takes a tenth of the time of a large plan and a
    fifth of that of a small one. What it does before that is done: threads end, and the functions
    run that were registered for the end. A second Ctrl-C while an interrupted program ends is
    ignored: Python would die by the signal.
    """
    if code == int(ExitCode.INTERRUPTED):
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other name
    atexit._run_exitfuncs()  # noqa: SLF001 - as above
    _flush_output(code)
    os._exit(code)


def _run_guarded(run: Callable[[], object], settings: Settings, args: Sequence[str]) -> int:
    try:
        returned = run()
        return int(returned) if isinstance(returned, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, click.Abort):
        _write_stderr("Interrupted.")
        return int(ExitCode.INTERRUPTED)
    except click.UsageError as error:
        return _report_usage_error(error, settings, args)
    except click.ClickException as error:
        return _report(JsplanError(error.format_message()), settings)
    except JsplanError as error:
        return _report(error, settings)
    except BrokenPipeError:
        return int(ExitCode.ERROR)
    except OSError as error:
        if error.errno == errno.ENOENT and not _has_folder():
            return _report(
                JsplanError(
                    "the current folder does not exist any more", hint="Go to a folder that exists."
                ),
                settings,
            )
        if error.errno in _DISK_FULL_ERRORS:
            return _report_disk_full(error, settings)
        return _report_bug(error, settings)
    except Exception as error:  # noqa: BLE001 - the last place before the user
        return _report_bug(error, settings)


def _report_usage_error(error: click.UsageError, settings: Settings, args: Sequence[str]) -> int:
    from jsplan.errors import UsageError

    path = error.ctx.command_path if error.ctx else "jsplan"
    if wants_json(args):
        settings.format = "json"
    return _report(UsageError(_usage_message(error), hint=f"See: {path} --help"), settings)


def _usage_message(error: click.UsageError) -> str:
    """Return click's message; an unknown option gets one suggestion in the words of jsplan."""
    from jsplan.diagnostics import did_you_mean

    if isinstance(error, click.NoSuchOption):
        known = (
            [name for param in error.ctx.command.params for name in param.opts] if error.ctx else []
        )
        return f'There is no option "{error.option_name}".{did_you_mean(error.option_name, known)}'
    return error.format_message()


def wants_json(args: Sequence[str]) -> bool:
    """Return True if a command line that could not be parsed asked for JSON."""
    return "--json" in args or "--format=json" in args or ("--format", "json") in pairwise(args)


def _has_folder() -> bool:
    """Return True if the current folder exists; it may have been deleted or replaced."""
    try:
        os.getcwd()  # noqa: PTH109 - what pathlib asks, without its object
    except OSError:
        return False
    return True


def _report_disk_full(error: OSError, settings: Settings) -> int:
    where = f": {error.filename}" if error.filename else ""
    return _report(
        JsplanError(
            f"cannot write{where}: {error.strerror}", hint="Free some space, then run it again."
        ),
        settings,
    )


def _report_bug(error: Exception, settings: Settings) -> int:
    if is_debugging(settings):
        import traceback

        _write_stderr("".join(traceback.format_exception(error)).rstrip())
    name = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "Please report it" + (
        "." if is_debugging(settings) else "; -v prints where it happened."
    )
    return _report(JsplanError(f"this is a bug in jsplan: {name}", hint=hint), settings)


def is_debugging(settings: Settings) -> bool:
    """Return True if tracebacks are wanted."""
    return bool(settings.verbose or os.environ.get("JSPLAN_DEBUG"))


def _report(error: JsplanError, settings: Settings) -> int:
    """Print to stderr; with JSON also print a document to stdout and to --json-into."""
    from jsplan.cli.output import Output

    output = Output(settings)
    document = error_document(error)
    for write in (output.write_json if settings.json else None, output.json_file):
        with suppress(JsplanError):  # the first error matters more than that it cannot be written
            if write is not None:
                write(document)
    from jsplan.render import diagnostics_text

    diagnostics = error.diagnostics if isinstance(error, DiagnosticsError) else ()
    diagnostics_text.render(diagnostics, output.err)
    message = error.beside_plan if isinstance(error, RefusedError) else ""
    message = message or str(error)
    if message not in {
        said for d in diagnostics for said in (d.summary, f"{d.address} {d.summary}")
    }:
        diagnostics_text.render_error(scrub(message), scrub(error.hint or ""), output.err)
    diagnostics_text.render_explain(diagnostics, output.err)
    return int(error.exit_code)


def error_document(error: JsplanError) -> dict[str, Any]:
    """Return what `--format json` prints when there is no result."""
    from msgspec import to_builtins

    diagnostics = error.diagnostics if isinstance(error, DiagnosticsError) else ()
    return {
        "format_version": "1.0",
        "kind": "error",
        "exit_code": int(error.exit_code),
        "error": {
            "type": type(error).__name__,
            "message": scrub(str(error)),
            "hint": scrub(error.hint) if error.hint else None,
        },
        "diagnostics": to_builtins([*diagnostics]),
    }


def scrub(text: str) -> str:
    """Remove credentials of URLs and values of `${env.X}` from the text."""
    return _USERINFO.sub("***", conceal(text))


def _write_stderr(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{scrub(text)}\n")


def _flush_output(code: int) -> int:
    """Flush now, so that a closed pipe causes no traceback when the interpreter ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _redirect_to_null(stream)
    return code


def _redirect_to_null(stream: Any) -> None:
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
