"""Logs of Parquet archives: read, summed up, and completed after another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jsplan.backfill.parquet.location import (
    find_orphaned_attempts,
    list_parquet_origins,
    resolve_origin_key,
)
from jsplan.backfill.parquet.log import (
    Archive,
    Selection,
    find_covered_ranges,
    merge_gaps,
    read_receipts,
)
from jsplan.backfill.parquet.store import LocalFolder
from jsplan.config import LoadOptions, load
from jsplan.context import Context
from jsplan.errors import JsplanError
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


def _commit(number: int, attempt: str, **more: Any) -> dict[str, Any]:
    name = f"day=2026-01-0{number}/part-{number}.parquet"
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
        "format": "jsplan-archive/1",
        "entry": "w/b",
        "origin": {"domain": "hub", "stream": "A", "created": "2026-01-01T00:00:00Z"},
        "first": 1,
        "last": 99,
        "filters": ["A.x"],
        "spans": [[5 * number, 5 * number + 4]],
        "attempt": attempt,
        "at": "2026-01-01T00:00:00Z",
        "files": [file],
        "gaps": [[1, 2]],
        "gap_messages": 2,
        "origins": ["hub/A"],
        "lost": [],
        "where": None,
        "transform": None,
        "subject_transform": None,
        "rows": 5,
    } | more


def seeds() -> list[Document]:
    """Return two commits, one incomplete, a dead attempt, and a file that must stay."""
    log = "arc/_jsplan"
    parts = files_document(
        **{
            f"{log}/commit-000001__json": _commit(1, "a"),
            f"{log}/commit-000002__json": _commit(2, "b", lost=["day=2026-01-01/part-0.parquet"]),
            f"{log}/attempt-c/attempt__json": {
                "entry": "w/b",
                "origin": json.dumps(["hub", "A", "2026-01-01T00:00:00Z"]),
            },
            f"{log}/attempt-c/piece-000001__json": {"rows": 3, "bytes": 9, "span": [7, 9]},
            "jsplan__yaml": _WORKSPACE,
        }
    )
    return [
        parts
        | {
            "arc/day=2026-01-01/part-1.parquet": b"PAR1",
            f"{log}/attempt-b/day=2026-01-02/part-2.parquet": b"PAR1",
            f"{log}/attempt-a/piece-000001.json": b"{}",
            f"{log}/home/authorized_keys": b"x",
        }
    ]


def run(scene: DocumentRun) -> None:
    """Read an archive like a run, which may write only inside it."""
    workspace = load(LoadOptions(scene.ws))
    context = Context(workspace, build_topology(workspace), None, State("w", None), {})  # type: ignore[arg-type]
    GUARD.folders = (str(Path(scene.ws / "arc").resolve()),)
    for leftover in find_orphaned_attempts(context):
        scene.check_output(
            json.dumps(leftover.to_json() if hasattr(leftover, "to_json") else str(leftover)), "raw"
        )
    archive = Archive.read(LocalFolder(scene.ws / "arc"))
    lost = [file for _, file in archive.files.values()]
    merge_gaps(archive.commits)
    find_covered_ranges(archive.commits, Selection(("A.x",)), lost)
    for archived in list_parquet_origins(archive):
        resolve_origin_key(context, archived.origin)
        _ = archived.files, archived.stream_info
    for _, _, folder in archive.list_attempts("w/b"):
        read_receipts(folder)
    archive.finish_commits()
    _call_may_refuse(archive.find_missing_files)
    archive.require_complete()


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
