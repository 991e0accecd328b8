from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.facts.interest import ConsumerInterest, UnwantedMessages
from jsplan.facts.limit_trimming import BackwardTrim, ExceededLimits, ForwardTrim
from jsplan.facts.stored_message import StoredMessage


@dataclass
class StreamModel:
    """Messages of a stream, and the limits it is given."""

    messages: list[StoredMessage]
    limits: ExceededLimits
    young: int

    @property
    def counts(self) -> Counter[str]:
        return Counter(m.subject for m in self.messages)

    @property
    def size(self) -> int:
        return sum(m.size for m in self.messages)


def trim(pool: StreamModel) -> list[StoredMessage]:
    """What the server keeps, step by step as the server does it."""
    kept, limits = list(pool.messages), pool.limits
    while limits.max_msgs and len(kept) > limits.max_msgs:
        del kept[0]
    while limits.max_bytes and sum(m.size for m in kept) > limits.max_bytes:
        del kept[0]
    if limits.max_msgs_per_subject:
        last = {
            s: [m for m in kept if m.subject == s][-limits.max_msgs_per_subject :]
            for s in {m.subject for m in kept}
        }
        kept = [m for m in kept if m in last[m.subject]]
    return [m for m in kept if m.seq >= pool.young or m.never_expires] if limits.max_age else kept


@st.composite
def stream_models(draw: st.DrawFn) -> StreamModel:
    """Small streams with gaps, and any combination of limits."""
    seqs = sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=30)))
    never = draw(st.booleans())
    messages = [
        StoredMessage(
            seq,
            draw(st.sampled_from("abc")),
            draw(st.integers(16, 60)),
            f"2026-01-01T00:00:{seq:02d}Z",
            never and draw(st.booleans()),
        )
        for seq in seqs
    ]
    limit = st.integers(0, 20)
    age = draw(st.booleans())
    limits = ExceededLimits(
        draw(limit), draw(st.integers(0, 900)), 1 if age else 0, draw(st.integers(0, 4))
    )
    return StreamModel(messages, limits, draw(st.integers(1, 61)) if age else 0)


@given(stream_models())
@settings(max_examples=400, deadline=None)
def test_from_the_oldest_finds_what_the_server_deletes(pool: StreamModel) -> None:
    """Walking from the first message finds the number and bytes of what the server's steps leave out, and stops early."""
    kept = trim(pool)
    counts = pool.counts if pool.limits.max_msgs_per_subject else {}
    walk = ForwardTrim(pool.limits, len(pool.messages), pool.size, pool.young, counts)
    for message in pool.messages:
        if not walk.visit(message):
            break

    assert walk.total == walk.deleted.messages == len(pool.messages) - len(kept)
    assert walk.deleted.bytes == pool.size - sum(m.size for m in kept)
    assert walk.deleted.until == max((m.time for m in pool.messages if m not in kept), default="")


@given(stream_models())
@settings(max_examples=400, deadline=None)
def test_the_number_is_known_before_the_bytes(pool: StreamModel) -> None:
    """Once the trimmed prefix has been read, the counts per subject tell how many more go."""
    counts = pool.counts if pool.limits.max_msgs_per_subject else {}
    walk = ForwardTrim(pool.limits, len(pool.messages), pool.size, pool.young, counts)
    for message in pool.messages:
        if walk.is_prefix_known:
            break
        walk.visit(message)

    assert walk.total == len(pool.messages) - len(trim(pool))


@given(stream_models())
@settings(max_examples=400, deadline=None)
def test_from_the_newest_finds_the_same(pool: StreamModel) -> None:
    """Walking back from the last message finds what stays."""
    kept = trim(pool)
    counts = pool.counts if pool.limits.max_msgs_per_subject else {}
    walk = BackwardTrim(
        pool.limits, pool.young, any(m.never_expires for m in pool.messages), counts
    )
    for message in reversed(pool.messages):
        if not walk.visit(message):
            break

    assert (walk.kept.messages, walk.kept.bytes) == (len(kept), sum(m.size for m in kept))
    if walk.until:
        assert walk.until == max(m.time for m in pool.messages if m not in kept)


def test_messages_without_interest() -> None:
    """A message stays while a consumer that matches may still need it; between floor and delivered nobody knows."""
    walk = UnwantedMessages(
        (ConsumerInterest("A", ("a.>",), 2, 4), ConsumerInterest("B", ("*.x",), 5, 5)),
        5,
        becomes_interest=False,
        last_seq=6,
    )
    subjects = ["a.y", "a.x", "a.y", "b.y", "b.x", "a.x"]
    for seq, subject in enumerate(subjects, 1):
        walk.visit(StoredMessage(seq, subject, 10, ""))

    assert (walk.sure.messages, walk.doubtful.messages) == (4, 1)
    assert walk.at_least == 5
    assert walk.count_beyond({"b.y": 3, "a.y": 2, "c": 4}) == 6
