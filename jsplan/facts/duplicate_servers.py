"""Hears whether more than one server answers for a domain. Never writes. Who answers at all is left to `survey`.

A request that crosses a leafnode link goes to every server that listens on the domain's prefix. One JetStream answers once,
also when it is a cluster (measured, 2.10 to 2.15); two servers with the same `domain` both answer and both carry out what
they are told, while whoever asks sees the quicker one. So each domain is asked once more, with an ear for the second answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Self

from jsplan.errors import ApiError, ConnectError
from jsplan.facts.live import DomainFacts
from jsplan.jetstream import DomainApi

#: Seconds that a second answer may come after the first one. Reading goes on meanwhile.
SECOND_ANSWER_TIMEOUT = 0.05
#: Answers to one request after which no more are waited for.
MAX_ANSWERS = 100


class DuplicateServerCheck:
    """Listens to many domains at once while other work goes on; `require_single_servers` says what was heard."""

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
        """Begin to listen to a domain that has answered. The connected server's own needs none: its requests never leave it."""
        own = (api.connection.server.get("domain") or None) == (facts.info.get("domain") or None)
        if facts.reachable and not own and facts.key not in self._tasks:
            self._apis[facts.key] = api
            self._tasks[facts.key] = asyncio.create_task(_collect_answers(api, "INFO"))

    async def require_single_servers(self) -> None:
        """Wait for what may still come. Raises ConnectError that names every domain that several servers answer for."""
        heard = dict(zip(self._tasks, await asyncio.gather(*self._tasks.values()), strict=True))
        crowded = sorted(key for key, answers in heard.items() if len(answers) > 1)
        if crowded:
            names = await asyncio.gather(*(_server_names(self._apis[key]) for key in crowded))
            raise _duplicate_servers_error(dict(zip(crowded, names, strict=True)))


async def _collect_answers(api: DomainApi, verb: str) -> list[bytes]:
    """All answers to one request, until none comes any more."""
    found: list[bytes] = []
    try:
        async with api.connection.open_inbox() as inbox:
            await api.connection.publish(f"{api.domain.api_prefix}.{verb}", b"", inbox.subject)
            while len(found) < MAX_ANSWERS:
                found.append(
                    (
                        await inbox.next(
                            SECOND_ANSWER_TIMEOUT if found else api.connection.settings.timeout,
                            verb,
                        )
                    ).data
                )
    except ApiError:
        pass  # silence, which ends it; a domain that went away meanwhile is noticed by whoever reads it
    return found


async def _server_names(api: DomainApi) -> set[str]:
    """Who the servers are, as far as they hold a stream that tells."""
    listed = [answer.get("streams") or [] for answer in await _parse_answers(api, "STREAM.NAMES")]
    streams = sorted({names[0] for names in listed if names})
    answers = [
        answer for name in streams for answer in await _parse_answers(api, f"STREAM.INFO.{name}")
    ]
    return {leader for answer in answers if (leader := (answer.get("cluster") or {}).get("leader"))}


async def _parse_answers(api: DomainApi, verb: str) -> list[dict[str, Any]]:
    """All answers to one request that can be read."""
    found: list[dict[str, Any]] = []
    for answer in await _collect_answers(api, verb):
        with contextlib.suppress(ApiError):
            found.append(api.parse(verb, answer))
    return found


def _duplicate_servers_error(crowded: dict[str, set[str]]) -> ConnectError:
    told = [
        f"domain {key}" + (f" ({' and '.join(sorted(names))})" if len(names) > 1 else "")
        for key, names in crowded.items()
    ]
    others = f" and {len(told) - 5} more" if len(told) > 5 else ""
    return ConnectError(
        f"more than one server answers for {', '.join(told[:5])}{others}: each would carry out what is sent, and only one would be seen",
        hint="Give each server a `domain` of its own in its jetstream block, and restart it. Until then: --exclude '"
        f"{next(iter(crowded))}/**'",
    )
