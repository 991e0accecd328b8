"""The permissions of the users of jsplan itself, by what a workspace has. Pure.

`plan` reads configurations, and messages to count what a change would delete. `drift` reads no
message but those of its state and of contents that are managed. `deploy` does everything. A server
checks the API of its own domain as `$JS.API`; which of several domains that is, no file says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from jsplan.config.model import App, Domain, Workspace
from jsplan.diagnostics import NO_LOCATION
from jsplan.resources.buckets import subject_prefixes
from jsplan.topology.app_permissions import (
    AppPermissions,
    Permission,
    PermissionVerb,
    merge_permissions,
)
from jsplan.topology.routes import is_import

Role = Literal["plan", "drift", "deploy"]
ROLES: Final[tuple[Role, ...]] = ("plan", "drift", "deploy")
_ALL: Final = ROLES
#: Requests after the prefix of an API: the roles that send them, and why.
_REQUESTS: Final[tuple[tuple[tuple[Role, ...], str, tuple[str, ...]], ...]] = (
    (_ALL, "every command", (
        "INFO", "STREAM.INFO.*", "CONSUMER.INFO.*.*",
    )),
    (_ALL, "what is not managed, and fewer requests", (
        "STREAM.NAMES", "STREAM.LIST", "CONSUMER.NAMES.*", "CONSUMER.LIST.*",
    )),
    (("plan", "deploy"), "to count what a change deletes", ("STREAM.MSG.GET.*", "DIRECT.GET.*")),
    (("deploy",), "apply", (
        "STREAM.CREATE.*", "STREAM.UPDATE.*", "STREAM.DELETE.*", "CONSUMER.CREATE.>",
        "CONSUMER.DELETE.*.*",
    )),
    (("deploy",), "replacing a consumer, position", ("CONSUMER.PAUSE.*.*", "CONSUMER.RESET.*.*")),
    (("deploy",), "preserve, relocate, backup and restore", (
        "STREAM.PURGE.*", "STREAM.MSG.DELETE.*", "STREAM.SNAPSHOT.*", "STREAM.RESTORE.*",
    )),
)  # fmt: skip
_SNAPSHOTS: Final = ("$JS.SNAPSHOT.ACK.>", "$JS.SNAPSHOT.RESTORE.>")
_ADVISORIES: Final = (
    "$JS.EVENT.ADVISORY.STREAM.>", "$JS.EVENT.ADVISORY.CONSUMER.>", "$JS.EVENT.ADVISORY.API",
)  # fmt: skip


def derive_own_users(workspace: Workspace, accounts: Mapping[str, str]) -> Iterator[AppPermissions]:
    """Yield the users of each connection, one for each role.

    `accounts` has the account of each connection, by its key.
    """
    by_connection: dict[str, list[Domain]] = {}
    for domain in workspace.domains.values():
        if domain.accounts is not None:
            continue
        by_connection.setdefault(domain.connection, []).append(domain)
    for connection, domains in by_connection.items():
        name = f"-{connection}" if len(by_connection) > 1 else ""
        for role in ROLES:
            builder = _OwnUser(workspace, domains, role)
            builder.add_all()
            inbox = f"_INBOX_jsplan_{role}"
            builder.allow("subscribe", [f"{inbox}.>"], "answers")
            app = App(f"jsplan{name}-{role}", domains[0].key, "py", role, (), NO_LOCATION)
            permissions = merge_permissions(builder.permissions)
            yield AppPermissions(app, accounts.get(connection), inbox, permissions, [], {})


class _OwnUser:
    """Collects the permissions of one role over one connection."""

    def __init__(self, workspace: Workspace, domains: list[Domain], role: Role) -> None:
        self._workspace, self._role = workspace, role
        self._domains = {domain.key: domain for domain in domains}
        self.permissions: list[Permission] = []

    def allow(self, verb: PermissionVerb, subjects: Iterable[str], why: str) -> None:
        """Add permissions."""
        self.permissions += [Permission(verb, subject, (why,)) for subject in subjects]

    def add_all(self) -> None:
        """Add what the workspace needs."""
        prefixes = ["$JS.API"]
        own = [domain for domain in self._domains.values() if not is_import(domain)]
        prefixes += ["$JS.*.API"] if len(own) > 1 else []
        prefixes += [domain.api_prefix for domain in self._domains.values() if is_import(domain)]
        for roles, why, requests in _REQUESTS:
            if self._role in roles:
                for request in requests:
                    self.allow("publish", [f"{prefix}.{request}" for prefix in prefixes], why)
        if self._role == "plan":
            self.allow("publish", ["$SYS.REQ.ACCOUNT.PING.CONNZ"], "names in domains discover")
        if self._role == "deploy":
            self.allow("publish", _SNAPSHOTS, "backup and restore, preserve, relocate")
            if self._workspace.backfills:
                self.allow("publish", ["jsplan.ingest.>", "$JS.FC.>"], "backfills")
        if self._role == "drift":
            self.allow("subscribe", _ADVISORIES, "drift watch")
        self._add_state()
        self._add_contents()
        self._add_sinks()

    def _add_state(self) -> None:
        backend = self._workspace.backend
        if backend.bucket is not None and backend.domain in self._domains:
            stream = f"KV_{backend.bucket}"
            subjects = [f"{each}>" for each in subject_prefixes("kv", backend.bucket)]
            self._add_bucket(backend.domain, [f"STREAM.MSG.GET.{stream}"], subjects, "state")

    def _add_contents(self) -> None:
        """Add reads and writes of contents, by the stream or bucket that has them."""
        parents = {address.parent for address in self._workspace.resources if address.is_content}
        for parent in sorted(each for each in parents if each is not None):
            if parent.domain not in self._domains:
                continue
            stream = parent.stream
            reads, why = [f"STREAM.MSG.GET.{stream}"], f"contents of {parent}"
            if parent.kind == "stream":
                subjects = self._workspace.resources[parent].body.get("subjects") or [stream]
            else:
                subjects = [f"{each}>" for each in subject_prefixes(parent.kind, parent.name)]
                reads.append(f"DIRECT.GET.{stream}")
            self._add_bucket(parent.domain, reads, list(subjects), why)

    def _add_bucket(self, key: str, reads: list[str], subjects: list[str], why: str) -> None:
        """Add requests and subjects in a domain, which may be that of the server or another one."""
        prefixes = ["$JS.API"] if not is_import(self._domains[key]) else []
        if len(self._domains) > 1:
            prefixes.append(self._domains[key].api_prefix)
        self.allow("publish", [f"{prefix}.{read}" for prefix in prefixes for read in reads], why)
        if self._role == "deploy":
            self.allow("publish", subjects, why)
            mapped = [subject for subject in subjects if subject.startswith("$KV.")]
            if len(self._domains) > 1:
                prefix = self._domains[key].api_prefix
                self.allow("publish", [f"{prefix}.{subject}" for subject in mapped], why)

    def _add_sinks(self) -> None:
        first = next(iter(self._workspace.domains))
        for sink in self._workspace.drift.sinks if self._role == "drift" else ():
            if "subject" in sink and (sink.get("domain") or first) in self._domains:
                self.allow("publish", [str(sink["subject"])], "drift watch")
