"""fmt: the YAML files of a workspace in one layout, with the same values and comments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from jsplan.config.files import WorkspaceFiles
from jsplan.config.findings import Findings
from jsplan.config.layout import Layout, lay_out
from jsplan.config.read import read_bytes
from jsplan.disk import replace_file
from jsplan.errors import JsplanError


class FormattedFile(Struct, frozen=True):
    """A file before and after. A reason in `kept` says why the file stays unchanged."""

    path: Path
    shown: str
    before: str
    after: str
    kept: str

    @property
    def changed(self) -> bool:
        """Return True if the layout differs."""
        return self.before != self.after


def fmt(root: Path, paths: Sequence[Path], *, write: bool) -> list[FormattedFile]:
    """Format `paths`, or else all files of the workspace in `root`, and write what changed.

    Nothing is written if a file cannot be read. Raises ConfigError and JsplanError.
    """
    findings = Findings()
    files = WorkspaceFiles(root.absolute(), findings)
    wanted = [path.absolute() for path in paths] or files.list_files()
    findings.raise_if_failed()
    formatted = [_format_file(files, path, findings) for path in dict.fromkeys(wanted)]
    findings.raise_if_failed()
    found = [file for file in formatted if file is not None]
    for file in found:
        if write and file.changed:
            _write(file.path, file.after)
    return found


def _format_file(files: WorkspaceFiles, path: Path, findings: Findings) -> FormattedFile | None:
    """Return the file in its layout, or None after a finding."""
    source = files.source_of(path)
    data = read_bytes(source, findings)
    if data is None:
        return None
    if path.suffix == ".json":
        text = data.decode("utf-8", "replace")
        return FormattedFile(path, source.shown, text, text, "it is JSON")
    layout: Layout | None = lay_out(source, data, findings)
    if layout is None:
        return None
    before = layout.text if layout.kept else data.decode()
    return FormattedFile(path, source.shown, before, layout.text, layout.kept)


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path.resolve(), text.encode(), private=False)
    except OSError as error:
        raise JsplanError(f"cannot write {path}: {error.strerror}") from None
