"""A stage of an attempt that died is taken over where all of its messages are proven to be there, and copied again where one was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.protocol import FencedPublisher
from jsplan.backfill.protocol.publisher import PublishRefusedError
from tests.backfill.backfill_pair import Pair, numbered_rows
from tests.support.simulated_kill import SimulatedKill
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from jsplan.sandbox import Sandbox

pytestmark = [pytest.mark.timeout(180), pytest.mark.matrix]


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Twenty messages in `S` of the leaf, and an empty `T` in the hub."""
    pair = Pair.create(tmp_path, clean_hub_leaf)
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    return pair


class LossyPublisher(FencedPublisher):
    """The fifth message is lost on its way, and all that is behind it arrives."""

    def write(self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> None:
        """Write all rows but one."""
        super().write(subject[:4], headers[:4], data[:4])
        self._sent += 1
        super().write(subject[5:], headers[5:], data[5:])


class HalvingPublisher(FencedPublisher):
    """Dies when half of what it has to send is sent, in the middle of a message."""

    def write(self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> None:
        """Send the first half of the bytes."""
        whole = self._connection

        class Half:
            def send(self, frames: memoryview) -> None:
                whole.send(frames[: len(frames) // 2])
                raise SimulatedKill

        self._connection: Any = Half()
        super().write(subject, headers, data)


def test_a_message_that_was_lost(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came behind it is not brought in before it: the stage is dropped, which is said, and everything is copied again, in order."""
    interrupt_run(pair, monkeypatch, LossyPublisher)
    said = RecordingObserver()

    found = pair.run(observer=said)

    assert (found.copied, found.verified) == (20, True)
    assert any("a message was lost on its way" in one for one in said.texts)
    pair.require_copied()


def test_a_lost_message_that_is_gone_at_the_origin(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the origin has let go of it there is nothing that could come out of order: the stage is brought in, and the gap is told."""
    interrupt_run(pair, monkeypatch, LossyPublisher)
    pair.delete("leaf", "S", 5)
    said = RecordingObserver()

    found = pair.run(observer=said)

    assert (found.copied, found.gap_messages) == (19, 1)
    assert not any("was lost" in one for one in said.texts)
    pair.require_copied()


def test_half_a_chunk_is_resumed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that nothing proves but the origin itself: none was lost, so none is copied again."""
    interrupt_run(pair, monkeypatch, HalvingPublisher)
    said = RecordingObserver()

    found = pair.run(observer=said)

    assert (found.copied, found.verified) == (20, True)
    assert any("Resuming with" in one for one in said.texts)
    assert not any("was lost" in one for one in said.texts)
    pair.require_copied()


def interrupt_run(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, chain: type[FencedPublisher]
) -> None:
    """Let a run end that writes its stage like this."""
    with monkeypatch.context() as patch:
        patch.setattr("jsplan.backfill.tasks.copy.FencedPublisher", chain)
        with pytest.raises((SimulatedKill, PublishRefusedError)):
            pair.run()
