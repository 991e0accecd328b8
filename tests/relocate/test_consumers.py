"""Consumers that get another name, or other fields, with the relocation of their stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError
from jsplan.workflows.revert import RevertOptions, revert
from tests.relocate.scene import BODY, PERMITTED, TO_HUB, QueueScene, Scene
from tests.support import stream_content
from tests.support.simulated_kill import SimulatedKill, kill_at_request
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, approve, left_to_do

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.support.raw import Raw

#: The new names of two of three consumers.
NEW_NAMES = {"C": "C_EU", "N": "N_EU"}


class Renamed(Scene):
    """The stream A of the leaf, which becomes B of the hub, with other names of consumers."""

    names = NEW_NAMES
    #: Entries of consumers in place of one for each name.
    entries: tuple[dict[str, str], ...] = ()

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        super().__init__(folder, sandbox, ("leaf", "hub", "B"))

    def declare_after(self, **fields: Any) -> None:
        """Write the files with the new names."""
        consumers = [
            consumer | {"name": self.names.get(consumer["name"], consumer["name"])}
            for consumer in BODY["consumers"]
        ]
        entries = self.entries or [
            {"from": f"leaf/consumer/A/{old}", "to": f"hub/consumer/B/{new}"}
            for old, new in self.names.items()
        ]
        self.space.write(
            streams=[BODY | {"name": "B", "domain": "hub", "consumers": consumers} | fields],
            relocate=[{"from": "leaf/stream/A", "to": "hub/stream/B"}, *entries],
        )

    def new_unread(self) -> dict[str, int]:
        """Return what is left, by the new names."""
        return {self.names.get(name, name): count for name, count in self.unread.items()}


class RenamedQueue(QueueScene):
    """A work queue or an interest stream whose consumer C becomes D."""

    def declare_after(self, **fields: Any) -> None:
        """Write the files with the new name."""
        consumers = [{"name": "D", "ack_policy": "explicit"}]
        self.space.write(
            streams=[self.body | {"domain": "hub", "consumers": consumers} | fields],
            relocate=[
                {"from": "leaf/stream/A", "to": "hub/stream/A"},
                {"from": "leaf/consumer/A/C", "to": "hub/consumer/A/D"},
            ],
        )

    def new_unread(self) -> dict[str, int]:
        """Return what is left, by the new name."""
        return {"D": self.unread["C"]}


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_the_consumer_of_a_queue_gets_another_name(
    retention: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Messages that it had finished stay so, and none that it wants is announced as deleted."""
    queue = RenamedQueue(tmp_path, clean_hub_leaf, retention)
    queue.reset()

    plan, result = queue.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    found = {h.code: h.messages for c in plan.resource_changes for h in c.hazards}
    assert found == {"REMOVES_SUBJECTS": None, "DUPLICATES_MESSAGES": 5}
    queue.require_relocated()


@pytest.fixture
def renamed(tmp_path: Path, clean_hub_leaf: Sandbox) -> Renamed:
    """A stream whose consumers get other names with it."""
    made = Renamed(tmp_path, clean_hub_leaf)
    made.reset()
    return made


def test_consumers_get_other_names_at_their_positions(renamed: Renamed) -> None:
    """The plan names both names, counts what is delivered again, and nothing is left behind."""
    with renamed.raw("leaf") as raw:
        acks = raw.pull("A", "C", 6)
        raw.ack(acks[4:])

    plan, result = renamed.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    sides = {
        c.address: (c.relocated_from, c.relocated_to)
        for c in plan.resource_changes
        if c.type == "consumer"
    }
    for old, new in (NEW_NAMES | {"NEW": "NEW"}).items():
        here, there = f"leaf/consumer/A/{old}", f"hub/consumer/B/{new}"
        assert sides[here] == (None, there)
        assert sides[there] == (here, None)
    found = {h.code: h for c in plan.resource_changes for h in c.hazards}
    assert found.keys() == {"REMOVES_SUBJECTS", "DUPLICATES_MESSAGES"}
    text = "up to 6 messages of C may be delivered again: 4 that workers have now and 2"
    assert text in found["DUPLICATES_MESSAGES"].message
    renamed.require_relocated()


