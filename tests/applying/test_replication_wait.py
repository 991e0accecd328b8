"""Checks of apply that downstream streams follow a replaced origin."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from jsplan.applying import replication_wait
from jsplan.documents.step_kinds import VERIFY_OP
from jsplan.planning.replication import checks
from tests.applying.downstream_helpers import origin_config
from tests.support.raw import Raw, delete_all_streams, encode
from tests.support.state import read_state
from tests.support.workspaces import Space, hub_leaf_space, left_to_do, single_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox, Server
    from tests.conftest import MakeHubLeaf

PERMITTED = (
    "DELETES_STREAM",
    "BREAKS_REPLICATION",
    "REMOVES_SUBJECTS",
    "DUPLICATES_MESSAGES",
    "IRREVERSIBLE",
)
#: A server checks its downstream streams every ten seconds; some attempts take thirty.
PATIENT = 150


def publish(raw: Raw, count: int) -> None:
    """Publish `count` messages and wait until the last one is stored."""
    raw.publish_all(encode("o.x", b"%d" % number) for number in range(1, count))
    raw.api_ok("o.x", b"%d" % count)


def last_sequence(raw: Raw, stream: str, prefix: str = "$JS.API") -> int:
    """Return the last sequence of a stream."""
    return int(raw.api_ok(f"{prefix}.STREAM.INFO.{stream}")["state"]["last_seq"])


def is_connected(raw: Raw, stream: str, domain: str) -> bool:
    """Return True if the mirror or source of a stream has connected to its origin."""
    info = raw.api_ok(f"$JS.{domain}.API.STREAM.INFO.{stream}")
    flow = info.get("mirror") or info["sources"][0]
    return int(flow.get("active", -1)) >= 0


def verify_results(plan: Plan, result: ApplyResult) -> dict[str, str]:
    """Return the status of each replication check, by address."""
    steps = {step.id for step in plan.steps if step.op == VERIFY_OP}
    return {step.address: step.status for step in result.steps if step.id in steps}


def wait_until_copied(server: Server, look: Callable[[], bool]) -> None:
    """Wait until what is published is copied; a verified downstream stream does it at once."""
    server.wait_until(look, "copy what is published", 10.0)


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.timeout(PATIENT)
def test_downstream_streams_of_a_replaced_origin_follow_it(
    tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """Mirrors and sources of a replaced origin, managed or not, are verified as following."""
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    downstream = [
        {"name": "M", "domain": "hub", "mirror": {"name": "O", "domain": "leaf"}},
        {
            "name": "G",
            "domain": "hub",
            "sources": [{"name": "O", "domain": "leaf", "filter_subject": "o.>"}],
        },
        {
            "name": "LATE_M",
            "domain": "hub",
            "mirror": {"name": "O", "domain": "leaf", "opt_start_seq": 23},
        },
        {
            "name": "LATE_G",
            "domain": "hub",
            "sources": [{"name": "O", "domain": "leaf", "opt_start_seq": 23}],
        },
    ]
    space.write(
        streams=[origin_config("preserve", replaced=False, domain="leaf"), *downstream]
    ).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.create("THEIRS", "leaf", mirror={"name": "O"})
        late_streams = [("LATE_M", "hub"), ("LATE_G", "hub")]
        # Older servers treat a start after the end as the end when they connect: here of an empty O.
        hub.wait_until(
            lambda: all(is_connected(raw, *end) for end in late_streams), "connect", 60.0
        )
        publish(raw, 20)
        ends = [("M", "hub"), ("G", "hub"), ("THEIRS", "leaf")]
        copying = ends if server_version >= (2, 15) else ends + late_streams
        hub.wait_until(lambda: all(raw.count(*end) == 20 for end in copying), "copy", 60.0)
        plan, result = space.write(
            streams=[origin_config("preserve", replaced=True, domain="leaf"), *downstream]
        ).apply(allow_hazards=PERMITTED)

        names = [
            "hub/stream/G",
            "hub/stream/LATE_G",
            "hub/stream/LATE_M",
            "hub/stream/M",
            "leaf/stream/THEIRS",
        ]
        assert [
            h.causes
            for c in plan.resource_changes
            for h in c.hazards
            if h.code == "BREAKS_REPLICATION"
        ] == [names]
        assert verify_results(plan, result) == dict.fromkeys(names, "done")
        assert (result.exit_code, result.summary["replaced"], result.summary["changed"]) == (
            0,
            1,
            2 if server_version >= (2, 15) else 0,
        )
        publish(raw, 5)
        wait_until_copied(hub, lambda: all(raw.count(*end) == 25 for end in ends))
        # Older servers copied all from the start.
        late = 3 if server_version >= (2, 15) else 25
        wait_until_copied(hub, lambda: all(raw.count(*end) == late for end in late_streams))
    assert left_to_do(space.plan()) == []


@pytest.mark.matrix
@pytest.mark.timeout(PATIENT)
def test_a_mirror_that_is_ahead_of_its_origin(
    tmp_path: Path,
    server: Server,
    server_version: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mirror ahead of its new origin ends apply with 6 and the command that repairs it.

    A plan that sees it coming is refused (JS483).
    """
    monkeypatch.setattr(checks, "check_stuck_mirrors", lambda *_: ())
    if server_version < (2, 15):
        return  # older servers empty the mirror and begin again
    space = single_space(tmp_path, server)
    mirror = {"name": "M", "mirror": {"name": "O"}, "lifecycle": {"on_replace": "recreate"}}
    space.write(streams=[origin_config("recreate", replaced=False), mirror]).apply()
    with Raw(server.url) as raw:
        publish(raw, 20)
        raw.wait_for("M", 20)
        again = space.write(streams=[origin_config("recreate", replaced=True, first_seq=1), mirror])
        plan, result = again.apply(allow_hazards=PERMITTED)

        assert (result.exit_code, result.summary["replaced"], verify_results(plan, result)) == (
            6,
            1,
            {"main/stream/M": "failed"},
        )
        error = next(step.error for step in result.steps if step.error)
        assert "stands at message 20, and the new main/stream/O is at 0" in error
        assert "jsplan apply --replace main/stream/M" in error
        assert [step.title for step in space.plan().steps] == [
            "check that stream M in main follows stream O in main again"
        ]
        plan, result = again.apply(allow_hazards=PERMITTED, replace=("main/stream/M",))
        assert (result.exit_code, verify_results(plan, result)) == (0, {"main/stream/M": "done"})
        publish(raw, 3)
        wait_until_copied(server, lambda: raw.count("M") == 3)
    assert left_to_do(space.plan()) == []


