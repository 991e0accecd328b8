"""Output and report file of the scheduled drift job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.cli.views import drift_view
from jsplan.documents.drift_causes import FAILING_CAUSES

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.cli.output import Output
    from jsplan.documents.alert import AlertEvent
    from jsplan.documents.drift import Drift
    from jsplan.documents.plan import ResourceChange

_FORMAT_BY_SUFFIX = {".html": "html", ".htm": "html", ".md": "markdown", ".xml": "junit"}


class AlertPrinter:
    """A printer of notifications on stdout: a line each, or a JSON document per line."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def notice(self, notice: AlertEvent) -> None:
        """Print one notification."""
        from jsplan.documents.base import dumps
        from jsplan.render.escape import safe

        if self._output.settings.json:
            self._output.line(dumps(notice.to_json(), pretty=False).decode())
        else:
            self._output.line(f"{notice.timestamp} {notice.event}: {safe(notice.text)}")

    def report(self, drift: Drift, path: Path) -> bytes:
        """Render the report in the format of the file's extension."""
        if path.suffix == ".json":
            from jsplan.render.json import dumps

            return dumps(drift.to_json()).encode()
        if path.suffix in _FORMAT_BY_SUFFIX:
            return drift_view(drift, _FORMAT_BY_SUFFIX[path.suffix], FAILING_CAUSES).encode()
        return _render_text(drift)


def _render_text(drift: Drift) -> bytes:
    from io import StringIO

    from rich.console import Console

    from jsplan.cli.output import UNLIMITED_WIDTH
    from jsplan.render import drift_text

    stream = StringIO()
    drift_text.render(
        drift,
        Console(file=stream, width=UNLIMITED_WIDTH, force_terminal=False, color_system=None),
        verbose=True,
    )
    return stream.getvalue().encode("utf-8", "backslashreplace")


def describe_changes(resource: ResourceChange) -> tuple[str, ...]:
    """Return the changed fields of a resource as text for people."""
    from jsplan.render.drift_rows import details

    return details(resource)
