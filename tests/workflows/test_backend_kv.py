"""Commands of a workspace with its state in a bucket."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import ConnectError, PartialApplyError, StateError, StateLockedError
from jsplan.options import DriftOptions, PlanOptions
from jsplan.state import LockInfo
from jsplan.workflows import apply as applying
from jsplan.workflows.drift import drift
from jsplan.workflows.state import pull, rm
from jsplan.workflows.status import status
from tests.support.api_audit import audit_requests
from tests.support.buckets import LONG_LEASE, kv_backend, new_bucket
from tests.support.process import start_process
from tests.support.raw import Raw, api
from tests.support.state import load_context
from tests.support.workspaces import RecordingObserver, Space, approve, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.conftest import MakeHubLeaf

pytestmark = pytest.mark.matrix


@pytest.fixture
def space(tmp_path: Path, clean_hub_leaf: Sandbox) -> Space:
    """A workspace of hub and leaf with its state in a bucket of the leaf."""
    return with_bucket(hub_leaf_space(tmp_path, clean_hub_leaf))


def with_bucket(space: Space, **fields: Any) -> Space:
    """Keep the state of the workspace in a new bucket in domain leaf."""
    space.base["backend"] = {"kv": {"domain": "leaf", "bucket": new_bucket()} | fields}
    return space


def test_state_across_domains(space: Space) -> None:
    """Commands work with the state in a domain that is reached through another one."""
    space.write(streams=[{"name": "A", "domain": ["hub", "leaf"]}])
    _, result = space.apply()

    assert result.exit_code == 0
    assert not space.plan().has_changes
    assert drift(space.load, DriftOptions(), RecordingObserver()).exit_code == 0
    assert sorted(json.loads(pull(space.load))["resources"]) == ["hub/stream/A", "leaf/stream/A"]
    assert rm(space.load, ("hub/**",), 0) == ["hub/stream/A"]
    assert [str(address) for address in load_context(space.load).state.resources] == [
        "leaf/stream/A"
    ]
    assert not (space.folder / "state").exists()


def test_the_bucket_of_the_state_is_no_resource(
    space: Space, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """The bucket of the state is neither unmanaged nor planned, and a destroy keeps it."""
    space.write(streams=[{"name": "A", "domain": "leaf"}]).apply()
    (tmp_path / "other").mkdir()
    other = hub_leaf_space(tmp_path / "other", clean_hub_leaf).write(streams=[])

    assert drift(space.load, DriftOptions(), RecordingObserver()).unmanaged == []
    assert [
        u.address for u in drift(other.load, DriftOptions(), RecordingObserver()).unmanaged
    ] == ["leaf/stream/A"]
    space.apply(destroy=True, allow_hazards=("DELETES_STREAM",))
    assert load_context(space.load).state.serial == 2


def test_status_does_not_list_the_bucket(space: Space, clean_hub_leaf: Sandbox) -> None:
    """Status omits the bucket of the state, also if another tool created it."""
    bucket = space.base["backend"]["kv"]["bucket"]
    leaf = clean_hub_leaf["leaf"]
    with Raw(leaf.url, leaf.user, leaf.password) as raw:
        config = {
            "name": f"KV_{bucket}",
            "subjects": [f"$KV.{bucket}.>"],
            "max_msgs_per_subject": 10,
            "allow_direct": True,
        }
        raw.api_ok(
            f"$JS.API.STREAM.CREATE.KV_{bucket}",
            config | {"allow_rollup_hdrs": True, "discard": "new"},
        )
        raw.consumer(f"KV_{bucket}", "C", ack_policy="none")
    assert space.write(streams=[{"name": "A", "domain": ["hub", "leaf"]}]).apply()[1].exit_code == 0
    found = status(space.load, RecordingObserver())

    assert [s["address"] for s in found.streams] == ["hub/stream/A", "leaf/stream/A"]
    assert found.consumers == []


async def test_two_applies_at_once(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A second apply is refused with the holder of the lock; plan and drift take no lock."""
    bucket = space.base["backend"]["kv"]["bucket"]
    holder = kv_backend(clean_hub_leaf["leaf"], bucket, workspace="test", lease=LONG_LEASE)
    space.write(streams=[{"name": "A", "domain": "hub"}])
    async with holder.lock(LockInfo.for_this_process("destroy"), 0):
        with pytest.raises(StateLockedError, match="for destroy since"):
            await asyncio.to_thread(lambda: space.apply(lock_timeout=0))
        plan = await asyncio.to_thread(space.plan)
        found = await asyncio.to_thread(
            lambda: drift(space.load, DriftOptions(), RecordingObserver())
        )
    await holder.close()

    assert plan.has_changes
    assert found.exit_code == 0


