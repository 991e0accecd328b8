"""NACK's Account and connection keys of other resources, as connections of a workspace.

Secrets stay where they are.
"""

from __future__ import annotations

from typing import Any

from jsplan.config.node import Node
from jsplan.converting.connections import join_server_urls
from jsplan.converting.field_map import texts
from jsplan.converting.model import DEFAULT_CONNECTION, Conversion, NoteWriter


def convert_account(node: Node, spec: Node, out: Conversion) -> None:
    """Add a connection under the account's name, with its servers.

    Files and variables replace the secrets of Kubernetes. Raises BadValue for invalid servers.
    """
    meta = node.get("metadata")
    name = _read_text(meta, "name") or _read_text(spec, "name")
    if name is None:
        out.general_notes.unreadable(node, "Account has no name", "Give it a `metadata.name`.")
        return
    notes = out.general_notes
    found = out.connections.setdefault(name, {})
    urls = spec.get("servers")
    if urls is not None and urls.value and (url := join_server_urls(texts(urls), urls, notes)):
        found["url"] = url
    _add_credentials(name, spec, found, notes)


def _read_text(node: Node | None, key: str) -> str | None:
    found = node.get(key) if node is not None else None
    return str(found.value) if found is not None and found.value else None


def _add_credentials(name: str, spec: Node, found: dict[str, Any], notes: NoteWriter) -> None:
    """Replace each secret of Kubernetes by a file or a variable; a note says which one."""
    variable = "".join(letter if letter.isalnum() else "_" for letter in name).upper()
    if (creds := spec.get("creds")) is not None:
        found["creds"] = f"./{_secret_file(creds, 'file', f'{name}.creds')}"
        notes.info(
            creds,
            f"account {name}: creds are a secret in Kubernetes",
            f"Save it as {found['creds']} beside the workspace.",
        )
    if (nkey := spec.get("nkey")) is not None:
        found["nkey"] = f"./{_secret_file(nkey, 'seed', f'{name}.nk')}"
        notes.info(
            nkey,
            f"account {name}: the nkey is a secret in Kubernetes",
            f"Save it as {found['nkey']} beside the workspace.",
        )
    if (user := spec.get("user")) is not None:
        found |= {"user": f"${{env.{variable}_USER}}", "password": f"${{env.{variable}_PASSWORD}}"}
        notes.info(
            user,
            f"account {name}: user and password are a secret in Kubernetes",
            f"Set {variable}_USER and {variable}_PASSWORD.",
        )
    if (token := spec.get("token")) is not None:
        found["token"] = f"${{env.{variable}_TOKEN}}"
        notes.info(
            token, f"account {name}: the token is a secret in Kubernetes", f"Set {variable}_TOKEN."
        )
    if (tls := spec.get("tls")) is not None:
        files = {
            ours: f"./{_secret_file(tls, ours, '')}"
            for ours in ("ca", "cert", "key")
            if tls.get(ours) is not None
        }
        found["tls"] = files | ({"handshake_first": True} if _read_text(spec, "tlsFirst") else {})
        notes.info(
            tls,
            f"account {name}: the TLS files are a secret in Kubernetes",
            "Save them beside the workspace.",
        )


def _secret_file(node: Node, word: str, otherwise: str) -> str:
    found = node.get(word)
    return (
        found.value
        if found is not None and isinstance(found.value, str) and found.value
        else otherwise
    )


def read_inline_connection(spec: Node, name: str, out: Conversion, notes: NoteWriter) -> None:
    """Read servers and files that a resource names itself; the first such resource wins.

    Raises BadValue.
    """
    given: dict[str, Any] = {}
    urls, tls = spec.get("servers"), spec.get("tls")
    if urls is not None and urls.value and (url := join_server_urls(texts(urls), urls, notes)):
        given["url"] = url
    given |= {word: found for word in ("creds", "nkey") if (found := _read_text(spec, word))}
    if tls is not None and tls.value:
        authorities = tls.get("rootCas")
        files = (
            {"ca": texts(authorities)[0]} if authorities is not None and authorities.value else {}
        )
        given["tls"] = files | {
            ours: found
            for ours, word in (("cert", "clientCert"), ("key", "clientKey"))
            if (found := _read_text(tls, word))
        }
    known = out.connections.setdefault(name, {})
    for word, value in given.items():
        if known.setdefault(word, value) != value:
            notes.not_converted(
                spec.key_place(word),
                f"its {word} is not that of connection {name}",
                "Declare a connection and a domain of its own.",
            )


def add_missing_accounts(out: Conversion) -> None:
    """Add a connection for every account that a resource names; note those without an Account."""
    for name in dict.fromkeys(resource.owner.connection for resource in out.resources):
        if not out.connections.setdefault(name, {}) and name != DEFAULT_CONNECTION:
            out.general_notes.info(
                None,
                f"connection {name}: its Account was not given",
                "Write its `url` and credentials.",
            )
