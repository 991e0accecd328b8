"""The sequences behind the commands, one module per command."""
