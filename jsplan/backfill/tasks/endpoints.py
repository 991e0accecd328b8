"""Endpoints of tasks: connections by name, with settings from the environment.

A task receives the name of a connection, and the connection of the files, in which secrets are
still `${env.NAME}`: nothing else appears in Spark plans, event logs or the UI. On this machine the
settings are in the environment of tasks; those on other machines read NAME from their own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from jsplan.backfill.protocol import RawConnection, read
from jsplan.backfill.protocol.reader import ReadRequest
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
            return RawConnection(resolve_declared(self.connection, json.loads(self.declared)))
        raise ConnectError(
            f"connection {self.connection}: {variable_name(self.connection)} is not set "
            "in the environment of this process",
            hint="Secrets in the files are not sent to other machines. "
            "Write ${env.NAME} in the files, and set NAME on each machine.",
        )

    def read(
        self, stream: str, first: int, last: int, *, headers_only: bool = False
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the messages of a range of a stream. Raises as `protocol.read`."""
        request = ReadRequest(self.api_prefix, stream, first, last, headers_only=headers_only)
        return read(self.open, request)


def resolve_declared(key: str, declared: Mapping[str, Any]) -> ConnectionSettings:
    """Resolve a connection as the files have it, in the environment of this process.

    Raises ConnectError.
    """
    tls = {name: _fill_references(key, value) for name, value in declared.get("tls", {}).items()}
    settings: dict[str, Any] = {
        name: _fill_references(key, value) for name, value in declared.items() if name != "tls"
    }
    for fields, paths in ((settings, ("creds", "nkey")), (tls, ("ca", "cert", "key"))):
        fields.update({name: expand_user(fields[name]) for name in paths if name in fields})
    if "timeout" in settings:
        settings["timeout"] = parse_duration(settings["timeout"])
    return resolve_settings(
        Connection(key, **settings, tls=Tls(**tls) if tls else None), os.environ
    )


def _fill_references(key: str, value: Any) -> Any:
    def from_environment(match: re.Match[str]) -> str:
        if match[1] is None:  # an escape
            return "${"
        resolved = os.environ.get(match[1])
        if resolved is None:
            raise ConnectError(
                f"connection {key}: the environment variable {match[1]} is not set in this process",
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
