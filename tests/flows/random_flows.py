"""Random streams that read each other, what happens to them, edits, and an oracle.

The oracle reads every message by raw requests: nothing of it comes from jsplan. A stream that
nothing reads may be a work queue with a worker, who has acknowledged some.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from jsplan.errors import RefusedError
from tests.support.raw import Raw
from tests.support.stream_content import acknowledge, pull_acks

if TYPE_CHECKING:
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
EDITS = ("source", "source", "switch", "unsource", "promote", "limit", "recreate")
WORKER = {"name": "W", "ack_policy": "explicit", "ack_wait": "1h"}


class RandomFlows:
    """One seed: a workspace, messages, a few edits, and the comparison."""

    def __init__(self, seed: int, space: Space, sandbox: Sandbox) -> None:
        self.rng = random.Random(seed)
        self.space, self.sandbox = space, sandbox
        self.numbers = itertools.count()
        hub = sandbox["hub"]
        self.raw = Raw(hub.url, hub.user, hub.password)
        self.streams: dict[str, Body] = {}
        self.subjects: dict[str, str] = {}
        self.finished: dict[str, set[str]] = {}
        self.recreated = ""

    def draw(self) -> None:
        """Draw three to six streams, each reading only earlier ones, so that there is no circle."""
        for name in NAMES[: self.rng.randint(3, 6)]:
            self.streams[name] = self._draw_stream(name)
        last = self.streams[name]
        if "mirror" not in last and self.rng.random() < 0.3:
            last |= {"retention": "workqueue", "consumers": [WORKER]}

    def _draw_stream(self, name: str) -> Body:
        body: Body = {"name": name, "domain": self.rng.choice(DOMAINS)}
        earlier = list(self.streams)
        kind = self.rng.choice(["plain", "mirror", "sources", "both"]) if earlier else "plain"
        if kind == "mirror":
            return body | {"mirror": self._origin(self.rng.choice(earlier))}
        if kind in ("plain", "both"):
            body["subjects"] = [f"{name}.>"]
        if kind in ("sources", "both"):
            chosen = self.rng.sample(earlier, self.rng.randint(1, min(2, len(earlier))))
            body["sources"] = [self._origin(origin) for origin in chosen]
        if self.rng.random() < 0.25:
            body["max_msgs"] = self.rng.choice([5, 12, 40])
        return body

    def _origin(self, name: str) -> Body:
        origin: Body = {"name": name, "domain": self.streams[name]["domain"]}
        if self.rng.random() < 0.2:
            origin["filter_subject"] = f"{self.rng.choice(NAMES)}.x"
        return origin

    def edit(self) -> None:
        """Change one to three streams: their origins, their limits, their storage."""
        for name in self.rng.sample(list(self.streams), self.rng.randint(1, 3)):
            body = dict(self.streams[name])
            earlier = [other for other in self.streams if other < name]
            match self.rng.choice(EDITS):
                case "source" if earlier and "mirror" not in body:
                    known = {origin["name"] for origin in body.get("sources", ())}
                    new = [other for other in earlier if other not in known]
                    if new:
                        origin = self._origin(self.rng.choice(new))
                        body["sources"] = [*body.get("sources", ()), origin]
                case "switch" if body.get("sources") and self._copies(body["sources"][0]["name"]):
                    old = body["sources"][0]
                    copy = self.rng.choice(self._copies(old["name"]))
                    switched = old | {"name": copy, "domain": self.streams[copy]["domain"]}
                    if copy not in {origin["name"] for origin in body["sources"]} and copy < name:
                        body["sources"] = [switched, *body["sources"][1:]]
                case "unsource" if len(body.get("sources", ())) > 1:
                    body["sources"] = body["sources"][1:]
                case "promote" if "mirror" in body:
                    del body["mirror"]
                    body["subjects"] = [f"{name}.>"]
                case "limit" if "mirror" not in body:
                    body["max_msgs"] = self.rng.choice([5, 12, 40])
                case "recreate":
                    memory = body.get("storage", "file") == "file"
                    body |= {"storage": "memory" if memory else "file", "max_age": "1d"}
                    body["lifecycle"] = {"on_replace": self.rng.choice(["recreate", "preserve"])}
                case _:
                    pass
            self.streams[name] = body

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

    def _delete_all(self) -> None:
        for domain in DOMAINS:
            for name in self.raw.api_ok(f"$JS.{domain}.API.STREAM.NAMES").get("streams") or ():
                self.raw.api_ok(f"$JS.{domain}.API.STREAM.DELETE.{name}")

    def publish(self, count: int) -> None:
        """Publish so many numbered messages to streams with subjects."""
        takers = [name for name, body in self.streams.items() if body.get("subjects")]
        for _ in range(count):
            subject = f"{self.rng.choice(takers)}.{self.rng.choice('xy')}"
            number = str(next(self.numbers))
            _, answer = self.raw.request(subject, number.encode())
            assert b'"seq"' in answer, answer
            self.subjects[number] = subject

    def happen(self) -> None:
        """Let a client delete, empty or recreate a stream, or workers finish messages."""
        name = self.rng.choice(list(self.streams))
        body = self.streams[name]
        api = f"$JS.{body['domain']}.API.STREAM"
        match self.rng.choice(["nothing", "nothing", "purge", "delete", "recreate"]):
            case "purge":
                self.raw.api_ok(f"{api}.PURGE.{name}")
            case "delete":
                self.raw.api_ok(f"{api}.DELETE.{name}")
            case "recreate" if "consumers" not in body:
                config = self.raw.api_ok(f"{api}.INFO.{name}")["config"]
                self.raw.api_ok(f"{api}.DELETE.{name}")
                self.raw.api_ok(f"{api}.CREATE.{name}", config)
                self.recreated = name
            case _:
                pass

    def work(self) -> None:
        """Let the worker of a queue finish half of its messages."""
        for name, body in self.streams.items():
            if body.get("retention") != "workqueue":
                continue
            info = self.raw.api_ok(f"$JS.{body['domain']}.API.STREAM.INFO.{name}")
            before = self._messages(body["domain"], info)
            replies = pull_acks(self.raw, name, "W", len(before) // 2, domain=body["domain"])
            acknowledge(self.raw, replies)
            self.sandbox["hub"].wait_until(
                lambda: len(self._stored(body["domain"], name)) == len(before) - len(replies),  # noqa: B023
                f"delete what is finished of {name}",
            )
            self.finished[name] = set(before) - set(self._stored(body["domain"], name))

    def _stored(self, domain: str, name: str) -> list[str]:
        return self._messages(domain, self.raw.api_ok(f"$JS.{domain}.API.STREAM.INFO.{name}"))

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
        """Return the payloads of each stream that exists."""
        found: Contents = {}
        for domain in DOMAINS:
            answer = self.raw.api_ok(f"$JS.{domain}.API.STREAM.LIST")
            for info in answer.get("streams") or ():
                found[info["config"]["name"]] = self._messages(domain, info)
        return found

    def _messages(self, domain: str, info: Body) -> list[str]:
        name, state, found = info["config"]["name"], info["state"], []
        for seq in range(state["first_seq"], state["last_seq"] + 1) if state["messages"] else ():
            answer = self.raw.api(f"$JS.{domain}.API.STREAM.MSG.GET.{name}", {"seq": seq})
            if "message" in answer:
                found.append(base64.b64decode(answer["message"].get("data", "")).decode())
        return found

    # --- the whole --------------------------------------------------------------------------------

    def play(self, quiet: float = 1.5) -> dict[str, Any] | None:
        """Play everything; return what was announced and what happened. None: the plan is refused."""
        with self.raw:
            self._delete_all()
            self.draw()
            self.space.write(streams=list(self.streams.values()))
            if self.space.plan().errored:
                return None
            _, result = self.space.apply()
            if sees_cycle(result):
                return None
            assert result.exit_code == 0, result
            self.publish(self.rng.randint(5, 25))
            self.settle(1.0)
            self.work()
            self.happen()
            before, flows = self.settle(1.0), self._flows()
            self.edit()
            self.space.write(streams=list(self.streams.values()))
            plan = self.space.plan()
            if plan.errored or not plan.steps or self._is_foreign(plan):
                return None
            codes = tuple({h.code for c in plan.resource_changes for h in c.hazards})
            try:
                result = self.space.apply_saved(plan, allow_hazards=codes)
            except RefusedError:
                return None
            if sees_cycle(result):
                return None
            assert result.exit_code == 0, result
            found = self.compare(plan, before, self.settle(quiet))
            self.publish(self.rng.randint(0, 5))
            return found | self._await_flows(plan, flows, before)

    def _is_foreign(self, plan: Plan) -> bool:
        """Check whether the plan would change what a client has recreated: it is not ours."""
        return any(
            c.address.rpartition("/")[2] == self.recreated and c.change.actions != ["no-op"]
            for c in plan.resource_changes
        )

    def _inherited(self, name: str, before: Contents) -> int:
        """Return how many messages the origins of a stream have twice already."""
        return sum(
            copies(
                [
                    number
                    for number in before.get(origin["name"], ())
                    if origin.get("filter_subject") in (None, self.subjects[number])
                ]
            )
            for origin in origins(self.streams[name])
        )

    def _await_flows(
        self, plan: Plan, flows: set[tuple[str, str]], before: Contents
    ) -> dict[str, Any]:
        """Wait until all has come: servers look every 10 to 30 seconds whether a flow stands."""
        end = time.monotonic() + 45
        while True:
            found = self._find_left_out(plan, flows, before, self.settle(1.0))
            if found["left out"] <= found["said left out"] or time.monotonic() > end:
                return found

    def _flows(self) -> set[tuple[str, str]]:
        return {
            (name, origin["name"])
            for name, body in self.streams.items()
            for origin in origins(body)
        }

    def _find_left_out(
        self, plan: Plan, flows: set[tuple[str, str]], before: Contents, after: Contents
    ) -> dict[str, Any]:
        """Count what a stream lacks of an origin although it should have it, and did not before."""
        found = {}
        for name, body in self.streams.items():
            if body.get("max_msgs") or name not in after:
                continue  # its limit deletes
            has = {*after[name], *self.finished.get(name, ())}
            for origin in origins(body):
                flow = (name, origin["name"])
                if origin["name"] == self.recreated:
                    continue  # by a client: a mirror waits until its sequences come again
                lacked = set(before.get(origin["name"], ())) - set(before.get(name, ()))
                lacks = {
                    number
                    for number in set(after[origin["name"]]) - has
                    if origin.get("filter_subject") in (None, self.subjects[number])
                }
                if missing := lacks - (lacked if flow in flows else set()):
                    found[f"{name} of {origin['name']}"] = sorted(missing, key=int)
        return {
            "left out": sum(map(len, found.values())),
            "said left out": announced(plan, LEFT_OUT),
            "lacking": found,
        }

    def compare(self, plan: Plan, before: Contents, after: Contents) -> dict[str, Any]:
        """Compare the announced numbers with the messages."""
        emptied = {
            c.address.rpartition("/")[2]
            for c in plan.resource_changes
            if any(h.code == "DELETES_STREAM" for h in c.hazards)
        }
        twice = {
            name: extra
            for name, messages in after.items()
            if (
                extra := copies([*messages, *self.finished.get(name, ())])
                - max(
                    copies(before.get(name, []) if name not in emptied else []),
                    self._inherited(name, before),
                )
            )
            > 0
        }
        gone = {
            name: lost
            for name, messages in before.items()
            if name not in emptied
            and (lost := (Counter(messages) - Counter(after.get(name, []))).total())
            and name in self.streams
        }
        return {
            "twice": sum(twice.values()),
            "said twice": announced(plan, TWICE),
            "gone": sum(gone.values()),
            "said gone": announced(plan, GONE),
            "streams": {"twice": twice, "gone": gone},
            "hazards": [
                f"{c.address} {h.code} {h.messages} {h.message}"
                for c in plan.resource_changes
                for h in c.hazards
            ],
        }


def sees_cycle(result: ApplyResult) -> bool:
    """Check for the server's guess of a cycle by subjects alone; `--rehearse` finds it before."""
    return any("detected cycle" in str(step.error) for step in result.steps)


def origins(body: Body) -> list[Body]:
    """Return the mirror and the sources of a stream."""
    return [*([body["mirror"]] if "mirror" in body else []), *body.get("sources", ())]


def copies(messages: list[str]) -> int:
    """Return how many messages are copies of others."""
    return len(messages) - len(set(messages))


def announced(plan: Plan, code: str) -> float:
    """Return the sum of the numbers of a hazard; infinite where one is not known."""
    numbers = [
        float("inf") if h.messages is None else h.messages
        for c in plan.resource_changes
        for h in c.hazards
        if h.code == code
    ]
    return sum(numbers)


def describe(flows: RandomFlows, result: dict[str, Any]) -> str:
    """Return everything that is needed to understand a seed."""
    return json.dumps({"result": result, "after": list(flows.streams.values())}, indent=1)
