"""Endpoints of tasks: connections by name, with settings from the environment.

A task receives the name of a connection, and the connection of the files, in which secrets are
still `${env.NAME}`: nothing else appears in Spark plans, event logs or the UI. On this machine the
settings are in the environment of tasks; those on other machines read NAME from their own.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from jsplan.backfill.protocol import RawConnection
from jsplan.config.model import Connection, Tls
from jsplan.disk import expand_user
from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import ConnectionSettings, resolve_settings
from jsplan.units import parse_duration

#: The variables with the settings of connections begin with this.
VARIABLE_PREFIX: Final = "JSPLAN_ENDPOINT_"
_REFERENCE: Final = re.compile(r"\$\$\{|\$\{env\.([^{}]*)\}")
#: Declared connections as JSON by key.
_DECLARED: Final[dict[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One JetStream as a task reaches it: a connection (its key) and an API prefix.

    `declared` is the connection as `export_connection` received it.
    """

    connection: str
    api_prefix: str
    declared: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "declared", self.declared or _DECLARED.get(self.connection, ""))

    def open(self) -> RawConnection:
        """Connect. Raises ConnectError."""
        exported = os.environ.get(variable_name(self.connection))
        if exported is not None:
            return RawConnection(ConnectionSettings(**json.loads(exported)))
        if self.declared:
            return RawConnection(_resolve_settings(self.connection, json.loads(self.declared)))
        raise ConnectError(
            f"connection {self.connection}: {variable_name(self.connection)} is not set "
            "in the environment of this process",
            hint="Secrets in the files are not sent to other machines. "
            "Write ${env.NAME} in the files, and set NAME on each machine.",
        )


def _resolve_settings(key: str, declared: dict[str, Any]) -> ConnectionSettings:
    """Resolve a declared connection in the environment of this process. Raises ConnectError."""
    tls = {name: _fill_references(key, value) for name, value in declared.get("tls", {}).items()}
    texts = {
        name: _fill_references(key, value) for name, value in declared.items() if name != "tls"
    }
    timeout = parse_duration(texts.pop("timeout")) if "timeout" in texts else None
    files = {name: expand_user(texts.pop(name)) for name in ("creds", "nkey") if name in texts}
    paths = {name: expand_user(tls[name]) for name in ("ca", "cert", "key") if name in tls}
    settings: dict[str, Any] = (
        texts
        | files
        | {"tls": Tls(**paths, handshake_first=bool(tls.get("handshake_first"))) if tls else None}
    )
    return resolve_settings(Connection(key, **settings, timeout=timeout), os.environ)


def _fill_references(key: str, value: Any) -> Any:
    def from_environment(match: re.Match[str]) -> str:
        if match[1] is None:  # an escape
            return "${"
        resolved = os.environ.get(match[1])
        if resolved is None:
            raise ConnectError(
                f"connection {key}: the environment variable {match[1]} is not set on the worker",
                hint="Set it for every worker.",
            )
        return resolved

    return _REFERENCE.sub(from_environment, value) if isinstance(value, str) else value


def variable_name(connection: str) -> str:
    """Return the environment variable that has the settings of a connection."""
    return VARIABLE_PREFIX + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in connection)


def export_connection(target: ConnectionSettings, declared: str = "") -> None:
    """Put the settings of a connection into the environment of later child processes.

    `declared` is that of the connection, for endpoints that are created from now on.
    """
    os.environ[variable_name(target.key)] = json.dumps(asdict(target))
    _DECLARED[target.key] = declared
