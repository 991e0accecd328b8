"""Entries of a relocated bucket move with it in state; an equal value is never written."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.relocate.scene import PERMITTED, HubLeaf
from tests.support import stream_content
from tests.support.raw import streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

ENTRIES = {"app.mode": "fast", "app.level": "3"}


class Bucket(HubLeaf):
    """The bucket CONFIG of the leaf with two declared keys, and one that an application wrote."""

    def reset(self) -> None:
        """Empty both domains, and declare, fill and forget as before."""
        self.empty()
        self.declare("leaf", ENTRIES)
        self.space.apply()
        with self.raw("leaf") as raw:
            raw.request("$KV.CONFIG.other", b"of an application")
        self.before = self.messages("leaf")

    def declare(self, domain: str, entries: dict[str, Any], **sections: Any) -> None:
        """Write the files with the bucket in one domain."""
        bucket = {"bucket": "CONFIG", "domain": domain, "history": 3, "entries": entries}
        self.space.write(kv=[bucket], **sections)

    def relocate(self, entries: dict[str, Any]) -> None:
        """Write the files with the bucket in the hub."""
        entry = {"from": "leaf/kv/CONFIG", "to": "hub/kv/CONFIG"}
        self.declare("hub", entries, relocate=[entry])

    def messages(self, domain: str) -> list[tuple[int, str, bytes, str]]:
        """Return sequence, subject, payload and time of what the bucket has.

        A mirror has no conditions of the publish, which are the only headers here.
        """
        with self.raw(domain) as raw:
            found = "KV_CONFIG" in streams(raw)
            messages = stream_content.messages(raw, "KV_CONFIG") if found else []
            return [(m[0], m[1], m[3], m[4]) for m in messages]

    def apply(self, **options: Any) -> Plan:
        """Apply without a failure; old values of a key may be deleted."""
        return super().apply(allow_hazards=(*PERMITTED, "DELETES_MESSAGES"), **options)

    def require_entries(self, entries: dict[str, str]) -> None:
        """Check that state has these entries in the hub and no other, and all is quiet."""
        found = {
            str(a): e.config
            for a, e in read_state(self.space.folder).resources.items()
            if a.kind == "kv_entry"
        }
        assert found.keys() == {f"hub/kv_entry/CONFIG/{key}" for key in entries}
        assert self.messages("leaf") == []
        self.require_settled()


@pytest.fixture
def bucket(tmp_path: Path, clean_hub_leaf: Sandbox) -> Bucket:
    """The bucket in the leaf."""
    made = Bucket(tmp_path, clean_hub_leaf)
    made.reset()
    return made


def test_equal_entries_are_not_written(bucket: Bucket) -> None:
    """Every message, with its revision, is the same; state names the entries in the hub."""
    bucket.relocate(ENTRIES)

    plan = bucket.apply()

    assert {s.op for s in plan.steps if s.address.startswith("hub/kv_entry")} == {"state.update"}
    assert [s.address for s in plan.steps if s.address.startswith("leaf/kv_entry")] == []
    assert bucket.messages("hub") == bucket.before
    bucket.require_entries(ENTRIES)


def test_a_changed_entry_is_written_once_at_the_new_address(bucket: Bucket) -> None:
    """A change, a new key and one that left the files are planned as without a relocation."""
    after = {"app.mode": "slow", "app.new": "1"}
    bucket.relocate(after)

    plan = bucket.apply()

    ops = {s.address: s.op for s in plan.steps if "kv_entry" in s.address}
    assert ops == {
        "hub/kv_entry/CONFIG/app.mode": "kv_entry.update",
        "hub/kv_entry/CONFIG/app.new": "kv_entry.create",
        "hub/kv_entry/CONFIG/app.level": "kv_entry.delete",
    }
    hazards = {(c.address, h.code) for c in plan.resource_changes for h in c.hazards}
    assert ("hub/kv_entry/CONFIG/app.level", "DELETES_MESSAGES") in hazards
    assert bucket.messages("hub")[: len(bucket.before)] == bucket.before
    assert len(bucket.messages("hub")) == len(bucket.before) + 3
    bucket.require_entries(after)


def test_a_write_of_an_application_survives(bucket: Bucket) -> None:
    """A key that an application changed since the last apply is drift that the plan shows."""
    with bucket.raw("leaf") as raw:
        raw.request("$KV.CONFIG.app.mode", b"of an application")
    bucket.relocate(ENTRIES)

    plan = bucket.space.plan()

    changes = {c.address: c.change.actions for c in plan.resource_changes}
    assert changes["hub/kv_entry/CONFIG/app.mode"] == ["update"]
    assert changes["hub/kv_entry/CONFIG/app.level"] == ["no-op"]


def test_a_death_at_some_writes(bucket: Bucket) -> None:
    """After a death at any write applies end with the same messages and the moved entries."""
    bucket.relocate(ENTRIES)
    with kill_after() as counter:
        bucket.apply()
    bucket.require_entries(ENTRIES)
    for point in (3, counter.done // 3, counter.done * 2 // 3, counter.done - 3, counter.done - 1):
        bucket.reset()
        bucket.relocate(ENTRIES)
        with kill_after(point), suppress(SimulatedKill):
            bucket.space.apply(allow_hazards=PERMITTED)
        bucket.apply()
        assert bucket.messages("hub") == bucket.before, point
        bucket.require_entries(ENTRIES)


def test_half_of_it_is_not_planned(bucket: Bucket) -> None:
    """Without the bucket its entries stay; an entry that is targeted takes both sides along."""
    bucket.relocate({"app.mode": "slow", "app.level": "3"})

    without = bucket.space.plan(excludes=("hub/kv/CONFIG",))
    targeted = bucket.space.plan(targets=("hub/kv_entry/CONFIG/app.mode",))

    assert (without.steps, without.errored) == ([], False)
    assert {"transfer.mirror", "transfer.delete"} <= {s.op for s in targeted.steps}
    assert bucket.messages("leaf") == bucket.before


def test_the_stages_of_a_bucket_with_entries(bucket: Bucket) -> None:
    """Preparing plans no entry; the cut-over moves them."""
    bucket.relocate(ENTRIES)

    first = bucket.apply(stage="prepare")
    second = bucket.apply(stage="cutover")

    assert [s.op for s in first.steps] == ["transfer.mirror", "transfer.compare"]
    assert "state.update" in {s.op for s in second.steps}
    assert bucket.messages("hub") == bucket.before
    bucket.require_entries(ENTRIES)


def test_the_way_back_of_a_prepared_bucket(bucket: Bucket) -> None:
    """With the old files the entries are where they were, and none was written."""
    bucket.relocate(ENTRIES)
    bucket.apply(stage="prepare")

    bucket.declare("leaf", ENTRIES)
    bucket.apply()

    assert (bucket.messages("leaf"), bucket.messages("hub")) == (bucket.before, [])
    again = bucket.space.plan()
    assert (again.steps, again.deferred) == ([], [])


def test_equal_objects_are_not_uploaded_again(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Objects of the files move with their store; a changed one is uploaded once, in the hub."""
    (tmp_path / "logo.png").write_bytes(bytes(range(256)) * 2_000)
    (tmp_path / "note.txt").write_text("hello")
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    objects = {"logo.png": {"file": "logo.png"}, "note.txt": {"file": "note.txt"}}
    store = {"bucket": "ASSETS", "objects": objects}
    space.write(object_stores=[store | {"domain": "leaf"}])
    _, result = space.apply()
    assert [s.error for s in result.steps if s.error] == []
    (tmp_path / "note.txt").write_text("changed")
    space.write(
        object_stores=[store | {"domain": "hub"}],
        relocate=[{"from": "leaf/object_store/ASSETS", "to": "hub/object_store/ASSETS"}],
    )

    plan, result = space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    ops = {s.address: s.op for s in plan.steps if "/object/" in s.address}
    assert ops == {
        "hub/object/ASSETS/logo.png": "state.update",
        "hub/object/ASSETS/note.txt": "object.update",
    }
    state = read_state(tmp_path).resources
    assert {str(a) for a in state if a.kind == "object"} == set(ops)
    again = space.plan()
    assert ([s.title for s in again.steps], again.errored) == ([], False)
