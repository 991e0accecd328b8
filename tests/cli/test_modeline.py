"""The first line for editors: it names a schema that exists and accepts the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from jsplan.workflows.init import TEMPLATES
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from jsplan.sandbox import Server


def require_valid(file: Path) -> None:
    """Check the file with the schema that it names."""
    first = file.read_text("utf-8").splitlines()[0]
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert found, first
    schema = json.loads((file.parent / found[1]).read_text("utf-8"))
    assert isinstance(schema, dict)
    jsonschema.Draft202012Validator(schema).validate(read_yaml(file.read_text("utf-8")))


@pytest.mark.parametrize("template", TEMPLATES)
def test_init_writes_the_line_and_the_schema(template: str, tmp_path: Path) -> None:
    """With --schema each template names the schema beside it, which is the one of this release."""
    done = jsplan(tmp_path, "init", "--template", template, "--name", "shop", "--schema")

    assert done.code == 0
    assert "Wrote workspace-v1.json" in done.out
    require_valid(tmp_path / "jsplan.yaml")
    printed = jsplan(tmp_path, "schema").out
    assert (tmp_path / "workspace-v1.json").read_text("utf-8") == printed


def test_init_writes_no_schema_unless_asked(tmp_path: Path) -> None:
    """Without --schema no line names one, plans are ignored by git, and the state is explained."""
    done = jsplan(tmp_path, "init", "--name", "shop")

    assert sorted(path.name for path in tmp_path.iterdir()) == [".gitignore", "jsplan.yaml"]
    assert (tmp_path / "jsplan.yaml").read_text().startswith("jsplan: 1\n")
    assert (tmp_path / ".gitignore").read_text() == "*.plan\n"
    assert "The state will be in state. Commit it too" in done.out


def test_a_file_that_exists_stays(tmp_path: Path) -> None:
    """`init` never overwrites a file."""
    for name in ("workspace-v1.json", ".gitignore"):
        (tmp_path / name).write_text("{}")

    assert jsplan(tmp_path, "init", "--name", "shop", "--schema").code == 0
    for name in ("workspace-v1.json", ".gitignore"):
        assert (tmp_path / name).read_text() == "{}"


@pytest.mark.parametrize("name", ["found.jsplan.yaml", "more/found.yaml"])
def test_an_import_writes_the_line(name: str, server: Server, tmp_path: Path) -> None:
    """A generated file names the schema of the workspace, also from a folder in it."""
    with Raw(server.url) as raw:
        raw.create("A", subjects=["a"])
    (tmp_path / "more").mkdir()
    workspace = {
        "jsplan": 1,
        "workspace": "w",
        "include": ["*.jsplan.yaml", "more/*.yaml"],
        "connections": {"c": {"url": server.url}},
        "domains": {"main": {"connection": "c", "js_domain": None}},
    }
    (tmp_path / "jsplan.yaml").write_text(json.dumps(workspace))
    (tmp_path / "workspace-v1.json").write_text(jsplan(tmp_path, "schema").out)

    done = jsplan(tmp_path, "import", "--all", "--domain", "main", "--generate-config", name, "-y")

    assert done.code == 0, done.text
    require_valid(tmp_path / name)
