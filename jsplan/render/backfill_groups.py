"""Skipped histories of sources, grouped over many domains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jsplan.render import group_domains

PlannedBackfill = dict[str, Any]


def group_backfills(jobs: Iterable[PlannedBackfill]) -> Iterator[tuple[PlannedBackfill, str]]:
    """Return what is shown of a plan's `backfills`, each with the domains that it stands for.

    The domains read `in 20 domains: …`; the text is empty for one. Entries of the files are not
    grouped. What waits for an offline domain is deferred; a source that skips nothing is not shown.
    """
    alike: dict[str, list[PlannedBackfill]] = {}
    for job in jobs:
        if "waits" in job or (job.get("messages") == 0 and not job.get("runs", True)):
            continue
        alike.setdefault(_group_key(job), []).append(job)
    for some in alike.values():
        if len(some) < group_domains.MIN_GROUP:
            yield from ((job, "") for job in some)
        else:
            yield _merge(some), group_domains.format_domains([_origin_domain(job) for job in some])


def _origin_domain(job: PlannedBackfill) -> str:
    return str(job["from"][0]["domain"])


def _group_key(job: PlannedBackfill) -> str:
    """Return what members of a group have in common: all but the origin's domain and the amount."""
    if job.get("declared", True):
        return str(job["name"])
    streams = sorted({end["stream"] for end in job["from"]})
    return repr(
        (
            job["to"],
            streams,
            job["runs"],
            group_domains.replace_domain(job["reason"], _origin_domain(job)),
        )
    )


def _without_domain(end: PlannedBackfill) -> PlannedBackfill:
    return {"domain": group_domains.ANY_DOMAIN} | {
        key: end[key] for key in ("stream", "filter_subjects") if key in end
    }


def _merge(jobs: Sequence[PlannedBackfill]) -> PlannedBackfill:
    first, domain = jobs[0], _origin_domain(jobs[0])
    known = all(job.get("messages") is not None for job in jobs)
    guesses = [job["estimate"] for job in jobs if job.get("estimate")]
    guess = (
        {"seconds": sum(one["seconds"] for one in guesses), "basis": guesses[0]["basis"]}
        if len(guesses) == len(jobs)
        else None
    )
    return (
        first
        | {
            "from": [_without_domain(end) for end in first["from"]],
            "messages": sum(job["messages"] for job in jobs) if known else None,
            "bytes": sum(job["bytes"] for job in jobs) if known else None,
            "estimate": guess,
            "reason": group_domains.replace_domain(first["reason"], domain),
        }
        | (
            {"command": group_domains.replace_domain(first["command"], domain)}
            if "command" in first
            else {}
        )
    )
