"""Runs the rules, places their findings and sets aside those that the files ignore. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from jsplan.codes import LINT
from jsplan.diagnostics import Diagnostic, Severity, did_you_mean
from jsplan.documents.lint import Ignored
from jsplan.lint.rule import Rule
from jsplan.resources.buckets import alias_of, with_aliases

if TYPE_CHECKING:
    from jsplan.address import Address
    from jsplan.config.model import DeclaredResource
    from jsplan.diagnostics import SourceRange
    from jsplan.lint.view import Hit, View

#: The finding of this module itself: an ignore without a finding.
UNUSED_IGNORE: Final = "JS200"
_SEVERITIES: Final[Mapping[str, Severity]] = {
    "note": "info",
    "warning": "warning",
    "error": "error",
}
_ORDER: Final = ("error", "warning", "info")


class Report(Struct):
    """Findings, and ignored findings with the reason that the files give."""

    findings: list[Diagnostic] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)


def run_rules(view: View, rules: Sequence[Rule], *, unused: bool = True) -> Report:
    """Run the rules over the view.

    `unused` reports ignores without a finding. Only a run of all rules can know them.
    """
    report, used = Report(), set[tuple[str, str]]()
    for rule in rules:
        level = view.workspace.lint.get(rule.code, rule.level)
        for hit in rule.check(view) if level != "ignore" else ():
            found = _diagnostic(view, rule, hit, _SEVERITIES[level])
            by = next((a for a in (hit.address, *hit.also) if rule.code in _ignores(view, a)), None)
            if by is None:
                report.findings.append(found)
            else:
                report.ignored.append(
                    Ignored(**asdict(found), reason=_ignores(view, by)[rule.code])
                )
                used.add((_ignore_place(view.workspace.resources[by]), rule.code))
    if unused and view.workspace.lint.get(UNUSED_IGNORE) != "ignore":
        report.findings += _unused_ignores(
            view, used, _SEVERITIES[view.workspace.lint.get(UNUSED_IGNORE, "warning")]
        )
    report.findings.sort(key=lambda d: (_ORDER.index(d.severity), d.code, d.address or ""))
    return report


def enabled_rules(view: View, rules: Iterable[Rule], levels: Sequence[str]) -> list[Rule]:
    """Return the rules that have one of the levels in this workspace."""
    return [rule for rule in rules if view.workspace.lint.get(rule.code, rule.level) in levels]


def _ignores(view: View, address: Address) -> Mapping[str, str]:
    declared = view.workspace.resources.get(address)
    return declared.lint_ignore if declared is not None else {}


def _diagnostic(view: View, rule: Rule, hit: Hit, severity: Severity) -> Diagnostic:
    kind = hit.address.kind
    text, detail = with_aliases(kind, hit.text), with_aliases(kind, hit.detail or rule.fix)
    return Diagnostic(severity, rule.code, text, detail, str(hit.address), _place(view, hit))


def _place(view: View, hit: Hit) -> SourceRange | None:
    declared = view.workspace.resources.get(hit.address)
    if declared is None:
        return None
    return declared.ranges.get(alias_of(hit.address.kind, hit.field), declared.range)


def _unused_ignores(
    view: View, used: set[tuple[str, str]], severity: Severity
) -> Iterator[Diagnostic]:
    """Yield one diagnostic for each place in the files.

    A stream of two hundred domains may ignore what is found in one of them.
    """
    seen = set(used)
    for address, declared in view.workspace.resources.items():
        for code in declared.lint_ignore:
            key = (_ignore_place(declared), code)
            if key in seen:
                continue
            seen.add(key)
            known = code in LINT
            text = (
                f"lint.ignore: {code} is not found here"
                if known
                else f"lint.ignore: there is no finding {code}"
            )
            detail = (
                "Remove the entry; if the finding comes back, lint says so."
                if known
                else did_you_mean(code, LINT).strip()
            )
            yield Diagnostic(
                severity,
                UNUSED_IGNORE,
                text,
                detail,
                str(address),
                declared.ranges.get("lint", declared.range),
            )


def _ignore_place(declared: DeclaredResource) -> str:
    """Return the place of the ignores; those in `defaults` have the same place for all."""
    return str(declared.ranges.get("lint", declared.range))
