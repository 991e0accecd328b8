"""Random streams that read each other, what happens to them, edits, and an oracle.

The oracle reads every message by raw requests: nothing of it comes from jsplan. Each message has
its number in a header, which servers keep where they change the rest: in what is republished, in
rollups and in counters. A stream that nothing reads may be a work queue or an interest stream with
a worker, who has acknowledged some. The link to the leaf may be cut while a plan is applied; what
it defers, a second one applies.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from jsplan.errors import ConfigError, RefusedError
from tests.support.random_streams import RandomStreams, origins
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.stream_content import read_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

Body = dict[str, Any]
Contents = dict[str, list[str]]

NAMES = "ABCDEF"
DOMAINS = ("hub", "leaf")
#: The hazards whose numbers are compared.
TWICE, GONE, LEFT_OUT = "DUPLICATES_MESSAGES", "DELETES_MESSAGES", "BREAKS_REPLICATION"
EDITS = (
    "source", "source", "switch", "unsource", "refilter", "promote", "limit", "recreate", "forget",
    "worker", "republish", "republish", "rollups", "counter", "through",
)  # fmt: skip
WORKER = {"name": "W", "ack_policy": "explicit", "ack_wait": "1h"}
#: The limits that a stream may have. A message has some 70 bytes; a source or a republish adds some
#: 200 in headers, which no plan counts for `max_msg_size`.
LIMITS: tuple[Body, ...] = (
    {},
    *({"max_msgs": most} for most in (5, 12, 40)),
    *({"max_msgs": most, "discard": "new"} for most in (5, 40)),
    {"max_bytes": 1_000},
    {"max_bytes": 1_000, "discard": "new"},
    {"max_msgs_per_subject": 3},
    {"max_msgs_per_subject": 3, "discard": "new", "discard_new_per_subject": True},
    {"max_msg_size": 300},
)
LIMIT_KEYS = frozenset(key for limits in LIMITS for key in limits)
COUNTER = {"allow_msg_counter": True, "allow_direct": True}
#: What a consumer needs by which a source reads, and the first API level that knows them.
READER = {
    "ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": "1s",
    "max_ack_pending": 100,
}  # fmt: skip
READER_LEVEL = 4
LARGE = 400


class RandomFlows(RandomStreams):
    """One seed: a workspace, messages, a few edits, and the comparison."""

    def __init__(
        self, seed: int, space: Space, sandbox: Sandbox, *, relocates: bool = False
    ) -> None:
        super().__init__(seed)
        self.space, self.sandbox, self.relocates = space, sandbox, relocates
        self.moves: list[Body] = []
        self.numbers = itertools.count()
        hub = sandbox["hub"]
        self.raw = Raw(hub.url, hub.user, hub.password)
        self.level = self.raw.api_level()
        self.streams: dict[str, Body] = {}
        self.stored_as: dict[tuple[str, str], set[str]] = {}
        self.published: dict[str, tuple[str, Body]] = {}
        self.finished: dict[str, set[str]] = {}
        self.recreated = self.deleted = ""
        self.forgotten: set[str] = set()
        self.history: list[str] = []

    def draw(self) -> None:
        """Draw three to six streams, each reading only earlier ones, so that there is no circle."""
        for name in NAMES[: self.rng.randint(3, 6)]:
            self.streams[name] = self._draw_stream(name)
        for name in self.streams:
            if self.chance(0.25):
                self.streams[name] |= self._republish(name)
        last = self.streams[name]
        if "mirror" not in last and self.chance(0.4):
            retention = self.rng.choice(["workqueue", "interest"])
            last |= {"retention": retention, "consumers": [self._worker(name)]}

    def _draw_stream(self, name: str) -> Body:
        body: Body = {"name": name, "domain": self.rng.choice(DOMAINS)}
        earlier = list(self.streams)
        kind = self.rng.choice(["plain", "mirror", "sources", "both"]) if earlier else "plain"
        if self.chance(0.3):
            body |= self.rng.choice(LIMITS)
        if self.chance(0.3):
            body["allow_rollup_hdrs"] = True
        if kind == "mirror":
            return body | {"mirror": self._origin(self.rng.choice(earlier))}
        if kind in ("plain", "both"):
            body["subjects"] = [f"{name}.>"]
        if kind in ("sources", "both"):
            chosen = self.rng.sample(earlier, self.rng.randint(1, min(2, len(earlier))))
            body["sources"] = [self._source(origin) for origin in chosen]
            if self.streams[chosen[0]].get("allow_msg_counter") and self.chance(0.8):
                body |= COUNTER
        elif self.chance(0.1):
            body |= COUNTER
        return body

    def _republish(self, name: str) -> Body:
        """Return a republish to the subjects of a later stream, if there is one."""
        later = [n for n, body in self.streams.items() if n > name and "subjects" in body]
        if not later:
            return {}
        source = self.rng.choice([">", self._part_of(name)])
        wanted = {"src": source, "dest": f"{self.rng.choice(later)}.r.{source}"}
        return {"republish": wanted | ({"headers_only": True} if self.chance(0.3) else {})}

    def _source(self, name: str) -> Body:
        """Return a source; it may read through a consumer of its origin."""
        source = self._origin(name)
        return self._through(source) if self.chance(0.1) else source

    def _through(self, source: Body) -> Body:
        """Return a source that reads through a consumer, or no longer does."""
        if "consumer" in source:
            return {key: value for key, value in source.items() if key != "consumer"}
        if self.level < READER_LEVEL or {"filter_subject", "subject_transforms"} & set(source):
            return source
        number = next(self.numbers)
        return source | {"consumer": {"name": f"R{number}", "deliver_subject": f"deliver.{number}"}}

    def _written(self, name: str) -> Body:
        """Return a stream with the consumers that sources of others read through."""
        readers = [
            READER | source["consumer"]
            for body in self.streams.values()
            for source in body.get("sources", ())
            if source["name"] == name and "consumer" in source
        ]
        body = self.streams[name]
        return body | ({"consumers": [*body.get("consumers", ()), *readers]} if readers else {})

    def _origin(self, name: str) -> Body:
        origin: Body = {"name": name, "domain": self.streams[name]["domain"]}
        chance = self.rng.random()
        if chance < 0.2:
            origin["filter_subject"] = self._part_of(name)
        elif chance < 0.3:
            source = self.rng.choice([">", self._part_of(name)])
            origin["subject_transforms"] = [{"src": source, "dest": f"t.{source}"}]
        return origin

    def _worker(self, name: str) -> Body:
        """Return a worker of a stream; it may take one subject alone."""
        wanted = {"filter_subject": self._part_of(name)} if self.chance(0.3) else {}
        return WORKER | wanted

    def _part_of(self, name: str) -> str:
        """Return a subject of a stream, or a part of one."""
        subject = self.rng.choice([*self._subjects(self.streams.get(name, {})), "A.>"])
        return subject.replace(">", "x") if self.chance(0.7) else subject

    def _subjects(self, body: Body) -> list[str]:
        """Return the subjects that a stream may have messages of."""
        found = list(body.get("subjects", ()))
        for origin in origins(body):
            if "filter_subject" in origin:
                found.append(origin["filter_subject"])
                continue
            for subject in self._subjects(self.streams[origin["name"]]):
                moved = "subject_transforms" in origin
                found.append(f"t.{subject}" if moved else subject)
        found += (republish["dest"] for _, republish in self._republished_to(body.get("name", "")))
        return found

    def _republished_to(self, name: str) -> list[tuple[str, Body]]:
        """Return the streams that republish to a stream, and how."""
        return [
            (other, body["republish"])
            for other, body in self.streams.items()
            if body.get("republish", {}).get("dest", "").startswith(f"{name}.")
        ]

    def edit(self) -> None:
        """Change one to three streams: what they read and republish, limits, workers, storage."""
        for name in self.rng.sample(list(self.streams), self.rng.randint(1, 3)):
            if name not in self.forgotten:
                body = dict(self.streams[name])
                for edit in self.rng.sample(EDITS, 4):  # some change nothing of this stream
                    edits = (self._edit_sources, self._edit_kind, self._edit_stream)
                    if any(change(edit, name, body) for change in edits):
                        break
                self.streams[name] = body
        for name in self.rng.sample(list(self.streams), self.rng.randint(1, 2) * self.relocates):
            if name not in self.forgotten:
                self._relocate(name)

    def _relocate(self, name: str) -> None:
        """Let a stream move to the other domain; those that read it follow."""
        before = self.streams[name]["domain"]
        after = "leaf" if before == "hub" else "hub"
        self.moves.append({"from": f"{before}/stream/{name}", "to": f"{after}/stream/{name}"})
        self.streams[name] |= {"domain": after}
        self.streams = copy.deepcopy(self.streams)  # those before are compared with these
        for origin in itertools.chain.from_iterable(map(origins, self.streams.values())):
            if origin["name"] == name:
                origin["domain"] = after

    def _edit_sources(self, edit: str, name: str, body: Body) -> bool:
        """Change what a stream reads; return False if the edit is about something else."""
        sources, known = body.get("sources", []), {origin["name"] for origin in origins(body)}
        new = [other for other in self.streams if other < name and other not in known]
        match edit:
            case "source" if new and "mirror" not in body:
                body["sources"] = [*sources, self._source(self.rng.choice(new))]
            case "through" if sources:
                body["sources"] = [self._through(sources[0]), *sources[1:]]
            case "switch" if sources and self._copies(sources[0]["name"]):
                copy = self.rng.choice(self._copies(sources[0]["name"]))
                switched = sources[0] | {"name": copy, "domain": self.streams[copy]["domain"]}
                if copy in new:
                    body["sources"] = [switched, *sources[1:]]
            case "unsource" if len(sources) > 1:
                body["sources"] = sources[1:]
            case "refilter" if sources:
                body["sources"] = [*sources[:-1], self._origin(sources[-1]["name"])]
            case _:
                return False
        return True

    def _edit_kind(self, edit: str, name: str, body: Body) -> bool:
        """Change what a stream republishes and which messages it takes; else return False."""
        match edit:
            case "republish" if "republish" in body and self.chance(0.5):
                del body["republish"]
            case "republish" if republish := self._republish(name):
                body |= republish
            case "rollups":
                body["allow_rollup_hdrs"] = not body.get("allow_rollup_hdrs")
            case "counter" if "mirror" not in body and self.chance(0.5):
                body |= COUNTER | {"allow_msg_counter": not body.get("allow_msg_counter")}
                body["lifecycle"] = {"on_replace": self.rng.choice(["recreate", "preserve"])}
            case _:
                return False
        return True

    def _edit_stream(self, edit: str, name: str, body: Body) -> bool:
        """Change whether a stream is declared, its worker, limits or storage; else return False."""
        match edit:
            case "forget":
                self.forgotten.add(name)
            case "worker" if "consumers" in body:
                body["consumers"] = [self._worker(name)]
            case "worker" if "mirror" not in body and not self._readers(name):
                body |= {"retention": "interest", "consumers": [self._worker(name)]}
            case "promote" if "mirror" in body:
                mirror = body.pop("mirror")
                body["subjects"] = [f"{name}.>"]
                if self.chance(0.3):
                    body["sources"] = [mirror]
            case "limit":
                for key in LIMIT_KEYS & set(body):
                    del body[key]
                body |= self.rng.choice(LIMITS)
            case "recreate":
                memory = body.get("storage", "file") == "file"
                body |= {"storage": "memory" if memory else "file", "max_age": "1d"}
                body["lifecycle"] = {"on_replace": self.rng.choice(["recreate", "preserve"])}
            case _:
                return False
        return True

    def _readers(self, name: str) -> list[str]:
        return [
            other
            for other, body in self.streams.items()
            if name in {origin["name"] for origin in origins(body)}
        ]

    def _copies(self, name: str) -> list[str]:
        """Return the streams that mirror the stream, or that it mirrors."""
        of = self.streams[name].get("mirror", {}).get("name")
        mirrors = [
            other
            for other, body in self.streams.items()
            if body.get("mirror", {}).get("name") == name
        ]
        return [*mirrors, *([of] if of else [])]

    # --- servers ----------------------------------------------------------------------------------

    def publish(self, count: int) -> None:
        """Publish so many numbered messages to streams with subjects."""
        missing = self.forgotten & {self.deleted}
        takers = [
            n for n, body in self.streams.items() if body.get("subjects") and n not in missing
        ]
        for _ in range(count if takers else 0):
            name = self.rng.choice(takers)
            body, number = self.streams[name], str(next(self.numbers))
            headers = {"N": number}
            if body.get("allow_rollup_hdrs") and self.chance(0.15):
                headers["Nats-Rollup"] = self.rng.choice(["sub", "sub", "all"])
            if body.get("allow_msg_counter"):
                headers["Nats-Incr"] = "1"
            payload = b"x" * self.rng.choice([1, 1, 1, LARGE]) if len(headers) == 1 else b""
            _, answer = self.raw.request(f"{name}.{self.rng.choice('xy')}", payload, headers)
            if b'"seq"' in answer:
                self.published[number] = name, headers
            else:
                assert refuses(body), answer

    def happen(self) -> None:
        """Let a client delete, empty or recreate a stream, or workers finish messages."""
        name = self.rng.choice(list(self.streams))
        body = self.streams[name]
        api = f"$JS.{body['domain']}.API.STREAM"
        event = self.rng.choice(["nothing", "nothing", "purge", "delete", "recreate"])
        self.history.append(f"{event} {name}")
        match event:
            case "purge":
                # A source that begins again brings them once more.
                self.finished.setdefault(name, set()).update(self._stored(body["domain"], name))
                self.raw.api_ok(f"{api}.PURGE.{name}")
            case "delete":
                self.raw.api_ok(f"{api}.DELETE.{name}")
                self.deleted = name
            case "recreate" if "consumers" not in self._written(name):
                config = self.raw.api_ok(f"{api}.INFO.{name}")["config"]
                self.raw.api_ok(f"{api}.DELETE.{name}")
                self.raw.api_ok(f"{api}.CREATE.{name}", config)
                self.recreated = name
            case _:
                pass

    def work(self) -> None:
        """Let the worker of a queue finish half of its messages."""
        for name, body in self.streams.items():
            if "consumers" not in body:
                continue
            before = self._stored(body["domain"], name)
            api = f"$JS.{body['domain']}.API.CONSUMER.INFO.{name}.W"
            waiting = self.raw.api_ok(api)["num_pending"]
            replies = self.raw.pull(name, "W", waiting // 2, domain=body["domain"])
            self.raw.ack(replies)
            self.sandbox["hub"].wait_until(
                lambda: len(self._stored(body["domain"], name)) == len(before) - len(replies),  # noqa: B023
                f"delete what is finished of {name}",
            )
            gone = set(before) - set(self._stored(body["domain"], name))
            self.finished.setdefault(name, set()).update(gone)

    def _stored(self, domain: str, name: str) -> list[str]:
        """Return the numbers of the messages of a stream; note the subject of each."""
        found = []
        for answer in read_each(self.raw, name, f"$JS.{domain}.API"):
            if "message" in answer:
                head = base64.b64decode(answer["message"]["hdrs"]).decode()
                number = re.findall(r"^N: (\d+)", head, re.MULTILINE)[0]
                self.stored_as.setdefault((name, number), set()).add(answer["message"]["subject"])
                found.append(number)
        return found

    def settle(self, quiet: float) -> Contents:
        """Wait until nothing has changed for so many seconds; return the messages of each stream."""
        known, since = self.read(), time.monotonic()
        while time.monotonic() - since < quiet:
            time.sleep(0.2)
            now = self.read()
            if now != known:
                known, since = now, time.monotonic()
        return known

    def read(self) -> Contents:
        """Return the numbers of the messages of each stream that exists."""
        return {
            name: self._stored(domain, name)
            for domain in DOMAINS
            for name in streams(self.raw, f"$JS.{domain}.API")
        }

    # --- the whole --------------------------------------------------------------------------------

    def play(self, quiet: float = 1.5, *, returns: bool = False) -> Iterator[dict[str, Any]]:
        """Play everything; yield what was announced and what happened, if no plan is refused.

        With `returns` the files become again what they were, in another plan.
        """
        with self.raw:
            for domain in DOMAINS:
                delete_all_streams(self.raw, f"$JS.{domain}.API")
            self.draw()
            self._write()
            if self._plan() is None:
                return
            _, result = self.space.apply()
            if sees_cycle(result):
                return
            assert result.exit_code == 0, result
            self.publish(self.rng.randint(5, 25))
            self.settle(1.0)
            self.work()
            self.happen()
            first = copy.deepcopy(self.streams)
            found = self._change(self.edit, quiet)
            if found is not None:
                yield found
            if found is not None and returns and not self.forgotten:
                found = self._change(lambda: self._return_to(first), quiet)
                if found is not None:
                    yield found

    def _change(self, edit: Callable[[], None], quiet: float) -> dict[str, Any] | None:
        """Edit, and apply; return what was announced and what happened. None: it is refused."""
        before, flows = self.settle(1.0), self._flows()
        republished = {name: self._republished_to(name) for name in self.streams}
        edit()
        self.edited_at = next(self.numbers)
        self._write()
        plans = self._apply()
        if plans is None:
            return None
        found = self.compare(plans, before, self.settle(quiet))
        self.publish(self.rng.randint(0, 5))
        found |= self._await_flows(plans, flows, before)
        return found | {"not republished": self._find_not_republished(plans, republished)}

    def _return_to(self, streams: dict[str, Body]) -> None:
        """Let the files be what they were, and streams go back to where they were."""
        self.history.append("back")
        self.moves = [{"from": move["to"], "to": move["from"]} for move in self.moves]
        self.streams = streams

    def _write(self) -> None:
        """Write the files, without the streams that they forget."""
        self.space.write(
            streams=[self._written(name) for name in self.streams if name not in self.forgotten],
            removed=[
                {"address": f"{self.streams[name]['domain']}/stream/{name}", "destroy": False}
                for name in sorted(self.forgotten)
            ],
            relocate=self.moves,
        )

    def _apply(self) -> list[Plan] | None:
        """Apply the files, for some seeds first without the leaf. None: they are refused."""
        plans = []
        at_hub = any(body["domain"] == "hub" for body in self.streams.values())
        if at_hub and self.chance(0.15):
            self.history.append("the leaf is cut off")
            self.sandbox["leaf"].pause()
            try:
                plans.append(self._apply_once())
            finally:
                self.sandbox["leaf"].resume()
            self.sandbox.wait_ready()
        plans.append(self._apply_once())
        if None in plans or not any(plan.steps for plan in plans if plan is not None):
            return None
        return [plan for plan in plans if plan is not None]

    def _plan(self) -> Plan | None:
        """Plan; return None if the files or the plan are refused."""
        try:
            plan = self.space.plan()
        except ConfigError as error:
            self.history += [f"{d.code} {d.summary}" for d in error.diagnostics]
            return None
        self.history += [d.summary for d in plan.diagnostics if d.severity == "error"]
        return None if plan.errored else plan

    def _apply_once(self) -> Plan | None:
        plan = self._plan()
        if plan is None or self._is_foreign(plan):
            return None
        codes = tuple({h.code for c in plan.resource_changes for h in c.hazards})
        try:
            result = self.space.apply_saved(plan, allow_hazards=codes)
        except RefusedError:
            return None
        if sees_cycle(result):
            return None
        assert result.exit_code in (0, 4), result
        return plan

    def _is_foreign(self, plan: Plan) -> bool:
        """Check whether the plan would change what a client has recreated: it is not ours."""
        return any(
            c.address.rpartition("/")[2] == self.recreated and c.change.actions != ["no-op"]
            for c in plan.resource_changes
        )

    def _inherited(self, name: str, before: Contents) -> int:
        """Return how many messages the streams that a stream reads have twice already."""
        return sum(
            copies([n for n in before.get(origin["name"], ()) if self._passes(origin, n)])
            or self._inherited(origin["name"], before)
            for origin in self._all_origins(name)
        )

    def _all_origins(self, name: str) -> list[Body]:
        """Return the mirror and sources of a stream, and what is republished to it as one, too."""
        republished = [
            {"name": other, "filter_subject": republish["src"]}
            for other, republish in self._republished_to(name)
        ]
        return [*origins(self.streams.get(name, {})), *republished]

    def _reads_recreated(self, name: str) -> bool:
        """Check whether a stream reads one that a client recreated, over any number of hops.

        Servers find that out some 20 seconds later: it is no effect of the plan.
        """
        return any(
            origin["name"] == self.recreated or self._reads_recreated(origin["name"])
            for origin in self._all_origins(name)
        )

    def _passes(self, origin: Body, number: str) -> bool:
        """Check whether a mirror or source takes a message of its origin."""
        subjects = self.stored_as[origin["name"], number]
        wanted = [transform["src"] for transform in origin.get("subject_transforms", ())]
        if "filter_subject" in origin:
            wanted.append(origin["filter_subject"])
        return not wanted or any(matches(s, pattern) for s in subjects for pattern in wanted)

    def _await_flows(
        self, plans: list[Plan], flows: set[tuple[str, str]], before: Contents
    ) -> dict[str, Any]:
        """Wait until all has come: servers look every 10 to 30 seconds whether a flow stands."""
        end = time.monotonic() + 45
        while True:
            found = self._find_left_out(plans, flows, before, self.settle(1.0))
            if found["left out"] <= found["said left out"] or time.monotonic() > end:
                return found

    def _flows(self) -> set[tuple[str, str]]:
        return {
            (name, origin["name"])
            for name, body in self.streams.items()
            for origin in origins(body)
        }

    def _find_left_out(
        self, plans: list[Plan], flows: set[tuple[str, str]], before: Contents, after: Contents
    ) -> dict[str, Any]:
        """Count what a stream lacks of an origin although it should have it, and did not before."""
        found = {}
        for name, body in self.streams.items():
            if deletes(body) or name not in after:
                continue
            if any("filter_subject" in worker for worker in body.get("consumers", ())):
                continue  # it may not want to keep what its worker does not take
            has = {*after[name], *before.get(name, ()), *self.finished.get(name, ())}
            for origin in origins(body):
                flow = (name, origin["name"])
                if origin["name"] == self.recreated:
                    continue  # by a client: a mirror waits until its sequences come again
                if origin["name"] not in before and refuses(body):
                    continue  # what it had refused before is not known
                lacked = {
                    number
                    for number in set(before.get(origin["name"], ())) - set(before.get(name, ()))
                    if name in before and self._passes(origin, number)
                }
                lacks = {
                    number
                    for number in set(after.get(origin["name"], ())) - has
                    if self._passes(origin, number)
                }
                if refuses(body) or lacked or not body.get("allow_rollup_hdrs"):
                    # What comes later may be refused, or comes behind what was refused before.
                    lacks = {number for number in lacks if int(number) < self.edited_at}
                if missing := lacks - (lacked if flow in flows else set()):
                    found[f"{name} of {origin['name']}"] = sorted(missing, key=int)
        return {
            "lacking": found,
            "left out": sum(map(len, found.values())),
            "said left out": announced(plans, LEFT_OUT),
        }

    def _find_not_republished(
        self, plans: list[Plan], republished: dict[str, list[tuple[str, Body]]]
    ) -> list[str]:
        """Return what was published after the plan, and is not republished as before it.

        The plan has to say of the stream that stores that, that it will not get all.
        """
        hazards = [h for plan in plans for c in plan.resource_changes for h in c.hazards]
        said = {
            cause for h in hazards if h.code in (LEFT_OUT, "REMOVES_SUBJECTS") for cause in h.causes
        }
        after, found = self.read(), []
        for name in after.keys() & republished.keys():
            body = self.streams[name]
            if deletes(body) or refuses(body) or "consumers" in body:
                continue
            if f"{body['domain']}/stream/{name}" in said:
                continue
            for origin, republish in republished[name]:
                found += [
                    f"{number} of {origin} in {name}"
                    for number, (to, headers) in self.published.items()
                    if int(number) >= self.edited_at
                    and to == origin
                    and len(headers) == 1
                    and (origin, number) in self.stored_as
                    and self._passes({"name": origin, "filter_subject": republish["src"]}, number)
                    and number not in after[name]
                ]
        return found

    def compare(self, plans: list[Plan], before: Contents, after: Contents) -> dict[str, Any]:
        """Compare the announced numbers with the messages."""
        emptied = {
            c.address.rpartition("/")[2]
            for plan in plans
            for c in plan.resource_changes
            if any(h.code == "DELETES_STREAM" for h in c.hazards)
        }
        twice = {
            name: extra
            for name, messages in after.items()
            if not self._reads_recreated(name)
            and (
                extra := copies([*messages, *self.finished.get(name, ())])
                - max(
                    copies([*before.get(name, ()), *self.finished.get(name, ())])
                    if name not in emptied
                    else 0,
                    self._inherited(name, before),
                )
            )
            > 0
        }
        gone = {
            name: lost
            for name, messages in before.items()
            if name not in emptied
            and not self._reads_recreated(name)
            and (lost := (Counter(messages) - Counter(after.get(name, []))).total())
            and name in self.streams
        }
        return {
            "twice": sum(twice.values()),
            "said twice": announced(plans, TWICE),
            "gone": sum(gone.values()),
            "said gone": announced(plans, GONE),
            "streams": {"twice": twice, "gone": gone},
            "hazards": [
                f"{c.address} {h.code} {h.messages} {h.message}"
                for plan in plans
                for c in plan.resource_changes
                for h in c.hazards
            ],
        }


def sees_cycle(result: ApplyResult) -> bool:
    """Check for the server's guess of a cycle by subjects alone; `--rehearse` finds it before."""
    return any("detected cycle" in str(step.error) for step in result.steps)


