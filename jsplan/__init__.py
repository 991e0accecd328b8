"""Plan and apply for NATS JetStream across hub and leaf domains.

The Python API is `jsplan.api`. `docs/architecture.md` describes the packages.
"""

__version__ = "0.1.0"
