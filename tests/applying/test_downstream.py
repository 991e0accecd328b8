"""What copies of a stream have when it is made anew: everything once, whatever the server makes of the new origin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.planning.replication import impact
from tests.applying.downstream_helpers import (
    PERMITTED,
    message_count,
    origin_config,
    publish,
    require_converged,
    wait_until_copied,
)
from tests.support.raw import Raw
from tests.support.workspaces import Space, hub_leaf_space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(180),
]  # older servers take ten seconds and more until a source goes on

BEFORE, AFTER = 1000, 100


@pytest.mark.parametrize("mode", ["recreate", "preserve"])
def test_an_aggregate_has_each_message_once(mode: str, tmp_path: Path, server: Server) -> None:
    """1,000 messages before and 100 after a replacement are 1,100 in a stream that sources it, and the second plan is empty."""
    space = single_space(tmp_path, server)
    copy = {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config(mode, replaced=False), copy]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", BEFORE)
        wait_until_copied(server, lambda: message_count(raw, "G") == BEFORE)
        _, result = space.write(streams=[origin_config(mode, replaced=True), copy]).apply(
            allow_hazards=PERMITTED
        )
        assert result.exit_code == 0, result
        require_converged(space)
        publish(raw, "o.x", AFTER)
        wait_until_copied(server, lambda: message_count(raw, "G") >= BEFORE + AFTER)
        last = raw.api_ok("$JS.API.STREAM.INFO.O")["state"]["last_seq"]

        assert message_count(raw, "O") == (BEFORE + AFTER if mode == "preserve" else AFTER)
        assert last == BEFORE + AFTER
        publish(raw, "o.end", 1)
        wait_until_copied(server, lambda: subject_of_last(raw, "G") == "o.end")
        assert message_count(raw, "G") == BEFORE + AFTER + 1
        require_converged(space)


def subject_of_last(raw: Raw, stream: str) -> str:
    """What the newest message of a stream was published to."""
    last = raw.api_ok(f"$JS.API.STREAM.INFO.{stream}")["state"]["last_seq"]
    return str(raw.api_ok(f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": last})["message"]["subject"])


def test_a_mirror_of_a_stream_that_lost_its_messages_resumes(
    tmp_path: Path, server: Server
) -> None:
    """The new origin begins behind the old one, so that its mirror need not wait until it has passed that."""
    space = single_space(tmp_path, server)
    mirror = {"name": "M", "mirror": {"name": "O"}}
    space.write(streams=[origin_config("recreate", replaced=False), mirror]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", BEFORE)
        wait_until_copied(server, lambda: message_count(raw, "M") == BEFORE)
        space.write(streams=[origin_config("recreate", replaced=True), mirror]).apply(
            allow_hazards=PERMITTED
        )
        publish(raw, "o.x", AFTER)
        wait_until_copied(server, lambda: message_count(raw, "M") == BEFORE + AFTER)

        assert raw.api_ok("$JS.API.STREAM.INFO.O")["config"]["first_seq"] == BEFORE + 1
        require_converged(space)


def test_a_stream_without_downstream_begins_at_one(tmp_path: Path, server: Server) -> None:
    """Numbers go on for copies only; and where the files say where it begins, that holds."""
    space = single_space(tmp_path, server)
    copy = {"name": "G", "sources": [{"name": "P"}]}
    other = {"name": "P", "subjects": ["p.>"], "lifecycle": {"on_replace": "recreate"}}
    space.write(streams=[origin_config("recreate", replaced=False), other, copy]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", 10)
        publish(raw, "p.x", 10)
        wait_until_copied(server, lambda: message_count(raw, "G") == 10)
        anew = other | {"storage": "memory", "first_seq": 500}
        plan, _ = space.write(streams=[origin_config("recreate", replaced=True), anew, copy]).apply(
            allow_hazards=PERMITTED
        )

        assert {step.op for step in plan.steps} == {
            "stream.delete",
            "stream.create",
            "replication.verify",
        }
        assert "first_seq" not in raw.api_ok("$JS.API.STREAM.INFO.O")["config"]
        assert raw.api_ok("$JS.API.STREAM.INFO.P")["config"]["first_seq"] == 500


def test_sources_in_another_domain_and_with_filters(
    tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """Two filters of one origin, and a stream of the same name elsewhere: each goes on where it was, the others are left alone."""
    if server_version < (2, 12):
        return  # what is carried over gets new numbers there
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    copy = {
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
        streams=[origin_config("preserve", replaced=False, domain="leaf"), near, copy]
    ).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        for subject, count in (("o.a.1", 300), ("o.b.1", 200), ("o.c.1", 50), ("p.1", 100)):
            publish(raw, subject, count)
        wait_until_copied(hub, lambda: message_count(raw, "G", "$JS.hub.API") == 600)
        plan, result = space.write(
            streams=[origin_config("preserve", replaced=True, domain="leaf"), near, copy]
        ).apply(allow_hazards=PERMITTED)
        assert result.exit_code == 0, result
        for subject in ("o.a.1", "o.b.1", "p.1"):
            publish(raw, subject, 10)
        wait_until_copied(hub, lambda: message_count(raw, "G", "$JS.hub.API") >= 630)
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


def test_a_source_that_never_copied_anything_resumes(tmp_path: Path, server: Server) -> None:
    """Of what a filter never let through nothing says where to go on, so the source begins where the files say."""
    space = single_space(tmp_path, server)
    copy = {"name": "G", "sources": [{"name": "O", "filter_subject": "o.rare"}]}
    space.write(streams=[origin_config("preserve", replaced=False), copy]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", 3)
        _, result = space.write(streams=[origin_config("preserve", replaced=True), copy]).apply(
            allow_hazards=PERMITTED
        )

        assert result.exit_code == 0, result
        assert [s["name"] for s in raw.api_ok("$JS.API.STREAM.INFO.G")["config"]["sources"]] == [
            "O"
        ]
        require_converged(space)
        publish(raw, "o.rare", 2)
        wait_until_copied(server, lambda: message_count(raw, "G") == 2)


def test_a_start_of_ours_is_kept_and_another_one_in_the_files_is_reported(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """Updates of the copy keep where its source goes on; a start that the files write then is no more than the server makes of it."""
    if server_version < (2, 15):
        return  # nothing is put back there
    space = single_space(tmp_path, server)
    copy: dict[str, Any] = {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config("preserve", replaced=False), copy]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", 10)
        wait_until_copied(server, lambda: message_count(raw, "G") == 10)
    space.write(streams=[origin_config("preserve", replaced=True), copy]).apply(
        allow_hazards=PERMITTED
    )
    plan, result = space.write(
        streams=[origin_config("preserve", replaced=True), copy | {"description": "x"}]
    ).apply()
    assert [step.op for step in plan.steps] == ["stream.update"]
    assert result.exit_code == 0
    require_converged(space)
    other = copy | {"description": "x", "sources": [{"name": "O", "opt_start_seq": 5}]}
    told = space.write(streams=[origin_config("preserve", replaced=True), other]).plan()

    assert [d.code for d in told.diagnostics] == ["JS412"]


def test_a_source_that_is_not_ours_is_a_hazard(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """Somebody else's stream copies everything again from 2.15 on: said with the number, and stops the apply; ours is taken care of."""
    if server_version < (2, 12):
        return  # what is carried over gets new numbers there
    space = single_space(tmp_path, server)
    copy = {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config("preserve", replaced=False), copy]).apply()
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.THEIRS", {"name": "THEIRS", "sources": [{"name": "O"}]})
        publish(raw, "o.x", 10)
        wait_until_copied(
            server, lambda: message_count(raw, "G") == message_count(raw, "THEIRS") == 10
        )
    plan = space.write(streams=[origin_config("preserve", replaced=True), copy]).plan()
    found = [h for c in plan.resource_changes for h in c.hazards if h.code == "DUPLICATES_MESSAGES"]

    if server_version < (2, 15):
        assert found == []
    else:
        assert [(h.messages, h.causes, h.blocking) for h in found] == [
            (10, ["main/stream/THEIRS"], True)
        ]


