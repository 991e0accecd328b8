"""Sequences given by hand, each of a mended error, judged like the random ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.sequences.cases import Ask, Case, Consume, Edit, Publish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sequences.cases import Action, Body

KEPT: Final = {"on_replace": "preserve"}
APPLIED: Final = frozenset({"applied"})


@dataclass(frozen=True)
class FixedCase:
    """A case, and how it may end; `deletes`: the plan announces a deletion, or none."""

    case: Case
    ends: frozenset[str] = APPLIED
    deletes: bool | None = None


def stream(name: str, retention: str, *consumers: Body, **fields: Any) -> Body:
    """A stream of the hub named and filled after its case."""
    body = {"name": f"{name}S", "domain": "hub", "subjects": [f"{name}.>"], "retention": retention}
    return body | fields | {"consumers": list(consumers)}


def consumer(name: str, **fields: Any) -> Body:
    """A consumer with explicit acknowledgements unless the fields say otherwise."""
    return {"name": name, "ack_policy": "explicit"} | fields


def filtered(name: str, case: str, tokens: str) -> Body:
    """A consumer of the messages whose subjects end with one of these letters."""
    return consumer(name, filter_subjects=[f"{case}.{t}" for t in tokens])


def publish(name: str, tokens: str) -> Publish:
    """One message for each letter, with it as the last token of the subject."""
    return Publish("hub", tuple(f"{name}.{t}" for t in tokens))


def consume(name: str, who: str, count: int) -> Consume:
    """Take so many messages and acknowledge them."""
    return Consume("hub", f"{name}S", who, count, tuple(range(count)))


def retain(name: str, retention: str) -> Edit:
    """Change the retention."""
    return Edit("set", f"{name}S", fields={"retention": retention})


def change(name: str, who: str, **fields: Any) -> Edit:
    """Change fields of a consumer; None takes one out."""
    return Edit("consumer", f"{name}S", who, fields=fields)


def _to_interest_cases() -> Iterator[tuple[str, FixedCase]]:
    """Retention from limits to interest, together with something else."""
    for number, (field, old, new) in enumerate(
        (
            ("ack_policy", "none", "explicit"),
            ("max_waiting", 20, 10),
            ("deliver_subject", None, "push.interest"),
        )
    ):
        t = f"fa{number}x"
        before = consumer("C") | ({field: old} if old else {})
        world = {"streams": [stream(t, "limits", before)]}
        edits = (retain(t, "interest"), change(t, "C", **{field: new}))
        case = Case(t, world, (publish(t, "abcde"),), edits)
        yield f"limits to interest, {field} replaced", FixedCase(case, deletes=False)
    for number, count in enumerate((0, 1, 2)):
        t = f"fb{number}x"
        world = {"streams": [stream(t, "limits", consumer("C"))]}
        edits = (retain(t, "interest"), change(t, "C", filter_subject=f"{t}.a"))
        load: tuple[Action, ...] = (publish(t, "abab"), consume(t, "C", count))
        case = Case(t, world, load, edits)
        yield f"limits to interest, filter narrowed, {count} acknowledged", FixedCase(case)
    for number, (acks, to) in enumerate(
        itertools.product(("none", "all", "explicit"), ("a", "ab"))
    ):
        t = f"fv{number}x"
        pair = (filtered("C", t, "b") | {"ack_policy": acks}, filtered("D", t, "a"))
        world = {"streams": [stream(t, "limits", *pair)]}
        taken = Consume("hub", f"{t}S", "C", 2, () if acks == "none" else (0, 1))
        load = (publish(t, "abaa"), taken, consume(t, "D", 3))
        edits = (retain(t, "interest"), change(t, "C", filter_subjects=[f"{t}.{x}" for x in to]))
        yield (
            f"limits to interest, a passed message is wanted by {to}, ack_policy {acks}",
            FixedCase(Case(t, world, load, edits), deletes=True),
        )
    for number, (retention, tokens) in enumerate(
        itertools.product(("limits", "interest"), ("abaa", "abaaba"))
    ):
        t = f"fv{retention[0]}{number}x"
        kept = [consumer("K")] if retention == "interest" else []
        pair = (filtered("C", t, "b"), filtered("D", t, "a"))
        world = {"streams": [stream(t, retention, *pair, *kept)]}
        load = (publish(t, tokens), consume(t, "C", 5), consume(t, "D", 0 if kept else 9))
        drops = (Edit("drop", f"{t}S", "K"), Edit("drop", f"{t}S", "D"))
        wider = change(t, "C", filter_subjects=[f"{t}.a", f"{t}.b"])
        later: tuple[Edit, ...] = drops if kept else (retain(t, "interest"),)
        case = Case(t, world, load, later, first=(wider,))
        words = "consumers deleted" if kept else "limits to interest"
        yield (
            f"{words}, passed before an earlier change of a filter, {tokens}",
            FixedCase(case, deletes=True),
        )
    t = "fcx"
    late = consumer("C", deliver_policy="by_start_sequence", opt_start_seq=10)
    world = {"streams": [stream(t, "limits", late)]}
    case = Case(t, world, (publish(t, "abc"),), (retain(t, "interest"),))
    yield "limits to interest, consumer starts behind the end", FixedCase(case)
    t = "fdx"
    world = {
        "streams": [stream(t, "limits", consumer("C"), consumer("D", filter_subject=f"{t}.a"))]
    }
    edits = (retain(t, "interest"), Edit("drop", f"{t}S", "C"))
    yield (
        "limits to interest, consumer deleted",
        FixedCase(Case(t, world, (publish(t, "abab"),), edits)),
    )
    t = "fex"
    world = {"streams": [stream(t, "limits", consumer("C", filter_subject=f"{t}.a"))]}
    edits = (retain(t, "interest"), Edit("add", f"{t}S", "D", fields=consumer("D")))
    case = Case(t, world, (publish(t, "abab"),), edits)
    yield "limits to interest, consumer added", FixedCase(case, deletes=False)


def _from_interest_cases() -> Iterator[tuple[str, FixedCase]]:
    """Retention from interest to limits: nothing is deleted, whatever becomes of the consumers."""
    variants: dict[str, Any] = {
        "deleted": lambda t: Edit("drop", f"{t}S", "C"),
        "narrowed": lambda t: change(t, "C", filter_subject=f"{t}.a"),
        "replaced": lambda t: change(t, "C", max_waiting=10),
    }
    for number, (name, edit) in enumerate(variants.items()):
        t = f"fg{number}x"
        world = {"streams": [stream(t, "interest", consumer("C"))]}
        case = Case(t, world, (publish(t, "abab"),), (edit(t), retain(t, "limits")))
        yield f"interest to limits, consumer {name}", FixedCase(case, deletes=False)


def _interest_cases() -> Iterator[tuple[str, FixedCase]]:
    """Consumers of a stream that stays interest."""
    t = "fhx"
    late = consumer("C", deliver_policy="by_start_sequence", opt_start_seq=10)
    world = {"streams": [stream(t, "interest", late)]}
    case = Case(t, world, (publish(t, "abc"),), (change(t, "C", max_waiting=10),))
    yield "messages before a consumer's start, consumer replaced", FixedCase(case)
    variants: dict[str, Any] = {
        "replaced": lambda t: change(t, "C", max_waiting=10),
        "deleted": lambda t: Edit("drop", f"{t}S", "C"),
        "refiltered": lambda t: change(t, "C", filter_subject=f"{t}.a.b"),
    }
    for number, (name, edit) in enumerate(variants.items()):
        t = f"fi{number}x"
        consumers = (consumer(n, filter_subject=f"{t}.a") for n in "CD")
        world = {"streams": [stream(t, "limits", *consumers)]}
        case = Case(t, world, (publish(t, "abba"),), (edit(t),), first=(retain(t, "interest"),))
        yield f"messages no consumer wants, consumer {name}", FixedCase(case)
    for count in (0, 2):
        t = f"fj{count}x"
        pair = (consumer("C", filter_subject=f"{t}.a"), consumer("D", filter_subject=f"{t}.b"))
        world = {"streams": [stream(t, "interest", *pair)]}
        load: tuple[Action, ...] = (publish(t, "ababa"), consume(t, "C", count))
        edits: tuple[Edit, ...] = (Edit("swap", f"{t}S", "C", "D", {"field": "filter_subject"}),)
        yield f"filters swapped, {count} acknowledged", FixedCase(Case(t, world, load, edits))
    t = "fkx"
    pair = (consumer("C", filter_subject=f"{t}.a"), consumer("D", filter_subject=f"{t}.b"))
    world = {"streams": [stream(t, "interest", *pair)]}
    forced = change(t, "C", max_waiting=9, lifecycle={"on_replace": "recreate"})
    edits = (forced, change(t, "D", filter_subject=None))
    case = Case(t, world, (publish(t, "ababa"),), edits)
    yield "consumer recreated, another one widened", FixedCase(case, deletes=False)
    t = "flx"
    pair = (consumer("C", filter_subject=f"{t}.a"), consumer("D", filter_subject=f"{t}.b"))
    world = {"streams": [stream(t, "interest", *pair)]}
    load = (publish(t, "ababa"), consume(t, "C", 2))
    edits = (change(t, "C", filter_subject=None), Edit("drop", f"{t}S", "D"))
    yield "consumer widened, another one deleted", FixedCase(Case(t, world, load, edits))
    t = "fmx"
    world = {"streams": [stream(t, "interest", consumer("C"))]}
    edits = (
        change(t, "C", filter_subject=f"{t}.a"),
        Edit("add", f"{t}S", "D", fields=consumer("D", filter_subject=f"{t}.b")),
    )
    case = Case(t, world, (publish(t, "abab"),), edits)
    yield "consumer narrowed, a new one takes the rest", FixedCase(case, deletes=False)
    t = "fnx"
    pair = (consumer("C", filter_subject=f"{t}.a"), consumer("D", filter_subject=f"{t}.b"))
    world = {"streams": [stream(t, "interest", *pair)]}
    edits = (
        change(t, "C", max_waiting=9, filter_subject=f"{t}.b"),
        change(t, "D", filter_subject=f"{t}.a"),
    )
    case = Case(t, world, (publish(t, "ababa"),), edits)
    yield "filters swapped, one consumer replaced", FixedCase(case)


def _to_workqueue_cases() -> Iterator[tuple[str, FixedCase]]:
    """Streams that become work queues, while what one consumer finished passes to another."""
    variants: dict[str, tuple[str, str, str, str, Body]] = {
        "widened": ("b", "bc", "c", "a", {}),
        "narrowed": ("abc", "bc", "c", "a", {}),
        "shifted": ("a", "bc", "c", "a", {}),
        "widened, another one keeps its other filter": ("b", "bc", "ac", "a", {}),
        "replaced": ("b", "bc", "c", "a", {"max_waiting": 9}),
        "of ack_policy all": ("b", "bc", "c", "a", {"ack_policy": "all"}),
        "of ack_policy none": ("b", "bc", "c", "a", {"ack_policy": "none"}),
    }
    for number, (words, (c, to_c, d, to_d, fields)) in enumerate(variants.items()):
        for retention in ("limits", "interest"):
            t = f"fs{number}{retention[0]}x"
            pair = (
                filtered("C", t, c) | fields,
                filtered("D", t, d),
            )
            world = {"streams": [stream(t, retention, *pair, lifecycle=KEPT)]}
            load: tuple[Action, ...] = (
                publish(t, "cbcacb"),
                consume(t, "D", 2),
                Consume("hub", f"{t}S", "C", 2),
                publish(t, "abc"),
            )
            edits: tuple[Edit, ...] = (
                retain(t, "workqueue"),
                change(
                    t,
                    "C",
                    filter_subjects=[f"{t}.{x}" for x in to_c],
                    ack_policy="explicit",
                    max_waiting=None,
                ),
                change(t, "D", filter_subjects=[f"{t}.{x}" for x in to_d]),
            )
            yield (
                f"{retention} to work queue, consumer {words}",
                FixedCase(Case(t, world, load, edits)),
            )
    for retention in ("limits", "interest"):
        t = f"ft{retention[0]}x"
        pair = (filtered("C", t, "b"), filtered("D", t, "c"))
        world = {"streams": [stream(t, retention, *pair, lifecycle=KEPT)]}
        load = (publish(t, "cbcacb"), consume(t, "D", 2), Consume("hub", f"{t}S", "C", 1))
        edits = (
            retain(t, "workqueue"),
            Edit("drop", f"{t}S", "C"),
            Edit("add", f"{t}S", "A", fields=filtered("A", t, "bc")),
            change(t, "D", filter_subjects=[f"{t}.a"]),
        )
        yield (
            f"{retention} to work queue, a new consumer takes the place of one",
            FixedCase(Case(t, world, load, edits)),
        )
    t = "fux"
    late = filtered("C", t, "c") | {"deliver_policy": "by_start_sequence", "opt_start_seq": 7}
    world = {"streams": [stream(t, "interest", late, lifecycle=KEPT)]}
    edits = (
        retain(t, "workqueue"),
        Edit("set", f"{t}S", fields={"max_msgs_per_subject": 1}),
        change(t, "C", deliver_policy=None, opt_start_seq=None),
    )
    yield (
        "interest to work queue, its last message is gone, with a lower limit",
        # Before 2.12 messages get new sequences, which the start of a consumer forbids.
        FixedCase(Case(t, world, (publish(t, "cca"),), edits), APPLIED | {"refused"}),
    )


def starts_at(seq: int) -> Body:
    """The fields of a consumer that starts there."""
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": seq}


def _start_cases() -> Iterator[tuple[str, FixedCase]]:
    """Consumers that do not start with the first message, most of them behind the end."""
    variants: dict[str, Any] = {
        "deleted": lambda t: Edit("drop", f"{t}S", "D"),
        "updated": lambda t: change(t, "D", max_ack_pending=50),
        "narrowed": lambda t: change(t, "D", filter_subject=f"{t}.b"),
    }
    for number, (acks, (what, edit)) in enumerate(
        itertools.product(("none", "all", "explicit"), variants.items())
    ):
        t = f"fs{number}x"
        late = consumer("C", ack_policy=acks, filter_subject=f"{t}.a") | starts_at(4)
        world = {"streams": [stream(t, "interest", late, consumer("D"))]}
        case = Case(t, world, (publish(t, "abaaba"),), (edit(t),))
        yield f"consumer {what} beside a later one, ack_policy {acks}", FixedCase(case)
    for number, (retention, out, acks) in enumerate(
        itertools.product(("limits", "interest"), (0, 2), ("explicit", "none"))
    ):
        t = f"ft{number}x"
        world = {"streams": [stream(t, retention, consumer("C") | starts_at(4))]}
        given = Consume("hub", f"{t}S", "C", out)
        edits = (change(t, "C", max_waiting=9, ack_policy=acks),)
        case = Case(t, world, (publish(t, "abcabc"), given), edits)
        yield (
            f"later consumer replaced, {out} delivered, {retention}, ack_policy {acks}",
            FixedCase(case),
        )
    for number, (policy, acks) in enumerate(
        itertools.product(("new", "last", "by_start_sequence"), ("all", "explicit"))
    ):
        t = f"fu{number}x"
        fields = starts_at(4) if policy == "by_start_sequence" else {"deliver_policy": policy}
        add = Edit("add", f"{t}S", "C", fields=consumer("C", ack_policy=acks) | fields)
        world = {"streams": [stream(t, "interest", consumer("D"))]}
        case = Case(t, world, (publish(t, "abc"),), (add, Edit("drop", f"{t}S", "D")))
        yield f"consumer deleted, a later one added, {policy}, ack_policy {acks}", FixedCase(case)
    for number, (acks, beside) in enumerate(
        itertools.product(("none", "all", "explicit"), (False, True))
    ):
        t = f"fy{number}x"
        late = consumer("C", ack_policy=acks, filter_subject=f"{t}.a") | starts_at(3)
        others = [consumer("D", filter_subject=f"{t}.b")] if beside else []
        world = {"streams": [stream(t, "interest", late, *others)]}
        edits = (change(t, "C", max_waiting=9),)
        yield (
            f"consumer replaced before its start, ack_policy {acks}{', beside another' * beside}",
            FixedCase(Case(t, world, (publish(t, "acab"),), edits)),
        )
    downstream: dict[str, Any] = {
        "mirror replaced": ("mirror", lambda t: Edit("set", f"{t}M", fields={"storage": "memory"})),
        "mirror deleted": ("mirror", lambda t: Edit("remove", f"{t}M")),
        "source deleted": ("sources", lambda t: Edit("remove", f"{t}M")),
        "source left": ("sources", lambda t: Edit("set", f"{t}M", fields={"sources": None})),
    }
    for number, (acks, (what, (kind, edit))) in enumerate(
        itertools.product(("all", "explicit"), downstream.items())
    ):
        t = f"fz{number}x"
        late = consumer("D", ack_policy=acks, filter_subject=f"{t}.c") | starts_at(9)
        origin = {"name": f"{t}S", "domain": "hub"}
        flow = {"mirror": origin} if kind == "mirror" else {"sources": [origin]}
        copy = {"name": f"{t}M", "domain": "leaf", "lifecycle": KEPT} | flow
        world = {"streams": [stream(t, "limits", filtered("C", t, "ab"), late), copy]}
        load = (publish(t, "ac"), consume(t, "C", 1))
        yield (
            f"limits to interest beside a later consumer, {what}, ack_policy {acks}",
            # Before 2.15 no mirror is replaced with its messages.
            FixedCase(
                Case(t, world, load, (edit(t), retain(t, "interest"))),
                APPLIED | ({"refused"} if what == "mirror replaced" else set()),
            ),
        )
    for number, retention in enumerate(("limits", "interest")):
        t = f"fw{number}x"
        kept = {"lifecycle": {"on_replace": "preserve"}}
        world = {"streams": [stream(t, retention, consumer("C") | starts_at(4), **kept)]}
        load = (publish(t, "abcabc"), Consume("hub", f"{t}S", "C", 2))
        moved = Edit("set", f"{t}S", fields={"storage": "memory"})
        case = Case(t, world, load, (moved,))
        # Before 2.12 messages get new sequences.
        ends = frozenset({"applied", "refused"})
        yield f"stream of a later consumer replaced, {retention}", FixedCase(case, ends)


def _full_cases() -> Iterator[tuple[str, FixedCase]]:
    """Streams at max_consumers, which no server before 2.15 can read for a copy."""
    known = frozenset({"applied", "errored"})
    for number, retention in enumerate(("limits", "interest", "workqueue")):
        t = f"fx{number}x"
        fields = {"max_consumers": 1, "lifecycle": {"on_replace": "preserve"}}
        world = {"streams": [stream(t, retention, consumer("C"), **fields)]}
        load = (publish(t, "abc"), Consume("hub", f"{t}S", "C", 2, (0,)))
        moved = Edit("set", f"{t}S", fields={"storage": "memory"})
        yield f"full stream replaced, {retention}", FixedCase(Case(t, world, load, (moved,)), known)
    for number, most in enumerate((1, 2)):
        t = f"fy{number}x"
        origin = stream(t, "limits", consumer("C"), max_consumers=most)
        other = {"name": f"{t}M", "domain": "leaf", "sources": [{"name": f"{t}S", "domain": "hub"}]}
        declared = Edit("declare", fields=other)
        case = Case(t, {"streams": [origin]}, (publish(t, "abc"),), (declared,))
        ends = known if most == 1 else APPLIED
        yield f"source of a stream with 1 of {most} consumers", FixedCase(case, ends)
        t = f"fz{number}x"
        fields = {"max_consumers": most + 1, "lifecycle": {"on_replace": "preserve"}}
        origin = stream(t, "limits", consumer("C"), **fields)
        other = {"name": f"{t}M", "domain": "leaf", "sources": [{"name": f"{t}S", "domain": "hub"}]}
        add = Edit("add", f"{t}S", "D", fields=consumer("D"))
        moved = Edit("set", f"{t}S", fields={"storage": "memory"})
        case = Case(t, {"streams": [origin, other]}, (publish(t, "abc"),), (add, moved))
        yield f"sourced stream replaced with 2 of {most + 1} consumers", FixedCase(case, ends)


def _other_cases() -> Iterator[tuple[str, FixedCase]]:
    t = "fox"
    pair = (consumer("C", filter_subject=f"{t}.a"), consumer("D", filter_subject=f"{t}.b"))
    world = {"streams": [stream(t, "workqueue", *pair)]}
    edits: tuple[Edit, ...] = (Edit("swap", f"{t}S", "C", "D", {"field": "filter_subject"}),)
    case = Case(t, world, (publish(t, "ababa"),), edits)
    yield "filters swapped on a work queue", FixedCase(case, deletes=False)
    for number, retention in enumerate(("limits", "interest")):
        t = f"fp{number}x"
        trio = (
            consumer("A", filter_subject=f"{t}.a"),
            consumer("B", filter_subject=f"{t}.b"),
            consumer("C"),
        )
        world = {"streams": [stream(t, retention, *trio)]}
        fewer = Edit("set", f"{t}S", fields={"max_consumers": 2})
        case = Case(t, world, (publish(t, "abc"),), (fewer, change(t, "C", max_waiting=10)))
        ends = frozenset({"applied", "errored", "refused"})  # before 2.12 it cannot change in place
        yield f"max_consumers too low, consumer replaced, {retention}", FixedCase(case, ends)
    for number, retention in enumerate(("limits", "interest")):
        t = f"fr{number}x"
        pair = (consumer("C", ack_policy="all"), consumer("E", ack_policy="none"))
        for out, late in (
            (2, False),
            (4, True),
        ):  # the last message that goes is out, or is older than all that are
            name = f"{t}{out}"
            world = {"streams": [stream(name, retention, *pair)]}
            given = Consume("hub", f"{name}S", "C", out, (1,) if late else ())
            fewer = Edit("set", f"{name}S", fields={"max_msgs_per_subject": 2})
            load = (publish(name, "bbab" if late else "abbb"), given)
            edits = (fewer,)
            words = "finished" if late else "delivered"
            yield (
                f"a limit deletes a {words} message, ack_policy all, {retention}",
                FixedCase(Case(name, world, load, edits)),
            )
    for retention in ("limits", "interest"):
        t = f"fq{retention[0]}x"
        fields = {"max_msgs_per_subject": 3, "lifecycle": {"on_replace": "preserve"}}
        world = {"streams": [stream(t, retention, consumer("C"), **fields)]}
        lower = {"max_msgs_per_subject": 1, "storage": "memory"}
        moved = Edit("set", f"{t}S", fields=lower)
        yield (
            f"stream replaced with a lower limit, {retention}",
            FixedCase(Case(t, world, (publish(t, "aaabbb"),), (moved,)), deletes=True),
        )
    t = "fqx"
    world = {
        "streams": [stream(t, "limits", consumer("C"), lifecycle={"ignore_changes": ["retention"]})]
    }
    hand = Ask("hub", f"STREAM.UPDATE.{t}S", merge={"retention": "interest"})
    edits = (change(t, "C", max_waiting=10),)
    case = Case(t, world, (publish(t, "abcde"),), edits, between=(hand,))
    yield "stream became interest after the plan", FixedCase(case, frozenset({"applied", "stale"}))


def _setting_cases() -> Iterator[tuple[str, FixedCase]]:
    """Changes of settings that meet other changes of the same plan."""
    t = "fxax"
    sealed = Edit("set", f"{t}S", fields={"sealed": True, "max_msgs": 4})
    case = Case(t, {"streams": [stream(t, "limits")]}, (publish(t, "abcab"),), (sealed,))
    yield "stream sealed with a lower limit", FixedCase(case, deletes=False)
    for retention in ("limits", "interest"):
        t = f"fxb{retention[0]}x"
        limits: Body = {"consumer_limits": {"max_ack_pending": 100}}
        limits |= {"lifecycle": {"on_replace": "preserve"}}
        first = consumer("C", filter_subject=f"{t}.a", max_ack_pending=50)
        world = {"streams": [stream(t, "workqueue", first, **limits)]}
        added = Edit("add", f"{t}S", "F", fields=consumer("F", filter_subject=f"{t}.b"))
        case = Case(t, world, (publish(t, "abab"),), (added, retain(t, retention)))
        ends = frozenset({"applied", "refused"})  # before 2.14 servers cannot copy such a stream
        yield f"consumer added to a replaced stream with limits, {retention}", FixedCase(case, ends)
    for name, most in (("max_msgs", 2), ("max_bytes", 500)):
        t = f"fxc{name[4]}x"
        full = {name: most, "discard": "new", "sources": [{"name": f"{t}S", "domain": "hub"}]}
        copy = {"name": f"{t}M", "domain": "leaf"} | full
        world = {"streams": [stream(t, "limits", lifecycle={"on_replace": "preserve"}), copy]}
        moved = Edit("set", f"{t}S", fields={"storage": "memory"})
        load = (publish(t, "ab"), Publish("hub", (f"{t}.c",), 400))
        yield (
            f"downstream stream of a replaced stream is full, {name}",
            FixedCase(Case(t, world, load, (moved,))),
        )
    t = "fxdx"
    world = {"streams": [stream(t, "limits", consumer("C", filter_subjects=[f"{t}.a", f"{t}.b"]))]}
    case = Case(t, world, (publish(t, "abc"),), (change(t, "C", filter_subjects=None),))
    yield "consumer loses its filters", FixedCase(case)


#: By what they are about.
def _once_interest_cases() -> Iterator[tuple[str, FixedCase]]:
    """Consumers of a stream that an earlier apply made a limits stream."""
    for retention in ("limits", "interest"):
        t = f"fy{retention[0]}x"
        case = Case(
            t,
            {"streams": [stream(t, "interest", filtered("C", t, "ab"), consumer("D"))]},
            (publish(t, "abcab"),),
            (change(t, "C", filter_subjects=[f"{t}.a"], max_deliver=7), retain(t, retention)),
            first=(retain(t, "limits"), Edit("drop", f"{t}S", "D")),
            second_load=(publish(t, "abc"),),
        )
        text = f"consumer of a former interest stream changes, {retention} now"
        yield text, FixedCase(case, deletes=False)


FIXED: Final[dict[str, FixedCase]] = {
    name: fixed
    for group in (
        _to_interest_cases,
        _from_interest_cases,
        _interest_cases,
        _to_workqueue_cases,
        _start_cases,
        _full_cases,
        _other_cases,
        _setting_cases,
        _once_interest_cases,
    )
    for name, fixed in group()
}
