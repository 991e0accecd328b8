"""A backfill on a Spark cluster: a standalone master and two workers on this machine.

    python examples/backfill/cluster.py [--entry NAME] [--kill] [--messages N]

The script starts an embedded hub with a leaf and two stores, and fills ORDERS of the leaf and SALES
of the stores. Then it runs an entry with spark-submit. `--kill` kills a worker in the middle of the
copy. `--entry sales-history` is run twice: store-2 is offline when the first run begins. It leaves nothing running. It needs the extras `spark` and
`sandbox`, and a network for pip.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from jsplan import spark_submit
from jsplan.backfill.spark.session import find_java_home
from jsplan.config.model import LoadOptions
from jsplan.errors import JsplanError
from jsplan.sandbox import Sandbox, Server
from jsplan.workflows import backfill

if TYPE_CHECKING:
    from jsplan.backfill.protocol import RawConnection

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SPARK = Path(pyspark.__file__).parent
NAME, FLEET = "orders-history", "sales-history"
STORES = ("store-1", "store-2")
SIZE = 1000


@dataclass
class Node:
    """One process of the cluster, in a folder of its own. `environment` is all that it knows."""

    name: str
    folder: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Return its output."""
        return self.folder / "log"

    def start(self, kind: str, *arguments: str) -> None:
        """Run a class of Spark's."""
        command = [
            str(SPARK / "bin/spark-class"),
            f"org.apache.spark.deploy.{kind}",
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            *arguments,
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )

    def awaited(self, pattern: str, seconds: float = 120) -> str:
        """Wait until its log says so."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log.read_text("utf-8", errors="replace"))):
            if time.monotonic() > end or (
                self.process is not None and self.process.poll() is not None
            ):
                raise SystemExit(
                    f"{self.name} did not start:\n"
                    f"{self.log.read_text('utf-8', errors='replace')[-2000:]}"
                )
            time.sleep(0.1)
        return found[0]

    def kill(self) -> None:
        """It dies at once."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def main(argv: list[str] | None = None) -> int:
    """Run the whole story; returns 0 when every message is there once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--entry",
        default=NAME,
        metavar="NAME",
        help="orders-history, orders-clean or sales-history",
    )
    parser.add_argument(
        "--kill", action="store_true", help="kill the worker that copies, in the middle"
    )
    parser.add_argument(
        "--messages", type=int, default=60_000, metavar="N", help="how many there are to copy"
    )
    parser.add_argument("--server", type=Path, metavar="FILE", help="the nats-server to use")
    options = parser.parse_args(argv)
    leaves = ("leaf", *STORES)
    with (
        Sandbox.hub_and_leaf(leaves=leaves, binary=options.server) as sandbox,
        tempfile.TemporaryDirectory(prefix="jsplan-cluster-") as text,
    ):
        folder = Path(text)
        unpack(folder)
        fill(sandbox["leaf"], options.messages)
        for store in STORES:
            fill(sandbox[store], options.messages // 10, "SALES", f"sales.{store}")
        with cluster(folder, sandbox["leaf"]) as (master, workers):
            offline = sandbox[STORES[-1]] if options.entry == FLEET else None
            return story(
                folder,
                sandbox["hub"],
                master,
                workers if options.kill else [],
                options.entry,
                offline,
            )


def unpack(folder: Path) -> None:
    """The workspace, in a folder of its own: contexts that are below it are refused."""
    for name in ("jsplan.yaml", "clean.py"):
        shutil.copy(HERE / name, made(folder / "workspace"))


def story(
    folder: Path,
    hub: Server,
    master: str,
    victims: list[Node],
    name: str = NAME,
    offline: Server | None = None,
) -> int:
    """Run the commands that a user types.

    The server `offline` is stopped before the first run of the entry and started for the second.
    """
    environment = base() | credentials(folder / "driver") | {"JSPLAN_VAR_hub": hub.url}
    folder = folder / "workspace"
    jsplan = [str(Path(sys.executable).with_name("jsplan"))]
    run([*jsplan, "apply", "--auto-approve", "--no-backfill"], folder, environment, quiet=True)
    if offline is not None:
        offline.stop()
    code = submit(folder, environment, master, victims, name)
    if offline is not None and not code:
        offline.start()
        hub.wait_until(
            lambda: reached(folder, environment, name), "the offline domain can be reached again"
        )
        code = submit(folder, environment, master, victims, name)
    if code:
        print((folder / "driver.log").read_text("utf-8")[-4000:], file=sys.stderr)
        return code
    run([*jsplan, "backfill", "status", name], folder, environment)
    return run([*jsplan, "backfill", "verify", name], folder, environment)


def submit(
    folder: Path, environment: dict[str, str], master: str, victims: list[Node], name: str
) -> int:
    """Run the entry on the cluster, and wait for its end."""
    command = [
        str(SPARK / "bin/spark-submit"),
        "--master",
        master,
        "--conf",
        "spark.executor.memory=600m",
        spark_submit.__file__,
        "backfill",
        "run",
        name,
    ]
    driver = environment | {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": "python3",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    over = threading.Event()
    killing = threading.Thread(
        target=kill_who_copies, args=(folder, environment, victims, over, name)
    )
    killing.start()
    try:
        return run(command, folder, driver, log=folder / "driver.log")
    finally:
        over.set()
        killing.join()


def reached(folder: Path, environment: dict[str, str], name: str) -> bool:
    """Return True if every origin of an entry answers."""
    found = backfill.plan(LoadOptions(folder, environ=environment), backfill.BackfillOptions(name))
    return not any(origin.error for origin in found.origins)


# --- the cluster ----------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster(folder: Path, leaf: Server) -> Iterator[tuple[str, list[Node]]]:
    """A master and two workers; the URL of the master, and the workers."""
    write_context(folder / "driver", leaf)
    wheel = build_wheel(folder)
    master = Node("the master", made(folder / "master"), base())
    workers = [worker(folder / f"worker{number}", leaf, wheel) for number in (1, 2)]
    try:
        master.start("master.Master", "--port", "0")
        url = master.awaited(r"spark://127\.0\.0\.1:\d+")
        for node in workers:
            node.start(
                "worker.Worker",
                url,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(node.folder / "work"),
            )
        for node in workers:
            node.awaited("Successfully registered with master")
        yield url, workers
    finally:
        for node in (*workers, master):
            node.kill()


def worker(folder: Path, leaf: Server, wheel: Path) -> Node:
    """Set up a worker machine: its own Python with jsplan and pyarrow, its own credentials."""
    print(f"Making a Python environment for {folder.name}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", made(folder) / "python"], check=True)
    pip: list[str | Path] = [
        folder / "python/bin/python",
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, wheel, "pyarrow", "numpy"], check=True)
    write_context(folder, leaf)
    path = f"{folder / 'python/bin'}:{os.environ['PATH']}"
    return Node(folder.name, folder, base() | credentials(folder) | {"PATH": path})


def build_wheel(folder: Path) -> Path:
    """Build the package from this folder; elsewhere it comes from the package index."""
    pip = [sys.executable, "-m", "pip", "wheel", "-qq", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", made(folder / "wheels"), ROOT], check=True)
    return next((folder / "wheels").glob("*.whl"))


def base() -> dict[str, str]:
    """Return the environment of every process, without NATS credentials."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JSPLAN_", "NATS_", "PYSPARK_", "SPARK_"))
    }
    java = find_java_home(os.environ, Path(tempfile.gettempdir()) / "jsplan-java")
    quiet = {
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    return (
        kept
        | quiet
        | {"JAVA_HOME": str(java), "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1"}
    )


def credentials(folder: Path) -> dict[str, str]:
    """One in the environment, the other in a file below `folder`."""
    return {"HUB_PASSWORD": "acc", "XDG_CONFIG_HOME": str(folder / "config")}


def write_context(folder: Path, leaf: Server) -> None:
    """Write the file of `nats context add leaf`."""
    path = made(folder / "config/nats/context") / "leaf.json"
    path.write_text(
        json.dumps({"url": leaf.url, "user": leaf.user, "password": leaf.password}), "utf-8"
    )
    path.chmod(0o600)


def made(folder: Path) -> Path:
    """The folder, which is there then."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# --- what happens meanwhile -----------------------------------------------------------------------


def kill_who_copies(
    folder: Path, environment: dict[str, str], workers: list[Node], over: threading.Event, name: str
) -> None:
    """Kill a worker that runs the copy, with all its processes, once a quarter is staged."""
    load = LoadOptions(folder, environ=environment)
    while workers and not over.wait(0.1):
        with contextlib.suppress(JsplanError):
            (entry,) = backfill.status(load, (name,)).entries
            if (
                sum(left.messages * 4 for left in entry.orphans if not left.sealed)
                >= sum(origin.last for origin in entry.origins)
                > 0
            ):
                break
    else:
        return
    victim = next(node for node in workers if copies(node))
    print(f"[{victim.name} is killed]", flush=True)
    for pid in (
        *below(victim.process.pid if victim.process else 0),
        victim.process.pid if victim.process else 0,
    ):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def copies(node: Node) -> bool:
    """Return True if one of its executors has a Python worker."""
    mine = below(node.process.pid if node.process else 0)
    return any("pyspark" in command for pid, command in listed("pid", "args") if int(pid) in mine)


def listed(*columns: str) -> list[list[str]]:
    """All processes."""
    command = [
        shutil.which("ps") or "ps",
        "-A",
        "-ww",
        *(word for column in columns for word in ("-o", f"{column}=")),
    ]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split(None, len(columns) - 1) for line in lines]


def below(pid: int) -> list[int]:
    """A process's descendants."""
    parents = {int(child): int(parent) for child, parent in listed("pid", "ppid")}
    every = {pid}
    while more := {child for child, parent in parents.items() if parent in every} - every:
        every |= more
    return sorted(every - {pid})


def fill(leaf: Server, count: int, name: str = "ORDERS", subject: str = "orders") -> None:
    """Create a stream of a leaf with numbered messages.

    Its subjects are its own, since a message that is published in one leaf reaches all.
    """
    from jsplan.backfill.protocol import (  # noqa: PLC0415 - quicker than a client
        RawConnection,
    )
    from jsplan.jetstream.contexts import ConnectionSettings  # noqa: PLC0415

    wire = RawConnection(ConnectionSettings("leaf", leaf.url, leaf.url, leaf.user, leaf.password))
    try:
        wire.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{subject}.>"]})
        publish_numbers(wire, count, f"{subject}.".encode())
    finally:
        wire.close()


def publish_numbers(wire: RawConnection, count: int, prefix: bytes) -> None:
    """Messages of `SIZE` bytes, on nine subjects."""
    import pyarrow as pa  # noqa: PLC0415

    from jsplan.backfill.protocol import publish  # noqa: PLC0415

    def rows(first: int) -> tuple[pa.Array, pa.Array, pa.Array]:
        numbers = range(first, min(count, first + 4999) + 1)
        subjects = [b"%s%d" % (prefix, n % 9) for n in numbers]
        columns = (subjects, [b""] * len(numbers), [(b"%d" % n).ljust(SIZE) for n in numbers])
        return tuple(pa.array(column, pa.binary()) for column in columns)

    publish(wire, (rows(first) for first in range(1, count + 1, 5000)))


def run(
    command: list[str],
    folder: Path,
    environment: dict[str, str],
    *,
    log: Path | None = None,
    quiet: bool = False,
) -> int:
    """Show a command as it would be typed, and what it prints."""
    shown = [Path(command[0]).name, *command[1:]]
    if not quiet:
        print(f"$ {shlex.join(shown)}", flush=True)
    with log.open("wb") if log is not None else contextlib.nullcontext() as errors:
        out = subprocess.DEVNULL if quiet else None
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            check=False,
        )
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
