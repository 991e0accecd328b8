from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.documents.deletions import Limits
from jsplan.facts.limit_trimming import BackwardTrim, ForwardTrim, StoredMessage


@dataclass
class StreamModel:
    """Messages of a stream, and the limits that it gets."""

    messages: list[StoredMessage]
    limits: Limits
    young: int

    @property
    def counts(self) -> Counter[str]:
        return Counter(m.subject for m in self.messages)

    @property
    def size(self) -> int:
        return sum(m.size for m in self.messages)


def trim(model: StreamModel) -> list[StoredMessage]:
    """Return the messages that stay, step by step as the server trims."""
    kept, limits = list(model.messages), model.limits
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
    return [m for m in kept if m.seq >= model.young or m.never_expires] if limits.max_age else kept


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
    limits = Limits(
        draw(limit), draw(st.integers(0, 900)), 1 if age else 0, draw(st.integers(0, 4))
    )
    return StreamModel(messages, limits, draw(st.integers(1, 61)) if age else 0)


@given(stream_models())
@settings(max_examples=200, deadline=None)
def test_a_forward_walk_finds_the_deletions(model: StreamModel) -> None:
    """A walk from the first message finds the deleted messages and bytes, and stops early."""
    kept = trim(model)
    counts = model.counts if model.limits.max_msgs_per_subject else {}
    walk = ForwardTrim(model.limits, len(model.messages), model.size, model.young, counts)
    for message in model.messages:
        if not walk.visit(message):
            break

    assert walk.total == walk.deleted.messages == len(model.messages) - len(kept)
    assert walk.deleted.bytes == model.size - sum(m.size for m in kept)
    assert walk.deleted.until == max((m.time for m in model.messages if m not in kept), default="")


@given(stream_models())
@settings(max_examples=200, deadline=None)
def test_the_number_is_known_before_the_bytes(model: StreamModel) -> None:
    """Once the trimmed prefix is known, the counts per subject give the number of deletions."""
    counts = model.counts if model.limits.max_msgs_per_subject else {}
    walk = ForwardTrim(model.limits, len(model.messages), model.size, model.young, counts)
    for message in model.messages:
        if walk.is_prefix_known:
            break
        walk.visit(message)

    assert walk.total == len(model.messages) - len(trim(model))


@given(stream_models())
@settings(max_examples=200, deadline=None)
def test_a_backward_walk_finds_the_same(model: StreamModel) -> None:
    """A walk from the last message finds the messages that stay."""
    kept = trim(model)
    counts = model.counts if model.limits.max_msgs_per_subject else {}
    walk = BackwardTrim(
        model.limits, model.young, any(m.never_expires for m in model.messages), counts
    )
    for message in reversed(model.messages):
        if not walk.visit(message):
            break

    assert (walk.kept.messages, walk.kept.bytes) == (len(kept), sum(m.size for m in kept))
    if walk.until:
        assert walk.until == max(m.time for m in model.messages if m not in kept)
