"""What apply sees of the copies of a stream that it made anew: whether they follow the new one, and what it says where they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.applying import replication_wait
from jsplan.documents.plan import VERIFY_OP
from tests.support.raw import Raw
from tests.support.state import read_state
from tests.support.workspaces import Space, hub_leaf_space, single_space

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
#: A server looks after its copies every ten seconds, and some of its tries take thirty.
PATIENT = 150


def origin_config(mode: str, *, replaced: bool, **more: Any) -> dict[str, Any]:
    """The stream that is replaced, as it was and as it shall be."""
    return (
        {"name": "O", "subjects": ["o.>"], "lifecycle": {"on_replace": mode}}
        | ({"storage": "memory"} if replaced else {})
        | more
    )


def publish(raw: Raw, count: int) -> None:
    """So many messages, all of them stored."""
    for number in range(1, count + 1):
        raw.publish("o.x", b"%d" % number) if number < count else raw.api_ok("o.x", b"%d" % number)


def last_sequence(raw: Raw, stream: str, prefix: str = "$JS.API") -> int:
    """The last sequence of a stream."""
    return int(raw.api_ok(f"{prefix}.STREAM.INFO.{stream}")["state"]["last_seq"])


def message_count(raw: Raw, stream: str, prefix: str = "$JS.API") -> int:
    """How many messages a stream has."""
    return int(raw.api_ok(f"{prefix}.STREAM.INFO.{stream}")["state"]["messages"])


def verify_results(plan: Plan, result: ApplyResult) -> dict[str, str]:
    """How the look at each copy ended, by address."""
    steps = {step.id for step in plan.steps if step.op == VERIFY_OP}
    return {step.address: step.status for step in result.steps if step.id in steps}


def wait_until_copied(server: Server, look: Callable[[], bool]) -> None:
    """Wait for what is published to be copied: whoever was seen to follow does it at once."""
    server.wait_until(look, "copy what is published", 10.0)


@pytest.mark.matrix
@pytest.mark.timeout(PATIENT)
def test_copies_of_a_stream_that_keeps_its_messages(
    tmp_path: Path, clean_hub_leaf: Sandbox, server_version: tuple[int, ...]
) -> None:
    """A mirror and a source elsewhere, each also with a start that has not come yet, and a mirror of another owner: all follow."""
    mode = (
        "preserve" if server_version >= (2, 12) else "recreate"
    )  # before, what is mirrored cannot keep its messages
    space, hub = hub_leaf_space(tmp_path, clean_hub_leaf), clean_hub_leaf["hub"]
    copies = [
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
    space.write(streams=[origin_config(mode, replaced=False, domain="leaf"), *copies]).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.api_ok("$JS.leaf.API.STREAM.CREATE.THEIRS", {"name": "THEIRS", "mirror": {"name": "O"}})
        publish(raw, 20)
        ends = (("M", "$JS.hub.API"), ("G", "$JS.hub.API"), ("THEIRS", "$JS.leaf.API"))
        hub.wait_until(lambda: all(message_count(raw, *end) == 20 for end in ends), "copy", 60.0)
        plan, result = space.write(
            streams=[origin_config(mode, replaced=True, domain="leaf"), *copies]
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
        wait_until_copied(hub, lambda: all(message_count(raw, *end) == 25 for end in ends))
        late = (
            3 if server_version >= (2, 15) else 25
        )  # an older server takes a start behind the end for the end
        wait_until_copied(
            hub,
            lambda: (
                [message_count(raw, name, "$JS.hub.API") for name in ("LATE_M", "LATE_G")]
                == [late, late]
            ),
        )
    assert space.plan().steps == []


@pytest.mark.matrix
@pytest.mark.timeout(PATIENT)
def test_a_mirror_that_is_ahead_of_its_origin(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """An origin that the files let begin at 1 again: its mirror waits for ever: exit 6 with the way to mend it, and then mended."""
    if server_version < (2, 15):
        return  # older servers empty the mirror and begin again
    space = single_space(tmp_path, server)
    mirror = {"name": "M", "mirror": {"name": "O"}, "lifecycle": {"on_replace": "recreate"}}
    space.write(streams=[origin_config("recreate", replaced=False), mirror]).apply()
    with Raw(server.url) as raw:
        publish(raw, 20)
        server.wait_until(lambda: message_count(raw, "M") == 20, "copy", 60.0)
        again = space.write(streams=[origin_config("recreate", replaced=True, first_seq=1), mirror])
        plan, result = again.apply(allow_hazards=PERMITTED)

        assert (result.exit_code, result.summary["replaced"], verify_results(plan, result)) == (
            6,
            1,
            {"main/stream/M": "failed"},
        )
        said = next(step.error for step in result.steps if step.error)
        assert "stands at message 20, and the new main/stream/O is at 0" in said
        assert "jsplan apply --replace main/stream/M" in said
        assert [step.title for step in space.plan().steps] == [
            "check that stream M in main follows stream O in main again"
        ]
        plan, result = again.apply(allow_hazards=PERMITTED, replace=("main/stream/M",))
        assert (result.exit_code, verify_results(plan, result)) == (0, {"main/stream/M": "done"})
        publish(raw, 3)
        wait_until_copied(server, lambda: message_count(raw, "M") == 3)
    assert space.plan().steps == []


@pytest.mark.timeout(PATIENT)
def test_a_copy_that_does_not_follow_yet(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where time is up before its server looks, apply ends with 6 and names the copy; the next one has only that look left to do."""
    space = single_space(tmp_path, server)
    copy = {"name": "M", "mirror": {"name": "O"}}
    space.write(streams=[origin_config("recreate", replaced=False)]).apply()
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
        publish(raw, 20)
        server.wait_until(lambda: message_count(raw, "M") == 20, "copy", 60.0)
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
        said = next(step.error for step in result.steps if step.error)
        assert "main/stream/M receives no heartbeat of the new main/stream/O" in said
        assert "does not manage it" in said
        assert (
            last_sequence(raw, "O") == 20
        )  # also for those that nobody told us about it goes on counting
        assert read_state(space.folder).pending.keys() == {"main/stream/M"}
        assert space.plan(refresh_only=True).steps == []
        plan, result = space.write(streams=[origin_config("recreate", replaced=True), copy]).apply()
        assert (result.exit_code, verify_results(plan, result)) == (0, {"main/stream/M": "done"})
        publish(raw, 5)
        wait_until_copied(server, lambda: message_count(raw, "M") == 25)
    assert (read_state(space.folder).pending, space.plan().steps) == ({}, [])