@pytest.mark.timeout(PATIENT)
def test_a_downstream_stream_that_does_not_follow_yet(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout of the check ends apply with 6, and the next apply repeats only the check."""
    space = single_space(tmp_path, server)
    downstream = {"name": "M", "mirror": {"name": "O"}}
    space.write(streams=[origin_config("recreate", replaced=False)]).apply()
    with Raw(server.url) as raw:
        raw.create("M", mirror={"name": "O"})
        publish(raw, 20)
        raw.wait_for("M", 20)
        with monkeypatch.context() as patch:
            patch.setattr(replication_wait, "REPLICATION_TIMEOUT", 0.0)
            plan, result = space.write(streams=[origin_config("recreate", replaced=True)]).apply(
                allow_hazards=PERMITTED
            )

        assert (result.exit_code, result.summary["replaced"], verify_results(plan, result)) == (
            6,
            1,
            {"main/stream/M": "failed"},
        )
        error = next(step.error for step in result.steps if step.error)
        assert "main/stream/M receives no heartbeat of the new main/stream/O" in error
        assert "does not manage it" in error
        # Sequences also continue for downstream streams that are unmanaged.
        assert last_sequence(raw, "O") == 20
        assert read_state(space.folder).pending.keys() == {"main/stream/M"}
        assert left_to_do(space.plan(refresh_only=True)) == []
        plan, result = space.write(
            streams=[origin_config("recreate", replaced=True), downstream]
        ).apply()
        assert (result.exit_code, verify_results(plan, result)) == (0, {"main/stream/M": "done"})
        publish(raw, 5)
        wait_until_copied(server, lambda: raw.count("M") == 25)
    assert (read_state(space.folder).pending, space.plan().steps) == ({}, [])


def test_a_mirror_whose_domain_is_offline(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """An offline mirror is not verified; one that goes offline before its check ends with 6."""
    sandbox = make_hub_leaf()
    space, hub = hub_leaf_space(tmp_path, sandbox), sandbox["hub"]
    downstream = {"name": "M", "domain": "leaf", "mirror": {"name": "O", "domain": "hub"}}
    space.write(
        streams=[origin_config("recreate", replaced=False, domain="hub"), downstream]
    ).apply()
    plan = space.write(
        streams=[origin_config("recreate", replaced=True, domain="hub"), downstream]
    ).plan(allow_hazards=PERMITTED)
    with Raw(hub.url, hub.user, hub.password, timeout=10) as raw:
        sandbox["leaf"].stop()
        hub.wait_until(
            lambda: not is_answered(raw, "$JS.leaf.API.INFO"), "notice that the leaf is gone", 30.0
        )
        result = space.apply_saved(plan)
        assert (result.exit_code, result.summary["replaced"]) == (6, 1)
        assert verify_results(plan, result) == {"leaf/stream/M": "skipped"}
        assert "domain leaf is offline" in str(
            next(step.error for step in result.steps if step.error)
        )

        plan, result = space.write(
            streams=[origin_config("recreate", replaced=False, domain="hub"), downstream]
        ).apply(allow_hazards=PERMITTED)
    assert (result.exit_code, result.summary["replaced"], verify_results(plan, result)) == (
        0,
        1,
        {},
    )
    error = [d.summary for d in plan.diagnostics if d.code == "JS426"]
    assert error == ["whether leaf/stream/M will follow the new stream is not verified: offline"]


def is_answered(raw: Raw, subject: str) -> bool:
    """Return True if the subject answers."""
    try:
        raw.request(subject, b"")
    except Exception:  # noqa: BLE001 - a missing answer has several errors
        return False
    return True


def test_no_check_without_downstream_streams(tmp_path: Path, server: Server) -> None:
    """Replacing a stream without downstream adds no check to the plan."""
    space: Space = single_space(tmp_path, server)
    space.write(streams=[origin_config("recreate", replaced=False)]).apply()
    plan, result = space.write(streams=[origin_config("recreate", replaced=True)]).apply(
        allow_hazards=PERMITTED
    )

    assert ([step.op for step in plan.steps], result.exit_code) == (
        ["stream.delete", "stream.create"],
        0,
    )


@pytest.mark.timeout(PATIENT)
def test_an_interest_copy_that_drops_the_newest_message(tmp_path: Path, server: Server) -> None:
    """An interest copy need not store a message that none of its consumers wants."""
    space = single_space(tmp_path, server)
    consumer = {"name": "C", "ack_policy": "explicit", "filter_subject": "o.wanted"}
    copy = {"name": "I", "sources": [{"name": "O"}], "retention": "interest"}
    copy["consumers"] = [consumer]
    with Raw(server.url) as raw:
        delete_all_streams(raw)
        space.write(streams=[origin_config("preserve", replaced=False), copy]).apply()
        raw.api_ok("o.wanted", b"x")
        raw.api_ok("o.unwanted", b"x")
        while raw.count("I") != 1:
            time.sleep(0.05)
        space.write(streams=[origin_config("preserve", replaced=True), copy])
        _, result = space.apply(allow_hazards=PERMITTED)
        assert result.exit_code == 0, [s.error for s in result.steps if s.error]
        raw.api_ok("o.wanted", b"x")
        while raw.count("I") != 2:
            time.sleep(0.05)
