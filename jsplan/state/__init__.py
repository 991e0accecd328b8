"""The state document, its backends and its locks. See state/SPEC.md for the format."""

from __future__ import annotations

from collections.abc import Mapping

from jsplan.config.model import Workspace
from jsplan.documents.lock import LockInfo
from jsplan.state.backend import Backend, Journal
from jsplan.state.document import Entry, State
from jsplan.state.local import LocalBackend


def backend_of(workspace: Workspace, environ: Mapping[str, str]) -> Backend:
    """Build the backend that the workspace names. Does not connect or read."""
    backend = workspace.backend
    if backend.path is not None:
        return LocalBackend(backend.path, workspace.name, workspace.environment)
    assert backend.domain is not None
    assert backend.bucket is not None
    domain = workspace.domains[backend.domain]
    connection = workspace.connections[domain.connection]
    of = (workspace.name, workspace.environment)
    from jsplan.state.kv import KvBackend  # noqa: PLC0415 - most states are in files

    return KvBackend.open_bucket(
        backend.bucket, domain, connection, environ, of=of, lease=backend.lock_ttl
    )


__all__ = [
    "Backend",
    "Entry",
    "Journal",
    "LocalBackend",
    "LockInfo",
    "State",
    "backend_of",
]
