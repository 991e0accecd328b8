"""`jsplan access`: exports and imports that flows between accounts need. Changes nothing."""

from __future__ import annotations

from pathlib import Path

import click

from jsplan.cli.lazy import declare
from jsplan.cli.run import start
from jsplan.errors import ExitCode, UsageError


@declare(
    "access",
    connects="check",
    examples=["jsplan access", "jsplan access --check --style nsc", "jsplan access --prove"],
)
@click.option(
    "--check",
    is_flag=True,
    help="Test on the servers which of them exist; exit with 1 if one is missing or unknown.",
)
@click.option(
    "--system-connection",
    metavar="NAME",
    help="With --check: a connection to the system account, to see which account lacks its part.",
)
@click.option("--style", type=click.Choice(("both", "config", "nsc")), default="both",
              show_default=True,
              help="Print the server's configuration, the nsc commands, or both.")  # fmt: skip
@click.option(
    "--prove",
    is_flag=True,
    help="Try the permissions of applications on embedded servers; exit with 1 if they are wrong.",
)
@click.option(
    "--server-version",
    metavar="VERSION",
    help="With --prove: the version of the embedded servers, such as 2.12.",
)
@click.option(
    "--own",
    is_flag=True,
    help="Print the permissions of jsplan's own users too: plan, drift and deploy.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=("Print only who gains and loses what since FILE, an earlier --json; exit with 2 if so."),
)
@click.option(
    "--jwt",
    metavar="NAME",
    help="Print nothing but the JWT of the user of this application, for accounts of an operator.",
)
@click.option(
    "--signing-key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --jwt: the file with the seed of its account, or of a signing key of that.",
)
@click.pass_context
def command(
    ctx: click.Context,
    check: bool,
    system_connection: str | None,
    style: str,
    prove: bool,
    server_version: str | None,
    own: bool,
    against: Path | None,
    jwt: str | None,
    signing_key: Path | None,
) -> int:
    """Print what flows between accounts and applications need: exports, imports, permissions.

    Connections name their account (`account:`, or a creds file). Consumers that clients of another
    account use are named in the imports row: `consumers: [STREAM/CONSUMER]`. The permissions of
    applications are derived from `apps:`.
    """
    settings, output = start(ctx)
    if system_connection and not check:
        raise UsageError("--system-connection requires --check")
    if own and prove:
        raise UsageError("--own and --prove exclude each other")
    if server_version and not prove:
        raise UsageError("--server-version requires --prove")
    if bool(jwt) != bool(signing_key):
        raise UsageError("--jwt and --signing-key belong together")
    from jsplan.workflows.access import access as access_workflow
    from jsplan.workflows.access import sign_jwt

    if jwt is not None and signing_key is not None:
        output.line(sign_jwt(settings.load_options(), jwt, signing_key))
        return int(ExitCode.OK)
    found = access_workflow(
        settings.load_options(),
        output.progress,
        ask=check,
        system=system_connection,
        prove=prove,
        server_version=server_version,
        own=own,
        against=against,
    )
    from jsplan.render import access_text

    output.result(found.to_json, lambda console: access_text.render(found, console, style=style))
    checked = not found.checked or len(found.with_status("ok")) == len(found.required)
    proven = all(app.proof is None or app.proof.is_complete for app in found.apps)
    if not (checked and proven):
        return int(ExitCode.ERROR)
    return int(ExitCode.CHANGES if found.changes else ExitCode.OK)
