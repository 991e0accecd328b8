"""The document of `jsplan access`: the exports and imports that are needed.

With `--check` it says which of them the servers have.
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


class Access(Document, tag="access"):
    """The whole document. `checked` is true if the servers were asked.

    `connections` has a connection of each account, for the text: a public key says little.
    """

    LOCAL = ("connections",)

    jsplan_version: str
    workspace: str
    environment: str | None
    checked: bool
    needs: list[Need] = field(default_factory=list)
    accounts: list[AccountGrants] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    connections: dict[str, str] = field(default_factory=dict)

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
