"""Write tests/sequences/combinations.md: the plans of each pair of edits of one stream.

`make docs-pages` runs it; a test compares the page with what would be written. Nothing is applied
but the world itself.
"""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats

from jsplan.config.model import LoadOptions
from jsplan.errors import JsplanError
from jsplan.options import NullObserver, PlanOptions
from jsplan.sandbox import Sandbox
from jsplan.workflows.apply import apply
from jsplan.workflows.plan import plan
from tools.make_docs import NOTE, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jsplan.documents.plan import Plan

PAGE = Path(__file__).parent.parent / "tests" / "sequences" / "combinations.md"
NAME = "S"
Body = dict[str, Any]
#: Consumers by name, with the subjects that they filter. They are disjoint, so that a work queue
#: takes them too.
CONSUMERS = {"A": "a", "B": "b", "N": "nm", "W": "w", "X": "x", "P": "p", "R": "r"}
ALPHABET = "abnmwxprvz"
EDITS: dict[str, Callable[[Body], None]] = {}
#: Plans at a time.
PARALLEL_PLANS = 6
_CHAIN_TEXT = f"replacement of {NAME} with its messages"


def approve(plan: Plan) -> None:
    """Approve everything."""


# --- the edits ------------------------------------------------------------------------------------


def edit_title(name: str) -> Callable[[Callable[[Body], None]], Callable[[Body], None]]:
    """Give an edit its name on the page."""

    def named(change: Callable[[Body], None]) -> Callable[[Body], None]:
        EDITS[name] = change
        return change

    return named


def consumer(stream: Body, name: str) -> Body:
    """Return a consumer of the stream."""
    return next(c for c in stream["consumers"] if c["name"] == name)


def filtered(name: str, letters: str) -> Body:
    """Return a consumer of these subjects."""
    subjects = [f"s.{letter}" for letter in letters]
    one: Body = (
        {"filter_subject": subjects[0]} if len(subjects) == 1 else {"filter_subjects": subjects}
    )
    return {"name": name, "ack_policy": "explicit"} | one


@edit_title("retention → limits")
def _limits(stream: Body) -> None:
    stream["retention"] = "limits"


@edit_title("retention → interest")
def _interest(stream: Body) -> None:
    stream["retention"] = "interest"


@edit_title("retention → workqueue")
def _workqueue(stream: Body) -> None:
    stream["retention"] = "workqueue"


@edit_title("`storage`, preserved")
def _storage(stream: Body) -> None:
    stream["storage"] = "memory"


@edit_title("`max_msgs` lowered")
def _max_msgs(stream: Body) -> None:
    stream["max_msgs"] = 15


@edit_title("`subjects` narrowed")
def _subjects(stream: Body) -> None:
    stream["subjects"] = [f"s.{letter}" for letter in ALPHABET if letter != "x"]


@edit_title("`max_consumers` as many as there are")
def _max_consumers(stream: Body) -> None:
    stream["max_consumers"] = len(CONSUMERS)


@edit_title("`consumer_limits`")
def _consumer_limits(stream: Body) -> None:
    stream["consumer_limits"] = {"max_ack_pending": 1000}


@edit_title("consumer added")
def _add(stream: Body) -> None:
    stream["consumers"].append(filtered("Z", "z"))


@edit_title("consumer deleted")
def _delete(stream: Body) -> None:
    stream["consumers"].remove(consumer(stream, "X"))


@edit_title("filter narrowed")
def _narrow(stream: Body) -> None:
    consumer(stream, "N").update(filtered("N", "n"))
    del consumer(stream, "N")["filter_subjects"]


@edit_title("filter widened")
def _widen(stream: Body) -> None:
    consumer(stream, "W").update(filtered("W", "wv"))
    del consumer(stream, "W")["filter_subject"]


@edit_title("filters swapped")
def _swap(stream: Body) -> None:
    consumer(stream, "A")["filter_subject"], consumer(stream, "B")["filter_subject"] = "s.b", "s.a"


@edit_title("consumer replaced, preserved")
def _preserve(stream: Body) -> None:
    consumer(stream, "P")["max_waiting"] = 10


@edit_title("consumer replaced, recreated")
def _recreate(stream: Body) -> None:
    consumer(stream, "R").update({"max_waiting": 10, "lifecycle": {"on_replace": "recreate"}})


