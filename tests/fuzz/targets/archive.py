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
from tests.documents import valid_documents
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


def seeds() -> list[Document]:
    """Return an archive with a chunk that is not written yet, and a file that must stay."""
    document = valid_documents.ARCHIVE | {"dropped": ["s-A-4.parquet"]}
    parts = files_document(
        **{"arc/_jsplan/manifest-000002__json": document, "jsplan__yaml": _WORKSPACE}
    )
    chunks = [chunk["name"] for chunk in document["origins"][0]["chunks"]]
    return [
        parts
        | {f"arc/{name}": b"PAR1" for name in (chunks[0], "s-A-4.parquet")}
        | {
            "arc/_jsplan/manifest-000001.json": b"{}",
            f"arc/_jsplan/part-{chunks[0]}-0a": b"PAR1",
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
        done = content.complete(entries, [SeqRange(10, 11)])
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
