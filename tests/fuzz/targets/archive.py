"""Manifests of Parquet archives: read, completed and replaced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jsplan.backfill.parquet.location import ParquetOrigin, resolve_origin_key
from jsplan.backfill.parquet.manifest import Archive, ArchiveFile
from jsplan.backfill.parquet.store import LocalFolder
from jsplan.config import LoadOptions, load
from jsplan.context import Context
from jsplan.errors import JsplanError
from jsplan.planning.backfill.model import SeqRange
from jsplan.state import State
from jsplan.topology import build_topology
from tests.fuzz.documents import Document
from tests.fuzz.guard import GUARD
from tests.fuzz.harness import Target
from tests.fuzz.targets.common import WORKSPACE, files_document

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

_WORKSPACE: Final = WORKSPACE | {
    "streams": [],
    "backfills": [
        {"name": "b", "from": {"domain": "hub", "stream": "A"}, "to": {"parquet": "arc"}}
    ],
}


def _chunk(number: int, *, is_done: bool = True) -> dict[str, Any]:
    name = f"s-A-{number}.parquet"
    file = {
        "name": name,
        "rows": 5,
        "bytes": 4,
        "sha256": "0" * 64,
        "first_seq": 5 * number,
        "last_seq": 5 * number + 4,
        "first_time": 1,
        "last_time": 9,
        "content": 3,
    }
    return {
        "name": name,
        "first": 5 * number,
        "last": 5 * number + 4,
        "file": file if is_done else None,
    }


def seeds() -> list[Document]:
    """Return an archive with a chunk that is not written yet, and a file that must stay."""
    origin = {"domain": "hub", "stream": "A", "created": "2026-01-01T00:00:00Z"}
    more = {"filters": ["A.x"], "where": "true", "transform": "a.py:f", "subject_transform": []}
    content = {
        "origin": origin | more,
        "chunks": [_chunk(1), _chunk(2), _chunk(3, is_done=False)],
        "gaps": [[1, 2]],
        "gap_messages": 2,
    }
    document = {
        "format": "jsplan-archive/1",
        "id": "0123",
        "expected": ["hub/A"],
        "origins": [content],
        "dropped": ["s-A-4.parquet"],
    }
    parts = files_document(
        **{"arc/_jsplan/manifest-000002__json": document, "jsplan__yaml": _WORKSPACE}
    )
    return [
        parts
        | {
            "arc/s-A-1.parquet": b"PAR1",
            "arc/s-A-2.parquet": b"PAR1",
            "arc/s-A-4.parquet": b"PAR1",
            "arc/_jsplan/manifest-000001.json": b"{}",
            "arc/_jsplan/part-s-A-1.parquet-0a": b"PAR1",
            "arc/_jsplan/home/authorized_keys": b"x",
        }
    ]


def run(scene: DocumentRun) -> None:
    """Read an archive like a run, which may write only inside it."""
    workspace = load(LoadOptions(scene.ws))
    context = Context(workspace, build_topology(workspace), None, State("w", None), {})  # type: ignore[arg-type]
    GUARD.folders = (str(Path(scene.ws / "arc").resolve()),)
    archive = Archive.read(LocalFolder(scene.ws / "arc"))
    for content in archive.origins:
        archived = ParquetOrigin(archive, content)
        resolve_origin_key(context, archived.origin)
        _ = archived.files, archived.stream_info
        entries = [ArchiveFile(chunk.name, 1, 4, "0" * 64, 0, 0, 0, 0) for chunk in content.pending]
        done = content.complete(entries, [SeqRange(15, 16)])
        _call_may_refuse(archive.put(done).save)
    _call_may_refuse(archive.find_missing_files)
    _call_may_refuse(archive.require_complete)
    archive.clean()


def _call_may_refuse(call: Any) -> None:
    try:
        call()
    except JsplanError:
        return


TARGET: Final = Target(
    "archive",
    seeds,
    run,
    changes=lambda name: name.startswith("arc/_jsplan/") and name.endswith(".json"),
    words=("../home/authorized_keys",),
)
