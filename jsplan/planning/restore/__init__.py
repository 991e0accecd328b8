"""The desired side of a restore: what a backup holds."""
