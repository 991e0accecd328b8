"""Random cases from a seed: streams, consumers, loads, and edits that meet in one plan."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tests.sequences.cases import Ask, Case, Consume, Edit, Publish, address_of, bodies, merge
from tests.support.random_streams import RandomStreams, origins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sequences.cases import Action, Body, Sections

#: The last token of subjects that a stream gets.
TOKENS = ("a", "b", "c")
Choices = tuple[dict[str, Any], ...]
#: What one edit sets, as `RandomStreams.draw_fields` takes it: None takes a field out.
LIMITS: Choices = (
    {"max_msgs": range(1, 8)},
    {"max_bytes": (300, 700, 5000)},
    {"max_msgs_per_subject": (1, 2, 4)},
    {"max_age": ("1h", "30d")},
    {"max_msgs": None, "max_bytes": None, "max_msgs_per_subject": None},
    {"discard": ("old", "new"), "max_msgs": range(3, 10)},
    {"allow_direct": True, "description": "changed"},
)
#: What a stream has now and then, by how often.
RARE: dict[float, dict[str, Any]] = {
    0.15: {"storage": "memory"},
    0.1: {"max_msgs_per_subject": (3, 5)},
    0.05: {"max_consumers": 4},
}
#: Fields that limit what a stream takes or how it may change.
SETTINGS: Choices = (
    {"max_msg_size": (100, 1000)},
    {"duplicate_window": ("1s", "1m")},
    {"deny_delete": True},
    {"deny_purge": True},
    {"sealed": True},
    {"discard": "new", "max_msgs_per_subject": 3, "discard_new_per_subject": True},
    {"discard": "old", "discard_new_per_subject": None},
    {"allow_rollup_hdrs": True},
    {"compression": "s2"},
    {"republish": {"src": ">", "dest": "T.again.>"}},
    {"subject_transform": {"src": ">", "dest": "T.to.>"}},
    {"subject_transform": None},
)
#: Fields of a consumer that change in place, and that no delivery depends on.
QUIET: Choices = (
    {"description": ("x", "y")},
    {"max_ack_pending": (20, 100)},
    {"ack_wait": "45s"},
)
#: How often and how long a consumer delivers.
DELIVERY: Choices = (
    {"inactive_threshold": "1h"},
    {"description": "z"},
    {"max_deliver": (1, 5)},
    {"backoff": ["40s", "1m"], "max_deliver": 3},
    {"replay_policy": "original"},
)
#: What a consumer without acknowledgements cannot have.
NEEDS_ACKS = {"max_ack_pending", "ack_wait", "max_deliver", "replay_policy"}
#: What only a new consumer can have.
FORCED: Choices = (
    {"max_waiting": (7, 64)},
    {"ack_policy": ("explicit", "all", "none")},
    {"headers_only": (True, None)},
    {"max_batch": (20, None)},
    {"mem_storage": (True, None)},
)
BUCKETS: Choices = ({"history": (1, 2, 4, 8)}, {"storage": "memory"}, {"max_bytes": 5000})
STORES: Choices = ({"storage": "memory"}, {"description": "x"})
#: Methods of `_CaseBuilder` that make edits of a kind, with their weights.
KINDS = {
    "retention": 16, "limit": 14, "subjects": 8, "add": 9, "drop": 8, "refilter": 14, "swap": 10, "force": 25, "quiet": 5,
    "replace": 5, "consumer_limits": 5, "rewire": 6, "bucket": 6, "remove": 1,
}  # fmt: skip
ALL_KINDS = KINDS | {"setting": 18, "delivery": 6}


def make_case(
    seed: int,
    *,
    with_outside_change: bool = False,
    with_earlier_apply: bool = False,
    with_relocation: bool = False,
    with_revert: bool = False,
    with_restore: bool = False,
    with_kill: bool = False,
    with_offline: bool = False,
    with_adoption: bool = False,
    with_selection: bool = False,
) -> Case:
    """Make the case of a seed.

    With another person in between, with an earlier apply, with streams and buckets that move, with
    a revert of the earlier apply, with streams that are restored, with a death of apply, with a
    domain that goes offline meanwhile, with a state that is lost before the plan,
    or with a plan for a part of the files or with --replace.
    """
    kind = ("m" if with_outside_change else "") + ("e" if with_earlier_apply else "")
    kind += ("r" if with_relocation else "") + ("b" if with_revert else "")
    kind += ("l" if with_restore else "") + ("k" if with_kill else "")
    kind += ("o" if with_offline else "") + ("a" if with_adoption else "")
    kind += "t" if with_selection else ""
    making = _CaseBuilder(f"{seed}{kind}", f"{kind or 's'}{seed}x")
    making.world(with_relocation=with_relocation)
    making.fill()
    before = copy.deepcopy(making.sections)
    first: list[Edit] = []
    second_load: list[Publish] = []
    lost = making.lost() if with_restore else ()
    if with_earlier_apply:
        first = making.edits(
            (1, 1, 2, 3), ALL_KINDS | ({"relocate": 30} if with_relocation else {})
        )
    if with_earlier_apply or with_restore:
        with_subjects = [s for s in making.streams if s.get("subjects") and making.chance(0.4)]
        second_load = [making.publish(s, making.rng.randint(1, 5)) for s in with_subjects]
    # Another person finds the streams where they were.
    between = [making.outside_change()] if with_outside_change else []
    kinds = ALL_KINDS if with_earlier_apply or with_relocation else KINDS
    moves_first = with_relocation and making.chance(0.5)
    edits = making.moves() if moves_first else []
    edits += making.edits((1, 2, 2, 3) if with_relocation else (2, 2, 3, 3, 4), kinds)
    edits += making.moves() if with_relocation and not moves_first else []
    options: Body = {"safe_below": making.rng.choice((0, 0, 2))} if with_outside_change else {}
    options |= making.selection() if with_selection else {}
    load = tuple(making.load)
    kill = making.rng.randint(0, 60) if with_kill else None
    where = (
        (making.rng.choice(("hub", "leaf")), making.rng.randint(0, 20)) if with_offline else None
    )
    rest = (
        tuple(between),
        options,
        tuple(first),
        tuple(second_load),
        with_revert,
        lost,
        kill,
        where,
        with_adoption,
    )
    only_edits = not with_revert and not with_restore
    return Case(making.token, before, load, tuple(edits) if only_edits else (), *rest)


class _CaseBuilder(RandomStreams):
    """One case in the making."""

    def __init__(self, seed: str, token: str) -> None:
        super().__init__(seed, token)
        self.streams: list[Body] = []
        self.buckets: list[Body] = []
        self.objects: list[Body] = []
        self.load: list[Action] = []

    def selection(self) -> Body:
        """Choose, leave out or replace some streams, with their consumers or alone."""
        found = {address_of(section, body): body for section, body in bodies(self.sections)}
        chosen = self.rng.sample(list(found), self.rng.randint(1, max(1, len(found) - 1)))
        also = [
            f"{address.replace('/stream/', '/consumer/')}/{consumer['name']}"
            for address in chosen
            for consumer in found[address].get("consumers", ())
            if self.chance(0.5)
        ]
        return {self.rng.choice(("targets", "excludes", "replace")): (*chosen, *also)}

    @property
    def sections(self) -> Sections:
        """The files as they are by now."""
        found = {"streams": self.streams, "kv": self.buckets, "object_stores": self.objects}
        return {name: bodies for name, bodies in found.items() if bodies}

    def lost(self) -> tuple[str, ...]:
        """Draw some of all streams and buckets, at least one."""
        found = [address_of(*each) for each in bodies(self.sections)]
        return tuple(self.rng.sample(found, self.rng.randint(1, len(found))))

    # --- the world --------------------------------------------------------------------------------

    def world(self, *, with_relocation: bool) -> None:
        """Draw one to three streams, now and then one that copies them, and buckets."""
        for letter in "ABC"[: self.rng.choice((1, 1, 2, 2, 3))]:
            self._add_stream(letter)
            if with_relocation and self.chance(0.8):
                self.streams[-1]["retention"] = "limits"
        self._add_copy()
        preserved = {"domain": "hub", "lifecycle": {"on_replace": "preserve"}}
        if self.chance(0.12):
            history = self.rng.choice((1, 3, 5))
            self.buckets.append({"bucket": f"{self.token}K", "history": history, **preserved})
        if self.chance(0.05):
            self.objects.append({"bucket": f"{self.token}O", **preserved})

    def _add_stream(self, letter: str) -> None:
        chosen: Body = {
            "name": f"{self.token}{letter}",
            "domain": ("hub", "hub", "leaf"),
            "subjects": [f"{self.token}.{letter.lower()}.>"],
            "retention": (*["limits"] * 2, *["interest"] * 3, "workqueue"),
            "lifecycle": (*[{"on_replace": "preserve"}] * 3, {"on_replace": "recreate"}),
            "consumers": [],
        }
        stream = self.draw_fields([chosen])
        for share, fields in RARE.items():
            stream |= self.draw_fields([fields]) if self.chance(share) else {}
        for name in "CDE"[: self.rng.choice((0, 1, 2, 2, 2, 3))]:
            stream["consumers"] += self._consumer(stream, name)
        self.streams.append(stream)

    def _subject(self, stream: Body, token: str) -> str:
        return f"{self.token}.{stream['name'][len(self.token)].lower()}.{token}"

    def _consumer(self, stream: Body, name: str) -> list[Body]:
        """Draw a consumer that goes with the others; a work queue may have no subject left."""
        rng = self.rng
        body: Body = {"name": name, "ack_policy": "explicit"}
        if stream.get("retention") == "workqueue":
            taken = {t for c in stream["consumers"] for t in _tokens(c)}
            left = [t for t in TOKENS if t not in taken]
            if not left:
                return []
            merge(body, self._filter(stream, rng.sample(left, rng.randint(1, min(2, len(left))))))
        else:
            body["ack_policy"] = rng.choice((*["explicit"] * 3, "all", "none"))
            if self.chance(0.65):
                merge(body, self._filter(stream, rng.sample(TOKENS, rng.choice((1, 1, 2)))))
            if self.chance(0.12):
                body |= {"deliver_policy": "by_start_sequence", "opt_start_seq": rng.randint(1, 9)}
        if self.chance(0.15):
            body["deliver_subject"] = f"{stream['name']}.push.{name}"
            if body["ack_policy"] != "none":
                body["max_ack_pending"] = rng.choice((3, 1000))
        if self.chance(0.1):
            body["lifecycle"] = {"on_replace": "recreate"}
        return [body]

    def _filter(self, stream: Body, tokens: list[str]) -> Body:
        """Fields that give a consumer this filter; None takes out the one of the other kind."""
        wanted = [self._subject(stream, t) for t in sorted(tokens)]
        one = wanted[0] if len(wanted) == 1 else None
        return {"filter_subject": one, "filter_subjects": wanted if one is None else None}

    def _add_copy(self) -> None:
        """A mirror or a stream with sources, now and then, in either domain."""
        rng = self.rng
        kept = [s for s in self.streams if s["retention"] == "limits" or self.chance(0.1)]
        known = [s for s in kept if s["retention"] != "workqueue"]
        if not known or not self.chance(0.35):
            return
        copied: Body = {"name": f"{self.token}M", "domain": rng.choice(("hub", "leaf"))}
        copied |= {"retention": "limits", "lifecycle": {"on_replace": "preserve"}}
        if self.chance(0.4):
            copied["mirror"] = _named(rng.choice(known))
        else:
            chosen = rng.sample(known, rng.randint(1, len(known)))
            copied["sources"] = [self._source(s) for s in chosen]
        copied["consumers"] = [{"name": "C", "ack_policy": "explicit"}] * self.chance(0.5)
        self.streams.append(copied)

    def _source(self, stream: Body) -> Body:
        only = {"filter_subject": self._subject(stream, self.rng.choice(TOKENS))}
        return _named(stream) | (only if self.chance(0.4) else {})

    # --- the load ---------------------------------------------------------------------------------

    def fill(self) -> None:
        """Messages, deliveries, and again messages, so that positions lie in the middle."""
        for stream in self.streams:
            if not stream.get("subjects"):
                continue
            consumers = stream["consumers"]
            self.load.append(self.publish(stream, self.rng.randint(2, 8)))
            self.load += [self._consume(stream, c) for c in consumers if self.chance(0.6)]
            if self.chance(0.6):
                self.load.append(self.publish(stream, self.rng.randint(1, 4)))
            self.load += [self._consume(stream, c) for c in consumers if self.chance(0.15)]
        for bucket in self.buckets:
            many = range(self.rng.randint(2, 7))
            keys = [f"$KV.{bucket['bucket']}.{self.rng.choice(TOKENS)}" for _ in many]
            self.load.append(Publish("hub", tuple(keys)))
            if self.chance(0.3):
                purge = (("KV-Operation", "PURGE"), ("Nats-Rollup", "sub"))
                self.load.append(Publish("hub", (keys[0],), headers=purge))
        for store in self.objects:
            begin, rollup = f"$O.{store['bucket']}", (("Nats-Rollup", "sub"),)
            chunks = tuple(f"{begin}.C.{self.rng.choice(TOKENS)}" for _ in range(3))
            self.load += [Publish("hub", chunks, 50), Publish("hub", (f"{begin}.M.m",), 0, rollup)]

    def publish(self, stream: Body, count: int) -> Publish:
        """Publish so many messages to a stream, of one size."""
        chosen = [self._subject(stream, self.rng.choice(TOKENS)) for _ in range(count)]
        return Publish(stream["domain"], tuple(chosen), self.rng.choice((0, 0, 0, 200)))

    def _consume(self, stream: Body, consumer: Body) -> Consume:
        places = range(self.rng.randint(1, 5))
        some = [p for p in places if self.chance(0.5)]
        acks = self.rng.choice((places, (), places[: len(places) // 2], some))
        return Consume(stream["domain"], stream["name"], consumer["name"], len(places), tuple(acks))

    # --- the edits --------------------------------------------------------------------------------

    def edits(self, counts: Sequence[int], kinds: dict[str, int]) -> list[Edit]:
        """Make one of `counts` edits, most of them on one stream; later ones see earlier ones."""
        hot = self.rng.choice(self.streams)
        found: list[Edit] = []
        wanted = self.rng.choice(counts)
        for _ in range(40):
            stream = hot if self.chance(0.7) else self.rng.choice(self.streams)
            (kind,) = self.rng.choices(list(kinds), list(kinds.values()))
            found += self._applied(getattr(self, f"_{kind}")(stream))
            if len(found) >= wanted:
                break
        return found

    def _applied(self, edits: list[Edit]) -> list[Edit]:
        for edit in edits:
            edit.apply(self.sections)
        return edits

    def _set(self, stream: Body, fields: Body) -> list[Edit]:
        return [Edit("set", stream["name"], fields=fields)]

    def _retention(self, stream: Body) -> list[Edit]:
        if not stream.get("subjects"):
            return []
        others = {"limits", "interest", "workqueue"} - {stream["retention"]}
        wanted = self.rng.choice([*sorted(others), *(others & {"interest"})])
        edits = self._set(stream, {"retention": wanted})
        return edits + (self._divide(stream) if wanted == "workqueue" else [])

    def _divide(self, stream: Body) -> list[Edit]:
        """Consumers that a work queue takes: explicit, each with subjects of its own."""
        left, edits = self.rng.sample(TOKENS, len(TOKENS)), []
        for consumer in list(stream["consumers"]):
            if not left:
                edits.append(Edit("drop", stream["name"], consumer["name"]))
                continue
            taken = [left.pop() for _ in range(self.rng.randint(1, min(2, len(left))))]
            fields = self._filter(stream, taken) | {"ack_policy": "explicit"}
            fields |= {"deliver_policy": None, "opt_start_seq": None}
            edits.append(Edit("consumer", stream["name"], consumer["name"], fields=fields))
        return edits

    def _limit(self, stream: Body) -> list[Edit]:
        left_alone = stream.get("mirror") and self.chance(0.5)
        return [] if left_alone else self._set(stream, self.draw_fields(LIMITS))

    def _setting(self, stream: Body) -> list[Edit]:
        fields = self.draw_fields(SETTINGS)
        stops = "discard" in fields and origins(stream)  # one that is full stops its flows
        return [] if stops else self._set(stream, fields)

    def _replace(self, stream: Body) -> list[Edit]:
        return self._set(
            stream, {"storage": "file" if stream.get("storage") == "memory" else "memory"}
        )

    def _subjects(self, stream: Body) -> list[Edit]:
        if not stream.get("subjects"):
            return []
        others = [s for s in self.streams if s is not stream and s["domain"] == stream["domain"]]
        others = [s for s in others if s.get("subjects")]
        if others and self.chance(0.5):
            other = self.rng.choice(others)["name"]
            return [Edit("swap", stream["name"], other=other, fields={"field": "subjects"})]
        wanted = [self._subject(stream, t) for t in self.rng.choice(("ab", "a", "bc", "abc"))]
        if self.chance(0.4):
            wanted = [self._subject(stream, ">"), f"{self.token}.more.>"]
        taken = {subject for other in others for subject in other["subjects"]}
        return [] if taken & set(wanted) else self._set(stream, {"subjects": wanted})

    def _add(self, stream: Body) -> list[Edit]:
        free = [n for n in "CDEF" if n not in {c["name"] for c in stream["consumers"]}]
        found = self._consumer(stream, self.rng.choice(free)) if free else []
        for body in found:
            if stream.get("retention") != "workqueue" and "opt_start_seq" not in body:
                policies = ("all", "all", "new", "last", "last_per_subject")
                body["deliver_policy"] = self.rng.choice(policies)
                if body["deliver_policy"] == "last_per_subject" and _tokens(body) == set(TOKENS):
                    body["filter_subject"] = f"{self.token}.>"
        return [Edit("add", stream["name"], body["name"], fields=body) for body in found]

    def _drop(self, stream: Body) -> list[Edit]:
        names = [consumer["name"] for consumer in stream["consumers"]]
        return [Edit("drop", stream["name"], self.rng.choice(names))] if names else []

    def _refilter(self, stream: Body) -> list[Edit]:
        if not stream["consumers"] or origins(stream):
            return []
        if stream["retention"] == "workqueue":
            return self._divide(stream) if self.chance(0.7) else []
        fields: Body = {"filter_subject": None, "filter_subjects": None}
        if self.chance(0.75):
            fields = self._filter(stream, self.rng.sample(TOKENS, self.rng.choice((1, 1, 2))))
        return self._change_consumer(stream, fields)

    def _swap(self, stream: Body) -> list[Edit]:
        if len(stream["consumers"]) < 2:
            return []
        one, other = self.rng.sample([c["name"] for c in stream["consumers"]], 2)
        fields = {"field": "filter_subject filter_subjects"}
        return [Edit("swap", stream["name"], one, other, fields)]

    def _change_consumer(self, stream: Body, fields: Body) -> list[Edit]:
        """Change a consumer, if there is one that can have such fields."""
        fitting = [
            c["name"]
            for c in stream["consumers"]
            if c["ack_policy"] != "none" or not NEEDS_ACKS & fields.keys()
        ]
        if not fitting:
            return []
        return [Edit("consumer", stream["name"], self.rng.choice(fitting), fields=fields)]

    def _quiet(self, stream: Body) -> list[Edit]:
        return self._change_consumer(stream, self.draw_fields(QUIET))

    def _delivery(self, stream: Body) -> list[Edit]:
        return self._change_consumer(stream, self.draw_fields(DELIVERY))

    def _force(self, stream: Body) -> list[Edit]:
        """Something that only a new consumer can have."""
        if not stream["consumers"]:
            return []
        consumer, fields = self.rng.choice(stream["consumers"]), self.draw_fields(FORCED)
        pushed, queue = consumer.get("deliver_subject"), stream.get("retention") == "workqueue"
        refused = {"max_waiting", "max_batch"} if pushed else set()
        if self.chance(0.25):
            wanted = None if pushed else f"{stream['name']}.push.{consumer['name']}"
            fields = {"deliver_subject": wanted, "max_waiting": None, "max_batch": None}
        elif fields.keys() & (refused | ({"ack_policy"} if queue else set())):
            return []
        if all(consumer.get(name) == value for name, value in fields.items()):
            return []
        if self.chance(0.35):
            fields["lifecycle"] = {"on_replace": self.rng.choice(("recreate", "preserve"))}
        return [Edit("consumer", stream["name"], consumer["name"], fields=fields)]

    def _consumer_limits(self, stream: Body) -> list[Edit]:
        """Limit the number of consumers of a stream, and what they may ask for."""
        if self.chance(0.6):
            most = len(stream["consumers"]) + self.rng.choice((-1, 0, 0, 0, 1))
            return self._set(stream, {"max_consumers": max(1, most)})
        return self._set(stream, {"consumer_limits": {"max_ack_pending": 100}}) + [
            Edit("consumer", stream["name"], consumer["name"], fields={"max_ack_pending": 50})
            for consumer in stream["consumers"]
            if consumer["ack_policy"] != "none"
        ]

    def _rewire(self, _: Body) -> list[Edit]:
        """A source that joins or leaves, a mirror that becomes a stream of its own."""
        copied = next((s for s in self.streams if origins(s)), None)
        if copied is None:
            return []
        known = {origin["name"] for origin in origins(copied)}
        others = [s for s in self.streams if s.get("subjects") and s["retention"] == "limits"]
        others = [s for s in others if s["name"] not in known]
        if not copied.get("mirror") and others and self.chance(0.5):
            joined = [*copied["sources"], self._source(self.rng.choice(others))]
            return self._set(copied, {"sources": joined})
        left = origins(copied)[1:]
        alone = {"mirror": None, "sources": None, "subjects": [f"{self.token}.m.>"]}
        return self._set(copied, {"sources": left} if left else alone)

    def _bucket(self, _: Body) -> list[Edit]:
        return [
            Edit("set", body["bucket"], fields=self.draw_fields(choices))
            for bodies, choices in ((self.buckets, BUCKETS), (self.objects, STORES))
            for body in bodies
        ]

    def _remove(self, stream: Body) -> list[Edit]:
        others = [s["name"] for s in self.streams if s is not stream]
        return [Edit("remove", self.rng.choice(others))] if len(others) > 1 else []

    # --- relocations ------------------------------------------------------------------------------

    def moves(self) -> list[Edit]:
        """Relocate one to three of the streams and buckets, each once."""
        everything = [*self.streams, *self.buckets, *self.objects]
        count = min(len(everything), self.rng.choice((1, 1, 2, 3)))
        chosen = self.rng.sample(everything, count)
        return [edit for body in chosen for edit in self._applied(self._relocate(body))]

    def _relocate(self, body: Body) -> list[Edit]:
        """Let a stream get another domain, name or both; a bucket keeps its name."""
        other = {"domain": "leaf" if body["domain"] == "hub" else "hub"}
        if "bucket" in body:
            return [Edit("relocate", body["bucket"], fields=other)]
        mirrors = {(s.get("mirror") or {}).get("name") for s in self.streams}
        refused = 0.9 if origins(body) else 0.3 if body["name"] in mirrors else 0  # mostly
        if self.chance(refused):
            return []
        name = {"name": f"{body['name']}{self.rng.choice('UVWX')}"}
        fields = self.rng.choice((other, other, name, other | name))
        edits = [Edit("relocate", body["name"], fields=fields)]
        consumers = [consumer["name"] for consumer in body["consumers"]]
        if consumers and self.chance(0.5):
            new = str(fields.get("name", body["name"]))
            some = self.rng.sample(consumers, self.rng.randint(1, min(2, len(consumers))))
            edits += [Edit("rename", new, each, fields={"name": f"{each}Z"}) for each in some]
        return edits

    # --- another person ---------------------------------------------------------------------------

    def outside_change(self) -> Action:
        """Make one change of another person between plan and apply."""
        rng = self.rng
        stream = rng.choice(self.streams)
        domain, name = stream["domain"], stream["name"]
        consumers = [c["name"] for c in stream["consumers"]] or ["C"]
        consumer = rng.choice(consumers)
        odd: Body = {"durable_name": "ODD", "ack_policy": "explicit"}
        if stream.get("retention") == "workqueue":
            odd["filter_subject"] = f"{self.token}.odd"
        by_hand: tuple[Body, ...] = (
            {"description": "by hand"},
            {"max_msgs": rng.randint(2, 20)},
            {"retention": rng.choice(("interest", "limits"))},
        )
        choices: list[Action] = [
            *(Ask(domain, f"STREAM.UPDATE.{name}", merge=fields) for fields in by_hand),
            Ask(domain, f"CONSUMER.DELETE.{name}.{consumer}"),
            Ask(domain, f"CONSUMER.CREATE.{name}.ODD", {"stream_name": name, "config": odd}),
            Ask(domain, f"CONSUMER.CREATE.{name}.{consumer}", merge=by_hand[0]),
            Ask(domain, f"STREAM.PURGE.{name}"),
            Ask(domain, f"STREAM.PURGE.{name}", {"keep": 2}),
            Ask(domain, f"STREAM.MSG.DELETE.{name}", {"seq": rng.randint(1, 5)}),
            Ask(domain, f"STREAM.DELETE.{name}"),
        ]
        if stream.get("subjects"):
            choices += [self.publish(stream, rng.randint(1, 6)) for _ in range(4)]
        choices += [Consume(domain, name, c, 3, (0, 1, 2)) for c in consumers] * 2
        return rng.choice(choices)


def _tokens(consumer: Body) -> set[str]:
    """Return the last tokens of what a consumer is given."""
    one = consumer.get("filter_subject")
    filters = [one] if one else consumer.get("filter_subjects") or []
    return {f.rpartition(".")[2] for f in filters} or set(TOKENS)


def _named(stream: Body) -> Body:
    return {"name": stream["name"], "domain": stream["domain"]}
