"""Staging streams of interrupted attempts: resumed when complete, copied again otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.protocol import FencedPublisher
from jsplan.backfill.protocol.publisher import PublishRefusedError
from jsplan.backfill.tasks.staging_streams import STAGING_PREFIX
from tests.backfill.backfill_pair import Pair, numbered_rows
from tests.support.raw import streams
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


@pytest.mark.parametrize("order", ["stream", "subject", "none"])
@pytest.mark.parametrize("size", [0, 400, 1_700])
def test_a_staging_stream_holds_a_prefix(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, order: str, size: int
) -> None:
    """Wherever a writer dies, its staging stream has the first messages of each of its subjects.

    Another run then copies everything once, and no subject has lost its order.
    """
    pair.write_entry(order=order)
    subjects = [b"s.a", b"s.b", b"s.c"]
    pair.publish("leaf", [(subjects[n % 3], b"", b"%d" % n) for n in range(21, 61)])

    class DyingPublisher(FencedPublisher):
        """Send so many bytes, then die."""

        def write(
            self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray
        ) -> None:
            connection = self._connection

            class Dying:
                def send(self, frames: memoryview) -> None:
                    connection.send(frames[:size])
                    raise SimulatedKill

            if len(subject) > 1 or not size:
                self._connection: Any = Dying()
            super().write(subject, headers, data)

    interrupt_run(pair, monkeypatch, DyingPublisher)

    with pair.raw() as raw:
        names = [name for name in streams(raw, "$JS.hub.API") if name.startswith(STAGING_PREFIX)]
    for staged in [pair.stored("hub", name) for name in names]:
        for subject in {message.subject for message in staged}:
            whole = [one.data for one in pair.stored("leaf", "S") if one.subject == subject]
            part = [one.data for one in staged if one.subject == subject]
            assert part == whole[: len(part)]
        if order == "stream":
            assert [int(one.data) for one in staged] == list(range(1, len(staged) + 1))
    assert pair.run().verified
    for subject in {one.subject for one in pair.stored("leaf", "S")}:
        origin, target = (
            [one.data for one in pair.stored(*side) if one.subject == subject]
            for side in (("leaf", "S"), ("hub", "T"))
        )
        assert target == origin
    pair.require_nothing_left()


def interrupt_run(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, publisher: type[FencedPublisher]
) -> None:
    """Let a run end that stages messages with this publisher."""
    with monkeypatch.context() as patch:
        patch.setattr("jsplan.backfill.tasks.partition_writer.FencedPublisher", publisher)
        with pytest.raises((SimulatedKill, PublishRefusedError)):
            pair.run()
