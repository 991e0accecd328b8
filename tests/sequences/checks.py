"""Compare the servers with what the plan announced; each difference is a `Finding`.

The announcements are read from the plan document alone. Nothing of jsplan's planning is used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.sequences.cases import address_at, address_of, bodies, stream_of
from tests.sequences.model import DueMessages, due_messages, filters_of, first_delivery, wants
from tests.support.explained_steps import require_explained

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from jsplan.documents.plan import Hazard, Plan
    from tests.sequences.cases import Body, Case
    from tests.sequences.model import Message
    from tests.sequences.servers import ConsumerLog, Delivery, Stream

#: Streams by domain and name.
Snapshot = dict[tuple[str, str], "Stream"]


@dataclass(frozen=True)
class Finding:
    """One broken promise. `kind` is a word to group by, `where` an address."""

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"[{self.kind}] {self.where}: {self.text}"


@dataclass(frozen=True)
class Bounds:
    """Announced messages; `low` is a promise only where something is certain."""

    low: int = 0
    high: int = 0

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.low + other.low, self.high + other.high)


class Announced:
    """The hazards of a plan, by code and address."""

    def __init__(self, plan: Plan) -> None:
        self.actions = {c.address: tuple(c.change.actions) for c in plan.resource_changes}
        self._stuck = {d.address for d in plan.diagnostics if d.code == "JS483"}
        self._hazards = [(c.address, h) for c in plan.resource_changes for h in c.hazards]

    def all(self, code: str) -> Iterator[tuple[str, Hazard]]:
        """Every hazard of a code with its address."""
        return ((address, h) for address, h in self._hazards if h.code == code)

    def has(self, code: str, address: str) -> bool:
        """Return True if the resource has such a hazard."""
        return any(where == address for where, _ in self.all(code))

    def bounds(self, code: str, addresses: Iterable[str]) -> Bounds:
        """All such hazards of some resources together."""
        wanted = set(addresses)
        return sum((_bounds(h) for a, h in self.all(code) if a in wanted), Bounds())

    def copied_again(self, address: str) -> Bounds:
        """Return what a stream stores twice, which its origin may say beside other things."""
        said = self.all("DUPLICATES_MESSAGES")
        found = (h for a, h in said if a == address or f"{address} stores " in h.message)
        return sum(map(_bounds, found), Bounds())

    def is_behind(self, origin: str, copy: str) -> bool:
        """Return True if a restored origin is said to be behind a copy, or to be copied again."""
        return origin in self._stuck or self.copied_again(copy).high > 0

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the permissions for all hazards of the plan."""
        return tuple(sorted({f"{h.code}:{address}" for address, h in self._hazards}))


def _bounds(hazard: Hazard) -> Bounds:
    high = hazard.messages or 0
    if "when the next " in hazard.message:  # the server deletes it later
        return Bounds(0, high)
    return (
        Bounds(high, high) if hazard.exact else Bounds(hazard.at_least or 0, hazard.at_most or high)
    )


# --- the plan itself ------------------------------------------------------------------------------


def check_plan(plan: Plan) -> Iterator[Finding]:
    """Check that steps belong to changes, and that hazards and their bounds are sound."""
    try:
        require_explained(plan)
    except AssertionError:
        steps = [(s.op, s.address) for s in plan.steps]
        yield Finding("unexplained", "plan", f"a step of {steps} belongs to no change")
    for change in plan.resource_changes:
        found = [h for h in change.hazards if h.code == "DELETES_MESSAGES"]
        if len(found) > 1:
            yield Finding("hazards", change.address, f"has {len(found)} DELETES_MESSAGES")
        for hazard in change.hazards:
            low, high = hazard.at_least or 0, hazard.at_most
            if high is not None and low > high:
                yield Finding("bounds", change.address, f"{hazard.code} between {low} and {high}")


# --- messages -------------------------------------------------------------------------------------


