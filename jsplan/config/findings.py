"""Collects all errors of the files, so that one run reports them all.

A `Problem` is what a check between fields found, before its place in the file is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from jsplan.config.node import Node, Place, describe_node, source_range, type_name
from jsplan.diagnostics import Diagnostic, Severity, SourceRange, did_you_mean
from jsplan.errors import ConfigError

#: 100,000 resources of 50 values, as ten streams in each of 10,000 domains; a few seconds of work.
MAX_VALUES: Final = 5_000_000
#: The login of a URL, which may be where no URL is expected.
LOGIN: Final = re.compile(r"://[^\s/@]+@")
#: What a domain or a name is called that has a finding, so that the rest of its entry is read.
_PLACEHOLDER: Final = re.compile(r"jsplan-unknown-\d+")
_GUESS: Final = re.compile(r'Did you mean "([^"]*)"|The API name is "([^"]*)"')
#: The place of a finding; None when it is in no file.
FindingPlace = Node | Place | SourceRange | None
Body = Mapping[str, Any]


class Findings:
    """All diagnostics of one load, each once: a fleet of domains reads the same lines."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, SourceRange | None], Diagnostic] = {}
        self.failed = False
        self._values = 0
        self._placeholders = 0
        #: The keys that unknown keys were probably meant to be, with the places of their mappings.
        self._guesses: set[tuple[Place, str]] = set()

    def __len__(self) -> int:
        return len(self._found)

    def error(
        self, code: str, at: FindingPlace, summary: str, detail: str, address: str | None = None
    ) -> None:
        """Add an error; `detail` says how to correct it."""
        self.failed = True
        self._add("error", code, at, summary, detail, address)

    def warning(
        self, code: str, at: FindingPlace, summary: str, detail: str, address: str | None = None
    ) -> None:
        """Add a warning: something that works and is probably not intended."""
        self._add("warning", code, at, summary, detail, address)

    def _add(
        self,
        severity: Severity,
        code: str,
        at: FindingPlace,
        summary: str,
        detail: str,
        address: str | None,
    ) -> None:
        place = (
            at
            if isinstance(at, SourceRange) or at is None
            else source_range(at.place if isinstance(at, Node) else at)
        )
        shown, help_ = (
            _PLACEHOLDER.sub("?", LOGIN.sub("://…@", text)) for text in (summary, detail)
        )
        if address is not None and is_placeholder(address):
            address = None
        self._found.setdefault(
            (code, shown, place), Diagnostic(severity, code, shown, help_, address, place)
        )

    def make_placeholder(self) -> str:
        """Return a new text for a domain or a name that has a finding: `?` in messages."""
        self._placeholders += 1
        return f"jsplan-unknown-{self._placeholders}"

    def unknown_key(
        self, node: Node, key: str, summary: str, detail: str, address: str | None = None
    ) -> None:
        """Report an unknown key of a mapping. A key that `detail` guesses is not missing then."""
        self.error("JS105", node.key_place(key), summary, detail, address)
        if guess := _GUESS.search(detail):
            self._guesses.add((node.place, guess[1] or guess[2]))

    def missing(
        self, node: Node, key: str, what: str, detail: str = "", address: str | None = None
    ) -> None:
        """Report a required key, unless it has another finding: it is misspelt or unresolved."""
        if not self.is_misspelt(node, key) and not node.is_given(key):
            detail = detail or f"Add `{key}:`."
            self.error("JS106", node, f"{what} has no `{key}`", detail, address)

    def declared_twice(
        self, at: FindingPlace, what: str, first: SourceRange, address: str | None = None
    ) -> None:
        """Report a second declaration; `first` is the place of the one before."""
        detail = f"It is also at {first}; keep one."
        self.error("JS110", at, f"{what} is declared twice", detail, address)

    def is_misspelt(self, node: Node, *keys: str) -> bool:
        """Check whether an unknown key of a mapping was probably meant to be one of these."""
        return any((node.place, key) in self._guesses for key in keys)

    def wrong_type(self, node: Node, what: str, expected: str) -> None:
        """Report that `what` has not the `expected` type ("a mapping", "text", …).

        Text in place of a mapping or a list is not quoted: it may be a secret in the wrong place.
        """
        holds_more = expected.startswith(("a mapping", "a list"))
        found = type_name(node) if holds_more else describe_node(node)
        text = f"{what} must be {expected}, not {found}"
        self.error("JS104", node, text, _TYPE_HELP.get(expected, f"Write {expected}."))

    def no_known_keys(self, code: str, node: Node, summary: str, known: Collection[str]) -> bool:
        """Report a file whose keys are all unknown, and return True.

        The keys are not quoted: it may be no file of the workspace.
        """
        if not node.value or not node.value.keys().isdisjoint(known):
            return False
        near = next(filter(None, (did_you_mean(key, known) for key in node.value)), "")
        self.error(
            code,
            node,
            summary,
            near.strip() or f"The keys are {', '.join(sorted(known)) or 'none'}.",
        )
        return True

    def allow_values(self, values: int, at: FindingPlace) -> bool:
        """Return True if the files may have so many more values; report the first excess once.

        Aliases, ranges and selectors multiply values: one page may expand beyond any memory.
        """
        self._values += values
        if self._values <= MAX_VALUES:
            return True
        if self._values - values <= MAX_VALUES:
            detail = (
                "Aliases, variables, ranges and selectors multiply values."
                " Select fewer domains here, or split the workspace."
            )
            self.error("JS148", at, f"the files expand to more than {MAX_VALUES:,} values", detail)
        return False

    def sorted(self) -> tuple[Diagnostic, ...]:
        """Return them by file, line and column; those without a place come last."""
        return tuple(sorted(self._found.values(), key=_sort_key))

    def raise_if_failed(self) -> None:
        """Raise ConfigError with all findings, warnings included, if one of them is an error."""
        if self.failed:
            raise ConfigError(self.sorted())


def is_placeholder(text: str) -> bool:
    """Check whether a domain, a name or an address stands for one that has a finding."""
    return _PLACEHOLDER.search(text) is not None


_TYPE_HELP = {
    "a mapping": "Write `key: value` pairs, indented below it or inside { }.",
    "a list": "Write one `- item` per line below it, or [a, b].",
    "text": "Put it in quotes.",
    "true or false": "Write true or false, without quotes.",
}


def _sort_key(found: Diagnostic) -> tuple[bool, str, int, int, str]:
    place = found.range
    return (
        place is None,
        place.file if place else "",
        place.line if place else 0,
        place.column if place else 0,
        found.code,
    )


class Problem(NamedTuple):
    """One contradiction; `field` is where it is shown."""

    code: str
    field: str
    summary: str
    detail: str


Problems = Iterator[Problem]
#: A check, and the fields without any of which it finds nothing.
Check = tuple[Callable[[Body], Problems], frozenset[str]]


class Checks:
    """The checks of one kind of body; most bodies have the fields of one or two of them."""

    def __init__(self, *checks: Check) -> None:
        self._checks = checks
        #: Thousands of bodies have the same fields, for which it is looked up once.
        self._concerned = lru_cache(maxsize=1024)(self._select)

    def find(self, body: Body) -> Problems:
        """Yield what the checks find in a body."""
        for check in self._concerned(tuple(body)):
            yield from check(body)

    def _select(self, fields: tuple[str, ...]) -> list[Callable[[Body], Problems]]:
        return [check for check, concerned in self._checks if not concerned.isdisjoint(fields)]
