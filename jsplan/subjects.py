"""Subjects with wildcards: which are well-formed, which overlap, which are covered, as nats-server decides it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BLANK = re.compile(r"\s")


def is_valid(subject: str) -> bool:
    """Whether the server takes it: no blanks, no empty parts, `>` only at the end."""
    tokens = subject.split(".")
    return all(tokens) and ">" not in tokens[:-1] and not _BLANK.search(subject)


def is_literal(subject: str) -> bool:
    """Whether it has no wildcard."""
    return "*" not in subject.split(".") and ">" not in subject.split(".")


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def first_overlap(subjects: Sequence[str]) -> tuple[str, str] | None:
    """Two of the subjects that overlap, or None; literals are compared with wildcards only."""
    literal: set[str] = set()
    wild: list[str] = []
    for subject in subjects:
        if not is_literal(subject):
            wild.append(subject)
        elif subject in literal:
            return subject, subject
        else:
            literal.add(subject)
    return _first(wild, literal)


def _first(wild: Sequence[str], literal: Iterable[str]) -> tuple[str, str] | None:
    for index, subject in enumerate(wild):
        for other in (*wild[index + 1 :], *literal):
            if overlap(subject, other):
                return subject, other
    return None


def within(one: str, other: str) -> bool:
    """Whether every subject that matches `one` also matches `other`."""
    a, b = one.split("."), other.split(".")
    for i, right in enumerate(b):
        if right == ">":
            return len(a) > i
        if i >= len(a) or a[i] == ">" or (right != "*" and a[i] != right):
            return False
    return len(a) == len(b)


def covered(subject: str, by: Iterable[str]) -> bool:
    """Whether one of the patterns covers the subject entirely."""
    return any(within(subject, other) for other in by)
