"""The page docs/reference/benchmarks.md, from the recorded figures of `tools.bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from tools.bench import MARGIN, TOLERANCE

Row = Mapping[str, Any]

_INTRO: Final = f"""What the commands cost, next to a bare client that sends the same requests over nats-py and does
nothing else, 64 of them at once, in the same run on the same machine. A ratio of 1.3 means 1.3 times the bare client.
Seconds are wall time of whole processes, from start to end. CPU is that of the client and of the server together:
wall time depends on what else the machine does, CPU time much less. Memory is the peak of one process.

`make bench-record` measures again. `make bench-check` measures smaller sizes, and fails where a ratio of CPU time is more
than {TOLERANCE:.0%} greater than the recorded one, and by more than {MARGIN:g}.

"""
_APPLY: Final = """N streams with one consumer each. *Create* is `jsplan apply -y` on an empty server. *Adopt* is the same with
an empty state on a server that has them all: nothing is written to it.

"""
_PLAN: Final = """N streams with one consumer each, and nothing to change. The bare client sends an INFO request for each.

"""
_APPLIES: Final = {"create": "create", "adopt": "adopt"}
_READS: Final = {"plan": "plan", "drift": "drift"}
_FLEET: Final = """A hub and N leaf servers with ten streams each, all over one connection. *Silent* leaves are stopped: they
answer nothing. *Timeouts* is what they add to an empty plan, in timeouts of one request.

"""
_SIMULATED: Final = """Domains with two streams each over one connection, simulated on one server. CPU is that of jsplan for each
domain, beyond a process that does nothing: it does not grow with their number.

"""


def page(results: Mapping[str, Any], table: Callable[..., str]) -> str:
    """Return the page; `table` makes a markdown table of a head and rows."""
    parts = ["# Benchmarks\n\n", _unwrap(_INTRO)]
    for name, title, text, rows, key in (
        (
            "apply_scale",
            "Apply",
            _APPLY,
            partial(_rows, bare="bare_create", commands=_APPLIES),
            "rows",
        ),
        (
            "plan_scale",
            "Plan and drift",
            _PLAN,
            partial(_rows, bare="bare_sweep", commands=_READS),
            "rows",
        ),
        ("fleet", "A fleet", _FLEET, _fleet_rows, "rows"),
        ("fleet", "Many domains", _SIMULATED, _simulated_rows, "simulated_rows"),
    ):
        document = results["documents"].get(name)
        if document is not None and document.get(key):
            head, *lines = rows(document[key])
            parts.append(
                f"## {title}\n\n{_unwrap(text)}{table(head, lines)}\n{_describe_machine(document)}\n\n"
            )
    return "".join(parts).rstrip("\n") + "\n"


def _unwrap(text: str) -> str:
    """Return a text with each paragraph as one line, which `make_docs` folds."""
    return "".join(f"{' '.join(part.split())}\n\n" for part in text.strip().split("\n\n"))


def _describe_machine(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"Measured on {document['at']} by `benchmarks/{document['benchmark']}.py`: "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}; {versions}."
    )


def _rows(rows: Iterable[Row], bare: str, commands: Mapping[str, str]) -> Iterable[list[str]]:
    """Yield the head and a line for each size. `commands` are the words for what was measured."""
    head = ["streams + consumers", "bare client"]
    for word in commands.values():
        head += [word, "wall", "CPU", "memory"]
    yield head
    for row in rows:
        cells = [f"{row['streams']:,} + {row['consumers']:,}", _seconds(row[bare])]
        for name in commands:
            ratio = row["ratios"][name]
            cells += [
                _seconds(row[name]),
                f"{ratio['wall']:g}",
                f"{ratio['cpu']:g}",
                _memory(row[name]),
            ]
        yield cells


def _fleet_rows(rows: Iterable[Row]) -> Iterable[list[str]]:
    yield [
        "leaves",
        "streams",
        "plan",
        "apply",
        "empty plan",
        "silent",
        "empty plan with them",
        "timeouts",
    ]
    for row in rows:
        yield [
            f"{row['domains']:,}",
            f"{row['streams']:,}",
            *(_seconds(row[name]) for name in ("plan", "apply", "empty_plan")),
            f"{row['paused']:,}",
            _seconds(row["plan_with_paused"]),
            f"{row['timeouts']:g}",
        ]


def _simulated_rows(rows: Iterable[Row]) -> Iterable[list[str]]:
    commands = {"plan": "plan", "apply": "apply", "empty_plan": "empty plan"}
    head = ["domains", "streams"]
    for word in commands.values():
        head += [word, "CPU of a domain"]
    yield head
    for row in rows:
        cells = [f"{row['domains']:,}", f"{row['streams']:,}"]
        for name in commands:
            cells += [_seconds(row[name]), f"{row['per_domain'][name]['cpu_ms']:.1f} ms"]
        yield cells


def _seconds(measured: Mapping[str, float]) -> str:
    return f"{measured['seconds']:.1f} s"


def _memory(measured: Mapping[str, float]) -> str:
    return f"{measured['mib']:.0f} MiB"
