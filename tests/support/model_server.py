"""A model of servers and state, for plans without a server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config import load
from jsplan.config.model import LoadOptions
from jsplan.facts.live import DomainFacts, Live, LiveObject
from jsplan.planning.build import build_plan, candidate_addresses, decide_all
from jsplan.planning.model import PlanInputs, apply_moves
from jsplan.planning.options import PlanningOptions
from jsplan.state.document import Entry, State
from jsplan.subjects import overlaps
from jsplan.topology import build_topology

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from jsplan.documents.plan import Plan, Step

DOMAINS = ("hub", "leaf")
CIRCLES = ("JS406", "JS407")


class ServerModel:
    """A model of a server and its state that checks the order of steps.

    `contents` is the state of each object, by the kind of its address.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live: dict[Address, dict[str, Any]] = {}
        self.created: dict[Address, str] = {}
        self.state = State("test", None)
        self.clock = 0
        self.contents: dict[str, dict[str, Any]] = {}

    def inputs(
        self,
        streams: list[dict[str, Any]],
        options: PlanningOptions = PlanningOptions(),  # noqa: B008 - it is immutable
    ) -> PlanInputs:
        """Return the inputs of a plan."""
        text = {
            "jsplan": 1,
            "workspace": "test",
            "domains": {key: {} for key in DOMAINS},
            "streams": streams,
        }
        (self.folder / "jsplan.yaml").write_text(json.dumps(text))
        workspace = load(LoadOptions(self.folder))
        live = Live({key: DomainFacts(key, reachable=True, level=5) for key in DOMAINS})
        live.objects = {
            a: LiveObject(a, raw, self.created[a], dict(self.contents.get(a.kind, {})))
            for a, raw in self.live.items()
        }
        entries, moved = apply_moves(workspace, self.state.resources)
        topology = build_topology(workspace)
        # Cycles of origins are refused for their effect. Their steps have an order too, which is
        # tested here.
        topology.diagnostics = [
            replace(d, severity="warning") if d.code in CIRCLES else d for d in topology.diagnostics
        ]
        inputs = PlanInputs(workspace, topology, self.state, live, options, entries, moved)
        return replace(inputs, selected=candidate_addresses(inputs))

    def plan(self, streams: list[dict[str, Any]]) -> Plan:
        """Plan these streams."""
        inputs = self.inputs(streams)
        return build_plan(inputs, decide_all(inputs))

    def execute(self, plan: Plan, rng: random.Random) -> None:
        """Execute all steps in a random order that respects their dependencies."""
        after = {c.address: c.change.after for c in plan.resource_changes}
        waiting, done = {step.id: step for step in plan.steps}, set[str]()
        while waiting:
            ready = [step for step in waiting.values() if done.issuperset(step.depends_on)]
            assert ready, f"these wait for each other: {list(waiting.values())}"
            step = rng.choice(ready)
            self.step(step, after[step.address])
            done.add(waiting.pop(step.id).id)

    def step(self, step: Step, after: dict[str, Any] | None) -> None:
        address = Address.parse(step.address)
        parent = address.parent
        match step.op.partition(".")[2]:
            case "delete":
                gone = [a for a in self.live if address in (a, a.parent)]
                assert address in self.live, f"{step.title}: there is none"
                for a in gone:
                    del self.live[a]
            case "create":
                assert address not in self.live, f"{step.title}: it is there"
                assert parent is None or parent in self.live, (
                    f"{step.title}: its stream is not there"
                )
                assert after is not None
                self.clock += 1
                self.live[address], self.created[address] = (
                    after,
                    f"2026-01-01T00:00:{self.clock:09}Z",
                )
            case "update":
                assert address in self.live or step.request is None, f"{step.title}: there is none"
                released = "release the subjects" in step.title and step.request is not None
                if step.request is not None:
                    self.live[address] = step.request["payload"] if released else after or {}
        self._no_subject_twice(address.domain, step.title)
        self._remember(step, address)

    def _no_subject_twice(self, domain: str, title: str) -> None:
        taken = [
            (a, s)
            for a, raw in self.live.items()
            if a.domain == domain and a.parent is None
            for s in raw.get("subjects") or ()
        ]
        for number, (one, subject) in enumerate(taken):
            for other, theirs in taken[number + 1 :]:
                assert one == other or not overlaps(subject, theirs), (
                    f"{title}: {subject} of {one} and {theirs} of {other}"
                )

    def _remember(self, step: Step, address: Address) -> None:
        if step.op == "state.forget" or step.op.endswith(".delete"):
            self.state.resources.pop(address, None)
        elif step.record is not None:
            record = step.record
            self.state.resources[address] = Entry(
                self.live[address],
                record["declared"],
                self.created[address],
                record["origin"],
                record["prevent_destroy"],
                record["depends_on"],
                "",
            )
