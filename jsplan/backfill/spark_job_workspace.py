"""The workspace in a Spark job: what the backfill needs, and no secrets.

References `${env.X}` of the files stay references.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jsplan.backfill.tasks.endpoints import declare_connection
from jsplan.config import load as load_workspace
from jsplan.config.model import LoadOptions
from jsplan.errors import JsplanError, RefusedError
from jsplan.units import format_duration

if TYPE_CHECKING:
    from jsplan.config.model import (
        Backend,
        Backfill,
        BackfillSide,
        Connection,
        Domain,
        ImportRow,
        Workspace,
    )

#: Follows each kept reference: the files may have the same text escaped, which is no reference.
_MARK: Final = secrets.token_hex(8)
_REFERENCE: Final = re.compile(rf"\$\{{env\.[A-Za-z_][A-Za-z0-9_]*\}}{_MARK}")
_SIDE_FIELDS: Final = ("start_seq", "end_seq", "start_time", "end_time")
_ENTRY_FIELDS: Final = (
    "order",
    "strategy",
    "mode",
    "oversize",
    "rate",
    "where",
    "transform",
)


def keep_references(options: LoadOptions) -> LoadOptions:
    """Return options that read the files with each `${env.X}` kept as a reference."""
    resolved = ("JSPLAN_",)  # the environment of jsplan, and variables
    environ = {
        name: value if name.startswith(resolved) else f"${{env.{name}}}{_MARK}"
        for name, value in options.environ.items()
    }
    return dataclasses.replace(options, environ=environ)


def build_job_workspace(workspace: Workspace, entry: Backfill) -> dict[str, Any]:
    """Build the workspace file of a job from a workspace loaded with `keep_references`.

    Raises RefusedError for a secret in the files.
    """
    domains = {key: _format_domain(domain) for key, domain in workspace.domains.items()}
    connections = {
        key: format_connection(connection, workspace.root)
        for key, connection in workspace.connections.items()
    }
    found = {
        "jsplan": 1,
        "workspace": workspace.name,
        "connections": connections,
        "domains": domains,
        "backend": _format_backend(workspace.backend),
        "backfills": [_format_entry(entry)],
        "imports": [_format_import(row) for row in workspace.imports],
    }
    if workspace.environment:
        found["environments"] = {workspace.environment: {}}
    return {
        key: _escape_references(value, filled=key in ("connections", "backend"))
        for key, value in found.items()
        if value
    }


def _escape_references(value: Any, *, filled: bool) -> Any:
    """Escape `${` in texts; with `filled`, references to the environment stay references."""
    if isinstance(value, dict):
        return {key: _escape_references(item, filled=filled) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape_references(item, filled=filled) for item in value]
    if not isinstance(value, str):
        return value
    references = _REFERENCE.findall(value) if filled else []
    texts = _REFERENCE.split(value) if filled else [value]
    pieces = [text.replace(_MARK, "").replace("${", "$${") for text in texts]
    references = [reference.removesuffix(_MARK) for reference in references]
    return "".join(
        text for pair in itertools.zip_longest(pieces, references, fillvalue="") for text in pair
    )


def format_connection(connection: Connection, root: Path) -> dict[str, Any]:
    """Format a connection whose references are marked. Raises RefusedError for a plain secret."""
    for name in ("password", "token"):
        value = getattr(connection, name)
        if value is not None and not _REFERENCE.fullmatch(value):
            raise _build_secret_error(connection.key, f"`{name}`")
    if any("@" in _REFERENCE.sub("", part) for part in (connection.url or "").split(",")):
        raise _build_secret_error(connection.key, "`url`")
    tls = connection.tls
    found = {
        name: getattr(connection, name)
        for name in ("url", "context", "user", "password", "token", "inbox_prefix")
    }
    found |= {name: _format_path(getattr(connection, name), root) for name in ("creds", "nkey")}
    found["timeout"] = format_duration(connection.timeout) if connection.timeout else None
    if tls is not None:
        files = {name: _format_path(getattr(tls, name), root) for name in ("ca", "cert", "key")}
        found["tls"] = _drop_nulls(files | {"handshake_first": tls.handshake_first or None})
    return _drop_nulls(found)


def declare_connections(options: LoadOptions, master: str | None) -> None:
    """Declare connections for tasks on other machines; secrets come from the environment there.

    A connection with a secret in the files is not declared; those machines need its settings in
    their environment.
    """
    if master is None or master.startswith("local"):
        return
    workspace = load_workspace(keep_references(options))
    for key, connection in workspace.connections.items():
        try:
            declared = format_connection(connection, workspace.root)
            declare_connection(key, _escape_references(declared, filled=True))
        except RefusedError:
            continue


def _build_secret_error(key: str, field: str) -> RefusedError:
    return RefusedError(
        f"{field} of connection {key} is a secret in the files, and a job file must not have one",
        hint="Write ${env.NAME} there and set NAME where the job runs, or use `creds:` or "
        "`context:`: files of each machine.",
    )


def _format_path(path: Path | None, root: Path) -> str | None:
    """Format a path; one that begins with a reference is absolute after it is resolved."""
    if path is None:
        return None
    text = str(path)
    return text.removeprefix(f"{root}/") if text.startswith(f"{root}/${{env.") else text


def _format_domain(domain: Domain) -> dict[str, Any]:
    usual = f"$JS.{domain.js_domain}.API" if domain.js_domain else "$JS.API"
    found = {
        "connection": domain.connection,
        "api_prefix": domain.api_prefix if domain.api_prefix != usual else None,
        "labels": sorted(domain.labels),
        "same_as": domain.same_as,
    }
    named = (
        {} if domain.same_as or domain.js_domain == domain.key else {"js_domain": domain.js_domain}
    )
    return {key: value for key, value in found.items() if value} | named


def _format_import(row: ImportRow) -> dict[str, Any]:
    fields = {
        "from": row.from_domain,
        "into": row.into_domain,
        "api": row.api,
        "deliver": row.deliver,
        "consumers": list(row.consumers),
    }
    return {key: value for key, value in fields.items() if value}


def _format_backend(backend: Backend) -> dict[str, Any]:
    if backend.kind == "local":
        return {"local": {"path": str(backend.path)}}
    return {
        "kv": {
            "domain": backend.domain,
            "bucket": backend.bucket,
            "lock_ttl": format_duration(backend.lock_ttl),
        }
    }


def _format_entry(entry: Backfill) -> dict[str, Any]:
    fields = {name: getattr(entry, name) for name in _ENTRY_FIELDS}
    if entry.subject_transform is not None:
        fields["subject_transform"] = dict(
            zip(("src", "dest"), entry.subject_transform, strict=True)
        )
    return {
        "name": entry.name,
        "from": [_format_side(side) for side in entry.origins],
        "to": _format_side(entry.target),
    } | _drop_nulls(fields)


def _format_side(side: BackfillSide) -> dict[str, Any]:
    if side.parquet is not None:
        if not Path(side.parquet).is_absolute() and "://" not in side.parquet:
            raise JsplanError(
                f"{side.parquet} is relative to the workspace, which the machines of a cluster do "
                "not have",
                hint="Write the path under which every worker reaches the archive.",
            )
        return {"parquet": side.parquet}
    fields: Mapping[str, Any] = {name: getattr(side, name) for name in _SIDE_FIELDS}
    return {"domain": side.domain, "stream": side.stream} | _drop_nulls(
        {**fields, "filter_subjects": list(side.filters) or None}
    )


def _drop_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
