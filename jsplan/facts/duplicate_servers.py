"""Detection of several servers that answer for one domain.

A request that crosses a leafnode link goes to every server that listens on the domain's prefix. One
JetStream answers once, also as a cluster (measured, 2.10 to 2.15). Two servers with the same
`domain` both answer and both apply a request, while the client sees only the quicker one. So each
domain is asked once more, with an inbox for the second answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Self

from jsplan.errors import ApiError, ConnectError
from jsplan.facts.live import DomainFacts
from jsplan.jetstream import DomainApi

#: Seconds for a second answer after the first one. Other reads continue meanwhile.
SECOND_ANSWER_TIMEOUT = 0.05
#: Answers to one request after which reading stops.
MAX_ANSWERS = 100


class DuplicateServerCheck:
    """Collects answers of many domains concurrently; `require_single_servers` gives the result."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[list[bytes]]] = {}
        self._apis: dict[str, DomainApi] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def watch(self, api: DomainApi, facts: DomainFacts) -> None:
        """Collect answers of a domain. The connected server's own needs no check."""
        own = (api.connection.server.get("domain") or None) == (facts.info.get("domain") or None)
        if facts.reachable and not own and facts.key not in self._tasks:
            self._apis[facts.key] = api
            self._tasks[facts.key] = asyncio.create_task(_collect_answers(api, "INFO"))

    async def require_single_servers(self) -> None:
        """Wait for late answers. Raises ConnectError with the domains that have several servers."""
        results = await asyncio.gather(*self._tasks.values())
        answers_by_domain = dict(zip(self._tasks, results, strict=True))
        duplicated = sorted(key for key, answers in answers_by_domain.items() if len(answers) > 1)
        if duplicated:
            names = await asyncio.gather(*(_server_names(self._apis[key]) for key in duplicated))
            raise _duplicate_servers_error(dict(zip(duplicated, names, strict=True)))


async def _collect_answers(api: DomainApi, verb: str) -> list[bytes]:
    """Collect the answers to one request until no more arrive."""
    collected: list[bytes] = []
    try:
        async with api.connection.open_inbox() as inbox:
            await inbox.publish(f"{api.domain.api_prefix}.{verb}", b"")
            while len(collected) < MAX_ANSWERS:
                wait = SECOND_ANSWER_TIMEOUT if collected else api.connection.settings.timeout
                collected.append((await inbox.next(wait, verb)).data)
    except ApiError:
        pass  # a timeout ends the collection; the readers of a domain notice that it is offline
    return collected


async def _server_names(api: DomainApi) -> set[str]:
    """Return the names of the servers, as far as they lead a stream."""
    listed = [answer.get("streams") or [] for answer in await _parse_answers(api, "STREAM.NAMES")]
    streams = sorted({names[0] for names in listed if names})
    answers = [
        answer for name in streams for answer in await _parse_answers(api, f"STREAM.INFO.{name}")
    ]
    return {leader for answer in answers if (leader := (answer.get("cluster") or {}).get("leader"))}


async def _parse_answers(api: DomainApi, verb: str) -> list[dict[str, Any]]:
    """Return all readable answers to one request."""
    parsed: list[dict[str, Any]] = []
    for answer in await _collect_answers(api, verb):
        with contextlib.suppress(ApiError):
            parsed.append(api.parse(verb, answer))
    return parsed


def _duplicate_servers_error(duplicated: dict[str, set[str]]) -> ConnectError:
    listed = [
        f"domain {key}" + (f" ({' and '.join(sorted(names))})" if len(names) > 1 else "")
        for key, names in duplicated.items()
    ]
    others = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ConnectError(
        f"more than one server answers for {', '.join(listed[:5])}{others}. "
        "Each would apply a request, and only one answer would be seen",
        hint="Give each server its own `domain` in its jetstream block, and restart it. "
        f"Until then: --exclude '{next(iter(duplicated))}/**'",
    )
