"""Fields that a lenient server silently drops fail the apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from tests.conftest import MakeServer

pytestmark = [pytest.mark.matrix, pytest.mark.usefixtures("newer_servers")]

NEW = {"some_new_field": 7}


@pytest.fixture
def space(make_server: MakeServer, tmp_path: Path, server_version: tuple[int, ...]) -> Space:
    """Open a workspace on a server that drops unknown fields, as all servers up to 2.11 do."""
    return single_space(tmp_path, make_server(strict=False if server_version >= (2, 12) else None))


def failures(result: ApplyResult) -> list[str]:
    """Return the addresses whose steps failed, with their errors."""
    return [f"{step.address}: {step.error}" for step in result.steps if step.status == "failed"]


RESOURCES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "stream": (
        "main/stream/S",
        {"streams": [{"name": "S"}]},
        {"streams": [{"name": "S", "x_raw": NEW}]},
    ),
    "consumer": (
        "main/consumer/S/C",
        {"streams": [{"name": "S", "consumers": [{"name": "C"}]}]},
        {"streams": [{"name": "S", "consumers": [{"name": "C", "x_raw": NEW}]}]},
    ),
    "kv": ("main/kv/B", {"kv": [{"bucket": "B"}]}, {"kv": [{"bucket": "B", "x_raw": NEW}]}),
    "object_store": (
        "main/object_store/B",
        {"object_stores": [{"bucket": "B"}]},
        {"object_stores": [{"bucket": "B", "x_raw": NEW}]},
    ),
}


@pytest.mark.parametrize("kind", RESOURCES)
def test_a_create_with_a_dropped_field(space: Space, kind: str) -> None:
    """A dropped field of a new resource ends apply with 6 and is planned again."""
    address, _, wanted = RESOURCES[kind]

    _, result = space.write(**wanted).apply()

    assert result.exit_code == 6
    assert failures(result) == [
        f"{address}: {address}: the server did not keep some_new_field (asked for 7, has the default)"
    ]
    again = space.plan()
    (change,) = [c for c in again.resource_changes if c.change.actions != ["no-op"]]
    assert (change.address, change.change.actions, [f.path for f in change.change.fields]) == (
        address,
        ["update"],
        ["some_new_field"],
    )


@pytest.mark.parametrize("kind", RESOURCES)
def test_an_update_with_a_dropped_field(space: Space, kind: str) -> None:
    """A dropped field of an update ends apply with 6; kept fields are not planned again."""
    address, before, wanted = RESOURCES[kind]
    assert space.write(**before).apply()[1].exit_code == 0
    body = next(iter(wanted.values()))[0]
    (body["consumers"][0] if "consumers" in body else body)["description"] = "kept"

    _, result = space.write(**wanted).apply()

    assert result.exit_code == 6
    assert failures(result) == [
        f"{address}: {address}: the server did not keep some_new_field (asked for 7, has the default)"
    ]
    fields = {f.path for c in space.plan().resource_changes for f in c.change.fields}
    assert fields == {"some_new_field"}


def test_strict_servers_refuse_unknown_fields(
    make_server: MakeServer, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """A strict server refuses an unknown field, and nothing is created."""
    if server_version < (2, 11):
        return  # 2.10 cannot be strict
    space = single_space(tmp_path, make_server(strict=True)).write(
        streams=[{"name": "S", "x_raw": NEW}]
    )

    _, result = space.apply()

    assert result.exit_code == 6
    assert 'json: unknown field "some_new_field"' in failures(result)[0]
    assert [c.change.actions for c in space.plan().resource_changes] == [["create"]]
