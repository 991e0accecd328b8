"""Failing documents: shrunk, described, and kept as cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.fuzz.documents import Document, bytes_of, dump, text_of
from tests.fuzz.harness import FoundFailure, Report, Target, check_document

FOUND: Final = Path(__file__).parent / "found"
#: Attempts to shrink a failing document; fewer for one that takes seconds to fail.
TRIES, SLOW_TRIES = 400, 40


def shrink_failure(target: Target, found: FoundFailure) -> Document:
    """Return a smaller document with the same failure."""
    key, document = found.failure.key, found.document
    slow = key.startswith(("computes", "waits", "the process dies"))
    attempts = SLOW_TRIES if slow else TRIES

    def shows(candidate: Document) -> bool:
        nonlocal attempts
        attempts -= 1
        failure = check_document(target, candidate)
        return failure is not None and failure.key == key

    for smaller in (_fewer_parts, _smaller_trees, _smaller_text):
        for _ in range(3):
            before = dump(document)
            document = smaller(target, document, shows, lambda: attempts > 0)
            if dump(document) == before:
                break
    return document


Shows = Callable[[Document], bool]


def _fewer_parts(
    target: Target, document: Document, shows: Shows, more: Callable[[], bool]
) -> Document:
    for name in [*document]:
        without = {part: content for part, content in document.items() if part != name}
        if name != "$" and more() and shows(without):
            document = without
    return document


def _smaller_trees(
    target: Target, document: Document, shows: Shows, more: Callable[[], bool]
) -> Document:
    for name in [*document]:
        try:
            tree = json.loads(document[name])
        except (ValueError, RecursionError):
            continue
        for path in sorted(_paths(tree), key=len):
            smaller = _without(tree, path)
            if smaller is not None and more():
                candidate = document | {name: bytes_of(json.dumps(smaller))}
                if shows(candidate):
                    document, tree = candidate, smaller
    return document


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inside = (
        tree.items()
        if isinstance(tree, dict)
        else reversed([*enumerate(tree)])
        if isinstance(tree, list)
        else ()
    )
    for key, value in inside:
        yield from _paths(value, (*path, key))


def _without(tree: Any, path: tuple[Any, ...]) -> Any:
    """Return the tree without the value at this path, or None where there is none."""
    if isinstance(tree, dict) and path[0] in tree:
        if len(path) == 1:
            return {key: value for key, value in tree.items() if key != path[0]}
        inner = _without(tree[path[0]], path[1:])
        return None if inner is None else tree | {path[0]: inner}
    if isinstance(tree, list) and isinstance(path[0], int) and path[0] < len(tree):
        if len(path) == 1:
            return tree[: path[0]] + tree[path[0] + 1 :]
        inner = _without(tree[path[0]], path[1:])
        return None if inner is None else [*tree[: path[0]], inner, *tree[path[0] + 1 :]]
    return None


def _smaller_text(
    target: Target, document: Document, shows: Shows, more: Callable[[], bool]
) -> Document:
    for name in [*document]:
        if not target.changes(name):
            continue
        lines = document[name].splitlines(keepends=True)
        pieces = (
            lines
            if len(lines) > 3
            else [document[name][at : at + 1] for at in range(len(document[name]))]
        )
        step = max(1, len(pieces) // 2)
        while step and more():
            at = 0
            while at < len(pieces) and more():
                kept = pieces[:at] + pieces[at + step :]
                candidate = document | {name: b"".join(kept)}
                if shows(candidate):
                    pieces, document = kept, candidate
                else:
                    at += step
            step //= 2
    return document


# --- Cases and reports


def keep_case(target: Target, document: Document) -> Path:
    """Keep a document as a case, named by its content."""
    text = dump(document)
    path = FOUND / target.name / f"{sha256(text.encode()).hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def kept_cases(target: Target) -> list[Path]:
    """Return the cases of a target."""
    return sorted((FOUND / target.name).glob("*.json"))


def format_report(report: Report, seed: int, *, smaller: bool = True) -> str:
    """Describe the failures of a run, each with its smallest document and its command."""
    parts = []
    for found in sorted(report.found.values(), key=lambda found: found.number):
        document = shrink_failure(report.target, found) if smaller else found.document
        shown = "\n".join(
            f"    {name}: {text_of(content)[:1500]!r}"
            for name, content in document.items()
            if name == "$" or content
        )
        parts.append(
            f"--- {report.target.name}: {found.failure.key} ({found.count} of {report.documents} documents, first number {found.number})\n"
            f"{found.failure.detail}\n  smallest document:\n{shown}\n"
            f"  again: python -m tests.fuzz {report.target.name} --seed {seed} --only {found.number}\n"
        )
    return "\n".join(parts)
