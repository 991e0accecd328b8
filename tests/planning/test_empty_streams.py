"""An empty stream without consumers is deleted without a permission; a used one is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import StalePlanError
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

#: By kind: the declaration, the name of the stream, and a subject that it stores.
KINDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "stream": ({"streams": [{"name": "S"}]}, "S", "S"),
    "kv": ({"kv": [{"bucket": "B"}]}, "KV_B", "$KV.B.key"),
    "object_store": ({"object_stores": [{"bucket": "B"}]}, "OBJ_B", "$O.B.C.chunk"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind that is a stream on the server."""
    return str(request.param)


@pytest.fixture
def space(kind: str, tmp_path: Path, server: Server) -> Space:
    """A workspace with one empty stream, which was applied."""
    space = single_space(tmp_path, server).write(**KINDS[kind][0])
    space.apply()
    return space


def hazards(plan: Plan) -> list[tuple[str, bool]]:
    return [(h.code, h.blocking) for change in plan.resource_changes for h in change.hazards]


def names(server: Server) -> list[str]:
    with Raw(server.url) as raw:
        return raw.api_ok("$JS.API.STREAM.NAMES")["streams"] or []


@pytest.mark.parametrize("options", [[], ["--safe-below", "0"]])
@pytest.mark.parametrize("command", ["apply", "destroy"])
def test_empty(command: str, options: list[str], space: Space, server: Server) -> None:
    """It is no hazard that an empty stream leaves the files or is destroyed."""
    if command == "apply":
        space.write()
    assert hazards(space.plan(destroy=command == "destroy")) == []

    assert jsplan(space.folder, command, "-y", *options).code == 0
    assert names(server) == []


def test_replaced(space: Space, kind: str, server: Server) -> None:
    """It is no hazard that an empty stream is recreated."""
    section, (body,) = next(iter(KINDS[kind][0].items()))
    space.write(
        **{section: [body | {"storage": "memory", "lifecycle": {"on_replace": "recreate"}}]}
    )

    assert [change.change.actions for change in space.plan().resource_changes] == [
        ["delete", "create"]
    ]
    assert jsplan(space.folder, "apply", "-y").code == 0
    assert names(server) == [KINDS[kind][1]]


@pytest.mark.parametrize("use", ["message", "consumer"])
def test_used(use: str, space: Space, kind: str, server: Server) -> None:
    """One message or one consumer needs the permission, also if it came after the plan."""
    _, stream, subject = KINDS[kind]
    planned = space.write().plan()
    with Raw(server.url) as raw:
        if use == "message":
            raw.request(subject, b"x")
        else:
            config = {"durable_name": "THEIRS", "ack_policy": "explicit"}
            raw.api_ok(
                f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.THEIRS",
                {"stream_name": stream, "config": config},
            )

    expected = "holds 1 message now" if use == "message" else "has 1 consumer now"
    with pytest.raises(StalePlanError, match=expected):
        space.apply_saved(planned)
    assert hazards(space.plan()) == [("DELETES_STREAM", True)]
    assert jsplan(space.folder, "apply", "-y").code == 3
    assert names(server) == [stream]
