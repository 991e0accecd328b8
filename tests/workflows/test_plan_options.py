"""Options of a plan: targets, exclusions, replacements, moves and removals."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import JsplanError, PlanError, RefusedError, StalePlanError, UsageError
from jsplan.options import DriftOptions, PlanOptions
from jsplan.units import SECOND
from jsplan.workflows import apply as applying
from jsplan.workflows import import_ as importing
from jsplan.workflows import plan as planning
from jsplan.workflows import state as remembering
from jsplan.workflows.drift import drift
from tests.support.raw import Raw, streams
from tests.support.workspaces import (
    RecordingObserver,
    Space,
    approve,
    left_to_do,
    single_space,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeServer

GONE = ("DELETES_STREAM",)


def changes(plan: Plan) -> dict[str, str]:
    """Return the actions of each address that changes, such as `create` or `delete+create`."""
    return {
        c.address: "+".join(c.change.actions)
        for c in plan.resource_changes
        if c.change.actions != ["no-op"]
    }


def codes(plan: Plan) -> list[str]:
    return [d.code for d in plan.diagnostics if d.severity == "error"]


def state_addresses(space: Space) -> list[str]:
    return remembering.list_(space.load, ())


def stream(name: str, domain: str = "hub", **fields: Any) -> dict[str, Any]:
    return {"name": name, "domain": domain, **fields}


def mirror(name: str, domain: str, of: str, origin: str) -> dict[str, Any]:
    return stream(name, domain, mirror={"name": of, "domain": origin})


def require_converged(space: Space) -> None:
    plan, result = space.apply()
    assert result.exit_code == 0, result
    assert not space.plan().has_changes, plan


# --- --target, --exclude, --replace --------------------------------------------------------------------------


def test_a_target_includes_its_dependencies(space: Space) -> None:
    """A target includes the origins and streams that it depends on, and nothing else."""
    space.write(
        streams=[
            stream("A"),
            mirror("B", "leaf", "A", "hub"),
            mirror("C", "hub", "B", "leaf"),
            stream("D", depends_on=["hub/stream/C"]),
        ]
    )
    plan = space.plan(targets=("hub/stream/C",))
    assert (list(changes(plan)), plan.complete) == (
        ["hub/stream/A", "hub/stream/C", "leaf/stream/B"],
        False,
    )
    assert len(changes(space.plan(targets=("hub/stream/D",)))) == 4
    order = [step.address for step in space.plan().steps]
    assert order == ["hub/stream/A", "leaf/stream/B", "hub/stream/C", "hub/stream/D"]

    _, result = space.apply(targets=("hub/stream/A",))
    assert (result.exit_code, result.summary["added"], len(changes(space.plan()))) == (0, 1, 3)


def test_destroying_a_target_keeps_its_dependencies(space: Space) -> None:
    """Destroying a target deletes its own consumers and keeps its dependencies."""
    space.write(
        streams=[stream("A", consumers=[{"name": "C"}]), mirror("M", "leaf", "A", "hub")]
    ).apply()

    plan, _ = space.apply(destroy=True, targets=("leaf/stream/M",), allow_hazards=GONE)
    assert changes(plan) == {"leaf/stream/M": "delete"}
    plan, _ = space.apply(destroy=True, targets=("hub/stream/A",), allow_hazards=GONE)
    assert changes(plan) == {"hub/consumer/A/C": "delete", "hub/stream/A": "delete"}
    assert state_addresses(space) == []


def test_a_targeted_replacement_recreates_its_consumers(space: Space) -> None:
    """The consumers of a stream that is targeted and replaced are recreated with it."""
    space.write(streams=[stream("A", consumers=[{"name": "C"}]), stream("B")]).apply()
    plan, result = space.apply(
        targets=("hub/stream/A",), replace=("hub/stream/A",), allow_hazards=GONE
    )

    assert changes(plan) == {"hub/consumer/A/C": "delete+create", "hub/stream/A": "delete+create"}
    assert (result.exit_code, result.summary["replaced"]) == (0, 2)
    assert not space.plan().has_changes


def test_excluded_resources_stay_unchanged(space: Space) -> None:
    """Excluded resources stay unchanged, and a consumer without its stream is an error."""
    space.write(streams=[stream("A"), stream("B")]).apply()
    space.write(streams=[stream("B", max_age="1d"), stream("C", consumers=[{"name": "C"}])])
    plan, result = space.apply(excludes=("hub/stream/A", "hub/*/C*", "hub/consumer/**"))
    assert (changes(plan), result.exit_code) == ({"hub/stream/B": "update"}, 0)
    plan = space.plan(excludes=("hub/stream/C", "hub/stream/A"))
    assert codes(plan) == ["JS416"]


def test_options_that_name_nothing(space: Space) -> None:
    """A target, exclusion or replacement that names nothing is an error with a suggestion."""
    space.write(streams=[stream("ORDERS")])
    for option in ("targets", "excludes", "replace"):
        with pytest.raises(PlanError, match="names nothing"):
            space.plan(**{option: ("hub/stream/ORDRES",)})


# --- --refresh-only ------------------------------------------------------------------------------------------


def test_refresh_only_updates_only_the_state(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A refresh takes changes outside jsplan into state and writes nothing to servers."""
    space.write(streams=[stream("A", max_age="1d"), stream("B")]).apply()
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        live = raw.config("A")
        raw.api_ok(
            "$JS.API.STREAM.UPDATE.A",
            live | {"max_age": 2 * 86400 * SECOND, "description": "theirs"},
        )
        raw.api_ok("$JS.API.STREAM.DELETE.B")
        plan, result = space.apply(refresh_only=True)
        assert result.exit_code == 0
        assert changes(plan) == {"hub/stream/B": "forget"}
        assert raw.config("A")["description"] == "theirs"
        assert state_addresses(space) == ["hub/stream/A"]

        plan = space.plan()
        assert [c.action_reason for c in plan.resource_changes] == [
            "update_because_config_changed",
            "create_because_new",
        ]
        assert plan.resource_drift == []
        assert not space.plan(refresh_only=True).has_changes
        require_converged(space)
        live = raw.config("A")
        assert (live["max_age"], live["description"]) == (86400 * SECOND, "theirs")


