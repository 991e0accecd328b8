"""Pure comparison and ordering: desired, live and last applied become a plan. No I/O."""