def test_a_mirror_whose_domain_is_offline(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """One that is away when planned is named as not verified and stops nothing; one that goes away before its turn makes it exit 6."""
    sandbox = make_hub_leaf()
    space, hub = hub_leaf_space(tmp_path, sandbox), sandbox["hub"]
    copy = {"name": "M", "domain": "leaf", "mirror": {"name": "O", "domain": "hub"}}
    space.write(streams=[origin_config("recreate", replaced=False, domain="hub"), copy]).apply()
    plan = space.write(streams=[origin_config("recreate", replaced=True, domain="hub"), copy]).plan(
        allow_hazards=PERMITTED
    )
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
            streams=[origin_config("recreate", replaced=False, domain="hub"), copy]
        ).apply(allow_hazards=PERMITTED)
    assert (result.exit_code, result.summary["replaced"], verify_results(plan, result)) == (
        0,
        1,
        {},
    )
    said = [d.summary for d in plan.diagnostics if d.code == "JS426"]
    assert said == ["whether leaf/stream/M will follow the new stream is not verified: offline"]


def is_answered(raw: Raw, subject: str) -> bool:
    """Whether anybody answers."""
    try:
        raw.request(subject, b"")
    except Exception:  # noqa: BLE001 - whoever does not answer says it in several ways
        return False
    return True


def test_a_space_has_no_look_without_copies(tmp_path: Path, server: Server) -> None:
    """A stream that nobody copies is made anew without one more step, or a second more."""
    space: Space = single_space(tmp_path, server)
    space.write(streams=[origin_config("recreate", replaced=False)]).apply()
    plan, result = space.write(streams=[origin_config("recreate", replaced=True)]).apply(
        allow_hazards=PERMITTED
    )

    assert ([step.op for step in plan.steps], result.exit_code) == (
        ["stream.delete", "stream.create"],
        0,
    )
