"""The severity of a mirror or source that does not follow its origin."""

from __future__ import annotations

from typing import Any, Final

from jsplan.documents.plan_types import Severity

#: First words of causes that lose messages; the others only delay them.
_LOSING_CAUSES: Final = ("origin re-created", "origin went back", "draining a workqueue")


def with_severity(flow: dict[str, Any]) -> dict[str, Any]:
    """Return an element of `replication`, with a severity unless it is healthy."""
    if flow["healthy"] is not False:
        return flow
    severity: Severity = (
        "destructive" if str(flow.get("cause") or "").startswith(_LOSING_CAUSES) else "functional"
    )
    return flow | {"severity": severity}
