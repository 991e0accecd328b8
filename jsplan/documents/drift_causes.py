"""The causes of drift, as `--fail-on` names them."""

from __future__ import annotations

from typing import Final

CAUSES: Final = ("changed", "missing", "replication", "threshold", "unmanaged")
#: Those that make the exit code 2, unless the user says otherwise.
FAILING_CAUSES: Final = tuple(cause for cause in CAUSES if cause != "unmanaged")
