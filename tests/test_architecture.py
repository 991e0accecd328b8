"""Rules of the tree that neither ruff nor import-linter can check."""

from __future__ import annotations

import ast
import gc
import itertools
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import grimp
import pytest

from jsplan.config.workspace_schema import all_sections
from tests.conftest import read_sampled

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("syntax_trees")
ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "jsplan").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
#: Who may import what, by the folder or module under jsplan/; no other module may, not even inside a function.
ALLOWED = {
    "click": ("cli", "render"),
    "rich": ("cli", "render"),
    "nats": ("jetstream", "sandbox", "backfill/spark"),
    "pyspark": ("backfill/spark",),
}
#: Modules with codes of their own: the table, and the sandbox, which imports nothing of jsplan.
OWN_CODES = ("jsplan/resources/error_codes.py", "jsplan/sandbox/sandbox.py")
ERROR_CODES = range(10_001, 10_300)
LONGEST_FUNCTION = 60
LONGEST_FILE = 600


@pytest.fixture(autouse=True, scope="module")
def no_collection() -> Iterator[None]:
    """Collect no garbage: millions of nodes are none."""
    gc.disable()
    yield
    gc.enable()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def imported(path: Path) -> set[str]:
    """Return the top names of everything that the file imports, wherever in it."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_a_library_is_known_only_where_it_belongs() -> None:
    """The terminal is imported in cli and render, the client in jetstream, sandbox and Spark."""
    strays = {
        (package_of(path), library)
        for path in PACKAGE
        for library in imported(path) & ALLOWED.keys()
        if not package_of(path).startswith(tuple(f"jsplan/{home}" for home in ALLOWED[library]))
    }

    assert strays == set()


def test_no_module_imports_itself_over_others() -> None:
    """There is no cycle of imports, also none of types alone or inside functions."""
    graph = grimp.build_graph("jsplan", cache_dir=None)

    TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    ).prepare()


def test_only_workflows_start_an_event_loop() -> None:
    """`asyncio.run` is called in jsplan/workflows and jsplan/event_loop.py and nowhere else."""
    calls = [
        package_of(path)
        for path in PACKAGE
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and node.attr in {"run", "Runner"}
        and ast.unparse(node.value) == "asyncio"
    ]

    assert {"jsplan/workflows", "jsplan/event_loop.py"} >= {
        "/".join(call.split("/")[:2]) for call in calls
    }


def test_every_module_has_a_docstring() -> None:
    """Each file of the package begins with a docstring."""
    assert [] == [package_of(path) for path in PACKAGE if not ast.get_docstring(tree(path))]


def test_annotations_are_never_evaluated() -> None:
    """Each file with code in it has `from __future__ import annotations`."""
    coded = [
        path
        for path in PACKAGE + TESTS
        if any(not isinstance(node, ast.Expr | ast.Assign) for node in tree(path).body)
    ]

    assert [] == [package_of(path) for path in coded if "__future__" not in imported(path)]


def test_only_one_replace_has_a_short_name() -> None:
    """`replace` is that of msgspec; that of dataclasses, which mypy mixes up, has its full name."""
    assert [] == [
        package_of(path)
        for path in PACKAGE
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom)
        and node.module == "dataclasses"
        and "replace" in {alias.name for alias in node.names}
    ]


def test_functions_stay_short() -> None:
    """Every function of the package has at most LONGEST_FUNCTION lines."""
    lengths = {
        f"{package_of(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in PACKAGE
        for node in functions(path)
    }

    assert {} == {where: length for where, length in lengths.items() if length > LONGEST_FUNCTION}


def test_files_stay_readable() -> None:
    """Every file of the package has at most LONGEST_FILE lines."""
    lengths = {
        package_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE
    }

    assert {} == {where: length for where, length in lengths.items() if length > LONGEST_FILE}


def test_every_test_states_its_expectation() -> None:
    """Each test function has a docstring that is a sentence."""
    tests = [
        (path, node) for path in TESTS for node in functions(path) if node.name.startswith("test_")
    ]

    assert [] == [
        f"{package_of(path)}:{node.lineno} {node.name}"
        for path, node in tests
        if not (ast.get_docstring(node) or "").strip().endswith((".", "?"))
    ]


def test_no_test_is_passed_over() -> None:
    """Nothing is skipped, expected to fail, or replaced by a mock."""
    words = {"skip", "skipif", "xfail", "importorskip", "MagicMock", "AsyncMock"}
    used = [
        f"{package_of(path)}:{node.lineno} {node.attr}"
        for path in TESTS
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in words
    ]

    assert [] == used
    assert [] == [package_of(path) for path in TESTS if "mock" in imported(path)]


def test_what_make_test_leaves_out_exists() -> None:
    """Each line of `sampled.txt` names a test function."""
    lost = []
    for name in read_sampled():
        file, _, function = name.partition("[")[0].partition("::")
        path = ROOT / "tests" / file
        if not path.exists() or f"def {function}(" not in path.read_text(encoding="utf-8"):
            lost.append(name)
    assert lost == []


def test_error_codes_have_names() -> None:
    """No other module compares with a code by its number, or gives it a name."""
    found = []
    for path in PACKAGE:
        top = tree(path).body
        for node in () if package_of(path) in OWN_CODES else nodes(path):
            inside: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                inside = node.comparators
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node in top and node.value:
                inside = [node.value]
            values = [e for one in inside for e in getattr(one, "elts", [one])]
            if any(isinstance(e, ast.Constant) and e.value in ERROR_CODES for e in values):
                found.append(f"{path}: {ast.unparse(node)}")
    assert found == []


def test_levels_have_names() -> None:
    """No other module compares a level with a number or defines a level of its own."""
    found = []
    for path in PACKAGE:
        for node in nodes(path):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                bare = any(isinstance(s, ast.Constant) and type(s.value) is int for s in sides)
                wrong = bare and any("level" in ast.unparse(s).lower() for s in sides)
            else:
                wrong = isinstance(node, ast.Name | ast.Attribute) and (
                    isinstance(node.ctx, ast.Store) and ast.unparse(node).endswith("_LEVEL")
                )
            if wrong and path.name != "server_features.py":
                found.append(f"{path}: {ast.unparse(node)}")
    assert found == []


def test_every_key_is_used() -> None:
    """A key whose value is read and dropped would change nothing, without a word."""
    used = set()
    for path in PACKAGE:
        if path.parent.name != "tables":
            for node in nodes(path):
                names = (getattr(node, field, None) for field in ("value", "attr", "arg", "id"))
                used |= {name for name in names if isinstance(name, str)}

    assert [] == [
        f"{section.id}: {key.name}"
        for section in all_sections().values()
        for key in section.keys
        if key.name not in used
    ]


def test_nothing_is_left_to_do() -> None:
    """No TODO or FIXME is in the package."""
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X")

    assert [] == [
        package_of(path)
        for path in PACKAGE
        if any(mark in path.read_text(encoding="utf-8") for mark in marks)
    ]


def test_no_path_of_a_developers_machine_is_in_a_file() -> None:
    """Locks and settings name no index, no mirror and no home folder."""
    names = [
        "pyproject.toml",
        "Makefile",
        *(path.name for path in ROOT.glob("requirements-*.lock")),
    ]
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not any(
            word in text
            for word in (
                "file://",
                "/home/",
                "/root/",
                "index-url =",
                "--index-url",
                "--find-links",
            )
        )


def test_every_pin_has_a_hash() -> None:
    """Each package of a lock file has one version and a hash, which pip checks."""
    found = {path.name: pins_without_hash(path) for path in ROOT.glob("requirements-*.lock")}
    assert not any(found.values()), found


def pins_without_hash(lock: Path) -> list[str]:
    """Return the pins that no line with a hash follows."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    return [
        line
        for line, after in itertools.pairwise([*lines, ""])
        if "==" in line and not after.startswith("    --hash=sha256:")
    ]
