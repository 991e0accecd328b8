"""Embedded nats-servers for the demo, rehearsals and tests."""

from __future__ import annotations

from jsplan.sandbox.sandbox import Sandbox
from jsplan.sandbox.servers import Server

__all__ = ["Sandbox", "Server"]
