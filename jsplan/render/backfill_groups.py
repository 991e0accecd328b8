"""Histories that sources leave out of many domains, said once; entries of the files are said one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jsplan.render import collapse

Job = dict[str, Any]


def together(jobs: Iterable[Job]) -> Iterator[tuple[Job, str]]:
    """What is shown of a plan's `backfills`, each with where it holds (`in 20 domains: …`; empty for one).

    What waits for a domain that is away is deferred, and what leaves nothing out is not worth a word.
    """
    alike: dict[str, list[Job]] = {}
    for job in jobs:
        if "waits" in job or (job.get("messages") == 0 and not job.get("runs", True)):
            continue
        alike.setdefault(_key(job), []).append(job)
    for some in alike.values():
        if len(some) < collapse.ENOUGH:
            yield from ((job, "") for job in some)
        else:
            yield _sum(some), collapse.in_domains([_domain(job) for job in some])


def _domain(job: Job) -> str:
    return str(job["from"][0]["domain"])


def _key(job: Job) -> str:
    """What is equal of those that are said together: all but the domain that it comes from, and how much it is."""
    if job.get("declared", True):
        return str(job["name"])
    streams = sorted({end["stream"] for end in job["from"]})
    return repr((job["to"], streams, job["runs"], collapse.anonymous(job["reason"], _domain(job))))


def _anywhere(end: Job) -> Job:
    return {"domain": collapse.ANY} | {key: end[key] for key in ("stream", "filter_subjects") if key in end}


def _sum(jobs: Sequence[Job]) -> Job:
    first, domain = jobs[0], _domain(jobs[0])
    known = all(job.get("messages") is not None for job in jobs)
    guesses = [job["estimate"] for job in jobs if job.get("estimate")]
    guess = {"seconds": sum(one["seconds"] for one in guesses), "basis": guesses[0]["basis"]} if len(guesses) == len(jobs) else None
    return first | {
        "from": [_anywhere(end) for end in first["from"]],
        "messages": sum(job["messages"] for job in jobs) if known else None,
        "bytes": sum(job["bytes"] for job in jobs) if known else None,
        "estimate": guess, "reason": collapse.anonymous(first["reason"], domain),
    } | ({"command": collapse.anonymous(first["command"], domain)} if "command" in first else {})  # fmt: skip
