"""A saved plan that is stale is refused before its first write (exit code 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import StalePlanError
from tests.support.raw import Raw, delete_all_streams
from tests.support.workspaces import hub_leaf_space, left_to_do, single_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

PERMITTED = ("DELETES_STREAM", "DELETES_MESSAGES", "REMOVES_SUBJECTS", "LOSES_CONSUMER_POSITION")


def replaced(how: str, **fields: Any) -> dict[str, Any]:
    """Return the part of a stream or bucket that makes the second plan replace it."""
    return {"lifecycle": {"on_replace": how}, **fields}


def key_of(value: str, how: str, **fields: Any) -> dict[str, Any]:
    """Return the sections with one key."""
    return {"kv": [{"bucket": "B", "entries": {"mode": value}, **replaced(how, **fields)}]}


def schedule_of(every: str, how: str, **fields: Any) -> dict[str, Any]:
    """Return the sections with one schedule."""
    schedule = {"every": every, "target": "j.x", "payload": "1"}
    stream = {"name": "J", "subjects": ["j.>", "s.>"], "allow_msg_schedules": True}
    return {"streams": [stream | {"schedules": {"s.a": schedule}} | replaced(how, **fields)]}


def write_key(raw: Raw) -> None:
    raw.request("$KV.B.mode", b"of an application")


def write_schedule(raw: Raw) -> None:
    headers = {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": "j.y"}
    raw.request("s.a", b"of an application", headers)


@pytest.mark.parametrize("how", ["preserve", "recreate"])
@pytest.mark.parametrize(
    ("sections", "values", "write", "stream"),
    [
        (key_of, ("v1", "v2"), write_key, "KV_B"),
        (schedule_of, ("1h", "2h"), write_schedule, "J"),
    ],
    ids=["key", "schedule"],
)
def test_a_value_written_after_the_plan(
    sections: Callable[..., dict[str, Any]],
    values: tuple[str, str],
    write: Callable[[Raw], None],
    stream: str,
    how: str,
    tmp_path: Path,
    server: Server,
) -> None:
    """A value that another client wrote since refuses the plan, also if its bucket is replaced."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        assert space.write(**sections(values[0], how)).apply()[1].exit_code == 0
        space.write(**sections(values[1], how, storage="memory"))
        plan = space.plan(allow_hazards=PERMITTED)
        assert not plan.errored
        before = raw.api_ok(f"$JS.API.STREAM.INFO.{stream}")["created"]
        write(raw)
        with pytest.raises(StalePlanError):
            space.apply_saved(plan, allow_hazards=PERMITTED)
        assert raw.api_ok(f"$JS.API.STREAM.INFO.{stream}")["created"] == before
        assert space.apply(allow_hazards=PERMITTED)[1].exit_code == 0
        assert left_to_do(space.plan()) == []


