"""Output of a command: the result on stdout, as text or JSON; all else on stderr."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from jsplan.disk import is_folder
from jsplan.errors import JsplanError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from rich.console import Console

    from jsplan.cli.settings import Settings
    from jsplan.render.progress import Progress

#: Wide enough that nothing is cut or wrapped where there is no terminal.
UNLIMITED_WIDTH = 1_000_000


class TolerantStream:
    """A text stream without errors for a closed reader, so `| head` keeps the exit code.

    Other failures, such as a full disk, raise JsplanError where the result would be lost (stdout).
    On stderr they are silent too.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                coding = self._stream.encoding or "ascii"
                self._stream.write(text.encode(coding, "backslashreplace").decode(coding))
            except OSError as error:
                self._stop(error)
        return len(text)

    def flush(self) -> None:
        if not self._gone:
            try:
                self._stream.flush()
            except OSError as error:
                self._stop(error)

    def _stop(self, error: OSError) -> None:
        self._gone = True
        if self._stream is sys.stdout and not isinstance(error, BrokenPipeError):
            raise JsplanError(
                f"cannot write to standard output: {error.strerror or error}",
                hint="Free some space, or redirect the output elsewhere.",
            ) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def wants_color(stream: TextIO, no_color: bool) -> bool:
    """Choose colours: `--no-color` and NO_COLOR, then FORCE_COLOR, then the kind of stream."""
    if no_color or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0", "false"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _console(stream: TextIO, no_color: bool) -> Console:
    from rich.console import Console

    terminal = stream.isatty()
    color = wants_color(stream, no_color)
    return Console(
        file=TolerantStream(stream),  # type: ignore[arg-type]
        force_terminal=terminal or color,
        color_system="standard" if color else None,
        width=None if terminal else UNLIMITED_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


class Output:
    """The output of one command."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def out(self) -> Console:
        """The console of stdout."""
        return _console(sys.stdout, self.settings.no_color)

    @cached_property
    def err(self) -> Console:
        """The console of stderr."""
        return _console(sys.stderr, self.settings.no_color)

    @cached_property
    def progress(self) -> Progress:
        """The observer that reports progress on stderr."""
        from jsplan.render import progress

        if self.settings.log_format == "json":
            return progress.JsonProgress(sys.stderr)
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from jsplan.render.progress_live import LiveProgress

            return LiveProgress(self.err)
        return progress.PlainProgress(sys.stderr)

    def check_options(self, formats: Collection[str] = ()) -> None:
        """Check the output options before anything is done.

        `formats` are those that the command makes besides text and json. Raises UsageError for a
        format that this command does not make, JsplanError when the folder of `--json-into` does
        not exist.
        """
        if self.settings.json_into and not is_folder(self.settings.json_into.parent):
            raise JsplanError(
                f"cannot write {self.settings.json_into}: there is no such folder",
                hint="Make the folder, or give another --json-into.",
            )
        if self.settings.format not in ("text", "json", *formats):
            raise UsageError(
                f"this command has no --format {self.settings.format}",
                hint=f"Use --format {' or --format '.join(('text', 'json', *formats))}.",
            )

    def result(
        self,
        document: Callable[[], dict[str, Any]],
        text: Callable[[Console], None],
        *,
        plain: str | None = None,
        views: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        """Print the result of a command once, in the requested format.

        `plain` is the whole text if it is short: then rich is not loaded without a terminal.
        `views` are other formats.
        """
        self.close()
        made = document() if self.settings.json or self.settings.json_into else {}
        if self.settings.json:
            self.write_json(made)
        elif views is not None and self.settings.format in views:
            self.line(views[self.settings.format]().rstrip("\n"))
        elif plain is not None and not wants_color(sys.stdout, self.settings.no_color):
            self.line(plain)
        else:
            text(self.out)
        self.json_file(made)

    def result_lines(self, document: Callable[[], dict[str, Any]], lines: str) -> None:
        """Print a result without styles; an empty text prints nothing."""
        self.result(
            document,
            lambda console: console.print(lines, soft_wrap=True) if lines else None,
            plain=lines or None,
        )

    def write_json(self, document: dict[str, Any]) -> None:
        """Write one JSON document to stdout."""
        from jsplan.render.json import dumps

        self.line(dumps(document).rstrip("\n"))

    def json_file(self, document: dict[str, Any]) -> None:
        """Write the document to the file of `--json-into`, if there is one. Raise JsplanError."""
        if path := self.settings.json_into:
            from jsplan.render.json import dumps

            write_file(path, dumps(document).encode())

    def line(self, text: str) -> None:
        """Print one line to stdout."""
        stream = TolerantStream(sys.stdout)
        stream.write(f"{text}\n")
        stream.flush()

    def close(self) -> None:
        """Clear the moving part of the screen, for a result and however a command ends."""
        if "progress" in self.__dict__:
            self.progress.stop()

    def note(self, text: str) -> None:
        """Print one line for people to stderr."""
        self.progress.stop()
        stream = TolerantStream(sys.stderr)
        stream.write(f"{text}\n")
        stream.flush()


def write_file(path: Path, content: bytes) -> None:
    """Write a requested file, readable by its owner; raise JsplanError with its name."""
    from jsplan.disk import write_private

    try:
        write_private(path, content)
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None
