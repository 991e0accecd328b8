"""The exit codes in words; their numbers and precedence are in `errors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jsplan.codes.text import CodeText

EXIT_CODES: Final[Mapping[int, CodeText]] = {
    0: CodeText(
        "Done.",
        "The command did what it should. Deferred resources are printed, and `drift` found "
        "nothing.",
        "Nothing.",
    ),
    1: CodeText(
        "Error.",
        "The files, a server or the state did not allow the command to finish. For `drift`, a "
        "domain could not be read: it has no `may_be_offline`, or it refuses the login or a "
        "permission.",
        "Read the messages, correct the cause, and run the command again.",
    ),
    2: CodeText(
        "There are differences.",
        "`plan --detailed-exitcode` found changes, `drift` found drift (`--fail-on`), "
        "`backfill verify` found differences, or `status` names lost messages, an unhealthy flow "
        "or another critical finding.",
        "Look at the result, then apply, or correct what changed.",
    ),
    3: CodeText(
        "Refused. Nothing was changed.",
        "`prevent_destroy` or `on_replace` forbids it, `--adopt` is needed, or the files make a "
        "lint finding an error: then `plan` ends with 3, too. For `apply`, also a hazard that is "
        "not allowed. For `lint`: findings of `--fail-on`.",
        "Pass the flag that the message names after you read the plan, or change the files.",
    ),
    4: CodeText(
        "The saved plan is stale. Nothing was changed.",
        "Something that it touches has changed since it was made, or it was applied before.",
        "Run `jsplan plan -o FILE` again, and apply the new plan.",
    ),
    5: CodeText(
        "The state is locked.",
        "Another run works on it, or an earlier run ended without releasing the lock.",
        "Wait, or raise `--lock-timeout`. If no run is active: `jsplan state unlock`.",
    ),
    6: CodeText(
        "Applied in part.",
        "A step failed after others were done. The state says exactly which.",
        "Correct the cause, then run `jsplan plan`: it shows the rest.",
    ),
    64: CodeText(
        "The command line is wrong.",
        "An option, an argument or their combination is not valid.",
        "Read the help of the command: `jsplan help COMMAND`.",
    ),
    130: CodeText(
        "Interrupted.",
        "Ctrl-C was pressed. jsplan finished the calls that were running and saved the state.",
        "Run the command again; it continues with the rest.",
    ),
}  # fmt: skip
