"""The embedded servers on which permissions are proven: domains, accounts, users. Pure.

Only what applications use exists on them, with what their permissions depend on: a mirror is a
stream with a subject of its own, and has no limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from jsplan.address import Address
from jsplan.config.model import Workspace
from jsplan.resources.buckets import subject_prefixes
from jsplan.sandbox.sites import Account, Site
from jsplan.topology.access import REPLY_FLAG, Grant
from jsplan.topology.app_permissions import VERBS, AppPermissions, Permission
from jsplan.topology.grant_text import render_account_config
from jsplan.topology.resolve import Topology

#: Fields of a stream and of a consumer that decide on permissions.
_STREAM_FIELDS: Final = (
    "name", "subjects", "retention", "allow_direct", "max_msgs_per_subject", "discard",
    "allow_rollup_hdrs", "deny_delete",
)  # fmt: skip
_CONSUMER_FIELDS: Final = (
    "ack_policy", "deliver_subject", "deliver_group", "filter_subject", "filter_subjects",
    "flow_control", "idle_heartbeat",
)  # fmt: skip


class ProofUser(Struct, frozen=True):
    """A user with the permissions of an application, all or all but `without`."""

    found: AppPermissions
    without: Permission | None = None

    @property
    def name(self) -> str:
        """A name of its own in all accounts."""
        at = self.found.permissions.index(self.without) if self.without is not None else "all"
        return f"proof-{self.found.app.name}-{at}"

    def render(self, password: str) -> str:
        """Return the user for the configuration of a server."""
        rules = []
        for verb in VERBS:
            texts = [each.text for each in self.found.allowed(verb) if each is not self.without]
            allowed = f"{{allow: {json.dumps(texts)}}}" if texts else '{deny: ">"}'
            rules.append(f"{verb}: {allowed}")
        name, secret = json.dumps(self.name), json.dumps(password)
        return f"{{user: {name}, password: {secret}, permissions: {{{', '.join(rules)}}}}}"


class ProofSites(Struct):
    """The sites, the site of each domain by its key, and the account of each connection."""

    sites: list[Site]
    site_of: dict[str, str]
    account_of: dict[str, str]


def build_proof_sites(
    workspace: Workspace,
    topology: Topology,
    accounts: Mapping[str, str],
    grants: Sequence[Grant],
    users: Iterable[ProofUser],
    password: str,
    binary: Path,
    *,
    later_replies: bool = False,
) -> ProofSites:
    """Return one server per JetStream domain that an application uses, with its accounts.

    Domains over one connection are linked: the first that is declared is the hub of the others. So
    is a server with an account that imports from another one. `later_replies` turns the feature
    flag on.
    """
    listed = list(users)
    used = {user.found.app.domain for user in listed}
    used |= {use.address.domain for user in listed for use in user.found.app.uses}
    used |= {topology.routes.canonicalize(key) for key in used}
    keys = [key for key in workspace.domains if key in used]
    site_of = {key: _site_name(workspace, topology, key) for key in keys}
    account_of = {
        domain.connection: accounts.get(domain.connection, f"ACCOUNT_{domain.connection}")
        for domain in workspace.domains.values()
    }
    sites: dict[str, Site] = {}
    for name in dict.fromkeys(site_of.values()):
        own = [key for key in keys if site_of[key] == name]
        names = dict.fromkeys(account_of[workspace.domains[key].connection] for key in own)
        owners = {g.owner: site_of[g.owner_domain] for g in grants if g.user in names}
        names |= dict.fromkeys(owners)
        hub = _find_hub(workspace, keys, site_of, own)
        if hub == name:
            hub = next((site for site in owners.values() if site != name), name)
        sites[name] = Site(
            name,
            tuple(
                Account(
                    account,
                    users=tuple(
                        user.render(password)
                        for user in listed
                        if site_of[user.found.app.domain] == name
                        and account_of[workspace.domains[user.found.app.domain].connection]
                        == account
                    ),
                    extra=render_account_config(
                        account, [g for g in grants if {g.owner, g.user} <= names.keys()]
                    ),
                )
                for account in names
            ),
            workspace.domains[topology.routes.canonicalize(own[0])].js_domain,
            hub=hub if hub != name else None,
            binary=binary,
            extra=f"feature_flags {{ {REPLY_FLAG}: true }}\n" if later_replies else "",
        )
    return ProofSites(list(sites.values()), site_of, account_of)


def _site_name(workspace: Workspace, topology: Topology, key: str) -> str:
    """Return the server of a domain: domains of one name in two accounts share it."""
    domain = workspace.domains[topology.routes.canonicalize(key)]
    return domain.js_domain or domain.key


def _find_hub(
    workspace: Workspace, keys: Sequence[str], site_of: Mapping[str, str], own: Sequence[str]
) -> str | None:
    """Return the site to which a site is linked: the first one over the same connection."""
    connections = {workspace.domains[key].connection for key in own}
    return next((site_of[k] for k in keys if workspace.domains[k].connection in connections), None)


def stream_config(topology: Topology, address: Address) -> dict[str, Any]:
    """Return the configuration of a stream or bucket that applications use."""
    body = topology.bodies[topology.find_declared(address)]
    found = {name: body[name] for name in _STREAM_FIELDS if body.get(name) is not None}
    copies = body.get("mirror") or body.get("sources")
    subjects = [f"proof.{address.stream}"] if copies else [address.stream]
    if address.kind != "stream":
        subjects = [f"{each}>" for each in subject_prefixes(address.kind, address.name)]
    default = {"subjects": subjects, "allow_direct": address.kind != "stream"}
    return default | found | {"name": address.stream, "storage": "memory"}


def consumer_config(topology: Topology, address: Address) -> dict[str, Any]:
    """Return the configuration of a consumer that applications use."""
    body = topology.bodies[address]
    found = {name: body[name] for name in _CONSUMER_FIELDS if body.get(name) is not None}
    return found | {"name": address.consumer, "durable_name": address.consumer}
