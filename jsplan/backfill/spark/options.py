"""Options of the format `jetstream`: connection, range to read, target to write.

The driver and the executors read them. `${env.NAME}` is resolved in the environment of the
connecting process, so no password appears in Spark plans or the UI. Paths of
credentials and TLS files are those of the executors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from jsplan.backfill.protocol import RawConnection
from jsplan.backfill.tasks.endpoints import resolve_declared
from jsplan.errors import UsageError
from jsplan.units import parse_instant

_PLAIN_OPTIONS: Final = ("url", "context", "user", "password", "token", "creds", "nkey")
#: Options of TLS, and their names in a connection of the files.
_TLS_OPTIONS: Final = {"tlsCa": "ca", "tlsCert": "cert", "tlsKey": "key"}
CONNECTION_OPTIONS: Final = (*_PLAIN_OPTIONS, *_TLS_OPTIONS, "tlsFirst", "inboxPrefix", "timeout")
LOCATION_OPTIONS: Final = ("domain", "apiPrefix", "stream")
WORKSPACE_OPTIONS: Final = ("workspace", "streams")
READ_OPTIONS: Final = (
    *("startSeq", "endSeq", "startTime", "endTime", "filterSubjects", "headersOnly"),
    *("partitions", "maxMessagesPerBatch", "pushdown", "failOnDataLoss"),
)
WRITE_OPTIONS: Final = ("dedupe", "subjectPrefix")
_FROM_ENVIRONMENT = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
#: Options of streaming queries that Spark passes on.
_OF_SPARK: Final = ("checkpointlocation",)
#: Options that would be visible in Spark plans: only `${env.NAME}` is accepted.
_SECRETS: Final = ("password", "token")


class Options(Struct, frozen=True):
    """Options as Spark passes them; names are not case-sensitive.

    Raises UsageError for unknown or invalid ones.
    """

    values: Mapping[str, str]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Check the names, and that no secret is in plain text."""
        place = (*CONNECTION_OPTIONS, *LOCATION_OPTIONS, *WORKSPACE_OPTIONS)
        known = {name.lower(): name for name in (*place, *READ_OPTIONS, *WRITE_OPTIONS)}
        values = {
            known.get(name.lower(), name): str(value)
            for name, value in given.items()
            if name.lower() not in _OF_SPARK
        }
        if unknown := sorted(values.keys() - set(known.values())):
            raise UsageError(
                f"the jetstream format has no option {unknown[0]}",
                hint=f"It has: {', '.join(known.values())}.",
            )
        for name in _SECRETS:
            if name in values and not _FROM_ENVIRONMENT.fullmatch(values[name]):
                raise UsageError(
                    f"option {name} would be visible in the plans of Spark",
                    hint='Set it in the environment of the executors, and write "${env.NAME}".',
                )
        if "@" in values.get("url", "") and not _FROM_ENVIRONMENT.search(values["url"]):
            raise UsageError(
                "option url has credentials",
                hint='Use the options user and password with "${env.NAME}", or creds.',
            )
        _require_location(values)
        return cls(values)

    def __getitem__(self, name: str) -> str | None:
        return self.values.get(name) or None

    @property
    def stream(self) -> str:
        """Stream to read or write."""
        return self.values["stream"]

    @property
    def domain(self) -> str:
        """JetStream domain, empty if the server has none."""
        return self["domain"] or ""

    @property
    def api_prefix(self) -> str:
        """Prefix of the JetStream API."""
        return self["apiPrefix"] or (f"$JS.{self.domain}.API" if self.domain else "$JS.API")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts between the commas of an option."""
        return tuple(part.strip() for part in (self[name] or "").split(",") if part.strip())

    def number(self, name: str) -> int | None:
        """Return a whole number. Raises UsageError."""
        text = self[name]
        if text is not None and not text.lstrip("+").isdigit():
            raise UsageError(f"option {name} is {text!r}, not a number")
        return int(text) if text is not None else None

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return True or False. Raises UsageError."""
        text = (self[name] or str(default)).lower()
        if text not in ("true", "false"):
            raise UsageError(f"option {name} is {text!r}, not true or false")
        return text == "true"

    def time(self, name: str) -> int | None:
        """Return a time as ns since 1970. Raises UsageError."""
        text = self[name]
        try:
            return parse_instant(text) if text is not None else None
        except ValueError as error:
            raise UsageError(f"option {name}: {error}") from None

    def connect(self) -> RawConnection:
        """Connect, with `${env.NAME}` resolved in the environment of this process.

        Raises UsageError and ConnectError.
        """
        values = {name: value for name, value in self.values.items() if value}
        declared: dict[str, Any] = {name: values[name] for name in _PLAIN_OPTIONS if name in values}
        tls = {key: values[name] for name, key in _TLS_OPTIONS.items() if name in values}
        declared["tls"] = tls | {"handshake_first": self.flag("tlsFirst")}
        if "inboxPrefix" in values:
            declared["inbox_prefix"] = values["inboxPrefix"]
        if "timeout" in values:
            declared["timeout"] = f"{values['timeout']}s"
        return RawConnection(resolve_declared("jetstream", declared))


def _require_location(values: Mapping[str, str]) -> None:
    """Require one stream, or `streams` of a workspace, which says how to reach each."""
    if "workspace" not in values and "streams" not in values:
        if not values.get("stream"):
            raise UsageError(
                "the jetstream format needs the option stream, or workspace and streams"
            )
        return
    if missing := [name for name in WORKSPACE_OPTIONS if not values.get(name)]:
        raise UsageError(f"option {missing[0]} is missing: workspace and streams belong together")
    given = [name for name in (*CONNECTION_OPTIONS, *LOCATION_OPTIONS) if name in values]
    if given:
        raise UsageError(
            f"option {given[0]} has no meaning with workspace",
            hint="Connections, domains and prefixes are those of the workspace.",
        )
