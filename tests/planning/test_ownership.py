"""Owner tags in metadata, which protect a resource from other workspaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support.raw import Raw
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, left_to_do, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

TAGGED: dict[str, Any] = {"ownership": {"marker": True}}
EVERYTHING: dict[str, Any] = {
    "streams": [{"name": "A", "metadata": {"team": "x"}, "consumers": [{"name": "C"}]}],
    "kv": [{"bucket": "K"}],
    "object_stores": [{"bucket": "O"}],
}


@pytest.fixture
def space(tmp_path: Path, server: Server) -> Space:
    """A workspace named `one`."""
    return workspace_named(tmp_path / "one", server, "one")


@pytest.fixture
def other(tmp_path: Path, server: Server) -> Space:
    """Another workspace on the same server."""
    return workspace_named(tmp_path / "two", server, "two")


def workspace_named(folder: Path, server: Server, name: str) -> Space:
    """Open a workspace of this name in its own folder."""
    folder.mkdir()
    space = single_space(folder, server)
    space.base |= {"workspace": name}
    return space


def metadata(raw: Raw, what: str) -> dict[str, str]:
    """Return the metadata of a stream or `STREAM.CONSUMER`, without that of the server."""
    verb = "CONSUMER" if "." in what else "STREAM"
    found = raw.api_ok(f"$JS.API.{verb}.INFO.{what}")["config"].get("metadata") or {}
    return {key: value for key, value in found.items() if not key.startswith("_nats.")}


def require_converged(space: Space) -> None:
    """Require an empty plan and no drift."""
    assert left_to_do(space.plan()) == []
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []


def test_every_created_resource_is_tagged(space: Space, raw: Raw) -> None:
    """Each created resource has an owner tag with workspace and id, beside its own metadata."""
    space.write(**TAGGED, **EVERYTHING).apply()
    owner = f"one/{read_state(space.folder, 'one').ownership['id']}"

    assert metadata(raw, "A") == {"team": "x", "jsplan.owner": owner}
    assert [metadata(raw, what).get("jsplan.owner") for what in ("A.C", "KV_K", "OBJ_O")] == [
        owner
    ] * 3
    require_converged(space)


def test_turning_it_on_and_off_is_an_update_of_metadata_alone(space: Space, raw: Raw) -> None:
    """Owner tags are switched on and off by updates of metadata only."""
    space.write(**EVERYTHING).apply()
    before = {what: raw.config(what) for what in ("A", "KV_K", "OBJ_O")}
    plan, result = space.write(**TAGGED, **EVERYTHING).apply()

    assert result.exit_code == 0
    assert {change.action_reason for change in plan.resource_changes} == {"update_because_owner"}
    assert metadata(raw, "A")["jsplan.owner"].startswith("one/")
    require_converged(space)
    _, result = space.write(**EVERYTHING).apply()
    assert result.exit_code == 0
    after = {what: raw.config(what) for what in before}
    assert [{k: v for k, v in config.items() if k != "metadata"} for config in after.values()] == [
        {k: v for k, v in config.items() if k != "metadata"} for config in before.values()
    ]
    assert metadata(raw, "A") == {"team": "x"}
    require_converged(space)


def test_the_owner_tag_of_another_workspace_is_refused(
    space: Space, other: Space, raw: Raw
) -> None:
    """A resource with the owner tag of another workspace is refused, equal or different."""
    space.write(**TAGGED, streams=[{"name": "A"}]).apply()
    before = metadata(raw, "A")
    for body in ({"name": "A"}, {"name": "A", "max_age": "1d"}):
        with pytest.raises(RefusedError, match=r"belongs to workspace one.*--adopt"):
            other.write(streams=[body]).apply()

    assert metadata(raw, "A") == before
    assert [d.code for d in other.plan().diagnostics if d.code == "JS306"] == ["JS306"]


def test_own_tag_of_a_lost_state_is_not_unmanaged(space: Space, other: Space, raw: Raw) -> None:
    """A workspace that lost its state is refused, with `--adopt` as the way to continue."""
    space.write(**TAGGED, streams=[{"name": "A"}]).apply()
    for path in (space.folder / "state").iterdir():
        path.unlink()
    with pytest.raises(RefusedError) as caught:
        space.apply()

    assert "has the owner tag of this workspace, one, but from another state" in str(caught.value)
    found = next(d for d in space.plan().diagnostics if d.code == "JS306")
    assert all(
        word in found.detail
        for word in ("lost", "--adopt", "backend", "another workspace of the same name")
    )
    _, result = space.apply(adopt=True)
    assert result.exit_code == 0
    assert (
        metadata(raw, "A")["jsplan.owner"]
        == f"one/{read_state(space.folder, 'one').ownership['id']}"
    )
    require_converged(space)
    with pytest.raises(RefusedError, match="belongs to workspace one"):
        other.write(streams=[{"name": "A"}]).apply()


def test_only_the_last_owner_changes_a_resource(space: Space, other: Space, raw: Raw) -> None:
    """After `--adopt` by another workspace, the first one can only forget the resource."""
    space.write(**TAGGED, streams=[{"name": "A"}]).apply()
    _, result = other.write(**TAGGED, streams=[{"name": "A", "max_age": "1d"}]).apply(adopt=True)
    assert result.exit_code == 0
    assert metadata(raw, "A")["jsplan.owner"].startswith("two/")
    require_converged(other)
    for streams in ([{"name": "A", "max_age": "2d"}], []):
        with pytest.raises(RefusedError, match="belongs to workspace two"):
            space.write(**TAGGED, streams=streams).apply(allow_hazards=("DELETES_STREAM",))
    given_up = {"removed": [{"address": "main/stream/A", "destroy": False}]}
    _, result = space.write(**TAGGED, streams=[], **given_up).apply()

    assert result.exit_code == 0
    assert metadata(raw, "A")["jsplan.owner"].startswith("two/")
    require_converged(other)


def test_an_equal_resource_is_adopted_and_tagged_at_once(space: Space, raw: Raw) -> None:
    """An equal resource is adopted without `--adopt`, since only the owner tag is written."""
    raw.create("A")
    _, result = space.write(**TAGGED, streams=[{"name": "A"}]).apply()

    assert result.exit_code == 0
    assert metadata(raw, "A")["jsplan.owner"].startswith("one/")
    require_converged(space)


def test_a_removed_owner_tag_comes_back(space: Space, raw: Raw) -> None:
    """A removed owner tag is no drift, and the next apply writes it again."""
    space.write(**TAGGED, streams=[{"name": "A"}]).apply()
    config = raw.config("A")
    raw.api_ok(
        "$JS.API.STREAM.UPDATE.A",
        {key: value for key, value in config.items() if key != "metadata"},
    )
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    space.apply()

    assert metadata(raw, "A")["jsplan.owner"].startswith("one/")


@pytest.mark.since_2_12
def test_updates_and_replacements_keep_the_owner_tag(space: Space, raw: Raw) -> None:
    """Updates and replacements keep the owner tag, and files cannot set another owner."""
    first = {"name": "A", "consumers": [{"name": "C", "ack_policy": "explicit"}]}
    space.write(**TAGGED, streams=[first]).apply()
    mark = metadata(raw, "A")
    bodies = [
        {
            "name": "A",
            "max_age": "1d",
            "metadata": {"jsplan.owner": "me"},
            "consumers": [{"name": "C", "ack_policy": "all"}],
        },
        {
            "name": "A",
            "storage": "memory",
            "lifecycle": {"on_replace": "recreate"},
            "consumers": [{"name": "C", "ack_policy": "all"}],
        },
    ]
    for body in bodies:
        _, result = space.write(**TAGGED, streams=[body]).apply(allow_hazards=("DELETES_STREAM",))
        assert result.exit_code == 0
        assert metadata(raw, "A") == metadata(raw, "A.C") == mark
        require_converged(space)
