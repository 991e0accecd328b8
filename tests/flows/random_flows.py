"""Random streams that read each other, what happens to them, edits, and an oracle.

The oracle reads every message by raw requests: nothing of it comes from jsplan. A stream that
nothing reads may be a work queue or an interest stream with a worker, who has acknowledged some.
The link to the leaf may be cut while a plan is applied; what it defers, a second one applies.
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
EDITS = (
    "source", "source", "switch", "unsource", "refilter", "promote", "limit", "recreate", "forget",
    "worker",
)  # fmt: skip
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
        self.stored_as: dict[tuple[str, str], str] = {}
        self.finished: dict[str, set[str]] = {}
        self.recreated = self.deleted = ""
        self.forgotten: set[str] = set()
        self.history: list[str] = []

    def draw(self) -> None:
        """Draw three to six streams, each reading only earlier ones, so that there is no circle."""
        for name in NAMES[: self.rng.randint(3, 6)]:
            self.streams[name] = self._draw_stream(name)
        last = self.streams[name]
        if "mirror" not in last and self.rng.random() < 0.4:
            retention = self.rng.choice(["workqueue", "interest"])
            last |= {"retention": retention, "consumers": [self._worker(name)]}

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
        chance = self.rng.random()
        if chance < 0.2:
            origin["filter_subject"] = self._part_of(name)
        elif chance < 0.3:
            source = self.rng.choice([">", self._part_of(name)])
            origin["subject_transforms"] = [{"src": source, "dest": f"t.{source}"}]
        return origin

    def _worker(self, name: str) -> Body:
        """Return a worker of a stream; it may take one subject alone."""
        wanted = {"filter_subject": self._part_of(name)} if self.rng.random() < 0.3 else {}
        return WORKER | wanted

    def _part_of(self, name: str) -> str:
        """Return a subject of a stream, or a part of one."""
        subject = self.rng.choice([*self._subjects(self.streams.get(name, {})), "A.>"])
        return subject.replace(">", "x") if self.rng.random() < 0.7 else subject

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
        return found

    def edit(self) -> None:
        """Change one to three streams: their origins, their workers, their limits, their storage."""
        for name in self.rng.sample(list(self.streams), self.rng.randint(1, 3)):
            if name not in self.forgotten:
                body = dict(self.streams[name])
                edit = self.rng.choice(EDITS)
                if not self._edit_sources(edit, name, body):
                    self._edit_stream(edit, name, body)
                self.streams[name] = body

    def _edit_sources(self, edit: str, name: str, body: Body) -> bool:
        """Change what a stream reads; return False if the edit is about something else."""
        sources, known = body.get("sources", []), {origin["name"] for origin in origins(body)}
        new = [other for other in self.streams if other < name and other not in known]
        match edit:
            case "source" if new and "mirror" not in body:
                body["sources"] = [*sources, self._origin(self.rng.choice(new))]
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

    def _edit_stream(self, edit: str, name: str, body: Body) -> None:
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
                if self.rng.random() < 0.3:
                    body["sources"] = [mirror]
            case "limit" if "mirror" not in body:
                body["max_msgs"] = self.rng.choice([5, 12, 40])
            case "recreate":
                memory = body.get("storage", "file") == "file"
                body |= {"storage": "memory" if memory else "file", "max_age": "1d"}
                body["lifecycle"] = {"on_replace": self.rng.choice(["recreate", "preserve"])}
            case _:
                pass

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

    def _delete_all(self) -> None:
        for domain in DOMAINS:
            for name in self.raw.api_ok(f"$JS.{domain}.API.STREAM.NAMES").get("streams") or ():
                self.raw.api_ok(f"$JS.{domain}.API.STREAM.DELETE.{name}")

    def publish(self, count: int) -> None:
        """Publish so many numbered messages to streams with subjects."""
        missing = self.forgotten & {self.deleted}
        takers = [
            n for n, body in self.streams.items() if body.get("subjects") and n not in missing
        ]
        for _ in range(count if takers else 0):
            subject = f"{self.rng.choice(takers)}.{self.rng.choice('xy')}"
            number = str(next(self.numbers))
            _, answer = self.raw.request(subject, number.encode())
            assert b'"seq"' in answer, answer

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
            if "consumers" not in body:
                continue
            before = self._stored(body["domain"], name)
            api = f"$JS.{body['domain']}.API.CONSUMER.INFO.{name}.W"
            waiting = self.raw.api_ok(api)["num_pending"]
            replies = pull_acks(self.raw, name, "W", waiting // 2, domain=body["domain"])
            acknowledge(self.raw, replies)
            self.sandbox["hub"].wait_until(
                lambda: len(self._stored(body["domain"], name)) == len(before) - len(replies),  # noqa: B023
                f"delete what is finished of {name}",
            )
            gone = set(before) - set(self._stored(body["domain"], name))
            self.finished.setdefault(name, set()).update(gone)

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
                number = base64.b64decode(answer["message"].get("data", "")).decode()
                self.stored_as[name, number] = answer["message"]["subject"]
                found.append(number)
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
            self._write()
            plans = self._apply()
            if plans is None:
                return None
            found = self.compare(plans, before, self.settle(quiet))
            self.publish(self.rng.randint(0, 5))
            return found | self._await_flows(plans, flows, before)

    def _write(self) -> None:
        """Write the files, without the streams that they forget."""
        self.space.write(
            streams=[body for name, body in self.streams.items() if name not in self.forgotten],
            removed=[
                {"address": f"{self.streams[name]['domain']}/stream/{name}", "destroy": False}
                for name in sorted(self.forgotten)
            ],
        )

    def _apply(self) -> list[Plan] | None:
        """Apply the files, for some seeds first without the leaf. None: they are refused."""
        plans = []
        at_hub = any(body["domain"] == "hub" for body in self.streams.values())
        if at_hub and self.rng.random() < 0.15:
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

    def _apply_once(self) -> Plan | None:
        plan = self.space.plan()
        if plan.errored or self._is_foreign(plan):
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
            for origin in origins(self.streams[name])
        )

    def _reads_recreated(self, name: str) -> bool:
        """Check whether a stream reads one that a client recreated, over any number of hops.

        Servers find that out some 20 seconds later: it is no effect of the plan.
        """
        return any(
            origin["name"] == self.recreated or self._reads_recreated(origin["name"])
            for origin in origins(self.streams.get(name, {}))
        )

    def _passes(self, origin: Body, number: str) -> bool:
        """Check whether a mirror or source takes a message of its origin."""
        subject = self.stored_as[origin["name"], number]
        wanted = [transform["src"] for transform in origin.get("subject_transforms", ())]
        if "filter_subject" in origin:
            wanted.append(origin["filter_subject"])
        return not wanted or any(matches(subject, pattern) for pattern in wanted)

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
            if body.get("max_msgs") or name not in after:
                continue  # its limit deletes
            if any("filter_subject" in worker for worker in body.get("consumers", ())):
                continue  # it may not want to keep what its worker does not take
            has = {*after[name], *before.get(name, ()), *self.finished.get(name, ())}
            for origin in origins(body):
                flow = (name, origin["name"])
                if origin["name"] == self.recreated:
                    continue  # by a client: a mirror waits until its sequences come again
                lacked = set(before.get(origin["name"], ())) - set(before.get(name, ()))
                lacks = {
                    number
                    for number in set(after.get(origin["name"], ())) - has
                    if self._passes(origin, number)
                }
                if missing := lacks - (lacked if flow in flows else set()):
                    found[f"{name} of {origin['name']}"] = sorted(missing, key=int)
        return {
            "left out": sum(map(len, found.values())),
            "said left out": announced(plans, LEFT_OUT),
            "lacking": found,
        }

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


def origins(body: Body) -> list[Body]:
    """Return the mirror and the sources of a stream."""
    return [*([body["mirror"]] if "mirror" in body else []), *body.get("sources", ())]


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


def describe(flows: RandomFlows, result: dict[str, Any]) -> str:
    """Return everything that is needed to understand a seed."""
    found = {"history": flows.history, "result": result, "after": list(flows.streams.values())}
    return json.dumps(found, indent=1)
