"""The layout of YAML files: it changes no value, loses no comment, and is stable."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from jsplan.config import LoadOptions, load
from jsplan.config.findings import Findings
from jsplan.config.layout import Layout, lay_out
from jsplan.config.node import Source, to_plain
from jsplan.config.read import parse_document
from jsplan.workflows.fmt import fmt

ROOT = Path(__file__).parents[2]
SOURCE = Source.of(Path("jsplan.yaml"), "jsplan.yaml")
EXAMPLES = sorted({path.parent for path in (ROOT / "examples").rglob("jsplan.yaml")})
CONTRACT = (Path(__file__).parent / "contract.yaml").read_text("utf-8")


def read(text: str) -> Any:
    """Return the values of a document as the reader of workspaces finds them, or None."""
    findings = Findings()
    node = parse_document(SOURCE, text.encode(), findings)
    return None if node is None or findings.failed else to_plain(node)


FILES = sorted(path for name in ("tests", "examples") for path in (ROOT / name).rglob("*.yaml"))
#: The largest file of each folder: those of one folder are written alike.
SOME = list(
    {path.parent: path for path in sorted(FILES, key=lambda path: path.stat().st_size)}.values()
)


def written(text: str) -> Layout:
    """Return the layout of a document that can be read."""
    found = lay_out(SOURCE, text.encode(), Findings())
    assert found is not None
    return found


def formatted(text: str) -> str:
    """Return a dedented document in its layout, which must be possible."""
    found = written(dedent(text))
    assert not found.kept
    return found.text


def check_layout(text: str) -> Layout:
    """Check the values, the comments, and that a second time changes nothing."""
    found = written(text)
    assert read(found.text) == read(text)
    if not found.kept:
        assert written(found.text) == Layout(found.text)
    else:
        assert found.text == text
    return found


def check_file(path: Path) -> None:
    """Check the layout of a file with one document."""
    text = path.read_text("utf-8")
    assert read(text) is None or not check_layout(text).kept, path


@pytest.mark.parametrize("path", SOME, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_the_repository_keep_their_values(path: Path) -> None:
    """The layout of the largest file of each folder has the same values and is stable."""
    check_file(path)


@pytest.mark.soak
def test_all_files_of_the_repository_keep_their_values() -> None:
    """The layout of each file with one document has the same values and is stable."""
    for path in FILES:
        check_file(path)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)
def test_an_example_loads_as_before(folder: Path, tmp_path: Path) -> None:
    """Formatting an example changes nothing that is loaded from it, and it is formatted."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    names = re.findall(r"\$\{env\.(\w+)\}", (folder / "jsplan.yaml").read_text("utf-8"))
    environ = {name: "http://x" if name == "HOOK" else "nats://x" for name in names}
    named = read((folder / "jsplan.yaml").read_text("utf-8")).get("environments")
    options = LoadOptions(
        copy,
        next(iter(named), None) if named else None,
        variables=_required_variables(folder),
        environ=environ,
    )
    before = load(options)

    found = fmt(copy, (), write=True)

    after = load(options)
    assert {file.shown: file.changed for file in found} == {"jsplan.yaml": False}
    assert (after.resources, after.domains, after.connections, after.backfills) == (
        before.resources,
        before.domains,
        before.connections,
        before.backfills,
    )


def _required_variables(folder: Path) -> tuple[str, ...]:
    """Return a value for each variable without a default."""
    declared = read((folder / "jsplan.yaml").read_text("utf-8")).get("vars") or {}
    return tuple(f"{name}=x" for name, value in declared.items() if value is None)


def test_the_layout() -> None:
    """Lists are indented, spaces are single, and text keeps its quotes."""
    text = """
    jsplan:   1
    workspace:    shop


    streams:
    -   name: A
        subjects: [ "a.*" , 'b' ]
        description: plain
          over two lines
    """

    assert formatted(text) == dedent("""\
    jsplan: 1
    workspace: shop

    streams:
      - name: A
        subjects: ["a.*", 'b']
        description: plain over two lines
    """)


