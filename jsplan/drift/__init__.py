"""Finds changes made outside jsplan: one check, and the job that repeats it (`service`)."""
