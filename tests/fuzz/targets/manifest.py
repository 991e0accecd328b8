"""Manifests of backups, for restore and for another backup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.fuzz.documents import Document
from tests.fuzz.harness import WRONG, Target
from tests.fuzz.played_server import play_servers
from tests.fuzz.targets.common import recorded_seeds, with_commands

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

PATH: Final = "saved/manifest.json"
COMMANDS: Final = (
    "restore saved -y",
    "backup hub/stream/S saved",
    "restore saved --target hub/stream/A -y",
    "restore saved -y --exclude hub/stream/A",
)
#: The first needs a newer server, the second an answer.
REFUSED: Final = ("restore saved -y --as leaf/**", "restore saved --no-input --format json")


def seeds() -> list[Document]:
    """Return a backup of two streams with a consumer."""
    (recorded,) = recorded_seeds("restore")
    return [*with_commands(recorded, *COMMANDS), *with_commands(recorded | {WRONG: b""}, *REFUSED)]


def run(scene: DocumentRun) -> None:
    """Run the command of the document on the servers of the restore."""
    play_servers(scene.document, known=scene.command()[0] == "backup")
    scene.jsplan(*scene.command())


TARGET: Final = Target("manifest", seeds, run, changes=lambda name: name.startswith("saved/"))
