"""Steps that the server refuses although nothing foresaw it: the error says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.raw import Raw
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

A: dict[str, Any] = {"name": "A", "subjects": ["a.>"]}
OTHER = {"name": "OTHER", "subjects": ["a.x"]}
FULL = A | {"max_consumers": 1}
C, D = {"name": "C", "ack_policy": "explicit"}, {"durable_name": "D", "ack_policy": "explicit"}

#: What there is, what is planned, what another client creates meanwhile, and what the error says.
REFUSALS: dict[str, tuple[list[Any], dict[str, Any], tuple[str, dict[str, Any]], str]] = {
    "overlap": ([], A, ("STREAM.CREATE.OTHER", OTHER), "nats stream ls --subject SUBJECT"),
    "consumers": (
        [FULL],
        FULL | {"consumers": [C]},
        ("CONSUMER.CREATE.A.D", {"stream_name": "A", "config": D}),
        "Raise max_consumers, or delete a consumer",
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refused_step_says_what_to_do(kind: str, tmp_path: Path, server: Server) -> None:
    """The error has the server's words, and what to do; the other steps are done."""
    before, wanted, (api, body), hint = REFUSALS[kind]
    space = single_space(tmp_path, server).write(streams=before)
    space.apply()
    plan = space.write(streams=[wanted, {"name": "B", "subjects": ["b"]}]).plan()
    with Raw(server.url) as raw:
        raw.api_ok(f"$JS.API.{api}", body)
    result = space.apply_saved(plan)

    [error] = [step.error or "" for step in result.steps if step.status == "failed"]
    assert result.exit_code == 6
    assert "refused" in error
    assert hint in error
    assert {step.status for step in result.steps if step.address == "main/stream/B"} == {"done"}
