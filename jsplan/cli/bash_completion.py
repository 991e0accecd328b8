"""Completion in bash of words that bash cuts, such as `DELETES_STREAM:hub/stream/A`.

Bash cuts a word at each colon and equals sign (COMP_WORDBREAKS) and replaces only the last piece.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from click.shell_completion import BashComplete, split_arg_string

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_BREAKS: Final = (":", "=")
#: What may have a meaning in bash, except wildcards: addresses with them are offered.
_SPECIAL: Final = re.compile(r"[^\w./:,+@%=*?-]")
_BACKSLASH: Final = r"\\\g<0>"


class WholeWordBashComplete(BashComplete):
    """Completion for bash that joins the pieces of a word."""

    #: Without `-r` bash would remove the backslashes.
    source_template = BashComplete.source_template.replace(" read type", " read -r type")
    #: The beginning of the completed value that bash does not replace.
    _kept = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the word at the cursor."""
        pieces = split_arg_string(os.environ["COMP_WORDS"])
        at = int(os.environ["COMP_CWORD"])
        words = [""]
        before = ""
        for piece in [*pieces, ""][1 : at + 1]:
            if piece in _BREAKS or before in _BREAKS:
                words[-1] += piece
            else:
                words.append(piece)
            before = piece
        self._kept = words[-1] if before in _BREAKS else words[-1].removesuffix(before)
        if self._kept.startswith("-"):  # click completes the value of `--option=value` alone
            self._kept = self._kept.partition("=")[2]
        return words[1:-1], words[-1]

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Format a completion without what bash keeps, and quoted: bash inserts it unchanged.

        Backslashes keep the beginning of the word, which quotes around it would change.
        """
        return f"{item.type},{_SPECIAL.sub(_BACKSLASH, item.value.removeprefix(self._kept))}"
