"""The state document, its backends and its locks. See state/SPEC.md for the format."""

from __future__ import annotations

from jsplan.config.model import Workspace
from jsplan.errors import NotAvailableError
from jsplan.state.document import Entry, State
from jsplan.state.local import LocalBackend
from jsplan.state.locks import LockInfo


def backend_of(workspace: Workspace) -> LocalBackend:
    """The backend that the workspace names. Raises NotAvailableError for one this release does not have."""
    if workspace.backend.kind != "local" or workspace.backend.path is None:
        raise NotAvailableError("the kv backend is not in this release yet", hint="Use backend: {local: {path: …}}.")
    return LocalBackend(workspace.backend.path, workspace.name, workspace.environment)


__all__ = ["Entry", "LocalBackend", "LockInfo", "State", "backend_of"]
