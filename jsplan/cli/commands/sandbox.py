"""`jsplan sandbox up`: run embedded nats-servers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, cast

import click

from jsplan.cli.commands import CommandEntry
from jsplan.cli.lazy import declare, group
from jsplan.cli.run import start
from jsplan.cli.types import AbsolutePath
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from jsplan.cli.output import Output
    from jsplan.sandbox import Sandbox
    from jsplan.sandbox.foreground import SandboxDescription

SHAPES = ("hub-and-leaf", "single", "cluster")


@group(
    "sandbox",
    {
        "up": CommandEntry("Start servers and keep them until Ctrl-C.", "sandbox", "up"),
        "fleet": CommandEntry(
            "Start a hub with many leaves and keep them until Ctrl-C.", "sandbox", "fleet"
        ),
    },
    examples=["jsplan sandbox up"],
)
def command() -> None:
    """Run embedded nats-servers to try things out."""


@declare("up", examples=["jsplan sandbox up", "jsplan sandbox up single --free-ports"])
@click.argument("shape", required=False, default="hub-and-leaf", type=click.Choice(SHAPES))
@click.option(
    "--leaf",
    multiple=True,
    metavar="NAME",
    help="With hub-and-leaf: start a leaf of this name; repeatable.",
)
@click.option(
    "--domain", metavar="NAME", help="With single and cluster: the name of the JetStream domain."
)
@click.option(
    "--folder",
    type=AbsolutePath(),
    metavar="DIR",
    help="Keep the data in this folder.  [default: a folder that is deleted at the end]",
)
@click.option("--free-ports", is_flag=True, help="Use any free ports instead of 4222 and the like.")
@click.pass_context
def up(
    ctx: click.Context,
    /,
    shape: str,
    leaf: tuple[str, ...],
    domain: str | None,
    folder: Path | None,
    free_ports: bool,
) -> int:
    """Start nats-servers, print how to reach them, and stop them at Ctrl-C."""
    _, output = start(ctx)
    if leaf and shape != "hub-and-leaf":
        raise UsageError("--leaf requires hub-and-leaf")
    if domain and shape == "hub-and-leaf":
        raise UsageError(
            "--domain requires single or cluster; in hub-and-leaf a server's name is its domain"
        )
    from jsplan.sandbox import foreground as servers

    kind = cast('Literal["hub-and-leaf", "single", "cluster"]', shape)
    ports = None if free_ports else servers.DOCUMENTED_PORTS[kind]
    sandbox = servers.make_sandbox(
        kind, ports=ports, folder=folder, leaves=leaf or ("leaf",), domain=domain
    )

    output.progress.phase("Starting nats-server")
    return _run(output, sandbox, render_text)


@declare("fleet", examples=["jsplan sandbox fleet 50"])
@click.argument("count", default=20, type=click.IntRange(1, 999), metavar="[N]")
@click.pass_context
def fleet(ctx: click.Context, /, count: int) -> int:
    """Start a hub with N leaves (by default 20): store-001 and so on. Stop them at Ctrl-C."""
    _, output = start(ctx)
    from jsplan.sandbox import foreground as servers

    output.progress.phase(f"Starting a hub and {count} leaves")
    running = servers.run_fleet(servers.leaf_names(count))
    return _run(
        output, running, lambda found: servers.describe_access(found.servers[0]["url"], count)
    )


def _run(
    output: Output,
    running: AbstractContextManager[Sandbox],
    render: Callable[[SandboxDescription], str],
) -> int:
    """Run servers until Ctrl-C, and print how to reach them."""
    from jsplan.sandbox.foreground import run_in_foreground

    def ready(described: SandboxDescription) -> None:
        output.result_lines(described.to_json, render(described))
        output.note("Running. Ctrl-C ends it.")
        sys.stdout.flush()

    run_in_foreground(running, ready)
    _print_stopped(output)
    return 0


def _print_stopped(output: Output) -> None:
    """Print the last line, below what the terminal shows for Ctrl-C."""
    output.note("\nStopped." if sys.stderr.isatty() else "Stopped.")


def render_text(sandbox: SandboxDescription) -> str:
    """Return servers, users, and a workspace that reaches them."""
    lines = [
        f"{s['name']}: {s['url']}"
        + (f", domain {s['domain']}" if s["domain"] else "")
        + f", nats-server {s['version']}"
        for s in sandbox.servers
    ]
    lines += [
        f"account {u['account']}: user {u['user']}, password {u['password']}" for u in sandbox.users
    ]
    lines += [f"data: {sandbox.folder}", "", "A jsplan.yaml that reaches it:", ""]
    return (
        "\n".join(lines)
        + "\n"
        + "\n".join(f"  {line}" if line else "" for line in sandbox.workspace.rstrip().splitlines())
    )