# --- moved, removed, undeclared domains ----------------------------------------------------------------------


def rename_leaf(space: Space) -> None:
    space.base["domains"] = {
        "hub": {"connection": "hub"},
        "edge": {"connection": "hub", "js_domain": "leaf"},
    }


def test_a_domain_gets_a_new_name(space: Space) -> None:
    """A renamed domain is an error that prints a `moved` entry, and with it nothing is written."""
    space.write(
        streams=[
            stream("A", "leaf", consumers=[{"name": "C"}]),
            stream("OLD", "leaf"),
            mirror("M", "hub", "A", "leaf"),
        ]
    ).apply()
    rename_leaf(space)
    wanted: list[dict[str, Any]] = [
        stream("A", "edge", consumers=[{"name": "C"}]),
        mirror("M", "hub", "A", "edge"),
    ]
    plan = space.write(streams=wanted).plan()
    assert codes(plan) == ["JS414"]
    detail = next(d.detail for d in plan.diagnostics if d.code == "JS414")
    assert 'moved:   [{from: "leaf/**", to: "NEW/**"}]' in detail
    with pytest.raises(PlanError):
        space.apply()

    space.write(streams=wanted, moved=[{"from": "leaf/**", "to": "edge/**"}])
    plan, result = space.apply(allow_hazards=GONE)
    assert (changes(plan), result.exit_code) == ({"edge/stream/OLD": "delete"}, 0)
    assert {c.previous_address for c in plan.resource_changes} >= {
        "leaf/stream/A",
        "leaf/stream/OLD",
        "leaf/consumer/A/C",
    }
    assert state_addresses(space) == ["edge/consumer/A/C", "edge/stream/A", "hub/stream/M"]
    assert left_to_do(space.plan()) == []
    space.write(streams=wanted)
    assert not space.plan().has_changes


