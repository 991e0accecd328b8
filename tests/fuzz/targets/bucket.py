"""State in a KV bucket: the document, a head with parts, and the journal."""

from __future__ import annotations

import gzip
import json
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from jsplan.state.parts import split_document
from tests.fuzz.documents import Document
from tests.fuzz.harness import Target
from tests.fuzz.played_server import KEY, Script, play_servers
from tests.fuzz.targets.common import recorded_seeds, with_commands
from tests.fuzz.targets.state import PATH, journal

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

COMMANDS: Final = (
    "state list",
    "state pull",
    "state pull --serial 1",
    "state rm hub/stream/S --lock-timeout 0s",
    "history",
    "plan",
    "apply -y --lock-timeout 0s",
    "state push pushed.json --force --lock-timeout 0s",
    "drift",
)
HEAD, WHOLE, BOMB = "$head.json", "$whole.json", "$bomb"
_SMALL: Final = {"workspace": "w", "environment": None, "lineage": "l", "serial": 3}
#: The head of a state that fits into one part.
_HEAD: Final = {
    "format_version": "1.0",
    "kind": "state-in-parts",
    "encoding": "gzip",
    "parts": "3.abc",
    "count": 1,
    "serial": 3,
}
#: Bytes that one piece of a bomb expands to.
PART_BYTES: Final = 64 << 20


@cache
def _compressed_part() -> bytes:
    return gzip.compress(b" " * PART_BYTES, 9, mtime=0)


def with_bucket(document: Document) -> Document:
    """Return the document with its state in a bucket."""
    fields = json.loads(document["jsplan.yaml"]) | {
        "backend": {"kv": {"domain": "hub", "bucket": "STATE"}}
    }
    others = {name: content for name, content in document.items() if name != PATH}
    return others | {"jsplan.yaml": json.dumps(fields).encode()}


def seeds() -> list[Document]:
    """Return a small state and one in parts, with and without a journal."""
    (recorded,) = recorded_seeds("status")
    state = json.loads(recorded[PATH])
    base = with_bucket(recorded) | {"pushed.json": recorded[PATH]}
    lines = journal(state).splitlines(keepends=True)
    journal_parts = {
        f"{KEY}_journal.w.{state['serial'] + 1}.1 .journal": b"".join(lines[:6]),
        f"{KEY}_journal.w.{state['serial'] + 1}.2 .journal": b"".join(lines[6:]),
    }
    whole = base | {f"{KEY}w .json": recorded[PATH]}
    packed = base | {HEAD: json.dumps(_HEAD).encode(), WHOLE: recorded[PATH], BOMB: b"0"}
    return [
        *with_commands(whole, *COMMANDS),
        *with_commands(whole | journal_parts, *COMMANDS),
        *with_commands(packed, *COMMANDS),
        *with_commands(packed | journal_parts, *COMMANDS),
    ]


def run(scene: DocumentRun) -> None:
    """Run the command of the document on the bucket."""
    script = play_servers(scene.document)
    if WHOLE in scene.document:
        _pack(scene, script)
    scene.jsplan(*scene.command())


def _pack(scene: DocumentRun, script: Script) -> None:
    """Store a state in parts, under a head with the fields of the document."""
    bomb, whole = scene.part(BOMB), scene.part(WHOLE)
    data = gzip.compress(whole, 1, mtime=0) + _compressed_part() * (
        int(bomb) if bomb.isdigit() else 0
    )
    parts = [data[at : at + 200_000] for at in range(0, len(data), 200_000)]
    head: Any = json.loads(split_document(_SMALL, 1)[0]) | {
        "parts": "3.abc",
        "count": len(parts),
        "bytes": len(whole),
        "sha256": sha256(data).hexdigest(),
    }
    try:
        fields = json.loads(scene.part(HEAD))
    except (ValueError, RecursionError):
        fields = scene.part(HEAD).decode("utf-8", "replace")
    head = head | fields if isinstance(fields, dict) else fields
    for number, part in enumerate(parts, 1):
        script.store(f"_part.w.3.abc.{number}", {}, part)
    script.bucket = True
    script.store("w", {}, json.dumps(head).encode())


TARGET: Final = Target(
    "state-parts",
    seeds,
    run,
    changes=lambda name: name.startswith((KEY, HEAD, WHOLE, BOMB, "pushed")),
    words=("count", "parts", "sha256", "encoding", "serial", "bytes"),
    form=lambda name: (
        "lines" if name.endswith(".journal") else "number" if name == BOMB else "json"
    ),
)