def base_stream(retention: str) -> Body:
    """Return the stream before any edit."""
    return {
        "name": NAME,
        "subjects": ["s.*"],
        "retention": retention,
        "lifecycle": {"on_replace": "preserve"},
        "consumers": [filtered(name, letters) for name, letters in CONSUMERS.items()],
    }


# --- the plans ------------------------------------------------------------------------------------


@dataclass
class PlannedEdits:
    """The plan of some edits. `after` has for each step all steps that it waits for."""

    codes: list[str] = field(default_factory=list)
    hazards: list[str] = field(default_factory=list)
    steps: list[tuple[str, str, str]] = field(default_factory=list)
    after: dict[str, set[str]] = field(default_factory=dict)

    @property
    def touched(self) -> set[str]:
        """Return the objects of the steps."""
        return {name for _, _, name in self.steps}


def summarize_plan(made: Plan) -> PlannedEdits:
    """Summarize a plan for the page."""
    codes = sorted({d.code for d in made.diagnostics if d.severity == "error"})
    if made.errored or codes:
        return PlannedEdits(codes=codes)
    found = PlannedEdits()
    for change in made.resource_changes:
        for hazard in change.hazards:
            number = "" if hazard.messages is None else f" {hazard.messages}"
            if hazard.exact is False:
                number = f" {hazard.at_least} to {hazard.at_most}"
            found.hazards.append(f"`{hazard.code}`{number} ({change.name})")
    for step in made.steps:
        found.steps.append((step.id, step.op, _short(str(step.target_address))))
        found.after[step.id] = set(step.depends_on)
        for waited in step.depends_on:
            found.after[step.id] |= found.after.get(waited, set())
    return found


def _short(address: str) -> str:
    name = address.rpartition("/")[2]
    return "staging" if name.startswith("JSPLAN_STAGING") else name


def describe_pair(one: PlannedEdits, other: PlannedEdits, both: PlannedEdits) -> list[str]:
    """Describe two edits in one plan: refused, split, ordered, counted."""
    if both.codes:
        return [f"refused {', '.join(both.codes)}"]
    words = []
    written = [step for step in both.steps if not step[1].startswith("transfer.")]
    if len(written) > len({*_ops(one), *_ops(other)}) and _ops(both) != _ops(one) + _ops(other):
        words.append("split")
    if _has_cross_dependency(one, other, both):
        words.append("ordered")
    if any("DELETES" in hazard for hazard in both.hazards):
        words.append("counted")
    return words


def _ops(found: PlannedEdits) -> list[tuple[str, str]]:
    return sorted((op, name) for _, op, name in found.steps)


def _has_cross_dependency(one: PlannedEdits, other: PlannedEdits, both: PlannedEdits) -> bool:
    """Check whether a step of one edit alone waits for a step of the other alone."""
    mine, theirs = one.touched - other.touched, other.touched - one.touched
    name = {step: touched for step, _, touched in both.steps}
    pairs = ((name[step], name[waited]) for step, before in both.after.items() for waited in before)
    return any((a in mine and b in theirs) or (a in theirs and b in mine) for a, b in pairs)


# --- the page -------------------------------------------------------------------------------------


def make_page(url: Mapping[str, Any], folder: Path) -> str:
    """Return the page, from plans against a server without a stream; delete the stream again."""
    parts = [NOTE.format(source="plans of pairs of edits (tools/make_combinations.py)"), _INTRO]
    for retention in ("limits", "interest", "workqueue"):
        parts.append(f"\n## A stream that keeps by {retention}\n\n")
        home = folder / retention
        home.mkdir()
        parts.append(_section(dict(url), home, retention))
    return "".join(parts)


_INTRO = f"""# Two edits in one plan

The steps and hazards of two edits of one stream in one plan. The table is made from plans: stream
`{NAME}` has a consumer for each edit, two messages on each subject, and each consumer has acknowledged
one message.

| word | meaning |
| --- | --- |
| ordered | a step of one edit waits for a step of the other |
| split | more steps than both edits need alone, so that no moment in between deletes what both files want |
| counted | messages or consumers go, and a hazard has the number |
| refused | the plan is an error with this [code](diagnostics.md); nothing is changed |

A row without a second edit shows the edit alone. Pairs that are not in the tables are independent:
their steps are those of both edits, in any order, and nothing is deleted. A number behind a hazard
counts messages, and the name is the resource.
"""


