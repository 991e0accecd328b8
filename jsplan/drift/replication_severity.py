"""How grave it is that a mirror or source does not follow its origin. Whether it follows is found by `health`."""

from __future__ import annotations

from typing import Any, Final

from jsplan.documents.plan import Severity

#: First words of causes that lose messages; the others only keep a copy waiting.
_LOSING_CAUSES: Final = ("origin re-created", "draining a workqueue")


def with_severity(flow: dict[str, Any]) -> dict[str, Any]:
    """An element of `replication` with a severity where it is not healthy."""
    if flow["healthy"] is not False:
        return flow
    severity: Severity = (
        "destructive" if str(flow.get("cause") or "").startswith(_LOSING_CAUSES) else "functional"
    )
    return flow | {"severity": severity}
