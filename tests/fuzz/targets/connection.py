"""Connection settings in contexts, credentials, keys, certificates and the environment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tests.fuzz import hostile_values
from tests.fuzz.changes import form_of
from tests.fuzz.document_run import CREDENTIALS
from tests.fuzz.harness import WRONG, Target
from tests.fuzz.targets.common import WORKSPACE, files_document, with_commands

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun
    from tests.fuzz.documents import Document

_CONTEXT: Final = {
    "url": "nats://127.0.0.1:1",
    "user": "u",
    "password": hostile_values.IN_CREDENTIALS,
    "token": hostile_values.IN_CREDENTIALS,
    "creds": "",
    "nkey": "",
    "ca": "",
    "cert": "",
    "key": "",
    "inbox_prefix": "_IN",
    "tls_first": False,
    "description": "x",
    "nsc": "",
    "jetstream_domain": "hub",
}
#: A secret in a field where jsplan knows it as one.
_AS_SECRET: Final = re.compile(
    rf'"?(?:password|token)"?: "?{hostile_values.IN_CREDENTIALS}(?="?[,}}\s])|://u:{hostile_values.IN_CREDENTIALS}(?=@)'
)
_CONTEXTS: Final = "home/.config/nats/context"


def seeds() -> list[Document]:
    """Return one connection of each kind."""
    documents: list[Document] = []
    for connection in (
        {"context": "ctx"},
        {"context": "ctx", "creds": "a.creds"},
        None,
        {"url": "nats://127.0.0.1:1", "creds": "a.creds"},
        {"url": "nats://127.0.0.1:1", "nkey": "n.nk"},
        {"url": "tls://127.0.0.1:1", "tls": {"ca": "ca.pem", "cert": "ca.pem", "key": "ca.pem"}},
        {"url": f"nats://u:{hostile_values.IN_CREDENTIALS}@127.0.0.1:1"},
        {"url": "nats://127.0.0.1:1", "creds": "${env.FUZZ_CREDS}"},
        {"url": "nats://127.0.0.1:1", "nkey": "${env.FUZZ_CREDS}"},
        {"url": "nats://127.0.0.1:1", "tls": {"ca": "${env.FUZZ_CREDS}"}},
        {"context": "${env.FUZZ_CREDS}"},
        {"url": "${env.FUZZ_URL}"},
        {"url": "nats://127.0.0.1:1", "user": "u", "password": "${env.FUZZ_SECRET}"},
        {"url": "nats://127.0.0.1:1", "token": "${env.FUZZ_SECRET}"},
    ):
        parts = files_document(
            jsplan__yaml=WORKSPACE | {"connections": {"main": connection}}
        ) | files_document(**{f"{_CONTEXTS}/ctx__json": _CONTEXT})
        parts |= {
            "home/.config/nats/context.txt": b"ctx",
            "a.creds": CREDENTIALS.encode(),
            "n.nk": f"SU{hostile_values.IN_CREDENTIALS}".encode(),
            "ca.pem": b"x",
        }
        # Both commands fail without a server.
        documents += with_commands(parts | {WRONG: b""}, "plan", "domains discover")
    return documents


def run(scene: DocumentRun) -> None:
    """Run the command of the document; no server listens on the port."""
    for name in ("jsplan.yaml", f"{_CONTEXTS}/ctx.json"):
        text = scene.part(name).decode("utf-8", "replace")
        if text.count(hostile_values.IN_CREDENTIALS) != len(_AS_SECRET.findall(text)):
            return  # a mutation moved the secret to another field
    scene.jsplan(*scene.command())


TARGET: Final = Target(
    "connection", seeds, run, form=lambda name: "yaml" if name == "jsplan.yaml" else form_of(name)
)
