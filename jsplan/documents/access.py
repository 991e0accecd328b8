"""The document of `jsplan access`: exports, imports and permissions that are needed.

With `--check` it says which exports and imports the servers have, with `--prove` what the
permissions of applications allow on embedded servers.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from jsplan.diagnostics import Diagnostic
from jsplan.documents.base import Document

Status = Literal["ok", "missing", "unknown"]


class Need(Struct, omit_defaults=True):
    """One subject from account `owner` to account `user`.

    `status` and `detail` are the result of the check, None if it was not checked. `optional`: only
    servers with the feature flag `js_ack_fc_v2` need it.
    """

    owner: str
    user: str
    type: str
    subject: str
    local_subject: str
    response_type: str | None
    needed_by: list[str]
    status: Status | None = None
    detail: str | None = None
    optional: bool = False


class AccountGrants(Struct):
    """The grants that one account needs: as data, as server configuration and as `nsc` commands."""

    account: str
    exports: list[dict[str, Any]]
    imports: list[dict[str, Any]]
    configuration: str
    nsc: list[str]


class AppPermission(Struct, omit_defaults=True):
    """One subject of an application, as a permission has it, and the uses that need it."""

    subject: str
    needed_by: list[str]
    optional: bool = False


class UseResult(Struct, omit_defaults=True):
    """One use on the embedded servers; `problem` is empty if it works."""

    use: str
    problem: str = ""


class Proof(Struct):
    """The result for one application on embedded servers of `version`.

    `uses` are those that the application declares. `unneeded` are permissions without which all
    uses work. `refused` other requests were refused, `permitted` ones were not. `unproven` are
    permissions that only servers with the feature flag `js_ack_fc_v2` need.
    """

    version: str
    uses: list[UseResult]
    unneeded: list[str]
    refused: int
    permitted: list[str]
    unproven: int

    @property
    def is_complete(self) -> bool:
        """True if all uses work, and nothing more is permitted than they need."""
        return not (any(use.problem for use in self.uses) or self.unneeded or self.permitted)


class AppAccess(Struct):
    """The permissions of one application: as data, as server configuration, and for `nsc`.

    `inbox` is the prefix that its client must set. `escapes` are what its permissions allow beyond
    its uses, since a server knows only subjects. `proof` is there with `--prove`.
    """

    app: str
    domain: str
    account: str | None
    user: str
    client: str
    inbox: str
    publish: list[AppPermission]
    subscribe: list[AppPermission]
    escapes: list[str]
    configuration: str
    nsc: str
    proof: Proof | None = None

    @property
    def permission_texts(self) -> set[str]:
        """Each permission as text."""
        return {f"publish {each.subject}" for each in self.publish} | {
            f"subscribe {each.subject}" for each in self.subscribe
        }


class AppChange(Struct):
    """The permissions that one application gains and loses, as `publish SUBJECT` and alike."""

    app: str
    gains: list[str]
    loses: list[str]


class Access(Document, tag="access"):
    """The whole document. `checked` is true if the servers were asked.

    `changes` are those since the document that `--against` names; null without that.
    `connections` has a connection of each account, for the text: a public key says little.
    """

    LOCAL = ("connections",)

    jsplan_version: str
    workspace: str
    environment: str | None
    checked: bool
    needs: list[Need] = field(default_factory=list)
    accounts: list[AccountGrants] = field(default_factory=list)
    apps: list[AppAccess] = field(default_factory=list)
    changes: list[AppChange] | None = None
    diagnostics: list[Diagnostic] = field(default_factory=list)
    connections: dict[str, str] = field(default_factory=dict)

    def changes_since(self, before: Access) -> list[AppChange]:
        """Return who gains and who loses what, in order of the names."""
        then, now = (
            {app.app: app.permission_texts for app in found.apps} for found in (before, self)
        )
        rows = [
            AppChange(
                name,
                sorted(now.get(name, set()) - then.get(name, set())),
                sorted(then.get(name, set()) - now.get(name, set())),
            )
            for name in sorted(then.keys() | now.keys())
        ]
        return [row for row in rows if row.gains or row.loses]

    @property
    def required(self) -> list[Need]:
        """The needs that are not optional: only these decide whether something is missing."""
        return [need for need in self.needs if not need.optional]

    def with_status(self, status: Status) -> list[Need]:
        """Return the required needs with this status."""
        return [need for need in self.required if need.status == status]

    def to_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        document = Document.to_json(self)
        if self.checked:
            document["summary"] = {
                status: len(self.with_status(status)) for status in ("ok", "missing", "unknown")
            }
        return document
