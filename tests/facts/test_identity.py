"""The identity of an object stays the same although a server reports another `created`."""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import StalePlanError
from jsplan.identity import KnownObject, is_same_object, restore_created
from jsplan.options import DriftOptions
from jsplan.sandbox import versions
from jsplan.units import parse_instant
from jsplan.workflows.drift import drift
from tests.support import stream_content
from tests.support.raw import Raw, delete_all_streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver, Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

HOUR = 3_600 * 10**9
#: Consumers of one stream, by their name.
KINDS: dict[str, dict[str, Any]] = {
    "SAME": {"durable_name": "SAME", "ack_policy": "explicit"},
    "CHANGED": {"durable_name": "CHANGED", "ack_policy": "explicit"},
    "EXPIRES": {"name": "EXPIRES", "ack_policy": "explicit", "inactive_threshold": HOUR},
}


def created(server: Server) -> dict[str, str]:
    """Return `created` of each object, and the time of the report as `ts`."""
    with Raw(server.url) as raw:
        result: dict[str, str] = {}
        for stream in raw.api_ok("$JS.API.STREAM.LIST")["streams"]:
            name = stream["config"]["name"]
            listed = raw.api_ok(f"$JS.API.CONSUMER.LIST.{name}")["consumers"]
            result |= {name: stream["created"]} | {
                f"{name}/{consumer['name']}": consumer["created"] for consumer in listed
            }
        return result | {"ts": raw.api_ok("$JS.API.STREAM.INFO.S")["ts"]}


def changed_objects(before: dict[str, str], after: dict[str, str]) -> dict[str, bool]:
    """Return the objects with another `created`, and if it is before the earlier report."""
    result = [name for name in before if name != "ts" and after[name] != before[name]]
    assert all(parse_instant(before[name]) < parse_instant(after[name]) for name in result)
    return {name: parse_instant(after[name]) <= parse_instant(before["ts"]) for name in result}


