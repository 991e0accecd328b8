"""All rules, by their codes.

A new rule is a function with `@rule` in the file of its theme, a title in `codes.LINT`, and a case
in tests/lint/cases.
"""

from __future__ import annotations

from typing import Final

from jsplan.lint.rule import Rule
from jsplan.lint.rules import consumers, copies, flows, storage

RULES: Final = tuple(
    rule
    for theme in (flows, copies, storage, consumers)
    for rule in vars(theme).values()
    if isinstance(rule, Rule)
)

__all__ = ["RULES"]
