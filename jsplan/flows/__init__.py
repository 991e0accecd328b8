"""Which messages reach which stream, by which path. Pure: planning, lint and others ask it."""
