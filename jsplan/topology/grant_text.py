"""Grants and permissions as text: server configuration and `nsc` commands. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from jsplan.resources.account import PUBLIC_KEY
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


def render_account_config(account: str, grants: Sequence[Grant]) -> str:
    """Return the `exports` and `imports` of the account, for its block in `accounts { … }`."""
    offered, taken = (
        collect_exports(account, grants),
        [grant for grant in grants if grant.user == account],
    )
    lines = (
        ["exports: [", *(_line(_render_export(e), optional=e.optional) for e in offered), "]"]
        if offered
        else []
    )
    lines += (
        ["imports: [", *(_line(_render_import(g), optional=g.optional) for g in taken), "]"]
        if taken
        else []
    )
    return "".join(f"{line}\n" for line in lines)


def _line(element: str, *, optional: bool) -> str:
    return f"    {element}" + (f"  # {REPLY_FLAG}" if optional else "")


def _render_export(export: Export) -> str:
    parts = [f"{export.kind}: {_quote(export.subject)}"]
    parts += ["response_type: stream"] if export.streamed else []
    parts += (
        [f"account_token_position: {export.token_position}"]
        if export.token_position
        else [f"accounts: [{', '.join(map(_quote_if_needed, sorted(export.importers)))}]"]
    )
    return "{" + ", ".join(parts) + "}"


def _render_import(grant: Grant) -> str:
    renamed = f", to: {_quote(grant.local_subject)}" if grant.local_subject != grant.subject else ""
    renamed_account = f"account: {_quote_if_needed(grant.owner)}, subject: {_quote(grant.subject)}"
    return f"{{{grant.kind}: {{{renamed_account}}}{renamed}}}"


def render_nsc_commands(account: str, grants: Sequence[Grant]) -> list[str]:
    """Return the `nsc` commands that give the account its exports and imports."""
    commands = []
    for export in collect_exports(account, grants):
        arguments = [
            "nsc",
            "add",
            "export",
            "--account",
            account,
            "--name",
            export.subject,
            "--subject",
            export.subject,
        ]
        arguments += ["--service"] if export.kind == "service" else []
        arguments += ["--response-type", "Stream"] if export.streamed else []
        arguments += (
            ["--account-token-position", str(export.token_position)]
            if export.token_position
            else []
        )
        commands.append(shlex.join(arguments))
    for grant in (grant for grant in grants if grant.user == account):
        arguments = [
            "nsc",
            "add",
            "import",
            "--account",
            account,
            "--src-account",
            grant.owner,
            "--name",
            grant.local_subject,
        ]
        arguments += ["--remote-subject", grant.subject]
        arguments += (
            ["--local-subject", grant.local_subject, "--service"] if grant.kind == "service" else []
        )
        commands.append(shlex.join(arguments))
    return commands


def _quote_if_needed(name: str) -> str:
    """Quote a name that the server's configuration could read as a number or a variable."""
    return (
        name
        if name.replace("_", "").replace("-", "").isalnum() and name[:1].isalpha()
        else _quote(name)
    )


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def render_user_config(found: AppPermissions) -> str:
    """Return a variable with the permissions, for `permissions:` of the user."""
    name = re.sub(r"\W", "_", found.app.name).upper()
    blocks = [_render_block(verb, found.allowed(verb)) for verb in VERBS]
    return "\n".join((f"{name} = {{", *blocks, "}", ""))


def _render_block(verb: str, allowed: Sequence[Permission]) -> str:
    if not allowed:  # a server takes an empty list for everything
        return f'  {verb}: {{deny: ">"}}'
    lines = [f"    {json.dumps(each.text)}  # {_describe(each)}" for each in allowed]
    return "\n".join((f"  {verb}: {{allow: [", *lines, "  ]}"))


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
