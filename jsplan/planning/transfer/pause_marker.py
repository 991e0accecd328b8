"""The instant by which a pause of ours is recognised."""

from __future__ import annotations

from typing import Final

#: Instant until which we pause consumers of a quiesced stream. No other client uses it.
PAUSED_UNTIL: Final = "2249-12-31T23:59:59.987654321Z"
