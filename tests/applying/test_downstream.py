"""Downstream streams of a replaced stream receive each message once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.planning.replication import impact
from jsplan.workflows.drift import drift
from tests.applying.downstream_helpers import (
    PERMITTED,
    origin_config,
    publish,
    require_converged,
    wait_until_copied,
)
from tests.support.raw import Raw, encode
from tests.support.workspaces import RecordingObserver, hub_leaf_space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(180),
]  # older servers need more than ten seconds until a source resumes

BEFORE, AFTER = 1000, 100


@pytest.mark.since_2_12
@pytest.mark.parametrize("mode", ["recreate", "preserve"])
def test_an_aggregate_has_each_message_once(mode: str, tmp_path: Path, server: Server) -> None:
    """A stream with a source has each message once after the replacement of its origin."""
    space = single_space(tmp_path, server)
    downstream = {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config(mode, replaced=False), downstream]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", BEFORE)
        wait_until_copied(server, lambda: raw.count("G") == BEFORE)
        _, result = space.write(streams=[origin_config(mode, replaced=True), downstream]).apply(
            allow_hazards=PERMITTED
        )
        assert result.exit_code == 0, result
        require_converged(space)
        publish(raw, "o.x", AFTER)
        wait_until_copied(server, lambda: raw.count("G") >= BEFORE + AFTER)
        last = raw.state("O")["last_seq"]

        assert raw.count("O") == (BEFORE + AFTER if mode == "preserve" else AFTER)
        assert last == BEFORE + AFTER
        publish(raw, "o.end", 1)
        wait_until_copied(server, lambda: subject_of_last(raw, "G") == "o.end")
        assert raw.count("G") == BEFORE + AFTER + 1
        require_converged(space)


def subject_of_last(raw: Raw, stream: str) -> str:
    """Return the subject of the newest message of a stream."""
    last = raw.state(stream)["last_seq"]
    return str(raw.api_ok(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": last})["message"]["subject"])


@pytest.mark.since_2_12
def test_a_mirror_of_a_stream_that_lost_its_messages_resumes(
    tmp_path: Path, server: Server
) -> None:
    """A mirror continues at once, because the new origin begins after the old sequences."""
    space = single_space(tmp_path, server)
    mirror = {"name": "M", "mirror": {"name": "O"}}
    space.write(streams=[origin_config("recreate", replaced=False), mirror]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", BEFORE)
        wait_until_copied(server, lambda: raw.count("M") == BEFORE)
        space.write(streams=[origin_config("recreate", replaced=True), mirror]).apply(
            allow_hazards=PERMITTED
        )
        publish(raw, "o.x", AFTER)
        wait_until_copied(server, lambda: raw.count("M") == BEFORE + AFTER)

        assert raw.config("O")["first_seq"] == BEFORE + 1
        require_converged(space)


@pytest.mark.since_2_12
def test_a_stream_without_downstream_begins_at_one(tmp_path: Path, server: Server) -> None:
    """The sequences of a stream restart at 1 without downstream, or at `first_seq` of the files."""
    space = single_space(tmp_path, server)
    downstream = {"name": "G", "sources": [{"name": "P"}]}
    other = {"name": "P", "subjects": ["p.>"], "lifecycle": {"on_replace": "recreate"}}
    space.write(streams=[origin_config("recreate", replaced=False), other, downstream]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", 10)
        publish(raw, "p.x", 10)
        wait_until_copied(server, lambda: raw.count("G") == 10)
        recreated = other | {"storage": "memory", "first_seq": 500}
        plan, _ = space.write(
            streams=[origin_config("recreate", replaced=True), recreated, downstream]
        ).apply(allow_hazards=PERMITTED)

        assert {step.op for step in plan.steps} == {
            "stream.delete",
            "stream.create",
            "replication.verify",
        }
        assert "first_seq" not in raw.config("O")
        assert raw.config("P")["first_seq"] == 500


@pytest.mark.since_2_12
def test_sources_in_another_domain_and_with_filters(
    tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """Each source resumes at its own position, and a source of a namesake stays unchanged."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    downstream = {
        "name": "G",
        "domain": "hub",
        "sources": [
            {"name": "O", "domain": "leaf", "filter_subject": "o.a.>"},
            {"name": "O", "domain": "leaf", "filter_subject": "o.b.>"},
            {"name": "O", "filter_subject": "p.>"},
        ],
    }
    near = {"name": "O", "domain": "hub", "subjects": ["p.>"]}
    space.write(
        streams=[origin_config("preserve", replaced=False, domain="leaf"), near, downstream]
    ).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        for subject, count in (("o.a.1", 300), ("o.b.1", 200), ("o.c.1", 50), ("p.1", 100)):
            publish(raw, subject, count)
        wait_until_copied(hub, lambda: raw.count("G", "hub") == 600)
        plan, result = space.write(
            streams=[origin_config("preserve", replaced=True, domain="leaf"), near, downstream]
        ).apply(allow_hazards=PERMITTED)
        assert result.exit_code == 0, result
        for subject in ("o.a.1", "o.b.1", "p.1"):
            publish(raw, subject, 10)
        wait_until_copied(hub, lambda: raw.count("G", "hub") >= 630)
        require_converged(space)
        found = raw.api_ok("$JS.hub.API.STREAM.INFO.G")

    starts = {s["filter_subject"]: s.get("opt_start_seq") for s in found["config"]["sources"]}
    assert found["state"]["messages"] == 630
    if server_version >= (2, 15):
        assert starts == {"o.a.>": 301, "o.b.>": 501, "p.>": None}
        assert [s.op for s in plan.steps if s.op.startswith("sources.")] == [
            "sources.detach",
            "sources.attach",
        ]
    else:
        assert starts == {"o.a.>": None, "o.b.>": None, "p.>": None}