@pytest.mark.matrix
def test_created_after_a_restart(make_server: MakeServer, server_version: tuple[int, ...]) -> None:
    """A restart moves `created` of updated objects, past the last report only if they expire."""
    server = make_server()
    with Raw(server.url) as raw:
        for name in ("S", "OTHER"):
            raw.create(name, subjects=[name])
        for name, config in KINDS.items():
            raw.api_ok(f"$JS.API.CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})
    reports = [created(server)]
    server.restart()
    reports.append(created(server))
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.UPDATE.S", {"name": "S", "subjects": ["S"], "max_msgs": 9})
        raw.api_ok(
            "$JS.API.CONSUMER.CREATE.S.CHANGED",
            {"stream_name": "S", "config": KINDS["CHANGED"] | {"description": "x"}},
        )
    reports.append(created(server))
    server.restart()
    reports.append(created(server))
    first, updated, second = (changed_objects(*pair) for pair in itertools.pairwise(reports))

    assert first == (
        dict.fromkeys(("S/SAME", "S/CHANGED", "S/EXPIRES"), True)
        if server_version < (2, 12)
        else {}
    )
    assert updated == {}
    stream, consumer = (
        {"S": True} if server_version < (2, 14) else {},
        {"S/CHANGED": True} if server_version < (2, 15) else {},
    )
    assert second == stream | consumer | {"S/EXPIRES": False}


def write_consumers(space: Space, *names: str, limit: int = -1, **consumer: Any) -> Space:
    """Write one stream with these consumers, all alike."""
    return space.write(
        streams=[
            {
                "name": "S",
                "subjects": ["S.>"],
                "max_msgs": limit,
                "consumers": [{"name": name} | consumer for name in names],
            }
        ]
    )


def is_converged(space: Space) -> bool:
    """Return True if there is neither a change to plan nor drift."""
    result = drift(space.load, DriftOptions(), RecordingObserver())
    return not space.plan().steps and (result.exit_code, result.resource_drift) == (0, [])


@pytest.mark.matrix
def test_restarts_are_no_changes(tmp_path: Path, make_server: MakeServer) -> None:
    """Restarts of the server are no change, no drift and no reason for a stale plan."""
    server = make_server()
    space = write_consumers(single_space(tmp_path, server), "C", "GOES")
    space.apply()
    changes = write_consumers(space, "C", "GOES", limit=9, description="x").plan()
    server.restart()
    assert is_converged(write_consumers(space, "C", "GOES"))
    assert (
        write_consumers(space, "C", "GOES", limit=9, description="x").apply_saved(changes).exit_code
        == 0
    )

    for _ in range(2):
        server.restart()
        assert is_converged(space)
    deletion = write_consumers(space, "C", limit=9, description="x").plan(
        allow_hazards=("DELETES_CONSUMER",)
    )
    assert [(step.op, step.address) for step in deletion.steps] == [
        ("consumer.delete", "main/consumer/S/GOES")
    ]
    assert deletion.diagnostics == []
    server.restart()
    assert space.apply_saved(deletion).exit_code == 0
    space.write()
    assert space.apply(allow_hazards=("DELETES_STREAM",))[1].summary["destroyed"] == 2
    with Raw(server.url) as raw:
        assert raw.api_ok("$JS.API.STREAM.NAMES")["total"] == 0


@pytest.mark.matrix
def test_a_recreated_object_is_another(tmp_path: Path, server: Server) -> None:
    """A recreated stream or consumer is drift, is unmanaged, and makes a plan stale."""
    space = write_consumers(single_space(tmp_path, server), "C", "D")
    space.apply()
    stale = write_consumers(space, limit=9).plan(allow_hazards=("DELETES_CONSUMER",))
    with Raw(server.url) as raw:
        config = raw.api_ok("$JS.API.CONSUMER.INFO.S.C")["config"]
        raw.api_ok("$JS.API.CONSUMER.DELETE.S.C")
        raw.api_ok("$JS.API.CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
    with pytest.raises(StalePlanError):
        space.apply_saved(stale)
    result = drift(write_consumers(space, "C", "D").load, DriftOptions(), RecordingObserver())
    assert [(change.address, change.action_reason) for change in result.resource_drift] == [
        ("main/consumer/S/C", "drift_recreated")
    ]
    assert [(step.op, step.address) for step in space.plan().steps] == [
        ("state.import", "main/consumer/S/C")
    ]
    assert [(step.op, step.address) for step in write_consumers(space, "D").plan().steps] == [
        ("state.forget", "main/consumer/S/C")
    ]

    with Raw(server.url) as raw:
        config = raw.config("S")
        raw.api_ok("$JS.API.STREAM.DELETE.S")
        raw.api_ok("$JS.API.STREAM.CREATE.S", config)
    result = drift(space.load, DriftOptions(), RecordingObserver())
    assert [
        change.action_reason
        for change in result.resource_drift
        if change.address == "main/stream/S"
    ] == ["drift_recreated"]


@pytest.mark.download
@pytest.mark.parametrize("old", versions.VERSIONS[:-1])
def test_an_upgrade_is_no_change(old: str, tmp_path: Path, make_server: MakeServer) -> None:
    """An upgrade of the server is no change, nor are an update and a restart after it."""
    for new in versions.VERSIONS[versions.VERSIONS.index(old) + 1 :]:
        server = make_server(version=old)
        folder = tmp_path / new
        folder.mkdir()
        space = write_consumers(single_space(folder, server), "C", "D")
        space.apply()
        server.restart(binary=versions.ensure_version(new))
        assert is_converged(space), new
        write_consumers(space, "C", "D", description="x").apply()
        server.restart()
        assert is_converged(space), new


#: The resources that an apply replaces with their content: a stream, and a consumer.
REPLACED = {"stream": "main/stream/S", "consumer": "main/consumer/S/C"}


def kill_at(space: Space, server: Server, kind: str, point: int) -> int:
    """Let an apply die in a replacement, restart around it, apply again; return the writes."""
    with Raw(server.url) as raw:
        delete_all_streams(raw)
    shutil.rmtree(space.folder / "state", ignore_errors=True)
    consumers = [{"name": "C", "ack_policy": "explicit"}]
    space.write(
        streams=[
            {
                "name": "S",
                "subjects": ["S.>"],
                "lifecycle": {"on_replace": "preserve"},
                "consumers": consumers,
            }
        ]
    ).apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "S", 20, subjects=1)
        raw.ack(raw.pull("S", "C", 5))
    server.restart()
    permitted = ("REMOVES_SUBJECTS", "IRREVERSIBLE")
    with kill_after(point) as counter, suppress(SimulatedKill):
        space.apply(replace=(REPLACED[kind],), allow_hazards=permitted)
    server.restart()
    result = space.apply(allow_hazards=permitted)[1]
    assert (result.exit_code, [step.error for step in result.steps if step.error]) == (0, []), point
    assert is_converged(space), point
    with Raw(server.url) as raw:
        info = raw.api_ok("$JS.API.CONSUMER.INFO.S.C")
        assert (info["num_pending"] + info["num_ack_pending"], "pause_until" in info["config"]) == (
            15,
            False,
        ), point
    return counter.done


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "points"), [("stream", (5, 9, 13)), ("consumer", (3, 5))])
def test_a_death_and_restarts_lose_no_position(
    kind: str, points: tuple[int, ...], tmp_path: Path, make_server: MakeServer
) -> None:
    """After a death and restarts the next apply ends the replacement without lost positions."""
    server = make_server()
    for point in points:
        kill_at(single_space(tmp_path, server), server, kind, point)


