"""State in a file, with its journal and its backups, and states that are pushed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson

from tests.documents import valid_documents
from tests.fuzz.document_run import Violation
from tests.fuzz.documents import Document
from tests.fuzz.harness import Target
from tests.fuzz.played_server import play_servers
from tests.fuzz.targets.common import recorded_seeds, with_commands

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

PATH: Final = "state/w.json"
COMMANDS: Final = (
    "state list",
    "state pull",
    "state pull --serial 1",
    "show --state",
    "show --state --format json",
    "state show hub/stream/A",
    "state rm hub/stream/S",
    "state mv leaf/** hub2/**",
    "history",
    "history --format json",
    "revert 1 -o reverted.plan",
    "plan",
    "plan --format html",
    "apply -y",
    "drift",
    "status",
    "state push pushed.json --force",
    "destroy -y --allow-hazard DELETES_STREAM",
    "backfill status",
)
#: Those that an interrupted apply does not change.
READING: Final = (*COMMANDS[:6], "history", "history --format json", "backfill status")


def journal(state: dict[str, Any]) -> bytes:
    """Return every kind of journal line."""
    session = {"session": {"lineage": state["lineage"], "serial": state["serial"] + 1}}
    lines = [session, *valid_documents.JOURNAL[1:]]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def seeds() -> list[Document]:
    """Return the states after an apply, an import and a change, with their answers."""
    documents: list[Document] = []
    for recorded in recorded_seeds("unchanged", "status", "change"):
        state = json.loads(recorded[PATH])
        state["backfills"] = {"history": valid_documents.PINNED_RANGE}
        state["pending"] = {
            "hub/stream/P": {
                "id": "s",
                "address": "hub/stream/P",
                "op": "stream.create",
                "expect": {},
                "record": None,
            }
        }
        document = recorded | {
            PATH: json.dumps(state).encode(),
            f"{PATH}.backup": recorded[PATH],
            "pushed.json": json.dumps(state).encode(),
        }
        documents += with_commands(document, *COMMANDS)
        documents += with_commands(document | {f"{PATH}.journal": journal(state)}, *COMMANDS)
        documents += with_commands(document | {PATH: _with_more(state)}, *READING)
    return documents


def _with_more(state: dict[str, Any]) -> bytes:
    """Return the state with every part of an apply that was interrupted."""
    more = {name: state[name] | parts for name, parts in valid_documents.more("state").items()}
    newest = state["history"][0] | {"changes": [valid_documents.CHANGE]}
    return json.dumps(state | more | {"history": [newest]}).encode()


def run(scene: DocumentRun) -> None:
    """Run the command; unknown fields must stay in a state file that it writes."""
    play_servers(scene.document, known=True)
    result = (
        scene.jsplan(*scene.command(), "--lock-timeout", "0s")
        if scene.command()[1:2] in (["rm"], ["mv"])
        else scene.jsplan(*scene.command())
    )
    if result.code == 0 and scene.command()[1:2] != ["push"]:
        _require_unknown_fields(scene)


def _require_unknown_fields(scene: DocumentRun) -> None:
    """Require that unknown fields of a newer minor version stay, or that writing is refused."""
    try:
        before, after = orjson.loads(scene.part(PATH)), orjson.loads((scene.ws / PATH).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return
    if (
        isinstance(before, dict)
        and isinstance(after, dict)
        and before.get("format_version") != after.get("format_version")
    ):
        raise Violation(
            "a newer state is rewritten as an older one",
            f"{before.get('format_version')} -> {after.get('format_version')}",
        )


TARGET: Final = Target(
    "state",
    seeds,
    run,
    changes=lambda name: name.startswith(PATH) or name == "pushed.json",
    words=("1.7", "2.0", "1"),
    share=3,
    form=lambda name: "lines" if name.endswith(".journal") else "json",
)
