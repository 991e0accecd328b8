"""The drift job: full checks by schedule, partial checks by advisories, alerts and sinks."""
