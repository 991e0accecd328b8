"""Subjects with wildcards: well-formed, overlapping, covered, by the rules of nats-server."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

#: With more comparisons than this a tree is built.
TREE_THRESHOLD = 10_000
_BLANK = re.compile(r"\s")
T = TypeVar("T")


def is_valid(subject: str) -> bool:
    """Check whether the server takes it: no blanks, no empty parts, `>` only at the end."""
    tokens = subject.split(".")
    return all(tokens) and ">" not in tokens[:-1] and not _BLANK.search(subject)


def is_literal(subject: str) -> bool:
    """Check whether it has no wildcard."""
    return "*" not in subject.split(".") and ">" not in subject.split(".")


def overlaps(one: str, other: str) -> bool:
    """Check whether some subject matches both."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def intersect(one: str, other: str) -> str | None:
    """Return the pattern of exactly the subjects that match both, or None if none does."""
    left, right = one.split("."), other.split(".")
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if ">" in (a, b):
            return ".".join(
                [
                    *_narrower_tokens(left[:index], right[:index]),
                    *(right[index:] if a == ">" else left[index:]),
                ]
            )
        if a != b and "*" not in (a, b):
            return None
    return ".".join(_narrower_tokens(left, right)) if len(left) == len(right) else None


def _narrower_tokens(left: Iterable[str], right: Iterable[str]) -> list[str]:
    return [b if a == "*" else a for a, b in zip(left, right, strict=True)]


def find_overlap(subjects: Sequence[str]) -> tuple[str, str] | None:
    """Return two of the subjects that overlap, or None. Two literals overlap only if equal."""
    if len(subjects) < 2:
        return None
    literal: set[str] = set()
    wild: list[str] = []
    for subject in subjects:
        if not is_literal(subject):
            wild.append(subject)
        elif subject in literal:
            return subject, subject
        else:
            literal.add(subject)
    return _find_overlap_pair(wild, literal)


def _find_overlap_pair(wild: Sequence[str], literal: Iterable[str]) -> tuple[str, str] | None:
    literals = [*literal]
    if len(wild) * (len(wild) + len(literals)) > TREE_THRESHOLD:
        return _find_overlap_by_tree([*literals, *wild])
    for index, subject in enumerate(wild):
        for other in (*wild[index + 1 :], *literals):
            if overlaps(subject, other):
                return subject, other
    return None


def _find_overlap_by_tree(subjects: Iterable[str]) -> tuple[str, str] | None:
    tree = SubjectTree[str]()
    for subject in subjects:
        for other in tree.find_overlapping(subject):
            return subject, other
        tree.add(subject, subject)
    return None


class SubjectTree(Generic[T]):
    """Subjects with their owners, as a tree of their parts.

    It finds overlaps without comparing all with all. `owners` are those of the subject that ends
    at this node.
    """

    def __init__(self) -> None:
        self.children: dict[str, SubjectTree[T]] = {}
        self.owners: list[T] = []

    def add(self, subject: str, owner: T) -> None:
        """Add a subject of this owner."""
        node = self
        for part in subject.split("."):
            node = node.children.setdefault(part, SubjectTree())
        node.owners.append(owner)

    def find_overlapping(self, subject: str) -> Iterator[T]:
        """Yield the owner of each overlapping subject; duplicates are possible."""
        parts = subject.split(".")
        #: No recursion: a subject may have thousands of parts.
        waiting: list[tuple[SubjectTree[T], int]] = [(self, 0)]
        while waiting:
            node, depth = waiting.pop()
            if depth == len(parts):
                yield from node.owners
            elif parts[depth] == ">":
                for child in node.children.values():
                    yield from child.iterate_owners()
            else:
                names = (
                    node.children
                    if parts[depth] == "*"
                    else dict.fromkeys((parts[depth], "*", ">"))
                )
                found = [
                    (node.children[name], len(parts) if name == ">" else depth + 1)
                    for name in names
                    if name in node.children
                ]
                waiting += reversed(found)

    def iterate_owners(self) -> Iterator[T]:
        """Yield the owners of all subjects at and below this node."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield from node.owners
            waiting += reversed(node.children.values())


def is_subset(one: str, other: str) -> bool:
    """Check whether every subject that matches `one` also matches `other`."""
    a, b = one.split("."), other.split(".")
    for i, right in enumerate(b):
        if right == ">":
            return len(a) > i
        if i >= len(a) or a[i] == ">" or (right != "*" and a[i] != right):
            return False
    return len(a) == len(b)


def is_covered(subject: str, by: Iterable[str]) -> bool:
    """Check whether one of the patterns covers the whole subject."""
    return any(is_subset(subject, other) for other in by)


def passes_filters(subject: str, filters: Collection[str]) -> bool:
    """Check whether one of the filters lets the subject pass; no filter lets everything pass."""
    return not filters or is_covered(subject, filters)
