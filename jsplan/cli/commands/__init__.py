"""One file per command, imported when that command is called. What a command does is left to `workflows`."""