def test_comments_move_with_their_blocks() -> None:
    """A comment on its own line keeps its block, also below the last item of a list."""
    text = """\
    streams:
    # before A
    - name: A
      # in A
      subjects: [a]    # beside it
      # at the end of A

    # before B
    - name: B
    # after the list

    kv: []
    # the end
    """

    assert formatted(text) == dedent("""\
    streams:
      # before A
      - name: A
        # in A
        subjects: [a]  # beside it
        # at the end of A

      # before B
      - name: B
    # after the list

    kv: []
    # the end
    """)


@pytest.mark.parametrize(
    "value",
    ["NO", "on", "010", "0x1F", "1e3", "12:30", "2026-01-01", "~", "1_000", '"${var.x}"', "'~'"],
)
def test_scalars_stay_as_written(value: str) -> None:
    """No scalar is written in another way, whatever YAML 1.1 takes it for."""
    text = f"x-a: {value}\nx-b: [{value}]\nx-empty:\n"
    assert check_layout(text) == Layout(text)


def test_anchors_merge_keys_and_blocks_of_text_survive() -> None:
    """Anchors keep their names; `<<`, folded and literal text keep their form."""
    text = dedent("""\
    x-base: &limits {max_age: 30d, num_replicas: 3}
    x-text: |+
      a  # no comment

      b

    x-folded: >-
      one
      two

      three
    streams:
      - &first
        <<: *limits
        name: A
      - <<: [*limits, *first]
        name: B
    """)
    assert check_layout(text) == Layout(text)


def test_what_does_not_fit_in_brackets_becomes_a_block() -> None:
    """Only the outer collection that ends beyond the width is a block; long text is not broken."""
    long = "d" * 80
    text = f"streams:\n  - {{name: A, subjects: [a, b], description: {long}, max_age: 1y}} # why\n"

    found = check_layout(text)

    assert not found.kept
    assert f"    subjects: [a, b]\n    description: {long}\n    max_age: 1y" in found.text
    assert found.text.count("# why") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("streams:\n- {name: A, # why\n   subjects: [a]}\n", "the comment in line 2 would be lost"),
        ('x-a:   "\\u200b"\n', "its escapes would become characters (U+200B)"),
        ("# nothing\n", "it has no values"),
    ],
)
def test_a_file_that_cannot_keep_everything_stays(text: str, reason: str) -> None:
    """A file that would lose something is left unchanged, with the reason."""
    assert written(text) == Layout(text, reason)


def test_line_ends_of_windows_become_those_of_unix() -> None:
    """Carriage returns and a byte order mark go."""
    assert written("\ufeffjsplan:  1\r\nworkspace: w\r\n") == Layout("jsplan: 1\nworkspace: w\n")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=30),
    st.sampled_from(["", "NO", "~", "30d", "# no comment", "a: b", "${var.x}", "two\nlines\n"]),
)
KEYS = st.sampled_from(sorted(set(re.findall(r"[a-z_]+(?=:)", CONTRACT))))
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
        max_leaves=20,
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_generated_files_keep_values_and_comments(data: st.DataObject) -> None:
    """Any values, in any style of PyYAML and with comments anywhere, survive and are stable."""
    text = yaml.dump(
        data.draw(TREES),
        Dumper=yaml.CSafeDumper,
        allow_unicode=data.draw(st.booleans()),
        default_flow_style=data.draw(st.sampled_from([None, True, False])),
        indent=data.draw(st.integers(2, 6)),
        width=data.draw(st.sampled_from([20, 80, 1000])),
        sort_keys=False,
    )
    lines = text.split("\n")
    for number in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(lines)))
        lines.insert(at, " " * data.draw(st.integers(0, 8)) + f"# comment {number}")
    spoiled = "\n".join(lines)
    assume(read(spoiled) is not None)

    check_layout(spoiled)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_the_contract_with_other_spaces(data: st.DataObject) -> None:
    """The workspace of the contract, with comments and blank lines in other places."""
    lines = CONTRACT.split("\n")
    for number in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(lines)))
        indent = " " * data.draw(st.integers(0, 12))
        lines.insert(at, data.draw(st.sampled_from(["", f"{indent}# comment {number}"])))
    text = "\n".join(lines)
    assume(read(text) is not None)

    check_layout(text)
