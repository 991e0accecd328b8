"""The bound of unwanted messages against a model of what each consumer has finished."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.documents.deletions import ConsumerChange, HeldMessages
from jsplan.facts.interest import ConsumerInterest, StoredCounts, bound_unwanted
from jsplan.subjects import passes_filters

SUBJECTS: Final = ("a.x", "a.y", "b.x", "b.y", "c.z")
FILTERS: Final[tuple[tuple[str, ...], ...]] = (
    (), ("a.>",), ("b.>",), ("*.x",), ("a.x", "b.y"), ("c.z",), ("d.>",),
)  # fmt: skip


@dataclass
class Reader:
    """A consumer that was given all up to `delivered`, and has finished `finished` of it.

    What is before `start` counts as finished. The server leaves out `uncounted` of what waits: it
    counts a message twice as deleted if INFO is asked meanwhile (measured on 2.15, in a cluster).
    """

    name: str
    filters: tuple[str, ...]
    delivered: int
    finished: frozenset[int] = frozenset()
    start: int = 1
    uncounted: int = 0

    def wants(self, seq: int, subject: str) -> bool:
        return passes_filters(subject, self.filters) and seq not in self.finished


@dataclass
class Model:
    """The stored messages by sequence, all consumers, and what the plan changes."""

    stored: dict[int, str]
    last: int
    readers: list[Reader]
    changes: list[ConsumerChange] = field(default_factory=list)

    def infos(self) -> list[ConsumerInterest]:
        """The consumers as their server reports them."""
        found = []
        for one in self.readers:
            wanted = [seq for seq, subject in self.stored.items() if one.wants(seq, subject)]
            pending = [seq for seq in wanted if seq <= one.delivered]
            floor = min(pending, default=one.delivered + 1) - 1
            out = len(pending)
            found.append(
                ConsumerInterest(
                    one.name,
                    one.filters,
                    floor,
                    one.delivered,
                    out,
                    max(0, len(wanted) - out - one.uncounted),
                    floor + 1,
                    from_the_start=one.start == 1,
                )
            )
        return found

    def unwanted(self) -> int:
        """The number of messages that no consumer wants after the changes."""
        changed = {change.name: change for change in self.changes}
        known = {one.name: one for one in self.readers}
        stay = [one for one in self.readers if one.name not in changed]
        for name, change in changed.items():
            if change.position in ("same", "floor") and name in known:
                old = known[name]
                stay.append(Reader(name, change.filters, 0, self._passed(old, change)))
            elif change.position != "gone":
                first = {"all": 1, "by_start_sequence": change.opt_start_seq}.get(change.policy)
                before = range(1, first if first is not None else self.last + 1)
                stay.append(Reader(name, change.filters, 0, frozenset(before)))
        return sum(
            not any(one.wants(seq, subject) for one in stay) for seq, subject in self.stored.items()
        )

    def _passed(self, old: Reader, change: ConsumerChange) -> frozenset[int]:
        """The sequences that a consumer has passed, or that are before its position."""
        if change.position == "floor":
            floor = next(info.floor for info in self.infos() if info.name == old.name)
            return frozenset(range(1, floor + 1))
        passed = {
            seq
            for seq, subject in self.stored.items()
            if seq <= old.delivered and not passes_filters(subject, old.filters)
        }
        return old.finished | passed


def keeps(readers: list[Reader], seq: int, subject: str) -> bool:
    """Check whether an interest stream has a message.

    It keeps one that all consumers of its subject begin behind, since none acknowledges it.
    """
    matching = [one for one in readers if passes_filters(subject, one.filters)]
    early = bool(matching) and all(seq < one.start for one in matching)
    return early or any(one.wants(seq, subject) for one in readers)


@st.composite
def models(draw: st.DrawFn, *, is_interest: bool, uncounted: int = 0) -> Model:
    """Draw a stream, in which an interest stream has nothing that all have finished."""
    last = draw(st.integers(1, 12))
    subjects = [draw(st.sampled_from(SUBJECTS)) for _ in range(last)]
    readers = []
    for name in draw(st.lists(st.sampled_from("ABC"), unique=True)):
        delivered = draw(st.integers(0, last))
        filters = draw(st.sampled_from(FILTERS))
        finished = draw(st.frozensets(st.integers(1, max(1, delivered))))
        if start := draw(st.sampled_from((0, 0, last + 3, last // 2))):
            delivered, finished = start - 1, frozenset(range(1, start))
        finished = frozenset(s for s in finished if s <= delivered)
        missed = draw(st.integers(0, uncounted))
        readers.append(Reader(name, filters, delivered, finished, start or 1, missed))
    stored = {
        seq: subject
        for seq, subject in enumerate(subjects, 1)
        if draw(st.integers(0, 4)) and (not is_interest or keeps(readers, seq, subject))
    }
    changes = [
        ConsumerChange(
            name,
            draw(st.sampled_from(("gone", "same", "floor", "start"))),
            draw(st.sampled_from(FILTERS)),
            draw(st.sampled_from(("all", "new", "by_start_sequence"))),
            draw(st.integers(1, last)),
        )
        for name in draw(st.lists(st.sampled_from("ABCD"), unique=True))
    ]
    known = {one.name for one in readers}
    changes = [c for c in changes if c.name in known or c.position != "gone"]
    return Model(stored, last, readers, changes)


def stored_counts(model: Model, *, by_subject: bool) -> StoredCounts:
    counts: dict[str, int] = {}
    for subject in model.stored.values():
        counts[subject] = counts.get(subject, 0) + 1
    first = min(model.stored, default=model.last + 1)
    gaps = tuple(seq for seq in range(first, model.last + 1) if seq not in model.stored)
    subjects = counts if by_subject else None
    return StoredCounts(len(model.stored), first, model.last, subjects, gaps)


def check_bound(model: Model, *, by_subject: bool, was_interest: bool) -> None:
    """Check that as many messages are unwanted as the bound says; without a consumer all may be."""
    stored = stored_counts(model, by_subject=by_subject)
    found = bound_unwanted(stored, model.infos(), model.changes, was_interest=was_interest)

    least, most = (0, len(model.stored)) if found is None else found
    assert least <= model.unwanted() <= most


@given(models(is_interest=True, uncounted=1), st.booleans())
@settings(max_examples=350, deadline=None)
def test_the_bound_of_an_interest_stream_is_never_too_low(model: Model, by_subject: bool) -> None:
    """No more messages are unwanted than the bound says."""
    check_bound(model, by_subject=by_subject, was_interest=True)


@given(models(is_interest=False, uncounted=1), st.booleans())
@settings(max_examples=350, deadline=None)
def test_the_bound_of_other_streams_is_never_too_low(model: Model, by_subject: bool) -> None:
    """A stream that becomes an interest stream may have messages that all have finished."""
    check_bound(model, by_subject=by_subject, was_interest=False)


@given(models(is_interest=True))
@settings(max_examples=200, deadline=None)
def test_nothing_is_lost_where_no_consumer_wants_less(model: Model) -> None:
    """The bound is 0 if consumers that all began at the start get more subjects."""
    changes = [
        ConsumerChange(one.name, "same", () if index % 2 else one.filters)
        for index, one in enumerate(model.readers)
    ]
    stored = stored_counts(model, by_subject=True)
    bound = bound_unwanted(stored, model.infos(), changes, was_interest=True)

    late = any(one.start > 1 for one in model.readers)
    assert late or bound == ((0, 0) if model.readers else None)


def test_consumers_of_different_subjects_add_up() -> None:
    """Consumers that share no subject keep what each wants; a third one that wants all may go."""
    now = [
        ConsumerInterest("A", ("a.>",), 0, 0, 0, 3),
        ConsumerInterest("B", ("b.>",), 0, 0, 0, 2),
        ConsumerInterest("ALL", (), 0, 5, 5, 0),
    ]
    stored = StoredCounts(5, 1, 5, {"a.x": 3, "b.x": 2})

    assert bound_unwanted(stored, now, [ConsumerChange("ALL", "gone")], was_interest=True) == (0, 0)
    gone = [ConsumerChange("ALL", "gone"), ConsumerChange("B", "gone")]
    assert bound_unwanted(stored, now, gone, was_interest=True) == (2, 2)


def test_what_the_server_leaves_out_is_counted() -> None:
    """A message behind the last delivery waits, also where num_pending says that none does."""
    now = [ConsumerInterest("A", ("a.x",), 5, 5, 0, 0), ConsumerInterest("B", ("b.x",), 0, 0, 0, 1)]
    stored = StoredCounts(2, 6, 7, {"a.x": 1, "b.x": 1})

    assert bound_unwanted(stored, now, [ConsumerChange("A", "gone")], was_interest=True) == (1, 1)


def test_what_is_finished_under_a_placeholder_is_no_loss() -> None:
    """After an interrupted apply, what consumers finished meanwhile is not counted."""
    now = [ConsumerInterest("A", (), 90, 90, 0, 10)]
    held = HeldMessages(3, ("B",))
    stored = StoredCounts(100, 1, 100, {"a.x": 100})

    changes = [ConsumerChange("JSPLAN_STAGING_1", "gone")]
    assert bound_unwanted(stored, now, changes, was_interest=True, held=held) == (0, 3)
    changes = [ConsumerChange("A", "floor", ("a.x",)), ConsumerChange("B", "gone")]
    assert bound_unwanted(stored, now, changes, was_interest=True, held=held) == (0, 3)