@pytest.mark.since_2_12
def test_a_source_that_never_copied_anything_resumes(tmp_path: Path, server: Server) -> None:
    """A source that never received a message starts where the files say."""
    space = single_space(tmp_path, server)
    downstream = {"name": "G", "sources": [{"name": "O", "filter_subject": "o.rare"}]}
    space.write(streams=[origin_config("preserve", replaced=False), downstream]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", 3)
        _, result = space.write(
            streams=[origin_config("preserve", replaced=True), downstream]
        ).apply(allow_hazards=PERMITTED)

        assert result.exit_code == 0, result
        assert [s["name"] for s in raw.config("G")["sources"]] == ["O"]
        require_converged(space)
        publish(raw, "o.rare", 2)
        wait_until_copied(server, lambda: raw.count("G") == 2)


def test_a_start_that_jsplan_set_is_kept_and_another_one_is_reported(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A start that jsplan set is kept through updates; another start in the files is a warning."""
    if server_version < (2, 15):
        return  # older servers detach no source
    space = single_space(tmp_path, server)
    downstream: dict[str, Any] = {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config("preserve", replaced=False), downstream]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", 10)
        wait_until_copied(server, lambda: raw.count("G") == 10)
    space.write(streams=[origin_config("preserve", replaced=True), downstream]).apply(
        allow_hazards=PERMITTED
    )
    plan, result = space.write(
        streams=[origin_config("preserve", replaced=True), downstream | {"description": "x"}]
    ).apply()
    assert [step.op for step in plan.steps] == ["stream.update"]
    assert result.exit_code == 0
    require_converged(space)
    other = downstream | {"description": "x", "sources": [{"name": "O", "opt_start_seq": 5}]}
    planned = space.write(streams=[origin_config("preserve", replaced=True), other]).plan()

    assert [d.code for d in planned.diagnostics] == ["JS412"]


@pytest.mark.since_2_12
def test_a_source_of_an_unmanaged_stream_is_a_hazard(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A source of an unmanaged stream is a blocking hazard from server 2.15 on."""
    space = single_space(tmp_path, server)
    downstream = {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config("preserve", replaced=False), downstream]).apply()
    with Raw(server.url) as raw:
        raw.create("THEIRS", sources=[{"name": "O"}])
        publish(raw, "o.x", 10)
        wait_until_copied(server, lambda: raw.count("G") == raw.count("THEIRS") == 10)
    plan = space.write(streams=[origin_config("preserve", replaced=True), downstream]).plan()
    found = [h for c in plan.resource_changes for h in c.hazards if h.code == "DUPLICATES_MESSAGES"]

    if server_version < (2, 15):
        assert found == []
    else:
        assert [(h.messages, h.causes, h.blocking) for h in found] == [
            (10, ["main/stream/O"], True)
        ]
        assert "main/stream/THEIRS stores up to 10 messages twice" in found[0].message


def test_a_source_that_the_plan_leaves_out_is_a_hazard(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A managed downstream stream that is excluded from the plan is a hazard."""
    if server_version < (2, 15):
        return  # older servers copy nothing again
    space = single_space(tmp_path, server)
    downstream = {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config("preserve", replaced=False), downstream]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", 10)
        wait_until_copied(server, lambda: raw.count("G") == 10)
    plan = space.write(streams=[origin_config("preserve", replaced=True), downstream]).plan(
        excludes=("main/stream/G",)
    )
    found = [h for c in plan.resource_changes for h in c.hazards if h.code == "DUPLICATES_MESSAGES"]

    assert [(h.messages, h.causes) for h in found] == [(10, ["main/stream/O"])]
    assert "main/stream/G stores up to 10 messages twice" in found[0].message


@pytest.mark.since_2_12
def test_a_target_names_downstream_streams_that_it_leaves_out(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """A downstream stream in another domain is a hazard with and without `--target`."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    copies = [
        {"name": "COPY", "domain": "hub", "mirror": {"name": "O", "domain": "leaf"}},
        {"name": "G", "domain": "hub", "sources": [{"name": "O", "domain": "leaf"}]},
    ]
    space.write(streams=[origin_config("preserve", replaced=False, domain="leaf"), *copies]).apply()
    space.write(streams=[origin_config("preserve", replaced=True, domain="leaf"), *copies])
    whole, targeted = space.plan(), space.plan(targets=("leaf/stream/O",))

    for plan in (whole, targeted):
        found = [
            h for c in plan.resource_changes for h in c.hazards if h.code == "BREAKS_REPLICATION"
        ]
        assert [(h.causes, h.blocking) for h in found] == [
            (["hub/stream/COPY", "hub/stream/G"], True)
        ]
    assert [c.address for c in targeted.resource_changes] == ["leaf/stream/O"]


def test_sources_with_several_transforms_resume(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A source with two transforms resumes after the last message that it received."""
    if server_version < (2, 15):
        return  # older servers detach no source
    space = single_space(tmp_path, server)
    transforms = [{"src": "o.a", "dest": "x.a"}, {"src": "o.b", "dest": "x.b"}]
    downstream = {
        "name": "G",
        "subjects": ["g.>"],
        "sources": [{"name": "O", "subject_transforms": transforms}],
    }
    space.write(
        streams=[origin_config("preserve", replaced=False), downstream | {"sources": []}]
    ).apply()
    space.write(streams=[origin_config("preserve", replaced=False), downstream]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.a", 30)
        publish(raw, "o.b", 30)
        wait_until_copied(server, lambda: raw.count("G") == 60)
        space.write(
            streams=[origin_config("preserve", replaced=False), downstream | {"sources": []}]
        ).apply(allow_hazards=PERMITTED)
        space.write(streams=[origin_config("preserve", replaced=True), downstream]).apply(
            allow_hazards=PERMITTED
        )
        publish(raw, "o.b", 1)
        wait_until_copied(server, lambda: raw.count("G") >= 61)
        found = raw.api_ok("$JS.API.STREAM.INFO.G")

    assert [s.get("opt_start_seq") for s in found["config"]["sources"]] == [61]
    assert found["state"]["messages"] == 61


@pytest.mark.since_2_12
def test_a_repaired_source_of_a_new_origin_resumes(
    tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """A source that is repaired in the plan that replaces its origin duplicates no message."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        # Break the source of a stream, then write files that repair it and replace its origin.
        downstream = {
            "name": "G",
            "domain": "hub",
            "subjects": ["g.>"],
            "sources": [{"name": "O", "domain": "leaf"}],
        }
        broken = downstream | {"sources": [{"name": "O", "external": {"api": "$JS.nowhere.API"}}]}
        space.write(
            streams=[origin_config("preserve", replaced=False, domain="leaf"), downstream]
        ).apply()
        publish(raw, "o.x", 1500)
        wait_until_copied(hub, lambda: raw.count("G", "hub") == 1500)
        _, broken_result = space.write(
            streams=[origin_config("preserve", replaced=False, domain="leaf"), broken]
        ).apply(allow_hazards=PERMITTED)
        assert broken_result.exit_code == 0, broken_result
        space.write(streams=[origin_config("preserve", replaced=True, domain="leaf"), downstream])
        # More messages of another publisher than the search reads first.
        raw.publish_all(encode("g.x", f"{number}".encode()) for number in range(1200))
        wait_until_copied(hub, lambda: raw.count("G", "hub") == 2700)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(impact, "MAX_SEARCHED", 2000)
            unsure = space.plan()
        plan, result = space.apply(allow_hazards=PERMITTED)
        assert result.exit_code == 0, result
        publish(raw, "o.x", 10)
        wait_until_copied(hub, lambda: raw.count("G", "hub") >= 2710)
        publish(raw, "o.end", 1)
        wait_until_copied(hub, lambda: raw.count("G", "hub") >= 2711)
        found = raw.api_ok("$JS.hub.API.STREAM.INFO.G")
        require_converged(space)

    assert found["state"]["messages"] == 2711
    if server_version >= (2, 15):
        assert [s.get("opt_start_seq") for s in found["config"]["sources"]] == [1501]
        assert [
            h.code
            for c in plan.resource_changes
            for h in c.hazards
            if h.code == "DUPLICATES_MESSAGES"
        ] == []
        twice = [
            h for c in unsure.resource_changes for h in c.hazards if h.code == "DUPLICATES_MESSAGES"
        ]
        assert [(h.at_least, h.at_most, h.causes, h.blocking) for h in twice] == [
            (0, 1500, ["leaf/stream/O"], True)
        ]


@pytest.mark.parametrize("circle", [False, True])
def test_an_aggregate_and_its_origin_are_recreated_in_turn(
    circle: bool, tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """Replacing a stream together with its origin is refused on 2.15; in turn it works."""
    if server_version < (2, 15):
        return  # older servers resume by sequence, whatever origin that is
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]

    def stream_bodies(*, replace_origin: bool, replace_downstream: bool) -> list[dict[str, Any]]:
        back = [{"name": "G", "domain": "hub", "filter_subject": "g.>"}] if circle else []
        origin = origin_config("preserve", replaced=replace_origin, domain="leaf") | (
            {"sources": back} if circle else {}
        )
        sources = [{"name": "O", "domain": "leaf", "filter_subject": "o.>"}]
        downstream = origin_config("preserve", replaced=replace_downstream, domain="hub") | {
            "name": "G",
            "subjects": ["g.>"],
            "sources": sources,
        }
        return [origin, downstream]

    space.write(streams=stream_bodies(replace_origin=False, replace_downstream=False)).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        publish(raw, "o.x", 30)
        publish(raw, "g.x", 30)
        wait_until_copied(hub, lambda: raw.count("G", "hub") == 60)
        wait_until_copied(hub, lambda: raw.count("O", "leaf") == (60 if circle else 30))
        plan = space.write(
            streams=stream_bodies(replace_origin=True, replace_downstream=True)
        ).plan(allow_hazards=PERMITTED)
        refused = [
            d.address
            for d in plan.diagnostics
            if d.code == "JS303" and "in the same plan as its source" in d.summary
        ]
        assert refused == ["hub/stream/G", *(["leaf/stream/O"] if circle else [])]
        assert not plan.applyable
        for both in (
            {"replace_origin": False, "replace_downstream": True},
            {"replace_origin": True, "replace_downstream": True},
        ):
            _, result = space.write(streams=stream_bodies(**both)).apply(allow_hazards=PERMITTED)
            assert result.exit_code == 0, result
        publish(raw, "o.y", 5)
        wait_until_copied(hub, lambda: raw.count("G", "hub") >= 65)
        assert raw.count("G", "hub") == 65
        assert raw.count("O", "leaf") == (65 if circle else 35)
        require_converged(space)


@pytest.mark.parametrize("waits", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_an_origin_that_comes_back_continues_its_sequence(
    waits: bool, tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """The start that jsplan gave its source stays right, and health sees the loss before."""
    if server_version < (2, 15):
        return  # older servers detach no source
    space, downstream = single_space(tmp_path, server), {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config("preserve", replaced=False), downstream]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", BEFORE)
        wait_until_copied(server, lambda: raw.count("G") == BEFORE)
    space.write(streams=[origin_config("preserve", replaced=True), downstream])
    space.apply(allow_hazards=PERMITTED)
    with Raw(server.url) as raw:
        config = raw.config("O")
        raw.api_ok("$JS.API.STREAM.DELETE.O")
        raw.api_ok("$JS.API.STREAM.CREATE.O", config)
        publish(raw, "o.x", AFTER)
    found = drift(space.load, DriftOptions(), RecordingObserver())
    assert [flow["healthy"] for flow in found.replication] == [False]
    assert "re-created" in found.replication[0]["cause"]

    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.O")
    plan, result = space.apply()
    assert [step.op for step in plan.steps] == ["stream.create"]
    assert result.exit_code == 0
    with Raw(server.url) as raw:
        first = raw.config("O")["first_seq"]
        start = raw.config("G")["sources"][0]["opt_start_seq"]
    assert BEFORE < start <= first
    require_converged(space)
    if not waits:
        return
    with Raw(server.url) as raw:  # the source looks for its origin within twenty seconds
        publish(raw, "o.x", AFTER)
        wait_until_copied(server, lambda: raw.count("G") == BEFORE + AFTER)
    require_converged(space)
