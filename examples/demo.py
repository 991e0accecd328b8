"""`make demo`: plan, apply, drift and backfill on real servers.

It starts a hub and a leaf with the accounts and the leafnode connection of the NATS documentation
on free ports, runs the installed `jsplan` on a copy of examples/hub-and-leaf, and stops both
servers. `make demo-svg` draws it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nats
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from jsplan.sandbox import Sandbox, Server

EXAMPLE = Path(__file__).parent / "hub-and-leaf"
DAY = 86_400_000_000_000
console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
numbers = itertools.count(1)


def main() -> int:
    """Run the whole story; returns 0 when every command ended as it should."""
    started = time.monotonic()
    with (
        Sandbox.hub_and_leaf() as sandbox,
        tempfile.TemporaryDirectory(prefix="jsplan-demo-") as folder,
    ):
        shutil.copy(EXAMPLE / "jsplan.yaml", folder)
        story(Path(folder), sandbox["hub"], sandbox["leaf"])
    console.print()
    say(
        f"Done in {time.monotonic() - started:.0f} s. "
        "The servers are stopped, nothing is left running."
    )
    return 0


def story(folder: Path, hub: Server, leaf: Server) -> None:
    """The demo itself, against two running servers."""
    environment = {"ACC_PASSWORD": "acc", "JSPLAN_VAR_hub": hub.url}

    chapter("A hub and a leaf")
    console.print()
    say("Two real nats-servers have been started, joined by a leafnode connection:")
    point(f"hub   {hub.url}   JetStream domain hub")
    point(f"leaf  {leaf.url}   JetStream domain leaf, which we reach through the hub")
    console.print()
    say("This is what we want of them, in examples/hub-and-leaf/jsplan.yaml:")
    show_streams(folder / "jsplan.yaml")

    chapter("What would be done")
    jsplan(folder, environment, "plan", "-o", "first.plan")

    chapter("Exactly that is done")
    jsplan(folder, environment, "apply", "first.plan")

    chapter("A second plan is empty")
    jsplan(folder, environment, "plan", "--detailed-exitcode")

    chapter("Messages flow from the leaf to the hub")
    asyncio.run(publish_and_watch(hub, leaf))

    chapter("Another client changes resources outside jsplan")
    asyncio.run(tamper(hub))
    jsplan(folder, environment, "drift", expect=2)
    jsplan(folder, environment, "plan", "-o", "repair.plan")

    chapter("And it is put right again")
    jsplan(folder, environment, "apply", "repair.plan")
    jsplan(folder, environment, "drift")

    chapter("History is copied from the leaf into the hub")
    asyncio.run(make_archive(hub))
    ends = ("--from", "leaf/stream/test", "--to", "hub/stream/archive")
    jsplan(folder, environment, "backfill", "run", *ends)
    jsplan(folder, environment, "backfill", "verify", *ends)


def jsplan(folder: Path, environment: dict[str, str], *words: str, expect: int = 0) -> None:
    """Run the command as a user would, on this terminal; an unexpected exit code ends the demo."""
    console.print(Text(f"\n$ jsplan {' '.join(words)}", style="bold cyan"))
    sys.stdout.flush()
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("JSPLAN_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "jsplan", *words],
        cwd=folder,
        env=inherited | environment,
        check=False,
    )
    if done.returncode != expect:
        raise SystemExit(f"jsplan {words[0]} ended with {done.returncode}, not {expect}")
    if expect:
        console.print(Text(f"(exit code {expect}, for scripts)", style="dim"))


async def publish_and_watch(hub: Server, leaf: Server) -> None:
    """Publish to the leaf; both copies in the hub must have everything."""
    edge = await nats.connect(leaf.url, user=leaf.user, password=leaf.password)
    for number in range(1, 1001):
        await edge.publish("test", f"reading {number}".encode())
    await edge.flush()
    await edge.close()
    console.print()
    say("1,000 messages were published to subject test at the leaf. A moment later:")
    core = await nats.connect(hub.url, user=hub.user, password=hub.password)
    for domain, stream, what in (
        ("leaf", "test", "the origin, at the edge"),
        ("hub", "backup-test-leaf", "its mirror, in the hub"),
        ("hub", "aggregate-test-leaf", "all edges in one, in the hub"),
    ):
        state = await settled(core, domain, stream)
        point(f"{domain:<6}{stream:<22}{state['messages']:>6,} messages   {what}")
        if state["messages"] != 1000:
            raise SystemExit(f"{stream} has {state['messages']} messages, not 1,000")
    await core.close()


async def settled(client: Any, domain: str, stream: str) -> dict[str, Any]:
    """The stream's state once all messages are there, or its current state after half a minute."""
    for _ in range(300):
        answer = await client.request(f"$JS.{domain}.API.STREAM.INFO.{stream}", timeout=5)
        state: dict[str, Any] = json.loads(answer.data)["state"]
        if state["messages"] >= 1000:
            break
        await asyncio.sleep(0.1)
    return state


async def tamper(hub: Server) -> None:
    """Change a limit and delete a consumer, as a colleague with the nats CLI might."""
    client = await nats.connect(hub.url, user=hub.user, password=hub.password)
    answer = await client.request("$JS.leaf.API.STREAM.INFO.test", timeout=5)
    config = json.loads(answer.data)["config"] | {"max_age": DAY, "max_msgs": 500_000}
    await client.request("$JS.leaf.API.STREAM.UPDATE.test", json.dumps(config).encode(), timeout=5)
    await client.request("$JS.hub.API.CONSUMER.DELETE.aggregate-test-leaf.dur", timeout=5)
    await client.close()
    console.print()
    say("With another tool, on a Friday afternoon:")
    point("stream test keeps messages for one day instead of thirty, and at most 500,000 of them")
    point("consumer dur is deleted")


async def make_archive(hub: Server) -> None:
    """A stream that nothing fills."""
    client = await nats.connect(hub.url, user=hub.user, password=hub.password)
    await client.request(
        "$JS.hub.API.STREAM.CREATE.archive",
        json.dumps({"name": "archive", "subjects": ["archive.>"]}).encode(),
        timeout=5,
    )
    await client.close()
    console.print()
    say("An empty stream, archive, was made in the hub. PySpark copies into it what the leaf has,")
    say("exactly once, and compares both sides. Java comes along as a wheel where there is none.")


def chapter(title: str) -> None:
    """A numbered line across the terminal."""
    console.print()
    console.print(Rule(Text(f"{next(numbers)}. {title}", style="bold"), align="left", style="dim"))


def say(text: str) -> None:
    """One sentence of the narrator."""
    console.print(Text(text))


def point(text: str) -> None:
    """One thing that the sentence before announced."""
    console.print(Text(f"  {text}"))


def show_streams(path: Path) -> None:
    """The part of a workspace that says what is wanted, without the author's comments."""
    lines = path.read_text(encoding="utf-8").partition("\nstreams:\n")[2].splitlines()
    wanted = ["streams:", *(line for line in lines if not line.lstrip().startswith("#"))]
    text = Text("\n" + "\n".join(f"  {line}".rstrip() for line in wanted))
    text.highlight_regex(r"\w+(?=:( |$))", "blue")
    console.print(text)


if __name__ == "__main__":
    sys.exit(main())
