"""Random cases from a seed: streams, consumers, loads, and edits that meet in one plan."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.sequences.cases import Ask, Case, Consume, Edit, Publish, merge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.sequences.cases import Action, Body, Sections

#: The last token of subjects that a stream gets.
TOKENS = ("a", "b", "c")
#: Fields of a consumer that only a new one can have, with values.
FORCED: dict[str, tuple[Any, ...]] = {
    "max_waiting": (7, 64),
    "ack_policy": ("explicit", "all", "none"),
    "headers_only": (True, None),
    "max_batch": (20, None),
    "mem_storage": (True, None),
}
#: Fields that change in place, and that no delivery depends on.
QUIET: dict[str, tuple[Any, ...]] = {
    "description": ("x", "y"),
    "max_ack_pending": (20, 100),
    "ack_wait": ("45s",),
}


@dataclass
class _CaseBuilder:
    """One case in the making. `level` is the API level of the oldest server it has to run on."""

    rng: random.Random
    token: str
    streams: list[Body] = field(default_factory=list)
    buckets: list[Body] = field(default_factory=list)
    objects: list[Body] = field(default_factory=list)
    load: list[Action] = field(default_factory=list)

    @property
    def sections(self) -> Sections:
        found = {"streams": self.streams, "kv": self.buckets, "object_stores": self.objects}
        return {name: bodies for name, bodies in found.items() if bodies}

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def subject(self, stream: Body, token: str) -> str:
        return f"{self.token}.{stream['name'][len(self.token)].lower()}.{token}"


def make_case(
    seed: int,
    *,
    with_outside_change: bool = False,
    with_earlier_apply: bool = False,
    with_relocation: bool = False,
) -> Case:
    """Make the case of a seed.

    With another person in between, with an earlier apply, or with streams and buckets that move.
    """
    kind = ("m" if with_outside_change else "") + ("e" if with_earlier_apply else "")
    kind += "r" if with_relocation else ""
    rng = random.Random(f"{seed}{kind}")
    making = _CaseBuilder(rng, f"{kind or 's'}{seed}x")
    for name in "ABC"[: rng.choice((1, 1, 2, 2, 3))]:
        making.streams.append(_origin(making, name))
        if with_relocation and making.chance(0.8):
            making.streams[-1]["retention"] = "limits"
    _copies(making)
    _buckets(making)
    _load(making)
    before = copy.deepcopy(making.sections)
    first: tuple[Edit, ...] = ()
    second_load: tuple[Publish, ...] = ()
    if with_earlier_apply:
        more = {_relocation: 30} if with_relocation else {}
        first = _edits(making, (1, 1, 2, 3), _ALL_KINDS | more)
        second_load = tuple(
            _publish(making, stream, rng.randint(1, 5))
            for stream in making.streams
            if stream.get("subjects") and making.chance(0.4)
        )
    kinds = _ALL_KINDS if with_earlier_apply or with_relocation else _KINDS
    # Another person finds the streams where they were.
    early = tuple(_outside_change(making)) if with_outside_change and with_relocation else ()
    moves = _moves(making) if with_relocation and making.chance(0.5) else ()
    edits = (*moves, *_edits(making, (1, 2, 2, 3) if with_relocation else (2, 2, 3, 3, 4), kinds))
    if with_relocation and not moves:
        edits += _moves(making)
    between = early or (tuple(_outside_change(making)) if with_outside_change else ())
    options = {"safe_below": rng.choice((0, 0, 2))} if with_outside_change else {}
    load = tuple(making.load)
    return Case(making.token, before, load, edits, between, options, first, second_load)


# --- streams ----------------------------------------------------------------------------------------


def _origin(making: _CaseBuilder, letter: str) -> Body:
    rng = making.rng
    name = f"{making.token}{letter}"
    stream: Body = {
        "name": name,
        "domain": rng.choice(("hub", "hub", "leaf")),
        "subjects": [f"{making.token}.{letter.lower()}.>"],
        "retention": rng.choice(
            ("limits", "limits", "interest", "interest", "interest", "workqueue")
        ),
        "lifecycle": {"on_replace": rng.choice(("preserve", "preserve", "preserve", "recreate"))},
        "consumers": [],
    }
    if making.chance(0.15):
        stream["storage"] = "memory"
    if making.chance(0.1):
        stream["max_msgs_per_subject"] = rng.choice((3, 5))
    if making.chance(0.05):
        stream["max_consumers"] = 4
    for letter_of in "CDE"[: rng.choice((0, 1, 2, 2, 2, 3))]:
        consumer = _consumer(making, stream, letter_of)
        if consumer is not None:
            stream["consumers"].append(consumer)
    return stream


def _consumer(making: _CaseBuilder, stream: Body, name: str) -> Body | None:
    """A consumer that goes with the others; None where a work queue has no subject left for one."""
    rng = making.rng
    body: Body = {"name": name, "ack_policy": "explicit"}
    if stream["retention"] == "workqueue":
        taken = {t for c in stream["consumers"] for t in _tokens(c)}
        left = [t for t in TOKENS if t not in taken]
        if not left:
            return None
        merge(body, _filter(making, stream, rng.sample(left, rng.randint(1, min(2, len(left))))))
    else:
        body["ack_policy"] = rng.choice(("explicit", "explicit", "explicit", "all", "none"))
        if making.chance(0.65):
            merge(body, _filter(making, stream, rng.sample(TOKENS, rng.choice((1, 1, 2)))))
        if making.chance(0.12):
            body |= {"deliver_policy": "by_start_sequence", "opt_start_seq": rng.randint(1, 9)}
    if making.chance(0.15):
        body["deliver_subject"] = f"{stream['name']}.push.{name}"
        if body["ack_policy"] != "none":
            body["max_ack_pending"] = rng.choice((3, 1000))
    if making.chance(0.1):
        body["lifecycle"] = {"on_replace": "recreate"}
    return body


def _filter(making: _CaseBuilder, stream: Body, tokens: list[str]) -> Body:
    """Fields that give a consumer this filter; None takes out the one of the other kind."""
    wanted = [making.subject(stream, t) for t in sorted(tokens)]
    one = wanted[0] if len(wanted) == 1 else None
    return {"filter_subject": one, "filter_subjects": wanted if one is None else None}


def _tokens(consumer: Body) -> set[str]:
    one = consumer.get("filter_subject")
    filters = [one] if one else consumer.get("filter_subjects") or []
    return {f.rpartition(".")[2] for f in filters} or set(TOKENS)


def _copies(making: _CaseBuilder) -> None:
    """A mirror or a stream with sources, now and then, in either domain."""
    rng = making.rng
    origins = [s for s in making.streams if s["retention"] == "limits" or making.chance(0.1)]
    origins = [s for s in origins if s["retention"] != "workqueue"]
    if not origins or not making.chance(0.35):
        return
    copies: Body = {
        "name": f"{making.token}M",
        "domain": rng.choice(("hub", "leaf")),
        "retention": "limits",
        "lifecycle": {"on_replace": "preserve"},
        "consumers": [],
    }
    if making.chance(0.4):
        copies["mirror"] = _origin_of(making, rng.choice(origins), filtered=False)
    else:
        chosen = rng.sample(origins, rng.randint(1, len(origins)))
        copies["sources"] = [_origin_of(making, s, filtered=True) for s in chosen]
    if making.chance(0.5):
        copies["consumers"] = [{"name": "C", "ack_policy": "explicit"}]
    making.streams.append(copies)


def _origin_of(making: _CaseBuilder, stream: Body, *, filtered: bool) -> Body:
    origin: Body = {"name": stream["name"], "domain": stream["domain"]}
    if filtered and making.chance(0.4):
        origin["filter_subject"] = making.subject(stream, making.rng.choice(TOKENS))
    return origin


def _buckets(making: _CaseBuilder) -> None:
    """A key-value bucket or an object store, now and then."""
    rng, body = making.rng, {"lifecycle": {"on_replace": "preserve"}}
    if making.chance(0.12):
        name = f"{making.token}K"
        making.buckets.append(
            {"bucket": name, "domain": "hub", "history": rng.choice((1, 3, 5)), **body}
        )
    if making.chance(0.05):
        making.objects.append({"bucket": f"{making.token}O", "domain": "hub", **body})


# --- the load ---------------------------------------------------------------------------------------


def _load(making: _CaseBuilder) -> None:
    """Messages, deliveries, and again messages, so that positions lie in the middle."""
    rng = making.rng
    for stream in making.streams:
        if not stream.get("subjects"):
            continue
        making.load.append(_publish(making, stream, rng.randint(2, 8)))
        for consumer in stream["consumers"]:
            if making.chance(0.6):
                making.load.append(_consume(making, stream, consumer))
        if making.chance(0.6):
            making.load.append(_publish(making, stream, rng.randint(1, 4)))
        making.load += [
            _consume(making, stream, c) for c in stream["consumers"] if making.chance(0.15)
        ]
    for bucket in making.buckets:
        keys = [f"$KV.{bucket['bucket']}.{rng.choice(TOKENS)}" for _ in range(rng.randint(2, 7))]
        making.load.append(Publish("hub", tuple(keys)))
        if making.chance(0.3):
            purge = (("KV-Operation", "PURGE"), ("Nats-Rollup", "sub"))
            making.load.append(Publish("hub", (keys[0],), headers=purge))
    for store in making.objects:
        chunks = tuple(f"$O.{store['bucket']}.C.{rng.choice(TOKENS)}" for _ in range(3))
        meta = f"$O.{store['bucket']}.M.m"
        making.load += [
            Publish("hub", chunks, 50),
            Publish("hub", (meta,), headers=(("Nats-Rollup", "sub"),)),
        ]


def _publish(making: _CaseBuilder, stream: Body, count: int) -> Publish:
    chosen = [making.rng.choice(TOKENS) for _ in range(count)]
    size = making.rng.choice((0, 0, 0, 200))
    return Publish(stream["domain"], tuple(making.subject(stream, t) for t in chosen), size)


def _consume(making: _CaseBuilder, stream: Body, consumer: Body) -> Consume:
    count = making.rng.randint(1, 5)
    style = making.rng.choice(("all", "none", "first", "some"))
    places = list(range(count))
    chosen = {"all": places, "none": [], "first": places[: count // 2]}
    some = [p for p in places if making.chance(0.5)]
    acks = tuple(chosen.get(style, some))
    return Consume(stream["domain"], stream["name"], consumer["name"], count, acks)


# --- the edits --------------------------------------------------------------------------------------


def _edits(making: _CaseBuilder, counts: Sequence[int], kinds: EditKinds) -> tuple[Edit, ...]:
    """Make one of `counts` edits, most of them on one stream; later ones see earlier ones."""
    rng = making.rng
    hot = rng.choice(making.streams)
    found: list[Edit] = []
    wanted = rng.choice(counts)
    for _ in range(40):
        stream = hot if making.chance(0.7) else rng.choice(making.streams)
        make = rng.choices(list(kinds), list(kinds.values()))[0]
        edits = make(making, stream)
        for edit in edits:
            edit.apply(making.sections)
        found += edits
        if len(found) >= wanted:
            break
    return tuple(found)


def _retention(making: _CaseBuilder, stream: Body) -> list[Edit]:
    if not stream.get("subjects"):
        return []
    others = [
        r for r in ("limits", "interest", "interest", "workqueue") if r != stream["retention"]
    ]
    wanted = making.rng.choice(others)
    edits = [Edit("set", stream["name"], fields={"retention": wanted})]
    if wanted == "workqueue":
        edits += _divide(making, stream)
    return edits


def _divide(making: _CaseBuilder, stream: Body) -> list[Edit]:
    """Consumers that a work queue takes: explicit, each with subjects of its own."""
    left, edits = list(TOKENS), []
    making.rng.shuffle(left)
    for consumer in list(stream["consumers"]):
        if not left:
            edits.append(Edit("drop", stream["name"], consumer["name"]))
            continue
        taken = [left.pop() for _ in range(making.rng.randint(1, min(2, len(left))))]
        fields = _filter(making, stream, taken) | {"ack_policy": "explicit"}
        fields |= {"deliver_policy": None, "opt_start_seq": None}
        edits.append(Edit("consumer", stream["name"], consumer["name"], fields=fields))
    return edits


def _limit(making: _CaseBuilder, stream: Body) -> list[Edit]:
    rng = making.rng
    if stream.get("mirror") and making.chance(0.5):
        return []
    choices: tuple[Body, ...] = (
        {"max_msgs": rng.randint(1, 7)},
        {"max_bytes": rng.choice((300, 700, 5000))},
        {"max_msgs_per_subject": rng.choice((1, 2, 4))},
        {"max_age": rng.choice(("1h", "30d"))},
        {"max_msgs": None, "max_bytes": None, "max_msgs_per_subject": None},
        {"discard": rng.choice(("old", "new")), "max_msgs": rng.randint(3, 9)},
        {"allow_direct": True, "description": "changed"},
    )
    return [Edit("set", stream["name"], fields=rng.choice(choices))]


def _subjects(making: _CaseBuilder, stream: Body) -> list[Edit]:
    rng = making.rng
    if not stream.get("subjects"):
        return []
    others = [
        s
        for s in making.streams
        if s is not stream and s.get("subjects") and s["domain"] == stream["domain"]
    ]
    if others and making.chance(0.5):
        other = rng.choice(others)["name"]
        return [Edit("swap", stream["name"], other=other, fields={"field": "subjects"})]
    tokens = rng.choice((("a", "b"), ("a",), ("b", "c"), ("a", "b", "c")))
    wanted = [making.subject(stream, t) for t in tokens]
    if making.chance(0.4):
        wanted = [
            making.subject(stream, ">"),
            f"{making.token}.more.>",
        ]
    if any(w in s.get("subjects", ()) for s in others for w in wanted):
        return []
    return [Edit("set", stream["name"], fields={"subjects": wanted})]


def _add(making: _CaseBuilder, stream: Body) -> list[Edit]:
    free = [n for n in "CDEF" if n not in {c["name"] for c in stream["consumers"]}]
    if not free:
        return []
    fake = stream if stream.get("retention") else stream | {"retention": "limits"}
    body = _consumer(making, fake, making.rng.choice(free))
    if body is None:
        return []
    if stream.get("retention") != "workqueue" and "opt_start_seq" not in body:
        body["deliver_policy"] = making.rng.choice(
            ("all", "all", "new", "last", "last_per_subject")
        )
        if body["deliver_policy"] == "last_per_subject" and not _filters(body):
            body["filter_subject"] = f"{making.token}.>"
    return [Edit("add", stream["name"], body["name"], fields=body)]


def _filters(body: Body) -> bool:
    return bool(body.get("filter_subject") or body.get("filter_subjects"))


def _drop(making: _CaseBuilder, stream: Body) -> list[Edit]:
    if not stream["consumers"]:
        return []
    return [Edit("drop", stream["name"], making.rng.choice(stream["consumers"])["name"])]


def _refilter(making: _CaseBuilder, stream: Body) -> list[Edit]:
    rng = making.rng
    if not stream["consumers"] or stream.get("mirror") or stream.get("sources"):
        return []
    if stream["retention"] == "workqueue":
        return _divide(making, stream) if making.chance(0.7) else []
    consumer = rng.choice(stream["consumers"])
    if making.chance(0.25):
        fields: Body = {"filter_subject": None, "filter_subjects": None}
    else:
        fields = _filter(making, stream, rng.sample(TOKENS, rng.choice((1, 1, 2))))
    return [Edit("consumer", stream["name"], consumer["name"], fields=fields)]


def _swap(making: _CaseBuilder, stream: Body) -> list[Edit]:
    if len(stream["consumers"]) < 2:
        return []
    one, other = making.rng.sample([c["name"] for c in stream["consumers"]], 2)
    fields = {"field": "filter_subject filter_subjects"}
    return [Edit("swap", stream["name"], one, other, fields)]


def _force(making: _CaseBuilder, stream: Body) -> list[Edit]:
    """Something that only a new consumer can have."""
    rng = making.rng
    if not stream["consumers"]:
        return []
    consumer = rng.choice(stream["consumers"])
    fields: Body
    if making.chance(0.25):
        pushed = consumer.get("deliver_subject")
        fields = {
            "deliver_subject": None if pushed else f"{stream['name']}.push.{consumer['name']}"
        }
        fields |= {"max_waiting": None, "max_batch": None}
    else:
        name = rng.choice(
            [n for n in FORCED if not (consumer.get("deliver_subject") and n.startswith("max_"))]
        )
        if name == "ack_policy" and stream.get("retention") == "workqueue":
            name = "headers_only"
        fields = {name: rng.choice([v for v in FORCED[name] if v != consumer.get(name)])}
    if making.chance(0.35):
        fields["lifecycle"] = {"on_replace": rng.choice(("recreate", "preserve"))}
    return [Edit("consumer", stream["name"], consumer["name"], fields=fields)]


def _quiet(making: _CaseBuilder, stream: Body) -> list[Edit]:
    rng = making.rng
    if not stream["consumers"]:
        return []
    consumer, name = rng.choice(stream["consumers"]), rng.choice(list(QUIET))
    if consumer["ack_policy"] == "none" and name != "description":
        return []
    fields = {name: rng.choice(QUIET[name])}
    return [Edit("consumer", stream["name"], consumer["name"], fields=fields)]


def _replace(making: _CaseBuilder, stream: Body) -> list[Edit]:
    storage = "file" if stream.get("storage") == "memory" else "memory"
    fields: Body = {"storage": storage}
    return [Edit("set", stream["name"], fields=fields)]


def _consumer_limits(making: _CaseBuilder, stream: Body) -> list[Edit]:
    """Limit the number of consumers of a stream, and what they may ask for."""
    rng, count = making.rng, len(stream["consumers"])
    if making.chance(0.6):
        return [
            Edit(
                "set",
                stream["name"],
                fields={"max_consumers": max(1, count + rng.choice((-1, 0, 0, 0, 1)))},
            )
        ]
    limits = Edit("set", stream["name"], fields={"consumer_limits": {"max_ack_pending": 100}})
    fitting = [c["name"] for c in stream["consumers"] if c["ack_policy"] != "none"]
    return [
        limits,
        *(
            Edit("consumer", stream["name"], name, fields={"max_ack_pending": 50})
            for name in fitting
        ),
    ]


def _rewire(making: _CaseBuilder, stream: Body) -> list[Edit]:
    """A source that joins or leaves, a mirror that becomes a stream of its own."""
    rng = making.rng
    copies = [s for s in making.streams if s.get("sources") or s.get("mirror")]
    if not copies:
        return []
    copied = copies[0]
    if copied.get("mirror"):
        return [
            Edit(
                "set", copied["name"], fields={"mirror": None, "subjects": [f"{making.token}.m.>"]}
            )
        ]
    there = {origin["name"] for origin in copied["sources"]}
    others = [
        s
        for s in making.streams
        if s["name"] not in there and s.get("subjects") and s["retention"] == "limits"
    ]
    if others and making.chance(0.5):
        joined = [*copied["sources"], _origin_of(making, rng.choice(others), filtered=True)]
        return [Edit("set", copied["name"], fields={"sources": joined})]
    left = copied["sources"][1:]
    fields: Body = {"sources": left or None} | (
        {} if left else {"subjects": [f"{making.token}.m.>"]}
    )
    return [Edit("set", copied["name"], fields=fields)]


def _bucket(making: _CaseBuilder, stream: Body) -> list[Edit]:
    rng = making.rng
    edits = []
    for bucket in making.buckets:
        fields = rng.choice(
            ({"history": rng.choice((1, 2, 4, 8))}, {"storage": "memory"}, {"max_bytes": 5000})
        )
        edits.append(Edit("set", bucket["bucket"], fields=fields))
    of_store: tuple[Body, ...] = ({"storage": "memory"}, {"description": "x"})
    return edits + [
        Edit("set", store["bucket"], fields=rng.choice(of_store)) for store in making.objects
    ]


def _remove(making: _CaseBuilder, stream: Body) -> list[Edit]:
    if len(making.streams) < 3:
        return []
    return [
        Edit("remove", making.rng.choice([s for s in making.streams if s is not stream])["name"])
    ]


def _setting(making: _CaseBuilder, stream: Body) -> list[Edit]:
    """Set a field that limits what a stream takes or how it may change."""
    rng = making.rng
    choices: tuple[Body, ...] = (
        {"max_msg_size": rng.choice((100, 1000))},
        {"duplicate_window": rng.choice(("1s", "1m"))},
        {"deny_delete": True},
        {"deny_purge": True},
        {"sealed": True},
        {"discard": "new", "max_msgs_per_subject": 3, "discard_new_per_subject": True},
        {"discard": "old", "discard_new_per_subject": None},
        {"allow_rollup_hdrs": True},
        {"compression": "s2"},
        {"republish": {"src": ">", "dest": f"{making.token}.again.>"}},
        {"subject_transform": {"src": ">", "dest": f"{making.token}.to.>"}},
        {"subject_transform": None},
    )
    fields = rng.choice(choices)
    if "discard" in fields and (stream.get("mirror") or stream.get("sources")):
        return []  # one that is full stops its flows
    return [Edit("set", stream["name"], fields=fields)]


def _delivery(making: _CaseBuilder, stream: Body) -> list[Edit]:
    """Set how often and how long a consumer delivers."""
    rng = making.rng
    if not stream["consumers"]:
        return []
    consumer = rng.choice(stream["consumers"])
    choices: tuple[Body, ...] = ({"inactive_threshold": "1h"}, {"description": "z"})
    if consumer["ack_policy"] != "none":
        choices += (
            {"max_deliver": rng.choice((1, 5))},
            {"backoff": ["40s", "1m"], "max_deliver": 3},
            {"replay_policy": "original"},
        )
    return [Edit("consumer", stream["name"], consumer["name"], fields=rng.choice(choices))]


def _moves(making: _CaseBuilder) -> tuple[Edit, ...]:
    """Relocate one to three of the streams and buckets, each once."""
    rng, everything = making.rng, [*making.streams, *making.buckets, *making.objects]
    found: list[Edit] = []
    for body in rng.sample(everything, min(len(everything), rng.choice((1, 1, 2, 3)))):
        edits = _relocation(making, body)
        for edit in edits:
            edit.apply(making.sections)
        found += edits
    return tuple(found)


def _relocation(making: _CaseBuilder, body: Body) -> list[Edit]:
    """Let a stream get another domain, name or both; a bucket keeps its name."""
    rng = making.rng
    mirrored = any((s.get("mirror") or {}).get("name") == body.get("name") for s in making.streams)
    is_copy = bool(body.get("mirror") or body.get("sources"))  # refused, mostly
    if (mirrored or is_copy) and making.chance(0.9 if is_copy else 0.3):
        return []
    other = {"domain": "leaf" if body["domain"] == "hub" else "hub"}
    if "bucket" in body:
        return [Edit("relocate", body["bucket"], fields=other)]
    name = {"name": f"{body['name']}{rng.choice('UVWX')}"}
    fields = rng.choice((other, other, name, other | name))
    renames = _renames(making, body, str(fields.get("name", body["name"])))
    return [Edit("relocate", body["name"], fields=fields), *renames]


def _renames(making: _CaseBuilder, body: Body, stream: str) -> list[Edit]:
    """Give some consumers of a relocated stream another name.

    By a generator of their own: without them each seed makes what it made before.
    """
    rng = random.Random(f"{making.token}{stream}")
    names = [consumer["name"] for consumer in body.get("consumers", ())]
    if not names or rng.random() < 0.5:
        return []
    some = rng.sample(names, rng.randint(1, min(2, len(names))))
    return [Edit("rename", stream, name, fields={"name": f"{name}Z"}) for name in some]


#: Functions that make edits of a kind, with their weights.
EditKinds = dict["Callable[[_CaseBuilder, Body], list[Edit]]", int]
_KINDS: EditKinds = {
    _retention: 16,
    _limit: 14,
    _subjects: 8,
    _add: 9,
    _drop: 8,
    _refilter: 14,
    _swap: 10,
    _force: 20,
    _quiet: 5,
    _replace: 5,
    _consumer_limits: 5,
    _rewire: 6,
    _bucket: 6,
    _remove: 1,
}
_ALL_KINDS: EditKinds = _KINDS | {_setting: 18, _delivery: 6}


# --- another person -----------------------------------------------------------------------------------


def _outside_change(making: _CaseBuilder) -> list[Action]:
    """Make one change of another person between plan and apply."""
    rng = making.rng
    stream = rng.choice(making.streams)
    domain, name = stream["domain"], stream["name"]
    consumers = [c["name"] for c in stream["consumers"]] or ["C"]
    consumer = rng.choice(consumers)
    odd: Body = {"durable_name": "ODD", "ack_policy": "explicit"}
    if stream.get("retention") == "workqueue":
        odd["filter_subject"] = f"{making.token}.odd"
    choices: list[Action] = [
        Ask(domain, f"STREAM.UPDATE.{name}", merge={"description": "by hand"}),
        Ask(domain, f"STREAM.UPDATE.{name}", merge={"max_msgs": rng.randint(2, 20)}),
        Ask(
            domain, f"STREAM.UPDATE.{name}", merge={"retention": rng.choice(("interest", "limits"))}
        ),
        Ask(domain, f"CONSUMER.DELETE.{name}.{consumer}"),
        Ask(domain, f"CONSUMER.CREATE.{name}.ODD", {"stream_name": name, "config": odd}),
        Ask(domain, f"CONSUMER.CREATE.{name}.{consumer}", merge={"description": "by hand"}),
        Ask(domain, f"STREAM.PURGE.{name}"),
        Ask(domain, f"STREAM.PURGE.{name}", {"keep": 2}),
        Ask(domain, f"STREAM.MSG.DELETE.{name}", {"seq": rng.randint(1, 5)}),
        Ask(domain, f"STREAM.DELETE.{name}"),
    ]
    if stream.get("subjects"):
        choices += [_publish(making, stream, rng.randint(1, 6)) for _ in range(4)]
    choices += [Consume(domain, name, c, 3, (0, 1, 2)) for c in consumers] * 2
    return [rng.choice(choices)]
