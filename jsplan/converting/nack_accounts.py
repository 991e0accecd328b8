"""NACK's Account, and the connection words of its other resources, as connections of a workspace. Secrets stay where they are."""

from __future__ import annotations

from typing import Any

from jsplan.config.node import Node
from jsplan.converting.connections import servers
from jsplan.converting.model import Conversion, Teller


def account(node: Node, spec: Node, out: Conversion) -> None:
    """A connection under the account's name: its servers, and files or variables in place of what Kubernetes keeps as secrets."""
    meta = node.get("metadata")
    name = next(
        (found.value for found in (spec.get("name"), meta.get("name") if meta else None) if found is not None and found.value), None
    )
    if not name:
        out.general.unreadable(node, "Account has no name", "Give it a `metadata.name`.")
        return
    tell = out.general
    found = out.connections.setdefault(str(meta.get("name").value if meta and meta.get("name") else name), {})  # type: ignore[union-attr]
    urls = spec.get("servers")
    if urls is not None and urls.value:
        found["url"] = servers([str(item.value) for item in urls.value], urls, tell)
    _secrets(str(name), spec, found, tell)


def _secrets(name: str, spec: Node, found: dict[str, Any], tell: Teller) -> None:
    """Where the other tool says a secret of Kubernetes, ours says a file or a variable; which one is told."""
    variable = "".join(letter if letter.isalnum() else "_" for letter in name).upper()
    if (creds := spec.get("creds")) is not None:
        found["creds"] = f"./{_file(creds, 'file', f'{name}.creds')}"
        tell.knows(creds, f"account {name}: creds are a secret in Kubernetes", f"Save it as {found['creds']} beside the workspace.")
    if (nkey := spec.get("nkey")) is not None:
        found["nkey"] = f"./{_file(nkey, 'seed', f'{name}.nk')}"
        tell.knows(nkey, f"account {name}: the nkey is a secret in Kubernetes", f"Save it as {found['nkey']} beside the workspace.")
    if (user := spec.get("user")) is not None:
        found |= {"user": f"${{env.{variable}_USER}}", "password": f"${{env.{variable}_PASSWORD}}"}
        tell.knows(user, f"account {name}: user and password are a secret in Kubernetes", f"Set {variable}_USER and {variable}_PASSWORD.")
    if (token := spec.get("token")) is not None:
        found["token"] = f"${{env.{variable}_TOKEN}}"
        tell.knows(token, f"account {name}: the token is a secret in Kubernetes", f"Set {variable}_TOKEN.")
    if (tls := spec.get("tls")) is not None:
        files = {ours: f"./{_file(tls, ours, '')}" for ours in ("ca", "cert", "key") if tls.get(ours) is not None}
        found["tls"] = files | ({"handshake_first": True} if spec.get("tlsFirst") and spec.get("tlsFirst").value else {})  # type: ignore[union-attr]
        tell.knows(tls, f"account {name}: the TLS files are a secret in Kubernetes", "Save them beside the workspace.")


def _file(node: Node, word: str, otherwise: str) -> str:
    found = node.get(word)
    return str(found.value) if found is not None and found.value else otherwise


def connection_of(out: Conversion) -> None:
    """Every account that a resource names has a connection, also where its Account was not given."""
    for resource in out.resources:
        out.connections.setdefault(resource.owner.connection, {})
