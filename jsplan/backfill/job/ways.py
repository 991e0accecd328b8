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

from jsplan.backfill.wire import Wire
from jsplan.config.model import Connection, Tls
from jsplan.disk import expanded
from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import Target, resolve
from jsplan.units import parse_duration

_PREFIX: Final = "JSPLAN_ENDPOINT_"
_REFERENCE: Final = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
#: Connections as the files have them, as JSON, by key: those that tasks on other machines need.
_DESCRIBED: Final[dict[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Way:
    """One JetStream as a task reaches it: over which connection (its key), under which API prefix. `described` is what `describe` was told
    of the connection.
    """

    connection: str
    api_prefix: str
    described: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "described", self.described or _DESCRIBED.get(self.connection, ""))

    def open(self) -> Wire:
        """Connect. Raises ConnectError."""
        said = os.environ.get(variable(self.connection))
        if said is not None:
            return Wire(Target(**json.loads(said)))
        if self.described:
            return Wire(_filled(self.connection, json.loads(self.described)))
        raise ConnectError(
            f"connection {self.connection}: {variable(self.connection)} is not in the environment of this process",
            hint="A secret that stands in the files does not travel to other machines: write ${env.NAME} there, and set NAME on each.",
        )


def _filled(key: str, said: dict[str, Any]) -> Target:
    """A described connection with what the environment of this process adds. Raises ConnectError."""
    tls = {name: _text(key, value) for name, value in said.get("tls", {}).items()}
    texts = {name: _text(key, value) for name, value in said.items() if name != "tls"}
    timeout = parse_duration(texts.pop("timeout")) if "timeout" in texts else None
    files = {name: expanded(texts.pop(name)) for name in ("creds", "nkey") if name in texts}
    paths = {name: expanded(tls[name]) for name in ("ca", "cert", "key") if name in tls}
    settings: dict[str, Any] = texts | files | {"tls": Tls(**paths, handshake_first=bool(tls.get("handshake_first"))) if tls else None}
    return resolve(Connection(key, **settings, timeout=timeout), os.environ)


def _text(key: str, value: Any) -> Any:
    def from_environment(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConnectError(
                f"connection {key}: the environment variable {match[1]} is not set where the task runs", hint="Set it for every worker."
            )
        return found

    return _REFERENCE.sub(from_environment, value) if isinstance(value, str) else value


def variable(connection: str) -> str:
    """The name of the environment variable that has a connection's settings."""
    return _PREFIX + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in connection)


def describe(key: str, said: dict[str, Any]) -> None:
    """Let ways over a connection that are made from now on say what the files do of it, without its secrets."""
    _DESCRIBED[key] = json.dumps(said)


def export(target: Target) -> None:
    """Put a connection's settings where tasks that are started from now on find them: only this process's children do."""
    os.environ[variable(target.key)] = json.dumps(asdict(target))
