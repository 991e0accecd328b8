"""`jsplan completion`: the completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from jsplan.cli.bash_completion import WholeWordBashComplete
from jsplan.cli.lazy import declare
from jsplan.cli.run import start


@declare("completion", examples=['eval "$(jsplan completion bash)"'])
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> int:
    """Print the completion script of a shell.

    For bash, add the line of the example to ~/.bashrc.
    """
    from jsplan.cli.main import COMPLETE_VARIABLE, PROGRAM, root

    _, output = start(ctx)
    made = WholeWordBashComplete if shell == "bash" else get_completion_class(shell)
    assert made is not None
    completer = made(root, {}, PROGRAM, COMPLETE_VARIABLE)
    output.line((completer.source_template % completer.source_vars()).strip())
    return 0