def matches(subject: str, pattern: str) -> bool:
    """Check whether a subject fits a pattern that may end with `>`."""
    return subject == pattern or (pattern.endswith(">") and subject.startswith(pattern[:-1]))


def deletes(body: Body) -> bool:
    """Check whether a stream deletes messages by itself: by a limit, or as a rollup says."""
    limits = {"max_msgs", "max_bytes"} if body.get("discard") != "new" else set()
    by_subject = body.get("max_msgs_per_subject") and not body.get("discard_new_per_subject")
    return bool(limits & set(body) or by_subject or body.get("allow_rollup_hdrs"))


def refuses(body: Body) -> bool:
    """Check whether a stream refuses what it has no place for, or what is not of its kind."""
    return body.get("discard") == "new" or "max_msg_size" in body or "allow_msg_counter" in body


def copies(messages: list[str]) -> int:
    """Return how many messages are copies of others."""
    return len(messages) - len(set(messages))


def announced(plans: list[Plan], code: str) -> float:
    """Return the sum of the numbers of a hazard; infinite where one is not known.

    One that counts nothing, as that a stream which others read is replaced, counts as 0.
    """
    numbers = [
        float("inf") if h.messages is None and h.at_least is not None else h.messages or 0
        for plan in plans
        for c in plan.resource_changes
        for h in c.hazards
        if h.code == code
    ]
    return sum(numbers)


def list_in_vain(result: dict[str, Any]) -> Counter[str]:
    """Count the hazards, without names and numbers, that announced what did not happen."""
    kinds = {TWICE: "twice", GONE: "gone", LEFT_OUT: "left out"}
    found = Counter[str]()
    for text in result["hazards"]:
        _, code, number, message = text.split(" ", 3)
        if code in kinds and number not in ("None", "0") and not result[kinds[code]]:
            found[code + " " + re.sub(r"(hub|leaf)/[/\w]+|\d+", "…", message)] += 1
    return found


def describe(flows: RandomFlows, result: dict[str, Any]) -> str:
    """Return everything that is needed to understand a seed."""
    found = {"history": flows.history, "result": result, "after": list(flows.streams.values())}
    return json.dumps(found, indent=1)
