from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.subjects import SubjectTree, find_overlap, is_covered, is_literal, is_subset, overlaps

#: Every literal subject of up to three parts: what a small world of wildcards can be tried on in full.
ALL_SUBJECTS = [".".join(parts) for length in (1, 2, 3) for parts in product("ab", repeat=length)]
TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3)
PATTERNS = st.builds(
    lambda tokens, more: ".".join([*tokens[: 2 if more else 3], *([">"] if more else [])]),
    TOKENS,
    st.booleans(),
)


def accepts(pattern: str, subject: str) -> bool:
    """Check whether a pattern matches a literal, written once more in the simplest way."""
    if pattern == ">":
        return bool(subject)
    head, _, rest = pattern.partition(".")
    first, _, more = subject.partition(".")
    if head not in ("*", first) or not first:
        return False
    return accepts(rest, more) if rest else not more


def members(pattern: str) -> set[str]:
    return {subject for subject in ALL_SUBJECTS if accepts(pattern, subject)}


@settings(max_examples=300)
@given(PATTERNS, PATTERNS)
def test_overlap_and_cover_are_what_the_sets_say(one: str, other: str) -> None:
    """Two patterns overlap if a subject matches both, and cover as the sets of their subjects."""
    assert overlaps(one, other) == overlaps(other, one) == bool(members(one) & members(other))
    if is_subset(one, other):
        assert members(one) <= members(other)
    assert is_subset(one, one)
    assert is_covered(one, [other, one])
    assert is_literal(one) == (members(one) == {one})


@given(st.lists(PATTERNS, max_size=8), PATTERNS)
def test_the_tree_finds_what_comparing_all_finds(patterns: list[str], subject: str) -> None:
    """The tree finds exactly the overlaps that comparing all with all finds."""
    tree = SubjectTree[int]()
    for number, pattern in enumerate(patterns):
        tree.add(pattern, number)

    assert set(tree.find_overlapping(subject)) == {
        n for n, pattern in enumerate(patterns) if overlaps(subject, pattern)
    }
    assert sorted(tree.iterate_owners()) == list(range(len(patterns)))
    pairs = [(a, b) for i, a in enumerate(patterns) for b in patterns[i + 1 :] if overlaps(a, b)]
    assert (find_overlap(patterns) is None) == (not pairs)


def test_subjects_of_thousands_of_parts() -> None:
    """Subjects of thousands of parts are compared without recursion.

    The server takes any length that fits into a line of its protocol.
    """
    tree = SubjectTree[str]()
    long = ".".join("a" * 5000)
    for subject in (long, f"*{long[1:]}", f"{long}.>", "a.>"):
        tree.add(subject, subject)
    assert list(tree.find_overlapping(long)) == [long, "a.>", f"*{long[1:]}"]
    assert len(list(tree.find_overlapping(">"))) == len(list(tree.iterate_owners())) == 4
    assert overlaps(long, f"*{long[1:]}")
    assert is_subset(long, "a.>")
