"""drift: one read-only check for changed, missing and unmanaged resources."""

from __future__ import annotations

from jsplan.config.model import LoadOptions
from jsplan.context import open_session
from jsplan.documents.drift import Drift
from jsplan.drift.check import check_drift
from jsplan.drift.watermarks import WatermarkFile
from jsplan.event_loop import runs_to_end
from jsplan.options import DriftOptions, Observer


@runs_to_end
async def drift(load: LoadOptions, options: DriftOptions, observer: Observer) -> Drift:
    """Compare live with last applied. Sends nothing that could change a server; takes no lock.

    Raises ConfigError, StateError, ConnectError (no domain at all can be reached) and ApiError.
    """
    async with open_session(load, observer) as session:
        marks = WatermarkFile(session.context.workspace).read()
        found = await check_drift(session, options, marks)
        marks.save()
        return found
