"""Grouping of what is alike in many domains, so that a large plan stays readable. Pure.

The name of the domain is written `${domain}` in a group, as in the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import compress_names, matches
from jsplan.diagnostics import quote_shell
from jsplan.documents.base import plain
from jsplan.documents.plan import Change, FieldChange, Hazard, ResourceChange

if TYPE_CHECKING:
    from jsplan.diagnostics import Diagnostic
    from jsplan.documents.plan import Plan

T = TypeVar("T")
#: Smaller groups are written out.
MIN_GROUP = 4
#: Replaces the name of each domain of a group.
ANY_DOMAIN = "${domain}"


class Group(Struct, frozen=True):
    """One change in one or many domains; `resource` represents all `members`."""

    resource: ResourceChange
    members: tuple[ResourceChange, ...]

    @property
    def where(self) -> str:
        """Return `in 497 domains: store-{001..497}`; an empty text for one domain."""
        if len(self.members) > 1:
            return format_domains([member.domain for member in self.members])
        return ""


def group_resources(resources: Sequence[ResourceChange], plan: Plan | None = None) -> list[Group]:
    """Group changes that are alike, in the order of the first of each.

    Changes are alike if they differ only in the name of their own domain and in the numbers of
    their hazards. The flag of a group allows nothing else in `plan`.
    """
    return [
        Group(members[0] if len(members) == 1 else _representative(members, plan), tuple(members))
        for members in group_alike(resources, _group_key)
    ]


def group_alike(
    items: Iterable[T],
    key: Callable[[T], Hashable],
    is_group: Callable[[list[T]], bool] = lambda members: len(members) >= MIN_GROUP,
) -> Iterator[list[T]]:
    """Yield items with the same key together, at the place of the first.

    Where they are too few for a group, each stays alone at its own place.
    """
    keyed = [(key(item), item) for item in items]
    alike: dict[Hashable, list[T]] = {}
    for found, item in keyed:
        alike.setdefault(found, []).append(item)
    groups = {found: is_group(members) for found, members in alike.items()}
    for found, item in keyed:
        if not groups[found]:
            yield [item]
        elif alike[found][0] is item:
            yield alike[found]


def group_findings(findings: Iterable[Diagnostic]) -> Iterator[tuple[Diagnostic, list[Diagnostic]]]:
    """Yield each finding with its members: those that differ only in the name of their domain."""
    for members in group_alike(findings, _finding_key):
        first = members[0]
        yield first if len(members) == 1 else _representative_finding(first), members


def _finding_key(found: Diagnostic) -> Hashable:
    """Return the finding without the name of its domain; one without a domain stays alone."""
    domain = (found.address or "").partition("/")[0]
    words = (
        found.severity,
        found.code,
        found.summary,
        found.detail,
        found.address,
        str(found.range),
    )
    return replace_domain(words, domain) if domain else id(found)


def _representative_finding(first: Diagnostic) -> Diagnostic:
    """Return the finding with `${domain}` for its domain."""
    domain = (first.address or "").partition("/")[0]
    summary, detail, address = replace_domain((first.summary, first.detail, first.address), domain)
    return replace(first, summary=summary, detail=detail, address=address)


def group_by_domain(items: Iterable[tuple[str, T]]) -> Iterator[tuple[T, list[str]]]:
    """Group `(domain, what)` pairs with the same text; return each text with its domains.

    `what` is a text or a tuple of texts. In a group, the name of the domain in it is `${domain}`.
    """
    alike: dict[Any, list[tuple[str, T]]] = {}
    for domain, what in items:
        alike.setdefault(replace_domain(what, domain), []).append((domain, what))
    for key, members in alike.items():
        what = members[0][1] if len(members) == 1 else _say_each(key)
        yield what, [domain for domain, _ in members]


def _say_each(what: Any) -> Any:
    """Return the text of a group with "each domain" where it names the domain in a sentence."""
    if isinstance(what, str):
        return what.replace(f"domain {ANY_DOMAIN}", "each domain")
    return tuple(_say_each(part) for part in what) if isinstance(what, tuple) else what


@lru_cache(maxsize=4096)
def _word_pattern(domain: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(domain)}(?![\w-])")


def replace_domain(value: Any, domain: str) -> Any:
    """Replace the domain's name, where it is a word of its own, by `${domain}` in plain data."""
    if isinstance(value, str):
        return _word_pattern(domain).sub(ANY_DOMAIN, value) if domain in value else value
    if isinstance(value, dict):
        return {
            replace_domain(name, domain): replace_domain(item, domain)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(replace_domain(item, domain) for item in value)
    return value


def _group_key(resource: ResourceChange) -> str:
    change = resource.change
    shown = {
        "what": [
            resource.type,
            resource.name,
            resource.previous_address,
            resource.severity,
            change.actions,
            change.importing,
        ],
        "fields": plain(change.fields),
        "replaces": change.replace_paths,
        "after": change.after if change.actions == ["create"] else change.after is None,
        "hazards": [(h.code, h.blocking, h.allowed, bool(h.messages)) for h in resource.hazards],
    }
    return str(replace_domain(json.dumps(shown, sort_keys=True, default=str), resource.domain))


def _representative(members: Sequence[ResourceChange], plan: Plan | None) -> ResourceChange:
    """Return the first member with `${domain}` for its domain, and the hazards of all."""
    first = members[0]

    def name(value: Any) -> Any:
        return replace_domain(value, first.domain)

    change = first.change
    fields = [
        FieldChange(name(f.path), name(f.before), name(f.after), f.effect) for f in change.fields
    ]
    paths = [name(path) for path in change.replace_paths]
    template = Change(change.actions, None, name(change.after), fields, paths, change.importing)
    hazards = [
        _merge_hazards([member.hazards[index] for member in members], members, plan)
        for index in range(len(first.hazards))
    ]
    return replace(
        first,
        address=name(first.address),
        name=name(first.name),
        domain=ANY_DOMAIN,
        change=template,
        hazards=hazards,
        previous_address=name(first.previous_address),
    )


def _merge_hazards(
    hazards: list[Hazard], members: Sequence[ResourceChange], plan: Plan | None
) -> Hazard:
    """Merge one hazard of many domains: numbers are added, and the worst member is named."""
    worst = max(range(len(hazards)), key=lambda index: hazards[index].messages or 0)
    messages = {
        replace_domain(hazard.message, member.domain)
        for hazard, member in zip(hazards, members, strict=True)
    }
    total = _sum(hazards, "messages")
    message = (
        messages.pop()
        if len(messages) == 1
        else f"{members[worst].domain}, where it is most: {hazards[worst].message}"
    )
    if messages and total:
        message = f"{total:,} messages in {len(hazards)} domains; in {message}"
    return replace(
        hazards[0],
        message=message,
        flag=_merge_flags(hazards, members, plan),
        messages=total,
        bytes=_sum(hazards, "bytes"),
        consumers=_sum(hazards, "consumers"),
        exact=all(h.exact for h in hazards) if hazards[0].exact is not None else None,
        at_least=_sum(hazards, "at_least"),
        at_most=_sum(hazards, "at_most"),
    )


def _sum(hazards: list[Hazard], name: str) -> int | None:
    numbers = [getattr(hazard, name) for hazard in hazards]
    if all(number is None for number in numbers):
        return None
    return sum(number or 0 for number in numbers)


def _merge_flags(
    hazards: list[Hazard], members: Sequence[ResourceChange], plan: Plan | None
) -> str:
    """Return one flag for all if a glob allows nothing else in the plan, else one for each."""
    code, wanted = hazards[0].code, {member.address for member in members}
    if plan is not None:
        asking = [
            r.address
            for r in plan.resource_changes
            if any(h.code == code and not h.allowed for h in r.hazards)
        ]
        for glob in _common_globs(members):
            if {address for address in asking if matches(glob, address)} <= wanted:
                return "--allow-hazard " + quote_shell(f"{code}:{glob}")
    return " ".join(hazard.flag for hazard in hazards)


def _common_globs(members: Sequence[ResourceChange]) -> Iterator[str]:
    """Return the globs that match every member, narrowest first."""
    rest = {member.address.partition("/")[2] for member in members}
    if len(rest) == 1:
        start = _common_prefix([member.domain for member in members])
        yield from dict.fromkeys([f"{start}*/{next(iter(rest))}", f"*/{next(iter(rest))}"])


def _common_prefix(names: list[str]) -> str:
    low, high = min(names), max(names)
    return low[
        : next(
            (index for index, letter in enumerate(low) if letter != high[index : index + 1]),
            len(low),
        )
    ]


def format_domains(names: list[str], *, whole: bool = False) -> str:
    """Return `in 19 domains: store-{001..016}, …`; many runs are cut unless all are wanted."""
    return f"in {len(names):,} domains: {compress_names(names, show_all=whole)}"
