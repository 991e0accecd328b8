"""The parts of the drift job that need no server."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.alert import Actor, AlertEvent
from jsplan.documents.base import dumps
from jsplan.documents.drift import Drift, Unmanaged
from jsplan.drift.service.advisories import AdvisoryEvent, parse_advisory
from jsplan.drift.service.alerts import (
    AlertRegister,
    Finding,
    build_alerts,
    format_fields,
    group_unmanaged,
)
from jsplan.drift.service.checker import find_doubtful
from jsplan.drift.service.endpoint import parse_listen_address
from jsplan.drift.service.options import Cron, Interval
from jsplan.state import State
from jsplan.state.document import Entry
from jsplan.units import SECOND
from tests.render import samples
from tests.support.schemas import validator

AUDIT = "$JS.EVENT.ADVISORY.API"
CLIENT = {"user": "acc", "name": "nats CLI", "host": "10.0.0.1", "acc": "ACC", "kind": "Client"}
ACTOR = Actor("acc", "nats CLI", "10.0.0.1", "ACC")
ALL = ("changed", "missing", "replication", "unmanaged", "offline", "check")


def audit(subject: str, answer: Any = None, **more: Any) -> bytes:
    """An audit advisory as a server writes it: no blanks, in its order of fields."""
    document = {
        "type": "io.nats.jetstream.advisory.v1.api_audit",
        "client": CLIENT,
        "subject": subject,
        "request": "{}",
    }
    return json.dumps(
        document | {"response": json.dumps(answer or {}), "domain": "hub"} | more,
        separators=(",", ":"),
    ).encode()


def test_an_advisory_gives_an_event() -> None:
    """Only a request that changed something gives an event, with its user."""
    for subject, data, event in [
        (AUDIT, audit("$JS.API.STREAM.UPDATE.A"), AdvisoryEvent("hub", "A", "", ACTOR)),
        (AUDIT, audit("$JS.API.CONSUMER.CREATE.A.C"), AdvisoryEvent("hub", "A", "C", ACTOR)),
        (
            AUDIT,
            audit("$JS.API.CONSUMER.CREATE.A.C.orders.new"),
            AdvisoryEvent("hub", "A", "C", ACTOR),
        ),
        (
            AUDIT,
            audit("$JS.API.CONSUMER.DURABLE.CREATE.A.C"),
            AdvisoryEvent("hub", "A", "C", ACTOR),
        ),
        (
            AUDIT,
            audit("$JS.API.CONSUMER.CREATE.A", {"name": "x7"}),
            AdvisoryEvent("hub", "A", "x7", ACTOR),
        ),
        (AUDIT, audit("$JS.API.STREAM.DELETE.A", domain=None), AdvisoryEvent("", "A", "", ACTOR)),
        (AUDIT, audit("$JS.API.STREAM.UPDATE.A", {"error": {"code": 400}}), None),
        (AUDIT, audit("$JS.API.STREAM.INFO.A"), None),
        (AUDIT, audit("$JS.API.CONSUMER.MSG.NEXT.A.C"), None),
        (AUDIT, audit("$JS.API.CONSUMER.CREATE.A"), None),
        (AUDIT, b"{broken", None),
        (
            "$JS.EVENT.ADVISORY.STREAM.UPDATED.A",
            b'{"stream":"A","domain":"leaf"}',
            AdvisoryEvent("leaf", "A"),
        ),
        (
            "$JS.EVENT.ADVISORY.CONSUMER.PAUSE.A.C",
            b'{"stream":"A","consumer":"C"}',
            AdvisoryEvent("", "A", "C"),
        ),
        ("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.A", b'{"stream":"A"}', None),
        ("$JS.EVENT.ADVISORY.STREAM.DELETED.A", b"[]", None),
    ]:
        assert parse_advisory(subject, data) == event, subject


def test_behind_a_leafnode_only_the_link_is_known() -> None:
    """The actor of a request over a leafnode is not the user of the link."""
    event = parse_advisory(
        AUDIT, audit("$JS.API.STREAM.UPDATE.A", client=CLIENT | {"kind": "Leafnode", "user": ""})
    )

    assert event is not None
    assert str(event.actor) == "unknown user (nats CLI) from 10.0.0.1 over a leafnode"


NOON = datetime(2026, 1, 31, 12, 3, 20, tzinfo=UTC)


def test_schedules() -> None:
    """Jitter delays a check and never advances it; the longest wait is known."""
    jitter = Interval(60 * SECOND, 30 * SECOND, random.Random(1))
    due = [(jitter.next_after(NOON) - NOON).total_seconds() for _ in range(200)]

    assert Interval(300 * SECOND).next_after(NOON) == NOON + timedelta(minutes=5)
    assert min(due) >= 60
    assert 85 < max(due) <= 90
    assert Cron("*/10 * * * *").next_after(NOON) == datetime(2026, 1, 31, 12, 10, tzinfo=UTC)
    assert Cron("*/10 * * * *").next_after(datetime(2026, 1, 31, 12, 10, tzinfo=UTC)) == datetime(
        2026, 1, 31, 12, 20, tzinfo=UTC
    )
    assert (
        Interval(300 * SECOND, 10 * SECOND).period,
        Cron("0 8,20 * * *").period,
        Cron("*/10 * * * *").period,
    ) == (310, 43_200, 600)


@pytest.mark.parametrize("line", ["* * * *", "61 * * * *", "often", "0 0 31 2 *"])
def test_lines_that_are_no_crontab(line: str) -> None:
    """Lines that are no crontab line, and dates that never come, are refused."""
    with pytest.raises(ValueError, match=r"crontab|never"):
        Cron(line)


def test_listen_addresses() -> None:
    """All interfaces, one IPv4 address and one IPv6 address are accepted."""
    assert [parse_listen_address(text) for text in (":9464", "127.0.0.1:80", "[::1]:9464")] == [
        (None, 9464),
        ("127.0.0.1", 80),
        ("::1", 9464),
    ]
    for text in ("9464", ":http", ":99999"):
        with pytest.raises(ValueError, match="PORT"):
            parse_listen_address(text)


A, B, C = (Address.parse(text) for text in ("hub/stream/A", "hub/stream/B", "hub/consumer/A/C"))


def state(serial: int = 1, pending: tuple[Address, ...] = (), **limits: int) -> State:
    """A state with the streams A and B."""
    entries = {
        address: Entry(
            {"max_msgs": limits.get(address.stream, -1)}, {}, "then", "created", False, [], ""
        )
        for address in (A, B)
    }
    return State(
        "shop",
        None,
        "l",
        serial,
        resources=entries,
        pending={str(a): {"op": "stream.update"} for a in pending},
    )


def doubtful(before: State, after: State, *, is_running: bool = True) -> list[Address]:
    """Return which of A, B and the consumer of A a check may misjudge."""
    is_doubtful = find_doubtful(before, after, is_running=is_running)
    return [address for address in (A, B, C) if is_doubtful(str(address))]


def test_what_an_apply_makes_doubtful() -> None:
    """A check is doubtful while the state changes, and after that for what is being changed."""
    busy = state(2, pending=(A,))

    assert doubtful(state(), state()) == []
    assert doubtful(state(1), state(2)) == [A, B, C]
    assert doubtful(state(1), state(1, A=5)) == [A, B, C]
    assert doubtful(state(2), busy) == [A, B, C]
    assert doubtful(busy, busy) == [A, C]
    assert doubtful(busy, busy, is_running=False) == []


def alerts_of(drift: Drift) -> list[Finding]:
    """Return all alerts of a document."""
    return build_alerts(drift, ALL)


def test_every_finding_is_an_alert_with_an_id_of_its_own() -> None:
    """Each finding of each kind is one alert; healthy and excused flows are none."""
    drift = samples.drift()
    drift.unmanaged.append(
        Unmanaged("hub/consumer/A/x7", "consumer", 0, None, None, ephemeral=True)
    )
    listed = alerts_of(drift)

    assert [s.kind for s in listed] == [
        "changed",
        "missing",
        "replication",
        "unmanaged",
        "unmanaged",
        "offline",
    ]
    assert len({s.id for s in listed}) == 6
    assert [s.id for s in alerts_of(samples.drift())] == [s.id for s in listed]
    assert not {s.id for s in alerts_of(replace(samples.drift(), environment="staging"))} & {
        s.id for s in listed
    }
    assert [s.kind for s in build_alerts(drift, {"missing"})] == ["missing"]


def as_read(event: AlertEvent) -> Any:
    """A notification as its receiver reads it."""
    return orjson.loads(dumps(event.to_json()))


def covers_everything(_: Finding) -> bool:
    """A check that covered everything."""
    return True


def unmanaged_streams(count: int) -> Drift:
    """A document with so many unmanaged streams and nothing else."""
    found = [Unmanaged(f"hub/stream/S{n:02}", "stream", 0, None, None) for n in range(count)]
    return replace(samples.drift(), resource_drift=[], replication=[], offline=[], unmanaged=found)


def test_unmanaged_resources_are_opened_by_one_event() -> None:
    """One event names ten of them and holds the alert of each, which is resolved on its own."""
    register = AlertRegister("shop", "prod")
    stamp = "2026-01-31T12:00:00Z"
    opened = register.update(alerts_of(unmanaged_streams(12)), covers_everything, stamp)
    over = register.update(alerts_of(unmanaged_streams(11)), covers_everything, stamp)

    (group,) = group_unmanaged(opened)

    assert group.alerts == tuple(event.alert for event in opened)
    assert (group.alert.kind, group.alert.address) == ("unmanaged", "workspace")
    assert group.text.startswith(
        "shop, prod: cosmetic: workspace has 12 unmanaged resources: hub/stream/S00; hub/stream/S01;"
    )
    assert "hub/stream/S09; and 2 more [" in group.text
    assert group_unmanaged(over) == over
    assert [event.alert for event in over] == [group.alerts[-1]]
    validator("notification").validate(as_read(group))


def test_events_that_are_not_grouped() -> None:
    """One unmanaged resource, one with a known user, and other kinds keep their own event."""
    alone = AlertRegister("shop", None).update(
        alerts_of(unmanaged_streams(1)), covers_everything, "t1"
    )
    by_user = AlertRegister("shop", None).update(
        alerts_of(unmanaged_streams(2)), covers_everything, "t1", {"hub/stream/S00": ACTOR}
    )
    mixed = AlertRegister("shop", None).update(alerts_of(samples.drift()), covers_everything, "t1")

    assert group_unmanaged(alone) == alone
    assert group_unmanaged(by_user) == by_user
    kinds = [event.alert.kind for event in group_unmanaged(mixed)]
    assert kinds == ["changed", "missing", "replication", "unmanaged", "offline"]


def test_only_changes_of_alerts_are_reported() -> None:
    """An alert is reported when it opens, changes and is resolved, and not in between."""
    register = AlertRegister("shop", "prod")
    first = register.update(
        alerts_of(samples.drift()), covers_everything, "t1", {"hub/stream/ORDERS": ACTOR}
    )
    again = register.update(alerts_of(samples.drift()), covers_everything, "t2")
    other = samples.drift()
    other.resource_drift[0].change.fields[0].after = 5
    changed = register.update(alerts_of(other), covers_everything, "t3")
    over = register.update([], covers_everything, "t4")

    assert [n.event for n in first] == ["opened"] * 6
    assert (first[0].by, str(ACTOR)) == (ACTOR, "acc (nats CLI) from 10.0.0.1")
    assert again == []
    assert [(n.event, n.since) for n in changed] == [("changed", "t1")]
    assert [n.event for n in over] == ["resolved"] * 6
    assert len({n.id for n in [*first, *changed, *over]}) == 13
    assert register.open == {}


def test_alerts_outside_a_check_stay_open() -> None:
    """A check of one resource resolves no other alert."""
    register = AlertRegister("shop", "prod")
    register.update(alerts_of(samples.drift()), covers_everything, "t1")
    notifications = register.update([], lambda s: s.address == "hub/stream/ORDERS", "t2")

    assert [n.alert.address for n in notifications] == ["hub/stream/ORDERS"]
    assert len(register.open) == 5


def test_notices_fit_their_schema() -> None:
    """Each notification matches `notification-v1.json`, with and without an actor."""
    register = AlertRegister("shop", None)
    notifications = register.update(
        alerts_of(samples.drift()),
        covers_everything,
        "2026-01-31T12:00:00Z",
        {"hub/stream/ORDERS": ACTOR},
    )
    notifications += register.update([], covers_everything, "2026-01-31T12:00:01Z")
    for notice in notifications:
        validator("notification").validate(as_read(notice))

    assert notifications[0].text.startswith(
        "shop: destructive: hub/stream/ORDERS was changed: max_age: "
    )
    assert format_fields(samples.drift().resource_drift[1]) == ()
