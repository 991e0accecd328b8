"""A relocation that fails gives the origin its subjects back, and the next apply continues."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError
from jsplan.jetstream import DomainApi
from jsplan.jetstream.connection import NatsConnection
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from jsplan.workflows.revert import RevertOptions, revert
from jsplan.workflows.status import status
from tests.relocate.scene import PERMITTED, RENAMED, TO_HUB, Scene
from tests.relocate.test_deaths import die_before_phase
from tests.support import stream_content
from tests.support.raw import NoResponders
from tests.support.refused_request import refuse_request
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.conftest import MakeHubLeaf

#: The request of each step up to the activation: its verb, and its number among those with it.
REQUESTS = {
    "mirror": ("STREAM.CREATE.B", 1),
    "quiesce": ("STREAM.UPDATE.A", 1),
    "promote": ("STREAM.UPDATE.B", 1),
    "activate": ("STREAM.UPDATE.B", 2),
}


@contextmanager
def at_first_request(verb: str, domain: str, act: Callable[[], None]) -> Iterator[None]:
    """Act once, right after the first answered request of this kind."""
    with pytest.MonkeyPatch.context() as patch:
        request, left = DomainApi.request, [act]

        async def acting(api: DomainApi, api_verb: str, *rest: Any, **options: Any) -> Any:
            answer = await request(api, api_verb, *rest, **options)
            if left and api_verb.startswith(verb) and api.domain.key == domain:
                left.pop()()
            return answer

        patch.setattr(DomainApi, "request", acting)
        yield


@pytest.mark.parametrize("published", [True, False], ids=["published", "silent"])
@pytest.mark.parametrize("step", REQUESTS)
def test_a_refusal_before_the_activation_restores_the_origin(
    step: str, published: bool, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Apply exits with 6, publishers are acknowledged again, and the next apply ends it."""
    scene = Scene(tmp_path, clean_hub_leaf, RENAMED)
    scene.reset()

    with refuse_request(*REQUESTS[step]):
        _, result = scene.space.apply(allow_hazards=PERMITTED)

    failed = [s.error or "" for s in result.steps if s.status == "failed"]
    rejected = [subject for item in result.interrupted for subject in item["rejected"]]
    assert (result.exit_code, len(failed), rejected) == (6, 1, [])
    assert "insufficient memory resources available" in failed[0]
    if step in ("promote", "activate"):
        assert failed[0].endswith("the origin has its subjects back, and nothing of it is lost")
    with scene.raw("leaf") as raw:
        assert stream_content.messages(raw, "A") == scene.expected
        if published:
            assert b'"seq"' in raw.request("A.1", b"after the failure")[1]
        scene.expected = stream_content.messages(raw, "A")
        scene.unread = {name: count + published for name, count in scene.unread.items()}

    _, again = scene.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in again.steps if s.error] == []
    scene.require_relocated()


def test_a_paused_hub_during_the_cutover_restores_the_origin(
    tmp_path: Path, make_hub_leaf: MakeHubLeaf
) -> None:
    """The hub of the target stops answering after the leaf is quiesced; the leaf is restored."""
    sandbox = make_hub_leaf()
    scene = Scene(tmp_path, sandbox, TO_HUB)
    scene.space.base["connections"]["hub"] = {
        "url": sandbox["leaf"].url,
        "user": sandbox["leaf"].user,
        "password": sandbox["leaf"].password,
        "timeout": "2s",
    }
    scene.reset()

    with at_first_request("STREAM.UPDATE.A", "leaf", sandbox["hub"].pause):
        _, result = scene.space.apply(allow_hazards=PERMITTED)
    try:
        assert result.exit_code == 6
        with scene.raw("leaf") as raw:
            config = raw.config("A")
            assert config["subjects"] == ["A.>"]
    finally:
        sandbox["hub"].resume()

    sandbox["hub"].wait_until(lambda: _answers(scene), "answer again", 60)
    _, again = scene.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in again.steps if s.error] == []
    scene.require_relocated()


