"""Plan and apply for NATS JetStream across hub and leaf domains.

The Python API is `jsplan.workflows`. `docs/architecture.md` describes the other packages.
"""

__version__ = "0.1.0"
