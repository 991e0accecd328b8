"""Requests that no application may send unless it declares them, as data. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from jsplan.topology.app_permissions import PermissionVerb

#: A stream and its consumer that no application uses; the consumer of another client.
OTHER: Final = "JSPLAN_PROOF_OTHER"
OTHER_SUBJECT: Final = "jsplan.proof.other"
#: Requests to the API about each stream that the application uses, and about one that it does not.
_ABOUT_STREAMS: Final = (
    "STREAM.UPDATE.{s}", "STREAM.DELETE.{s}", "STREAM.PURGE.{s}", "STREAM.MSG.DELETE.{s}",
    "STREAM.MSG.GET.{s}", "STREAM.INFO.{s}", "STREAM.SNAPSHOT.{s}", "STREAM.RESTORE.{s}",
    "STREAM.PEER.REMOVE.{s}", "STREAM.LEADER.STEPDOWN.{s}", "DIRECT.GET.{s}",
    "DIRECT.GET.{s}.jsplan.proof.other", "CONSUMER.NAMES.{s}", "CONSUMER.LIST.{s}",
    "CONSUMER.CREATE.{s}", "CONSUMER.CREATE.{s}.proof.jsplan.proof.other",
    "CONSUMER.DURABLE.CREATE.{s}.proof", "CONSUMER.INFO.{s}.proof", "CONSUMER.DELETE.{s}.proof",
    "CONSUMER.PAUSE.{s}.proof", "CONSUMER.RESET.{s}.proof", "CONSUMER.UNPIN.{s}.proof",
    "CONSUMER.LEADER.STEPDOWN.{s}.proof", "CONSUMER.MSG.NEXT.{s}.proof",
)  # fmt: skip
_ABOUT_ALL: Final = (
    "STREAM.NAMES", "STREAM.LIST", "STREAM.CREATE.JSPLAN_PROOF_NEW", "INFO", "ACCOUNT.PURGE.A",
    "META.LEADER.STEPDOWN", "SERVER.REMOVE",
)  # fmt: skip
_OTHERS: Final = (
    "$JS.ACK.{s}.proof.1.1.1.1.0", "$JS.FC.{s}.proof", "$KV.JSPLAN_PROOF.key",
    "$O.JSPLAN_PROOF.C.x", "jsplan.proof.other", "_INBOX.jsplan.proof", "$SYS.REQ.SERVER.PING",
    "$JS.EVENT.ADVISORY.API",
)  # fmt: skip
_SUBSCRIPTIONS: Final = (
    ">", "_INBOX.>", "_INBOX_jsplan_proof.>", "$JS.>", "$KV.>", "$SYS.>", "jsplan.proof.other",
)  # fmt: skip


class ForbiddenRequest(Struct, frozen=True):
    """A subject that an application must not publish to, or subscribe to."""

    verb: PermissionVerb
    subject: str

    @property
    def text(self) -> str:
        """The request as text."""
        return f"{self.verb} {self.subject}"


def list_forbidden(streams: list[str]) -> Iterator[ForbiddenRequest]:
    """Yield the requests about these streams, a foreign one, and the account."""
    for stream in (*streams, OTHER):
        for verb in _ABOUT_STREAMS:
            yield ForbiddenRequest("publish", f"$JS.API.{verb.format(s=stream)}")
    for verb in _ABOUT_ALL:
        yield ForbiddenRequest("publish", f"$JS.API.{verb}")
    for subject in _OTHERS:
        yield ForbiddenRequest("publish", subject.format(s=OTHER))
    for subject in _SUBSCRIPTIONS:
        yield ForbiddenRequest("subscribe", subject)
