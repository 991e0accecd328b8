"""Message schedules of streams as code: one message per subject, replaced and removed."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config import load
from jsplan.errors import ConfigError, RefusedError, StalePlanError
from jsplan.options import DriftOptions
from jsplan.resources.message_schedule import check_cron, next_times, parse_headers
from jsplan.workflows.drift import drift
from jsplan.workflows.revert import RevertOptions, plan_revert
from tests.support.process import jsplan
from tests.support.raw import Raw
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, left_to_do, shown_changes

if TYPE_CHECKING:
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.matrix
SOON = "2090-01-01T00:00:00Z"


def stream(schedules: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The stream JOBS in domain hub, whose messages may be schedules."""
    return {
        "name": "JOBS",
        "domain": "hub",
        "subjects": ["jobs.>", "when.>"],
        "allow_msg_schedules": True,
        "allow_msg_ttl": True,
        "schedules": schedules,
    } | fields


def is_unsupported(plan: Plan, level: int) -> bool:
    """Check whether the server is too old; then the plan must say so, and plan nothing."""
    if not plan.errored:
        return False
    found = {d.code for d in plan.diagnostics if d.severity == "error"}
    assert found == {"JS413"}
    assert f"API level {level}" in str([d.summary for d in plan.diagnostics])
    assert plan.steps == []
    return True


def test_a_schedule_over_the_limit_of_its_stream_is_an_error_of_the_plan(space: Space) -> None:
    """Its payload and its headers are one message, which the stream refuses (10054)."""
    every = {"every": "1h", "target": "jobs.run"}
    space.write(streams=[stream({"when.a": every | {"payload": "x"}}, max_msg_size=1024)])
    if is_unsupported(space.plan(), 4):
        return
    space.apply()
    space.write(streams=[stream({"when.a": every | {"payload": "x" * 1000}}, max_msg_size=1024)])
    (found,) = (d for d in space.plan().diagnostics if d.severity == "error")
    assert (found.code, found.address) == ("JS138", "hub/schedule/JOBS/when.a")
    assert "hub/stream/JOBS takes 1,024 in a message" in found.summary
    assert found.detail == "Store less, or raise max_msg_size."


def test_limits_of_consumers_do_not_concern_schedules(space: Space) -> None:
    """A schedule has a stream, as a consumer has, and is none."""
    schedules = {"when.a": {"every": "1h", "target": "jobs.run", "payload": "x"}}
    space.write(streams=[stream(schedules)])
    if is_unsupported(space.plan(), 4):
        return
    space.apply()
    space.write(streams=[stream(schedules, consumer_limits={"max_ack_pending": 5})])
    assert [step.op for step in space.plan().steps] == ["stream.update"]


def get(raw: Raw, subject: str) -> tuple[dict[str, Any], str] | None:
    """Return the fields and the payload of the last message of a subject; None for none."""
    answer = raw.api("$JS.hub.API.STREAM.MSG.GET.JOBS", {"last_by_subj": subject})
    if "message" not in answer:
        return None
    message = answer["message"]
    payload = base64.b64decode(message.get("data", "")).decode()
    return parse_headers(base64.b64decode(message.get("hdrs", ""))), payload


def put(raw: Raw, subject: str, when: str, payload: str = "", **headers: str) -> None:
    """Write a schedule as an application does."""
    own = {"Nats-Schedule": when, "Nats-Schedule-Target": "jobs.a"}
    _, answer = raw.request(subject, payload.encode(), own | headers)
    assert b'"error"' not in answer, answer