def test_a_domain_is_removed_from_the_files(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A removed domain is forgotten with the printed `removed` entry and stays on the server."""
    space.write(streams=[stream("A", "leaf"), stream("B")]).apply()
    space.base["domains"] = {"hub": {"connection": "hub"}}
    space.write(streams=[stream("B")])
    detail = next(d.detail for d in space.plan().diagnostics if d.code == "JS414")
    assert 'removed: [{address: "leaf/**", destroy: false}]' in detail
    _, result = space.write(
        streams=[stream("B")], removed=[{"address": "leaf/**", "destroy": False}]
    ).apply()

    assert (result.exit_code, state_addresses(space)) == (0, ["hub/stream/B"])
    space.write(removed=[{"address": "hub/stream/B", "destroy": False}])
    _, result = space.apply(destroy=True)
    assert (result.exit_code, state_addresses(space)) == (0, [])
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        assert streams(raw) == ["B"]


def test_some_resources_of_a_domain_move(space: Space) -> None:
    """A glob in a `moved` entry moves the matching resources only."""
    space.write(streams=[stream("A_1", "leaf"), stream("A_2", "leaf"), stream("B", "leaf")]).apply()
    space.base["domains"] = {
        "leaf": {"connection": "hub"},
        "edge": {"connection": "hub", "api_prefix": "$JS.leaf.API", "same_as": "leaf"},
    }
    after = [stream("A_1", "edge"), stream("A_2", "edge"), stream("B", "leaf")]
    space.write(streams=after, moved=[{"from": "leaf/stream/A_*", "to": "edge/stream/A_*"}])
    plan, result = space.apply()

    assert (changes(plan), result.exit_code) == ({}, 0)
    assert state_addresses(space) == ["edge/stream/A_1", "edge/stream/A_2", "leaf/stream/B"]


def test_one_stream_in_two_domains(space: Space) -> None:
    """A stream that is declared in two domains with the same JetStream is an error."""
    space.base["domains"] = {
        "leaf": {"connection": "hub"},
        "edge": {"connection": "hub", "api_prefix": "$JS.leaf.API", "same_as": "leaf"},
    }
    plan = space.write(
        streams=[stream("A", "edge"), stream("A", "leaf"), stream("B", "edge")]
    ).plan()

    assert codes(plan) == ["JS405"]


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_consumer_over_another_domain_is_not_unmanaged(space: Space, retention: str) -> None:
    """A consumer in another domain with the same JetStream counts as managed for its stream."""
    space.base["domains"] = {
        "leaf": {"connection": "hub"},
        "edge": {"connection": "hub", "api_prefix": "$JS.leaf.API", "same_as": "leaf"},
    }
    ours: dict[str, Any] = {"domain": "edge", "stream": "A", "ack_policy": "explicit"}
    for limit in (500, 50):
        limits = {
            "consumer_limits": {"max_ack_pending": limit, "inactive_threshold": "1h"},
            "retention": retention,
        }
        theirs = [
            ours | {"name": name, "filter_subject": f"A.{name}", "max_ack_pending": limit}
            for name in "CD"
        ]
        space.write(streams=[stream("A", "leaf", subjects=["A.*"], **limits)], consumers=theirs)
        plan, result = space.apply()
        assert [d.summary for d in plan.diagnostics if d.severity == "error"] == []
        assert (result.exit_code, len(result.steps)) == (0, 3)
    require_converged(space)


def test_the_number_of_resources_that_are_read(space: Space) -> None:
    """The number of resources that are read has the right plural."""
    for names, words in (("A", "Reading 1 resource"), ("AB", "Reading 2 resources")):
        space.write(streams=[stream(name) for name in names]).apply()
        observer = RecordingObserver()
        drift(space.load, DriftOptions(), observer)
        assert observer.texts == [words]


# --- lifecycle and environments ------------------------------------------------------------------------------


def test_prevent_destroy_refuses_each_kind_of_deletion(space: Space) -> None:
    """prevent_destroy in state refuses each deletion and replacement before any write."""
    guarded = stream("A", lifecycle={"prevent_destroy": True})
    space.write(streams=[guarded]).apply()
    changed = guarded | {"storage": "memory"}
    recreate, preserve = (
        {"lifecycle": {"prevent_destroy": True, "on_replace": mode}}
        for mode in ("recreate", "preserve")
    )
    for wanted, options, words in (
        ([], {}, "would be deleted$"),
        ([changed | recreate], {}, "would be replaced, which deletes its content$"),
        ([changed | preserve], {}, "would be replaced, keeping its content$"),
        ([guarded], {"destroy": True}, "would be deleted$"),
        (
            [guarded],
            {"replace": ("hub/stream/A",)},
            "would be replaced, which deletes its content$",
        ),
    ):
        space.write(streams=[*wanted, stream("NEW")])
        assert [
            re.search(words, d.summary) is not None
            for d in space.plan(**options).diagnostics
            if d.code == "JS301"
        ] == [True]
        with pytest.raises(RefusedError, match="prevent_destroy"):
            space.apply(allow_hazards=GONE, **options)
    space.write(streams=[stream("A", lifecycle={"prevent_destroy": False})])
    require_converged(space)
    assert changes(space.apply(destroy=True, allow_hazards=GONE)[0]) == {"hub/stream/A": "delete"}


def test_environments_have_states_of_their_own(
    tmp_path: Path, server: Server, make_server: MakeServer
) -> None:
    """Each environment has its own servers and state, and a plan knows its own."""
    space = single_space(tmp_path, server)
    other = make_server()
    space.base["environments"] = {"prod": {}, "test": {"connections": {"main": {"url": other.url}}}}
    space.write(streams=[{"name": "A"}, {"name": "ONLY_PROD", "environments": ["prod"]}])
    prod, test = (dataclasses.replace(space.load, environment=name) for name in ("prod", "test"))
    for load in (prod, test):
        assert applying.apply(load, PlanOptions(), approve, RecordingObserver())[1].exit_code == 0

    assert {path.name for path in (tmp_path / "state").glob("*.json")} == {
        "test.prod.json",
        "test.test.json",
    }
    with Raw(server.url) as one, Raw(other.url) as two:
        assert (streams(one), streams(two)) == (["A", "ONLY_PROD"], ["A"])
    planning.save_plan(
        planning.plan(prod, PlanOptions(destroy=True), RecordingObserver()), tmp_path / "p"
    )
    with pytest.raises(UsageError, match="environment prod"):
        applying.apply_saved(test, tmp_path / "p", PlanOptions(), RecordingObserver())
    allowed = PlanOptions(allow_hazards=("DELETES_STREAM",))
    done = applying.apply_saved(space.load, tmp_path / "p", allowed, RecordingObserver())[1]
    assert done.exit_code == 0
    with Raw(server.url) as one, Raw(other.url) as two:
        assert (streams(one), streams(two)) == ([], ["A"])


def test_the_wrong_server(tmp_path: Path, server: Server) -> None:
    """A server with another name and without managed resources is an error."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A"}])
    space.apply()
    plan = space.write(streams=[{"name": "A"}, {"name": "B"}]).plan()
    assert plan.domains["main"]["server"] == {"name": "server-server"}
    plan.domains["main"]["server"] = {"name": "production"}
    with pytest.raises(
        StalePlanError, match="was server production when planned and is server server-server now"
    ):
        space.apply_saved(plan)

    path = tmp_path / "state" / "test.json"
    path.write_text(path.read_text().replace("server-server", "production"))
    assert not space.plan().errored
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.A")
        assert codes(space.plan()) == ["JS410"]
        with pytest.raises(PlanError):
            space.apply()
        assert streams(raw) == []
    assert "jsplan state rm 'main/**'" in space.plan().diagnostics[0].detail
    remembering.rm(space.load, ("main/**",), SECOND)
    require_converged(space)


