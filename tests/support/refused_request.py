"""A server that refuses one request, as one without free memory does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jsplan.errors import ServerRefusedError
from jsplan.jetstream import DomainApi

REFUSAL = {"code": 500, "err_code": 10028, "description": "insufficient memory resources available"}


@contextmanager
def refuse_request(verb: str, number: int = 1, but: str = "\0") -> Iterator[None]:
    """Refuse the `number`-th request that begins with `verb` and does not end with `but`."""
    left = number
    with pytest.MonkeyPatch.context() as patch:
        request = DomainApi.request

        async def answered(api: DomainApi, api_verb: str, *rest: Any, **options: Any) -> Any:
            nonlocal left
            if api_verb.startswith(verb) and not api_verb.endswith(but):
                left -= 1
                if left == 0:
                    raise ServerRefusedError.of(
                        f"domain {api.domain.key} refused {api_verb}: {REFUSAL['description']}",
                        REFUSAL,
                    )
            return await request(api, api_verb, *rest, **options)

        patch.setattr(DomainApi, "request", answered)
        yield
