"""Subjects with wildcards: which overlap, and which are covered. Pure token arithmetic of NATS subjects."""

from __future__ import annotations

from collections.abc import Iterable


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns."""
    a, b = one.split("."), other.split(".")
    for left, right in zip(a, b, strict=False):
        if left == ">" or right == ">":
            return True
        if left != right and "*" not in (left, right):
            return False
    return len(a) == len(b)


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
