"""The `jsplan revert` command: later changes, deleted messages, and differing files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import JsplanError, RefusedError, StalePlanError, UsageError
from jsplan.workflows.plan import load_plan
from jsplan.workflows.state import pull
from tests.history.conftest import (
    apply,
    document,
    entries,
    entry,
    findings_of,
    named_by_files,
    plan_undo,
    undo,
)
from tests.support.buckets import new_bucket
from tests.support.raw import Raw
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.history.conftest import HistorySpace

A = "main/stream/A"


def state_resources(history_space: HistorySpace) -> dict[str, Any]:
    """Return the resources of the state without times."""
    resources = json.loads(pull(history_space.space.load))["resources"]
    return {
        address: {
            name: value
            for name, value in entry.items()
            if name not in ("applied_at", "created", "seen")
        }
        for address, entry in resources.items()
    }


@pytest.mark.parametrize("backend", ["local", "kv"])
def test_a_revert_can_be_reverted(history_space: HistorySpace, backend: str) -> None:
    """A revert restores servers and state, and can be reverted itself."""
    if backend == "kv":
        history_space.space.base["backend"] = {"kv": {"bucket": new_bucket()}}
    old = (
        {"name": "A", "max_age": "1h"},
        {"name": "B", "consumers": [{"name": "C", "ack_policy": "explicit"}]},
    )
    apply(history_space.write(*old).space)
    before, state_before = (
        (history_space.config("A"), history_space.config("B"), None),
        state_resources(history_space),
    )
    number = apply(
        history_space.write(
            {"name": "A", "max_age": "2h", "metadata": {"a": "b"}}, {"name": "NEW"}
        ).space
    )
    after, state_after = (
        (history_space.config("A"), None, history_space.config("NEW")),
        state_resources(history_space),
    )
    back = undo(history_space.space, number)[1].state["serial"]
    assert (
        (history_space.config("A"), history_space.config("B"), history_space.config("NEW")),
        state_resources(history_space),
    ) == (before, state_before)

    undo(history_space.space, back)
    assert (
        (history_space.config("A"), history_space.config("B"), history_space.config("NEW")),
        state_resources(history_space),
    ) == (after, state_after)
    assert [(e["operation"], e.get("reverts")) for e in entries(history_space.space)[:2]] == [
        ("revert", back),
        ("revert", number),
    ]
    undo(history_space.space, back + 1)
    assert not history_space.write(*old).space.plan().has_changes


def test_saved(history_space: HistorySpace) -> None:
    """`revert -o` only plans; `apply` of that plan is recorded as the revert."""
    apply(history_space.write({"name": "A", "max_age": "1h"}).space)
    number = apply(history_space.write({"name": "A", "max_age": "2h"}).space)
    path = history_space.space.folder / "back.plan"
    result = history_space.run("revert", str(number), "-o", str(path))
    assert (result.code, entries(history_space.space)[0]["id"]) == (0, number)
    assert "Reverting apply 2" in result.out
    assert "Reverting apply 2" in history_space.run("show", str(path)).out
    assert load_plan(path).mode == "revert"

    assert history_space.run("apply", str(path)).code == 0
    assert (history_space.config("A") or {})["max_age"] == 3_600_000_000_000
    assert (
        entries(history_space.space)[0]["operation"],
        entries(history_space.space)[0].get("reverts"),
    ) == ("revert", number)
    assert (
        entry(history_space.space, 3)["plan"]["sha256"] == json.loads(path.read_bytes())["sha256"]
    )
    assert history_space.run("apply", str(path)).code == StalePlanError.exit_code


def test_destroy(history_space: HistorySpace) -> None:
    """A reverted destroy creates everything again, empty and with its guards."""
    apply(
        history_space.write(
            {"name": "A"},
            {"name": "B", "consumers": [{"name": "C"}]},
            kv=[{"bucket": "K", "history": 3}],
        ).space
    )
    history_space.publish("A", 4)
    before, state_before = (
        (history_space.config("A"), history_space.config("B"), history_space.config("KV_K")),
        state_resources(history_space),
    )
    plan, _ = undo(history_space.space, apply(history_space.space, destroy=True))

    assert (
        (history_space.config("A"), history_space.config("B"), history_space.config("KV_K")),
        state_resources(history_space),
    ) == (before, state_before)
    assert [(a, s) for a, s, _ in findings_of(plan, "JS491")] == [
        ("main/consumer/B/C", "the position that the consumer had does not come back"),
        (A, "4 messages that were deleted with the stream cannot be restored"),
    ]
    assert findings_of(plan, "JS492") == []
    assert not history_space.space.plan().has_changes


# --- Later changes


def test_later_changes_are_taken_back_too(history_space: HistorySpace) -> None:
    """The plan shows each difference, and a warning names the later apply, or the server."""
    hour = 3_600_000_000_000
    old = [{"name": name, "max_age": "1h"} for name in "ABCD"]
    new = [body | {"max_age": "2h"} for body in old]
    apply(history_space.write(*old).space)
    number = apply(history_space.write(*new).space)
    apply(history_space.write({"name": "A", "max_age": "3h"}, *new[1:3]).space)
    history_space.change_outside("B", description="by hand")
    plan = plan_undo(history_space.space, number)
    changes = {c.address: c.change for c in plan.resource_changes}
    warnings = {a: s for a, s, _ in findings_of(plan, "JS489")}

    assert [(f.path, f.before, f.after) for f in changes[A].fields] == [("max_age", 3 * hour, hour)]
    assert {f.path for f in changes["main/stream/B"].fields} == {"max_age", "description"}
    assert changes["main/stream/D"].actions == ["create"]
    assert warnings.keys() == {A, "main/stream/B", "main/stream/D"}
    assert warnings[A].startswith("was changed since by apply 3 of ")
    assert warnings["main/stream/B"].startswith("is changed on the server since")

    excluded = ("--exclude", A, "--exclude", "main/stream/B")
    assert history_space.run("revert", str(number), "-y", *excluded).code == 0
    ages = [(history_space.config(name) or {})["max_age"] // hour for name in "ABCD"]
    assert ages == [3, 2, 1, 1]


def test_what_was_added_since_is_deleted_with_its_stream(history_space: HistorySpace) -> None:
    """A stream that the apply created is deleted with a later consumer, which is named."""
    number = apply(history_space.write({"name": "A"}).space)
    later = {"name": "A", "consumers": [{"name": "NEW"}]}
    apply(history_space.write(later).space, replace=(A,))
    history_space.publish("A", 2)
    plan, _ = undo(history_space.space, number)
    warnings = [s for _, s, _ in findings_of(plan, "JS489")]

    assert sorted(s.partition(" of ")[0] for s in warnings) == [
        "main/consumer/A/NEW is deleted with it, although apply 2",
        "was changed since by apply 2",
    ]
    assert [(h.code, h.messages) for c in plan.resource_changes for h in c.hazards] == [
        ("DELETES_STREAM", 2)
    ]
    assert (state_resources(history_space), history_space.config("A")) == ({}, None)


def test_deleted_streams_that_exist_again(history_space: HistorySpace) -> None:
    """A stream that exists again and differs gets its old configuration with --adopt only."""
    apply(history_space.write({"name": "A", "max_msgs": 3}, {"name": "B"}).space)
    number = str(apply(history_space.write().space))
    with Raw(history_space.server.url) as raw:
        raw.create("A", subjects=["A"], max_msgs=9)
    refused = history_space.run("revert", number, "-y")
    assert (refused.code, "JS302" in refused.text) == (3, True)
    assert history_space.run("revert", number, "-y", "--adopt").code == 0
    assert (history_space.config("A") or {})["max_msgs"] == 3
    assert state_resources(history_space).keys() == {A, "main/stream/B"}

    plan, result = undo(history_space.space, int(number))
    assert (plan.has_changes, result.exit_code, {s for _, s, _ in findings_of(plan, "JS493")}) == (
        False,
        0,
        {"has the configuration that it had before"},
    )


@pytest.mark.parametrize("max_msgs", [5, 6])
def test_adopted_resources_are_forgotten(history_space: HistorySpace, max_msgs: int) -> None:
    """An adopted stream has its configuration back and is no longer managed; and the way back."""
    with Raw(history_space.server.url) as raw:
        raw.create("A", subjects=["A"], max_msgs=5)
    history_space.write({"name": "A", "max_msgs": max_msgs})
    number = apply(history_space.space, adopt=True)
    back = undo(history_space.space, number)[1].state["serial"]
    assert ((history_space.config("A") or {})["max_msgs"], state_resources(history_space)) == (
        5,
        {},
    )

    undo(history_space.space, back, adopt=True)
    assert state_resources(history_space).keys() == {A}


def test_forgotten_resources_are_managed_again(history_space: HistorySpace) -> None:
    """A stream that a `removed` block left on the server is managed again, unchanged."""
    apply(history_space.write({"name": "A"}).space)
    before = state_resources(history_space)
    number = apply(history_space.write(removed=[{"address": A, "destroy": False}]).space)
    assert state_resources(history_space) == {}
    undo(history_space.space, number)
    assert state_resources(history_space) == before


# --- Deleted data


def test_deleted_messages_are_reported(history_space: HistorySpace) -> None:
    """A revert reports the deleted messages, and the backup that has them."""
    apply(history_space.write({"name": "A"}, {"name": "B", "consumers": [{"name": "C"}]}).space)
    history_space.publish("A", 5)
    history_space.publish("B", 2)
    saves = history_space.space.folder / "saves"
    number = apply(history_space.write({"name": "A", "max_msgs": 3}).space, backup=saves)
    details = {
        a: (s, d) for a, s, d in findings_of(plan_undo(history_space.space, number), "JS491")
    }

    assert details[A][0] == "2 messages that were deleted cannot be restored"
    assert (
        details["main/stream/B"][0]
        == "2 messages that were deleted with the stream cannot be restored"
    )
    folder = entry(history_space.space, number)["backup"]
    assert (
        f"--exclude main/stream/B and run: jsplan restore {folder} --target main/stream/B"
        in details["main/stream/B"][1]
    )
    assert history_space.run("revert", str(number), "-y", "--exclude", "main/stream/B").code == 0
    assert history_space.run("restore", folder, "-y", "--target", "main/stream/B").code == 0
    with Raw(history_space.server.url) as raw:
        info = raw.api_ok("$JS.API.STREAM.INFO.B")
    assert (info["state"]["messages"], info["state"]["consumer_count"]) == (2, 1)


def test_a_revert_has_hazards_as_any_plan(history_space: HistorySpace) -> None:
    """A revert that deletes new messages needs its hazard allowed."""
    number = apply(history_space.write({"name": "A"}).space)
    history_space.publish("A", 3)
    refused = history_space.run("revert", str(number), "-y")
    assert (refused.code, refused.text.count("deletes the stream with 3 messages")) == (
        RefusedError.exit_code,
        1,
    )
    assert history_space.config("A") is not None
    assert history_space.run("revert", str(number)).code == 3
    # Without a terminal there is no approval.
    assert history_space.run("revert", str(number), "--allow-hazard", "DELETES_STREAM").code == 1
    assert (
        history_space.run("revert", str(number), "-y", "--allow-hazard", "DELETES_STREAM").code == 0
    )
    assert history_space.config("A") is None


def test_a_guard_holds(history_space: HistorySpace) -> None:
    """A revert does not delete what prevent_destroy guards."""
    number = apply(history_space.write({"name": "A", "lifecycle": {"prevent_destroy": True}}).space)
    with pytest.raises(RefusedError, match="prevent_destroy"):
        undo(history_space.space, number)


def test_a_partial_apply(history_space: HistorySpace) -> None:
    """A revert of a partial apply reverts the finished steps."""
    apply(history_space.write({"name": "A", "max_age": "1h"}).space)
    plan = history_space.write(
        {"name": "A", "max_age": "2h"}, {"name": "X", "subjects": ["x"]}
    ).space.plan()
    with Raw(history_space.server.url) as raw:
        raw.create("FIRST", subjects=["x"])
    assert history_space.space.apply_saved(plan).exit_code == 6
    undo(history_space.space, 2)

    assert (history_space.config("A") or {})["max_age"] == 3_600_000_000_000
    assert history_space.config("FIRST") is not None


def test_an_offline_domain(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Changes in an offline domain are deferred, and the same revert makes them later."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["connections"]["hub"]["timeout"] = "2s"
    both: list[dict[str, Any]] = [
        {"name": "A", "domain": "hub"},
        {"name": "A", "domain": "leaf", "subjects": ["b"]},
    ]
    apply(space.write(streams=both))
    number = apply(space.write(streams=[body | {"max_msgs": 5} for body in both]))
    clean_hub_leaf["leaf"].pause()
    try:
        plan, _ = undo(space, number)
    finally:
        clean_hub_leaf["leaf"].resume()
    assert [d.address for d in plan.deferred] == ["leaf/stream/A"]
    clean_hub_leaf.wait_ready()
    undo(space, number)
    with Raw(
        clean_hub_leaf["hub"].url, clean_hub_leaf["hub"].user, clean_hub_leaf["hub"].password
    ) as raw:
        assert [raw.config("A", d)["max_msgs"] for d in ("hub", "leaf")] == [-1, -1]


# --- The files


def test_files_that_still_have_the_change(history_space: HistorySpace) -> None:
    """One warning names what the next plan changes again; with the old files there is none."""
    old = (
        {"name": "A", "max_age": "30d"},
        {"name": "GONE", "subjects": ["g"]},
        {"name": "SAME", "subjects": ["s"]},
    )
    apply(history_space.write(*old).space)
    new = ({"name": "A", "max_age": "6d"}, {"name": "NEW"}, old[2] | {"max_msgs": -1})
    number = apply(history_space.write(*new).space)
    plan = plan_undo(history_space.space, number)
    (summary,) = [s for _, s, _ in findings_of(plan, "JS492")]

    assert (
        summary == "the files still have the change of 3 resources: the next apply makes it again"
    )
    assert named_by_files(plan) == {A, "main/stream/GONE", "main/stream/NEW"}
    plan, _ = undo(history_space.write(*old).space, number)
    assert findings_of(plan, "JS492") == []
    assert not history_space.space.plan().has_changes


# --- Refused reverts


def test_a_revert_of_a_state_command_is_refused(history_space: HistorySpace) -> None:
    """A revert of a state command or a refresh is refused, with the command that helps."""
    apply(history_space.write({"name": "A"}).space)
    assert history_space.run("state", "rm", A).code == 0
    with pytest.raises(JsplanError, match="state rm 2 changed no server") as error:
        undo(history_space.space, 2)
    assert "jsplan state pull --serial 1" in str(error.value.hint)


def test_only_a_part(history_space: HistorySpace) -> None:
    """--target reverts one change; a target outside of the apply is wrong usage."""
    number = apply(history_space.write({"name": "A"}, {"name": "B"}).space)
    undo(history_space.space, number, targets=("main/stream/B",))
    assert (history_space.config("A") is None, history_space.config("B") is None) == (False, True)
    with pytest.raises(UsageError, match="names nothing that apply 1 changed"):
        undo(history_space.space, number, targets=("main/stream/X",))


def test_a_domain_that_was_removed(history_space: HistorySpace) -> None:
    """A change in a domain that is no longer declared is refused."""
    number = apply(history_space.write({"name": "A"}).space)
    history_space.space.base["domains"] = {"other": history_space.space.base["domains"]["main"]}
    history_space.space.base["defaults"] = {"domain": "other"}
    with pytest.raises(RefusedError, match="domain main is no longer declared"):
        undo(history_space.write().space, number)


def test_json(history_space: HistorySpace) -> None:
    """With --json, a revert prints the plan or the apply document."""
    apply(history_space.write({"name": "A", "max_age": "1h"}).space)
    number = apply(history_space.write({"name": "A", "max_age": "2h"}).space)
    assert (
        document(
            history_space.run(
                "revert", str(number), "-o", str(history_space.space.folder / "p"), "--json"
            )
        )["mode"]
        == "revert"
    )
    assert document(history_space.run("revert", str(number), "-y", "--json"))["kind"] == "apply"


def test_preserved_messages_stay(history_space: HistorySpace) -> None:
    """A reverted replacement keeps all messages and the position of the consumer again."""
    body: dict[str, Any] = {
        "name": "A",
        "lifecycle": {"on_replace": "preserve"},
        "consumers": [{"name": "C", "ack_policy": "explicit"}],
    }
    apply(history_space.write(body).space)
    history_space.publish("A", 20)
    before = history_space.config("A")
    undo(history_space.space, apply(history_space.write(body | {"storage": "memory"}).space))

    assert history_space.config("A") == before
    with Raw(history_space.server.url) as raw:
        assert raw.state("A")["messages"] == 20
        assert raw.api_ok("$JS.API.CONSUMER.INFO.A.C")["num_pending"] == 20


def test_consumers_of_a_replaced_stream_are_recorded_as_before(
    history_space: HistorySpace,
) -> None:
    """State has again what the files declared, and so the files of before have nothing to do.

    A push consumer gets its position as its start, which no file has.
    """
    push: dict[str, Any] = {"name": "C", "ack_policy": "explicit", "deliver_subject": "push"}
    body: dict[str, Any] = {
        "name": "A",
        "subjects": ["A", "B"],
        "retention": "interest",
        "lifecycle": {"on_replace": "preserve"},
        "consumers": [push | {"filter_subject": "A"}, {"name": "D", "ack_policy": "explicit"}],
    }
    space = history_space.write(body).space
    apply(space)
    with Raw(history_space.server.url) as raw:
        raw.subscribe("push")
        history_space.publish("A", 5)
        raw.request(raw.next_reply(), b"+ACK")
        raw.unsubscribe()
    before = state_resources(history_space)["main/consumer/A/C"]["declared"]
    wider = [push | {"filter_subjects": ["A", "B"]}, body["consumers"][1]]
    number = apply(history_space.write(body | {"sealed": True, "consumers": wider}).space)
    history_space.write(body)
    assert undo(space, number)[1].exit_code == 0

    assert state_resources(history_space)["main/consumer/A/C"]["declared"] == before
    plan = space.plan()
    assert (plan.has_changes, plan.steps) == (False, [])


def test_a_restore_is_undone(history_space: HistorySpace) -> None:
    """The revert of a restore deletes the stream, with a hazard that counts its messages."""
    body: dict[str, Any] = {"name": "A"}
    apply(history_space.write(body).space)
    history_space.publish("A", 3)
    deletion = apply(history_space.write().space, backup=history_space.space.folder / "saves")
    history_space.write(body)
    assert (
        history_space.run("restore", entry(history_space.space, deletion)["backup"], "-y").code == 0
    )
    assert [e["operation"] for e in entries(history_space.space)] == ["restore", "apply", "apply"]
    plan, _ = undo(history_space.space, deletion + 1)

    assert [(h.code, h.messages) for c in plan.resource_changes for h in c.hazards] == [
        ("DELETES_STREAM", 3)
    ]
    assert history_space.config("A") is None
