"""Fleets: one declaration for many domains, offline domains and reinstalled domains."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from jsplan.errors import ApiTimeoutError, ConnectError, NoRespondersError, RefusedError
from jsplan.jetstream import DomainApi
from jsplan.options import DriftOptions, PlanOptions
from jsplan.sandbox import Sandbox, shapes
from jsplan.workflows.drift import drift
from tests.conftest import PROGRAM
from tests.support.fleets import Fleet, fleet_space, sales_streams
from tests.support.raw import Raw
from tests.support.simulated_kill import SimulatedKill, kill_at_request
from tests.support.workspaces import RecordingObserver, Space, changes, new_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan


def found(plan: Plan, code: str) -> list[Any]:
    return [d for d in plan.diagnostics if d.code == code]


def test_a_new_store_is_one_plan(fleet: Fleet, tmp_path: Path) -> None:
    """A new domain gets its stream and becomes a source of the aggregate in one plan."""
    space, new = fleet_space(tmp_path, fleet), fleet.stores[-1]
    whole = space.base["domains"]
    space.base["domains"] = {name: domain for name, domain in whole.items() if name != new}
    space.write(streams=sales_streams()).apply()
    space.base["domains"] = whole
    plan, result = space.write(streams=sales_streams()).apply()

    assert (result.exit_code, changes(plan)) == (
        0,
        {"hub/stream/ALL_SALES": ["update"], f"{new}/stream/SALES": ["create"]},
    )
    paths = [
        f.path
        for c in plan.resource_changes
        if c.address == "hub/stream/ALL_SALES"
        for f in c.change.fields
    ]
    assert paths == [f'sources["SALES@$JS.{new}.API"]']
    assert not space.plan().has_changes
    for store in fleet.stores:
        fleet.publish(store, f"sales.{store}.x", 3)
    fleet.wait("hub", "ALL_SALES", 3 * len(fleet.stores))


def test_many_silent_domains_are_one_wait(fleet: Fleet, tmp_path: Path) -> None:
    """Several offline domains cost one timeout; their resources are deferred."""
    space = fleet_space(tmp_path, fleet)
    space.write(streams=sales_streams()).apply()
    paused, stopped = fleet.stores[:3], fleet.stores[3]
    for name in paused:
        fleet.sandbox[name].pause()
    fleet.sandbox[stopped].kill()
    space.write(streams=[*sales_streams(max_age="1d"), {"name": "MORE", "domain": "label:edge"}])
    started = time.monotonic()
    plan = space.plan()
    took = time.monotonic() - started

    assert took < 8, "one timeout of a second, not one for each"
    assert {d.address for d in plan.deferred} == {
        f"{s}/stream/{n}" for s in (*paused, stopped) for n in ("SALES", "MORE")
    }
    rest = {
        f"{s}/stream/{n}": [a]
        for s in fleet.stores[4:]
        for n, a in (("SALES", "update"), ("MORE", "create"))
    }
    assert changes(plan) == rest
    result = space.apply()[1]
    for name in paused:
        fleet.sandbox[name].resume()
    fleet.sandbox.start()
    later = space.plan()

    assert (result.exit_code, result.summary["changed"], result.summary["added"]) == (0, 2, 2)
    assert set(changes(later)) == {d.address for d in plan.deferred}, (
        "a later plan has the deferred resources and nothing else"
    )
    assert all(actions in (["update"], ["create"]) for actions in changes(later).values())


class LeafOutage:
    """Takes a leaf offline at one moment of an apply: a request about its stream SALES."""

    def __init__(self, patch: pytest.MonkeyPatch, fleet: Fleet, name: str, moment: str) -> None:
        self._server, self._when, self.happened = (
            fleet.sandbox[name],
            moment.partition(" ")[0],
            False,
        )
        self._request, self._verb = DomainApi.request, moment.rpartition(" ")[2]

        async def request(api: DomainApi, verb: str, *rest: Any, **more: Any) -> dict[str, Any]:
            if (
                self.happened
                or api.read_only
                or (api.domain.key, verb) != (name, f"{self._verb}.SALES")
            ):
                return await self._request(api, verb, *rest, **more)
            return await self._check_request(api, verb, *rest, **more)

        patch.setattr(DomainApi, "request", request)

    async def _check_request(
        self, api: DomainApi, verb: str, *rest: Any, **more: Any
    ) -> dict[str, Any]:
        self.happened = True
        if self._when == "during":
            self._server.pause()
        elif self._when == "before":
            await self._kill_leaf(api)
        answer = await self._request(api, verb, *rest, **more)
        if self._when == "after":
            await self._kill_leaf(api)
        return answer

    async def _kill_leaf(self, api: DomainApi) -> None:
        """Kill the leaf and wait until the hub has noticed."""
        self._server.kill()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                await self._request(api, "INFO", timeout=1.0)
            except NoRespondersError:
                return
            except ApiTimeoutError:
                continue
        raise AssertionError("the hub did not notice that the leaf is gone")


@pytest.mark.parametrize(
    ("moment", "status"),
    [
        ("before STREAM.INFO", "skipped"), ("before STREAM.CREATE", "failed"),
        ("during STREAM.CREATE", "unknown"), ("after STREAM.CREATE", "unknown"),
    ],
)  # fmt: skip
def test_a_leaf_killed_during_an_apply(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, status: str
) -> None:
    """After a leaf is lost at a step, the other domains are done; the next apply completes it."""
    space, victim = fleet_space(tmp_path, fleet), fleet.stores[-1]
    if moment.startswith("before"):  # a leaf that dies slowly is no answer that comes late
        space.base["connections"]["hub"]["timeout"] = "60s"
    space.write(
        streams=[*sales_streams(), *({"name": f"S{n}", "domain": "label:edge"} for n in range(8))]
    )
    plan = space.plan()
    with monkeypatch.context() as patch:
        outage = LeafOutage(patch, fleet, victim, moment)
        result = space.apply_saved(plan, parallelism=1)
    ends = {step.address: step.status for step in result.steps}

    assert outage.happened
    assert result.exit_code == 6
    assert ends[f"{victim}/stream/SALES"] == status, result.steps
    assert {status for address, status in ends.items() if not address.startswith(victim)} == {
        "done"
    }
    assert ends["hub/stream/ALL_SALES"] == "done", (
        "a source may be created before its origin exists"
    )
    assert not [d.reason for d in result.deferred if "does not answer" in d.reason], (
        "the offline domain is reported once"
    )
    fleet.sandbox[victim].resume()
    fleet.sandbox.start()
    fleet.sandbox.wait_ready()
    _, result = space.apply()
    assert result.exit_code == 0
    assert not space.plan().has_changes


class PausingObserver(RecordingObserver):
    """Pauses leaves at the moment at which reading begins."""

    def __init__(self, fleet: Fleet, names: list[str]) -> None:
        super().__init__()
        self._servers = [fleet.sandbox[name] for name in names]

    def phase(self, text: str) -> None:
        """Pause the leaves."""
        if text.startswith("Reading"):
            for server in self._servers:
                server.pause()


def test_paused_and_killed_while_planning(fleet: Fleet, tmp_path: Path) -> None:
    """Leaves that are paused while they are read are deferred, and not read as deleted."""
    from jsplan.workflows import plan as planning  # noqa: PLC0415 - the module, whose function has the same name

    space = fleet_space(tmp_path, fleet)
    space.write(
        streams=[*sales_streams(), *({"name": f"S{n}", "domain": "label:edge"} for n in range(8))]
    ).apply()
    paused = fleet.stores[:2]
    plan = planning.plan(space.load, PlanOptions(), PausingObserver(fleet, paused))
    for name in paused:
        fleet.sandbox[name].resume()
    fleet.sandbox[fleet.stores[2]].kill()
    without = space.plan()
    fleet.sandbox.start()

    assert changes(plan) == {}
    assert {d.address.split("/")[0] for d in plan.deferred} == set(paused)
    assert (changes(without), len(without.deferred)) == ({}, 9)
    assert not space.plan().has_changes
    assert not space.plan().deferred


# --- offline for how long -------------------------------------------------------------------------


def test_offline_within_its_time(fleet: Fleet, tmp_path: Path) -> None:
    """Drift excuses an offline domain for the time in `may_be_offline`."""
    space, store = fleet_space(tmp_path, fleet, may_be_offline="1h"), fleet.stores[0]
    space.write(streams=[{"name": "SALES", "domain": "label:edge"}]).apply()
    fleet.sandbox[store].kill()
    first = drift(space.load, DriftOptions(), RecordingObserver())
    age_state(space, store, timedelta(hours=2))
    second, plan = drift(space.load, DriftOptions(), RecordingObserver()), space.plan()
    fleet.sandbox.start()

    assert (first.exit_code, [a["excused"] for a in first.offline]) == (0, [True])
    assert (second.exit_code, [a["excused"] for a in second.offline]) == (1, [False])
    assert [d.address for d in found(plan, "JS480")] == [f"{store}/**"]
    assert drift(space.load, DriftOptions(), RecordingObserver()).exit_code == 0


def age_state(space: Space, domain: str, by: timedelta) -> None:
    """Make the state older by this time."""
    path = space.folder / "state" / "test.json"
    text = path.read_text()
    before = datetime.now(UTC)
    stamps = {(before - timedelta(seconds=n)).strftime("%Y-%m-%dT%H:%M:%SZ") for n in range(120)}
    for stamp in stamps:
        text = text.replace(stamp, (before - by).strftime("%Y-%m-%dT%H:%M:%SZ"))
    path.write_text(text)
    assert domain in text


def test_an_aggregate_shows_when_a_leaf_was_online(fleet: Fleet, tmp_path: Path) -> None:
    """A leaf counts as seen when a stream of the hub last received messages from it."""
    space, store = fleet_space(tmp_path, fleet, may_be_offline="1h"), fleet.stores[0]
    space.write(streams=sales_streams()).apply()
    fleet.publish(store, f"sales.{store}.x")
    fleet.wait("hub", "ALL_SALES", 1)
    fleet.sandbox[store].kill()
    age_state(space, store, timedelta(hours=2))
    offline = drift(space.load, DriftOptions(), RecordingObserver()).offline
    fleet.sandbox.start()

    assert [a["excused"] for a in offline] == [True]


def test_limits_shorter_than_may_be_offline(fleet: Fleet, tmp_path: Path) -> None:
    """A limit of an origin that is shorter than `may_be_offline` is a warning."""
    space, store = fleet_space(tmp_path, fleet, may_be_offline="7d"), fleet.stores[0]
    without_downstream = {"name": "LONE", "domain": store, "max_age": "1d"}
    space.write(streams=[*sales_streams(max_msgs=20), without_downstream]).apply()
    fleet.publish(store, f"sales.{store}.x", 30)
    assert found(space.plan(), "JS481") == []

    short = space.write(streams=[*sales_streams(max_age="6d"), without_downstream]).plan()

    assert [d.address for d in found(short, "JS481")] == [
        f"{each}/stream/SALES" for each in sorted(fleet.stores)
    ]
    reported = found(short, "JS481")[0]
    assert "max_age is 6d" in reported.summary
    assert "may be offline for 1w" in reported.summary
    assert not short.errored


# --- which server answers -------------------------------------------------------------------------


def wipe(fleet: Fleet, store: str) -> None:
    """Restart the leaf with an empty disk."""
    server = fleet.sandbox[store]
    server.stop()
    shutil.rmtree(server.store_path)
    fleet.sandbox.start()


def test_a_reinstalled_leaf(fleet: Fleet, tmp_path: Path) -> None:
    """A reinstalled leaf stops an apply until it is confirmed, and then its mirror resumes."""
    space, store = fleet_space(tmp_path, fleet), fleet.stores[0]
    mirror = {"name": "BACKUP", "domain": "hub", "mirror": {"name": "SALES", "domain": store}}
    streams = [*sales_streams(), {"name": "STOCK", "domain": "label:edge"}, mirror]
    space.write(streams=streams).apply()
    fleet.publish(store, f"sales.{store}.x", 10)
    fleet.wait("hub", "BACKUP", 10)
    wipe(fleet, store)
    plan = space.plan()

    reported = found(plan, "JS305")
    assert [(d.address, d.severity) for d in reported] == [(f"{store}/**", "error")]
    assert reported[0].summary.startswith("DOMAIN_REINSTALLED")
    assert (plan.errored, plan.applyable) == (False, False)
    with pytest.raises(RefusedError, match="DOMAIN_REINSTALLED"):
        space.apply()
    plan, result = space.apply(reinstalled=(store,))
    fleet.publish(store, f"sales.{store}.x", 5)
    fleet.wait("hub", "BACKUP", 15)

    assert (result.exit_code, result.summary["added"]) == (0, 2)
    assert plan.options["reinstalled"] == [store]
    assert not space.plan().has_changes


def source_starts(fleet: Fleet) -> dict[str, int | None]:
    """Return the start of each source of the aggregate, by the domain that it reads."""
    sources = fleet.ask("STREAM.INFO.ALL_SALES")["config"].get("sources") or ()
    return {s["external"]["api"].split(".")[1]: s.get("opt_start_seq") for s in sources}


def test_a_leaf_that_comes_back_empty_in_the_middle_of_a_replacement(
    fleet: Fleet, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """The other leaves are attached without it; confirmed, it continues."""
    if server_version < (2, 15):
        return  # older servers detach no source
    lifecycle = {"lifecycle": {"on_replace": "preserve"}}
    space, lost = fleet_space(tmp_path, fleet), fleet.stores[0]
    space.write(streams=sales_streams(**lifecycle)).apply()
    for store in fleet.stores:
        fleet.publish(store, f"sales.{store}.x", 20)
    fleet.wait("hub", "ALL_SALES", 20 * len(fleet.stores))
    space.write(streams=sales_streams(persist_mode="async", **lifecycle))
    allowed = ("REMOVES_SUBJECTS", "IRREVERSIBLE", "BREAKS_REPLICATION")
    with kill_at_request("STREAM.DELETE.SALES", answered=True), suppress(SimulatedKill):
        space.apply(allow_hazards=allowed)
    assert source_starts(fleet) == {}
    wipe(fleet, lost)

    plan, result = space.apply(allow_hazards=allowed)
    assert (result.exit_code, plan.domains[lost]["reachable"]) == (0, False)
    assert f"jsplan apply --reinstalled {lost}" in plan.domains[lost]["reason"]
    assert source_starts(fleet).keys() >= set(fleet.stores[1:])
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert (found.exit_code, [i["address"] for i in found.interrupted]) == (
        2,
        [f"{lost}/stream/SALES"],
    )

    assert space.apply(reinstalled=(lost,), allow_hazards=allowed)[1].exit_code == 0
    assert source_starts(fleet) == dict.fromkeys(fleet.stores, 21)
    assert not space.plan().has_changes


def test_one_missing_stream_is_no_reinstalled_domain(fleet: Fleet, tmp_path: Path) -> None:
    """A single stream that was deleted outside jsplan is created again."""
    space, store = fleet_space(tmp_path, fleet), fleet.stores[0]
    space.write(streams=[{"name": name, "domain": "label:edge"} for name in "AB"]).apply()
    fleet.ask("STREAM.DELETE.A", store)
    plan = space.plan()

    assert changes(plan) == {f"{store}/stream/A": ["create"]}
    assert not found(plan, "JS305")


def two_servers(ports: shapes.PortOf) -> shapes.Layout:
    """Lay out a hub and two leaves with the same domain."""
    whole = shapes.hub_and_leaf(ports, leaves=("one", "two", "other"))
    return replace(
        whole,
        nodes=tuple(
            replace(node, domain="leaf") if node.name in ("one", "two") else node
            for node in whole.nodes
        ),
    )


@pytest.mark.matrix
def test_two_servers_for_one_domain(tmp_path: Path) -> None:
    """Two servers for one domain are an error, and the domain can be excluded."""
    with Sandbox(two_servers, binary=PROGRAM) as sandbox:
        hub = sandbox["hub"]
        for name in ("one", "two"):
            with Raw(sandbox[name].url, "acc", "acc") as raw:
                raw.create("X")
        connection = {"url": hub.url, "user": hub.user, "password": hub.password}
        domains = {name: {"connection": "hub"} for name in ("hub", "leaf", "other")}
        space = new_space(tmp_path, connections={"hub": connection}, domains=domains)
        space.write(streams=[{"name": "A", "domain": "*"}])
        with pytest.raises(
            ConnectError,
            match=r"more than one server answers for domain leaf \(one-server and two-server\)",
        ) as error:
            space.plan()
        assert error.value.hint is not None
        assert "--exclude 'leaf/**'" in error.value.hint
        assert set(changes(space.plan(excludes=("leaf/**",)))) == {"hub/stream/A", "other/stream/A"}
        sandbox["two"].stop()
        sandbox.wait_ready()
        assert len(changes(space.plan())) == 3