def check_messages(
    case: Case, announced: Announced, before: Snapshot, after: Snapshot, slack: int | None = None
) -> Iterator[Finding]:
    """Every message that is gone was announced, and every number is true.

    `slack`: another person worked in between, so up to 10 % or so many more may be gone, and fewer are no lie.
    """
    moved = {old: new for new, old in case.moved.items()}
    for section, body in bodies(case.before_apply):
        key = (str(body["domain"]), stream_of(section, body))
        if key not in before:
            continue
        address = address_of(section, body)
        was, now = before[key], after.get(key)
        target = moved.get(key, key)
        if target != key and (left := now) is not None:
            # Half done by another person: either side has all of it.
            now = max(
                left, after.get(target, left), key=lambda s: len(s.bodies.keys() & was.bodies)
            )
        elif target != key:
            now = after.get(target)
        kept = now.bodies if now else {}
        acknowledged = _copied_bodies(case, body, before, after)
        gone = {b: m.seq for b, m in was.bodies.items() if b not in kept}
        lost = sorted(seq for b, seq in gone.items() if b not in acknowledged)
        if announced.has("DELETES_STREAM", address):
            said = announced.bounds("DELETES_STREAM", [address])
            if slack is None and said.high != len(was.messages):
                yield Finding("count", address, f"DELETES_STREAM says {said}: {len(was.messages)}")
            continue
        there = address_at(section, target)
        said = announced.bounds(
            "DELETES_MESSAGES",
            {address, there}.union(*(_consumer_addresses(announced, k) for k in (key, target))),
        )
        drained = _announced_consumption(case, announced, body)
        yield from _check_counts(address, len(gone), said, drained, slack, lost)
        if now is not None:
            if announced.copied_again(address).high:
                continue
            replaced = len(announced.actions.get(address, ())) > 1
            yield from _check_content(address, was, now, replaced=replaced)


