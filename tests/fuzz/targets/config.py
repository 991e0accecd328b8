"""The loader of workspace files, and the commands that need only those."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from jsplan.config import LoadOptions, load
from jsplan.context import Context
from jsplan.drift.service.outputs import build_sinks
from jsplan.errors import ConfigError
from jsplan.state import State
from jsplan.topology import build_topology
from tests.fuzz import hostile_values
from tests.fuzz.document_run import CREDENTIALS
from tests.fuzz.harness import WRONG, Target
from tests.fuzz.played_server import play_servers
from tests.fuzz.targets.common import SEEDS, WORKSPACE, files_document, with_commands

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun
    from tests.fuzz.documents import Document

ROOT: Final = Path(__file__).parents[3]
#: A secret in the files, in a field where jsplan knows it as one.
_AS_SECRET: Final = re.compile(
    rf'"?(?:password|token)"?: "?{hostile_values.INLINE}(?="?[,}}\s])|"?url"?: "?[^"\s]*://(?:u:)?{hostile_values.INLINE}(?=@)'
)
#: A variable in a field that is a secret.
_PASSWORD: Final = re.compile(r'"?(?:password|token)"?: ?"?\$\{var\.pw\}')


#: The sections that every other section needs.
_BASE: Final = ("jsplan", "workspace", "vars", "connections", "domains", "defaults")
_FLOWS: Final = [
    {"name": "A", "subjects": ["a"]},
    {"name": "B", "domain": "leaf", "sources": [{"name": "A", "domain": "hub"}, {"name": "C"}]},
    {"name": "M", "domain": "leaf", "mirror": {"name": "A", "domain": "hub"}},
]
#: Many domains and long names, which show any cost per domain.
_LARGE: Final = WORKSPACE | {
    "vars": {"n": 1},
    "domains": {"hub": {"connection": "main"}, "s-{1..200}": {"connection": "main", "labels": ["edge"], "vars": {"n": 1, "m": ["x"]}}},
    "defaults": {"domain": "hub", "stream": {"metadata": {"of": "${domain}"}, "placement": {"tags": ["t", "${domain}"]}}},
    "streams": [
        {
            "name": "A", "domain": "label:edge", "subjects": ["${domain}.>", "A.${domain}"], "description": "in ${domain}",
            "metadata": {"a": "b", "n": "n${domain.n}"}, "consumers": [{"name": "C", "filter_subjects": ["${domain}.a", "A.${domain}"]}],
        },
        {"name": "a" * 40, "sources": [{"name": "A", "domain": "label:edge"}]},
    ],
    "overrides": [{"address": "s-1*/stream/A*", "max_msgs": 5}, {"address": "hub/stream/a*", "max_msgs": 7}],
    "drift": {"ignore": ["hub/stream/a*"]},
}  # fmt: skip


def seeds() -> list[Document]:
    """Return large and small workspaces and the example of the contract, with commands."""
    more = files_document(streams__yaml={"streams": [{"name": "N", "subjects": ["n"]}]}) | {
        "a.creds": CREDENTIALS.encode(),
        "clean.py": b"",
        "n.nk": b"SUx",
        "link.txt": b"!symlink ../outside/secret.txt",
    }
    small = WORKSPACE | {"include": ["streams.yaml"], "x-a": [1], "vars": {"pw": None}}
    contract = (
        (ROOT / "tests/config/contract.yaml")
        .read_bytes()
        .replace(b"001..200", b"001..012")
        .replace(b"017", b"007")
    )
    documents: list[Document] = []
    everything = yaml.safe_load((SEEDS / "everything.yaml").read_bytes())
    for section in everything:
        required = (*_BASE, "streams") if section == "consumers" else _BASE
        sections = {name: everything[name] for name in (*required, section)}
        documents += with_commands(
            more | {"jsplan.yaml": json.dumps(sections).encode()},
            "validate",
            "plan -o out.plan",
            "sinks",
        )
    sinks = {
        "jsplan.yaml": json.dumps(
            WORKSPACE | {"drift": {"sinks": everything["drift"]["sinks"]}}
        ).encode()
    }
    documents += with_commands(sinks, "sinks", "sinks", "sinks", "validate")
    documents += with_commands(
        {"jsplan.yaml": json.dumps(WORKSPACE | {"streams": _FLOWS}).encode()},
        *["validate"] * 12,
        "lint",
    )
    password = {
        "connections": {"main": {"url": "nats://h:1", "user": "u", "password": "${var.pw}"}}
    }
    secret = {
        "jsplan.yaml": json.dumps(WORKSPACE | {"vars": {"pw": None}} | password).encode(),
        WRONG: b"",
    }
    documents += with_commands(secret, "validate", "plan -o out.plan")
    documents += with_commands({"jsplan.yaml": json.dumps(_LARGE).encode()}, *["validate"] * 16)
    for jsplan in ((SEEDS / "everything.yaml").read_bytes(), json.dumps(small).encode()):
        documents += with_commands(
            more | {"jsplan.yaml": jsplan},
            "validate",
            "validate --format json",
            "lint",
            "plan -o out.plan",
            "graph --format svg",
            "sinks",
        )
    documents += with_commands(
        {"jsplan.yaml": contract, "clean.py": b"", "legacy.json": b'{"subjects": ["l"]}'},
        "validate -e prod --var region=eu",
        "lint -e prod --var region=eu",
    )
    for path in sorted(ROOT.glob("examples/*/jsplan.yaml")):
        chosen = " -e small" if b"environments:" in path.read_bytes() else ""
        documents += with_commands(
            {"jsplan.yaml": path.read_bytes(), "clean.py": b""},
            f"validate{chosen}",
            f"graph --format mermaid{chosen}",
        )
    return documents


def run(scene: DocumentRun) -> None:
    """Run the command of the document on servers without streams."""
    text = scene.part("jsplan.yaml").decode("utf-8", "replace")
    if text.count(hostile_values.INLINE) == len(_AS_SECRET.findall(text)):
        scene.hide(hostile_values.INLINE)
    variable = "FuzzSecretVariable"
    if "var.pw" in text and text.count("var.pw") == len(_PASSWORD.findall(text)):
        scene.hide(variable)
    play_servers({})
    command = scene.command()
    if command == ["sinks"]:
        _make_sinks(scene, variable)
        return
    scene.jsplan(
        *command, *(["--var", f"pw={variable}"] if '"pw"' in text or "pw:" in text else [])
    )
    if (scene.ws / "out.plan").is_file():
        scene.check_output((scene.ws / "out.plan").read_text("utf-8"), "raw")
        scene.jsplan("show", "out.plan", "--format", "html")


def _make_sinks(scene: DocumentRun, variable: str) -> None:
    """Build the sinks, as `drift watch` does first."""
    environ = {
        "FUZZ_SECRET": hostile_values.IN_ENVIRONMENT,
        "FUZZ_CREDS": CREDENTIALS,
        "FUZZ_URL": "nats://h",
    }
    try:
        text = scene.part("jsplan.yaml")
        given = (f"pw={variable}",) if b'"pw"' in text or b"pw:" in text else ()
        workspace = load(LoadOptions(scene.ws, variables=given, environ=environ))
    except ConfigError as error:
        scene.check_refusal(error)
    else:
        build_sinks(Context(workspace, build_topology(workspace), None, State("w", None), environ))  # type: ignore[arg-type]


TARGET: Final = Target(
    "config",
    seeds,
    run,
    words=("http://[", "${env.FUZZ_SECRET}", "../outside/secret.txt", "*a" * 12 + "c", "${domain}"),
    share=4,
)
