"""history: the applies that state remembers. Asks no server about a stream."""

from __future__ import annotations

from typing import Any

from jsplan.config.model import LoadOptions
from jsplan.context import open_backend
from jsplan.documents.history import History
from jsplan.event_loop import runs_to_end
from jsplan.history import find_entry, with_changes, without_changes


@runs_to_end
async def history(load: LoadOptions, number: int | None = None) -> dict[str, Any]:
    """Return the history document: all entries without changes, newest first, or one with them.

    Raises JsplanError for an entry that does not exist (any more).
    """
    async with open_backend(load) as (workspace, backend):
        state = await backend.read()
        running = (
            bool(state.history)
            and state.history[-1]["result"] == "started"
            and await backend.read_holder() is not None
        )
    listed = (
        [without_changes(entry) for entry in reversed(state.history)]
        if number is None
        else [with_changes(find_entry(state, number))]
    )
    for entry in listed:
        if running and entry["id"] == state.history[-1]["id"]:
            entry["running"] = True
    return History(workspace.name, workspace.environment, listed).to_json()
