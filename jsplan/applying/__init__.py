"""The executor: preconditions, calls, read-back, journal. It knows no JetStream rules."""
