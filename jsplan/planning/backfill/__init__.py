"""Pure decisions on backfills: strategy, estimated time, deadline, and what state keeps."""
