"""Servers whose accounts share subjects, with static or JWT accounts.

A test passes the exports and imports, or takes them from `jsplan access`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from typing import TYPE_CHECKING, Any

from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import HOST, Layout, Node, User
from tests.support.raw import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from tests.support.jwt import Operator
    from tests.support.raw import Raw


def static_accounts(blocks: Mapping[str, str], *, without: tuple[str, ...] = ()) -> str:
    """`accounts { … }` with one user per account, named like the account in small letters.

    `blocks` is the other text of each account. Accounts in `without` have no JetStream. SYS is the
    system account.
    """
    rows = []
    for name, text in blocks.items():
        user, stored = name.lower(), "" if name in without else "jetstream: enabled\n"
        rows.append(
            f"{name}: {{\nusers: [{{user: {user}, password: {user}}}]\n{stored}{text}\n}}\n"
        )
    return f"accounts {{\nSYS: {{users: [{{user: sys, password: sys}}]}}\n{''.join(rows)}}}\nsystem_account: SYS\n"


def static_user(account: str) -> User:
    """The user of a static account."""
    return User(account, account.lower(), account.lower())


def start_servers(
    hub: str,
    login: User,
    *,
    domain: str | None = "hub",
    leaf: str | None = None,
    leaf_login: User | None = None,
    remotes: Iterable[tuple[str, str]] = (),
    **where: Any,
) -> Sandbox:
    """Start a hub with this configuration, and a leaf if `leaf` is given.

    `remotes` are the links of the leaf: credentials and the account of the leaf. Credentials are
    `user:password`, or the path of a creds file. An empty account is the only one of the leaf.
    """

    def layout(port_of: Callable[[str], int]) -> Layout:
        links = port_of("hub.leafnodes") if leaf is not None else None
        nodes = [
            Node("hub", port_of("hub"), domain=domain, leafnodes=links, login=login, extra=hub)
        ]
        if leaf is not None and links is not None:
            rows = ", ".join(
                _remote(links, credentials, account) for credentials, account in remotes
            )
            text = f"leafnodes {{\n    reconnect: 1\n    remotes = [{rows}]\n}}\n{leaf}"
            nodes.append(Node("leaf", port_of("leaf"), domain="leaf", login=leaf_login, extra=text))
        return Layout("hub-and-leaf" if domain else "single", tuple(nodes))

    return Sandbox(layout, **where)


def _remote(port: int, credentials: str, account: str) -> str:
    to = f', account: "{account}"' if account else ""
    if credentials.endswith(".creds"):
        return f'{{urls: ["nats://{HOST}:{port}"], credentials: {json.dumps(credentials)}{to}}}'
    return f'{{urls: ["nats://{credentials}@{HOST}:{port}"]{to}}}'


class FakeNsc:
    """The part of `nsc` that `jsplan access` uses; unknown arguments are an error."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        adding = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False).add_subparsers(
            dest="what", required=True
        )
        export, import_ = (
            adding.add_parser("export", allow_abbrev=False),
            adding.add_parser("import", allow_abbrev=False),
        )
        for parser in (export, import_):
            parser.add_argument("--account", required=True)
            parser.add_argument("--name", required=True)
            parser.add_argument("--service", action="store_true")
        export.add_argument("--subject", required=True)
        export.add_argument("--response-type", choices=["Singleton", "Stream", "Chunked"])
        export.add_argument("--account-token-position", type=int)
        import_.add_argument("--src-account", required=True)
        import_.add_argument("--remote-subject", required=True)
        import_.add_argument("--local-subject")
        self._parsers = {"export": export, "import": import_}

    def run(self, command: str) -> None:
        """Run one command line."""
        program, add, what, *words = shlex.split(command)
        assert (program, add) == ("nsc", "add")
        given = self._parsers[what].parse_args(words)
        account, kind = self._account(given.account), "service" if given.service else "stream"
        if what == "export":
            assert given.response_type is None or kind == "service"
            account.export(
                kind,
                given.subject,
                response_type=given.response_type,
                token_position=given.account_token_position,
            )
        else:
            account.take(
                kind, self._account(given.src_account), given.remote_subject, given.local_subject
            )

    def _account(self, name: str) -> Any:
        return next(a for a in self._operator.accounts.values() if name in (a.name, a.public))


def publish_many(raw: Raw, subjects: Mapping[str, int], size: int) -> None:
    """Publish `count` messages per subject, as fast as the stream stores them."""
    payload = bytes(size)
    for subject, count in subjects.items():
        for done in range(0, count, 500):
            raw.publish_all([encode(subject, payload)] * (min(500, count - done) - 1))
            assert b'"seq"' in raw.request(subject, payload)[1]


def wait_for_messages(
    raw: Raw, expected: Mapping[str, int], *, prefix: str = "$JS.API", seconds: float = 90
) -> dict[str, int]:
    """Wait while messages keep arriving, until each stream has the expected number.

    Return the last counts.
    """
    counts: dict[str, int] = {}
    end = time.monotonic() + seconds
    while counts != dict(expected) and time.monotonic() < end:
        time.sleep(0.05)
        now = {
            name: int(raw.api_ok(f"{prefix}.STREAM.INFO.{name}")["state"]["messages"])
            for name in expected
        }
        end = time.monotonic() + seconds if now != counts else end
        counts = now
    return counts


def creds_of(operator: Operator, folder: Path) -> dict[str, Path]:
    """Write a creds file for one user of each account."""
    return {
        name: account.creds(folder, name.lower()) for name, account in operator.accounts.items()
    }


def include_of(path: Path) -> str:
    """The line of a server's configuration that includes a file, whatever folder that is in.

    Servers read a path as relative, also one that begins with a slash.
    """
    return f"include {'../' * 20}{str(path).lstrip('/')}"
