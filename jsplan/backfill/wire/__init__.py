"""The NATS protocol in bulk: whole socket buffers into Arrow and out of it. What the messages are for is left to others.

nats-py spends 25 to 115 microseconds of Python on each message; this spends about one. It knows only what copying needs:
one blocking connection, requests, reading a stream in order, publishing in order.
"""

from __future__ import annotations

from jsplan.backfill.wire.frames import MESSAGES, Scan, framed, scan
from jsplan.backfill.wire.reading import read
from jsplan.backfill.wire.socket import Wire
from jsplan.backfill.wire.writing import Chain, publish

__all__ = ["MESSAGES", "Chain", "Scan", "Wire", "framed", "publish", "read", "scan"]
