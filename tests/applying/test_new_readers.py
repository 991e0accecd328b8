"""Readers that were created since the plan: each step learns of them before it writes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from jsplan.applying.preconditions import NewReaders
from jsplan.documents.plan import Plan, Step


class SlowDomain:
    """A domain that reads its streams at once, and answers a list when it may."""

    def __init__(self) -> None:
        self.domain = SimpleNamespace(same_as=None)
        self.names: list[str] = []
        self.lists = 0
        self.was_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def streams(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return the streams that there were when it was asked; each reads the stream S."""
        self.lists += 1
        self.was_asked.set()
        rest = {"created": "2026-01-01T00:00:00Z", "state": {}}
        infos = [{"config": {"name": name, "mirror": {"name": "S"}}} | rest for name in self.names]
        await self.may_answer.wait()
        return infos, {}


def test_steps_share_a_list_that_began_after_they_asked() -> None:
    """Steps that ask during a list share the next one, and see what was created before that."""

    async def play() -> tuple[SlowDomain, list[list[str]]]:
        domain = SlowDomain()
        step = Step("1", "hub/stream/S", "stream.delete", "", None, {"readers": {"hub": []}})
        plan = cast("Plan", SimpleNamespace(steps=[step], domains={}))
        readers = NewReaders(plan, {"hub": cast("Any", domain)})
        asked = [asyncio.create_task(readers.find([step]))]
        await domain.was_asked.wait()
        domain.names = ["R"]
        asked += [asyncio.create_task(readers.find([step])) for _ in range(5)]
        await asyncio.sleep(0)
        domain.may_answer.set()
        found = await asyncio.gather(*asked)
        domain.names = []
        found.append(await readers.find([step]))
        return domain, [list(each.values()) for each in found]

    domain, found = asyncio.run(play())

    new = ["is read by hub/stream/R now, which the plan does not know"]
    assert found == [[], *[new] * 5, []]
    assert domain.lists == 3


def test_steps_without_readers_list_nothing() -> None:
    """Only what changes what the readers of a stream get needs them."""

    async def play() -> SlowDomain:
        domain = SlowDomain()
        step = Step("1", "hub/stream/S", "stream.update", "", None, {})
        plan = cast("Plan", SimpleNamespace(steps=[step], domains={}))
        assert await NewReaders(plan, {"hub": cast("Any", domain)}).find([step]) == {}
        return domain

    assert asyncio.run(play()).lists == 0
