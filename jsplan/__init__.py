"""Plan and apply for NATS JetStream across hub and leaf domains.

The Python API is `jsplan.workflows`; everything else is a room of the house
described in `docs/architecture.md`.
"""

__version__ = "0.1.0"