def _section(connection: Body, home: Path, retention: str) -> str:
    before = base_stream(retention)
    _write(home, connection, before)
    apply(LoadOptions(home), PlanOptions(), approve, NullObserver())
    asyncio.run(_publish_and_consume(connection))
    single = [(name,) for name in EDITS if _changes(before, name)]
    pairs = [
        pair
        for pair in combinations((name for (name,) in single), 2)
        if not _changes(before, pair[0]) & _changes(before, pair[1])
    ]
    with ThreadPoolExecutor(PARALLEL_PLANS) as pool:  # each is mostly waiting
        wanted: list[tuple[str, ...]] = [*single, *pairs]
        found = dict(
            zip(
                wanted,
                pool.map(lambda edits: _plan_edits(home, connection, before, edits), wanted),
                strict=True,
            )
        )
    rows = [
        (
            name,
            "",
            _format_list(describe_pair(PlannedEdits(), found[name,], found[name,])),
            *_format_cells(found[name,]),
        )
        for (name,) in single
    ]
    for one, other in pairs:
        both = found[one, other]
        if words := describe_pair(found[one,], found[other,], both):
            rows.append((one, other, _format_list(words), *_format_cells(both)))
    _write(home, connection, None)
    apply(LoadOptions(home), PlanOptions(allow_hazards=_DELETION_HAZARDS), approve, NullObserver())
    return table(("edit", "and", "result", "hazards", "steps"), rows)


def _changes(before: Body, name: str) -> set[str]:
    """Return the fields of the stream that an edit sets; consumers are one that never collides."""
    wanted = copy.deepcopy(before)
    EDITS[name](wanted)
    return {
        f"{key} {name}" if key == "consumers" else key
        for key in wanted
        if wanted[key] != before.get(key)
    }


_DELETION_HAZARDS = ("DELETES_STREAM", "DELETES_CONSUMER", "REMOVES_SUBJECTS", "DELETES_MESSAGES")


def _format_list(words: Iterable[str]) -> str:
    return ", ".join(words)


def _format_cells(found: PlannedEdits) -> tuple[str, str]:
    """Format the hazards and the steps in order; the chain that replaces a stream is one."""
    steps: list[str] = []
    for _, op, name in found.steps:
        text = _CHAIN_TEXT if op.startswith("transfer.") else f"{op} {name}"
        if text not in steps[-1:] or text != _CHAIN_TEXT:
            steps.append(text)
    return ", ".join(found.hazards), ", ".join(steps)


def _plan_edits(home: Path, connection: Body, before: Body, edits: tuple[str, ...]) -> PlannedEdits:
    wanted = copy.deepcopy(before)
    for name in edits:
        EDITS[name](wanted)
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own"
        shutil.copytree(home, own)
        _write(own, connection, wanted)
        try:
            return summarize_plan(plan(LoadOptions(own), PlanOptions(), NullObserver()))
        except JsplanError as error:
            codes = {d.code for d in getattr(error, "diagnostics", ())}
            return PlannedEdits(codes=sorted(codes) or [f"exit {int(error.exit_code)}"])


def _write(home: Path, connection: Body, stream: Body | None) -> None:
    text = {
        "jsplan": 1,
        "workspace": "combinations",
        "connections": {"hub": connection},
        "domains": {"hub": {"connection": "hub"}},
        "streams": [stream] if stream else [],
    }
    (home / "jsplan.yaml").write_text(json.dumps(text), encoding="utf-8")


async def _publish_and_consume(connection: Body) -> None:
    """Publish two messages on each subject; each consumer takes one and acknowledges it."""
    client = await nats.connect(
        connection["url"], user=connection["user"], password=connection["password"]
    )
    for letter in ALPHABET * 2:
        await client.request(f"s.{letter}", b"message")
    for name in CONSUMERS:
        message = await client.request(
            f"$JS.hub.API.CONSUMER.MSG.NEXT.{NAME}.{name}", b'{"batch":1}', old_style=True
        )
        await client.request(message.reply, b"+ACK", old_style=True)
    await client.close()


def main() -> None:
    """Write the page and name it."""
    with Sandbox.hub_and_leaf() as sandbox, tempfile.TemporaryDirectory() as folder:
        hub = sandbox["hub"]
        connection = {"url": hub.url, "user": hub.user, "password": hub.password}
        PAGE.write_text(make_page(connection, Path(folder)), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
