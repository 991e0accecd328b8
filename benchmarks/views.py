"""Measure the commands that show or convert a whole workspace, with many resources.

N/2 streams with one consumer each, as in `plan_scale.py`. The saved plan creates all of them. Lint,
graph and the views need no server; `import --all` adopts what bare requests created, and writes the
file that declares it; the converters read the same objects as documents of other tools.

    python benchmarks/views.py [--sizes 1000,10000]

Prints one JSON document: seconds are wall time of whole processes, memory is peak resident MiB.
`slow` and `large` name what takes more than 5 s, or more than 500 MiB.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from plan_scale import BARE, workspace
from processes import run

from jsplan.sandbox import Sandbox

MAX_SECONDS = 5
MAX_MIB = 500
#: The arguments of each command.
VIEWS = {
    "lint": ["lint"],
    "graph_mermaid": ["graph"],
    "graph_dot": ["graph", "--format", "dot"],
    "graph_svg": ["graph", "--format", "svg"],
    "text": ["show", "new.plan"],
    "html": ["show", "new.plan", "--format", "html"],
    "markdown": ["show", "new.plan", "--format", "markdown"],
    "convert_nats": ["convert", "nats", "saved.json"],
    "convert_nack": ["convert", "nack", "nack.yaml"],
    "convert_terraform": ["convert", "terraform", "tf.json"],
}


def write_documents(folder: Path, count: int) -> None:
    """Write the objects as the nats CLI, NACK and the Terraform provider have them."""
    streams = [{"name": f"S{i}", "subjects": [f"s{i}.>"], "max_age": 10**15} for i in range(count)]
    consumer = {"durable_name": "C", "ack_policy": "explicit"}
    saved: list[dict[str, Any]] = [{"config": stream} for stream in streams]
    saved += [{"stream_name": stream["name"], "config": consumer} for stream in streams]
    (folder / "saved.json").write_text(json.dumps(saved))
    head = {"apiVersion": "jetstream.nats.io/v1beta2"}
    nack, terraform = list[dict[str, Any]](), list[dict[str, Any]]()
    for i in range(count):
        stream = {"name": f"S{i}", "subjects": [f"s{i}.>"], "maxAge": "1000000s"}
        reader = {"streamName": f"S{i}", "durableName": "C", "ackPolicy": "explicit"}
        nack += [
            head | {"kind": "Stream", "metadata": {"name": f"s{i}"}, "spec": stream},
            head | {"kind": "Consumer", "metadata": {"name": f"s{i}-c"}, "spec": reader},
        ]
        wanted = {"name": f"S{i}", "subjects": [f"s{i}.>"], "max_age": 1000000}
        pulling = {"stream_id": f"JETSTREAM_STREAM_S{i}", "durable_name": "C", "deliver_all": True}
        terraform += [
            {"type": "jetstream_stream", "values": wanted},
            {"type": "jetstream_consumer", "values": pulling | {"ack_policy": "explicit"}},
        ]
    (folder / "nack.yaml").write_text(yaml.dump_all(nack, Dumper=yaml.CSafeDumper))
    shown = {"format_version": "1.0", "values": {"root_module": {"resources": terraform}}}
    (folder / "tf.json").write_text(json.dumps(shown))


def measure(resources: int) -> dict[str, Any]:
    """Measure every command with this number of resources, half of them consumers."""
    jsplan, count = [sys.executable, "-m", "jsplan"], resources // 2
    out: dict[str, Any] = {"resources": resources}

    def take(name: str, words: list[str], folder: Path) -> None:
        measured = run([*jsplan, *words], folder)
        out[name] = {key: measured[key] for key in ("seconds", "mib")}

    with tempfile.TemporaryDirectory() as name, Sandbox.single() as sandbox:
        folder, url = Path(name), sandbox["server"].url
        workspace(folder, url, count)
        write_documents(folder, count)
        take("plan_of_creates", ["plan", "-o", "new.plan"], folder)
        for view, words in VIEWS.items():
            take(view, words, folder)
        run([sys.executable, "-c", BARE, url, str(count), "create"], folder)
        (folder / "found").mkdir()
        workspace(folder / "found", url, 0)
        take(
            "import_all",
            ["-C", "found", "import", "--all", "--generate-config", "found/all.jsplan.yaml", "-y"],
            folder,
        )
    figures = {name: row for name, row in out.items() if isinstance(row, dict)}
    return out | {
        "slow": [name for name, row in figures.items() if row["seconds"] > MAX_SECONDS],
        "large": [name for name, row in figures.items() if row["mib"] > MAX_MIB],
    }


def main() -> None:
    """Measure every size and print the document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1000,10000")
    options = parser.parse_args()
    rows = [measure(int(size)) for size in options.sizes.split(",")]
    print(json.dumps({"benchmark": "views", "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
