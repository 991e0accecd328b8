from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.plan_options import build_plan_options
from jsplan.errors import PlanError, SandboxError, UsageError
from jsplan.rehearsal import layout
from jsplan.render import plan_text
from jsplan.sandbox import Sandbox, versions
from jsplan.workflows.plan import load_plan, save_plan
from tests.rehearsal.tampered_plans import (
    create_on_server,
    leftover_files,
    refusals,
    rehearse_tampered,
    temporary_folder,
    with_fields,
)
from tests.render.texts import text_of
from tests.support.api_audit import audit_requests, writes
from tests.support.raw import Raw, api, publish
from tests.support.workspaces import Space, hub_leaf_space, new_space

if TYPE_CHECKING:
    from tests.conftest import MakeHubLeaf, MakeServer

ALL_KINDS: dict[str, Any] = {
    "streams": [
        {
            "name": "ORDERS",
            "domain": "hub",
            "subjects": ["orders.>"],
            "consumers": [{"name": "NEW", "ack_policy": "explicit"}],
        },
        {"name": "COPY", "domain": "leaf", "mirror": {"name": "ORDERS", "domain": "hub"}},
        {"name": "SALES", "domain": "leaf", "subjects": ["sales.>"]},
        {"name": "ALL", "domain": "hub", "sources": [{"name": "SALES", "domain": "leaf"}]},
    ],
    "kv": [{"bucket": "CONFIG", "domain": "hub", "history": 5}],
    "object_stores": [{"bucket": "ASSETS", "domain": "leaf"}],
}


