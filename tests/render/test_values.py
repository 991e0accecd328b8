from __future__ import annotations

import pytest

from jsplan import group_domains
from jsplan.address import KINDS, compress_names
from jsplan.documents.plan import FieldChange
from jsplan.render.escape import safe, safe_lines
from jsplan.render.json import dumps
from jsplan.render.lines import Lines
from jsplan.render.resource_text import add_field_change
from jsplan.render.values import non_default_leaves, row_of, size, top_level
from tests.render import samples


def test_the_row_of_a_path() -> None:
    """A path of a plan finds the row of its last name, through objects and named elements."""
    for path, row in [
        ("max_age", "max_age"),
        ("mirror.external.api", "api"),
        ('sources["SALES@$JS.leaf.API#a.b"].filter_subject', "filter_subject"),
        ('sources["X"].subject_transforms[0].src', "src"),
        ('sources["X"]', "sources"),
        ('metadata["a.b"]', "metadata"),
        ("metadata.team", None),
        ("nobody_knows", None),
        ("nobody_knows.inner", None),
    ]:
        found = row_of("stream", path)

        assert (found.name if found else None) == row, path


def test_unknown_kinds_have_no_rows() -> None:
    """A plan of a newer release with another kind is still shown."""
    assert row_of("topic", "max_age") is None
    assert non_default_leaves("topic", "X", {"a": 1})[0].value == 1


def test_top_level() -> None:
    """The top-level field of a path ends at the first dot or bracket."""
    assert [top_level(p) for p in ("a", "a.b", 'a["x"].b')] == ["a", "a", "a"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0B"), (2**20, "1MiB"), (1572864, "1.50MiB"), (1572865, "1.50MiB (1572865)")],
)
def test_sizes_show_the_exact_number_where_the_unit_rounds(number: int, text: str) -> None:
    """A size shows its exact bytes where the unit rounds."""
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
    """Runs of three and more names are written as ranges, which mean exactly those names."""
    assert compress_names(names) == text


def test_resources_that_only_look_alike_are_kept_apart() -> None:
    """Two changes are one paragraph only if they differ in the name of their domain alone."""
    alike = [
        samples.resource(
            f"d{n}/stream/S",
            ["update"],
            fields=(FieldChange("description", "x", f"of d{n}", "in_place"),),
        )
        for n in range(6)
    ]
    alike[3].change.fields[0].after = "of another owner"
    found = group_domains.group_resources(alike)

    assert [[r.domain for r in group.members] for group in found] == [
        ["d0", "d1", "d2", "d4", "d5"],
        ["d3"],
    ]
    assert (found[0].resource.address, found[0].resource.change.fields[0].after) == (
        "${domain}/stream/S",
        "of ${domain}",
    )
    assert found[1].resource is alike[3]


def test_a_domain_is_a_whole_word() -> None:
    """A domain's name within another word is no name: domains a to e have one change of max_age."""
    change = (FieldChange("max_age", 1, 2, "in_place"),)
    found = group_domains.group_resources(
        [samples.resource(f"{name}/stream/S", ["update"], fields=change) for name in "abcde"]
    )

    assert [group.where for group in found] == ["in 5 domains: a, b, c, d, e"]
    assert found[0].resource.change.fields[0].path == "max_age"


def test_one_flag_permits_a_group_and_nothing_else() -> None:
    """The flag of a group is a glob unless that would permit a hazard outside of the group."""
    age = (FieldChange("max_age", 2, 1, "in_place"),)
    alike = [
        samples.resource(f"store-{n:03}/stream/SALES", ["update"], fields=age) for n in range(1, 6)
    ]
    for resource in alike:
        resource.hazards = [samples.deletes_messages(resource.address)]
    other = samples.resource(
        "store-x/stream/SALES", ["update"], fields=(FieldChange("max_msgs", 2, 1, "in_place"),)
    )
    together = group_domains.group_resources([*alike, other], samples.plan(*alike, other))[
        0
    ].resource.hazards[0]
    other.hazards = [samples.deletes_messages(other.address)]
    apart = group_domains.group_resources([*alike, other], samples.plan(*alike, other))[
        0
    ].resource.hazards[0]

    assert (together.messages, together.flag) == (
        5 * 1203,
        "--allow-hazard DELETES_MESSAGES:store-00*/stream/SALES",
    )
    assert apart.flag == together.flag, "store-x is not matched"
    other.address = "store-00x/stream/SALES"
    split = group_domains.group_resources([*alike, other], samples.plan(*alike, other))[
        0
    ].resource.hazards[0]
    assert split.flag.split(" ")[1::2] == [
        f"DELETES_MESSAGES:store-{n:03}/stream/SALES" for n in range(1, 6)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_resource_is_described_by_nothing(kind: str) -> None:
    """A resource with nothing but a name has no lines."""
    name = "bucket" if kind in ("kv", "object_store") else "name"

    assert non_default_leaves(kind, "S/X" if kind == "consumer" else "X", {name: "X"}) == []


def test_json_is_sorted_and_survives_half_a_surrogate() -> None:
    """A name that is no valid UTF-8 is escaped."""
    assert dumps({"b": 1, "a": "\ud800"}) == '{\n  "a": "\\ud800",\n  "b": 1\n}\n'
    assert dumps({"b": 1, "a": "ü"}) == '{\n  "a": "ü",\n  "b": 1\n}\n'


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("fast", "slow", ['~ value: "fast" -> "slow"']),
        ('{"a":1,"b":2}', '{"a":1,"b":3}', ['-   "b": 2', '+   "b": 3']),
        ("x\ny\n", "x\nz\n", ["- y", "+ z"]),
        ('{"a": 1}', '{"a":1}', [r'~ value: "{\"a\": 1}" -> "{\"a\":1}"']),
        ("[1]", "[" * 100_000, ["~ value: "]),
        ("{", "{}", ['~ value: "{" -> "{}"']),
    ],
    ids=["text", "json", "lines", "spaces", "deep", "not json"],
)
def test_the_change_of_a_value_in_a_bucket(before: str, after: str, shown: list[str]) -> None:
    """JSON and text of several lines are compared line by line; the rest is unchanged."""
    lines = Lines()

    add_field_change(lines, "kv_entry", FieldChange("value", before, after, "in_place"))

    texts = [line.strip() for line in lines.plain().splitlines()]
    changed = [text for text in texts if text[:2] in ("+ ", "- ", "~ ") and text != "~ value:"]
    assert len(changed) == len(shown)
    assert all(text.startswith(wanted) for text, wanted in zip(changed, shown, strict=True))
