"""NACK's Account and connection keys of other resources, as connections of a workspace.

Secrets stay where they are.
"""

from __future__ import annotations

from typing import Any

from jsplan.config.node import Node
from jsplan.converting.connections import join_server_urls, use_variable
from jsplan.converting.model import DEFAULT_CONNECTION, Conversion, NoteWriter

#: Files of secrets: the key of an account, the key below it that names the file, and the tail.
_FILES = (("creds", "file", "creds"), ("nkey", "seed", "nk"))


def convert_account(node: Node, spec: Node, out: Conversion) -> None:
    """Add a connection under the account's name. Files and variables replace its secrets."""
    name = _read_text(node.get("metadata"), "name") or _read_text(spec, "name")
    notes = out.general_notes
    if not name:
        notes.unreadable(node, "Account has no name", "Give it a `metadata.name`.")
        return
    found = out.connections.setdefault(name, {}) | _read_url(spec, notes)
    for word, file, tail in _FILES:
        if (secret := spec.get(word)) is not None:
            found[word] = f"./{_read_text(secret, file) or f'{name}.{tail}'}"
            _note_secret(name, word, found[word], secret, notes)
    if (user := spec.get("user")) is not None:
        use_variable(found, name, "user", user, notes)
        use_variable(found, name, "password", user, notes)
    if (token := spec.get("token")) is not None:
        use_variable(found, name, "token", token, notes)
    if (tls := spec.get("tls")) is not None:
        words = [word for word in ("ca", "cert", "key") if tls.get(word) is not None]
        files: dict[str, Any] = {word: f"./{_read_text(tls, word)}" for word in words}
        _note_secret(name, "tls", ", ".join(files.values()), tls, notes)
        found["tls"] = files | ({"handshake_first": True} if _read_text(spec, "tlsFirst") else {})
    out.connections[name] = found


def _note_secret(name: str, word: str, files: str, at: Node, notes: NoteWriter) -> None:
    what = f"account {name}: its {word} is a secret in Kubernetes"
    notes.info(at, what, f"Save it beside the workspace: {files}")


def _read_text(node: Node | None, key: str) -> str:
    found = node.get(key) if node is not None else None
    return str(found.value) if found is not None and found.value else ""


def _read_url(spec: Node, notes: NoteWriter) -> dict[str, Any]:
    urls = spec.get("servers")
    if urls is None or not urls.value:
        return {}
    items = urls.value if isinstance(urls.value, list) else [urls]
    return {"url": join_server_urls([str(item.value) for item in items], urls, notes)}


def read_inline_connection(spec: Node, name: str, out: Conversion, notes: NoteWriter) -> None:
    """Read servers and files that a resource names itself; the first such resource wins."""
    given = _read_url(spec, notes)
    given |= {word: found for word in ("creds", "nkey") if (found := _read_text(spec, word))}
    tls = spec.get("tls")
    if tls is not None and tls.value:
        authorities = tls.get_value("rootCas")
        words = (("cert", "clientCert"), ("key", "clientKey"))
        files = {ours: found for ours, word in words if (found := _read_text(tls, word))}
        if isinstance(authorities, list) and authorities:
            files["ca"] = str(authorities[0].value)
        given["tls"] = files
    known = out.connections.setdefault(name, {})
    for word, value in given.items():
        if known.setdefault(word, value) != value:
            what = f"its {word} is not that of connection {name}"
            advice = "Declare a connection and a domain of its own."
            notes.not_converted(spec.key_place(word), what, advice)


def add_missing_accounts(out: Conversion) -> None:
    """Add a connection for every account that a resource names; note those without an Account."""
    for name in dict.fromkeys(resource.owner.connection for resource in out.resources):
        if not out.connections.setdefault(name, {}) and name != DEFAULT_CONNECTION:
            what = f"connection {name}: its Account was not given"
            out.general_notes.info(None, what, "Write its `url` and credentials.")
