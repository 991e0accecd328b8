from __future__ import annotations

import shlex

import yaml
from hypothesis import given
from hypothesis import strategies as st

from jsplan.codegen.layout import format_comments, format_section
from jsplan.diagnostics import quote_shell

NAMES = st.text(min_size=1) | st.sampled_from(
    ["$(id)", "`id`", "a;id", "a'b", 'a"b', "a|b", "a&b", "~", "#", "a\nb", "-x", "a>b", "{a,b}"]
)


@given(NAMES)
def test_a_name_is_one_word_of_a_command(name: str) -> None:
    """A shell reads a name in a suggested command as one word, unchanged."""
    assert shlex.split(f"jsplan {quote_shell(name)} end") == ["jsplan", name, "end"]


def test_addresses_and_globs_stay_readable() -> None:
    """Ordinary addresses and globs have no quotes."""
    for word in (
        "hub/stream/ORDERS",
        "store-00*/stream/SALES",
        "DELETES_MESSAGES:hub/kv/CONFIG",
        "a.b_c-1",
    ):
        assert quote_shell(word) == word


@given(
    st.lists(st.text() | st.sampled_from(["a\nstreams: []", "a\rb: 1", "a\u2028b: 1", "a\x85b: 1"]))
)
def test_a_comment_stays_a_comment(lines: list[str]) -> None:
    """A comment with line breaks stays a comment in a generated file."""
    for made in (
        list(format_comments(lines)),
        [*format_section("streams", [(tuple(lines), {"name": "A"})])][1:-1],
    ):
        assert all(line.lstrip().startswith("#") and len(line.splitlines()) == 1 for line in made)
    assert yaml.safe_load(
        "\n".join([*format_section("streams", [(("a\nb: 1",), {"name": "A"})])])
    ) == {"streams": [{"name": "A"}]}
