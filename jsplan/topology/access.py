"""The exports and imports that flows between accounts need: the minimum on today's servers.

Pure. Measured on 2.10 to 2.15 (server_semantics, section 5): a flow makes its consumer with
`CONSUMER.CREATE.<stream>`, or with `CONSUMER.CREATE.<stream>.>` if it has exactly one filter; it
answers flow control on `$JS.FC.<stream>.>`, without which it stalls after about 2 MB; and messages
are delivered on the prefix of the import. With the feature flag `js_ack_fc_v2` (2.14 and later, off
until 2.16) acknowledgements and flow control have the domain and a hash of the account in front of
the stream. A client cannot see the flag, so both forms are listed, the second as optional.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address, matches, move_address
from jsplan.config.model import AccountFiles, App, AppUse, Domain, Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.subjects import is_subset
from jsplan.topology.client_profiles import list_requests
from jsplan.topology.replication_graph import Edge
from jsplan.topology.resolve import Topology
from jsplan.topology.routes import NoRouteError, external_of, is_import

#: The feature flag of the servers that decides on the form of replies.
REPLY_FLAG: Final = "js_ack_fc_v2"
#: A server without a domain, in subjects of the second form.
_NO_DOMAIN: Final = "_"
_HASH_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
#: The requests that jsplan sends for a stream or consumer that it manages through an import.
_OF_STREAM: Final = ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.DELETE")
_OF_CONSUMER: Final = ("CONSUMER.CREATE", "CONSUMER.INFO", "CONSUMER.DELETE")


class Grant(Struct, frozen=True):
    """One subject that account `owner` exports and account `user` imports, as `local_subject`.

    `stream` flows from owner to user. `owner_domain` and `user_domain` are the domains over whose
    connections the two accounts are reached, `flows` the flows that need it. `streams_responses`:
    one request has many answers, and a service for one answer lets one message of a batch through
    (measured). `optional`: only servers with the feature flag `js_ack_fc_v2` need it.
    """

    owner: str
    user: str
    kind: Literal["service", "stream"]
    subject: str
    local_subject: str
    owner_domain: str
    user_domain: str
    streams_responses: bool = False
    flows: tuple[str, ...] = ()
    optional: bool = False

    def covers(self, other: Grant) -> bool:
        """Check whether the other one adds nothing to this one."""
        same = (self.owner, self.user, self.kind) == (other.owner, other.user, other.kind)
        return (
            same
            and self.streams_responses >= other.streams_responses
            and self.optional <= other.optional
            and is_subset(other.subject, self.subject)
            and is_subset(other.local_subject, self.local_subject)
        )


def compute_grants(
    workspace: Workspace, topology: Topology, accounts: Mapping[str, str]
) -> tuple[list[Grant], list[Diagnostic]]:
    """Return every needed export and import, in order, and the reasons why some are unknown.

    `accounts` has the account of each connection, by its key; a flow between unknown accounts is a
    finding.
    """
    builder = _GrantBuilder(workspace, topology, accounts)
    for edge in topology.edges:
        builder.add_edge(edge)
    for edge in _relocation_edges(workspace, topology):
        builder.add_edge(edge)
    for row in workspace.imports:
        for name in row.consumers:
            builder.add_used_consumer(
                Address(topology.routes.canonicalize(row.from_domain), "consumer", name),
                row.into_domain,
                row.api,
            )
    for app in workspace.apps.values():
        for use in app.uses:
            builder.add_app_use(app, use)
    for address in workspace.resources:
        domain = workspace.domains[address.domain]
        if domain.same_as is not None and not address.is_content:
            builder.add_managed(address, domain)
    return _merge_grants(builder.grants), [*builder.diagnostics.values()]


def _relocation_edges(workspace: Workspace, topology: Topology) -> Iterable[Edge]:
    """Yield the mirrors that copy streams from another account, by the `relocate` entries."""
    for entry in workspace.relocate:
        for target in workspace.resources:
            if not target.is_stream or not matches(entry.new_address, target):
                continue
            origin = move_address(entry.new_address, entry.old_address, target)
            if origin.domain not in workspace.domains:
                continue
            try:
                route = topology.routes.find_route(target.domain, origin.domain)
            except NoRouteError:
                continue
            if route.import_row is not None:
                yield Edge(
                    origin,
                    target,
                    "mirror",
                    {"name": origin.stream, "external": external_of(route, target)},
                )


def _merge_grants(found: Iterable[Grant]) -> list[Grant]:
    """Return each subject once, with all its flows, without subjects that a wider one covers."""
    merged: dict[tuple[str, ...], Grant] = {}
    for grant in found:
        key = (grant.owner, grant.user, grant.kind, grant.subject, grant.local_subject)
        known = merged.get(key)
        if known is None:
            merged[key] = grant
        else:
            why = tuple(dict.fromkeys([*known.flows, *grant.flows]))
            merged[key] = replace(
                known,
                flows=why,
                streams_responses=known.streams_responses or grant.streams_responses,
                optional=known.optional and grant.optional,
            )
    uncovered = [
        g
        for g in merged.values()
        if not any(other is not g and other.covers(g) for other in merged.values())
    ]
    return sorted(uncovered, key=lambda g: (g.owner, g.user, g.kind, g.subject))


class _GrantBuilder:
    def __init__(
        self, workspace: Workspace, topology: Topology, accounts: Mapping[str, str]
    ) -> None:
        self._workspace, self._topology, self._accounts = workspace, topology, accounts
        self.grants: list[Grant] = []
        self.diagnostics: dict[tuple[str, str], Diagnostic] = {}

    def add_edge(self, edge: Edge) -> None:
        """Add the grants of a mirror or source: consumer, flow control, delivery."""
        external = edge.config.get("external") or {}
        api = external.get("api")
        imported = api is not None and self._topology.routes.is_imported(
            edge.downstream.domain, api
        )
        if imported and self._shares_connection(edge):
            text = (
                f"the owner of {edge.origin} has no connection of its own:"
                " its exports are not in this list"
            )
            self._add_diagnostic(
                edge.downstream,
                "JS456",
                text,
                "Add a connection to its account, a domain over it, and an imports row from it.",
            )
        if api is None or not self._crosses_accounts(
            edge.origin.domain, edge.downstream.domain, imported=imported
        ):
            return
        verb = {"mirror": "mirrors", "source": "sources"}[edge.kind]
        why = f"{edge.downstream} {verb} {edge.origin}" + (
            " with a filter" if _has_single_filter(edge.config) else ""
        )
        stream, make = (
            edge.origin.stream,
            "CONSUMER.CREATE."
            + edge.origin.stream
            + (".>" if _has_single_filter(edge.config) else ""),
        )
        remote = own_api_prefix(self._workspace.domains[edge.origin.domain])
        ends = (edge.origin.domain, self._topology.routes.canonicalize(edge.downstream.domain), why)
        self._add_grant("service", f"{remote}.{make}", f"{api}.{make}", ends)
        self._add_replies("FC", f"{stream}.>", ends)
        prefix = self._delivery_subject(edge, api)
        if prefix:
            self._add_grant("stream", f"{prefix}.>", f"{prefix}.>", ends)
        else:
            self._add_diagnostic(
                edge.downstream,
                "JS451",
                f"{why}: its delivery prefix is unknown",
                "Add `deliver:` to the imports row.",
            )

    def _shares_connection(self, edge: Edge) -> bool:
        one, other = (
            self._workspace.domains[self._topology.routes.canonicalize(a.domain)].connection
            for a in (edge.origin, edge.downstream)
        )
        return one == other

    def _delivery_subject(self, edge: Edge, api: str) -> str:
        """Return the subject to export: that of the row if the prefix is below it.

        So one import serves many flows.
        """
        row = next(
            (
                r
                for r in self._workspace.imports
                if r.into_domain == edge.downstream.domain and r.api == api
            ),
            None,
        )
        below = row.deliver if row is not None and row.deliver else ""
        prefix = self._topology.delivery_prefix(edge)
        return below if below and is_subset(prefix, f"{below}.>") else prefix

    def add_used_consumer(self, address: Address, into: str, api: str) -> None:
        """Add the grants of a consumer that its owner made and clients of another account use."""
        if not self._crosses_accounts(address.domain, into):
            return
        body = self._topology.bodies.get(self._topology.declared_names.get(address, address))
        if body is None:
            text = (
                f"consumer {address} is in no file:"
                " it is assumed to be a pull consumer that wants acks"
            )
            self._add_diagnostic(address, "JS454", text, "Declare it, if it is something else.")
        self._add_consumer_grants(
            address,
            body or {"ack_policy": "explicit"},
            (address.domain, into, f"clients over {into} use {address}"),
            api,
        )

    def add_app_use(self, app: App, use: AppUse) -> None:
        """Add the grants of an application that uses a resource of another account."""
        address = self._topology.canonicalize(use.address)
        if not self._crosses_accounts(address.domain, app.domain, imported=False):
            return
        try:
            api = self._topology.routes.find_route(app.domain, address.domain).api
        except NoRouteError:  # `app_permissions` reports it
            return
        if api is None:
            return
        if address.kind == "consumer":
            self.add_used_consumer(address, app.domain, api)
        remote = own_api_prefix(self._workspace.domains[address.domain])
        ends = (address.domain, app.domain, f"application {app.name} uses {address}")
        for request in list_requests(use, app.client, self._topology.bodies[use.address], api):
            if (verb := request.removeprefix(f"{api}.")) != request:
                self._add_grant("service", f"{remote}.{verb}", request, ends)

    def add_managed(self, address: Address, domain: Domain) -> None:
        """Add the grants that jsplan needs to manage a resource through an import.

        For consumers also those of their clients.
        """
        real = self._topology.routes.canonicalize(address.domain)
        if not is_import(domain) or not self._crosses_accounts(real, domain.key):
            return
        remote, api = own_api_prefix(self._workspace.domains[real]), domain.api_prefix
        verbs = (
            [f"{verb}.{address.stream}.{address.consumer}" for verb in _OF_CONSUMER]
            if address.kind == "consumer"
            else []
        )
        verbs += (
            [f"STREAM.INFO.{address.stream}"]
            if verbs
            else [f"{verb}.{address.stream}" for verb in _OF_STREAM]
        )
        ends = (real, domain.key, f"jsplan manages {address}")
        for verb in ("INFO", *verbs):
            self._add_grant("service", f"{remote}.{verb}", f"{api}.{verb}", ends)
        if address.kind == "consumer":
            body = self._topology.bodies[address]
            self._add_consumer_grants(
                address._replace(domain=real),
                body,
                (real, domain.key, f"clients use {address}"),
                api,
            )

    def _add_consumer_grants(
        self, address: Address, body: Mapping[str, Any], ends: tuple[str, str, str], api: str
    ) -> None:
        stream, name, deliver = address.stream, address.consumer, body.get("deliver_subject")
        if deliver:
            self._add_grant("stream", deliver, deliver, ends)
        else:
            take = f"CONSUMER.MSG.NEXT.{stream}.{name}"
            remote = own_api_prefix(self._workspace.domains[address.domain])
            self._add_grant("service", f"{remote}.{take}", f"{api}.{take}", ends, streamed=True)
        if (body.get("ack_policy") or "none") not in ("none", "flow_control"):
            self._add_replies("ACK", f"{stream}.{name}.>", ends)
        if body.get("flow_control") or body.get("ack_policy") == "flow_control":
            self._add_replies("FC", f"{stream}.{name}.>", ends)

    def _add_replies(
        self, kind: Literal["ACK", "FC"], rest: str, ends: tuple[str, str, str]
    ) -> None:
        """Add the grants of acknowledgements or flow control, in both forms."""
        domain = self._workspace.domains[ends[0]]
        new = later_replies(self._workspace, kind, domain, self._account_of(ends[0]), rest)
        self._add_grant("service", f"$JS.{kind}.{rest}", f"$JS.{kind}.{rest}", ends)
        self._add_grant("service", new, new, ends, optional=True)

    def _add_grant(
        self,
        kind: Literal["service", "stream"],
        subject: str,
        local: str,
        ends: tuple[str, str, str],
        *,
        streamed: bool = False,
        optional: bool = False,
    ) -> None:
        origin, user, why = ends
        owner, taker = self._account_of(origin), self._account_of(user)
        assert owner is not None
        assert taker is not None
        self.grants.append(
            Grant(owner, taker, kind, subject, local, origin, user, streamed, (why,), optional)
        )

    def _crosses_accounts(self, origin: str, user: str, *, imported: bool = True) -> bool:
        """Check whether the two are in different accounts.

        Over an import both must be known; a leafnode link may join unknown ones.
        """
        owner, taker = self._account_of(origin), self._account_of(user)
        one, other = (self._workspace.domains[key].connection for key in (origin, user))
        if one == other:
            return False
        for account, connection in ((owner, one), (taker, other)):
            if account is None and imported:
                text = f"connection {connection} does not say its account"
                declared = self._workspace.connections.get(connection)
                place = declared.range if declared is not None else None
                detail = (
                    "Add `account:` to it: the account's name in the server's configuration"
                    " or in nsc, or its public key."
                )
                self.diagnostics[connection, "JS455"] = Diagnostic(
                    "error", "JS455", text, detail, None, place
                )
        return owner is not None and taker is not None and owner != taker

    def _account_of(self, domain: str) -> str | None:
        return self._accounts.get(self._workspace.domains[domain].connection)

    def _add_diagnostic(self, address: Address, code: str, text: str, detail: str) -> None:
        declared = self._workspace.resources.get(address)
        place = declared.range if declared is not None else None
        self.diagnostics[str(address), code] = Diagnostic(
            "warning", code, text, detail, str(address), place
        )


def _has_single_filter(config: Mapping[str, Any]) -> bool:
    """Check whether the server sends the filter in the subject: exactly one, and be it `>`."""
    transforms = config.get("subject_transforms")
    if transforms:
        return len(transforms) == 1 and bool(transforms[0].get("src"))
    return bool(config.get("filter_subject"))


def later_replies(
    workspace: Workspace, kind: str, domain: Domain, account: str | None, rest: str
) -> str:
    """Return the subject of replies in the second form, of any account if it is not known."""
    owner = "*" if account is None else _hash_account(find_account_key(workspace, account))
    return f"$JS.{kind}.{domain.js_domain or _NO_DOMAIN}.{owner}.{rest}"


def _hash_account(key: str) -> str:
    """Return the hash of an account in subjects, by its public key or its configured name."""
    digest = hashlib.sha256(key.encode()).digest()[:8]
    return "".join(_HASH_DIGITS[byte % len(_HASH_DIGITS)] for byte in digest)


def find_account_key(workspace: Workspace, account: str) -> str:
    """Return the public key of an account of the files, which servers know it by; else its name."""
    keys = (each.key for each in workspace.accounts.values() if each.name == account)
    return next(keys, None) or account


def describe_reload(files: AccountFiles, accounts: Iterable[str], *, gone: bool = False) -> str:
    """Return how servers load the files of these accounts, or run on without one."""
    keys = [key for account in accounts for key in files.domains.get(account, ())]
    where = f"the servers of {', '.join(keys)}" if keys else "the servers that have the account"
    if gone:
        return f"take its include from the configuration of {where}, or they do not start again"
    return f"{where} load the file with nats-server --signal reload"


def own_api_prefix(domain: Domain) -> str:
    """Return the API prefix that the domain's own account uses."""
    return f"$JS.{domain.js_domain}.API" if domain.js_domain else "$JS.API"
