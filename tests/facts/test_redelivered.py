"""Messages that a replaced consumer gets again, in a model of the server and on servers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.applying.transfer import single_consumer
from jsplan.facts.consumer_position import has_pending_below_floor, max_redelivered, position_of
from tests.applying.consumer_helpers import fill, pull, stream_sequence
from tests.support.raw import Raw
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.documents.plan import Hazard

SUBJECTS = ("a", "b", "c")
#: The level of a server that keeps a start behind the end of its stream.
LEVEL = 1


@dataclass
class ConsumerModel:
    """A stream and one consumer that move as on a server. Messages are their sequences.

    `careful`: since 2.11 a consumer notices a purge of a single message that it delivered.
    """

    careful: bool
    filters: tuple[str, ...]
    stored: dict[int, str] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    last: int = 0
    cursor: int = 1
    delivered: tuple[int, int] = (0, 0)
    floor: tuple[int, int] = (0, 0)

    def publish(self, choice: int) -> None:
        self.last += 1
        self.stored[self.last] = SUBJECTS[choice % 3]

    def deliver(self, choice: int) -> None:
        for seq in sorted(s for s in self.stored if s >= self.cursor and self._wants(s))[
            : choice % 4
        ]:
            self.delivered = (self.delivered[0] + 1, seq)
            self.pending[seq], self.cursor = self.delivered[0], seq + 1

    def acknowledge(self, choice: int) -> None:
        if self.pending:
            seq = sorted(self.pending)[choice % len(self.pending)]
            self.finished.add(seq)
            self._end(seq)

    def deliver_again(self, _choice: int) -> None:
        if self.pending:
            self.delivered = (self.delivered[0] + 1, self.delivered[1])

    def give_up(self, choice: int) -> None:
        """Give up a message after its last delivery; the floor stays."""
        if self.pending:
            seq = sorted(self.pending)[choice % len(self.pending)]
            self.finished.add(seq)
            del self.pending[seq]

    def delete(self, choice: int) -> None:
        """Delete a message, as a request, a limit or a TTL does."""
        if self.stored:
            seq = sorted(self.stored)[choice % len(self.stored)]
            del self.stored[seq]
            if seq in self.pending:
                self._end(seq)

    def purge(self, choice: int) -> None:
        """Purge one subject, while the consumer has others too."""
        deleted = {seq for seq, subject in self.stored.items() if subject == SUBJECTS[choice % 3]}
        if self.filters == (SUBJECTS[choice % 3],):
            return
        first = min((s for s in self.stored if s not in deleted), default=self.last + 1)
        for seq in deleted:
            del self.stored[seq]
        if self.floor[1] < first:
            for seq in [s for s in self.pending if s not in self.stored]:
                self.floor = (max(self.floor[0], self.pending.pop(seq)), 0)
            self.floor = (self.floor[0], first - 1)
        elif self.careful and len(deleted) == 1 and deleted <= self.pending.keys():
            self._end(*deleted)
        if not self.pending:
            self.floor = self.delivered

    def _wants(self, seq: int) -> bool:
        return not self.filters or self.stored[seq] in self.filters

    def _end(self, seq: int) -> None:
        """End a pending message: the floor moves up to the next one if this was the first."""
        number = self.pending.pop(seq)
        if not self.pending:
            self.floor = self.delivered
        elif number == self.floor[0] + 1:
            later = [s for s in self.pending if s > seq]
            self.floor = (self.pending[min(later)] - 1, min(later) - 1) if later else (number, seq)

    @property
    def state(self) -> dict[str, Any]:
        """The state, as INFO has it."""
        delivered, floor = (
            {"consumer_seq": pair[0], "stream_seq": pair[1]}
            for pair in (self.delivered, self.floor)
        )
        return {"delivered": delivered, "ack_floor": floor, "num_ack_pending": len(self.pending)}


MOVES = (ConsumerModel.publish, ConsumerModel.publish, ConsumerModel.deliver, ConsumerModel.deliver,
         ConsumerModel.acknowledge, ConsumerModel.acknowledge,
         ConsumerModel.deliver_again, ConsumerModel.give_up, ConsumerModel.delete, ConsumerModel.purge)  # fmt: skip


def models(count: int, seed: int = 0) -> Iterator[ConsumerModel]:
    """Yield `count` models, each after up to 36 moves."""
    for number in range(count):
        chance = random.Random(1_000_000 * seed + number)
        model = ConsumerModel(chance.random() < 0.5, chance.choice([(), ("a",), ("a", "b")]))
        for choice in range(chance.randrange(7)):
            model.publish(choice)
        for _ in range(chance.randrange(30)):
            chance.choice(MOVES)(model, chance.randrange(12))
        yield model


def check(model: ConsumerModel, after: tuple[str, ...]) -> bool:
    """Check the bound with the model; return False if the server hides a pending message."""
    config = {"ack_policy": "explicit", "filter_subjects": list(model.filters)}
    position = position_of(config, model.state, LEVEL)
    first = resume_after_count(model) if position is None else position
    if position is not None and any(seq < position for seq in model.pending):
        return False
    again = {
        s
        for s in model.finished
        if s in model.stored and s >= first and (not after or model.stored[s] in after)
    }
    first_seq = min(model.stored, default=model.last + 1)
    stream = {"first_seq": first_seq, "last_seq": model.last, "messages": len(model.stored)}
    most = max_redelivered(config, model.state, stream, position)
    assert len(again) <= most, (model, after)
    return True


def resume_after_count(model: ConsumerModel) -> int:
    """Return the start of a consumer without known position, by its number of deliveries."""
    delivered = sorted(
        s
        for s, subject in model.stored.items()
        if s <= model.delivered[1] and (not model.filters or subject in model.filters)
    )
    return delivered[-model.delivered[0] :][0] if delivered else 1


@pytest.mark.parametrize("after", [(), ("a",), ("b", "c")], ids=["all", "a", "b and c"])
def test_no_more_is_redelivered_than_the_bound(after: tuple[str, ...]) -> None:
    """No more messages are redelivered than the bound, after any history and new filters."""
    shown = sum(check(model, after) for model in models(3_000))

    assert shown > 2_900


def test_no_pending_message_is_skipped_where_the_server_shows_it() -> None:
    """A consumer with more pending than delivered behind the floor resumes before all of them."""
    seen = 0
    for model in models(6_000, seed=1):
        config = {"ack_policy": "explicit", "filter_subjects": list(model.filters)}
        if has_pending_below_floor(config, model.state):
            seen += 1
            assert position_of(config, model.state, LEVEL) is None
            assert all(
                seq >= resume_after_count(model) for seq in model.pending if seq in model.stored
            ), model

    assert seen > 20


def test_the_number_is_exact_without_deletions() -> None:
    """The bound is the number if nothing was deleted, given up or delivered twice."""
    numbers = set[int]()
    for number in range(500):
        chance, model = random.Random(number), ConsumerModel(False, ())
        for choice in range(8):
            model.publish(choice)
        for _ in range(12):
            chance.choice((ConsumerModel.deliver, ConsumerModel.acknowledge))(
                model, chance.randrange(12)
            )
        position = position_of({"ack_policy": "explicit"}, model.state, LEVEL)
        assert position is not None
        stream = {"first_seq": 1, "last_seq": model.last, "messages": len(model.stored)}
        most = max_redelivered({"ack_policy": "explicit"}, model.state, stream, position)
        assert most == sum(seq >= position for seq in model.finished), model
        numbers.add(most)

    assert numbers.issuperset(range(4))


# --- On real servers


def write(space: Space, **consumer: Any) -> Space:
    """Write a stream with one consumer."""
    stream = {
        "name": "A",
        "subjects": ["a.>"],
        "max_msgs_per_subject": 5,
        "allow_rollup_hdrs": True,
    }
    return space.write(
        streams=[stream | {"consumers": [{"name": "C", "ack_policy": "explicit"} | consumer]}]
    )


def purge(raw: Raw) -> None:
    """Purge one subject, with pending messages."""
    raw.api_ok("$JS.API.STREAM.PURGE.A", {"filter": "a.3"})


def purge_up_to(raw: Raw) -> None:
    """Purge the first few messages."""
    raw.api_ok("$JS.API.STREAM.PURGE.A", {"seq": 3})


def delete(raw: Raw) -> None:
    """Delete a pending and an acknowledged message."""
    raw.api_ok("$JS.API.STREAM.MSG.DELETE.A", {"seq": 3})
    raw.api_ok("$JS.API.STREAM.MSG.DELETE.A", {"seq": 4})


def trim(raw: Raw) -> None:
    """Publish so that the limit per subject deletes the oldest."""
    fill(raw, 9)


def roll_up(raw: Raw) -> None:
    """Publish a message that replaces all others of its subject."""
    raw.request("a.3", b"", headers={"Nats-Rollup": "sub"})


def change_nothing(_raw: Raw) -> None:
    """Change no message."""


#: Changes of a stream of nine delivered messages on three subjects: what is acknowledged first, the change, and
#: what is acknowledged after it.
STREAM_EVENTS = {
    "purged by filter": ((4, 7), purge, ()),
    "purged by filter, nothing acknowledged": ((), purge, ()),
    "purged behind the floor": ((1, 2, 5), purge, ()),
    "purged, then acknowledged": ((), purge, (4, 5)),
    "purged, and what follows acknowledged": ((), purge, (7, 8)),
    "purged up to a sequence": ((2, 5, 8), purge_up_to, (7,)),
    "deleted": ((4, 8), delete, (1,)),
    "trimmed": ((5, 9), trim, (4,)),
    "rolled up": ((1, 5), roll_up, (2,)),
    "untouched": ((2, 5, 9), change_nothing, (1,)),
}


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.parametrize("event", STREAM_EVENTS)
def test_redelivered_acknowledged_messages_are_announced(
    event: str, space: Space, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The redelivered messages lie between the bounds, and no unacknowledged one is missing."""
    # No client acknowledges anything here, so there is nothing to wait for.
    monkeypatch.setattr(single_consumer, "MAX_POLLS", 1)
    before, change, after = STREAM_EVENTS[event]
    write(space).apply()
    fill(raw, 9)
    replies = {stream_sequence(reply): reply for reply in raw.pull("A", "C", 9)}
    raw.ack(replies[seq] for seq in before)
    change(raw)
    raw.ack(replies[seq] for seq in after)
    plan, result = write(space, max_waiting=10).apply(allow_hazards=("DUPLICATES_MESSAGES",))

    assert result.exit_code == 0
    stored = raw.api_ok("$JS.API.STREAM.INFO.A", {"deleted_details": True})["state"]
    present = set(range(stored["first_seq"], stored["last_seq"] + 1)) - set(
        stored.get("deleted") or ()
    )
    received = pull(raw, "A", "C", 100)
    assert received == sorted(received)
    assert set(received) >= present - {*before, *after}
    announced = [
        h for c in plan.resource_changes for h in c.hazards if h.code == "DUPLICATES_MESSAGES"
    ]
    least, most = (0, 0) if not announced else bounds_of(announced[0])
    assert least <= len(set(received) & {*before, *after}) <= most


def bounds_of(hazard: Hazard) -> tuple[int, int]:
    """Return the least and most messages of a hazard."""
    assert hazard.messages is not None
    return (
        (hazard.messages, hazard.messages)
        if hazard.exact
        else (hazard.at_least or 0, hazard.at_most or 0)
    )
