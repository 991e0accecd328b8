"""Collects what is wrong with the files, so that everything is said at once; raising is left to `load`."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from jsplan.config.node import Node, Place, describe_node, source_range, type_name
from jsplan.diagnostics import Diagnostic, Severity, SourceRange, did_you_mean
from jsplan.errors import ConfigError

#: A hundred thousand resources of fifty values, such as ten streams in each of ten thousand domains; a few seconds of work.
MAX_VALUES: Final = 5_000_000
#: The login of a URL, which may stand where no URL is expected.
LOGIN: Final = re.compile(r"://[^\s/@]+@")
#: Where something was found; None when it is in no file.
FindingPlace = Node | Place | SourceRange | None


class Findings:
    """All diagnostics of one load, without repetitions (a fleet of domains reads the same lines many times)."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, SourceRange | None], Diagnostic] = {}
        self.failed = False
        self._values = 0

    def __len__(self) -> int:
        return len(self._found)

    def error(
        self, code: str, at: FindingPlace, summary: str, detail: str, address: str | None = None
    ) -> None:
        """Something that must be corrected; `detail` says how."""
        self.failed = True
        self._add("error", code, at, summary, detail, address)

    def warning(
        self, code: str, at: FindingPlace, summary: str, detail: str, address: str | None = None
    ) -> None:
        """Something that works and is probably not meant."""
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
        said, help_ = (LOGIN.sub("://…@", text) for text in (summary, detail))
        self._found.setdefault(
            (code, said, place), Diagnostic(severity, code, said, help_, address, place)
        )

    def wrong_type(self, node: Node, what: str, expected: str) -> None:
        """`what` is not of the shape that is `expected` ("a mapping", "text", …)."""
        self.error(
            "JS104",
            node,
            f"{what} must be {expected}, not {describe_node(node)}",
            _TYPE_HELP.get(expected, f"Write {expected}."),
        )

    def not_a_mapping(self, node: Node, what: str) -> None:
        """A whole file is no mapping. It may be no file of the workspace at all: its text is not quoted."""
        self.error(
            "JS104",
            node,
            f"{what} must be a mapping, not {type_name(node)}",
            _TYPE_HELP["a mapping"],
        )

    def no_known_keys(self, code: str, node: Node, summary: str, known: Collection[str]) -> bool:
        """Whether a file has keys and none of them is known: it may be no file of the workspace, and they are not quoted."""
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
        """Whether the files may stand for so many values more; the place where they become too many is reported once.

        Aliases, ranges and selectors multiply what is written: a page may stand for more than any memory holds.
        """
        self._values += values
        if self._values <= MAX_VALUES:
            return True
        if self._values - values <= MAX_VALUES:
            detail = "Aliases, variables, ranges and selectors multiply what is written. Select fewer domains here, or split the workspace."
            self.error("JS148", at, f"the files stand for more than {MAX_VALUES:,} values", detail)
        return False

    def sorted(self) -> tuple[Diagnostic, ...]:
        """By file, line and column; those without a place come last."""
        return tuple(sorted(self._found.values(), key=_sort_key))

    def raise_if_failed(self) -> None:
        """Raise ConfigError with everything that was found, warnings included, if any of it is an error."""
        if self.failed:
            raise ConfigError(self.sorted())


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
