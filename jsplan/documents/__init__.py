"""The documents of `state/SPEC.md` as typed data, which every view and the executor read."""
