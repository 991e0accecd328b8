"""The guard of read-only connections: it allows only requests that change nothing.

`DomainApi` refuses a writing verb before it becomes a subject. A guard acts below it, where bytes
are sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jsplan.jetstream.answers import CLAIMS_LIST, USER_INFO
from jsplan.resources.account import PUBLIC_KEY

#: API verbs that change nothing. A read-only `DomainApi` sends no other.
READ_ONLY_VERBS: Final = (
    "INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.INFO.",
    "CONSUMER.NAMES.",
    "CONSUMER.LIST.",
    "CONSUMER.INFO.",
    "STREAM.MSG.GET.",
    "DIRECT.GET.",
)
#: Asks every server of the account for its connections, and so for its domain.
ACCOUNT_PING: Final = "$SYS.REQ.ACCOUNT.PING.CONNZ"
#: Asks every server of the system for its streams.
REPLICAS_PING: Final = "$SYS.REQ.SERVER.PING.JSZ"
_CLAIMS_LOOKUP: Final = re.compile(rf"\$SYS\.REQ\.ACCOUNT\.{PUBLIC_KEY.pattern}\.CLAIMS\.LOOKUP")


def claims_lookup(key: str) -> str:
    """Return the subject that asks for the JWT of an account, by its public key."""
    return f"$SYS.REQ.ACCOUNT.{key}.CLAIMS.LOOKUP"


def server_varz(server: Mapping[str, Any]) -> str:
    """Return the subject that asks the connected server, as it named itself, for its settings."""
    return f"$SYS.REQ.SERVER.{server['server_id']}.VARZ"


class ReadOnlyGuard:
    """The API prefixes of one connection; only requests that read them are allowed."""

    def __init__(self) -> None:
        self._prefixes: set[str] = set()

    def allow_prefix(self, prefix: str) -> None:
        """Allow requests that read this API, such as `$JS.hub.API`."""
        self._prefixes.add(f"{prefix}.")

    def check(self, subject: str) -> None:
        """Raise AssertionError for a request that does not read. It is a bug; nothing was sent."""
        if subject in (ACCOUNT_PING, REPLICAS_PING, USER_INFO, CLAIMS_LIST):
            return
        if _CLAIMS_LOOKUP.fullmatch(subject):
            return
        for prefix in self._prefixes:
            if subject.startswith(prefix) and subject[len(prefix) :].startswith(READ_ONLY_VERBS):
                return
        raise AssertionError(f"a guarded connection was asked to send {subject}")