def test_plan_and_drift_write_nothing(space: Space, clean_hub_leaf: Sandbox) -> None:
    """Plan and drift only read from a server with the state, and create no bucket."""
    space.write(streams=[{"name": "A", "domain": "hub"}])
    with audit_requests(clean_hub_leaf) as seen:
        space.plan()
        drift(space.load, DriftOptions(), RecordingObserver())

    assert seen
    assert [
        line
        for line in seen
        if not any(verb in line for verb in (".INFO", " INFO", ".NAMES", ".LIST", ".GET"))
    ] == []


@pytest.mark.timeout(120)
def test_a_state_in_an_offline_domain(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """Without the domain of the state, all commands end with exit code 1."""
    sandbox = make_hub_leaf()
    space = with_bucket(hub_leaf_space(tmp_path, sandbox)).write(
        streams=[{"name": "A", "domain": "hub"}]
    )
    space.apply()
    sandbox["leaf"].stop()
    space.write(streams=[{"name": "A", "domain": "hub", "max_age": "1d"}])

    for command in (
        space.plan,
        space.apply,
        lambda: drift(space.load, DriftOptions(), RecordingObserver()),
    ):
        with pytest.raises((StateError, ConnectError)) as failed:
            command()
        assert int(failed.value.exit_code) == 1
        assert "in domain leaf" in str(failed.value) or "domain leaf" in str(failed.value)
    hub = sandbox["hub"]
    assert api(hub.url, hub.user, hub.password, "$JS.API.STREAM.INFO.A")["config"]["max_age"] == 0


def test_a_short_lease_stops_an_apply(
    space: Space, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """An apply that loses its lock ends with 6, and the next apply finishes it.

    Before 2.11, the lost lock is noticed only after another process has taken it.
    """
    leaf, bucket = clean_hub_leaf["leaf"], space.base["backend"]["kv"]["bucket"]
    space.write(streams=[{"name": f"S{n:02}", "domain": "hub"} for n in range(12)])

    class LockRemover(RecordingObserver):
        """Removes the lock when the fifth step is done."""

        def event(self, event: Any) -> None:
            super().event(event)
            if len(self.events) == 10:
                with Raw(leaf.url, leaf.user, leaf.password) as raw:
                    raw.api_ok(
                        f"$JS.API.STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}._lock.test"}
                    )

    with pytest.raises(
        PartialApplyError,
        match=r"was lost: it expired, or it was removed; \d+ of 12 steps are done",
    ) as failed:
        applying.apply(space.load, PlanOptions(parallelism=1), approve, LockRemover())
    assert int(failed.value.exit_code) == 6
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        made = raw.api_ok("$JS.API.STREAM.NAMES")["total"]
    known = {*load_context(space.load).state.resources, *load_context(space.load).state.pending}

    assert 0 < made < (12 if server_version >= (2, 11) else 13)
    assert len(known) >= made
    assert space.apply()[1].exit_code == 0
    assert not space.plan().has_changes


@pytest.mark.timeout(120)
def test_ctrl_c_releases_the_lock(space: Space) -> None:
    """Ctrl-C ends apply with 130, keeps its completed steps in state and releases the lock."""
    space.write(streams=[{"name": f"S{n:03}", "domain": "hub"} for n in range(200)])
    process = start_process(space.folder, "apply", "-y", "--parallelism", "2")
    assert process.stderr is not None
    while (
        not (line := process.stderr.readline()).startswith(b"[")
        or int(line[1:].split(b"/")[0]) < 10
    ):
        assert line, "apply ended too early"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert (process.returncode, b"Traceback" in err) == (130, False)
    assert len(load_context(space.load).state.resources) >= 10
    assert space.apply(lock_timeout=0)[1].exit_code == 0