def test_an_old_consumer_that_no_entry_names_is_deleted(renamed: Renamed) -> None:
    """Without an entry another name is another consumer, and the old one is announced."""
    renamed.names = {"C": "C_EU"}
    renamed.declare_after(consumers=[{"name": "N_EU", "ack_policy": "none"}, {"name": "C_EU"}])

    plan, result = renamed.space.apply(allow_hazards=(*PERMITTED, "DELETES_CONSUMER"))

    assert [s.error for s in result.steps if s.error] == []
    (change,) = [c for c in plan.resource_changes if c.address == "leaf/stream/A"]
    (hazard,) = change.hazards
    assert hazard.message.startswith("N, NEW: not declared under hub/stream/B")
    with renamed.raw("hub") as raw:
        found = stream_content.unread(raw, "B")
    assert found == {"C_EU": renamed.unread["C"], "N_EU": len(renamed.expected)}


def test_a_name_that_went_to_another_consumer_is_a_new_one(renamed: Renamed) -> None:
    """Two consumers exchange their names, and a third new one takes a name that was freed."""
    renamed.names = {"C": "NEW", "NEW": "C_EU"}
    renamed.declare_after(
        consumers=[
            {"name": "NEW", "ack_policy": "explicit"},
            {"name": "C_EU", "ack_policy": "explicit", "deliver_policy": "new"},
            {"name": "C", "ack_policy": "explicit"},
            {"name": "N", "ack_policy": "none"},
        ]
    )

    _, result = renamed.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    with renamed.raw("hub") as raw:
        found = stream_content.unread(raw, "B")
    old = renamed.unread
    everything = len(renamed.expected)
    assert found == {"NEW": old["C"], "C_EU": old["NEW"], "N": old["N"], "C": everything}
    assert left_to_do(renamed.space.plan()) == []


def test_a_glob_renames_all_consumers(renamed: Renamed) -> None:
    """An entry with a wildcard gives each consumer its name with a prefix."""
    renamed.names = {name: f"EU_{name}" for name in ("C", "NEW", "N")}
    renamed.entries = ({"from": "leaf/consumer/A/*", "to": "hub/consumer/B/EU_*"},)
    renamed.declare_after()

    _, result = renamed.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    renamed.require_relocated()


def test_revert_prints_the_old_names(renamed: Renamed, tmp_path: Path) -> None:
    """The entries of the hint relocate stream and consumers back, to their old names."""
    renamed.space.apply(allow_hazards=PERMITTED)
    last = read_state(tmp_path).history[-1]["id"]

    with pytest.raises(RefusedError) as refused:
        revert(renamed.space.load, RevertOptions(last), approve, RecordingObserver())

    entries = [
        {"from": "hub/stream/B", "to": "leaf/stream/A"},
        *(
            {"from": f"hub/consumer/B/{new}", "to": f"leaf/consumer/A/{old}"}
            for old, new in NEW_NAMES.items()
        ),
    ]
    written = ", ".join(f"{{from: {e['from']}, to: {e['to']}}}" for e in entries)
    assert f"relocate: [{written}]" in str(refused.value.hint)
    renamed.space.write(streams=[BODY | {"domain": "leaf"}], relocate=entries)
    _, result = renamed.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in result.steps if s.error] == []
    renamed.require_restored()


def test_another_name_after_a_kill(renamed: Renamed) -> None:
    """A consumer that was half created under a name that the files gave up is deleted."""
    with (
        kill_at_request("CONSUMER.RESET.B.C_EU", answered=False),
        pytest.raises(SimulatedKill),
    ):
        renamed.space.apply(allow_hazards=PERMITTED)
    renamed.names = NEW_NAMES | {"C": "C_US"}
    renamed.declare_after()

    _, result = renamed.space.apply(allow_hazards=(*PERMITTED, "DELETES_CONSUMER"))

    assert [s.error for s in result.steps if s.error] == []
    renamed.require_relocated()


