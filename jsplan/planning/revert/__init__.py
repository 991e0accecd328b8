"""Reverting an apply: what each resource should be again, what stands in the way, what does not come back, what the files say."""
