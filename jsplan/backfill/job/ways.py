"""How a task connects. What travels to it is a name; the settings behind the name are in its environment, where no plan of Spark, no
UI and no job file shows them.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Final

from jsplan.backfill.wire import Wire
from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import Target

_PREFIX: Final = "JSPLAN_WAY_"


@dataclass(frozen=True, slots=True)
class Way:
    """One JetStream as a task reaches it: over which connection (its key), under which API prefix."""

    connection: str
    api_prefix: str

    def open(self) -> Wire:
        """Connect. Raises ConnectError."""
        said = os.environ.get(variable(self.connection))
        if said is None:
            raise ConnectError(f"connection {self.connection}: {variable(self.connection)} is not in the environment of this process")
        return Wire(Target(**json.loads(said)))


def variable(connection: str) -> str:
    """The name of the environment variable that has a connection's settings."""
    return _PREFIX + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in connection)


def export(target: Target) -> None:
    """Put a connection's settings where tasks that are started from now on find them: only this process's children do."""
    os.environ[variable(target.key)] = json.dumps(asdict(target))
