"""Files that workspace files name: bare configurations, variables, and includes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.fuzz.harness import Target
from tests.fuzz.played_server import play_servers, stream
from tests.fuzz.targets.common import WORKSPACE, files_document, with_commands

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun
    from tests.fuzz.documents import Document

_WORKSPACE: Final = WORKSPACE | {
    "streams": [
        {"name": "A", "config_file": "a.json"},
        {
            "name": "B",
            "config_file": "b.yaml",
            "max_age": "1d",
            "consumers": [{"name": "C", "config_file": "c.json"}],
        },
    ],
    "kv": [{"bucket": "K", "config_file": "k.json"}],
    "vars": {"keep": "1d", "n": 1, "list": ["a"]},
}


def seeds() -> list[Document]:
    """Return each file in each of its shapes."""
    parts = files_document(
        jsplan__yaml=_WORKSPACE,
        a__json=stream("A"),
        b__yaml={"subjects": ["b.>"], "max_msgs": 10, "retention": "interest"},
        c__json={
            "stream_name": "B",
            "config": {"durable_name": "C", "ack_policy": "explicit", "filter_subject": "b.x"},
        },
        k__json={"history": 3, "max_bytes": 1000},
        vars__yaml={"keep": "30d", "n": 3, "list": ["a", "b"]},
    ) | files_document(
        **{
            "more.jsplan__yaml": {"streams": [{"name": "N", "subjects": ["n"]}], "vars": {"x": 1}},
            "other.jsplan__json": {"overrides": []},
        }
    )
    return with_commands(
        parts,
        "validate --var-file vars.yaml",
        "plan --var-file vars.yaml",
        "lint --var-file vars.yaml --format json",
    )


def run(scene: DocumentRun) -> None:
    """Run the command of the document on servers without streams."""
    play_servers({})
    scene.jsplan(*scene.command())


TARGET: Final = Target(
    "config-file", seeds, run, changes=lambda name: name not in ("$", "jsplan.yaml")
)
