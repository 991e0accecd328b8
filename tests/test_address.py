from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jsplan.address import (
    KINDS,
    Address,
    capture_wildcards,
    changes_only_domain,
    is_glob,
    is_selected,
    matches,
    move_address,
)

NAMES = st.text(
    st.characters(exclude_characters="/*?", exclude_categories=("Z", "C")), min_size=1, max_size=8
)


@st.composite
def addresses(draw: st.DrawFn) -> Address:
    """Draw any address."""
    kind = draw(st.sampled_from(KINDS))
    name = draw(NAMES)
    return Address(draw(NAMES), kind, f"{name}/{draw(NAMES)}" if kind == "consumer" else name)


@given(addresses())
def test_addresses_read_back(address: Address) -> None:
    """An address is read from its own text, and its text and parts are globs that match it."""
    assert Address.parse(str(address)) == address
    assert matches(str(address), address)
    assert matches("**", address)
    assert matches(f"{address.domain}/**", address)
    assert matches(f"*/{address.kind}/{'*/*' if address.kind == 'consumer' else '*'}", address)
    assert matches(f"{address.domain}/*/*", address) == (address.kind != "consumer")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hub",
        "hub/stream",
        "hub/stream/",
        "/stream/A",
        "hub/stream/A/B",
        "hub/consumer/A",
        "hub/table/A",
        "hub//A",
        "a/consumer/A/B/C",
    ],
)
def test_no_addresses(text: str) -> None:
    """A text that is no address is an error that quotes it."""
    with pytest.raises(ValueError, match="is not a"):
        Address.parse(text)


def test_globs() -> None:
    """`*` stays within one part, `**` crosses parts, `?` is one character."""
    for glob, text, fits in [
        ("hub/stream/*", "hub/stream/A", True),
        ("hub/stream/*", "hub/consumer/A/B", False),
        ("hub/*", "hub/stream/A", False),
        ("store-*/**", "store-017/consumer/A/B", True),
        ("store-?/**", "store-017/stream/A", False),
        ("hub/stream/A.B", "hub/stream/AxB", False),
        ("hub/stream/[AB]", "hub/stream/A", False),
        ("**/A", "hub/stream/A", True),
        ("hub/stream/A*Z", "hub/stream/A/Z", False),
    ]:
        assert matches(glob, text) == fits, glob


@pytest.mark.parametrize(
    ("origin", "to", "old", "new"),
    [
        ("leaf/**", "edge/**", "leaf/consumer/A/B", "edge/consumer/A/B"),
        ("leaf/stream/*", "edge/stream/*", "leaf/stream/A", "edge/stream/A"),
        ("leaf/stream/A_*", "edge/stream/A_*", "leaf/stream/A_7", "edge/stream/A_7"),
        ("store-*/**", "shop-*/**", "store-017/stream/A", "shop-017/stream/A"),
        ("leaf/stream/A", "edge/stream/A", "leaf/stream/A", "edge/stream/A"),
        (
            "leaf/consumer/*/NEW",
            "edge/consumer/*/NEW",
            "leaf/consumer/A/NEW",
            "edge/consumer/A/NEW",
        ),
    ],
)
def test_a_move_keeps_the_text_of_its_wildcards(origin: str, to: str, old: str, new: str) -> None:
    """Wildcards of both sides stand for the same parts, also within a name."""
    assert move_address(origin, to, Address.parse(old)) == Address.parse(new)


def test_moves_that_change_the_domain_alone() -> None:
    """A move keeps its wildcards only if it leaves kind and name unchanged."""
    for origin, to, kept in [
        ("leaf/**", "edge/**", True),
        ("store-*/**", "shop-*/**", True),
        ("leaf/consumer/*/NEW", "edge/consumer/*/NEW", True),
        ("leaf**", "edge**", True),
        ("leaf/stream/A", "leaf/stream/B", False),
        ("leaf/stream/A*", "hub/stream/B*", False),
        ("leaf/stream/*_A", "leaf/stream/*_B", False),
        ("leaf/consumer/A/*", "leaf/consumer/B/*", False),
        ("leaf/stream/A", "leaf/kv/A", False),
        ("a**", "a**b", False),
    ]:
        assert changes_only_domain(origin, to) == kept, origin


