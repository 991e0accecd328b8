"""Messages that are too large for the target: `oversize: error` and `oversize: skip`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from jsplan.errors import ConfigError, RefusedError
from tests.backfill.backfill_pair import Pair, Row, interrupt_run, verify_counts
from tests.support.simulated_kill import SimulatedKill, kill_after

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)
MAX_PAYLOAD = 1 << 20


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf, and an entry that skips what is too large of `S`."""
    return Pair.create(tmp_path, clean_hub_leaf, oversize="skip")


def small(number: int) -> Row:
    """A message that fits."""
    return (b"s.a", b"", b"%d" % number)


def large(number: int) -> Row:
    """A message of exactly max_payload."""
    text = b"%d " % number
    return (b"s.b", b"", text + b"y" * (MAX_PAYLOAD - len(text)))


def mixed() -> list[Row]:
    """Small and large messages, with large ones at both ends and in a row."""
    return [large(1), small(2), small(3), large(4), large(5), small(6), small(7), large(8)]


def test_skipping_survives_a_kill_at_any_write(pair: Pair) -> None:
    """The others arrive once and in order, and all skipped messages are named."""
    pair.stream("leaf", "S", mixed())
    after, died = 0, True
    while died:
        pair.stream("hub", "T", [(b"t.a", b"", b"own")])
        died = False
        try:
            with kill_after(after):
                pair.run()
        except SimulatedKill:
            died = True

        pair.run()

        assert pair.state_record["origins"][0]["skipped"] == [1, 4, 5, 8]
        pair.require_copied(seqs=[2, 3, 6, 7], others=1)
        pair.ask("hub", "STREAM.DELETE.T")
        shutil.rmtree(pair.space.folder / "state")
        after += 3  # every third write
    assert after > 6


@pytest.mark.parametrize("wrote", [1, 3, 5])
def test_an_interrupted_copy_is_resumed(pair: Pair, wrote: int) -> None:
    """A staging stream of a dead worker is promoted although messages are missing in it."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T")

    interrupt_run(pair, wrote)
    assert pair.state("hub", "T")["messages"] == 0

    found = pair.run()

    assert (found.copied, found.skipped, found.gaps) == (4, [1, 4, 5, 8], [])
    pair.require_copied(seqs=[2, 3, 6, 7])


@pytest.mark.usefixtures("spark")
def test_verify_counts_skipped_messages(pair: Pair) -> None:
    """They are no difference."""
    pair.stream("leaf", "S", mixed())
    pair.stream("hub", "T")
    pair.run()

    assert verify_counts(pair.space.load) == {"equal": 4, "skipped": 4}


def test_a_second_hop(pair: Pair) -> None:
    """A message that just fits is larger in its target, and may be too large to copy from there."""
    pair.stream("leaf", "S", [small(1), (b"s.b", b"", b"y" * (MAX_PAYLOAD - 256))])
    pair.stream("hub", "T")
    pair.stream("hub", "ON")
    pair.run()
    pair.require_copied()
    hop = {"from": {"domain": "hub", "stream": "T"}, "to": {"domain": "hub", "stream": "ON"}}
    pair.space.write(backfills=[{"name": "x"} | hop])

    with pytest.raises(RefusedError, match="message 2 of stream T may have"):
        pair.run()
    assert pair.stored("hub", "ON") == []
    pair.require_nothing_left()


def test_an_unknown_value_is_refused_with_its_place(pair: Pair) -> None:
    """The error for an unknown value names its place."""
    pair.write_entry(oversize="keep")

    with pytest.raises(ConfigError) as refused:
        pair.space.plan()

    (found,) = refused.value.diagnostics
    assert (found.code, found.summary) == ("JS130", '`oversize` cannot be "keep"')
    assert found.range is not None
