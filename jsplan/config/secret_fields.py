"""Rules for secret values: never from a variable, and files of credentials by path only."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.interpolate import variables_in
from jsplan.config.node import Node, to_plain
from jsplan.secrets import register_secret

#: The fields of a connection that are secrets; of a `url` the part before `@` is one.
CONNECTION_SECRETS: Final = ("password", "token")
#: Text that is never a path: several lines, a seed, a JWT, longer than any system allows.
_CONTENT: Final = re.compile(
    r".*[\r\n].*|-----BEGIN.*|S[A-Z2-7]{57}|eyJ[\w-]+\.[\w-]+\.[\w-]*|.{4097,}", re.DOTALL
)


def refuse_variables(
    connections: Node | None, variables: Mapping[str, Node], findings: Findings
) -> None:
    """Report secrets of connections that come from variables, which plans and pages show.

    It takes the section as written.
    """
    _refuse(connections, "`connections`", findings)
    for key, connection in _entries(connections):
        _refuse(connection, f"connection {key}", findings)
        for name in CONNECTION_SECRETS:
            _refuse(connection.get(name), f"`{name}` of connection {key}", findings)
        url = connection.get("url")
        if url is not None and _has_login(url, variables):
            _refuse(url, f"`url` of connection {key}, with a user or a password in it,", findings)


def refuse_variables_in_sink(sink: Node, findings: Findings) -> None:
    """Report a webhook whose URL or headers come from variables: both may hold credentials."""
    _refuse(sink, "a sink", findings)
    hook = sink.get("webhook")
    _refuse(hook, "a webhook", findings)
    for key, node in _entries(hook):
        _refuse(node, f"`{key}` of a webhook", findings)
        for name, value in _entries(node):
            _refuse(value, f"header {name} of a webhook", findings)


def mark_secret(*nodes: Node | None) -> None:
    """Mark values that no message may show, and parts of them from the environment."""
    for node in nodes:
        if node is not None:
            node.secret = True
            for value, shown in node.references.items():
                register_secret(value, shown)
            if node.references and isinstance(node.value, str):
                register_secret(node.value, describe(node))


def describe(node: Node) -> str:
    """Return the text to show for a value from the environment, such as `${env.X}`."""
    return node.references.get(str(node.value)) or "the text with ${env.…}"


def url_problem(url: Node, part: str, schemes: Collection[str]) -> str:
    """Explain why text of a URL is none, without values of `${env.X}`; empty if it is one."""
    problem = parsing.url_problem(part, schemes)
    return f"{describe(url)} is not a URL" if problem and url.references else problem


def conceal_login(url: Node | None) -> None:
    """Conceal the password or the token of a URL from `${env.X}`, and the URL that has it."""
    if url is None or not url.references or not isinstance(url.value, str):
        return
    for part in url.value.split(","):
        login, has_login, _ = part.strip().rpartition("://")[2].rpartition("@")
        if has_login:
            secret = login.partition(":")[2] or login
            shown = url.references.get(secret) or describe(url)
            for text in (secret, login, part.strip(), url.value):
                register_secret(text, shown)


def is_content(value: str) -> bool:
    """Check whether text that should be a path is the content of a file of credentials."""
    return _CONTENT.fullmatch(value) is not None


def _entries(node: Node | None) -> Iterator[tuple[str, Node]]:
    return iter(node.value.items() if node is not None and isinstance(node.value, dict) else ())


def _has_login(url: Node, variables: Mapping[str, Node]) -> bool:
    values = [str(to_plain(variables[name])) for name in variables_in(url) if name in variables]
    return "@" in (url.raw or "") or any("@" in value for value in values)


def _refuse(node: Node | None, what: str, findings: Findings) -> None:
    names = variables_in(node) if node is not None else []
    if names:
        line = f"${{env.{re.sub(r'[^A-Za-z0-9_]', '_', names[0]).upper()}}}"
        text = f"{what} comes from variable {names[0]}, and plans show variables"
        hint = f"Write {line} in its place, and set that variable of the environment."
        findings.error("JS113", node, text, hint)
