"""A leaf is lost at one request of an apply, and comes back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.jetstream import DomainApi
from jsplan.jetstream.read_only import READ_ONLY_VERBS
from tests.support.raw import NoResponders, Raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsplan.sandbox import Sandbox


@contextmanager
def strike_at(number: int, moment: str, strike: Callable[[], None]) -> Iterator[list[str]]:
    """Strike at the n-th writing request, `before` it is sent or `after` its answer.

    Yield the requests so far.
    """
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        request = DomainApi.request

        async def striking(api: DomainApi, verb: str, *rest: Any, **options: Any) -> Any:
            if verb.startswith(READ_ONLY_VERBS):
                return await request(api, verb, *rest, **options)
            seen.append(f"{api.domain.key} {verb}")
            chosen = len(seen) - 1 == number
            if chosen and moment == "before":
                strike()
            answer = await request(api, verb, *rest, **options)
            if chosen and moment == "after":
                strike()
            return answer

        patch.setattr(DomainApi, "request", striking)
        yield seen


def bring_back(sandbox: Sandbox) -> None:
    """Resume or start the leaf, and wait until the hub reaches it."""
    leaf = sandbox["leaf"]
    leaf.resume()
    leaf.start()
    sandbox["hub"].wait_until(lambda: _is_linked(sandbox), "be linked again", 60)


def _is_linked(sandbox: Sandbox) -> bool:
    hub = sandbox["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        try:
            return "streams" in raw.api("$JS.leaf.API.INFO")
        except (NoResponders, TimeoutError):
            return False