@pytest.mark.soak
@pytest.mark.parametrize("kind", REPLACED)
def test_a_death_at_every_write_and_restarts(
    kind: str, tmp_path: Path, make_server: MakeServer
) -> None:
    """The same for every write."""
    server = make_server()
    space = single_space(tmp_path, server)
    for point in range(1, kill_at(space, server, kind, 1_000)):
        kill_at(space, server, kind, point)


def test_the_rule_of_is_same_object() -> None:
    """An object created before it was last seen is the same; one that must not be older is not."""
    known = KnownObject("2026-01-01T00:00:05.5Z", "2026-01-01T00:00:09.000000001Z")
    for created, strict, older in (
        ("2026-01-01T00:00:05.5Z", True, True),
        ("2026-01-01T00:00:05.50000001Z", True, True),
        ("2026-01-01T00:00:09Z", True, True),
        ("2026-01-01T00:00:09.000000001Z", True, True),
        ("2026-01-01T00:00:09.00000001Z", False, False),
        ("2026-01-01T00:00:10Z", False, False),
        ("2026-01-01T00:00:05.49Z", False, True),
        ("not a time", False, False),
    ):
        assert (
            is_same_object(known, created, may_be_older=False),
            is_same_object(known, created, may_be_older=True),
        ) == (strict, older), created
    assert is_same_object(KnownObject("a", ""), "a", may_be_older=False)
    assert not is_same_object(
        KnownObject("2026-01-01T00:00:05Z", ""), "2026-01-01T00:00:05.1Z", may_be_older=True
    )


def test_answers_of_any_shape() -> None:
    """Each stream and consumer of an answer gets the known `created`; others stay unchanged."""
    known = KnownObject("2026-01-01T00:00:05Z", "2026-01-01T00:00:09Z")
    later = "2026-01-01T00:00:07Z"
    stream, consumer = (
        {"config": {"name": "S"}, "created": later},
        {"stream_name": "S", "name": "C", "created": later},
    )
    requested: list[tuple[str, str, str | None]] = []

    def find(domain: str, name: str, of: str | None) -> tuple[KnownObject, ...]:
        requested.append((domain, name, of))
        return (known,)

    answers: list[dict[str, Any]] = [
        dict(stream),
        dict(consumer),
        {"streams": [dict(stream)]},
        {"consumers": [dict(consumer)]},
    ]
    for answer in answers:
        restore_created(answer, "hub", find)
    assert answers[0]["created"] == answers[1]["created"] == known.created
    assert (
        answers[2]["streams"][0]["created"]
        == answers[3]["consumers"][0]["created"]
        == known.created
    )
    assert requested == [("hub", "S", None), ("hub", "S", "C")] * 2
    older: dict[str, Any] = {"config": {"name": "S"}, "created": "2026-01-01T00:00:03Z"}
    for cluster, expected in (
        ({}, older["created"]),
        ({"name": "leaf", "leader": "leaf"}, older["created"]),
        ({"name": "c", "leader": "n1"}, known.created),
        ({"name": "c"}, known.created),
    ):
        answer = older | {"cluster": cluster}
        restore_created(answer, "hub", find)
        assert answer["created"] == expected, cluster
    malformed: list[dict[str, Any]] = [
        {"streams": ["S"]},
        {"streams": 5},
        {"created": later},
        {"created": 5, "config": {"name": "S"}},
        {"created": later, "config": []},
        {"created": later, "stream_name": 7},
    ]
    for answer in malformed:
        before = dict(answer)
        restore_created(answer, "hub", find)
        assert answer == before