@given(addresses(), NAMES)
def test_moving_there_and_back(address: Address, domain: str) -> None:
    """A renamed domain renames its addresses, and the way back exchanges the sides."""
    assume(not is_glob(domain))
    there = move_address(f"{address.domain}/**", f"{domain}/**", address)

    assert there == address._replace(domain=domain)
    assert move_address(f"{domain}/**", f"{address.domain}/**", there) == address


def test_sides_with_different_wildcards() -> None:
    """A move with ambiguous wildcards is an error; names are never made up."""
    for origin, to in (
        ("leaf/**", "edge/stream/A"),
        ("leaf/*/*", "edge/**"),
        ("leaf/stream/A", "edge/stream/*"),
    ):
        with pytest.raises(ValueError, match="different wildcards"):
            move_address(origin, to, Address.parse("leaf/stream/A"))


def fits(glob: str, text: str) -> bool:
    """Check whether a glob matches, written once more in the simplest way."""
    if not glob:
        return not text
    if glob.startswith("**"):
        return any(fits(glob[2:], text[n:]) for n in range(len(text) + 1))
    if glob[0] == "*":
        end = text.find("/") if "/" in text else len(text)
        return any(fits(glob[1:], text[n:]) for n in range(end + 1))
    return (
        bool(text)
        and (glob[0] == text[0] or (glob[0] == "?" and text[0] != "/"))
        and fits(glob[1:], text[1:])
    )


@settings(max_examples=400)
@given(st.text("ab/*?", max_size=9), st.text("ab/", max_size=9))
def test_any_glob_matches_what_it_says(glob: str, text: str) -> None:
    """Globs match what they say, whatever wildcards follow each other."""
    assert matches(glob, text) == fits(glob, text)


@settings(max_examples=400)
@given(st.text("ab/*?", max_size=9), st.text("ab/", max_size=9))
def test_wildcards_stand_for_the_longest_text(glob: str, text: str) -> None:
    """The first wildcard takes as much as it can, then the second, as in a regular expression."""
    signs = {"**": "(.*)", "*": "([^/]*)", "?": "([^/])"}
    found = re.fullmatch(
        "".join(signs.get(token, token) for token in re.split(r"(\*\*|\*|\?)", glob)), text
    )
    assert capture_wildcards(glob, text) == (list(found.groups()) if found else None)


@pytest.mark.parametrize(
    "glob",
    [
        "*a" * 40 + "c",
        "**a" * 40 + "c",
        "**a*a" * 20 + "c",
        "hub/stream/" + "*a*?" * 30 + "c",
        "?*" * 40 + "c",
        "**/" * 50 + "*c",
    ],
)
@pytest.mark.timeout(20)
def test_a_glob_of_many_wildcards_ends(glob: str) -> None:
    """The time to match a glob grows with text and glob, not with their combinations."""
    for text in (
        f"hub/stream/{'a' * 250}",
        "a/" * 120 + "b",
        f"{'a' * 120}/{'a' * 120}/{'a' * 120}b",
    ):
        assert not matches(glob, text)
        assert capture_wildcards(glob, text) is None


@pytest.mark.parametrize(
    ("targets", "excludes", "selected"),
    [
        ((), (), True),
        (("hub/**",), (), True),
        (("leaf/**", "*/stream/A"), (), True),
        (("leaf/**",), (), False),
        ((), ("leaf/**", "hub/*/A"), False),
        (("hub/**",), ("hub/stream/A",), False),
    ],
)
def test_selection(targets: tuple[str, ...], excludes: tuple[str, ...], selected: bool) -> None:
    """One target must match, where there are any, and no exclude."""
    address = Address("hub", "stream", "A")
    assert is_selected(address, targets, excludes) is selected
    assert is_selected(str(address), targets, excludes) is selected
