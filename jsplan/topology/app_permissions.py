"""The permissions of applications, derived from what they do with which resource. Pure.

A server checks requests to its own JetStream as `$JS.API`, however they were asked (measured on
2.10 to 2.15); those for another domain pass the link as `$JS.<domain>.API`, or under the name that
an import gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from jsplan.config.model import App, AppUse, Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.subjects import is_subset
from jsplan.topology.access import later_replies
from jsplan.topology.client_profiles import find_limit, list_requests
from jsplan.topology.resolve import Topology
from jsplan.topology.routes import NoRouteError, is_import

#: What a permission allows with a subject, in the order of documents.
PermissionVerb = Literal["publish", "subscribe"]
VERBS: Final[tuple[PermissionVerb, ...]] = ("publish", "subscribe")

#: Parts of subjects that reach more than a use needs, and what.
_ESCAPES: Final = (
    (".STREAM.MSG.GET.", "can read every message of {stream}, whatever its subject"),
    (".STREAM.PURGE.", "can delete everything in {stream}"),
    (".STREAM.NAMES", "can list the names of all streams"),
    (".CONSUMER.CREATE.", "can create and change consumers of {stream}, also those of others"),
)


class Permission(Struct, frozen=True):
    """A subject that an application may publish or subscribe to, and the uses that need it.

    `optional`: only servers with the feature flag `js_ack_fc_v2` need it. `queue` is the only queue
    group in which it may subscribe.
    """

    verb: PermissionVerb
    subject: str
    uses: tuple[str, ...]
    queue: str = ""
    optional: bool = False

    @property
    def text(self) -> str:
        """The subject as a permission has it, with its queue group."""
        return f"{self.subject} {self.queue}" if self.queue else self.subject


class AppPermissions(Struct, frozen=True):
    """The permissions of one application. `account` is None if its connection does not say it.

    `inbox` is the prefix that its client must set. `escapes` are what servers cannot prevent.
    `requests` are what its client asks for each use, in order.
    """

    app: App
    account: str | None
    inbox: str
    permissions: list[Permission]
    escapes: list[str]
    requests: Mapping[AppUse, list[Permission]]

    def allowed(self, verb: PermissionVerb) -> list[Permission]:
        """Return what it may publish or subscribe to. A server takes no subject for every one."""
        return [each for each in self.permissions if each.verb == verb]


def derive_permissions(
    workspace: Workspace, topology: Topology, accounts: Mapping[str, str]
) -> tuple[list[AppPermissions], list[Diagnostic]]:
    """Return the permissions of each application, and a finding for each use without a way.

    `accounts` has the account of each connection, by its key.
    """
    found, findings = [], list[Diagnostic]()
    for app in workspace.apps.values():
        builder = _Builder(workspace, topology, accounts, app)
        requests: dict[AppUse, list[Permission]] = {}
        for use in app.uses:
            begin = len(builder.permissions)
            try:
                builder.add(use)
            except NoRouteError as error:
                findings.append(_no_way(app, use, str(error), error.detail))
            requests[use] = builder.permissions[begin:]
        inbox = f"_INBOX_{app.user}"
        builder.allow("subscribe", f"{inbox}.>", "answers")
        permissions = merge_permissions(builder.permissions)
        account = accounts.get(workspace.domains[app.domain].connection)
        escapes = list(dict.fromkeys(_list_escapes(permissions)))
        found.append(AppPermissions(app, account, inbox, permissions, escapes, requests))
    return found, findings


def describe_use(use: AppUse) -> str:
    """Return a use as text."""
    words = {
        "publish": "publishes to",
        "consume": "consumes",
        "read": "reads",
        "watch": "watches",
        "write": "writes",
    }
    return f"{words[use.verb]} {use.address}"


class _Builder:
    """Collects the permissions of one application."""

    def __init__(
        self, workspace: Workspace, topology: Topology, accounts: Mapping[str, str], app: App
    ) -> None:
        self._workspace, self._topology, self._app = workspace, topology, app
        self._accounts = accounts
        self.permissions: list[Permission] = []

    def allow(
        self,
        verb: PermissionVerb,
        subject: str,
        why: str,
        *,
        queue: str = "",
        optional: bool = False,
    ) -> None:
        """Add one permission."""
        self.permissions.append(Permission(verb, subject, (why,), queue, optional))

    def add(self, use: AppUse) -> None:
        """Add what one use needs. Raises NoRouteError."""
        address, client = use.address, self._app.client
        why, api = describe_use(use), self._find_api(use)
        body = self._topology.bodies[address]
        if (limit := find_limit(use, client, body, api)) is not None:
            raise NoRouteError(*limit)
        begin = len(self.permissions)
        for subject in list_requests(use, client, body, api):
            self.allow("publish", subject, why)
        if address.kind == "consumer":
            self._add_consumer(use, body, api, why)
        elif any(".CONSUMER.CREATE." in f"{each.subject}." for each in self.permissions[begin:]):
            self._add_replies("FC", f"{address.stream}.>", use, why)

    def _find_api(self, use: AppUse) -> str:
        """Return the API prefix by which the application reaches a resource."""
        domains, routes = self._workspace.domains, self._topology.routes
        own, target = domains[self._app.domain], domains[use.address.domain]
        if own.connection != target.connection and use.verb not in ("consume", "read"):
            raise NoRouteError(
                f"it is in another account than domain {own.key}",
                "An application of another account can consume, and read single keys. For more, "
                "copy it by a mirror or source into its own account.",
            )
        if own.connection == target.connection and target.same_as is not None:
            return target.api_prefix
        api = routes.find_route(own.key, target.key).api
        return api or (own.api_prefix if is_import(own) else "$JS.API")

    def _add_consumer(self, use: AppUse, body: Mapping[str, Any], api: str, why: str) -> None:
        stream, name = use.address.stream, use.address.consumer
        if deliver := body.get("deliver_subject"):
            self.allow("subscribe", deliver, why, queue=body.get("deliver_group") or "")
        else:
            self.allow("publish", f"{api}.CONSUMER.MSG.NEXT.{stream}.{name}", why)
        rest = f"{stream}.{name}.>"
        policy = body.get("ack_policy") or "none"
        if policy not in ("none", "flow_control"):
            self._add_replies("ACK", rest, use, why)
        if body.get("flow_control") or policy == "flow_control":
            self._add_replies("FC", rest, use, why)

    def _add_replies(self, kind: str, rest: str, use: AppUse, why: str) -> None:
        """Add the subjects of acknowledgements or flow control, in both forms."""
        domain = self._workspace.domains[self._topology.routes.canonicalize(use.address.domain)]
        account = self._accounts.get(domain.connection)
        later = later_replies(self._workspace, kind, domain, account, rest)
        self.allow("publish", f"$JS.{kind}.{rest}", why)
        self.allow("publish", later, why, optional=True)


def merge_permissions(found: Iterable[Permission]) -> list[Permission]:
    """Return each subject once with all its uses, without those that a wider one covers."""
    merged: dict[tuple[str, str], Permission] = {}
    for each in found:
        key = (each.verb, each.text)
        known = merged.get(key)
        uses = tuple(dict.fromkeys((*(known.uses if known else ()), *each.uses)))
        optional = each.optional and (known is None or known.optional)
        merged[key] = replace(each, uses=uses, optional=optional)
    kept: list[Permission] = []
    for each in merged.values():
        wide = next((o for o in merged.values() if o is not each and _covers(o, each)), None)
        if wide is None:
            inside = [o.uses for o in merged.values() if o is not each and _covers(each, o)]
            uses = tuple(dict.fromkeys((*each.uses, *chain.from_iterable(inside))))
            kept.append(replace(each, uses=uses))
    return sorted(kept, key=lambda p: (p.verb, p.optional, p.text))


def _covers(wide: Permission, narrow: Permission) -> bool:
    return (
        wide.verb == narrow.verb
        and wide.queue in ("", narrow.queue)
        and wide.optional <= narrow.optional
        and is_subset(narrow.subject, wide.subject)
    )


def _list_escapes(permissions: Iterable[Permission]) -> Iterator[str]:
    """Yield what a permission allows beyond its use, since a server knows only subjects."""
    for each in permissions:
        for part, text in _ESCAPES:
            if part in f"{each.subject}." and each.verb == "publish":
                stream = each.subject.partition(part)[2].partition(".")[0]
                yield text.format(stream=stream)


def _no_way(app: App, use: AppUse, reason: str, detail: str) -> Diagnostic:
    text = f"application {app.name} {describe_use(use)}, which it cannot do: {reason}"
    return Diagnostic("error", "JS468", text, detail, str(use.address), app.range)
