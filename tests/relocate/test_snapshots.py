"""A snapshot of the quiesced origin moves a stream that no mirror can copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.applying.step_context import StepNotStarted
from jsplan.applying.transfer import copy
from jsplan.jetstream import DomainApi
from jsplan.workflows.status import status
from tests.relocate.scene import PERMITTED
from tests.relocate.systems import TwoSystems
from tests.relocate.test_deaths import die_before_phase
from tests.support.raw import streams
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

OPS = [
    "transfer.quiesce",
    "transfer.copy",
    "transfer.compare",
    "transfer.activate",
    *["transfer.consumer"] * 3,
    "transfer.compare",
    "transfer.delete",
]


@pytest.fixture
def systems(tmp_path: Path, make_server: MakeServer) -> TwoSystems:
    """Two servers of the newest version, and the stream on the old one."""
    made = TwoSystems(tmp_path, make_server(), make_server())
    made.reset()
    return made


def test_a_stream_moves_to_another_system(systems: TwoSystems) -> None:
    """Sequences, times and positions stay; the plan says why and how long publishers wait."""
    plan = systems.apply()

    assert [s.op for s in plan.steps if s.op.startswith("transfer.")] == OPS
    notes = [d for d in plan.diagnostics if d.code == "JS498"]
    assert len(notes) == 1
    assert notes[0].summary.startswith("is copied by a snapshot while publishers wait, because ")
    assert "59 messages" in notes[0].detail
    found = {h.code: h.message for c in plan.resource_changes for h in c.hazards}
    assert "takes messages there after about 2 s" in found["REMOVES_SUBJECTS"]
    systems.require_relocated()


def test_memory_storage_and_counters_move_too(systems: TwoSystems) -> None:
    """Archives of 2.15 fit another storage, and keep what each counter says."""
    systems.reset(storage="memory")
    systems.apply()
    systems.require_relocated()

    systems.reset(allow_msg_counter=True, allow_direct=True)
    systems.apply()
    systems.require_relocated()
    with systems.raw("new") as raw:
        assert b'"val":"21"' in raw.request("A.0", b"", {"Nats-Incr": "+1"})[1]


def test_what_a_killed_restore_left_is_not_taken(systems: TwoSystems) -> None:
    """Without the record that it is complete the copy is deleted, and made again."""
    die_before_phase(systems, "copied")
    with systems.raw("new") as raw:
        raw.delete("B", 17)

    assert [r["phase"] for r in status(systems.space.load, RecordingObserver()).relocations] == [
        "cut-over"
    ]
    systems.apply()

    systems.require_relocated()


def test_a_copy_that_lacks_a_message_is_not_activated(systems: TwoSystems) -> None:
    """The origin gets its subjects back, and the next apply copies again."""
    request = DomainApi.request
    with pytest.MonkeyPatch.context() as patch:
        left = [True]

        async def losing(api: DomainApi, verb: str, *rest: Any, **options: Any) -> Any:
            if verb == "STREAM.INFO.B" and left and api.domain.key == "new":
                with systems.raw("new") as raw:
                    if "B" in streams(raw):
                        left.pop()
                        raw.delete("B", 17)
            return await request(api, verb, *rest, **options)

        patch.setattr(DomainApi, "request", losing)
        _, result = systems.space.apply(allow_hazards=PERMITTED)

    failed = [s.error or "" for s in result.steps if s.status == "failed"]
    assert len(failed) == 1
    assert failed[0].endswith("the origin has its subjects back, and nothing of it is lost")
    systems.require_restored()
    systems.apply()
    systems.require_relocated()


def test_the_stages_of_a_snapshot(systems: TwoSystems) -> None:
    """There is nothing to prepare; the cut-over needs no preparation."""
    prepared = systems.space.plan(stage="prepare")

    systems.apply(stage="cutover")

    assert (prepared.steps, prepared.errored) == ([], False)
    systems.require_relocated()


@pytest.mark.download
@pytest.mark.parametrize(
    ("old", "new"), [("2.12.8", "2.15.1"), ("2.12.8", "2.12.8"), ("2.14.6", "2.12.8")]
)
def test_older_servers_under_the_same_name(
    old: str, new: str, tmp_path: Path, make_server: MakeServer
) -> None:
    """Archives of servers before 2.15 move a stream to any server under its own name."""
    systems = TwoSystems(tmp_path, make_server(version=old), make_server(version=new), "A")
    systems.reset()

    systems.apply()

    systems.require_relocated()


@pytest.mark.download
@pytest.mark.parametrize(
    ("old", "new", "name", "why"),
    [
        ("2.15.1", "2.14.6", "A", "snapshots of nats-server 2.15 can be restored there and later"),
        ("2.14.6", "2.15.1", "B", "a snapshot is restored under its own name only"),
    ],
)
def test_versions_that_cannot(
    old: str, new: str, name: str, why: str, tmp_path: Path, make_server: MakeServer
) -> None:
    """The plan refuses versions whose servers refuse the archive."""
    systems = TwoSystems(tmp_path, make_server(version=old), make_server(version=new), name)
    systems.reset()

    plan = systems.space.plan()

    found = [d for d in plan.diagnostics if d.severity == "error"]
    assert [d.code for d in found] == ["JS495"]
    assert why in found[0].detail
    assert plan.steps == []


def test_ctrl_c_while_it_copies_restores_the_origin(
    systems: TwoSystems, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop does not wait for the rest of the copy: publishers are acknowledged again."""
    calls = list[int]()

    def stop(_: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise StepNotStarted

    with monkeypatch.context() as patch:
        patch.setattr(copy, "require_not_stopped", stop)
        _, result = systems.space.apply(allow_hazards=PERMITTED)

    assert result.exit_code != 0
    assert len(calls) == 2
    systems.require_restored()
    systems.apply()
    systems.require_relocated()


def test_a_rehearsal_runs_every_step(systems: TwoSystems) -> None:
    """On embedded servers of the same shape no step is refused."""
    plan = systems.space.plan(allow_hazards=PERMITTED, rehearse=True)

    assert plan.rehearsal is not None
    assert (plan.rehearsal.refused, plan.rehearsal.not_tried) == (0, 0)
