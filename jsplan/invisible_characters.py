"""Characters that a reader does not see, or mistakes for others."""

from __future__ import annotations

import re
from typing import Final

#: Characters that move the cursor or set colours (C1), turn the direction of text, are not seen
#: (Unicode's Default_Ignorable_Code_Point, the blank of Braille), only look like a blank, or are
#: no characters at all, which XML does not allow.
_BEYOND_ASCII: Final = (
    "\x7f-\xa0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3000\u3164"
    "\ud800-\udfff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    + "".join(
        f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(1, 17)
    )
    + "\U000e0000-\U000e0fff"
)
INVISIBLE: Final = re.compile(f"[\x00-\x1f{_BEYOND_ASCII}]")
#: The same in JSON, which escapes C0 itself and has line ends between its values.
INVISIBLE_IN_JSON: Final = re.compile(f"[{_BEYOND_ASCII}]")
