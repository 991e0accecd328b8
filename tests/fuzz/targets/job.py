"""The content of a job file, read on a cluster."""

from __future__ import annotations

import json
import re
import runpy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jsplan.cli import job
from jsplan.config import LoadOptions
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.fuzz import hostile_values
from tests.fuzz.documents import Document, text_of
from tests.fuzz.harness import Target
from tests.fuzz.played_server import play_servers, played_servers
from tests.fuzz.targets.common import WORKSPACE
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

JOB: Final = "$job.json"
#: A placeholder for the folder of the workspace.
HERE: Final = "@WS@"
_TIME: Final = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_LINEAGE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
WITH_BACKFILL: Final = WORKSPACE | {
    "connections": {
        "main": {
            "url": "nats://h:1",
            "user": "u",
            "password": "${env.FUZZ_SECRET}",
            "timeout": "2s",
        }
    },
    "backfills": [
        {
            "name": "b",
            "from": [{"domain": "leaf", "stream": "A", "start_seq": 2, "filter_subjects": ["A.x"]}],
            "to": {"domain": "hub", "stream": "B"},
            "order": "subject",
            "transform": "clean.py:run",
            "where": "subject LIKE 'A.%'",
            "subject_transform": {"src": "A.>", "dest": "B.>"},
            "rate": "2MB/s",
        }
    ],
}


def seeds() -> list[Document]:
    """Return the jobs of some backfills, with the state that they were made from."""
    first = WITH_BACKFILL["backfills"][0]
    plain = {"name": "b", "from": {"stream": "A"}, "to": {"stream": "B"}}
    documents: list[Document] = []
    for entry in (first, plain, {"name": "b", "from": {"stream": "A"}, "to": {"parquet": "/arc"}}):
        with tempfile.TemporaryDirectory() as name, played_servers({}, known=True):
            folder = Path(name).resolve()
            (folder / "jsplan.yaml").write_text(
                json.dumps(WITH_BACKFILL | {"backfills": [entry]}), "utf-8"
            )
            (folder / "clean.py").write_text("def run(frame):\n    return frame\n", "utf-8")
            options = LoadOptions(folder, environ={"FUZZ_SECRET": hostile_values.IN_ENVIRONMENT})
            backfill.write_job(
                options, BackfillOptions(name="b"), folder / "job.py", RecordingObserver()
            )
            text = runpy.run_path(str(folder / "job.py"), run_name="job")["JOB"].replace(
                str(folder), HERE
            )
            state = (folder / "state/w.json").read_bytes()
        documents.append(
            {JOB: _normalized(text).encode(), "state/w.json": _normalized(state.decode()).encode()}
        )
    return documents


def _normalized(text: str) -> str:
    """Replace times and identities, so that a number always gives the same document."""
    return _LINEAGE.sub(
        "00000000-0000-4000-8000-000000000000", _TIME.sub("2026-01-01T00:00:00Z", text)
    )


def run(scene: DocumentRun) -> None:
    """Run the job up to the start of Spark."""
    play_servers({}, known=True)
    job._run_on_spark = lambda words: 0  # noqa: ARG005, SLF001
    text = text_of(scene.part(JOB).replace(HERE.encode(), str(scene.ws).encode()))
    scene.run_call(job.main, text, [])


TARGET: Final = Target(
    "job",
    seeds,
    run,
    changes=lambda name: name == JOB,
    words=("../shared.py", f"{hostile_values.BESIDE}/new.py", "a/../../x.py"),
)
