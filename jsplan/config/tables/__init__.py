"""Tables of all keys of a workspace file. Fields of resources are in `jsplan.resources`."""
