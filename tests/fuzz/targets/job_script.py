"""Job files as jsplan writes them: only their texts depend on the workspace."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Final

from jsplan.config import LoadOptions, load
from jsplan.errors import JsplanError
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.fuzz import hostile_values
from tests.fuzz.document_run import Violation
from tests.fuzz.documents import Document
from tests.fuzz.harness import Target
from tests.fuzz.played_server import play_servers
from tests.fuzz.targets.common import files_document
from tests.fuzz.targets.job import WITH_BACKFILL
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

_ENVIRON: Final = {
    "FUZZ_SECRET": hostile_values.IN_ENVIRONMENT,
    "FUZZ_URL": f"nats://u:{hostile_values.IN_ENVIRONMENT}@h",
}


def seeds() -> list[Document]:
    """Return backfills of one and several streams and to an archive, with both backends."""
    first = WITH_BACKFILL["backfills"][0]
    entries = [
        first,
        {"name": "b", "from": {"stream": "A"}, "to": {"stream": "B"}},
        {"name": "b", "from": {"stream": "A"}, "to": {"parquet": "/arc"}},
        {
            "name": "b",
            "from": [{"stream": "A"}, {"domain": "leaf", "stream": "C"}],
            "to": {"stream": "B"},
        },
    ]
    backends = [{"local": {"path": "state/w.json"}}, {"kv": {"domain": "hub", "bucket": "STATE"}}]
    return [
        files_document(jsplan__yaml=WITH_BACKFILL | {"backfills": [entry], "backend": backend})
        | {"clean.py": b"def run(frame):\n    return frame\n"}
        for entry in entries
        for backend in backends
    ]


def run(scene: DocumentRun) -> None:
    """Write the job of the first backfill and check its program."""
    play_servers({}, known=True)
    options = LoadOptions(scene.ws, environ=_ENVIRON)
    workspace = load(options)
    state = workspace.backend.path
    if state is not None and not state.resolve().is_relative_to(scene.ws.resolve()):
        return  # a workspace may keep its state outside of its folder
    name = next(iter(workspace.backfills), "b")
    path = scene.ws / "job.py"
    try:
        backfill.write_job(options, BackfillOptions(name=name), path, RecordingObserver())
    except JsplanError as error:
        scene.check_refusal(error)
        return
    text = path.read_text("utf-8")
    scene.check_output(text, "raw")
    _require_same_program(text)


def _require_same_program(text: str) -> None:
    try:
        # Without the marker, or the guard would stop this parse too.
        tree = ast.parse(text.replace(hostile_values.CODE, "x"))
    except (SyntaxError, ValueError) as error:
        raise Violation("the job file is not valid Python", f"{error}\n{text[:1500]}") from None
    kinds = [type(node) for node in tree.body]
    calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    job = next((node.value for node in tree.body if isinstance(node, ast.Assign)), None)
    if kinds not in ([ast.Expr, ast.Assign, ast.If], [ast.Assign, ast.If]) or set(calls) != {
        "SystemExit(main(JOB))",
        "main(JOB)",
    }:
        raise Violation(
            "text of the document becomes code of the job file", f"{kinds} {calls}\n{text[:1500]}"
        )
    if not isinstance(job, ast.Constant) or not isinstance(job.value, str):
        raise Violation("the job file carries no text", text[:1500])
    json.loads(job.value)


TARGET: Final = Target(
    "job-script", seeds, run, changes=lambda name: name == "jsplan.yaml", words=hostile_values.CODES
)