def test_schedules_are_written_replaced_and_removed(space: Space, raw: Raw) -> None:
    """An interval and a cron line follow the files, one message each, and nothing is left over."""
    cron = {"cron": "0 30 9 * * MON-FRI", "time_zone": "Europe/Berlin", "target": "jobs.b"}
    every = {"every": "1h30m", "target": "jobs.a", "payload": {"x": 1}, "ttl": "5m"}
    space.write(streams=[stream({"when.a": every, "when.b": cron})])
    plan = space.plan()
    if is_unsupported(plan, 4):
        return
    notes = {d.address: d.summary for d in plan.diagnostics if d.code == "JS467"}
    assert notes.keys() == {"hub/schedule/JOBS/when.a", "hub/schedule/JOBS/when.b"}
    assert notes["hub/schedule/JOBS/when.b"].count("T09:30:00+0") == 3
    assert space.apply_saved(plan).exit_code == 0
    assert left_to_do(space.plan()) == []
    assert get(raw, "when.a") == (
        {"every": 5_400_000_000_000, "target": "jobs.a", "ttl": 300_000_000_000},
        '{"x":1}',
    )

    changed = every | {"every": "2h", "payload": "hi"}
    plan, result = space.write(streams=[stream({"when.a": changed, "when.b": cron})]).apply()
    change = next(c for c in plan.resource_changes if c.name == "JOBS/when.a")
    assert {f.path for f in change.change.fields} == {"every", "value"}
    assert result.exit_code == 0
    assert get(raw, "when.a") == (
        {"every": 7_200_000_000_000, "target": "jobs.a", "ttl": 300_000_000_000},
        "hi",
    )

    space.write(streams=[stream({"when.a": changed})])
    with pytest.raises(RefusedError, match=r"DELETES_MESSAGES:hub/schedule/JOBS/when\.b"):
        space.apply()
    assert space.apply(allow_hazards=("DELETES_MESSAGES",))[1].exit_code == 0
    assert get(raw, "when.b") is None
    assert left_to_do(space.plan()) == []
    assert raw.api("$JS.hub.API.STREAM.INFO.JOBS")["state"]["messages"] == 1


def test_a_schedule_of_another_client_is_adopted(space: Space, raw: Raw) -> None:
    """However it writes the interval; its own headers stay when jsplan changes it."""
    space.write(streams=[stream({})])
    if is_unsupported(space.plan(), 2):
        return
    space.apply()
    entry = {"every": "90m", "target": "jobs.a", "payload": "x"}
    space.write(streams=[stream({"when.a": entry})])
    if is_unsupported(space.plan(), 4):
        return
    put(raw, "when.a", "@every 1h30m", "x", trace="on")
    plan, result = space.apply()
    assert (result.exit_code, shown_changes(plan, "schedule"), plan.summary["import"]) == (0, {}, 1)

    space.write(streams=[stream({"when.a": entry | {"payload": "y"}})]).apply()
    answer = raw.api("$JS.hub.API.STREAM.MSG.GET.JOBS", {"last_by_subj": "when.a"})
    assert b"trace: on" in base64.b64decode(answer["message"]["hdrs"])
    put(raw, "when.a", "@every 2h", "y")
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert [f.path for c in found.resource_drift for f in c.change.fields] == ["every"]
    assert shown_changes(space.plan(), "schedule") == {"when.a": ["update"]}


def test_a_schedule_that_changed_since_the_plan_stays(space: Space, raw: Raw) -> None:
    """A write of another client makes the plan stale, also for a deletion."""
    entry = {"at": "2090-01-01T00:00:00Z", "target": "jobs.a"}
    space.write(streams=[stream({"when.a": entry, "when.b": entry})])
    if is_unsupported(space.plan(), 2):
        return
    space.apply()
    plan = space.write(streams=[stream({})]).plan()
    assert shown_changes(plan, "schedule") == {"when.a": ["delete"], "when.b": ["delete"]}
    put(raw, "when.a", "@at 2091-01-01T00:00:00Z")
    with pytest.raises(StalePlanError, match=r"hub/schedule/JOBS/when\.a"):
        space.apply_saved(plan, allow_hazards=("DELETES_MESSAGES",))
    assert get(raw, "when.b") is not None