def test_a_value_written_into_a_bucket_that_goes(tmp_path: Path, server: Server) -> None:
    """A key that another client wrote since refuses the plan that deletes its bucket."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        space.write(**key_of("v1", "recreate")).apply()
        plan = space.write(streams=[{"name": "OTHER"}]).plan(allow_hazards=PERMITTED)
        write_key(raw)
        with pytest.raises(StalePlanError, match="kv_entry/B/mode"):
            space.apply_saved(plan, allow_hazards=PERMITTED)
        assert raw.state("KV_B")["messages"] == 1
        assert space.apply(allow_hazards=PERMITTED)[1].exit_code == 0
        assert left_to_do(space.plan()) == []


@pytest.mark.parametrize("how", ["preserve", "recreate"])
def test_the_stream_of_a_plan_is_gone(how: str, tmp_path: Path, server: Server) -> None:
    """A stream that another client deleted since refuses the plan."""
    space = single_space(tmp_path, server)
    stream = {"name": "S", "subjects": ["s.>"]} | replaced(how)
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        space.write(streams=[stream]).apply()
        raw.request("s.1", b"x")
        plan = space.write(streams=[stream | {"storage": "memory"}]).plan(allow_hazards=PERMITTED)
        raw.api_ok("$JS.API.STREAM.DELETE.S")
        with pytest.raises(StalePlanError, match="main/stream/S"):
            space.apply_saved(plan, allow_hazards=PERMITTED)


@pytest.mark.parametrize(
    "options", [{"targets": ("main/stream/S",)}, {"excludes": ("main/consumer/S/OLD",)}]
)
def test_a_consumer_that_left_the_files_and_is_not_planned(
    options: dict[str, Any], tmp_path: Path, server: Server
) -> None:
    """A replaced stream keeps a consumer that only a later plan removes."""
    space = single_space(tmp_path, server)
    stream = {"name": "S", "subjects": ["s.>"]} | replaced("preserve")
    kept = {"name": "KEPT", "ack_policy": "explicit"}
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        space.write(streams=[stream | {"consumers": [kept, kept | {"name": "OLD"}]}]).apply()
        raw.request("s.1", b"x")
        space.write(streams=[stream | {"consumers": [kept], "storage": "memory"}])
        _, result = space.apply(allow_hazards=PERMITTED, **options)
        assert result.exit_code == 0
        assert set(raw.api_ok("$JS.API.CONSUMER.NAMES.S")["consumers"]) == {"KEPT", "OLD"}
        assert space.apply(allow_hazards=(*PERMITTED, "DELETES_CONSUMER"))[1].exit_code == 0
        assert raw.api_ok("$JS.API.CONSUMER.NAMES.S")["consumers"] == ["KEPT"]


@pytest.mark.parametrize("how", ["recreate", "preserve", "delete", "relocate"])
def test_a_reader_created_after_the_plan(how: str, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A plan that deletes or replaces a stream knows all its readers, or is refused."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    stream = {"name": "M", "domain": "hub", "subjects": ["m.>"]}
    others = [{"name": "K", "domain": "hub"}, {"name": "L", "domain": "leaf"}]
    changed: dict[str, Any] = {
        "recreate": {"streams": [stream | replaced("recreate", storage="memory"), *others]},
        "preserve": {"streams": [stream | replaced("preserve", storage="memory"), *others]},
        "delete": {"streams": others},
        "relocate": {
            "streams": [stream | {"name": "N"}, *others],
            "relocate": [{"from": "hub/stream/M", "to": "hub/stream/N"}],
        },
    }
    allowed = (*PERMITTED, "BREAKS_REPLICATION", "DUPLICATES_MESSAGES")
    source = {"name": "M", "external": {"api": "$JS.hub.API"}}
    with Raw(hub.url, hub.user, hub.password) as raw:
        assert space.write(streams=[stream, *others]).apply()[1].exit_code == 0
        raw.request("m.x", b"x")
        plan = space.write(**changed[how]).plan(allow_hazards=allowed)
        assert not plan.errored
        raw.create("R", "leaf", sources=[source])
        with pytest.raises(StalePlanError, match="is read by leaf/stream/R"):
            space.apply_saved(plan, allow_hazards=allowed)
        found = {c.address: [h.code for h in c.hazards] for c in space.plan().resource_changes}
        assert "BREAKS_REPLICATION" in found["hub/stream/M"]
        assert space.apply(allow_hazards=allowed)[1].exit_code == 0


A = {"name": "A", "domain": "hub", "subjects": ["a.>"]}
EXPIRING = A | {"allow_msg_ttl": True, "allow_rollup_hdrs": True, "max_age": "1d"}
B = {"name": "B", "domain": "hub", "subjects": ["b.>"]}
C = {"name": "C", "domain": "hub", "sources": [{"name": "B"}]}
READING = B | {"sources": [{"name": "A"}]}


@pytest.mark.parametrize(
    ("before", "after", "origins"),
    [
        ([A, B], [A, READING], "AB"),
        ([A, B, C], [A, READING, C], "AC"),
        ([A], [A, READING], "AB"),
        ([A, READING, C], [A, READING | replaced("recreate", storage="memory"), C], "AC"),
        ([EXPIRING, READING], [EXPIRING | {"subject_delete_marker_ttl": "1h"}, READING], "B"),
    ],
    ids=["source", "two hops", "created", "recreated", "markers"],
)
def test_a_reader_that_gets_what_the_plan_brings(
    before: list[Any], after: list[Any], origins: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """A plan knows who reads what it changes, over any number of hops, or is refused."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    sources = [{"name": name, "external": {"api": "$JS.hub.API"}} for name in origins]
    allowed = (*PERMITTED, "BREAKS_REPLICATION", "DUPLICATES_MESSAGES")
    with Raw(hub.url, hub.user, hub.password) as raw:
        assert space.write(streams=before).apply()[1].exit_code == 0
        raw.request("a.x", b"x")
        plan = space.write(streams=after).plan(allow_hazards=allowed)
        assert not plan.errored, plan.diagnostics
        raw.create("R", "leaf", sources=sources)
        with pytest.raises(StalePlanError, match="is read by leaf/stream/R"):
            space.apply_saved(plan, allow_hazards=allowed)
        assert space.apply(allow_hazards=allowed)[1].exit_code == 0
        assert left_to_do(space.plan()) == []
