"""The only place that runs an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")


def run_until_complete(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a workflow to its end and return its result.

    The result does not go through the task: when asyncio restores the signal handler it makes the
    `repr` of the task with its result. That takes 0.3 s for a plan of 20,000 resources.
    """
    box: list[Result] = []

    async def main() -> None:
        box.append(await work)

    asyncio.run(main())
    return box[0]
