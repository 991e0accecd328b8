from __future__ import annotations

import pytest

from jsplan.address import KINDS
from jsplan.documents.plan import FieldChange
from jsplan.render import collapse, resource_text
from jsplan.render.json import dumps
from jsplan.render.paths import row_of, top_level
from jsplan.render.safe import safe, safe_lines
from jsplan.render.values import described, size
from tests.render import samples


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("max_age", "max_age"),
        ("mirror.external.api", "api"),
        ('sources["SALES@$JS.leaf.API#a.b"].filter_subject', "filter_subject"),
        ('sources["X"].subject_transforms[0].src', "src"),
        ('sources["X"]', "sources"),
        ('metadata["a.b"]', "metadata"),
        ("metadata.team", None),
        ("nobody_knows", None),
        ("nobody_knows.inner", None),
    ],
)
def test_the_row_of_a_path(path: str, row: str | None) -> None:
    """A path of a plan finds the row of its last name, through objects and named elements."""
    found = row_of("stream", path)

    assert (found.name if found else None) == row


def test_unknown_kinds_have_no_rows() -> None:
    """A plan of a newer release with another kind is still shown."""
    assert row_of("topic", "max_age") is None
    assert described("topic", "X", {"a": 1})[0].value == 1


def test_top_level() -> None:
    """The top-level field of a path is what stands before the first dot or bracket."""
    assert [top_level(p) for p in ("a", "a.b", 'a["x"].b')] == ["a", "a", "a"]


@pytest.mark.parametrize(("number", "text"), [(0, "0B"), (2**20, "1MiB"), (1572864, "1.50MiB"), (1572865, "1.50MiB (1572865)")])
def test_sizes_show_the_exact_number_where_the_unit_rounds(number: int, text: str) -> None:
    """What is shown can be written into a file and means the same, or the exact bytes follow."""
    assert size(number) == text


def test_safe_text() -> None:
    """Control characters become visible escapes; letters of every script stay."""
    assert safe("a\x1b\n\u2028\u202eü日") == "a\\x1b\\n\\u2028\\u202eü日"
    assert safe_lines("a\n\x1bb\n\n") == ["a", "\\x1bb"]
    assert safe_lines(" \n") == []


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["b", "a"], "a, b"),
        (["s-1", "s-2"], "s-1, s-2"),
        (["s-001", "s-002", "s-003", "s-005"], "s-{001..003}, s-005"),
        (["s-8", "s-9", "s-10"], "s-10, s-8, s-9"),
        ([], ""),
    ],
)
def test_ranges_of_names(names: list[str], text: str) -> None:
    """Runs of three and more are written as the files write ranges; nothing is left out and nothing is added."""
    assert collapse.compressed(names) == text


def test_resources_that_only_look_alike_are_kept_apart() -> None:
    """Two changes are one paragraph only if they differ in nothing but the name of their own domain."""
    alike = [
        samples.resource(f"d{n}/stream/S", ["update"], fields=(FieldChange("description", "x", f"of d{n}", "in_place"),)) for n in range(6)
    ]
    alike[3].change.fields[0].after = "of somebody else"
    found = list(collapse.groups([(r, resource_text.render(r)) for r in alike]))

    assert [[r.domain for r in others] for _, others in found] == [["d1", "d2", "d4", "d5"], []]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_resource_is_described_by_nothing(kind: str) -> None:
    """A resource that says no more than its name has no lines."""
    name = "bucket" if kind in ("kv", "object_store") else "name"

    assert described(kind, "S/X" if kind == "consumer" else "X", {name: "X"}) == []


def test_json_is_sorted_and_survives_half_a_surrogate() -> None:
    """A name that no UTF-8 can hold is escaped instead of ending the command."""
    assert dumps({"b": 1, "a": "\ud800"}) == '{\n  "a": "\\ud800",\n  "b": 1\n}\n'
    assert dumps({"b": 1, "a": "ü"}) == '{\n  "a": "ü",\n  "b": 1\n}\n'
