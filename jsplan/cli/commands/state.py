"""`jsplan state`: inspect and correct the state. No command changes a resource on a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from jsplan.cli.commands import CommandEntry
from jsplan.cli.lazy import declare, group
from jsplan.cli.plan_options import lock_timeout_option, number_option
from jsplan.cli.run import start
from jsplan.cli.types import AddressGlob
from jsplan.errors import StateError
from jsplan.units import count_text

_TABLE = {
    "list": CommandEntry("List the addresses in the state.", "state", "list_"),
    "show": CommandEntry("Show one resource as it was last applied.", "state", "show"),
    "rm": CommandEntry("Remove resources; they stay on the servers.", "state", "rm"),
    "mv": CommandEntry("Give a resource another address.", "state", "mv"),
    "pull": CommandEntry("Print the state document.", "state", "pull"),
    "push": CommandEntry("Replace the state with a document.", "state", "push"),
    "take": CommandEntry("Move the state of another environment here.", "state", "take"),
    "unlock": CommandEntry("Remove a lock that an earlier run left.", "state", "unlock"),
}


@group("state", _TABLE, examples=["jsplan state list", "jsplan state show hub/stream/ORDERS"])
def command() -> None:
    """Inspect and correct the state. None of these commands changes a resource on a server."""


_NO_LOCK = "The state is not locked by it: the lock has ended. Nothing was changed."


def _document(kind: str, **fields: Any) -> dict[str, Any]:
    return {"format_version": "1.0", "kind": kind} | fields


@declare("list", connects=True, examples=["jsplan state list", "jsplan state list 'hub/**'"])
@click.argument("globs", nargs=-1, type=AddressGlob(), metavar="[ADDRESS]...")
@click.pass_context
def list_(ctx: click.Context, globs: tuple[str, ...]) -> int:
    """List the addresses in the state that match any ADDRESS, one per line; by default all."""
    settings, output = start(ctx)
    from jsplan.workflows.state import list_ as list_workflow

    addresses = list_workflow(settings.load_options(), globs)
    _lines(output, _document("state-list", addresses=addresses), addresses)
    return 0


@declare("show", connects=True, examples=["jsplan state show hub/stream/ORDERS"])
@click.argument("address", type=AddressGlob())
@click.pass_context
def show(ctx: click.Context, address: str) -> int:
    """Show one resource as it was last applied."""
    settings, output = start(ctx)
    from jsplan.diagnostics import did_you_mean
    from jsplan.render import state_text
    from jsplan.workflows.state import show as show_workflow

    resources = show_workflow(settings.load_options())["resources"]
    if address not in resources:
        raise StateError(
            f"{address} is not in the state.{did_you_mean(address, resources)}",
            hint="See what is: jsplan state list",
        )
    entry = resources[address]
    output.result(
        lambda: _document("state-entry", address=address) | entry,
        lambda console: state_text.resource(address, entry, console),
    )
    return 0


@declare("rm", connects=True, examples=["jsplan state rm hub/stream/ORDERS"])
@click.argument("addresses", nargs=-1, required=True, type=AddressGlob(), metavar="ADDRESS...")
@lock_timeout_option
@click.pass_context
def rm(ctx: click.Context, addresses: tuple[str, ...], lock_timeout: int) -> int:
    """Remove resources from the state. They stay on the servers.

    The next plan imports those that are in the files; the others are unmanaged.
    """
    settings, output = start(ctx)
    from jsplan.workflows.state import rm as rm_workflow

    gone = rm_workflow(settings.load_options(), addresses, lock_timeout, output.progress)
    _lines(output, _document("state-rm", removed=gone), [f"Forgot {address}" for address in gone])
    return 0


@declare("mv", connects=True, examples=["jsplan state mv hub/stream/ORDERS leaf/stream/ORDERS"])
@click.argument("source", type=AddressGlob(), metavar="ADDRESS")
@click.argument("target", type=AddressGlob(), metavar="NEW_ADDRESS")
@lock_timeout_option
@click.pass_context
def mv(ctx: click.Context, source: str, target: str, lock_timeout: int) -> int:
    """Give a resource a new address in the state. The resource on the server does not change."""
    settings, output = start(ctx)
    from jsplan.workflows.state import mv as mv_workflow

    moved = mv_workflow(settings.load_options(), source, target, lock_timeout, output.progress)
    pairs = [{"from": old, "to": new} for old, new in moved]
    _lines(
        output, _document("state-mv", moved=pairs), [f"Moved {old} to {new}" for old, new in moved]
    )
    return 0


@declare("pull", connects=True, examples=["jsplan state pull > state.json"])
@number_option("--serial", "Print an earlier serial, if it is still kept.")
@click.pass_context
def pull(ctx: click.Context, serial: int | None) -> int:
    """Print the state document as JSON, with its journal applied."""
    settings, _ = start(ctx)
    from jsplan.workflows.state import pull as pull_workflow

    content = pull_workflow(settings.load_options(), serial)
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
    return 0


@declare("push", connects=True, examples=["jsplan state push state.json"])
@click.argument("file", metavar="FILE")
@click.option(
    "--force",
    is_flag=True,
    help="Replace the state even if it is newer, of another lineage, or unreadable.",
)
@lock_timeout_option
@click.pass_context
def push(ctx: click.Context, file: str, force: bool, lock_timeout: int) -> int:
    """Replace the state with the document FILE (- is standard input), under a new serial.

    An older document, or one of another lineage, needs --force. Nothing on a server changes. The
    next plan compares with the new state.
    """
    settings, output = start(ctx)
    from jsplan.workflows.state import push as push_workflow

    name, data = _read(file)
    done = push_workflow(
        settings.load_options(),
        data,
        name,
        force=force,
        lock_timeout=lock_timeout,
        observer=output.progress,
    )
    document = _document(
        "state-push", lineage=done.lineage, serial=done.serial, overrode=done.overrode
    )
    lines = [f"Overridden: it {reason}." for reason in done.overrode]
    _lines(
        output,
        document,
        [*lines, f"The state is at serial {done.serial} now. See what that means: jsplan plan"],
    )
    return 0


@declare(
    "take",
    connects=True,
    examples=["jsplan state take -e prod", "jsplan state take -e eu --from prod"],
)
@click.option(
    "--from",
    default="none",
    show_default=True,
    metavar="NAME",
    help="The environment that has the state; none: the workspace without one.",
)
@lock_timeout_option
@click.pass_context
def take(ctx: click.Context, /, lock_timeout: int, **named: Any) -> int:
    """Move the state of another environment into the chosen one. No server is changed.

    For a workspace that gets `environments:`, loses them, or renames one. Both are in the same
    backend. The other state is empty afterwards.
    """
    settings, output = start(ctx)
    from jsplan.workflows.state import take as take_workflow

    environment = str(named["from"])
    load, before = settings.load_options(), None if environment == "none" else environment
    done = take_workflow(load, before, lock_timeout, output.progress)
    document = _document(
        "state-take",
        environment=done.environment,
        lineage=done.lineage,
        serial=done.serial,
        resources=done.resources,
    )
    text = (
        f"Moved the state with {count_text(done.resources, 'resource')} from environment "
        f"{environment} to {done.into or 'none'}; it is at serial {done.serial} now. "
        f"The state of environment {environment} is empty. See what that means: jsplan plan"
    )
    _lines(output, document, [text])
    return 0


@declare("unlock", connects=True, examples=["jsplan state unlock 0b1c7d2e"])
@click.argument("lock_id", metavar="ID")
@click.pass_context
def unlock(ctx: click.Context, lock_id: str) -> int:
    """Remove the lock ID that an earlier run left. The message about the lock names its ID.

    In a KV bucket this stops a run that still holds the lock: it can no longer write to the state.
    The lock of a file ends with its process, so the lock of a running process is not removed.
    """
    settings, output = start(ctx)
    from jsplan.documents.base import plain
    from jsplan.workflows.state import unlock as unlock_workflow

    info = unlock_workflow(settings.load_options(), lock_id)
    _lines(
        output,
        _document("state-unlock", lock=plain(info)),
        [f"Unlocked. It was held by {info.describe()}" if info is not None else _NO_LOCK],
    )
    return 0


def _read(file: str) -> tuple[str, bytes]:
    """Return the name of the file for messages, and its content; raise StateError."""
    if file == "-":
        return "standard input", sys.stdin.buffer.read()
    from jsplan.disk import read_regular
    from jsplan.documents.base import MAX_BYTES

    try:
        return file, read_regular(Path(file), MAX_BYTES, pipe=True)
    except OSError as error:
        raise StateError(
            f"cannot read {file}: {error.strerror}",
            hint="Give a document that jsplan state pull printed, or -.",
        ) from None


def _lines(output: Any, document: dict[str, Any], lines: list[str]) -> None:
    """Return a list as text: one item per line, an empty text for none."""
    from jsplan.render.escape import safe

    plain = "\n".join(safe(line) for line in lines)
    output.result_lines(lambda: document, plain)
