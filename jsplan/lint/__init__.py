"""Advice on the configuration: one rule per file, over the whole graph. Pure."""

from __future__ import annotations

from jsplan.lint.engine import Report, run_rules
from jsplan.lint.rule import Hit, Rule
from jsplan.lint.rules import RULES
from jsplan.lint.view import View

__all__ = ["RULES", "Hit", "Report", "Rule", "View", "run_rules"]