#: What every consumer has, but for what changes.
BASE: dict[str, Any] = {"ack_policy": "explicit"}
#: Fields before and after, by what changes. Messages have the subjects A.0, A.1 and A.2.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "filter": ({"filter_subject": "A.0"}, {"filter_subject": "A.1"}),
    "more_filters": ({"filter_subject": "A.0"}, {"filter_subjects": ["A.0", "A.2"]}),
    "no_filter": ({"filter_subjects": ["A.0", "A.2"]}, {}),
    "ack_none": ({}, {"ack_policy": "none"}),
    "ack_each": ({"ack_policy": "none"}, {"ack_policy": "explicit"}),
    "ack_all": ({}, {"ack_policy": "all"}),
    "waits": ({"ack_wait": "30s"}, {"ack_wait": "5s", "max_ack_pending": 7, "max_deliver": 3}),
    "from_new": ({"deliver_policy": "new"}, {}),
    "to_new": ({}, {"deliver_policy": "new"}),
    "to_last": (
        {"filter_subject": "A.0"},
        {"filter_subject": "A.0", "deliver_policy": "last_per_subject"},
    ),
    "to_time": ({}, {"deliver_policy": "by_start_time", "opt_start_time": "2100-01-01T00:00:00Z"}),
    "to_push": ({}, {"deliver_subject": "push.later"}),
    "from_push": ({"deliver_subject": "push.here"}, {}),
}


class Changed(Scene):
    """A stream with one consumer for each change, which has finished five messages of seven."""

    body = BODY | {"consumers": [BASE | {"name": n} | before for n, (before, _) in CHANGES.items()]}

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        super().__init__(folder, sandbox, TO_HUB)
        self.floors: dict[str, int] = {}

    def declare_after(self, **fields: Any) -> None:
        """Write the files with the changes; each consumer gets another name too."""
        consumers = [BASE | {"name": f"{n}_2"} | after for n, (_, after) in CHANGES.items()]
        self.space.write(
            streams=[BODY | {"domain": "hub", "consumers": consumers} | fields],
            relocate=[
                {"from": "leaf/stream/A", "to": "hub/stream/A"},
                {"from": "leaf/consumer/A/*", "to": "hub/consumer/A/*_2"},
            ],
        )

    def work(self, raw: Raw) -> None:
        """Let each consumer take seven messages, and finish five of them if it can."""
        for number in range(7):
            raw.request(f"A.{number % 3}", b"for those that begin with what is new %d" % number)
        for consumer in self.body["consumers"]:
            with self.raw("leaf") as receiver:
                replies = _take(receiver, consumer, 7)
            if consumer["ack_policy"] != "none":
                raw.ack(replies[:5])
        for state in raw.api_ok("$JS.API.CONSUMER.LIST.A", {"offset": 0})["consumers"]:
            done = "delivered" if state["config"]["ack_policy"] == "none" else "ack_floor"
            self.floors[state["name"]] = state[done]["stream_seq"]

    def new_unread(self) -> dict[str, int]:
        """Count by name what is behind the floor of each and passes its new filters."""
        found = {}
        for name, (_, after) in CHANGES.items():
            filters = after.get("filter_subjects") or [after.get("filter_subject")]
            found[f"{name}_2"] = sum(
                message[0] > self.floors[name] and (filters == [None] or message[1] in filters)
                for message in self.expected
            )
        return found


def _take(raw: Raw, consumer: dict[str, Any], count: int) -> list[str]:
    """Return the ack subjects of the next messages of a consumer."""
    if not consumer.get("deliver_subject"):
        return raw.pull("A", consumer["name"], count)
    raw.subscribe(consumer["deliver_subject"], wait=False)
    return [raw.next_reply() for _ in range(count)]


@pytest.mark.matrix
def test_changed_consumers_keep_their_positions(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Each gets what its new filters match, from the first message that it had not finished on."""
    scene = Changed(tmp_path, clean_hub_leaf)
    scene.reset()

    plan, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [d.summary for d in plan.diagnostics if d.severity == "error"] == []
    assert [s.error for s in result.steps if s.error] == []
    scene.require_relocated()