def test_a_deletion_spares_a_newer_schedule(
    space: Space, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule that is written between the last check and the purge stays, and is said."""
    from jsplan.jetstream import DomainApi  # noqa: PLC0415

    entry = {"at": "2090-01-01T00:00:00Z", "target": "jobs.a"}
    space.write(streams=[stream({"when.a": entry})])
    if is_unsupported(space.plan(), 2):
        return
    space.apply()
    request = DomainApi.request

    async def request_late(self: DomainApi, api: str, *args: Any, **named: Any) -> Any:
        if api.startswith("STREAM.PURGE."):
            put(raw, "when.a", "@at 2091-01-01T00:00:00Z")
        return await request(self, api, *args, **named)

    monkeypatch.setattr(DomainApi, "request", request_late)
    _, result = space.write(streams=[stream({})]).apply(allow_hazards=("DELETES_MESSAGES",))
    monkeypatch.undo()
    assert result.exit_code == 6
    assert get(raw, "when.a") == ({"at": "2091-01-01T00:00:00Z", "target": "jobs.a"}, "")


def test_a_schedule_whose_time_came_is_no_drift(
    space: Space, raw: Raw, clean_hub_leaf: Sandbox
) -> None:
    """The server removes it when it has published; a past one is not written at all."""
    soon = (datetime.now(UTC) + timedelta(seconds=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    past = {"at": "2020-01-01T00:00:00Z", "target": "jobs.past"}
    entry = {"at": soon, "target": "jobs.a", "payload": "now"}
    space.write(streams=[stream({"when.a": entry, "when.past": past})])
    plan = space.plan()
    if is_unsupported(plan, 2):
        return
    assert "when.past" not in shown_changes(plan, "schedule")
    assert space.apply()[1].exit_code == 0
    clean_hub_leaf["hub"].wait_until(lambda: get(raw, "jobs.a") is not None, "publish", 20)
    clean_hub_leaf["hub"].wait_until(lambda: get(raw, "when.a") is None, "remove it", 20)
    assert left_to_do(space.plan()) == []
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert (found.resource_drift, found.pending) == ([], 0)
    assert get(raw, "jobs.past") is None


def test_a_revert_puts_schedules_back(space: Space, raw: Raw) -> None:
    """A schedule that the apply created goes, and one that it changed is as before."""
    entry = {"at": "2090-01-01T00:00:00Z", "target": "jobs.a", "payload": "old"}
    space.write(streams=[stream({"when.a": entry})])
    if is_unsupported(space.plan(), 2):
        return
    space.apply()
    changed = entry | {"payload": "new", "at": "2091-01-01T00:00:00Z", "ttl": "5s"}
    space.write(streams=[stream({"when.a": changed, "when.b": entry})]).apply()
    plan = plan_revert(space.load, RevertOptions(number=2), RecordingObserver())
    assert shown_changes(plan, "schedule") == {"when.a": ["update"], "when.b": ["delete"]}
    assert space.apply_saved(plan, allow_hazards=("DELETES_MESSAGES",)).exit_code == 0
    assert space.write(streams=[stream({"when.a": entry})]).plan().steps == []


@pytest.mark.parametrize("first_moment", [1, 2])
def test_a_kill_at_every_second_moment(space: Space, raw: Raw, first_moment: int) -> None:
    """After a kill the next apply completes the work."""
    options: dict[str, Any] = {"allow_hazards": ("DELETES_MESSAGES",), "parallelism": 1}
    entry = {"at": "2090-01-01T00:00:00Z", "target": "jobs.a"}
    first = stream({"when.a": entry, "when.b": entry})
    then = stream({"when.a": entry | {"payload": "new"}, "when.c": entry})
    space.write(streams=[first])
    if is_unsupported(space.plan(), 2):
        return
    space.apply()
    with kill_after() as whole:
        space.write(streams=[then]).apply(**options)
    for moment in range(first_moment, whole.done, 2):
        space.write(streams=[first]).apply(**options)
        space.write(streams=[then])
        with kill_after(moment), suppress(SimulatedKill):
            space.apply(**options)
        assert space.apply(**options)[1].exit_code == 0, moment
        assert read_state(space.folder).pending == {}, moment
        assert left_to_do(space.plan()) == [], moment
    found = [get(raw, f"when.{name}") for name in "abc"]
    assert [message and message[1] for message in found] == ["new", None, ""]


def test_validate_finds_what_no_stream_takes(space: Space) -> None:
    """Settings that exclude each other are found without a server."""
    rows: list[tuple[Any, dict[str, Any], str]] = [
        ({"target": "jobs.a"}, {}, "JS138"),
        ({"every": "1h", "cron": "@daily", "target": "jobs.a"}, {}, "JS138"),
        ({"every": "1h"}, {}, "JS138"),
        ({"every": "1h", "target": "jobs.*"}, {}, "JS138"),
        ({"every": "1h", "target": "when.a"}, {}, "JS138"),
        ({"every": "1h", "target": "other.a"}, {}, "JS138"),
        ({"every": "1500ms", "target": "jobs.a"}, {}, "JS138"),
        ({"every": "10ms", "target": "jobs.a"}, {}, "JS130"),
        ({"at": "tomorrow", "target": "jobs.a"}, {}, "JS130"),
        ({"cron": "0 9 * * *", "target": "jobs.a"}, {}, "JS138"),
        ({"cron": "0 0 9 * * *", "time_zone": "Mars/X", "target": "jobs.a"}, {}, "JS138"),
        ({"cron": "0 0 0 31 2 *", "target": "jobs.a"}, {}, "JS138"),
        ({"every": "1h", "target": "jobs.a", "ttl": "5m"}, {"allow_msg_ttl": False}, "JS138"),
        ({"every": "1h", "target": "jobs.a"}, {"allow_msg_schedules": False}, "JS138"),
        ({"every": "1h", "target": "jobs.a", "valve": 1}, {}, "JS105"),
        ({"every": "1h", "target": "jobs.a"}, {"domain": ["hub", "leaf"]}, "JS139"),
        ("@daily", {}, "JS104"),
    ]
    for entry, fields, code in rows:
        space.write(streams=[stream({"when.a": entry}, **fields)])
        with pytest.raises(ConfigError) as caught:
            load(space.load)
        assert code in {d.code for d in caught.value.diagnostics}, (entry, fields)


def test_validate_for_an_older_server(space: Space) -> None:
    """`--server-version` reports a schedule that the release does not know, without a server."""
    cron = {"cron": "@daily", "target": "jobs.a"}
    space.write(streams=[stream({"when.a": cron, "when.b": {"at": SOON, "target": "jobs.a"}})])
    done = jsplan(space.folder, "validate", "--server-version", "2.12", "--format", "json")
    errors = [d for d in json.loads(done.out)["diagnostics"] if d["severity"] == "error"]
    assert [(d["code"], d["address"]) for d in errors] == [("JS413", "hub/schedule/JOBS/when.a")]
    assert jsplan(space.folder, "validate", "--server-version", "2.14").code == 0


def test_next_times() -> None:
    """Times follow the time zone, its changes included, and an interval counts from now."""
    now = datetime(2026, 10, 24, 12, 0, tzinfo=UTC)
    berlin = {"cron": "0 30 9 * * *", "time_zone": "Europe/Berlin"}
    assert next_times(berlin, now) == [
        "2026-10-25T09:30:00+01:00",
        "2026-10-26T09:30:00+01:00",
        "2026-10-27T09:30:00+01:00",
    ]
    assert next_times({"cron": "@hourly"}, now, 1) == ["2026-10-24T13:00:00Z"]
    assert next_times({"cron": "*/20 * * * * *"}, now, 2) == [
        "2026-10-24T12:00:20Z",
        "2026-10-24T12:00:40Z",
    ]
    assert next_times({"every": 90_000_000_000}, now, 2) == [
        "2026-10-24T12:01:30Z",
        "2026-10-24T12:03:00Z",
    ]
    assert next_times({"at": "2026-10-24T11:00:00Z"}, now) == []
    assert next_times({"at": "2026-10-25T11:00:00Z"}, now) == ["2026-10-25T11:00:00Z"]


@pytest.mark.parametrize(
    "line",
    ["@daily", "0 0 9 * * *", "*/5 * * * * *", "0 30 9 * * MON-FRI", "0 30 9 1,15 * ?"],
)
def test_cron_lines_that_servers_take(space: Space, raw: Raw, line: str) -> None:
    """The server stores what the files may have, and it reads as written."""
    assert check_cron(line) == ""
    entry = {"cron": line, "target": "jobs.a"}
    space.write(streams=[stream({"when.a": entry})])
    if is_unsupported(space.plan(), 4):
        return
    assert space.apply()[1].exit_code == 0
    assert get(raw, "when.a") == ({"cron": line, "target": "jobs.a"}, "")
    assert left_to_do(space.plan()) == []