@pytest.mark.matrix
def test_a_sound_plan_is_rehearsed_without_touching_the_real_servers(
    clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """Every step is tried on a hub and a leaf of this version; the real ones are only read."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(**ALL_KINDS)

    with audit_requests(clean_hub_leaf) as seen, temporary_folder(tmp_path / "tmp"):
        plan = space.plan(rehearse=True)

    version = versions.read_version(clean_hub_leaf.binary)
    assert writes(seen) == []
    assert leftover_files(tmp_path / "tmp") == []
    assert {path.name for path in tmp_path.iterdir()} == {"jsplan.yaml", "tmp"}
    assert plan.rehearsal is not None
    assert {(s.domain, s.version) for s in plan.rehearsal.servers} == {
        ("hub", version),
        ("leaf", version),
    }
    assert (plan.errored, plan.applyable, len(plan.steps), plan.diagnostics) == (False, True, 7, [])
    assert f"Rehearsed on nats-server {version}: 7 steps, none refused.\n" in text_of(
        lambda console: plan_text.render(plan, console)
    )


@pytest.mark.matrix
def test_entries_are_planned_and_not_rehearsed(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """The rehearsal tries the step of the bucket; that of its entry stays in the plan."""
    bucket = {"bucket": "CONFIG", "domain": "hub", "entries": {"a": "one"}}
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(kv=[bucket])
    plan = space.plan(rehearse=True)
    assert plan.rehearsal is not None
    assert (plan.rehearsal.steps, plan.errored, plan.applyable) == (1, False, True)
    assert [step.op for step in plan.steps] == ["stream.create", "kv_entry.create"]


@pytest.mark.since_2_12
@pytest.mark.matrix
def test_changes_and_deletions_are_rehearsed_from_the_live_objects(
    clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """Updates, replacements and deletions are rehearsed from the live configuration."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(**ALL_KINDS)
    space.apply()
    changed = [s | {"description": "changed"} for s in ALL_KINDS["streams"]]
    changed[0] |= {"storage": "memory", "lifecycle": {"on_replace": "recreate"}}
    space.write(**ALL_KINDS | {"streams": changed, "object_stores": []})

    allowed = (
        "DELETES_STREAM",
        "BREAKS_REPLICATION",
        "REMOVES_SUBJECTS",
        "LOSES_CONSUMER_POSITION",
        "DELETES_CONSUMER",
    )
    plan, result = space.apply(rehearse=True, allow_hazards=allowed)

    assert plan.rehearsal is not None
    assert (plan.rehearsal.refused, plan.rehearsal.blocked, plan.rehearsal.not_tried) == (0, 0, 0)
    assert result.exit_code == 0
    assert space.plan(destroy=True, rehearse=True).errored is False


@pytest.mark.since_2_12
@pytest.mark.matrix
def test_replacing_a_consumer_with_its_position_is_rehearsed_without_data(
    clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """The replacement of a consumer with a position is rehearsed on an empty stream."""
    hub, consumer = clean_hub_leaf["hub"], {"name": "C", "ack_policy": "explicit"}
    stream = {"name": "A", "domain": "hub", "subjects": ["a"]}
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(
        streams=[stream | {"consumers": [consumer]}]
    )
    space.apply()
    publish(hub.url, hub.user, hub.password, "a", *[b"x"] * 10)
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.subscribe("acks")
        raw.publish("$JS.API.CONSUMER.MSG.NEXT.A.C", b'{"batch":4,"no_wait":true}', reply="acks")
        for _ in range(4):
            raw.publish(raw.next_reply(), b"+ACK")
        raw.flush()
    space.write(streams=[stream | {"consumers": [consumer | {"max_waiting": 10}]}])

    sound, refused = (
        rehearse_tampered(space, {}),
        rehearse_tampered(
            space,
            {"hub/consumer/A/C": with_fields({"filter_subject": "a", "filter_subjects": ["b"]})},
        ),
    )

    assert [step.op for step in sound.steps] == ["consumer.replace"]
    assert sound.rehearsal is not None
    assert (sound.rehearsal.refused, sound.rehearsal.not_tried) == (0, 0)
    assert refusals(refused) == {"hub/consumer/A/C": "10136"}


def test_a_saved_plan_has_its_rehearsal(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """A saved plan has its rehearsal, and is applied like any other."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(**ALL_KINDS)
    plan = space.plan(rehearse=True)
    save_plan(plan, tmp_path / "p")

    assert load_plan(tmp_path / "p").rehearsal == plan.rehearsal
    assert plan.options["rehearse"] is True
    assert space.apply_saved(plan).exit_code == 0


def test_a_plan_that_writes_nothing_needs_no_server(
    clean_hub_leaf: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan without a write starts no server and needs none."""
    monkeypatch.setenv(versions.BINARY_VARIABLE, "/nowhere/nats-server")

    plan = hub_leaf_space(tmp_path, clean_hub_leaf).write().plan(rehearse=True)

    assert plan.rehearsal is None


@pytest.mark.usefixtures("newer_servers")
def test_a_refusal_stops_an_apply_before_anything_is_changed(
    clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """`apply --rehearse` ends with the errors of the plan and changes nothing."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(
        streams=[
            {"name": "FINE", "domain": "leaf"},
            {"name": "NEWER", "domain": "hub", "x_raw": {"from_the_future": 1}},
        ]
    )

    with (
        audit_requests(clean_hub_leaf) as seen,
        pytest.raises(PlanError, match="nothing was changed"),
    ):
        space.apply(rehearse=True)

    assert writes(seen) == []


def test_everything_in_the_account_is_rebuilt(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Hundreds of unmanaged streams overlap in the rehearsal as on the real servers."""
    create_on_server(
        clean_hub_leaf["hub"],
        *((f"STREAM.CREATE.S{n}", {"name": f"S{n}", "subjects": [f"s.{n}"]}) for n in range(300)),
    )
    names = [f"A{n}" for n in range(0, 300, 50)]
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(
        streams=[{"name": name, "domain": "hub"} for name in names]
    )

    plan = rehearse_tampered(
        space,
        {f"hub/stream/{name}": with_fields({"subjects": [f"s.{name[1:]}"]}) for name in names},
    )

    assert refusals(plan) == {f"hub/stream/{name}": "10065" for name in names}


# --- Live streams that no server would create


@pytest.mark.matrix
def test_odd_live_objects_are_rebuilt(
    clean_hub_leaf: Sandbox, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """Sealed, promoted, orphaned and paused objects are rebuilt for the rehearsal."""
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password, timeout=30) as raw:
        raw.create("SEALED", max_age=10**12)
        raw.api_ok("$JS.API.STREAM.UPDATE.SEALED", {"name": "SEALED", "sealed": True})
        raw.create("DIRECT")
        raw.api_ok("$JS.API.STREAM.UPDATE.DIRECT", {"name": "DIRECT", "mirror_direct": True})
        raw.create("MANY")
        if server_version < (2, 14):
            raw.api_ok("$JS.API.STREAM.UPDATE.MANY", {"name": "MANY", "num_replicas": 3})
        raw.create("ZERO")
        raw.create("FIRST", sources=[{"name": "ZERO"}])
        raw.create("ALSO", mirror={"name": "FIRST"})
        raw.create("LOST", mirror={"name": "GONE", "external": {"api": "$JS.absent.API"}})
        raw.consumer("DIRECT", "STAYS")
        raw.consumer("DIRECT", "BRIEF", durable_name="", inactive_threshold=10**9 * 3600)
        if server_version >= (2, 11):
            raw.api_ok(
                "$JS.API.CONSUMER.PAUSE.DIRECT.STAYS", {"pause_until": "2099-01-01T00:00:00Z"}
            )
    names = ("SEALED", "DIRECT", "MANY", "ZERO", "FIRST", "ALSO", "LOST")
    configs = {
        name: api(hub.url, hub.user, hub.password, f"$JS.API.STREAM.INFO.{name}")["config"]
        for name in names
    }
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(
        streams=[
            {"name": name, "domain": "hub", "config_file": f"{name}.json", "description": "adopted"}
            for name in names
        ],
        consumers=[
            {
                "name": "STAYS",
                "domain": "hub",
                "stream": "DIRECT",
                "ack_policy": "explicit",
                "description": "adopted",
            },
            {
                "name": "BRIEF",
                "domain": "hub",
                "stream": "DIRECT",
                "ack_policy": "explicit",
                "description": "adopted",
                "durable_name": None,
                "inactive_threshold": "1h",
            },
        ],
    )
    for name, config in configs.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config), "utf-8")

    plan = rehearse_tampered(space, {}, adopt=True)

    assert refusals(plan) == {}
    assert [d for d in plan.diagnostics if d.code.startswith("JS46")] == []
    assert plan.rehearsal is not None
    assert plan.rehearsal.not_tried == 0
    assert {step.address for step in plan.steps if step.op.endswith("update")} >= {
        f"hub/stream/{name}" for name in names
    }


# --- Other versions


def test_the_nearest_installed_version_is_used_and_named(
    make_hub_leaf: MakeHubLeaf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest installed version is used, with a warning per domain if it differs."""
    old, new = versions.VERSIONS[2], versions.VERSIONS[-1]
    space = hub_leaf_space(tmp_path, make_hub_leaf(version=old)).write(**ALL_KINDS)
    monkeypatch.setenv(versions.BINARY_VARIABLE, str(versions.ensure_version(new)))
    other = space.plan(rehearse=True)
    monkeypatch.delenv(versions.BINARY_VARIABLE)
    same = space.plan(rehearse=True)

    assert other.rehearsal is not None
    assert {s.version for s in other.rehearsal.servers} == {new}
    assert [(d.code, d.severity, d.address) for d in other.diagnostics] == [
        ("JS463", "warning", f"{k}/**") for k in ("hub", "leaf")
    ]
    assert f"the nearest at hand to {old}" in other.diagnostics[0].summary
    assert same.rehearsal is not None
    assert {s.version for s in same.rehearsal.servers} == {old}
    assert same.diagnostics == []


def test_another_release_is_rehearsed_on_request(make_server: MakeServer, tmp_path: Path) -> None:
    """With `--server-version` all servers are of that release, and what it refuses is an error."""
    server = make_server(domain="hub")
    connections, domains = {"hub": {"url": server.url}}, {"hub": {"connection": "hub"}}
    base = {"jsplan": 1, "workspace": "test", "connections": connections, "domains": domains}
    space = Space(tmp_path, base).write(
        streams=[{"name": "FAST", "allow_batched": True}, {"name": "KNOWN", "subjects": ["k"]}]
    )

    plan = space.plan(rehearse=True, server_version="2.12")

    assert plan.rehearsal is not None
    assert {s.version for s in plan.rehearsal.servers} == {"2.12.8"}
    assert plan.errored
    assert {d.address for d in plan.diagnostics if d.code == "JS460"} == {"hub/stream/FAST"}
    with pytest.raises(UsageError, match="is for a rehearsal"):
        build_plan_options({"server_version": "2.12"})


def test_objects_that_an_old_server_cannot_have_are_left_out(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that an old server cannot have are left out with a warning, with their steps."""
    server = make_server(domain="hub", version=versions.VERSIONS[-1])
    create_on_server(server, ("STREAM.CREATE.FAST", {"name": "FAST", "allow_batched": True}))
    monkeypatch.setenv(versions.BINARY_VARIABLE, str(versions.ensure_version(versions.VERSIONS[2])))
    connections, domains = {"hub": {"url": server.url}}, {"hub": {"connection": "hub"}}
    space = new_space(tmp_path, connections=connections, domains=domains)
    space.write(
        streams=[
            {
                "name": "FAST",
                "allow_batched": True,
                "description": "adopted",
                "consumers": [{"name": "OF_FAST"}],
            },
            {"name": "ALSO", "allow_batched": True},
            {"name": "KNOWN"},
        ]
    )

    plan = rehearse_tampered(space, {}, adopt=True)

    left_out = {d.address: d.severity for d in plan.diagnostics if d.code == "JS462"}
    assert plan.errored is False
    assert refusals(plan) == {}
    assert {"hub/stream/FAST", "hub/stream/ALSO"} <= left_out.keys()
    assert set(left_out.values()) == {"warning"}
    assert plan.rehearsal is not None
    assert (plan.rehearsal.steps, plan.rehearsal.not_tried) == (4, 3)
    assert len(plan.steps) == 4


# --- Failures of the rehearsal


def test_without_any_server_the_error_says_how_to_install_one(
    clean_hub_leaf: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an embedded server the error says how to install one."""
    monkeypatch.delenv(versions.BINARY_VARIABLE)
    monkeypatch.setenv(versions.CACHE_VARIABLE, str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(versions, "_wheel_paths", list)

    with pytest.raises(
        SandboxError, match="the rehearsal failed: there is no nats-server"
    ) as error:
        hub_leaf_space(tmp_path, clean_hub_leaf).write(**ALL_KINDS).plan(rehearse=True)

    assert "-m pip install" in str(error.value.hint)


def test_a_server_that_does_not_start_is_an_error_of_the_rehearsal(
    clean_hub_leaf: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends at once fails the rehearsal with its last output."""
    broken = tmp_path / "nats-server"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "nats-server: v2.15.1" || echo "nats-server: out of luck"\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv(versions.BINARY_VARIABLE, str(broken))

    expected = r"the rehearsal failed: nats-server hub .*out of luck"
    with temporary_folder(tmp_path / "tmp"), pytest.raises(SandboxError, match=expected) as error:
        hub_leaf_space(tmp_path, clean_hub_leaf).write(**ALL_KINDS).plan(rehearse=True)

    assert error.value.exit_code == 1
    assert leftover_files(tmp_path / "tmp") == []


# --- Large fleets and short-lived consumers


def test_a_fleet_is_rehearsed_in_turns(
    clean_hub_leaf: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one server at a time, every step is still tried."""
    monkeypatch.setattr(layout, "MAX_SERVERS", 1)
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(**ALL_KINDS)

    plan = rehearse_tampered(
        space,
        {
            "leaf/stream/COPY": with_fields({"subjects": ["a"]}),
            "hub/stream/ORDERS": with_fields({"num_replicas": 3}),
        },
    )

    assert refusals(plan) == {"leaf/stream/COPY": "10034", "hub/stream/ORDERS": "10074"}
    assert plan.rehearsal is not None
    assert (plan.rehearsal.steps, plan.rehearsal.refused, plan.rehearsal.not_tried) == (7, 2, 0)


def test_a_domain_of_unknown_kind_is_a_cluster(clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """A domain that may be a cluster is rehearsed as one, with a warning."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf).write(
        streams=[{"name": "A", "domain": "leaf", "num_replicas": 3}]
    )

    plan = space.plan(rehearse=True)

    assert refusals(plan) == {}
    assert [(d.code, d.address, d.summary[:43]) for d in plan.diagnostics] == [
        ("JS462", "leaf/**", "not rehearsed: whether the domain is a clus")
    ]


def test_a_consumer_that_expires_in_the_rehearsal_is_no_refusal(
    clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """A consumer that expires during the rehearsal is no refusal."""
    hub = clean_hub_leaf["hub"]
    brief = {"name": "BRIEF", "ack_policy": "explicit", "inactive_threshold": "60ms"}
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(
        streams=[{"name": "A", "domain": "hub"}],
        consumers=[
            brief | {"domain": "hub", "stream": "A", "durable_name": None, "description": "changed"}
        ],
    )
    create_on_server(hub, ("STREAM.CREATE.A", {"name": "A"}))
    live = {"stream_name": "A", "config": brief | {"inactive_threshold": 60_000_000}}
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.subscribe("waits")
        raw.api_ok("$JS.API.CONSUMER.CREATE.A.BRIEF", live)
        raw.publish(
            "$JS.API.CONSUMER.MSG.NEXT.A.BRIEF",
            json.dumps({"batch": 1, "expires": 30 * 10**9}).encode(),
            reply="waits",
        )
        raw.flush()
        plan = rehearse_tampered(space, {}, adopt=True)

    assert refusals(plan) == {}
    assert plan.errored is False
    assert {step.op for step in plan.steps} == {"state.import", "consumer.update"}
