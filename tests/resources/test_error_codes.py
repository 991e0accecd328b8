"""The table of error codes: each number has one name, and the server means the same by it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jsplan
from jsplan.resources import error_codes
from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.sandbox import Server

#: Modules with numbers of their own: the table, and the sandbox, which imports nothing of jsplan.
EXCEPT = ("resources/error_codes.py", "sandbox/sandbox.py")
STREAM = {"name": "CODES", "subjects": ["codes"]}
ASKED: dict[str, tuple[str, dict[str, Any] | None]] = {
    "STREAM_NOT_FOUND": ("STREAM.INFO.NONE", None),
    "CONSUMER_NOT_FOUND": ("CONSUMER.INFO.CODES.NONE", None),
    "NO_MESSAGE": ("STREAM.MSG.GET.CODES", {"seq": 7}),
    "STREAM_EXISTS": ("STREAM.CREATE.CODES", STREAM | {"max_msgs": 1}),
    "SUBJECTS_OVERLAP": ("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["codes"]}),
    "NO_CLUSTER": ("STREAM.CREATE.OTHER", {"name": "OTHER", "num_replicas": 3}),
}


@pytest.mark.matrix
def test_what_the_server_answers(server: Server) -> None:
    """The server answers with the codes of the table."""
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.CODES", STREAM)
        answers = {name: raw.api(f"$JS.API.{api}", body) for name, (api, body) in ASKED.items()}
    expected = {name: getattr(error_codes, name) for name in ASKED}
    assert {name: answer["error"]["err_code"] for name, answer in answers.items()} == expected


def test_each_code_has_one_name() -> None:
    """No code is there twice."""
    codes = [value for value in vars(error_codes).values() if type(value) is int]
    assert len(codes) > 15
    assert sorted(set(codes)) == sorted(codes)


def test_no_bare_codes() -> None:
    """No other module compares with a code by its number, or gives it a name."""
    found = []
    for path in sorted(Path(jsplan.__file__).parent.rglob("*.py")):
        if not str(path).endswith(EXCEPT):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [f"{path}: {text}" for text in bare_codes(tree)]
    assert found == []


def bare_codes(tree: ast.Module) -> Iterator[str]:
    """Yield comparisons with error codes, and constants of a module that are error codes."""
    for node in ast.walk(tree):
        inside: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            inside = node.comparators
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node in tree.body and node.value:
            inside = [node.value]
        values = [e for one in inside for e in getattr(one, "elts", [one])]
        if any(isinstance(e, ast.Constant) and e.value in range(10_001, 10_300) for e in values):
            yield ast.unparse(node)
