"""Locks: the file beside a state file, and the key in a bucket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tests.fuzz.document_run import Violation
from tests.fuzz.documents import Document
from tests.fuzz.harness import WRONG, Target
from tests.fuzz.played_server import KEY, play_servers
from tests.fuzz.targets import bucket
from tests.fuzz.targets.common import recorded_seeds, with_commands
from tests.fuzz.targets.state import PATH

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

_LOCK: Final = {
    "id": "l1",
    "who": "ann",
    "host": "h",
    "pid": 812,
    "operation": "apply",
    "since": "2026-01-01T00:00:00Z",
}
_IN_BUCKET: Final = f"{KEY}_lock.w .json"
COMMANDS: Final = (
    "state rm hub/stream/S --lock-timeout 0s",
    "state unlock l1",
    "apply -y --lock-timeout 0s",
    "state list",
)


def seeds() -> list[Document]:
    """Return a lock that another process holds, in each backend."""
    (recorded,) = recorded_seeds("status")
    in_file = recorded | {f"{PATH}.lock": b"", f"{PATH}.lock.info": json.dumps(_LOCK).encode()}
    in_bucket = bucket.with_bucket(recorded) | {
        f"{KEY}w .json": recorded[PATH],
        _IN_BUCKET: json.dumps({"lock": _LOCK, "lease": 30.0}).encode(),
    }
    other = "state unlock other"
    return [
        *with_commands(in_file, *COMMANDS),
        *with_commands(in_file | {WRONG: b""}, other),
        *with_commands(in_bucket, *COMMANDS),
        *with_commands(in_bucket | {WRONG: b""}, other),
    ]


def run(scene: DocumentRun) -> None:
    """Run the command of the document; a held lock in a bucket must not be taken.

    No time passes, so the lease of the lock does not end.
    """
    script = play_servers(scene.document)
    before = script.sequence
    result = scene.jsplan(*scene.command())
    if (
        result.code == 0
        and _IN_BUCKET in scene.document
        and scene.command()[1] == "rm"
        and script.sequence > before
        and _is_held(scene.part(_IN_BUCKET))
    ):
        raise Violation("a held lock is taken", scene.part(_IN_BUCKET).decode("utf-8", "replace"))


def _is_held(content: bytes) -> bool:
    try:
        lock: Any = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(lock, dict) and isinstance(lock.get("lock"), dict) and "lease" in lock


TARGET: Final = Target(
    "lock",
    seeds,
    run,
    changes=lambda name: name == _IN_BUCKET or name.endswith(".lock.info"),
    form=lambda _: "json",
)
