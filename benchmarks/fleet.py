"""Measure a fleet: a hub and N leaf servers with ten streams each, a source for each leaf.

Plan and apply of everything, the empty plan after it, and the same plan with a tenth of the leaves
paused (SIGSTOP): they answer nothing, so each could cost a timeout; together they may cost one. All
figures of one N come from the same run.

    python benchmarks/fleet.py [--sizes 10,50,100] [--simulated 100,500] [--repeat 3]

More domains than a machine has place for are simulated: one server, whose account maps the subjects
of each domain to its JetStream. Each has two streams.

Prints one JSON document: seconds are wall time of whole processes (medians for plans), memory is
peak resident MiB. `timeouts` is what the paused leaves add to an empty plan, in timeouts of a
request; `per_domain` is what one domain costs beyond a process that does nothing, and `growth`
compares that of the largest fleet with that of the smallest: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import median

from jsplan.sandbox import Sandbox
from jsplan.sandbox.foreground import leaf_names, run_fleet

STREAMS = 10
#: Of a request, in seconds; more than the default of 5, so that a busy machine is not taken for a
#: silent leaf.
TIMEOUT = 10


def workspace(folder: Path, sandbox: Sandbox, count: int) -> None:
    """Return the workspace of the fleet, as a person would write it."""
    hub = sandbox["hub"]
    lines = [
        "jsplan: 1",
        "workspace: fleet",
        f"connections: {{hub: {{url: '{hub.url}', user: {hub.user}, password: {hub.password}, timeout: {TIMEOUT}s}}}}",
        f'domains: {{hub: {{connection: hub}}, "store-{{001..{count:03}}}": {{connection: hub, labels: [edge], may_be_offline: 7d}}}}',
        "streams:",
    ]
    lines += [
        f"  - {{name: S{n}, domain: 'label:edge', subjects: ['s{n}.${{domain}}.>'], max_age: 30d}}"
        for n in range(STREAMS)
    ]
    lines.append("  - {name: ALL, domain: hub, sources: [{name: S0, domain: 'label:edge'}]}")
    (folder / "jsplan.yaml").write_text("\n".join(lines) + "\n")


def measure(count: int, repeat: int) -> dict[str, Any]:
    """Measure one fleet: everything new, nothing to do, a tenth of it paused."""
    jsplan = [sys.executable, "-m", "jsplan"]
    out: dict[str, Any] = {"domains": count, "streams": STREAMS * count + 1}
    with tempfile.TemporaryDirectory() as name, run_fleet(leaf_names(count)) as sandbox:
        folder = Path(name)
        workspace(folder, sandbox, count)
        out["plan"] = median([*jsplan, "plan"], folder, repeat)
        out["apply"] = median([*jsplan, "apply", "-y"], folder, 1)
        out["empty_plan"] = median([*jsplan, "plan", "--detailed-exitcode"], folder, repeat)
        silent = [sandbox[store] for store in leaf_names(count)[: max(1, count // 10)]]
        for server in silent:
            server.pause()
        out["paused"] = len(silent)
        out["plan_with_paused"] = median([*jsplan, "plan", "--detailed-exitcode"], folder, 1)
        for server in silent:
            server.resume()
    out["timeouts"] = round(
        (out["plan_with_paused"]["seconds"] - out["empty_plan"]["seconds"]) / TIMEOUT, 2
    )
    return out


def simulated_workspace(folder: Path, url: str, count: int) -> None:
    """Write a workspace of domains over one connection; the names of their streams differ."""
    lines = [
        "jsplan: 1",
        "workspace: simulated",
        f"connections: {{hub: {{url: '{url}'}}}}",
        f'domains: {{"d-{{001..{count:03}}}": {{connection: hub, labels: [edge]}}}}',
        "streams:",
        "  - {name: 'A-${domain}', domain: 'label:edge', subjects: ['a.${domain}.>']}",
        "  - {name: 'B-${domain}', domain: 'label:edge', subjects: ['b.${domain}.>']}",
    ]
    (folder / "jsplan.yaml").write_text("\n".join(lines) + "\n")


def measure_simulated(count: int, repeat: int) -> dict[str, Any]:
    """Measure plan, apply and the empty plan of simulated domains."""
    jsplan = [sys.executable, "-m", "jsplan"]
    maps = (f'"$JS.d-{number:03}.API.>": "$JS.API.>"' for number in range(1, count + 1))
    out: dict[str, Any] = {"domains": count, "streams": 2 * count}
    with (
        tempfile.TemporaryDirectory() as name,
        Sandbox.single(extra=f"mappings {{ {', '.join(maps)} }}") as sandbox,
    ):
        folder = Path(name)
        simulated_workspace(folder, sandbox["server"].url, count)
        out["plan"] = median([*jsplan, "plan"], folder, repeat)
        out["apply"] = median([*jsplan, "apply", "-y"], folder, 1)
        out["empty_plan"] = median([*jsplan, "plan", "--detailed-exitcode"], folder, repeat)
    return out


def per_domain(row: dict[str, Any], floor: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return the milliseconds, also of CPU, and KiB of one domain, beyond an idle process."""
    return {
        command: {
            "ms": round(1000 * (row[command]["seconds"] - floor["seconds"]) / row["domains"], 2),
            "cpu_ms": round(1000 * (row[command]["cpu"] - floor["cpu"]) / row["domains"], 2),
            "kib": round(1024 * (row[command]["mib"] - floor["mib"]) / row["domains"], 1),
        }
        for command in ("plan", "apply", "empty_plan")
    }


def growth(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the cost of a domain in the largest fleet divided by that in the smallest."""
    first, last = rows[0]["per_domain"], rows[-1]["per_domain"]
    return {
        command: {
            unit: round(last[command][unit] / first[command][unit], 2) for unit in last[command]
        }
        for command in last
    }


def main() -> None:
    """Measure every size and print the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="10,50,100")
    parser.add_argument("--simulated", default="100,500")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    os.environ.setdefault(
        "GOMAXPROCS", "1"
    )  # a hundred servers on one machine: each alone on its own would have its own
    with tempfile.TemporaryDirectory() as name:
        floor = median([sys.executable, "-m", "jsplan", "version"], Path(name), options.repeat)
    document: dict[str, Any] = {
        "benchmark": "fleet",
        "streams_per_domain": STREAMS,
        "timeout": TIMEOUT,
        "nothing": floor,
    }
    for part, sizes, measure_one in (
        ("", options.sizes, measure),
        ("simulated_", options.simulated, measure_simulated),
    ):
        rows = [measure_one(int(size), options.repeat) for size in sizes.split(",") if size]
        rows = [row | {"per_domain": per_domain(row, floor)} for row in rows]
        document[f"{part}rows"] = rows
        document |= {f"{part}growth": growth(rows)} if len(rows) > 1 else {}
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
