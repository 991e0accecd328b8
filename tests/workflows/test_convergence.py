"""Promise 1: after a successful apply the next plan is empty."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config import load
from jsplan.options import DriftOptions
from jsplan.units import SECOND
from jsplan.workflows.drift import drift
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, left_to_do, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

Body = dict[str, Any]
HOUR = 3600 * SECOND
#: Values of fields: some are defaults, some equal a default, some are unusual.
STREAM: dict[str, list[Any]] = {
    "description": ["", "one\ntwo 'quoted' $${x} ü", None],
    "max_age": [0, HOUR, 90 * 24 * HOUR, 123456789123],
    "max_msgs": [0, -1, -7, 1, 1000],
    "max_bytes": [0, -1, 1 << 20],
    "max_msgs_per_subject": [0, -1, 3],
    "max_msg_size": [0, -1, 512],
    "max_consumers": [0, -1, 50],
    "discard": ["old", "new"],
    "storage": ["file", "memory"],
    "retention": ["limits", "interest", "workqueue"],
    "num_replicas": [None, 1],
    "no_ack": [False, True],
    "duplicate_window": [None, 0, SECOND, 7 * SECOND],
    "compression": ["none", "s2"],
    "allow_direct": [False, True],
    "allow_rollup_hdrs": [False, True],
    "deny_delete": [False, True],
    "deny_purge": [False, True],
    "placement": [None, {}, {"cluster": "", "tags": []}],
    "metadata": [{}, {"team": "a", "_nats.ver": "forged"}, {"team": "b", "x": ""}],
    "republish": [None, {"dest": "copy.>"}, {"src": ">", "dest": "copy.>", "headers_only": False}],
    "consumer_limits": [{}, {"max_ack_pending": 60}, {"inactive_threshold": 24 * HOUR}],
    "first_seq": [0, 1, 100],
}
CONSUMER: dict[str, list[Any]] = {
    "description": ["", "why"],
    "deliver_policy": ["all", "new", "last", "last_per_subject"],
    "ack_policy": ["none", "all", "explicit"],
    "ack_wait": [0, SECOND, 30 * SECOND],
    "max_deliver": [0, -1, -5, 4],
    "backoff": [[], [SECOND, 2 * SECOND, 3 * SECOND]],
    "filter_subjects": [[], ["x.1", "x.2"]],
    "replay_policy": ["instant", "original"],
    "sample_freq": [None, 100, "30%", "30"],
    "max_ack_pending": [0, 5, 50],
    "max_waiting": [0, 7, 512],
    "max_batch": [0, 9],
    "max_expires": [0, SECOND],
    "max_bytes": [0, 100],
    "headers_only": [False, True],
    "inactive_threshold": [0, HOUR],
    "num_replicas": [0, 1],
    "mem_storage": [False, True],
    "metadata": [{}, {"a": "b"}],
}


def pick_fields(values: dict[str, list[Any]], rng: random.Random, share: float = 0.4) -> Body:
    return {name: rng.choice(of) for name, of in values.items() if rng.random() < share}


def legal(body: Body) -> Body:
    """Remove values that the server refuses; other tests check the refusals."""
    age = body.get("max_age") or 0
    if age and (body.get("duplicate_window") or 0) > age:
        del body["duplicate_window"]
    if body.get("deny_purge"):
        body["allow_rollup_hdrs"] = False
    if body.get("retention") in ("workqueue", "interest") or body.get("storage") == "memory":
        body.pop("first_seq", None)
    return body


def consumer(rng: random.Random, stream: Body) -> Body:
    body = pick_fields(CONSUMER, rng)
    if body.get("backoff"):
        body |= {"max_deliver": 4, "ack_policy": "explicit"}
    if body.get("deliver_policy") == "last_per_subject":
        body["filter_subjects"] = ["x.1", "x.2"]
    if stream.get("retention") == "workqueue":
        body |= {"ack_policy": "explicit", "deliver_policy": "all"}
        body.pop("filter_subjects", None)
    if stream.get("consumer_limits"):
        body.pop("inactive_threshold", None)
        body["max_ack_pending"] = 5
        body["ack_policy"] = "explicit"
    return body


def workspace(seed: int, count: int = 30) -> list[Body]:
    rng = random.Random(seed)
    bodies = []
    for number in range(count):
        body = legal(pick_fields(STREAM, rng))
        body["lifecycle"] = {"on_replace": "recreate"}
        body["consumers"] = [
            {"name": "C", "lifecycle": {"on_replace": "recreate"}} | consumer(rng, body)
        ]
        bodies.append({"name": f"S{number:02}", "subjects": [f"s{number}.>"]} | body)
    return bodies


def differing(plan: Plan) -> dict[str, list[str]]:
    """Return the fields that the plan would change, without starts that are never sent."""
    fields = {
        c.address: [f.path for f in c.change.fields if f.effect != "ignored"]
        for c in plan.resource_changes
    }
    return {address: paths for address, paths in fields.items() if paths}


def require_converged(space: Space) -> None:
    """Require a plan without any step, and no drift."""
    plan = space.plan()
    assert differing(plan) == {}
    assert left_to_do(plan) == []
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []


EVERYTHING = (
    "DELETES_STREAM",
    "DELETES_MESSAGES",
    "DELETES_CONSUMER",
    "IRREVERSIBLE",
    "LOSES_CONSUMER_POSITION",
    "REMOVES_SUBJECTS",
)


def _without_limits(bodies: list[Body]) -> None:
    """Remove consumer_limits, which servers before 2.14 refuse wrongly (10069)."""
    for body in bodies:
        body.pop("consumer_limits", None)


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_from_any_configuration_to_any_other(
    seed: int, tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """Random configurations converge at the first apply, from one to the next."""
    space = single_space(tmp_path, server)
    for bodies in (workspace(seed), workspace(seed + 100), workspace(seed)):
        if server_version < (2, 14):
            _without_limits(bodies)
        _, result = space.write(streams=bodies).apply(allow_hazards=EVERYTHING)
        assert [(s.address, s.error) for s in result.steps if s.error] == []
        require_converged(space)


@pytest.mark.matrix
def test_unmanaged_streams_equal_their_own_description(tmp_path: Path, server: Server) -> None:
    """Unmanaged streams are adopted without a write, from their INFO or from their fields."""
    space = single_space(tmp_path, server)
    declared: list[Body] = []
    bodies = workspace(7)
    with Raw(server.url) as raw:
        for made in load(space.write(streams=bodies).load).resources.values():
            config = {name: value for name, value in made.body.items() if value is not None}
            stream, name = made.address.stream, made.address.name
            if made.address.kind == "stream":
                raw.api_ok(f"$JS.API.STREAM.CREATE.{name}", {"name": name} | config)
            else:
                payload = {
                    "stream_name": stream,
                    "config": {"name": "C", "durable_name": "C"} | config,
                }
                raw.api_ok(f"$JS.API.CONSUMER.CREATE.{stream}.C", payload)
        for body in bodies:
            path = tmp_path / f"{body['name']}.json"
            path.write_bytes(raw.request(f"$JS.API.STREAM.INFO.{body['name']}")[1])
            consumer_path = tmp_path / f"{body['name']}.C.json"
            consumer_path.write_bytes(raw.request(f"$JS.API.CONSUMER.INFO.{body['name']}.C")[1])
            consumers = [{"name": "C", "config_file": consumer_path.name}]
            declared.append(
                {"name": body["name"], "config_file": path.name, "consumers": consumers}
            )
    for wanted in (bodies, declared):
        plan, result = space.write(streams=wanted).apply()
        assert differing(plan) == {}
        assert result.exit_code == 0
        require_converged(space)
