"""`jsplan state`: look at the state and correct it. What is on the servers is never touched by any of these."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from jsplan.cli.lazy import Entry, declare, group
from jsplan.cli.run import start
from jsplan.cli.types import AddressGlob, Duration
from jsplan.errors import StateError

_TABLE = {
    "list": Entry("List the addresses in the state.", "state", "list_"),
    "show": Entry("Show one resource as it was last applied.", "state", "show"),
    "rm": Entry("Forget resources; they stay on the servers.", "state", "rm"),
    "mv": Entry("Give a resource another address.", "state", "mv"),
    "pull": Entry("Print the state document.", "state", "pull"),
    "push": Entry("Put a state document in place.", "state", "push"),
    "unlock": Entry("Take away a lock that was left behind.", "state", "unlock"),
}
_lock_timeout = click.option(
    "--lock-timeout", type=Duration(), default="10s", show_default=True, metavar="DURATION", help="How long to wait for the state lock."
)


@group("state", _TABLE)
def command() -> None:
    """Look at the state and correct it. None of these touches a server's streams."""


def _document(kind: str, **fields: Any) -> dict[str, Any]:
    return {"format_version": "1.0", "kind": kind} | fields


@declare("list")
@click.argument("globs", nargs=-1, type=AddressGlob(), metavar="[ADDRESS]...")
@click.pass_context
def list_(ctx: click.Context, globs: tuple[str, ...]) -> int:
    """List the addresses in the state, one per line; only those that match, if any are given."""
    settings, output = start(ctx)
    from jsplan.workflows.state import list_ as list_workflow

    addresses = list_workflow(settings.load_options(), globs)
    _lines(output, _document("state-list", addresses=addresses), addresses)
    return 0


@declare("show")
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
        raise StateError(f"{address} is not in the state.{did_you_mean(address, resources)}", hint="See what is: jsplan state list")
    entry = resources[address]
    output.result(lambda: _document("state-entry", address=address) | entry, lambda console: state_text.resource(address, entry, console))
    return 0


@declare("rm")
@click.argument("addresses", nargs=-1, required=True, type=AddressGlob(), metavar="ADDRESS...")
@_lock_timeout
@click.pass_context
def rm(ctx: click.Context, addresses: tuple[str, ...], lock_timeout: int) -> int:
    """Forget resources. They stay on the servers; the next plan takes them for unmanaged or imports them."""
    settings, output = start(ctx)
    from jsplan.workflows.state import rm as rm_workflow

    gone = rm_workflow(settings.load_options(), addresses, lock_timeout, output.progress)
    _lines(output, _document("state-rm", removed=gone), [f"Forgot {address}" for address in gone])
    return 0


@declare("mv")
@click.argument("source", type=AddressGlob())
@click.argument("target", type=AddressGlob())
@_lock_timeout
@click.pass_context
def mv(ctx: click.Context, source: str, target: str, lock_timeout: int) -> int:
    """Give a resource another address in the state; the thing on the server stays what it is."""
    settings, output = start(ctx)
    from jsplan.workflows.state import mv as mv_workflow

    moved = mv_workflow(settings.load_options(), source, target, lock_timeout, output.progress)
    pairs = [{"from": old, "to": new} for old, new in moved]
    _lines(output, _document("state-mv", moved=pairs), [f"Moved {old} to {new}" for old, new in moved])
    return 0


@declare("pull")
@click.option("--serial", type=click.IntRange(min=1), metavar="N", help="A serial before the present one, if it is still kept.")
@click.pass_context
def pull(ctx: click.Context, serial: int | None) -> int:
    """Print the state document as JSON, its journal carried out."""
    settings, _ = start(ctx)
    from jsplan.workflows.state import pull as pull_workflow

    content = pull_workflow(settings.load_options(), serial)
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
    return 0


@declare("push")
@click.argument("file", metavar="FILE")
@click.option("--force", is_flag=True, help="Also if it is older, of another lineage, or in place of something unreadable.")
@_lock_timeout
@click.pass_context
def push(ctx: click.Context, file: str, force: bool, lock_timeout: int) -> int:
    """Put the state document FILE (- is standard input) in place of the state, under a new serial.

    One that is older than the state, or of another lineage, is refused without --force. Nothing on a server changes; the next plan
    compares with it.
    """
    settings, output = start(ctx)
    from jsplan.workflows.state import push as push_workflow

    name, data = _read(file)
    done = push_workflow(settings.load_options(), data, name, force=force, lock_timeout=lock_timeout, observer=output.progress)
    document = _document("state-push", lineage=done.lineage, serial=done.serial, overrode=done.overrode)
    said = [f"Overridden: it {reason}." for reason in done.overrode]
    _lines(output, document, [*said, f"The state is at serial {done.serial} now. See what that means: jsplan plan"])
    return 0


@declare("unlock")
@click.argument("lock_id", metavar="ID")
@click.pass_context
def unlock(ctx: click.Context, lock_id: str) -> int:
    """Take away the lock ID that was left behind; the message of whoever waited for it has the id.

    A holder in a KV bucket that is alive after all is stopped by it: it cannot write to the state any more. The lock of a file
    is the system's and goes with its process: that of a living one is not taken away.
    """
    settings, output = start(ctx)
    from jsplan.workflows.state import unlock as unlock_workflow

    info = unlock_workflow(settings.load_options(), lock_id)
    _lines(output, _document("state-unlock", lock=info.to_json()), [f"Unlocked. It was held by {info.describe()}"])
    return 0


def _read(file: str) -> tuple[str, bytes]:
    """What the file is called in messages, and what is in it. Raises StateError."""
    if file == "-":
        return "standard input", sys.stdin.buffer.read()
    from jsplan.disk import read_regular
    from jsplan.documents.base import LARGEST

    try:
        return file, read_regular(Path(file), LARGEST, pipe=True)
    except OSError as error:
        raise StateError(f"cannot read {file}: {error.strerror}", hint="Give a document that jsplan state pull printed, or -.") from None


def _lines(output: Any, document: dict[str, Any], lines: list[str]) -> None:
    """A result that is a list: one per line, nothing at all for none."""
    from jsplan.render.safe import safe

    plain = "\n".join(safe(line) for line in lines)
    output.result_lines(lambda: document, plain)
