"""How a task connects. What travels to it is a name; the settings behind the name are in its environment, where no plan of Spark, no
UI and no job file shows them. To other machines travels what the files say of the connection, in which secrets are still `${env.NAME}`:
they take NAME from their own environment.
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

_VARIABLE_PREFIX: Final = "JSPLAN_ENDPOINT_"
_REFERENCE: Final = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
#: Connections as the files have them, as JSON, by key: those that tasks on other machines need.
_DECLARED: Final[dict[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One JetStream as a task reaches it: over which connection (its key), under which API prefix. `declared` is what `declare_connection` was told
    of the connection.
    """

    connection: str
    api_prefix: str
    declared: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "declared", self.declared or _DECLARED.get(self.connection, ""))

    def open(self) -> RawConnection:
        """Connect. Raises ConnectError."""
        said = os.environ.get(variable_name(self.connection))
        if said is not None:
            return RawConnection(ConnectionSettings(**json.loads(said)))
        if self.declared:
            return RawConnection(_resolve_settings(self.connection, json.loads(self.declared)))
        raise ConnectError(
            f"connection {self.connection}: {variable_name(self.connection)} is not in the environment of this process",
            hint="A secret that stands in the files does not travel to other machines: write ${env.NAME} there, and set NAME on each.",
        )


def _resolve_settings(key: str, said: dict[str, Any]) -> ConnectionSettings:
    """A described connection with what the environment of this process adds. Raises ConnectError."""
    tls = {name: _fill_references(key, value) for name, value in said.get("tls", {}).items()}
    texts = {name: _fill_references(key, value) for name, value in said.items() if name != "tls"}
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
        found = os.environ.get(match[1])
        if found is None:
            raise ConnectError(
                f"connection {key}: the environment variable {match[1]} is not set where the task runs",
                hint="Set it for every worker.",
            )
        return found

    return _REFERENCE.sub(from_environment, value) if isinstance(value, str) else value


def variable_name(connection: str) -> str:
    """The name of the environment variable that has a connection's settings."""
    return _VARIABLE_PREFIX + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in connection)


def declare_connection(key: str, said: dict[str, Any]) -> None:
    """Let ways over a connection that are made from now on say what the files do of it, without its secrets."""
    _DECLARED[key] = json.dumps(said)


def export_connection(target: ConnectionSettings) -> None:
    """Put a connection's settings where tasks that are started from now on find them: only this process's children do."""
    os.environ[variable_name(target.key)] = json.dumps(asdict(target))
