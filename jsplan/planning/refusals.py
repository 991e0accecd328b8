"""Reasons that stop the apply of a valid plan, explained or by name. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from jsplan.diagnostics import quote_shell
from jsplan.documents.plan import Hazard, Plan
from jsplan.errors import RefusedError
from jsplan.group_domains import MIN_GROUP, format_domains, group_findings, group_resources
from jsplan.planning.guards import ADOPT_NEEDED, is_refusal

REFUSED = "refused, nothing was changed:"


class Refusal(Struct, frozen=True):
    """One finding or hazard that stops an apply, of one resource or alike in many domains.

    `reason` says where and why, `advice` what to do. `flag` allows it, and is empty where only
    the files can.
    """

    code: str
    addresses: tuple[str, ...]
    reason: str
    advice: str
    flag: str

    @property
    def text(self) -> str:
        """Return where, why, and what to do."""
        return f"{self.reason}. {self.advice}".rstrip() if self.advice else self.reason


def list_refusals(plan: Plan) -> list[Refusal]:
    """List the reasons that stop an apply of this plan: findings first, then hazards."""
    return [*find_obstacles(plan), *find_missing_permissions(plan)]


def require_permission(plan: Plan) -> None:
    """Raise RefusedError that lists each hazard and guard, and how to allow it."""
    if refusals := list_refusals(plan):
        raise RefusedError(explain_refusals(refusals))


def explain_refusals(refusals: Sequence[Refusal]) -> str:
    """Return each reason in full, for a reader who does not see the plan, and all flags."""
    reasons = [f"  - {refusal.text}" for refusal in refusals]
    return "\n".join([REFUSED, *reasons, *_flag_lines(refusals)])


def name_refusals(refusals: Sequence[Refusal]) -> str:
    """Return each reason as code and address, for a reader who sees the plan, and all flags.

    The reasons of one code are one line where they are many.
    """
    lines = [REFUSED]
    for code, addresses, flag in _gather(refusals):
        one = len(addresses) == 1
        where = addresses[0] if one else f"{len(addresses):,} resources"
        lines.append(f"  - {code} of {where}{'' if flag else '. The plan says what to do.'}")
    return "\n".join([*lines, *_flag_lines(refusals)])


def _flag_lines(refusals: Sequence[Refusal]) -> list[str]:
    flags = join_flags(refusals)
    if not flags:
        return []
    return [f"  To allow {'it' if flags.count('--') == 1 else 'all of it'}:", f"    {flags}"]


def join_flags(refusals: Iterable[Refusal]) -> str:
    """Return all flags that these need, as one line to be copied; empty where only files help."""
    return " ".join(dict.fromkeys(filter(None, (flag for *_, flag in _gather(refusals)))))


def _gather(refusals: Iterable[Refusal]) -> Iterator[tuple[str, list[str], str]]:
    """Yield code, addresses and flag of each reason, many of one code together."""
    by_code: dict[str, list[Refusal]] = {}
    for refusal in refusals:
        by_code.setdefault(refusal.code, []).append(refusal)
    for code, found in by_code.items():
        for some in [found] if len(found) >= MIN_GROUP else [[refusal] for refusal in found]:
            addresses = list(dict.fromkeys(name for each in some for name in each.addresses))
            yield code, addresses, _find_common_flag(some, addresses)


def _find_common_flag(refusals: Sequence[Refusal], addresses: Collection[str]) -> str:
    """Return one flag for all refusals of a code: it allows nothing else in the plan."""
    flags = {refusal.flag for refusal in refusals}
    if len(flags) == 1:
        return flags.pop()
    domains = {address.partition("/")[0] for address in addresses}
    glob = f":{domains.pop()}/**" if len(domains) == 1 else ""
    return "--allow-hazard " + quote_shell(refusals[0].code + glob)


def find_obstacles(plan: Plan) -> Iterator[Refusal]:
    """Yield the findings that stop every apply of this plan, whatever it allows."""
    for found, members in group_findings(d for d in plan.diagnostics if is_refusal(d)):
        addresses = tuple(member.address or "the plan" for member in members)
        reason = f"{found.address or 'the plan'}: {found.summary}"
        advice = f"{_describe_domains(addresses)}{found.detail}"
        flag = "--adopt" if found.code == ADOPT_NEEDED else ""
        yield Refusal(found.code, addresses, reason, advice, flag)


def find_missing_permissions(plan: Plan) -> Iterator[Refusal]:
    """Yield the blocking hazards that an apply has to allow."""
    stopped = [change for change in plan.resource_changes if any(map(_stops, change.hazards))]
    for group in group_resources(stopped, plan):
        addresses = tuple(member.address for member in group.members)
        for hazard in filter(_stops, group.resource.hazards):
            reason = f"{group.resource.address}: {hazard.message}"
            where = _describe_domains(addresses)
            yield Refusal(hazard.code, addresses, reason, where, hazard.flag)


def _stops(hazard: Hazard) -> bool:
    return hazard.blocking and not hazard.allowed


def _describe_domains(addresses: Collection[str]) -> str:
    """Return `This is so in 250 domains: store-{001..250}. `, or nothing for one domain."""
    if len(addresses) == 1:
        return ""
    domains = format_domains([address.partition("/")[0] for address in addresses])
    return f"This is so {domains}. "
