"""What a job file carries: read by whatever runs it on a cluster."""

from __future__ import annotations

import json
import runpy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jsplan.cli import job
from jsplan.config import LoadOptions
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.fuzz import words
from tests.fuzz.documents import Document, text_of
from tests.fuzz.harness import Target
from tests.fuzz.server import play
from tests.fuzz.targets.common import WORKSPACE
from tests.support.workspaces import Quiet

if TYPE_CHECKING:
    from tests.fuzz.scene import Scene

JOB: Final = "$job.json"
#: Stands in a job for the folder of its workspace.
HERE: Final = "@WS@"
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
        },
    ],
}


def seeds() -> list[Document]:
    """The job of each of some backfills, as jsplan writes it, and the state that it is made with."""
    first = WITH_BACKFILL["backfills"][0]
    plain = {"name": "b", "from": {"stream": "A"}, "to": {"stream": "B"}}
    found: list[Document] = []
    play({}, known=True)
    for entry in (first, plain, {"name": "b", "from": {"stream": "A"}, "to": {"parquet": "/arc"}}):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            (folder / "jsplan.yaml").write_text(json.dumps(WITH_BACKFILL | {"backfills": [entry]}), "utf-8")
            (folder / "clean.py").write_text("def run(frame):\n    return frame\n", "utf-8")
            options = LoadOptions(folder, environ={"FUZZ_SECRET": words.IN_ENVIRONMENT})
            backfill.write_job(options, BackfillOptions(name="b"), folder / "job.py", Quiet())
            text = runpy.run_path(str(folder / "job.py"), run_name="job")["JOB"].replace(str(folder), HERE)
            state = (folder / "state/w.json").read_bytes()
        found.append({JOB: text.encode(), "state/w.json": state})
    return found


def run(scene: Scene) -> None:
    """Run it as far as Spark, which is not begun."""
    play({}, known=True)
    job._on_spark = lambda words: 0  # noqa: ARG005, SLF001
    text = text_of(scene.part(JOB).replace(HERE.encode(), str(scene.ws).encode()))
    scene.ended(job.main, text, [])


TARGET: Final = Target(
    "job", seeds, run, changes=lambda name: name == JOB, words=("../shared.py", f"{words.BESIDE}/new.py", "a/../../x.py")
)
