"""explain: the explanation of each code. Needs no workspace and no server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from jsplan.codes import EXIT_CODES, FILE_CODES, HAZARD_TEXTS, HAZARDS, LINT, SERVER_CODES, CodeText
from jsplan.documents.lint import Explanation
from jsplan.errors import UsageError
from jsplan.lint.engine import UNUSED_IGNORE
from jsplan.lint.rules import RULES

_FILES: Final = "files"
_LINT: Final = "lint"
_SERVERS: Final = "servers and state"
_HAZARDS: Final = "hazards"
_EXIT_CODES: Final = "exit codes"
#: JS200 is found by the engine, not by a rule.
_UNUSED_IGNORE: Final = Explanation(
    _LINT,
    UNUSED_IGNORE,
    "warning",
    LINT[UNUSED_IGNORE],
    "An entry under lint.ignore says that a finding is known and why it is right. The finding is"
    " gone. The entry would hide it if it came back for another reason.",
    "Remove the entry.",
)


def list_lint_rules() -> list[Explanation]:
    """List the explanations of the lint rules, by code."""
    return [
        _UNUSED_IGNORE,
        *(Explanation(_LINT, r.code, r.level, r.title, r.why, r.fix) for r in RULES),
    ]


def list_explanations() -> list[Explanation]:
    """List the explanations of all codes, group by group."""
    hazards = [
        Explanation(_HAZARDS, code, "blocks" if HAZARDS[code] else "warns", *text)
        for code, text in HAZARD_TEXTS.items()
    ]
    exit_codes = {str(code): text for code, text in EXIT_CODES.items()}
    return [
        *_build_explanations(_FILES, FILE_CODES),
        *list_lint_rules(),
        *_build_explanations(_SERVERS, SERVER_CODES),
        *hazards,
        *_build_explanations(_EXIT_CODES, exit_codes),
    ]


def _build_explanations(group: str, texts: Mapping[str, CodeText]) -> Iterable[Explanation]:
    return (Explanation(group, code, None, *text) for code, text in texts.items())


def explain(code: str) -> Explanation:
    """Explain one code. Raises UsageError with the closest codes if it does not exist."""
    return _find_explanation(code, list_explanations(), "code", "jsplan explain")


def explain_rule(code: str) -> Explanation:
    """Explain one lint rule. Raises UsageError for a code that is not one of lint."""
    return _find_explanation(code, list_lint_rules(), "lint rule", "jsplan lint --explain all")


def _find_explanation(
    code: str, among: Iterable[Explanation], what: str, listing: str
) -> Explanation:
    known = {found.code: found for found in among}
    wanted = code.strip().upper()
    if wanted in known:
        return known[wanted]
    near = get_close_matches(wanted, known, n=3, cutoff=0.6)
    closest = f" The closest are {', '.join(near)}." if near else ""
    raise UsageError(f'there is no {what} "{code}".{closest}', hint=f"See: {listing}")
