"""Pure decisions on backfills: strategy, estimated time, windows, and what state keeps."""
