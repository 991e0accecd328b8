"""Random streams that mirror and source each other, edits, and an oracle for messages.

The oracle reads every message by raw requests: nothing of it comes from jsplan.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.raw import Raw

if TYPE_CHECKING:
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

Body = dict[str, Any]
Contents = dict[str, list[str]]

NAMES = "ABCDEF"
DOMAINS = ("hub", "leaf")
#: The hazards whose numbers are compared, and any other that a plan may ask for.
TWICE, GONE = "DUPLICATES_MESSAGES", "DELETES_MESSAGES"


class RandomFlows:
    """One seed: a workspace, messages, a few edits, and the comparison."""

    def __init__(self, seed: int, space: Space, sandbox: Sandbox) -> None:
        self.rng = random.Random(seed)
        self.space, self.sandbox = space, sandbox
        self.numbers = itertools.count()
        hub = sandbox["hub"]
        self.raw = Raw(hub.url, hub.user, hub.password)
        self.streams: dict[str, Body] = {}

    def draw(self) -> None:
        """Draw three to six streams, each reading only earlier ones, so that there is no circle."""
        for name in NAMES[: self.rng.randint(3, 6)]:
            self.streams[name] = self._draw_stream(name)

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
            match self.rng.choice(["source", "source", "unsource", "promote", "limit", "recreate"]):
                case "source" if earlier and "mirror" not in body:
                    known = {origin["name"] for origin in body.get("sources", ())}
                    new = [other for other in earlier if other not in known]
                    if new:
                        origin = self._origin(self.rng.choice(new))
                        body["sources"] = [*body.get("sources", ()), origin]
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
                    body["lifecycle"] = {"on_replace": "recreate"}
                case _:
                    pass
            self.streams[name] = body

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
            _, answer = self.raw.request(subject, str(next(self.numbers)).encode())
            assert b'"seq"' in answer, answer

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
            assert result.exit_code == 0, result
            self.publish(self.rng.randint(5, 25))
            before = self.settle(1.0)
            self.edit()
            self.space.write(streams=list(self.streams.values()))
            plan = self.space.plan()
            if plan.errored or not plan.steps:
                return None
            codes = tuple({h.code for c in plan.resource_changes for h in c.hazards})
            result = self.space.apply_saved(plan, allow_hazards=codes)
            assert result.exit_code == 0, result
            return self.compare(plan, before, self.settle(quiet))

    def compare(self, plan: Plan, before: Contents, after: Contents) -> dict[str, Any]:
        """Compare the announced numbers with the messages."""
        emptied = {
            c.address.rpartition("/")[2]
            for c in plan.resource_changes
            if c.change.actions in (["delete"], ["delete", "create"])
        }
        twice = {
            name: extra
            for name, messages in after.items()
            if (
                extra := copies(messages)
                - copies(before.get(name, []) if name not in emptied else [])
            )
            > 0
        }
        gone = {
            name: lost
            for name, messages in before.items()
            if name not in emptied
            and (lost := (Counter(messages) - Counter(after.get(name, []))).total())
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
