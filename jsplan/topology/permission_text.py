"""Permissions of an application as text: server configuration and an `nsc` command. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from jsplan.topology.access import REPLY_FLAG
from jsplan.topology.app_permissions import VERBS, AppPermissions, Permission


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
