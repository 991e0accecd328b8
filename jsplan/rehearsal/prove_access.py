"""access --prove: tries the permissions of applications on embedded servers.

Each declared use must work, no permission may be left out, and every other request is refused.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from msgspec import Struct

from jsplan.address import Address
from jsplan.config.model import AppUse, Workspace
from jsplan.documents.access import Proof, UseResult
from jsplan.errors import ApiError, SandboxError
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.options import Observer
from jsplan.rehearsal.access_sites import (
    ProofSites,
    ProofUser,
    build_proof_sites,
    consumer_config,
    stream_config,
)
from jsplan.rehearsal.environment import run_sandbox
from jsplan.resources.buckets import subject_prefixes
from jsplan.sandbox import Sandbox
from jsplan.sandbox.versions import find_release, list_available, nearest_version, parse_version
from jsplan.subjects import is_covered
from jsplan.topology.access import REPLY_FLAG, Grant
from jsplan.topology.app_permissions import AppPermissions, Permission, PermissionVerb, describe_use
from jsplan.topology.resolve import Topology
from jsplan.units import count_text

#: Seconds for one answer.
TIMEOUT: Final = 2.0
_WORD: Final = "proof"
#: The first release of the servers with the feature flag for later replies.
FLAG_SINCE: Final = (2, 14)


async def prove_access(
    workspace: Workspace,
    topology: Topology,
    accounts: Mapping[str, str],
    grants: Sequence[Grant],
    permissions: Sequence[AppPermissions],
    observer: Observer,
    server_version: str | None = None,
) -> dict[str, Proof]:
    """Return the proof of each application, by its name; of one entry that of the first.

    The servers are the newest that is installed, or of `server_version`, which is downloaded if
    need be. Raises SandboxError.
    """
    # The applications of one entry are alike, and a server for each of hundreds is none.
    first = {each.app.entry or each.app.name: each for each in reversed(permissions)}
    permissions = [each for each in permissions if each in first.values()]
    programs = list_available() if server_version is None else find_release(server_version)
    version = nearest_version("99", programs)
    found = {each.app.name: Proof(version, [], [], 0, [], 0) for each in permissions}
    optional = any(p.optional for each in permissions for p in each.permissions)
    has_flag = parse_version(version)[:2] >= FLAG_SINCE
    for later_replies in (False, True) if optional and has_flag else (False,):
        password = secrets.token_hex(16)
        users = [
            ProofUser(each, without)
            for each in permissions
            for without in (None, *(p for p in each.permissions if p.optional == later_replies))
        ]
        sites = build_proof_sites(
            workspace,
            topology,
            accounts,
            grants,
            users,
            password,
            programs[version],
            later_replies=later_replies,
        )
        flag = f" with {REPLY_FLAG}" if later_replies else ""
        observer.phase(f"Starting {count_text(len(sites.sites), 'server')} {version}{flag}")
        try:
            async with run_sandbox(sites.sites, password) as sandbox:
                prover = _Prover(workspace, topology, sites, sandbox, password, later_replies)
                async with prover.open(permissions):
                    for each in permissions:
                        observer.phase(f"Trying application {each.app.name}{flag}")
                        await prover.prove(each, found[each.app.name])
        except ApiError as error:
            raise SandboxError(f"the permissions could not be tried: {error}") from None
    for each in permissions:
        if not has_flag:
            found[each.app.name].unproven = sum(p.optional for p in each.permissions)
    return found


class _Prover:
    """The running servers, and the connections of the administrators of their accounts."""

    def __init__(
        self,
        workspace: Workspace,
        topology: Topology,
        sites: ProofSites,
        sandbox: Sandbox,
        password: str,
        later_replies: bool,
    ) -> None:
        self._workspace, self._topology, self._sites = workspace, topology, sites
        self._sandbox, self._password, self._later = sandbox, password, later_replies
        self._admins: dict[tuple[str, str], NatsConnection] = {}

    @asynccontextmanager
    async def open(self, permissions: Sequence[AppPermissions]) -> AsyncIterator[None]:
        """Connect, and create what the applications use. Raises ApiError."""
        async with AsyncExitStack() as opened:
            for site in self._sites.sites:
                for account in site.accounts:
                    link = await opened.enter_async_context(self._connect(site.name, account.name))
                    self._admins[site.name, account.name] = link
                    await _create_stream(link, {"name": OTHER, "subjects": [OTHER_SUBJECT]})
            used = {use.address for each in permissions for use in each.app.uses}
            streams = {self._topology.canonicalize(a.parent or a) for a in used}
            for address in sorted(streams):
                await _create_stream(self._admin(address), stream_config(self._topology, address))
            for address in sorted(a for a in used if a.kind == "consumer"):
                config = consumer_config(self._topology, address)
                subject = f"$JS.API.CONSUMER.CREATE.{address.stream}.{address.consumer}"
                body = {"stream_name": address.stream, "config": config}
                await _request(self._admin(address), subject, body)
            yield

    @asynccontextmanager
    async def _connect(
        self, site: str, user: str, inbox: str = ""
    ) -> AsyncIterator[NatsConnection]:
        url = self._sandbox[site].url
        settings = ConnectionSettings(
            key=user, url=url, shown=url, user=user, password=self._password,
            inbox_prefix=inbox or None,
        )  # fmt: skip
        link = NatsConnection(settings)
        await link.open()
        try:
            yield link
        finally:
            await link.close()

    def _admin(self, address: Address) -> NatsConnection:
        """Return the administrator of the account that has a resource."""
        key = self._topology.routes.canonicalize(address.domain)
        account = self._sites.account_of[self._workspace.domains[key].connection]
        return self._admins[self._sites.site_of[key], account]

    @asynccontextmanager
    async def _connect_app(self, user: ProofUser) -> AsyncIterator[NatsConnection]:
        site = self._sites.site_of[user.found.app.domain]
        async with self._connect(site, user.name, user.found.inbox) as link:
            yield link

    async def prove(self, found: AppPermissions, proof: Proof) -> None:
        """Try the uses with all permissions, with all but each one, and what is forbidden."""
        async with self._connect_app(ProofUser(found)) as own:
            for use in dict.fromkeys(found.app.uses):
                problem = await self._try(own, found, use)
                if problem or not self._later:
                    proof.uses.append(UseResult(describe_use(use), problem))
        for each in found.permissions:
            if each.optional == self._later and not await self._is_needed(found, each):
                proof.unneeded.append(each.text)
        if not self._later:
            proof.refused, proof.permitted = await self._try_forbidden(found)

    async def _try(self, own: NatsConnection, found: AppPermissions, use: AppUse) -> str:
        """Return why a use does not work, or nothing."""
        run = UseRun(own, self._admin(use.address), use, self._stored_subject(use))
        return await run.run(
            [p for p in found.requests[use] if p.optional == self._later or not is_reply(p.subject)]
        )

    async def _is_needed(self, found: AppPermissions, permission: Permission) -> bool:
        """Check whether some use does not work without a permission."""
        asking = [
            use
            for use in dict.fromkeys(found.app.uses)
            if describe_use(use) in permission.uses or permission.verb == "subscribe"
        ]
        async with self._connect_app(ProofUser(found, permission)) as own:
            for use in asking:
                if await self._try(own, found, use):
                    return True
        return False

    async def _try_forbidden(self, found: AppPermissions) -> tuple[int, list[str]]:
        """Return how many requests were refused, and those that were not and should be."""
        allowed: dict[str, list[str]] = {"publish": [], "subscribe": []}
        for permission in found.permissions:
            allowed[permission.verb].append(permission.subject)
        streams = sorted({use.address.stream for use in found.app.uses})
        requests = [
            each
            for each in list_forbidden(streams)
            if not is_covered(each.subject, allowed[each.verb])
        ]
        async with self._connect_app(ProofUser(found)) as own:
            permitted = [
                each.text for each in requests if not await own.is_denied(each.verb, each.subject)
            ]
        return len(requests) - len(permitted), permitted

    def _stored_subject(self, use: AppUse) -> str:
        """Return a subject that the stream stores, and that the use is about."""
        address = use.address
        if address.kind in ("kv", "object_store"):
            keys = use.subjects if address.kind == "kv" else ()
            prefix = subject_prefixes(address.kind, address.name)[-1]
            return prefix + fill_wildcards((keys or (">",))[0])
        if address.kind == "consumer":
            config = consumer_config(self._topology, address)
            filters = config.get("filter_subjects") or [config.get("filter_subject")]
            if filters[0]:
                return fill_wildcards(filters[0])
        if use.subjects:
            return fill_wildcards(use.subjects[0])
        parent = address.parent or address
        return fill_wildcards(stream_config(self._topology, parent)["subjects"][0])


async def _create_stream(link: NatsConnection, config: Mapping[str, Any]) -> None:
    await _request(link, f"$JS.API.STREAM.CREATE.{config['name']}", config)


async def _request(link: NatsConnection, subject: str, body: Mapping[str, Any]) -> None:
    answer = json.loads(await link.request(subject, json.dumps(body).encode()))
    if error := answer.get("error"):
        raise ApiError(f"{subject}: {error.get('description')}")


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
