"""The parts of the drift job: alerts, mutes, schedule, advisories, sinks and metrics."""
