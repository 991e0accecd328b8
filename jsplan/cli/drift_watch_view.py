"""Output of the scheduled drift job."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsplan.cli.output import Output
    from jsplan.documents.alert import AlertEvent
    from jsplan.documents.plan import ResourceChange


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


def describe_changes(resource: ResourceChange) -> tuple[str, ...]:
    """Return the changed fields of a resource as text for people."""
    from jsplan.render.drift_rows import details

    return details(resource)
