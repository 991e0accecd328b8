"""All rules, by their codes.

A new rule is a function and a row in the file of its theme, a title in `codes.LINT`, and a case in
tests/lint/cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jsplan.lint.rules import consumers, copies, flows, storage

if TYPE_CHECKING:
    from jsplan.lint.rule import Rule

RULES: Final[tuple[Rule, ...]] = (*flows.RULES, *copies.RULES, *storage.RULES, *consumers.RULES)

__all__ = ["RULES"]