# --- import and state ----------------------------------------------------------------------------------------


def create_streams(sandbox: Sandbox, *configs: dict[str, Any]) -> None:
    hub = sandbox["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        for config in configs:
            raw.api_ok(f"$JS.API.STREAM.CREATE.{config['name']}", config)


def import_resources(
    space: Space, *addresses: str, adopt: bool = False
) -> tuple[dict[str, str], list[str]]:
    plan, result = importing.import_(
        space.load, addresses, PlanOptions(adopt=adopt), approve, RecordingObserver()
    )
    assert result.exit_code == 0
    return changes(plan), [c.address for c in plan.resource_changes if c.change.importing]


def test_import_takes_the_named_resources_without_a_write(
    space: Space, clean_hub_leaf: Sandbox
) -> None:
    """Import takes the named resources into state and changes no managed ones."""
    create_streams(clean_hub_leaf, {"name": "EQUAL"}, {"name": "DIFFERS", "max_msgs": 5})
    space.write(streams=[stream("MANAGED"), stream("LEFT")]).apply()
    space.write(
        streams=[
            stream("MANAGED", max_age="1d"),
            stream("EQUAL"),
            stream("DIFFERS", max_msgs=7),
            stream("NOT_THERE"),
        ]
    )

    assert import_resources(space, "hub/stream/EQ*") == ({}, ["hub/stream/EQUAL"])
    with pytest.raises(RefusedError, match="--adopt"):
        import_resources(space, "hub/stream/DIFFERS")
    assert import_resources(space, "hub/**", adopt=True) == ({}, ["hub/stream/DIFFERS"])
    assert changes(space.plan()) == {
        "hub/stream/DIFFERS": "update",
        "hub/stream/LEFT": "delete",
        "hub/stream/MANAGED": "update",
        "hub/stream/NOT_THERE": "create",
    }
    with pytest.raises(PlanError):
        import_resources(space, "hub/stream/NOT_THERE")
    with pytest.raises(PlanError, match="managed already"):
        import_resources(space, "hub/stream/EQUAL")


def test_state_is_renamed_and_forgotten_by_hand(space: Space, clean_hub_leaf: Sandbox) -> None:
    """`state mv` renames like `moved`, and the next plan imports what `state rm` forgot."""
    space.write(streams=[stream("A", "leaf", consumers=[{"name": "C"}]), stream("B")]).apply()
    assert len(remembering.mv(space.load, "leaf/**", "edge/**", SECOND)) == 2
    rename_leaf(space)
    space.write(streams=[stream("A", "edge", consumers=[{"name": "C"}]), stream("B")])
    assert left_to_do(space.plan()) == []

    assert remembering.rm(space.load, ("edge/**",), SECOND) == [
        "edge/consumer/A/C",
        "edge/stream/A",
    ]
    plan = space.plan()
    assert (changes(plan), plan.summary["import"]) == ({}, 2)
    with pytest.raises(JsplanError, match="different things"):
        remembering.mv(space.load, "hub/stream/B", "hub/stream/Z", SECOND)
    with pytest.raises(JsplanError, match="not in state"):
        remembering.mv(space.load, "nowhere/**", "edge/**", SECOND)
    require_converged(space)


# --- order on servers ----------------------------------------------------------------------------------------


def subjects(space: Space, pairs: Iterable[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    return [stream(name, subjects=list(of)) for name, of in pairs]


def test_three_streams_pass_their_subjects_on(space: Space) -> None:
    """Streams that exchange subjects in a cycle need one step that releases subjects."""
    space.write(streams=subjects(space, [("A", ["a"]), ("B", ["b", "b2"]), ("C", ["c"])])).apply()
    space.write(streams=subjects(space, [("A", ["b"]), ("B", ["c", "b2"]), ("C", ["a"])]))
    plan, result = space.apply(allow_hazards=("REMOVES_SUBJECTS",))

    assert (result.exit_code, sum("release the subjects" in step.title for step in plan.steps)) == (
        0,
        1,
    )
    assert not space.plan().has_changes
    space.write(streams=subjects(space, [("A", ["c.>"]), ("B", ["a", "b.*"]), ("C", ["b2", "b"])]))
    space.apply(allow_hazards=("REMOVES_SUBJECTS",))
    assert not space.plan().has_changes


def test_domains_with_sources_in_each_other(space: Space) -> None:
    """Streams with sources in each other's domains are created and deleted in order."""

    def source(name: str, domain: str, other: str) -> dict[str, Any]:
        origin = {"name": name, "domain": other, "filter_subject": f"{other}.>"}
        return stream(name, domain, subjects=[f"{domain}.>"], sources=[origin])

    chain = [
        stream("A"),
        mirror("B", "leaf", "A", "hub"),
        mirror("C", "hub", "B", "leaf"),
        stream("X", "leaf"),
        mirror("Y", "hub", "X", "leaf"),
    ]
    space.write(streams=[source("BOTH", "hub", "leaf"), source("BOTH", "leaf", "hub"), *chain])
    require_converged(space)
    plan, result = space.apply(destroy=True, allow_hazards=GONE)
    order = [step.address for step in plan.steps]

    assert result.exit_code == 0
    assert order.index("hub/stream/C") < order.index("leaf/stream/B") < order.index("hub/stream/A")
    assert order.index("hub/stream/Y") < order.index("leaf/stream/X")
    assert state_addresses(space) == []


def test_a_cycle_of_depends_on(space: Space) -> None:
    """A cycle of `depends_on` is an error that names its streams."""
    a, b = stream("A", depends_on=["hub/stream/B"]), stream("B", depends_on=["hub/stream/A"])
    plan = space.write(streams=[a, b]).plan()

    assert codes(plan) == ["JS404"]
    assert "hub/stream/A" in plan.diagnostics[0].summary
    assert "hub/stream/B" in plan.diagnostics[0].summary


def test_a_promoted_mirror_and_its_origin(space: Space) -> None:
    """An origin is deleted after its mirror is promoted, or before it if both need a subject."""
    space.write(
        streams=[stream("A", "leaf", subjects=["a"]), mirror("M", "hub", "A", "leaf")]
    ).apply()
    space.write(streams=[stream("M", subjects=["a"])])
    plan, result = space.apply(allow_hazards=(*GONE, "BREAKS_REPLICATION"))
    assert ([s.op for s in plan.steps], result.exit_code) == (["stream.update", "stream.delete"], 0)
    assert not space.plan().has_changes

    space.write(streams=[stream("O", subjects=["o"]), mirror("P", "hub", "O", "hub")]).apply(
        allow_hazards=GONE
    )
    space.write(streams=[stream("P", subjects=["o"])])
    plan, result = space.apply(allow_hazards=(*GONE, "BREAKS_REPLICATION"))
    assert ([s.op for s in plan.steps], result.exit_code) == (["stream.delete", "stream.update"], 0)


def test_consumers_of_a_stream_that_is_replaced(space: Space) -> None:
    """All consumers of a replaced stream end as the files say."""
    first = [{"name": "KEPT"}, {"name": "CHANGED"}, {"name": "LEFT"}]
    then = [{"name": "KEPT"}, {"name": "CHANGED", "max_deliver": 3}, {"name": "NEW"}]
    space.write(streams=[stream("A", consumers=first)]).apply()
    space.write(
        streams=[
            stream("A", storage="memory", lifecycle={"on_replace": "recreate"}, consumers=then)
        ]
    )
    plan, result = space.apply(allow_hazards=GONE)

    assert changes(plan) == {
        "hub/consumer/A/CHANGED": "delete+create",
        "hub/consumer/A/KEPT": "delete+create",
        "hub/consumer/A/LEFT": "delete",
        "hub/consumer/A/NEW": "create",
        "hub/stream/A": "delete+create",
    }
    assert [s.op for s in plan.steps].count("consumer.delete") == 0
    assert result.exit_code == 0
    assert state_addresses(space) == [
        f"hub/consumer/A/{name}" for name in ("CHANGED", "KEPT", "NEW")
    ] + ["hub/stream/A"]
    assert not space.plan().has_changes
