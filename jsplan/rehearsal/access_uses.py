"""The requests that an application sends with its permissions, and those that it must not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from jsplan.config.model import AppUse
from jsplan.errors import ApiError
from jsplan.jetstream.connection import NatsConnection
from jsplan.topology.app_permissions import Permission, PermissionVerb

#: Seconds for one answer.
TIMEOUT: Final = 2.0
_WORD: Final = "proof"


class UseRun(Struct):
    """One use over the connection of the application. `admin` may do everything in the domain.

    `subject` is one that the stream stores, and the consumer takes. `reply` is that of the last
    message that was received, `created` the name of the last consumer that was created.
    """

    own: NatsConnection
    admin: NatsConnection
    use: AppUse
    subject: str
    reply: str = ""
    created: str = ""

    async def run(self, requests: Sequence[Permission]) -> str:
        """Send the requests of the use in their order; return the first problem, or nothing."""
        try:
            await self._ask(self.admin, self.subject, _WORD.encode())
            for each in requests:
                if each.verb == "subscribe":
                    await self._receive(each.subject, each.queue)
                else:
                    await self._send(each.subject)
        except ApiError as error:
            return str(error)
        return ""

    async def _send(self, pattern: str) -> None:
        subject, stream = fill_wildcards(pattern), self.use.address.stream
        if pattern.startswith("$JS.ACK."):
            await self._ask(self.own, self.reply, b"+ACK", is_json=False)
        elif pattern.startswith("$JS.FC."):
            await self.own.publish(subject, b"")
            await self.own.flush()
            if (denied := self.own.denied_error(subject)) is not None:
                raise denied
        elif ".CONSUMER.MSG.NEXT." in pattern:
            await self._take(subject)
        elif ".CONSUMER.INFO." in pattern and pattern.endswith(".*"):
            await self._ask(self.own, f"{pattern[:-1]}{self.created}", b"")
        else:
            await self._ask(self.own, subject, _payload(subject, stream, self.subject))

    async def _ask(
        self, connection: NatsConnection, subject: str, payload: bytes, *, is_json: bool = True
    ) -> None:
        """Send a request; raise ApiError where it is not permitted, not answered, or refused."""
        answer = await connection.request(subject, payload, TIMEOUT)
        if not is_json or ".DIRECT.GET." in subject:
            return
        found = json.loads(answer or b"{}")
        if isinstance(found, dict) and (error := found.get("error")):
            raise ApiError(f"{subject}: {error.get('description')} ({error.get('err_code')})")
        if ".CONSUMER.CREATE." in subject:
            self.created = str(found["name"])

    async def _take(self, subject: str) -> None:
        """Take one message of a pull consumer."""
        async with self.own.open_inbox() as inbox:
            await inbox.publish(subject, json.dumps({"batch": 1, "expires": 10**9}).encode())
            self.reply = (await inbox.next(TIMEOUT, subject)).reply

    async def _receive(self, subject: str, queue: str) -> None:
        """Receive one message of a push consumer."""
        async with self.own.open_inbox(subject, queue) as inbox:
            await self._ask(self.admin, self.subject, _WORD.encode())
            self.reply = (await inbox.next(TIMEOUT, subject)).reply


def is_reply(subject: str) -> bool:
    """Check whether a subject is one of acknowledgements or flow control, in any form."""
    return subject.startswith(("$JS.ACK.", "$JS.FC."))


def fill_wildcards(pattern: str) -> str:
    """Return a subject that a pattern covers."""
    words = [_WORD if word in ("*", ">") else word for word in pattern.split(".")]
    return ".".join(words)


def _payload(subject: str, stream: str, stored: str) -> bytes:
    """Return the payload of a request; a message for a subject that is no request."""
    if ".STREAM.MSG.GET." in subject:
        return json.dumps({"last_by_subj": stored}).encode()
    if ".CONSUMER.CREATE." in subject:
        named = subject.partition(f".CONSUMER.CREATE.{stream}.")[2]
        config: dict[str, Any] = {"ack_policy": "none", "inactive_threshold": 10**10}
        if named:
            config |= {"name": _WORD, "filter_subject": named.partition(".")[2]}
        return json.dumps({"stream_name": stream, "config": config}).encode()
    if ".STREAM.PURGE." in subject:
        return json.dumps({"filter": f"{stored}.none"}).encode()
    is_request = ".API." in subject and ".API.$" not in subject
    return b"" if is_request else _WORD.encode()


# --- forbidden requests ---------------------------------------------------------------------------

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
