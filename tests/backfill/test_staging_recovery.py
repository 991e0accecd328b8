"""Staging streams of interrupted attempts: resumed when complete, copied again otherwise."""

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
    """A publisher that loses the sixth message and sends all that is behind it.

    The first one is written alone.
    """

    def write(self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> None:
        """Write all rows but one."""
        if len(subject) == 1:
            super().write(subject, headers, data)
            return
        super().write(subject[:4], headers[:4], data[:4])
        self._sent += 1
        super().write(subject[5:], headers[5:], data[5:])


class HalvingPublisher(FencedPublisher):
    """A publisher that dies in the middle of a message."""

    def write(self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> None:
        """Send the first half of the bytes, after the first message."""
        if len(subject) == 1:
            super().write(subject, headers, data)
            return
        whole = self._connection

        class Half:
            def send(self, frames: memoryview) -> None:
                whole.send(frames[: len(frames) // 2])
                raise SimulatedKill

        self._connection: Any = Half()
        super().write(subject, headers, data)


def test_a_message_that_was_lost(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A staging stream that lacks a message is dropped, and everything is copied again."""
    interrupt_run(pair, monkeypatch, LossyPublisher)
    observer = RecordingObserver()

    found = pair.run(observer=observer)

    assert (found.copied, found.verified) == (20, True)
    assert any("a message was lost on its way" in text for text in observer.texts)
    pair.require_copied()


def test_a_lost_message_that_is_gone_at_the_origin(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A staging stream that lacks a message that the origin lost too is promoted with a gap."""
    interrupt_run(pair, monkeypatch, LossyPublisher)
    pair.delete("leaf", "S", 6)
    observer = RecordingObserver()

    found = pair.run(observer=observer)

    assert (found.copied, found.gap_messages) == (19, 1)
    assert not any("was lost" in text for text in observer.texts)
    pair.require_copied()


def test_half_a_chunk_is_resumed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A staging stream without a lost message is resumed."""
    interrupt_run(pair, monkeypatch, HalvingPublisher)
    observer = RecordingObserver()

    found = pair.run(observer=observer)

    assert (found.copied, found.verified) == (20, True)
    assert any("Resuming with" in text for text in observer.texts)
    assert not any("was lost" in text for text in observer.texts)
    pair.require_copied()


def interrupt_run(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, publisher: type[FencedPublisher]
) -> None:
    """Let a run end that stages messages with this publisher."""
    with monkeypatch.context() as patch:
        patch.setattr("jsplan.backfill.tasks.partition_writer.FencedPublisher", publisher)
        with pytest.raises((SimulatedKill, PublishRefusedError)):
            pair.run()
