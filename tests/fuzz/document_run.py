"""The run of one document: a folder, jsplan as the command line runs it, and its output."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from msgspec import to_builtins

from jsplan.errors import DiagnosticsError, ExitCode, JsplanError
from tests.fuzz import hostile_values
from tests.fuzz.documents import Document
from tests.support.process import ProcessResult, run_here

#: Contents that stand for another kind of file.
SYMLINK, PIPE, FOLDER = b"!symlink ", b"!pipe", b"!folder"
_CODES: Final = {int(code) for code in ExitCode}
#: Characters that turn, hide or move text. A view shows an escape instead.
_HIDDEN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
_ASKED: Final = re.compile(rb"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
#: The same in a field that is a secret.
_AS_SECRET: Final = re.compile(
    rb"""["']?(?:password|token|Authorization)["']?: ["']?\$\{env\.[A-Za-z_][A-Za-z0-9_]*\}"""
    rb"""|["']?url["']?: ["']?\$\{env\.(?:FUZZ_URL|[A-Z_]*HOOK)\}"""
)
CREDENTIALS: Final = (
    f"-----BEGIN NATS USER JWT-----\n{hostile_values.IN_CREDENTIALS}JWT\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n"
    f"SU{hostile_values.IN_CREDENTIALS}\n------END USER NKEY SEED------\n"
)


class Violation(Exception):
    """The document made jsplan do something forbidden."""


@dataclass(slots=True)
class DocumentRun:
    """One document in its folder.

    `base` has `ws` (the workspace), `home`, `tmp`, and `outside`, where no file may be written.
    """

    base: Path
    document: Document
    said: list[tuple[str, str]] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    #: Refusals, which a correct document does not get.
    refusals: list[str] = field(default_factory=list)

    @property
    def ws(self) -> Path:
        """The folder of the workspace."""
        return self.base / "ws"

    @property
    def tmp(self) -> Path:
        """The folder for temporary files."""
        return self.base / "tmp"

    def part(self, name: str, default: bytes = b"") -> bytes:
        """Return a part, with placeholders replaced by paths."""
        return self.document.get(name, default).replace(
            hostile_values.BESIDE.encode(), str(self.base / "outside").encode()
        )

    def command(self) -> list[str]:
        """Return the words of the part `$`."""
        return self.part("$").decode().split()

    def named(self) -> tuple[Path, ...]:
        """Return the files that the command line names."""
        words = self.command() if "$" in self.document else []
        return tuple(self.ws / word for word in words if word in self.document)

    def prepare(self) -> None:
        """Create the folders, the files of the document and the environment."""
        for name in ("ws", "home/.config/nats/context", "tmp", "outside"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        (self.base / "outside/secret.txt").write_text(f"{hostile_values.OUTSIDE}\n", "utf-8")
        for name in self.document:
            if not name.startswith("$"):
                self._put(
                    self.base / name if name.startswith("home/") else self.ws / name,
                    self.part(name),
                )
        os.environ.clear()
        os.environ.update(
            {
                "HOME": str(self.base / "home"),
                "PATH": "/usr/bin:/bin",
                "TMPDIR": str(self.tmp),
                "JSPLAN_DEBUG": "1",
                "NO_COLOR": "1",
                "FUZZ_SECRET": hostile_values.IN_ENVIRONMENT,
                "FUZZ_CREDS": CREDENTIALS,
                "FUZZ_URL": f"nats://u:{hostile_values.IN_ENVIRONMENT}@127.0.0.1:1",
            }
        )
        variables = {name for content in self.document.values() for name in _ASKED.findall(content)}
        others = (name.decode() for name in variables if not name.startswith((b"FUZZ_", b"NONE")))
        os.environ.update(
            {
                name: f"https://h/{hostile_values.IN_ENVIRONMENT}"
                if name.endswith("HOOK")
                else hostile_values.IN_ENVIRONMENT
                for name in others
            }
        )
        tempfile.tempdir = str(self.tmp)
        os.chdir(self.ws)

    @staticmethod
    def _put(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError, ValueError):
            if content.startswith(SYMLINK):
                path.symlink_to(content.removeprefix(SYMLINK).decode())
            elif content == PIPE:
                os.mkfifo(path)
            elif content == FOLDER:
                path.mkdir()
            else:
                path.write_bytes(content)

    def clear(self) -> None:
        """Remove all files."""
        os.chdir(self.base.parent)
        for child in self.base.iterdir() if self.base.is_dir() else ():
            shutil.rmtree(child, ignore_errors=True)

    # --- Run

    def jsplan(self, *args: str) -> ProcessResult:
        """Run one command line and check its output."""
        result = run_here(*args)
        self._check_ended(result, args)
        if result.code in (1, 64):
            self.refusals.append(f"{' '.join(args)}: {result.code} {result.err[-400:]}")
        form = next((after for word, after in pairwise(args) if word == "--format"), "text")
        self.check_output(result.err, "text")
        self.check_output(result.out, form if result.code in (0, 2) or form == "json" else "text")
        return result

    def check_refusal(self, error: JsplanError) -> None:
        """Check the text of an error that a call other than a command raised on purpose."""
        self.refusals.append(error.full_text)
        self.check_output(error.full_text, "raw")
        for diagnostic in error.diagnostics if isinstance(error, DiagnosticsError) else ():
            self.check_output(json.dumps(to_builtins(diagnostic)), "raw")

    def _check_ended(self, result: ProcessResult, args: Sequence[str]) -> None:
        shown = result.err + result.out
        if "this is a bug in jsplan" in shown or "Traceback (most recent call last)" in shown:
            raise Violation(f"jsplan {' '.join(args)} has a bug: {shown[-3000:]}")
        if result.code not in _CODES:
            raise Violation(f"exit code {result.code}", shown[-2000:])

    # --- Check the output

    def _environment_is_secret(self) -> bool:
        """Check whether a mutation moved no value of the environment to an ordinary field."""
        content = b"\n".join(self.document.values())
        return len(_ASKED.findall(content)) == len(_AS_SECRET.findall(content))

    def hide(self, *secrets: str) -> None:
        """Add texts of this document that must not be shown."""
        self.hidden += secrets

    def check_output(self, text: str, form: str) -> None:
        """Check the output, in the form that it has."""
        for secret in (
            *([hostile_values.IN_ENVIRONMENT] if self._environment_is_secret() else []),
            hostile_values.OUTSIDE,
            hostile_values.IN_CREDENTIALS,
            *self.hidden,
        ):
            if secret in text:
                at = text.index(secret)
                raise Violation(f"shows {secret}", text[max(0, at - 300) : at + 100])
        check = {
            "text": _check_text,
            "html": _check_html,
            "junit": _check_xml,
            "svg": _check_xml,
            "json": _check_json,
        }.get(form)
        if check is not None:
            check(text)


def _check_text(text: str) -> None:
    for character in dict.fromkeys(text):
        if unicodedata.category(character) in _HIDDEN and character != "\n":
            at = text.index(character)
            raise Violation(
                f"shows U+{ord(character):04X}"
                if ord(character) < 32
                else "shows an invisible character",
                ascii(text[max(0, at - 200) : at + 50]),
            )


class _Page(HTMLParser):
    """A parser that looks for marked names among tags and attributes."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if hostile_values.TAG in tag or any(hostile_values.TAG in name for name, _ in attrs):
            raise Violation("text becomes markup", f"<{tag} {attrs}>"[:500])


def _check_html(text: str) -> None:
    page = _Page()
    page.feed(text)
    page.close()


def _check_xml(text: str) -> None:
    try:
        ET.fromstring(text)  # noqa: S314 - written by jsplan
    except ET.ParseError as error:
        raise Violation("the XML is not well-formed", f"{error}\n{text[:1500]}") from None


def _check_json(text: str) -> None:
    def refuse(word: str) -> Any:
        raise ValueError(word)

    _check_text(text)
    if text.strip():
        try:
            json.loads(text, parse_constant=refuse)
        except ValueError as error:
            raise Violation("the JSON is not valid", f"{error}\n{text[:1500]}") from None