def test_a_source_that_the_plan_leaves_out_is_a_hazard(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """With --exclude a copy of ours is not taken care of either, and that is said."""
    if server_version < (2, 15):
        return  # older servers copy nothing again
    space = single_space(tmp_path, server)
    copy = {"name": "G", "sources": [{"name": "O"}]}
    space.write(streams=[origin_config("preserve", replaced=False), copy]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.x", 10)
        wait_until_copied(server, lambda: message_count(raw, "G") == 10)
    plan = space.write(streams=[origin_config("preserve", replaced=True), copy]).plan(
        excludes=("main/stream/G",)
    )
    found = [h for c in plan.resource_changes for h in c.hazards if h.code == "DUPLICATES_MESSAGES"]

    assert [(h.messages, h.causes) for h in found] == [(10, ["main/stream/G"])]


def test_a_target_names_copies_that_it_leaves_out(
    tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """A copy in another domain is as much of a hazard with `--target` as without: it is read for that."""
    if server_version < (2, 12):
        return  # an origin of a mirror is not carried over there
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
    """What the server writes into messages of a source with two transforms is read right: the source goes on behind them."""
    if server_version < (2, 15):
        return  # nothing is put back there
    space = single_space(tmp_path, server)
    transforms = [{"src": "o.a", "dest": "x.a"}, {"src": "o.b", "dest": "x.b"}]
    copy = {
        "name": "G",
        "subjects": ["g.>"],
        "sources": [{"name": "O", "subject_transforms": transforms}],
    }
    space.write(streams=[origin_config("preserve", replaced=False), copy | {"sources": []}]).apply()
    space.write(streams=[origin_config("preserve", replaced=False), copy]).apply()
    with Raw(server.url) as raw:
        publish(raw, "o.a", 30)
        publish(raw, "o.b", 30)
        wait_until_copied(server, lambda: message_count(raw, "G") == 60)
        space.write(
            streams=[origin_config("preserve", replaced=False), copy | {"sources": []}]
        ).apply(allow_hazards=PERMITTED)
        space.write(streams=[origin_config("preserve", replaced=True), copy]).apply(
            allow_hazards=PERMITTED
        )
        publish(raw, "o.b", 1)
        wait_until_copied(server, lambda: message_count(raw, "G") >= 61)
        found = raw.api_ok("$JS.API.STREAM.INFO.G")

    assert [s.get("opt_start_seq") for s in found["config"]["sources"]] == [61]
    assert found["state"]["messages"] == 61


def put_back_in_the_same_plan(space: Space, hub: Server, raw: Raw, count: int) -> dict[str, Any]:
    """A copy whose source led astray for a while; the files put it right, and want its origin made anew. Gives the copy."""
    copy = {
        "name": "G",
        "domain": "hub",
        "subjects": ["g.>"],
        "sources": [{"name": "O", "domain": "leaf"}],
    }
    astray = copy | {"sources": [{"name": "O", "external": {"api": "$JS.nowhere.API"}}]}
    space.write(streams=[origin_config("preserve", replaced=False, domain="leaf"), copy]).apply()
    publish(raw, "o.x", count)
    wait_until_copied(hub, lambda: message_count(raw, "G", "$JS.hub.API") == count)
    _, result = space.write(
        streams=[origin_config("preserve", replaced=False, domain="leaf"), astray]
    ).apply(allow_hazards=PERMITTED)
    assert result.exit_code == 0, result
    space.write(streams=[origin_config("preserve", replaced=True, domain="leaf"), copy])
    return copy


def test_a_source_that_comes_back_with_a_new_origin_resumes(
    tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """A source that is put right in the plan that makes its origin anew begins behind what the copy has of it: nothing comes twice."""
    if server_version < (2, 12):
        return  # what is carried over gets new numbers there
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        put_back_in_the_same_plan(space, hub, raw, 1500)
        for number in range(
            1200
        ):  # more of somebody else's than the newest messages that are looked at first
            raw.publish("g.x", f"{number}".encode())
        wait_until_copied(hub, lambda: message_count(raw, "G", "$JS.hub.API") == 2700)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(impact, "MAX_SEARCHED", 2000)
            unsure = space.plan()
        plan, result = space.apply(allow_hazards=PERMITTED)
        assert result.exit_code == 0, result
        publish(raw, "o.x", 10)
        wait_until_copied(hub, lambda: message_count(raw, "G", "$JS.hub.API") >= 2710)
        publish(raw, "o.end", 1)
        wait_until_copied(hub, lambda: message_count(raw, "G", "$JS.hub.API") >= 2711)
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
            (0, 1500, ["hub/stream/G"], True)
        ]


@pytest.mark.parametrize("circle", [False, True])
def test_an_aggregate_and_its_origin_are_recreated_in_turn(
    circle: bool, tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """Both in one plan would double the messages on 2.15, so that is refused with the way out; and the way out doubles nothing."""
    if server_version < (2, 15):
        return  # older servers go on by sequence, whatever origin that is
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]

    def bodies(*, origin_anew: bool, copy_anew: bool) -> list[dict[str, Any]]:
        back = [{"name": "G", "domain": "hub", "filter_subject": "g.>"}] if circle else []
        one = origin_config("preserve", replaced=origin_anew, domain="leaf") | (
            {"sources": back} if circle else {}
        )
        sources = [{"name": "O", "domain": "leaf", "filter_subject": "o.>"}]
        copy = origin_config("preserve", replaced=copy_anew, domain="hub") | {
            "name": "G",
            "subjects": ["g.>"],
            "sources": sources,
        }
        return [one, copy]

    space.write(streams=bodies(origin_anew=False, copy_anew=False)).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        publish(raw, "o.x", 30)
        publish(raw, "g.x", 30)
        wait_until_copied(hub, lambda: message_count(raw, "G", "$JS.hub.API") == 60)
        wait_until_copied(
            hub, lambda: message_count(raw, "O", "$JS.leaf.API") == (60 if circle else 30)
        )
        plan = space.write(streams=bodies(origin_anew=True, copy_anew=True)).plan(
            allow_hazards=PERMITTED
        )
        refused = [
            d.address
            for d in plan.diagnostics
            if d.code == "JS303" and "in the same plan as its source" in d.summary
        ]
        assert refused == ["hub/stream/G", *(["leaf/stream/O"] if circle else [])]
        assert not plan.applyable
        for both in (
            {"origin_anew": False, "copy_anew": True},
            {"origin_anew": True, "copy_anew": True},
        ):
            _, result = space.write(streams=bodies(**both)).apply(allow_hazards=PERMITTED)
            assert result.exit_code == 0, result
        publish(raw, "o.y", 5)
        wait_until_copied(hub, lambda: message_count(raw, "G", "$JS.hub.API") >= 65)
        assert message_count(raw, "G", "$JS.hub.API") == 65
        assert message_count(raw, "O", "$JS.leaf.API") == (65 if circle else 35)
        require_converged(space)
