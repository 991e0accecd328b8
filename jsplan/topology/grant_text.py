"""Grants and permissions as text: server configuration and `nsc` commands. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from jsplan.resources.account import (
    PUBLIC_KEY,
    ExportWords,
    ImportWords,
    role_lines,
)
from jsplan.resources.account_file import render_exports, render_imports, render_permissions
from jsplan.subjects import is_subset
from jsplan.topology.access import REPLY_FLAG, Grant
from jsplan.topology.app_permissions import VERBS, AppPermissions, Permission


class Export(Struct):
    """One export of an account, with the accounts that import it.

    `token_position` is the place of the importing account's key (from 1). `optional` as in `Grant`.
    """

    kind: str
    subject: str
    streamed: bool = False
    importers: list[str] = field(default_factory=list)
    token_position: int | None = None
    optional: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the element of the documents."""
        found: dict[str, object] = {
            "type": self.kind,
            "subject": self.subject,
            "accounts": sorted(self.importers),
        }
        found |= {"response_type": "stream"} if self.streamed else {}
        found |= {"optional": True} if self.optional else {}
        return found | (
            {"account_token_position": self.token_position} if self.token_position else {}
        )


def list_accounts(grants: Iterable[Grant]) -> list[str]:
    """List every account that exports or imports something."""
    return sorted({account for grant in grants for account in (grant.owner, grant.user)})


def collect_exports(account: str, grants: Iterable[Grant]) -> list[Export]:
    """Return the exports of the account, each subject once.

    nsc refuses an export within another of the same kind.
    """
    found: dict[tuple[str, str], Export] = {}
    for grant in grants:
        if grant.owner == account:
            subject, token = _with_token_position(grant)
            export = found.setdefault(
                (grant.kind, subject),
                Export(grant.kind, subject, token_position=token, optional=grant.optional),
            )
            export.optional &= grant.optional
            export.streamed |= grant.streams_responses
            export.importers += [grant.user] if grant.user not in export.importers else []
    wide = [
        e
        for e in found.values()
        if not any(
            o is not e and o.kind == e.kind and is_subset(e.subject, o.subject)
            for o in found.values()
        )
    ]
    for inner in found.values():
        for outer in wide:
            if (
                outer is not inner
                and outer.kind == inner.kind
                and is_subset(inner.subject, outer.subject)
            ):
                outer.importers += [user for user in inner.importers if user not in outer.importers]
                outer.streamed |= inner.streamed
    return sorted(wide, key=lambda e: (e.kind, e.subject))


def _with_token_position(grant: Grant) -> tuple[str, int | None]:
    """Return the subject, and the position of the importing account's key in it.

    A delivery subject with that key is exported to each account for its own key only.
    """
    parts = grant.subject.split(".")
    place = next((index for index, part in enumerate(parts) if PUBLIC_KEY.fullmatch(part)), None)
    if grant.kind != "stream" or place is None:
        return grant.subject, None
    return ".".join("*" if index == place else part for index, part in enumerate(parts)), place + 1


def list_exports(account: str, grants: Iterable[Grant]) -> dict[ExportWords, str]:
    """Return the exports of an account in a file, each with a remark."""
    found: dict[ExportWords, str] = {}
    for each in collect_exports(account, grants):
        token = str(each.token_position) if each.token_position else None
        for importer in sorted(each.importers) if each.token_position is None else [None]:
            words = ExportWords(each.kind, each.subject, each.streamed, token, importer)
            found[words] = _remark_on(each)
    return found


def list_imports(account: str, grants: Iterable[Grant]) -> dict[ImportWords, str]:
    """Return the imports of an account, each with a remark."""
    return {
        ImportWords(each.kind, each.subject, each.owner, each.local_subject): _remark_on(each)
        for each in grants
        if each.user == account
    }


def _remark_on(shared: Export | Grant) -> str:
    return REPLY_FLAG if shared.optional else ""


def list_permissions(found: AppPermissions, key: str | None) -> list[str]:
    """Return the lines of a role with these permissions."""
    publish, subscribe = ([each.text for each in found.allowed(verb)] for verb in VERBS)
    return list(role_lines(found.app.name, key, publish, subscribe))


def render_account_config(account: str, grants: Sequence[Grant]) -> str:
    """Return the `exports` and `imports` of the account, for its block in `accounts { … }`."""
    exports, imports = list_exports(account, grants), list_imports(account, grants)
    lists = [render_exports(exports)] if exports else []
    lists += [render_imports(imports)] if imports else []
    return "".join(lists)


def render_nsc_commands(account: str, grants: Sequence[Grant]) -> list[str]:
    """Return the `nsc` commands that give the account its exports and imports."""
    commands = []
    for export in collect_exports(account, grants):
        arguments = ["nsc", "add", "export", "--account", account, "--name", export.subject]
        arguments += ["--subject", export.subject]
        arguments += ["--service"] if export.kind == "service" else []
        arguments += ["--response-type", "Stream"] if export.streamed else []
        if export.token_position:
            arguments += ["--account-token-position", str(export.token_position)]
        commands.append(shlex.join(arguments))
    for grant in (grant for grant in grants if grant.user == account):
        arguments = ["nsc", "add", "import", "--account", account, "--src-account", grant.owner]
        arguments += ["--name", grant.local_subject, "--remote-subject", grant.subject]
        arguments += (
            ["--local-subject", grant.local_subject, "--service"] if grant.kind == "service" else []
        )
        commands.append(shlex.join(arguments))
    return commands


def render_user_config(found: AppPermissions) -> str:
    """Return a variable with the permissions, for `permissions:` of the user."""
    why = [_describe(each) for verb in VERBS for each in found.allowed(verb)]
    lines = list_permissions(found, None)
    return render_permissions(found.app.name, dict(zip(lines, why, strict=True)))


def _describe(permission: Permission) -> str:
    why = ", ".join(permission.uses)
    return f"{REPLY_FLAG}: {why}" if permission.optional else why


def render_nsc_command(found: AppPermissions) -> str:
    """Return the command that adds the user to its account."""
    app = found.app
    arguments = ["nsc", "add", "user", "--account", found.account or "ACCOUNT", "--name", app.user]
    for flag, verb in zip(("--allow-pub", "--allow-sub"), VERBS, strict=True):
        subjects = ",".join(each.text for each in found.allowed(verb))
        arguments += [flag, subjects] if subjects else [flag.replace("allow", "deny"), ">"]
    return shlex.join(arguments)