def _check_counts(
    address: str, gone: int, said: Bounds, drained: int, slack: int | None, lost: list[int]
) -> Iterator[Finding]:
    high = said.high + drained
    # What is at most `safe_below` is no hazard, so not announced, and may grow by as much again until it is applied.
    limit = high if slack is None else max(high * 11 // 10, (high or slack) + slack)
    if len(lost) > limit:
        kind = "lost" if not high else "lost-more"
        yield Finding(kind, address, f"{lost} gone, announced {said.low} to {high}")
    elif gone < said.low and slack is None:
        yield Finding("count", address, f"{gone} gone, announced {said.low} to {high}")


def _consumer_addresses(announced: Announced, key: tuple[str, str]) -> list[str]:
    prefix = f"{key[0]}/consumer/{key[1]}/"
    return [address for address in announced.actions if address.startswith(prefix)]


def _copied_bodies(case: Case, body: Body, before: Snapshot, after: Snapshot) -> set[bytes]:
    """Return what copies of a queue or interest stream have: they acknowledge it later."""
    if not case.first or body.get("retention", "limits") == "limits":
        return set()
    return {
        stored
        for section, copy in bodies(case.before_apply)
        if body.get("name") in origins_of(copy)
        for snapshot in (before, after)
        if (stream := snapshot.get((str(copy["domain"]), stream_of(section, copy)))) is not None
        for stored in stream.bodies
    }


def _announced_consumption(case: Case, announced: Announced, origin: Body) -> int:
    """Return the messages that new copies of the stream were announced to consume."""
    copies = {
        address_of(section, body): body
        for section, body in bodies(case.after)
        if origin.get("name") in origins_of(body)
    }
    said = (h for address, h in announced.all("DELETES_MESSAGES") if address in copies)
    return sum(h.messages or 0 for h in said if "origin" in h.causes)


def origins_of(body: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the names of the streams that a declared stream copies from."""
    listed = [body["mirror"]] if body.get("mirror") else body.get("sources") or []
    return {origin["name"]: origin for origin in listed}


def _check_content(address: str, was: Stream, now: Stream, *, replaced: bool) -> Iterator[Finding]:
    """Check that remaining messages keep subject and order, and unless replaced their sequence."""
    both = [(m, now.bodies[b]) for b, m in was.bodies.items() if b in now.bodies]
    for old, new in both:
        if old.subject != new.subject or (old.seq != new.seq and not replaced):
            yield Finding("content", address, f"{old} became {new}")
    order = [new.seq for _, new in both]
    if order != sorted(order):
        yield Finding("order", address, f"messages are in another order: {order}")


def check_doubles(announced: Announced, before: Snapshot, after: Snapshot) -> Iterator[Finding]:
    """Check that no stream has a message twice, but as many as are announced."""
    for key, now in after.items():
        doubled = len(now.messages) - len(now.bodies)
        was = before.get(key)
        doubled -= len(was.messages) - len(was.bodies) if was is not None else 0
        address = f"{key[0]}/stream/{key[1]}"
        said = announced.copied_again(address)
        if doubled > said.high:
            text = f"{doubled} are there twice, announced {said.low} to {said.high}"
            yield Finding("doubled", address, text)


# --- consumers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConsumedResult:
    """Check the messages of one consumer that was consumed to its end after the apply.

    `out` are messages that others will repeat.
    """

    key: tuple[str, str]
    stream: str
    before: Body | None
    after: Body
    books: ConsumerLog | None
    got: list[Delivery]
    workqueue: bool
    out: frozenset[int] = frozenset()
    old_key: tuple[str, str] = ("", "")


def check_consumer(
    announced: Announced, one: ConsumedResult, before: Snapshot, after: Snapshot
) -> Iterator[Finding]:
    """It was given what was pending, and nothing besides but what was announced."""
    address = f"{one.key[0]}/consumer/{one.key[1]}/{one.after['name']}"
    now = after[one.key]
    old = before.get(one.old_key)
    fresh = old is None or one.before is None or one.books is None
    if announced.actions.get(address) == ("delete", "create"):
        # A consumer that was given nothing has no position to lose.
        given = one.books is not None and one.books.position.delivered
        fresh = fresh or not given or announced.has("LOSES_CONSUMER_POSITION", address)
    fresh = fresh or announced.has("DELETES_STREAM", one.stream)
    wanted = _expect_new_consumer(one, old, now) if fresh else _expect_kept_consumer(one, old, now)
    # By sequence: a consumer with `headers_only` is given no body.
    got = Counter(m.body if (m := now.messages.get(g.message.seq)) else b"?" for g in one.got)
    names = {
        m.body: m.seq for m in (*now.messages.values(), *(old.messages.values() if old else ()))
    }
    missing = sorted(names[m.body] for m in wanted.must if m.body not in got)
    if len(missing) > announced.bounds("LOSES_CONSUMER_POSITION", [one.stream]).high:
        yield Finding("position", address, f"never given {missing}, pending before")
    if one.workqueue:
        yield from _check_stranded(
            announced,
            one,
            address,
            [m for m in wanted.stranded if m.body not in got and m.seq not in one.out],
        )
    fine = {
        m.body for m in (*wanted.must, *wanted.may, *(wanted.stranded if one.workqueue else ()))
    }
    again = [body for body, times in got.items() for _ in range(times - (body in fine))]
    where = [address, one.stream] if _may_repeat(announced, one) else [address]
    said = announced.bounds("DUPLICATES_MESSAGES", where) + announced.copied_again(one.stream)
    if len(again) > said.high:
        which = sorted(names.get(body, 0) for body in again)
        yield Finding("again", address, f"given again {which}, announced {said.low} to {said.high}")
    own = announced.bounds("DUPLICATES_MESSAGES", [address])
    out = len(one.books.position.outstanding) if one.books else 0
    if not fresh and len(again) + out < own.low:
        yield Finding("count", address, f"{len(again)} given again, announced {own}")


def _may_repeat(announced: Announced, one: ConsumedResult) -> bool:
    """Return True unless a relocation says that other consumers get something again."""
    if one.key == one.old_key or one.before is None:
        return True
    named = [
        c for a, h in announced.all("DUPLICATES_MESSAGES") if a == one.stream for c in h.causes
    ]
    return one.before["name"] in named


def _check_stranded(
    announced: Announced, one: ConsumedResult, address: str, never: list[Message]
) -> Iterator[Finding]:
    """Check that a hazard counts what stays in a work queue and no consumer can be given."""
    codes = ("DELETES_MESSAGES", "LOSES_CONSUMER_POSITION")
    said = sum(
        announced.bounds(code, [*_consumer_addresses(announced, one.key), one.stream]).high
        for code in codes
    )
    if len(never) > said:
        which = sorted(m.seq for m in never)
        yield Finding("stranded", address, f"{which} stay and are given to no consumer")


def _expect_new_consumer(one: ConsumedResult, old: Stream | None, now: Stream) -> DueMessages:
    """Check a consumer that begins, by its deliver policy.

    Of a stream that fills at the same time nothing is certain.
    """
    messages = set(now.messages.values())
    first = frozenset(first_delivery(one.after, messages))
    # A filter that is all the stream stores is none for the server (measured).
    if filters_of(one.after) == now.config.get("subjects"):
        bare = {k: v for k, v in one.after.items() if not k.startswith("filter_subject")}
        given = frozenset(first_delivery(bare, messages))
        return DueMessages(first & given, first | given)
    if old is not None and set(now.bodies) - set(old.bodies):
        return DueMessages(
            frozenset(), frozenset(m for m in messages if wants(one.after, m.subject))
        )
    policy, has_gaps = one.after.get("deliver_policy"), now.state["last_seq"] != len(now.messages)
    # The last sequence may be of a message that no consumer wanted; up to 2.10 the last one of a subject may be gone.
    if policy == "last" or (policy == "last_per_subject" and has_gaps):
        return DueMessages(frozenset(), first)
    # Workers of another consumer may end what they have of a work queue before the new one gets it.
    out = frozenset(m for m in first if one.workqueue and m.seq in one.out)
    return DueMessages(first - out, out)


def _expect_kept_consumer(one: ConsumedResult, old: Stream | None, now: Stream) -> DueMessages:
    assert old is not None
    assert one.before is not None
    assert one.books is not None
    stayed: set[Message] = {m for b, m in old.bodies.items() if b in now.bodies}
    came = {m for b, m in now.bodies.items() if b not in old.bodies}
    of_stayed = due_messages(one.before, one.after, one.books.position, stayed)
    wanted = frozenset(m for m in came if wants(one.after, m.subject))
    return DueMessages(of_stayed.must | wanted, of_stayed.may, of_stayed.stranded)


# --- nothing changed ------------------------------------------------------------------------------


def check_unchanged(before: Snapshot, after: Snapshot) -> Iterator[Finding]:
    """A refused or stale apply left everything as it was."""
    for key in sorted(before.keys() | after.keys()):
        where = f"{key[0]}/stream/{key[1]}"
        was, now = before.get(key), after.get(key)
        if was is None or now is None:
            yield Finding("refused", where, "appeared" if was is None else "is gone")
            continue
        if (was.config, was.created) != (now.config, now.created):
            yield Finding("refused", where, f"changed from {was.config} to {now.config}")
        if was.messages != now.messages:
            yield Finding(
                "refused", where, f"held {sorted(was.messages)}, now {sorted(now.messages)}"
            )
        for name in sorted(was.consumers.keys() | now.consumers.keys()):
            one, other = (_stable_info(s.consumers.get(name)) for s in (was, now))
            if one != other:
                yield Finding("refused", f"{where}/{name}", f"changed from {one} to {other}")


def _stable_info(info: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the part of the state that only writes change."""
    if info is None:
        return None
    config = {k: v for k, v in info["config"].items() if k != "metadata"}
    floor = info["ack_floor"]["stream_seq"], info["delivered"]["stream_seq"]
    return {"config": config, "created": info["created"], "position": floor}
