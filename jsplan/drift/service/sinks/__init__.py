"""The sinks of notifications, one module per kind, and their delivery."""