def test_a_message_that_no_answer_over_the_link_carries(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """A message of nearly max_payload needs `allow_direct`; the error says so, and it helps."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    with scene.raw("leaf") as raw:
        assert b'"seq"' in raw.request("A.1", b"x" * 1_000_000)[1]

    _, failed = scene.space.apply(allow_hazards=PERMITTED)
    errors = [step.error or "" for step in failed.steps if step.status == "failed"]
    assert ["Set allow_direct: true there" in error for error in errors] == [True]
    scene.body["allow_direct"] = True
    scene.declare_before()
    scene.space.apply(allow_hazards=PERMITTED)
    scene.declare_after()
    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert result.exit_code == 0
    with scene.raw("hub") as raw:
        assert len(stream_content.messages(raw, "A")) == len(scene.expected) + 1


def test_an_unwritten_end_marker_is_no_message(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A message that is published with its sequence, after the origin is restored, is kept."""
    scene = Scene(tmp_path, clean_hub_leaf, RENAMED)
    scene.reset()
    with pytest.MonkeyPatch.context() as patch, kill_after() as mortal:
        request = NatsConnection.request

        async def die_at_marker(link: NatsConnection, subject: str, *rest: Any, **more: Any) -> Any:
            if subject.startswith("jsplan.staging."):
                mortal.remaining = -1
                raise SimulatedKill
            return await request(link, subject, *rest, **more)

        patch.setattr(NatsConnection, "request", die_at_marker)
        with pytest.raises(SimulatedKill):
            scene.space.apply(allow_hazards=PERMITTED)
    scene.declare_before()

    def publish() -> None:
        with scene.raw("leaf") as raw:
            assert json.loads(raw.request("A.1", b"a message")[1])["seq"] == scene.count + 1

    with at_first_request("STREAM.UPDATE.A", "leaf", publish):
        _, result = scene.space.apply()

    assert [s.error for s in result.steps if s.error] == []
    with scene.raw("leaf") as raw:
        assert stream_content.messages(raw, "A")[-1][3] == b"a message"


def _answers(scene: Scene) -> bool:
    with scene.raw("leaf") as raw:
        try:
            return "streams" in raw.api("$JS.hub.API.INFO")
        except (NoResponders, TimeoutError):
            return False


@pytest.mark.parametrize("phase", ["copied", "activating"])
def test_an_interrupted_relocation_is_reported(
    phase: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Plan, drift and status say that publishes are rejected, and how to end that."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    die_before_phase(scene, phase)

    planned = [d for d in scene.space.plan().diagnostics if d.code == "JS496"]
    drift_report = drift(scene.space.load, DriftOptions(), RecordingObserver())
    status_report = status(scene.space.load, RecordingObserver())

    assert len(planned) == 1
    assert planned[0].summary.startswith(
        "leaf/stream/A is down: publishes to A.> are rejected, because its relocation"
    )
    for reported in (drift_report.interrupted, status_report.interrupted):
        assert [item["address"] for item in reported] == ["leaf/stream/A"]
        assert reported[0]["summary"] == planned[0].summary
        assert "To finish it: jsplan apply." in reported[0]["detail"]


@pytest.mark.parametrize("phase", ["mirrored", "activated"])
def test_revert_refuses_an_interrupted_relocation(
    phase: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """It is finished, or the old files are applied: both are said, and nothing is touched."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    die_before_phase(scene, phase)
    last = read_state(tmp_path).history[-1]["id"]

    with pytest.raises(RefusedError, match="is not finished") as refused:
        revert(scene.space.load, RevertOptions(last), approve, RecordingObserver())

    assert "Finish it: jsplan apply." in str(refused.value.hint)
    scene.require_nothing_lost()


def test_a_copy_that_lacks_a_message_is_not_activated(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """The origin gets its subjects back, the copy is deleted, and the next apply copies again."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    die_before_phase(scene, "quiesced")
    with scene.raw("hub") as raw:
        raw.delete("A", 17)

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    failed = [s.error or "" for s in result.steps if s.status == "failed"]
    assert len(failed) == 1
    assert "hub/stream/A is not equal to leaf/stream/A: messages is 57, not 58" in failed[0]
    assert failed[0].endswith("the origin has its subjects back, and nothing of it is lost")
    scene.require_nothing_lost()
    _, again = scene.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in again.steps if s.error] == []
    scene.require_relocated()
