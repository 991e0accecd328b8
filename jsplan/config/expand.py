"""Ranges of domain names (`store-{001..200}`) and selectors over domains.

A selector is `label:edge`, `store-*` or `!store-099`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import Final

from jsplan.config.findings import Findings
from jsplan.config.model import Domain
from jsplan.config.node import Node
from jsplan.diagnostics import did_you_mean

MAX_RANGE: Final = 10_000
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_LABEL: Final = "label:"


def expand_range(pattern: str) -> list[str]:
    """Return the names of a key with ranges; ValueError for a reversed or too long range."""
    parts = _RANGE.split(pattern)
    choices: list[list[str]] = []
    total = 1
    for index in range(0, len(parts), 3):
        choices.append([parts[index]])
        if index + 2 < len(parts):
            first, last = parts[index + 1], parts[index + 2]
            total *= _range_length(first, last)
            if total > MAX_RANGE:
                raise ValueError(f"means more than {MAX_RANGE} names")
            width = len(first) if first.startswith("0") else 0
            choices.append(
                [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
            )
    return ["".join(parts) for parts in product(*choices)]


def _range_length(first: str, last: str) -> int:
    if max(len(first), len(last)) > 9 or int(last) < int(first):
        raise ValueError(f"has a range {{{first}..{last}}} that does not count up")
    return int(last) - int(first) + 1


def has_range(key: str) -> bool:
    """Check whether the key means several names."""
    return _RANGE.search(key) is not None


class DomainSelectors:
    """Resolves selectors over the domains of one workspace, each text once.

    A name that is none of a domain has a finding, and selects a placeholder.

    A domain with `same_as` is found by its exact name only.
    """

    def __init__(self, domains: Mapping[str, Domain], findings: Findings) -> None:
        self._domains = domains
        self._findings = findings
        self._own = [key for key, domain in domains.items() if domain.is_own]
        self._known: dict[str, tuple[str, ...]] = {}

    def select(self, node: Node) -> Sequence[str]:
        """Return the keys of the matching domains in the order of the files.

        A selector that matches nothing is a finding.
        """
        if isinstance(node.value, str) and (known := self._known.get(node.value)):
            return known
        terms = node.value if isinstance(node.value, list) else [node]
        texts = [self._read_term(term) for term in terms]
        wanted = [(text, term) for text, term in zip(texts, terms, strict=True) if text is not None]
        positive = [self._match(text, term) for text, term in wanted if not text.startswith("!")]
        if len(wanted) < len(texts):
            return [self._findings.make_placeholder()]
        if len(positive) == len(wanted) == 1:
            return positive[0]  # not copied: thousands of streams may each select all domains
        taken: Iterable[str] = (
            self._own if not positive and wanted else (key for keys in positive for key in keys)
        )
        without = {
            key
            for text, term in wanted
            if text.startswith("!")
            for key in self._match(text[1:], term)
        }
        found = [key for key in dict.fromkeys(taken) if key not in without]
        return [key for key in found if key in self._domains] or found

    @property
    def own(self) -> Sequence[str]:
        """The keys of all domains but those with `same_as`."""
        return self._own

    def _read_term(self, node: Node) -> str | None:
        if isinstance(node.value, str) and node.value not in ("", "!"):
            return node.value
        self._findings.wrong_type(node, "a domain", "text")
        return None

    def _match(self, text: str, node: Node) -> tuple[str, ...]:
        found = self._known.get(text)
        if found is None:
            found = self._find(text)
            self._known[text] = found
        if not found:
            self._report_no_match(text, node)
        return found or (() if is_pattern(text) else (self._findings.make_placeholder(),))

    def _find(self, text: str) -> tuple[str, ...]:
        if text.startswith(_LABEL):
            label = text.removeprefix(_LABEL)
            return tuple(key for key in self._own if label in self._domains[key].labels)
        if is_pattern(text):
            return tuple(key for key in self._own if _matches(key, text))
        return (text,) if text in self._domains else ()

    def _report_no_match(self, text: str, node: Node) -> None:
        if not self._domains:
            return  # that has a finding of its own
        if text.startswith(_LABEL):
            labels = {
                _LABEL + label for domain in self._domains.values() for label in domain.labels
            }
            hint = f"Labels are given under `domains:`.{did_you_mean(text, labels)}"
            self._findings.warning("JS124", node, f"no domain has the label of {text}", hint)
        elif is_pattern(text):
            hint = f"Known domains: {_format_domains(self._domains)}."
            self._findings.warning("JS124", node, f'"{text}" matches no domain', hint)
        else:
            hint = (
                f"Known domains: {_format_domains(self._domains)}."
                f"{did_you_mean(text, self._domains)}"
            )
            self._findings.error("JS122", node, f'there is no domain "{text}"', hint)


def choose_only_domain(entry: Node, own: Sequence[str], findings: Findings) -> Sequence[str]:
    """Return the only domain for an entry that names none; a placeholder after a finding.

    A workspace without domains has its own finding.
    """
    if len(own) == 1:
        return own
    if own and not findings.is_misspelt(entry, "domain"):
        text = "the domain is missing, and there are several"
        findings.error("JS127", entry, text, "Add `domain:` here, or `defaults: {domain: …}`.")
    return [findings.make_placeholder()]


def _matches(key: str, pattern: str) -> bool:
    if not has_range(pattern):
        return fnmatchcase(key, pattern)
    try:
        return key in expand_range(pattern)
    except ValueError:
        return False


def is_pattern(text: str) -> bool:
    """Check whether a selector may match several domains."""
    return text.startswith((_LABEL, "!")) or has_range(text) or _is_glob(text)


def _is_glob(text: str) -> bool:
    return any(character in text for character in "*?[")


def _format_domains(domains: Mapping[str, Domain]) -> str:
    shown = list(domains)[:8]
    if shown:
        return ", ".join(shown) + (f" and {len(domains) - 8} more" if len(domains) > 8 else "")
    return "none"
