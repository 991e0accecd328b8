"""The command line: parses, calls a workflow, returns an exit code."""
