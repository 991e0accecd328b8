"""What may pass a connection that only reads: requests that change nothing, of the APIs that it was opened for. Nothing else is sent.

`DomainApi` refuses a writing verb before it becomes a subject; a seal is below it, where bytes leave.
"""

from __future__ import annotations

from typing import Final

#: API verbs that change nothing. A `DomainApi` opened read-only can send no other.
READ_ONLY_VERBS: Final = ("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.", "CONSUMER.NAMES.", "CONSUMER.LIST.", "CONSUMER.INFO.",
             "STREAM.MSG.GET.", "DIRECT.GET.")  # fmt: skip
#: Asks every server that serves the account for its connections, and so for its domain.
ACCOUNT_PING: Final = "$SYS.REQ.ACCOUNT.PING.CONNZ"


class ReadOnlyGuard:
    """Knows the API prefixes behind one connection, and lets pass what reads them."""

    def __init__(self) -> None:
        self._prefixes: set[str] = set()

    def allow_prefix(self, prefix: str) -> None:
        """Let what reads this API pass, such as `$JS.hub.API`."""
        self._prefixes.add(f"{prefix}.")

    def check(self, subject: str) -> None:
        """Raise AssertionError for anything but a reading request: a bug, and nothing was sent."""
        if subject == ACCOUNT_PING:
            return
        for prefix in self._prefixes:
            if subject.startswith(prefix) and subject[len(prefix) :].startswith(READ_ONLY_VERBS):
                return
        raise AssertionError(f"a sealed connection was asked to send {subject}")
