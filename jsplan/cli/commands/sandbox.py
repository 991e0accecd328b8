"""`jsplan sandbox up`: embedded nats-servers for trying things out. Starting them is `sandbox`'s."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, cast

import click

from jsplan.cli.lazy import Entry, declare, group
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox.up import Described

SHAPES = ("hub-and-leaf", "single", "cluster")


@group("sandbox", {"up": Entry("Start servers and keep them until Ctrl-C.", "sandbox", "up")})
def command() -> None:
    """Embedded nats-servers for trying things out."""


@declare("up")
@click.argument("shape", required=False, default="hub-and-leaf", type=click.Choice(SHAPES))
@click.option("--leaf", multiple=True, metavar="NAME", help="With hub-and-leaf: a leaf of this name; repeatable.")
@click.option("--domain", metavar="NAME", help="With single and cluster: their JetStream domain.")
@click.option("--folder", type=AbsolutePath(), metavar="DIR", help="Keep data here instead of a folder that is deleted in the end.")
@click.option("--free-ports", is_flag=True, help="Take any free ports instead of those of the NATS documentation.")
@click.pass_context
def up(ctx: click.Context, /, shape: str, leaf: tuple[str, ...], domain: str | None, folder: Path | None, free_ports: bool) -> int:
    """Start nats-servers of a SHAPE (hub-and-leaf, single, cluster), print how to reach them, keep them until Ctrl-C."""
    _, output = start(ctx)
    if leaf and shape != "hub-and-leaf":
        raise UsageError("--leaf goes with hub-and-leaf only")
    if domain and shape == "hub-and-leaf":
        raise UsageError("--domain goes with single and cluster; in hub-and-leaf a server's name is its domain")
    from jsplan.sandbox import up as servers

    kind = cast('Literal["hub-and-leaf", "single", "cluster"]', shape)
    ports = None if free_ports else servers.DOCUMENTED_PORTS[kind]
    sandbox = servers.make(kind, ports=ports, folder=folder, leaves=leaf or ("leaf",), domain=domain)

    def ready(described: Described) -> None:
        output.progress.stop()
        output.result_lines(described.to_json, text_of(described))
        output.note("Running. Ctrl-C ends it.")
        sys.stdout.flush()

    output.progress.phase("Starting nats-server")
    servers.up(sandbox, ready)
    return 0


def text_of(sandbox: Described) -> str:
    """Servers, users, and a workspace that reaches them."""
    lines = [
        f"{s['name']}: {s['url']}" + (f", domain {s['domain']}" if s["domain"] else "") + f", nats-server {s['version']}"
        for s in sandbox.servers
    ]
    lines += [f"account {u['account']}: user {u['user']}, password {u['password']}" for u in sandbox.users]
    lines += [f"data: {sandbox.folder}", "", "A jsplan.yaml that reaches it:", ""]
    return "\n".join(lines) + "\n" + "\n".join(f"  {line}" if line else "" for line in sandbox.workspace.rstrip().splitlines())
