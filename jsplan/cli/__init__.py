"""The command line: parses, calls a workflow, returns an exit code. What is printed is made by `render`."""
