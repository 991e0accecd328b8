"""Promise 6: resources of an offline domain are deferred, and the next plan has them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.apply import StepStarted
from jsplan.errors import ConnectError
from jsplan.options import DriftOptions, PlanOptions
from jsplan.workflows import apply as applying
from jsplan.workflows import state as remembering
from jsplan.workflows.drift import drift
from tests.support.raw import Raw, streams
from tests.support.workspaces import RecordingObserver, Space, approve, changes, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyEvent
    from jsplan.sandbox import Sandbox

#: Timeout of a request: enough for a busy machine, and short enough for a test.
PATIENCE = "1s"


@pytest.fixture
def space(tmp_path: Path, clean_hub_leaf: Sandbox) -> Space:
    """A workspace with a short timeout."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["connections"]["hub"]["timeout"] = PATIENCE
    return space


def on(domain: str, *names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, "domain": domain, **fields} for name in names]


def names(sandbox: Sandbox, domain: str) -> list[str]:
    server = sandbox[domain]
    with Raw(server.url, server.user, server.password) as raw:
        return streams(raw)


def test_paused_while_planning(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A domain that does not answer costs one timeout, and its resources are deferred."""
    space.write(streams=on("leaf", "SAME")).apply()
    space.write(streams=[*on("leaf", "SAME", *(f"L{n}" for n in range(30))), *on("hub", "H")])
    clean_hub_leaf["leaf"].pause()
    started = time.monotonic()
    plan, result = space.apply()
    took = time.monotonic() - started
    found = drift(space.load, DriftOptions(), RecordingObserver())
    clean_hub_leaf["leaf"].resume()

    assert took < 15, "one wait, not one for each of thirty"
    assert (result.exit_code, changes(plan), len(plan.deferred), plan.complete) == (
        0,
        {"hub/stream/H": ["create"]},
        31,
        False,
    )
    assert result.summary["deferred"] == 31
    assert {d.reason.split("$")[0] for d in plan.deferred} == {
        "domain leaf is offline: no answer to "
    }
    assert (
        found.exit_code,
        [a["domain"] for a in found.offline],
        [d.address for d in found.deferred],
    ) == (1, ["leaf"], ["leaf/stream/SAME"])
    assert names(clean_hub_leaf, "leaf") == ["SAME"]
    assert sorted(changes(space.plan())) == sorted(f"leaf/stream/L{n}" for n in range(30))


def test_a_saved_plan_leaves_deferred_domains_alone(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A saved plan does not change a domain that was offline when it was planned."""
    space.write(streams=[*on("leaf", "L"), *on("hub", "H")])
    clean_hub_leaf["leaf"].pause()
    plan = space.plan()
    clean_hub_leaf["leaf"].resume()
    result = space.apply_saved(plan)

    assert (result.exit_code, [d.address for d in result.deferred]) == (0, ["leaf/stream/L"])
    assert (names(clean_hub_leaf, "hub"), names(clean_hub_leaf, "leaf")) == (["H"], [])
    assert list(changes(space.plan())) == ["leaf/stream/L"]


def test_offline_between_plan_and_apply(
    space: Space, clean_hub_leaf: Sandbox, tmp_path: Path
) -> None:
    """Steps of a domain that goes offline after the plan are deferred, with exit code 6."""
    leaf = clean_hub_leaf["leaf"]
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        raw.create("THERE")
    downstream = {"name": "COPY", "domain": "hub", "mirror": {"name": "L", "domain": "leaf"}}
    space.write(streams=[*on("leaf", "THERE", "L"), *on("hub", "H"), downstream])
    plan = space.plan()
    assert plan.summary["import"] == 1
    leaf.pause()
    result = space.apply_saved(plan)
    leaf.resume()

    assert result.exit_code == 6
    assert {s.address: s.status for s in result.steps} == {
        "hub/stream/H": "done",
        "hub/stream/COPY": "done",
        "leaf/stream/L": "skipped",
        "leaf/stream/THERE": "skipped",
    }
    assert sorted(d.address for d in result.deferred) == ["leaf/stream/L", "leaf/stream/THERE"]
    _, result = space.apply()
    assert (result.exit_code, result.summary["added"], result.summary["imported"]) == (0, 1, 1)
    assert not space.plan().has_changes


class PausingObserver(RecordingObserver):
    """Pauses the leaf when its second step begins.

    The end of the first one says less: it waits for the disk, and other steps run meanwhile.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self._leaf = sandbox["leaf"]
        self._begun = 0

    def event(self, event: ApplyEvent) -> None:
        """Pause the leaf."""
        if isinstance(event, StepStarted) and event.address.startswith("leaf/"):
            self._begun += 1
            if self._begun == 2:
                self._leaf.pause()


def test_paused_during_apply(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A leaf that stops answering during an apply costs one timeout, and the hub is completed."""
    space.write(
        streams=[
            *on("leaf", *(f"L{n:02}" for n in range(40))),
            *on("hub", *(f"H{n:02}" for n in range(40))),
        ]
    )
    started = time.monotonic()
    _, result = applying.apply(
        space.load, PlanOptions(parallelism=1), approve, PausingObserver(clean_hub_leaf)
    )
    took = time.monotonic() - started
    clean_hub_leaf["leaf"].resume()

    ends = {
        domain: {s.status for s in result.steps if s.address.startswith(domain)}
        for domain in ("hub", "leaf")
    }
    assert took < 15, "one wait, not one for each of thirty"
    assert (result.exit_code, ends["hub"]) == (6, {"done"})
    assert {"done", "skipped"} <= ends["leaf"] <= {"done", "skipped", "unknown"}
    undone = {s.address for s in result.steps if s.status != "done"}
    assert {d.address for d in result.deferred} == undone
    # The request of the second step may have been sent; the leaf takes it when it is resumed.
    assert set(names(clean_hub_leaf, "leaf")) <= {"L00", "L01"}
    _, result = space.apply()
    assert (result.exit_code, len(names(clean_hub_leaf, "leaf"))) == (0, 40)
    assert not space.plan().has_changes


def test_destroy_with_an_offline_domain(space: Space, clean_hub_leaf: Sandbox) -> None:
    """Destroy deletes reachable resources, ends with 6, and state keeps the others."""
    space.write(streams=[*on("leaf", "L"), *on("hub", "H")]).apply()
    clean_hub_leaf["leaf"].pause()
    _, result = space.apply(destroy=True, allow_hazards=("DELETES_STREAM",))
    clean_hub_leaf["leaf"].resume()

    assert (result.exit_code, remembering.list_(space.load, ())) == (6, ["leaf/stream/L"])
    _, result = space.apply(destroy=True, allow_hazards=("DELETES_STREAM",))
    assert (result.exit_code, remembering.list_(space.load, ())) == (0, [])


def test_offline_fail(space: Space, clean_hub_leaf: Sandbox) -> None:
    """With `--offline fail` an offline domain is an error, unless it is excluded."""
    space.write(streams=[*on("leaf", "L"), *on("hub", "H")])
    clean_hub_leaf["leaf"].pause()
    with pytest.raises(ConnectError, match="domain leaf is offline"):
        space.plan(offline="fail")
    plan = space.plan(offline="fail", excludes=("leaf/**",))
    clean_hub_leaf["leaf"].resume()

    assert "leaf" not in plan.domains
    assert list(changes(plan)) == ["hub/stream/H"]


def test_a_server_that_is_down(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A stopped leaf is offline without a timeout, and is planned again after its restart."""
    space.base["connections"]["leaf"] = {
        "url": clean_hub_leaf["leaf"].url,
        "user": "acc",
        "password": "acc",
    }
    space.base["domains"] = {
        "hub": {"connection": "hub"},
        "leaf": {"connection": "leaf", "may_be_offline": "1d"},
    }
    space.write(streams=[*on("leaf", "L"), *on("hub", "H")])
    clean_hub_leaf["leaf"].stop()
    plan, result = space.apply()
    found = drift(space.load, DriftOptions(), RecordingObserver())
    clean_hub_leaf.start()

    assert (result.exit_code, list(changes(plan)), len(plan.deferred)) == (0, ["hub/stream/H"], 1)
    assert (found.exit_code, found.offline[0]["excused"]) == (0, True)
    assert list(changes(space.plan())) == ["leaf/stream/L"]


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        (None, ["BREAKS_REPLICATION leaf/stream/MIRROR mirrors or sources this stream"]),
        (
            {"max_age": "1h", "subject_delete_marker_ttl": "1h"},
            ["DELETES_MESSAGES leaf/stream/MIRROR may lose messages (the number is not known)"],
        ),
        (
            {"max_msgs": 1},
            [
                "BREAKS_REPLICATION up to 2 messages are deleted before they are copied: leaf/stream/M"
            ],
        ),
        ({"max_msgs": 4}, []),
    ],
    ids=["deleted", "markers", "limit", "enough"],
)
def test_what_a_change_does_to_readers_that_do_not_answer(
    space: Space, clean_hub_leaf: Sandbox, after: dict[str, Any] | None, wanted: list[str]
) -> None:
    """A mirror in an offline domain counts as it was last applied, and as the files have it."""
    mirror = on("leaf", "MIRROR", mirror={"name": "O", "domain": "hub"}, allow_rollup_hdrs=True)
    origin = on("hub", "O", subjects=["o"], allow_msg_ttl=True)
    space.write(streams=[*origin, *mirror]).apply()
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        for _ in range(3):
            raw.request("o", b"")
    clean_hub_leaf["leaf"].pause()
    space.write(streams=[*([origin[0] | after] if after is not None else []), *mirror])
    plan = space.plan()
    clean_hub_leaf["leaf"].resume()
    hazards = [h for c in plan.resource_changes for h in c.hazards if "leaf/stream" in h.message]
    found = [f"{h.code} {h.message}" for h in hazards]
    assert [text[: len(start)] for text, start in zip(found, wanted, strict=True)] == wanted
