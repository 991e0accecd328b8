"""drift watch: run the drift job until a signal."""

from __future__ import annotations

from jsplan.config.model import LoadOptions
from jsplan.drift.service.alerts import DescribeChange, format_fields
from jsplan.drift.service.options import WatchOptions
from jsplan.drift.service.outputs import Views
from jsplan.drift.service.run import run_service
from jsplan.errors import ExitCode
from jsplan.event_loop import run_until_complete
from jsplan.options import Observer


def watch(
    load: LoadOptions,
    options: WatchOptions,
    views: Views,
    observer: Observer,
    describe: DescribeChange = format_fields,
) -> ExitCode:
    """Run the job until SIGTERM (exit code 0) or Ctrl-C (130).

    It sends nothing that could change a server; sinks receive notifications. Raises ConfigError and
    ConnectError for permanent errors, and JsplanError if the endpoint's address is not available.
    """
    return run_until_complete(run_service(load, options, views, observer, describe))
