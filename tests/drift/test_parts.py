"""The parts of the job that need no server: what advisories say, when checks are due, what is in doubt, what is news."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema
import pytest

from jsplan.address import Address
from jsplan.documents.drift import Drift, Unmanaged
from jsplan.documents.notice import Situation
from jsplan.documents.schema import schemas
from jsplan.drift.advisories import Event, Who, read
from jsplan.drift.doubt import AGAIN, DEAD, QUIET, STUCK, Doubt
from jsplan.drift.endpoint import place_of
from jsplan.drift.schedule import Cron, Every
from jsplan.drift.situations import Register, plainly, situations_of
from jsplan.state import State
from jsplan.state.document import Entry
from jsplan.units import SECOND
from tests.render import samples

AUDIT = "$JS.EVENT.ADVISORY.API"
CLIENT = {"user": "acc", "name": "nats CLI", "host": "10.0.0.1", "acc": "ACC", "kind": "Client"}
WHO = Who("acc", "nats CLI", "10.0.0.1", "ACC")
ALL = ("changed", "missing", "replication", "unmanaged", "offline", "check")


def audit(subject: str, answer: Any = None, **more: Any) -> bytes:
    """An audit advisory as a server writes it: no blanks, in its order of fields."""
    document = {"type": "io.nats.jetstream.advisory.v1.api_audit", "client": CLIENT, "subject": subject, "request": "{}"}
    return json.dumps(document | {"response": json.dumps(answer or {}), "domain": "hub"} | more, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("subject", "data", "event"),
    [
        (AUDIT, audit("$JS.API.STREAM.UPDATE.A"), Event("hub", "A", "", WHO)),
        (AUDIT, audit("$JS.API.CONSUMER.CREATE.A.C"), Event("hub", "A", "C", WHO)),
        (AUDIT, audit("$JS.API.CONSUMER.CREATE.A.C.orders.new"), Event("hub", "A", "C", WHO)),
        (AUDIT, audit("$JS.API.CONSUMER.DURABLE.CREATE.A.C"), Event("hub", "A", "C", WHO)),
        (AUDIT, audit("$JS.API.CONSUMER.CREATE.A", {"name": "x7"}), Event("hub", "A", "x7", WHO)),
        (AUDIT, audit("$JS.API.STREAM.DELETE.A", domain=None), Event("", "A", "", WHO)),
        (AUDIT, audit("$JS.API.STREAM.UPDATE.A", {"error": {"code": 400}}), None),
        (AUDIT, audit("$JS.API.STREAM.INFO.A"), None),
        (AUDIT, audit("$JS.API.CONSUMER.MSG.NEXT.A.C"), None),
        (AUDIT, audit("$JS.API.CONSUMER.CREATE.A"), None),
        (AUDIT, b"{broken", None),
        ("$JS.EVENT.ADVISORY.STREAM.UPDATED.A", b'{"stream":"A","domain":"leaf"}', Event("leaf", "A")),
        ("$JS.EVENT.ADVISORY.CONSUMER.PAUSE.A.C", b'{"stream":"A","consumer":"C"}', Event("", "A", "C")),
        ("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.A", b'{"stream":"A"}', None),
        ("$JS.EVENT.ADVISORY.STREAM.DELETED.A", b"[]", None),
    ],
)
def test_what_an_advisory_says(subject: str, data: bytes, event: Event | None) -> None:
    """Each request that changes something names it and who asked; those that read, were refused or cannot be read say nothing."""
    assert read(subject, data) == event


def test_behind_a_leafnode_only_the_link_is_known() -> None:
    """Who asked over a leafnode is told as that, not as the user of the link."""
    event = read(AUDIT, audit("$JS.API.STREAM.UPDATE.A", client=CLIENT | {"kind": "Leafnode", "user": ""}))

    assert event is not None
    assert str(event.who) == "somebody (nats CLI) from 10.0.0.1 over a leafnode"


NOON = datetime(2026, 1, 31, 12, 3, 20, tzinfo=UTC)


def test_schedules() -> None:
    """Every so long, or at the minutes of a crontab; with jitter later, never sooner; the longest wait is known."""
    jitter = Every(60 * SECOND, 30 * SECOND, random.Random(1))
    due = [(jitter.after(NOON) - NOON).total_seconds() for _ in range(200)]

    assert Every(300 * SECOND).after(NOON) == NOON + timedelta(minutes=5)
    assert min(due) >= 60
    assert 85 < max(due) <= 90
    assert Cron("*/10 * * * *").after(NOON) == datetime(2026, 1, 31, 12, 10, tzinfo=UTC)
    assert Cron("*/10 * * * *").after(datetime(2026, 1, 31, 12, 10, tzinfo=UTC)) == datetime(2026, 1, 31, 12, 20, tzinfo=UTC)
    assert (Every(300 * SECOND, 10 * SECOND).period, Cron("0 8,20 * * *").period, Cron("*/10 * * * *").period) == (310, 43_200, 600)


@pytest.mark.parametrize("line", ["* * * *", "61 * * * *", "often", "0 0 31 2 *"])
def test_what_is_no_crontab_line(line: str) -> None:
    """Four fields, minutes that are none, words, and days that never come are refused."""
    with pytest.raises(ValueError, match=r"crontab|never"):
        Cron(line)


def test_where_to_serve() -> None:
    """All addresses, one, and one of IPv6; nothing else."""
    assert [place_of(text) for text in (":9464", "127.0.0.1:80", "[::1]:9464")] == [(None, 9464), ("127.0.0.1", 80), ("::1", 9464)]
    for text in ("9464", ":http", ":99999"):
        with pytest.raises(ValueError, match="PORT"):
            place_of(text)


A, B, C = (Address.parse(text) for text in ("hub/stream/A", "hub/stream/B", "hub/consumer/A/C"))


def state(serial: int = 1, pending: tuple[Address, ...] = (), **limits: int) -> State:
    """A state with the streams A and B."""
    entries = {address: Entry({"max_msgs": limits.get(address.stream, -1)}, {}, "then") for address in (A, B)}
    return State("shop", None, "l", serial, resources=entries, pending={str(a): {"op": "stream.update"} for a in pending})


def test_a_look_between_equal_states_is_trusted() -> None:
    """Nothing moved and nothing is under way: what the look says is so."""
    doubted = Doubt().about(state(), state(), 100.0)

    assert not any(doubted(str(address)) for address in (A, B, C))


def test_what_moved_is_in_doubt_and_the_rest_for_a_moment() -> None:
    """Right after an apply moved A nothing is trusted; a second later all is, if no step is under way."""
    doubt = Doubt()
    first = doubt.about(state(1), state(2, A=5), 100.0)
    later = doubt.about(state(2, A=5), state(2, A=5), 100.0 + QUIET)

    assert all(first(str(address)) for address in (A, B, C))
    assert not any(later(str(address)) for address in (A, B, C))
    assert doubt.was_ours(A)
    assert not doubt.was_ours(A)


def test_a_step_under_way_is_waited_for_and_not_for_ever() -> None:
    """While a step is under way all is in doubt; when it moves no more only its own, with what is below it; in the end not even that."""
    doubt = Doubt()
    busy = state(2, pending=(A,))
    begun = doubt.about(state(1), busy, 100.0)
    dead = doubt.about(busy, busy, 100.0 + DEAD)
    stuck = doubt.about(busy, busy, 100.0 + STUCK)

    assert all(begun(str(address)) for address in (A, B, C))
    assert [dead(str(address)) for address in (A, B, C)] == [True, False, True]
    assert not any(stuck(str(address)) for address in (A, B, C))


def test_doubts_are_looked_at_less_and_less_often() -> None:
    """At once, then after a quarter of a second, then twice as long each time, up to a bound; what is settled no more."""
    doubt = Doubt()
    doubt.add([A], 0.0)
    waits, now = [], 0.0
    for _ in range(6):
        waits.append(doubt.wait(now))
        now += doubt.wait(now)
        assert doubt.due(now) == {A}
        doubt.held([A], now)
    doubt.settled([A])

    assert waits == [0, AGAIN[0], 0.5, 1.0, 2.0, AGAIN[1]]
    assert doubt.wait(now) == float("inf")


def found(drift: Drift) -> list[Situation]:
    """All situations of a document."""
    return situations_of(drift, ALL)


def test_every_finding_is_a_situation_with_an_id_of_its_own() -> None:
    """Changed, missing, replication, unmanaged and away; neither healthy flows, nor what is excused, nor what its server removes."""
    drift = samples.drift()
    drift.unmanaged.append(Unmanaged("hub/consumer/A/x7", "consumer", 0, None, None, ephemeral=True))
    listed = found(drift)

    assert [s.kind for s in listed] == ["changed", "missing", "replication", "unmanaged", "unmanaged", "offline"]
    assert len({s.id for s in listed}) == 6
    assert [s.id for s in found(samples.drift())] == [s.id for s in listed]
    assert not {s.id for s in found(replace(samples.drift(), environment="staging"))} & {s.id for s in listed}
    assert [s.kind for s in situations_of(drift, {"missing"})] == ["missing"]


def everywhere(_: Situation) -> bool:
    """A look that saw everything."""
    return True


def test_only_news_is_told() -> None:
    """The first time, when it is another difference, and when it is over; not again in between, whoever looks how often."""
    register = Register("shop", "prod")
    first = register.settle(found(samples.drift()), everywhere, "t1", {"hub/stream/ORDERS": WHO})
    again = register.settle(found(samples.drift()), everywhere, "t2")
    other = samples.drift()
    other.resource_drift[0].change.fields[0].after = 5
    changed = register.settle(found(other), everywhere, "t3")
    over = register.settle([], everywhere, "t4")

    assert [n.occasion for n in first] == ["opened"] * 6
    assert (first[0].by, first[0].by_words) == (WHO.to_json(), "acc (nats CLI) from 10.0.0.1")
    assert again == []
    assert [(n.occasion, n.since) for n in changed] == [("changed", "t1")]
    assert [n.occasion for n in over] == ["resolved"] * 6
    assert len({n.id for n in [*first, *changed, *over]}) == 13
    assert register.open == {}


def test_what_was_not_looked_at_stays_as_it_is() -> None:
    """A look at one thing resolves nothing else."""
    register = Register("shop", "prod")
    register.settle(found(samples.drift()), everywhere, "t1")
    notices = register.settle([], lambda s: s.address == "hub/stream/ORDERS", "t2")

    assert [n.situation.address for n in notices] == ["hub/stream/ORDERS"]
    assert len(register.open) == 5


def test_notices_fit_their_schema() -> None:
    """Each notice of each kind and occasion is what `notification-v1.json` says, with or without somebody who did it."""
    register = Register("shop", None)
    notices = register.settle(found(samples.drift()), everywhere, "2026-01-31T12:00:00Z", {"hub/stream/ORDERS": WHO})
    notices += register.settle([], everywhere, "2026-01-31T12:00:01Z")
    for notice in notices:
        jsonschema.validate(notice.to_json(), schemas()["notification-v1.json"])

    assert notices[0].text.startswith("shop: destructive: hub/stream/ORDERS was changed: max_age: ")
    assert plainly(samples.drift().resource_drift[1]) == ()
